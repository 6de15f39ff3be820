//! A device that is set up otherwise while it serves, as its processes see it.

use super::*;
use crate::device::decisions::Actions;
use crate::device::setup::ChangeError;
use crate::device::worker_channel::Forget;
use crate::schedule::{Action, TenantShare};
use crate::tenants::{Limit, Quota};

/// With room for what contexts may take.
fn large() -> Gpu {
    Gpu::of(DeviceConfig { memory_bytes: 100 << 30, ..config(false) })
}

#[test]
fn processes_with_other_lanes_are_asked_to_leave_one_after_the_other() {
    let mut gpu = large();
    let function = gpu.function("f", 0);
    let id = gpu.submit(&function, CALLER, 0);
    let changes = gpu.device.change_pairs([("lanes", "2")]).unwrap();
    assert!(changes[0].effect.contains("2 that serve are replaced"), "{changes:?}");
    assert_eq!((gpu.device.lanes(), gpu.device.settings().lanes), (2, 2));
    let left = |gpu: &Gpu, worker| gpu.device.slots.channel(worker).is_hung_up(Generation::new(1));
    assert!(left(&gpu, W1) && !left(&gpu, W0), "the idle one first");
    // A process that was started before, and comes only now, is not used.
    gpu.device.events.worker_gone(W1);
    let (next, edition) = (Generation::new(2), gpu.device.made_for().edition);
    let late = attach_process(&gpu.device, W1, (next, false), Epoch::new(0), ended_process(), edition - 1);
    assert!(matches!(late, Err(Unusable::Outdated)));
    gpu.workers[1] =
        attach_process(&gpu.device, W1, (next, false), Epoch::new(0), ended_process(), edition).unwrap();
    gpu.done(W0, id);
    assert!(left(&gpu, W0), "once its call is over");
    let calls: Vec<_> = (0..3).map(|_| gpu.submit(&function, CALLER, 0)).collect();
    gpu.expect(W1, &["settings", "install 1", "invoke on 0 flags 0", "invoke on 1 flags 0"]);
    gpu.done(W1, calls[0]);
    gpu.expect(W1, &["invoke on 0 flags 0"]);
}

#[test]
fn a_change_that_cannot_be_leaves_everything_as_it_was() {
    let gpu = large();
    let function = gpu.function("f", 0);
    let before = gpu.device.settings();
    gpu.submit(&function, CALLER, 60 * MIB);
    let why = gpu.device.change_pairs([("workers", "9"), ("standbys", "10")]).unwrap_err();
    assert!(matches!(why, ChangeError::Config(_)), "{why}");
    gpu.submit(&function, CALLER, 90 << 30);
    let why = gpu.device.change_pairs([("workers", "9"), ("lanes", "2"), ("memory", "80GiB")]).unwrap_err();
    assert!(matches!(why, ChangeError::CallNeeds { needs, .. } if needs == 90 << 30), "{why}");
    assert_eq!((gpu.device.settings(), gpu.device.status().workers.len()), (before, 2));
    assert_eq!(gpu.device.made_for().edition, 0);
}

#[test]
fn weights_give_way_where_the_device_becomes_smaller() {
    let mut gpu = large();
    let [plain, heavy] = [("plain", 0), ("heavy", 8 * MIB)].map(|(name, bytes)| gpu.function(name, bytes));
    let loads = gpu.submit(&heavy, CALLER, 0);
    gpu.exports(W0, &heavy, 8 * MIB);
    gpu.done(W0, loads);
    gpu.submit(&plain, CALLER, 32 << 30);
    gpu.submit(&plain, CALLER, 32 << 30);
    let loads = ["install 2", "load 2 from 8388608, export", "invoke on 0 flags 0"];
    let starts = ["install 1", "invoke on 0 flags 0", "invoke on 1 flags 0"];
    gpu.expect(W0, &[loads, starts].concat());
    gpu.device.change_pairs([("memory", "65540MiB")]).unwrap();
    gpu.expect(W0, &["unload 2"]);
    gpu.submit(&plain, CALLER, 2 * MIB);
    gpu.expect(W0, &[]);
    gpu.device.events.forgot(W0, heavy.id, Forget::Weights).unwrap();
    gpu.expect(W0, &["invoke on 2 flags 0"]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "decisions are not carried out")]
fn decisions_cannot_be_dropped() {
    drop(Actions::from(vec![Action::Bring { worker: W0 }]));
}

/// A tenant that is given more starts what waited for that, also where the call is refused with which the device hears of it.
#[test]
fn what_a_refused_call_decides_is_carried_out() {
    let mut gpu = large();
    let function = gpu.function("f", 0);
    let (light, heavy) = (TenantId::new(1), TenantId::new(2));
    let [of_light, of_heavy] = [light, heavy].map(|tenant| gpu.tenants.account(tenant));
    let four = TenantShare { weight: 4, ..TenantShare::default() };
    of_heavy.give(four);
    gpu.submit(&function, heavy, 0);
    gpu.submit(&function, light, 0);
    gpu.submit(&function, light, 0);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    let mut quota = Quota::default();
    quota.set(Limit::QueuedCalls, 0);
    of_light.allow(quota);
    // It would have to wait until the device is its own.
    let refused = |gpu: &Gpu| {
        let why = gpu.device.submit(gpu.call(&function, light, 60 << 30), 0, None).unwrap_err();
        assert!(why.to_string().contains("queued-calls"), "{why}");
    };
    refused(&gpu);
    gpu.expect(W1, &[]);
    of_light.give(four);
    refused(&gpu);
    gpu.expect(W1, &["invoke on 1 flags 0"]);
}
