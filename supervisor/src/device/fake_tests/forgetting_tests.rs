//! Workers that forget: a domain before the next one, or a function that is revoked.

use super::*;

#[test]
fn a_worker_that_is_scrubbed_has_nothing_of_its_domain() {
    let mut gpu =
        Gpu::of(DeviceConfig { scrub_switch: true, min_residency: Duration::ZERO, ..config(false) });
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1 from 1000", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.memory().weight_bytes, 4 * MIB);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    // A third caller takes the worker that is idle.
    let third = gpu.submit(&function, TenantId::new(3), 0);
    gpu.expect(W0, &["scrub 1"]);
    // What is forgotten meanwhile is no matter for a worker that forgets everything.
    gpu.device.uninstall(FunctionId::new(77));
    gpu.expect(W0, &[]);
    assert!(gpu.device.events.scrubbed(W0, 2).is_err(), "another number");
    let _ = (second, third);
}

#[test]
fn a_confirmed_scrub_is_followed_by_the_next_domains_call() {
    let mut gpu =
        Gpu::of(DeviceConfig { scrub_switch: true, min_residency: Duration::ZERO, ..config(false) });
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1", "load 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "load 1 from 1000", "invoke on 0 flags 0"]);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    gpu.submit(&function, TenantId::new(3), 0);
    gpu.expect(W0, &["scrub 1"]);
    gpu.device.events.scrubbed(W0, 1).unwrap();
    // It is installed again, although it was before.
    gpu.expect(W0, &["install 1", "load 1, 2 of 8", "invoke on 0 flags 0"]);
    assert!(gpu.device.events.scrubbed(W0, 1).is_err(), "it was not asked");
}

#[test]
fn a_revoked_function_leaves_the_workers_of_that_pair_only() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let (own, granted) =
        (gpu.submit(&function, TenantId::new(1), 0), gpu.submit(&function, TenantId::new(2), 0));
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    gpu.device.uninstall_for(function.id, Domain { owner: TenantId::new(1), caller: TenantId::new(2) });
    gpu.expect(W0, &[]);
    gpu.expect(W1, &["uninstall 1"]);
    gpu.done(W0, own);
    gpu.done(W1, granted);
}
