//! States of sessions: made by the first worker that a call of the session reaches, mapped by others, and gone with the session.

use pappus_protocol::to_worker::StateForm;
use pappus_protocol::{ArenaId, ProtocolError};

use super::*;
use crate::arena::Arena;
use crate::call::Inline;
use crate::client_io::ClientIo;
use crate::client_memfd::ClientMemfd;
use crate::state_room::StateRoom;

/// More than half of what the device has for states.
const BYTES: u64 = 6 * MIB;

fn state(gpu: &Gpu, id: u64) -> Arc<Arena> {
    let memfd = memfd::arena("state", BYTES).unwrap();
    let memory = ClientMemfd::new(memfd, CALLER, &ClientIo::default());
    Arc::new(Arena::state(id, memory, &gpu.tenants.account(CALLER)).unwrap())
}

fn submit(gpu: &Gpu, function: &Arc<Loaded>, state: &Arc<Arena>) -> CallId {
    let mut call = gpu.call(function, CALLER, 0);
    Arc::get_mut(&mut call).unwrap().arenas = vec![state.clone()];
    gpu.device.submit(call, 0, None).unwrap()
}

/// What a worker was told of the state, whose descriptors it takes.
fn opened(gpu: &mut Gpu, worker: WorkerId) -> Option<Result<StateForm, ArenaId>> {
    let Worker { inbox, control, .. } = &mut gpu.workers[worker.get()];
    inbox.fill().unwrap();
    let mut opened = None;
    while let Some(frame) = inbox.frame().unwrap() {
        match ToWorker::decode(frame).unwrap() {
            ToWorker::Install { function, install } => {
                control::recv(&*control, function.get(), install.descriptors()).unwrap();
            }
            ToWorker::OpenState { arena, form } => {
                assert_eq!(
                    control::recv(&*control, arena.get(), form.descriptors()).unwrap().len(),
                    form.descriptors()
                );
                opened = Some(Ok(form));
            }
            ToWorker::OpenArena { arena } => {
                control::recv(&*control, arena.get(), 1).unwrap();
                opened = Some(Err(arena));
            }
            _ => {}
        }
    }
    opened
}

fn tells(gpu: &Gpu, worker: WorkerId, arena: u64, bytes: u64) -> Result<(), ProtocolError> {
    if bytes > 0 {
        let fake = memfd::sealed("state", b"state").unwrap();
        control::send(gpu.workers[worker.get()].control.as_fd(), arena, &[fake.as_fd()]).unwrap();
    }
    gpu.device.slots.channel(worker).state_opened(arena, bytes)
}

#[test]
fn a_state_is_made_once_and_outlives_its_worker() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let first = state(&gpu, 7);
    let call = submit(&gpu, &function, &first);
    assert_eq!(opened(&mut gpu, W0), Some(Ok(StateForm::Make)));
    assert!(first.device_memory().is_none());
    tells(&gpu, W0, 7, BYTES).unwrap();
    assert!(first.device_memory().unwrap().is_in(&gpu.device.states));
    gpu.done(W0, call);

    // There is no room for another one, which is asked for once.
    let second = state(&gpu, 8);
    for expected in [Some(Err(ArenaId::new(8))), None] {
        let call = submit(&gpu, &function, &second);
        assert_eq!(opened(&mut gpu, W0), expected);
        gpu.done(W0, call);
    }
    // Another process maps what the first one made.
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    gpu.device.events.bury(lost, &killed(), false);
    drop(gpu.workers.remove(0));
    gpu.reaped(W0);
    gpu.workers.insert(0, attach_of(&gpu.device, W0, Generation::new(2), Epoch::new(0)).unwrap());
    let call = submit(&gpu, &function, &first);
    let told = [W0, W1].map(|worker| opened(&mut gpu, worker));
    assert_eq!(told.into_iter().flatten().collect::<Vec<_>>(), [Ok(StateForm::Device)]);
    let worker = if told[0].is_some() { W0 } else { W1 };
    gpu.done(worker, call);

    assert_eq!(gpu.device.states.taken_bytes(), BYTES);
    drop(first);
    assert_eq!(gpu.device.states.taken_bytes(), 0, "gone with its session");
}

#[test]
fn a_state_that_no_worker_can_make_stays_in_its_arena() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let one = state(&gpu, 7);
    let call = submit(&gpu, &function, &one);
    assert_eq!(opened(&mut gpu, W0), Some(Ok(StateForm::Make)));
    tells(&gpu, W0, 7, 0).unwrap();
    gpu.done(W0, call);
    assert!(one.device_memory().is_none());
    assert_eq!(gpu.device.states.taken_bytes(), 0);
}

#[test]
fn no_worker_is_asked_for_the_state_of_a_call_that_is_not_handed_over() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let one = state(&gpu, 7);
    let mut call = gpu.call(&function, CALLER, 0);
    let changed = Arc::get_mut(&mut call).unwrap();
    // Staging has no such place.
    let inline = Inline { offset: 1 << 40, bytes: vec![1].into() };
    (changed.arenas, changed.inline) = (vec![one.clone()], vec![inline]);
    gpu.device.submit(call, 0, None).unwrap();
    assert_eq!((gpu.device.load(), opened(&mut gpu, W0)), (0, None));
    assert_eq!(gpu.device.states.taken_bytes(), 0);
    submit(&gpu, &function, &one);
    assert_eq!(opened(&mut gpu, W0), Some(Ok(StateForm::Make)), "the state is still zero");
}

#[test]
fn a_call_whose_state_another_device_has_is_refused() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let one = state(&gpu, 7);
    let elsewhere = StateRoom::new("cuda:1", BYTES);
    let taken = one.ask_for_room(&elsewhere).unwrap();
    one.settle(std::fs::File::open("/dev/null").unwrap().into(), taken);
    submit(&gpu, &function, &one);
    assert_eq!((gpu.device.load(), opened(&mut gpu, W0)), (0, None));
}

#[test]
fn a_state_that_was_not_answered_before_a_scrub_is_not_believed_behind_it() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let one = state(&gpu, 7);
    let call = submit(&gpu, &function, &one);
    assert_eq!(opened(&mut gpu, W0), Some(Ok(StateForm::Make)));
    gpu.done(W0, call);
    assert_eq!(gpu.device.states.taken_bytes(), BYTES);
    gpu.device.slots.channel(W0).scrub(3);
    assert!(gpu.device.slots.channel(W0).scrubbed(3));
    assert_eq!(gpu.device.states.taken_bytes(), 0);
    assert!(tells(&gpu, W0, 7, BYTES).is_err());
    assert!(one.device_memory().is_none());
}

#[test]
fn a_worker_that_lies_about_a_state_is_not_believed() {
    let gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let one = state(&gpu, 7);
    submit(&gpu, &function, &one);
    assert!(tells(&gpu, W0, 8, BYTES).is_err(), "of another arena");
    assert!(tells(&gpu, W0, 7, 2 * BYTES).is_err(), "of another size");
    assert!(tells(&gpu, W0, 7, BYTES).is_err(), "twice");
    assert!(one.device_memory().is_none());
    assert_eq!(gpu.device.states.taken_bytes(), 0);
}
