//! Outputs of calls whose process is gone: cleared on their callers' threads, and no other tenant waits for that.

use pappus_protocol::to_worker::Target;

use super::*;
use crate::arena::Arena;
use crate::client_io::ClientIo;
use crate::client_io::tests::Kept;
use crate::client_memfd::ClientMemfd;
use crate::quota::Limit;

#[test]
fn a_caller_whose_memory_cannot_be_written_keeps_only_its_own_calls_waiting() {
    let mut gpu = Gpu::new(false);
    let (io, function) = (ClientIo::default(), gpu.function("f", 0));
    let memory = ClientMemfd::new(memfd::arena("a", 4096).unwrap(), CALLER, &io);
    let arena = Arc::new(Arena::new(7, memory, &gpu.tenants.account(CALLER), Limit::ArenaBytes).unwrap());
    memfd::write_all_at(arena.memfd.as_fd(), 0, &[1; 4096]).unwrap();
    let mut call = gpu.call(&function, CALLER, 0);
    let changed = Arc::get_mut(&mut call).unwrap();
    changed.arenas = vec![arena.clone()];
    changed.outputs = vec![Target { arena: 7.into(), offset: 100.into(), bytes: 3000.into() }];
    gpu.device.submit(call, 0, None).unwrap();
    let other = gpu.submit(&function, TenantId::new(1 + CALLER.get()), 0);
    gpu.expect(W0, &["install 1", "OpenArena { arena: ArenaId(7) }", "invoke on 0 flags 0"]);

    let kept = Kept::all_threads(&io, CALLER);
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    // What the reaper does: it comes back, and another's call ends meanwhile.
    gpu.device.events.bury(lost, &killed(), false);
    drop(gpu.workers.remove(0));
    gpu.workers.insert(0, attach_of(&gpu.device, W0, Generation::new(2), Epoch::new(0)).unwrap());
    gpu.done(W1, other);
    gpu.expect(W0, &["settings"]);
    let written = || {
        let mut bytes = [0; 4096];
        arena.memfd.read_at(0, &mut bytes).unwrap();
        bytes.iter().filter(|byte| **byte != 0).count()
    };
    assert_eq!(written(), 4096);

    drop(kept);
    while !gpu.device.decisions.ask().has_calls(W0) {
        std::thread::yield_now();
    }
    assert_eq!(written(), 1096, "cleared before it starts again");
}
