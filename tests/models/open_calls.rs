//! A call is placed at a device while it is cancelled, answered, or its request id is used again.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::concurrent::one_answer::OneAnswer;
use crate::concurrent::open_calls::OpenCalls;

/// The request id of all calls here.
const ID: u64 = 1;

type Calls = OpenCalls<OneAnswer, &'static str>;
type Placed = fn(&Calls, &Arc<OneAnswer>, &'static str) -> Option<&'static str>;

fn placed(calls: &Calls, handle: &Arc<OneAnswer>, place: &'static str) -> Option<&'static str> {
    calls.placed(ID, handle, place)
}

/// The controls: which call has the id is found first, whichever it is, and the place is noted in a second step.
fn placed_in_two_steps(calls: &Calls, _: &Arc<OneAnswer>, place: &'static str) -> Option<&'static str> {
    let Some(found) = calls.take(ID) else { return Some(place) };
    match calls.open(ID, || found.handle) {
        Ok(handle) => calls.placed(ID, &handle, place),
        Err(_) => Some(place),
    }
}

fn open(calls: &Calls) -> Arc<OneAnswer> {
    calls.open(ID, || Arc::new(OneAnswer::new())).unwrap()
}

/// The client cancels its call while a thread places it.
fn cancelled_while_placed(placed: Placed) {
    loom::model(move || {
        let calls = Arc::new(Calls::new(2));
        let handle = open(&calls);
        let cancels = Arc::new(AtomicUsize::new(0));
        let client = {
            let (calls, cancels) = (calls.clone(), cancels.clone());
            thread::spawn(move || {
                if let Some(call) = calls.take(ID) {
                    cancels.fetch_add(usize::from(call.place.is_some()), Ordering::Relaxed);
                    assert!(call.handle.claim());
                }
            })
        };
        if placed(&calls, &handle, "device").is_some() {
            cancels.fetch_add(1, Ordering::Relaxed);
        }
        client.join().unwrap();
        assert_eq!(cancels.load(Ordering::Relaxed), 1, "times that the device was told");
    });
}

#[test]
fn a_call_cancelled_while_it_is_placed_is_cancelled_at_its_device_once() {
    cancelled_while_placed(placed);
}

#[test]
#[should_panic(expected = "times that the device was told")]
fn control_placing_in_two_steps_leaves_a_cancelled_call_running() {
    cancelled_while_placed(placed_in_two_steps);
}

/// A deadline answers the first call of an id and the client uses the id again, while the first is being placed.
fn id_used_again_while_placed(placed: Placed) {
    loom::model(move || {
        let calls = Arc::new(Calls::new(2));
        let first = open(&calls);
        let next = {
            let (calls, first) = (calls.clone(), first.clone());
            thread::spawn(move || {
                assert!(first.claim());
                calls.close(ID, &first);
                calls.open(ID, || Arc::new(OneAnswer::new())).ok()
            })
        };
        let refused = placed(&calls, &first, "place of the first call").is_some();
        // The control may hold the id just then.
        let Some(second) = next.join().unwrap() else { return };
        let found = calls.take(ID).expect("the second call is open");
        assert!(Arc::ptr_eq(&found.handle, &second));
        assert_eq!(found.place, None, "a call has the place of another (refused: {refused})");
    });
}

#[test]
fn the_place_of_an_answered_call_is_never_that_of_a_later_one() {
    id_used_again_while_placed(placed);
}

#[test]
#[should_panic(expected = "a call has the place of another")]
fn control_placing_by_request_id_alone_mixes_calls_up() {
    id_used_again_while_placed(placed_in_two_steps);
}

#[test]
fn a_call_that_is_answered_cancelled_and_left_at_once_gets_one_answer() {
    loom::model(|| {
        let calls = Arc::new(Calls::new(2));
        let handle = open(&calls);
        let cancel = {
            let calls = calls.clone();
            thread::spawn(move || calls.take(ID).is_some_and(|call| call.handle.claim()))
        };
        let leave = {
            let calls = calls.clone();
            thread::spawn(move || calls.take_all().iter().any(|call| call.handle.claim()))
        };
        let answered = handle.claim();
        if answered {
            calls.close(ID, &handle);
        }
        let ends = [answered, cancel.join().unwrap(), leave.join().unwrap()];
        assert_eq!(ends.iter().filter(|ended| **ended).count(), 1);
        assert!(calls.take(ID).is_none());
    });
}
