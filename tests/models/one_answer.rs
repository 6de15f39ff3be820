//! Three threads want to answer one call.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::concurrent::one_answer::OneAnswer;

fn three_threads_answer<A: Send + Sync + 'static>(new: fn() -> A, claim: fn(&A) -> bool) {
    loom::model(move || {
        let answer = Arc::new(new());
        let others = [answer.clone(), answer.clone()].map(|answer| thread::spawn(move || claim(&answer)));
        let mut answers = usize::from(claim(&answer));
        for other in others {
            answers += usize::from(other.join().unwrap());
        }
        assert_eq!(answers, 1, "answers to one call");
    });
}

#[test]
fn a_call_gets_exactly_one_answer() {
    three_threads_answer(OneAnswer::new, OneAnswer::claim);
}

#[test]
#[should_panic(expected = "answers to one call")]
fn control_a_look_before_the_claim_answers_twice() {
    let claim = |claimed: &AtomicBool| {
        let first = !claimed.load(Ordering::Acquire);
        if first {
            claimed.store(true, Ordering::Release);
        }
        first
    };
    three_threads_answer(|| AtomicBool::new(false), claim);
}
