//! Weights: loaded once and shared, given up where room is short, counted for their owner.

use super::super::worker_channel::Forget;
use super::*;
use crate::tenants::{Limit, Quota};

#[test]
fn weights_are_loaded_once_and_shared() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1", "load 1, 2 of 8", "invoke on 0 flags 0"]);
    gpu.done(W1, second);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.device.uninstall(function.id);
    gpu.expect(W0, &["uninstall 1"]);
    gpu.expect(W1, &["uninstall 1"]);
    // It is free once every worker says so, and no worker says so for another.
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    assert!(gpu.device.events.forgot(W0, FunctionId::new(function.id.get() + 1), Forget::Function).is_err());
    assert!(gpu.device.events.forgot(W0, function.id, Forget::Weights).is_err());
    gpu.device.events.forgot(W1, function.id, Forget::Function).unwrap();
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.workers.remove(0);
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    assert_eq!((lost.len(), gpu.device.memory().weight_bytes), (0, 2 * MIB), "it is not reaped");
    gpu.reaped(W0);
    assert_eq!(gpu.device.memory().weight_bytes, 0);
}

#[test]
fn weights_give_way_to_others_everywhere_but_not_under_a_call() {
    let mut gpu = Gpu::new(false);
    let [a, b, c] = ["a", "b", "c"].map(|name| gpu.function(name, 5 * MIB - 1));
    let first = gpu.submit(&a, TenantId::new(1), 0);
    gpu.exports(W0, &a, 6 * MIB);
    let second = gpu.submit(&a, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1, 6 of 8", "invoke on 0 flags 0"]);
    // Both workers use them: the call waits until none does.
    let third = gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    gpu.done(W0, first);
    gpu.expect(W0, &[]);
    gpu.done(W1, second);
    gpu.expect(W0, &["unload 1", "install 2", "load 2 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["unload 1"]);
    gpu.exports(W0, &b, 6 * MIB);
    gpu.done(W0, third);
    gpu.submit(&c, TenantId::new(2), 0);
    gpu.expect(W1, &["install 3", "load 3 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W0, &["unload 2"]);
    // What is still installed needs its weights only.
    gpu.device.events.forgot(W0, a.id, Forget::Weights).unwrap();
    gpu.device.events.forgot(W0, b.id, Forget::Weights).unwrap();
}

#[test]
fn a_worker_that_ends_before_it_shared_weights_leaves_no_trace() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    gpu.submit(&function, TenantId::new(1), 0);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB, "it is not reaped");
    gpu.reaped(W0);
    assert_eq!(gpu.device.memory().weight_bytes, 0);
    gpu.device.events.bury(lost, &killed(), false);
    // The call runs again, alone, in the other worker.
    gpu.expect(W1, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 1"]);
}

#[test]
fn what_needs_more_weights_than_there_may_be_is_refused() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 10 * MIB + 1);
    let refused = gpu.device.submit(gpu.call(&function, TenantId::new(1), 0), 0, None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "its weights take 12582912 bytes of device memory, the device keeps 10485760 for weights: give them more with \
         weights=SIZE"
    );
    // Nor does a call wait that does not fit beside its own weights, and others behind it.
    let function = gpu.function("g", 10 * MIB);
    let most = gpu.device.largest_call_bytes();
    let beside = |bytes| gpu.device.submit(gpu.call(&function, TenantId::new(1), bytes), 0, None);
    let refused = beside(most - 8 * MIB).unwrap_err().to_string();
    assert!(refused.contains("weights of its function included"), "{refused}");
    beside(most - 10 * MIB).unwrap();
    let loads = ["install 2", "load 2 from 10485760, export", "invoke on 0 flags 0"];
    gpu.expect(W0, &loads);
}

#[test]
fn what_a_tenant_may_have_of_a_device_covers_what_is_lent_and_weights() {
    let mut gpu = Gpu::new(false);
    let [a, b] = ["a", "b"].map(|name| gpu.function(name, 4 * MIB));
    let owner = gpu.tenants.account(TenantId::new(1));
    let allow = |mib: u64| {
        let mut quota = Quota::default();
        quota.set(Limit::DeviceMemory, mib * MIB);
        owner.allow(quota);
    };
    allow(7);
    let refused = gpu.device.submit(gpu.call(&a, TenantId::new(1), 8 * MIB), 0, None).unwrap_err();
    assert!(refused.to_string().contains("the quota device-memory of tenant 1 is"), "{refused}");
    // The call's memory fits, the weights do not; they are the owner's, also where another tenant calls.
    allow(10);
    gpu.submit(&a, TenantId::new(1), 8 * MIB);
    gpu.expect(W0, &[]);
    assert_eq!(gpu.device.held_bytes(TenantId::new(1)), 0);
    allow(12);
    let first = gpu.submit(&a, TenantId::new(1), 8 * MIB);
    gpu.expect(W0, &["install 1", "load 1 from 4194304, export", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.held_bytes(TenantId::new(1)), 12 * MIB);
    gpu.exports(W0, &a, 4 * MIB);
    // Under a call they stay; then they give way to others of the same owner, whose call waits for that.
    gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    gpu.done(W0, first);
    gpu.expect(W0, &["install 2", "load 2 from 4194304, export instead of 1", "invoke on 1 flags 0"]);
    // Another's calls cost the owner nothing.
    gpu.exports(W0, &b, 4 * MIB);
    gpu.submit(&b, TenantId::new(2), 8 * MIB);
    assert_eq!(
        (gpu.device.held_bytes(TenantId::new(1)), gpu.device.held_bytes(TenantId::new(2))),
        (12 * MIB, 8 * MIB)
    );
}

#[test]
fn weights_wait_for_memory_that_idle_lanes_have() {
    let mut gpu = Gpu::new(false);
    let (plain, heavy) = (gpu.function("plain", 0), gpu.function("heavy", 8 * MIB));
    let calls = [1, 2].map(|_| gpu.submit(&plain, TenantId::new(1), 48 * MIB));
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0", "invoke on 1 flags 0"]);
    gpu.done(W0, calls[0]);
    // The lane has 48 MiB of 110, the other one as much: 6 are left beside the call.
    let waits = gpu.submit(&heavy, TenantId::new(2), 8 * MIB);
    gpu.expect(W1, &[]);
    gpu.expect(W0, &["give back 1"]);
    gpu.device.events.leased(W0, 48 * MIB).unwrap();
    gpu.expect(W1, &["install 2", "load 2 from 8388608, export", "invoke on 0 flags 0"]);
    gpu.done(W1, waits);
    assert_eq!((gpu.device.memory().weight_bytes, gpu.device.memory().lease_bytes), (8 * MIB, 56 * MIB));
}

#[test]
fn weights_give_way_to_calls_that_need_the_memory() {
    let mut gpu = Gpu::new(false);
    let (plain, heavy) = (gpu.function("plain", 0), gpu.function("heavy", 8 * MIB));
    let first = gpu.submit(&heavy, TenantId::new(1), 0);
    gpu.expect(W0, &["install 2", "load 2 from 8388608, export", "invoke on 0 flags 0"]);
    gpu.exports(W0, &heavy, 8 * MIB);
    let running = gpu.submit(&plain, TenantId::new(2), 48 * MIB);
    gpu.submit(&plain, TenantId::new(2), 55 * MIB);
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    // While a call uses them they stay.
    gpu.expect(W0, &[]);
    gpu.done(W0, first);
    gpu.expect(W0, &["unload 2"]);
    gpu.expect(W1, &[]);
    gpu.device.events.forgot(W0, heavy.id, Forget::Weights).unwrap();
    gpu.expect(W1, &["invoke on 1 flags 0"]);
    gpu.done(W1, running);
}

#[test]
fn weights_in_the_same_worker_are_replaced_in_their_memory() {
    let mut gpu = Gpu::new(false);
    let [a, b] = ["a", "b"].map(|name| gpu.function(name, 6 * MIB));
    let first = gpu.submit(&a, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "load 1 from 6291456, export", "invoke on 0 flags 0"]);
    gpu.exports(W0, &a, 6 * MIB);
    gpu.done(W0, first);
    for (function, replaced, what) in [
        (&b, &a, "load 2 from 6291456, export instead of 1"),
        (&a, &b, "load 1 from 6291456, export instead of 2"),
    ] {
        let call = gpu.submit(function, TenantId::new(1), 0);
        let installs: &[&str] = if function.id == b.id { &["install 2"] } else { &[] };
        gpu.expect(W0, &[installs, &[what, "invoke on 0 flags 0"]].concat());
        // It is the same memory, and its descriptor is here.
        gpu.device.events.loaded(W0, function.id, 6 * MIB, false).unwrap();
        assert!(gpu.device.events.forgot(W0, replaced.id, Forget::Weights).is_err(), "it was not told");
        gpu.done(W0, call);
        assert_eq!(gpu.device.memory().weight_bytes, 6 * MIB);
    }
    let other = gpu.submit(&a, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1", "load 1, 6 of 8", "invoke on 0 flags 0"]);
    gpu.done(W1, other);
    let counts = gpu.device.status().weights;
    assert_eq!((counts.loads, counts.reused, counts.evictions, counts.calls, counts.hits), (3, 2, 2, 4, 0));
}

#[test]
fn weights_of_calls_that_wait_are_loaded_before_there_is_a_lane() {
    let mut gpu = Gpu::of(DeviceConfig { lanes: 1, ..config(false) });
    let [a, b, c] = ["a", "b", "c"].map(|name| gpu.function(name, 4 * MIB));
    let first = gpu.submit(&a, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "load 1 from 4194304, export", "invoke on 0 flags 0"]);
    gpu.exports(W0, &a, 4 * MIB);
    let second = gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &["install 2", "load 2 from 4194304, export"]);
    // For a third one there is no room beside those that are needed sooner.
    gpu.submit(&c, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    gpu.exports(W0, &b, 4 * MIB);
    gpu.done(W0, first);
    gpu.expect(W0, &["invoke on 0 flags 0", "install 3", "load 3 from 4194304, export instead of 1"]);
    gpu.done(W0, second);
    gpu.expect(W0, &["invoke on 0 flags 0"]);
    let counts = gpu.device.status().weights;
    assert_eq!((counts.calls, counts.hits, counts.loads, counts.ahead), (3, 2, 3, 2));
}

#[test]
fn weights_that_do_not_load_leave_no_trace() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let call = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.device.events.not_loaded(W0, function.id);
    gpu.expect(W0, &["unload 1"]);
    gpu.device.events.forgot(W0, function.id, Forget::Weights).unwrap();
    assert_eq!(gpu.device.memory().weight_bytes, 0);
    gpu.done(W0, call);
    gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["load 1 from 1000, export", "invoke on 0 flags 0"]);
}

#[test]
fn weights_that_do_not_load_in_one_worker_stay_in_the_others() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    gpu.submit(&function, TenantId::new(1), 0);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1 from 1000", "invoke on 0 flags 0"]);
    gpu.device.events.loaded(W1, function.id, 2 * MIB, false).unwrap();
    gpu.device.events.not_loaded(W0, function.id);
    gpu.expect(W0, &["unload 1"]);
    gpu.expect(W1, &[]);
    assert_eq!(gpu.device.memory().weight_bytes, 4 * MIB, "until it says that nothing is left");
    gpu.device.events.forgot(W0, function.id, Forget::Weights).unwrap();
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.done(W1, second);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["invoke on 0 flags 0"]);
}

#[test]
fn a_call_that_found_too_little_memory_takes_nothing_from_others() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1, 2 of 8", "invoke on 0 flags 0"]);
    gpu.fail(W0, first, FaultCode::Exhausted);
    gpu.expect(W0, &[]);
    gpu.expect(W1, &[]);
    gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["invoke on 0 flags 0"]);
}

#[test]
fn a_function_that_does_not_load_is_loaded_afresh_in_that_worker_alone() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.exports(W0, &function, 2 * MIB);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1, 2 of 8", "invoke on 0 flags 0"]);
    gpu.device.events.not_installed(W1, function.id);
    gpu.device.events.not_loaded(W1, function.id);
    gpu.expect(W1, &["uninstall 1"]);
    gpu.expect(W0, &[]);
    gpu.fail(W1, second, FaultCode::Load);
    gpu.device.events.forgot(W1, function.id, Forget::Function).unwrap();
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1", "load 1, 2 of 8", "invoke on 0 flags 0"]);
    gpu.done(W0, first);
    gpu.expect(W0, &[]);
}
