//! A task waits until a connection owes nothing, while threads give the last answers.

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::concurrent::owed_answers::OwedAnswers;
use crate::concurrent::sync::Notify;

/// What a connection does with its count.
trait Owes: Send + Sync + 'static {
    fn owe(&self);
    fn settle(&self);
    fn all_settled(&self) -> impl Future<Output = ()>;
}

impl Owes for OwedAnswers {
    fn owe(&self) {
        self.owe();
    }

    fn settle(&self) {
        self.settle();
    }

    async fn all_settled(&self) {
        self.all_settled(|| true).await;
    }
}

/// Two threads give an answer each. A wake-up that is lost is a deadlock, which loom reports.
fn two_threads_settle<O: Owes>(new: fn() -> O) {
    let mut model = loom::model::Builder::new();
    // Threads interrupt each other twice at most: all orders would take a minute, and the controls need one.
    model.preemption_bound = Some(2);
    model.check(move || {
        let owed = Arc::new(new());
        let given = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            owed.owe();
            let (owed, given) = (owed.clone(), given.clone());
            thread::spawn(move || {
                given.fetch_add(1, Ordering::Relaxed);
                owed.settle();
            });
        }
        block_on(owed.all_settled());
        assert_eq!(given.load(Ordering::Relaxed), 2, "waiting ended before the last answer");
    });
}

#[test]
fn waiting_ends_exactly_when_the_last_answer_is_given() {
    two_threads_settle(OwedAnswers::new);
}

/// Counts in one variable and says in another that a task waits.
struct TwoVariables {
    count: AtomicUsize,
    waited_for: AtomicBool,
    changed: Notify,
    /// True if the mistake is to look before counting, false if it is a relaxed count.
    looks_first: bool,
}

impl TwoVariables {
    fn new(looks_first: bool) -> Self {
        let (count, waited_for) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { count, waited_for, changed: Notify::new(), looks_first }
    }
}

impl Owes for TwoVariables {
    fn owe(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn settle(&self) {
        if self.looks_first {
            let waited_for = self.waited_for.load(Ordering::Acquire);
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 && waited_for {
                self.changed.notify_one();
            }
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }

    async fn all_settled(&self) {
        self.waited_for.store(true, Ordering::Release);
        while self.count.load(Ordering::Acquire) > 0 {
            self.changed.notified().await;
        }
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_look_before_counting_down_loses_the_wake_up() {
    two_threads_settle(|| TwoVariables::new(true));
}

#[test]
#[should_panic(expected = "waiting ended before the last answer")]
fn control_a_relaxed_count_does_not_carry_the_answer() {
    two_threads_settle(|| TwoVariables::new(false));
}

/// A slow client: its last answer is kept until another thread has written it.
fn a_kept_answer_is_written(delivered: fn(&OwedAnswers)) {
    loom::model(move || {
        let owed = Arc::new(OwedAnswers::new());
        let kept = Arc::new(Mutex::new(0));
        owed.owe();
        {
            let (owed, kept) = (owed.clone(), kept.clone());
            thread::spawn(move || {
                *kept.lock().unwrap() = 1;
                let writer = {
                    let (owed, kept) = (owed.clone(), kept.clone());
                    thread::spawn(move || {
                        *kept.lock().unwrap() = 0;
                        delivered(&owed);
                    })
                };
                owed.settle();
                writer.join().unwrap();
            });
        }
        block_on(owed.all_settled(|| *kept.lock().unwrap() == 0));
        assert_eq!(*kept.lock().unwrap(), 0);
    });
}

#[test]
fn waiting_ends_when_a_slow_client_has_taken_everything() {
    a_kept_answer_is_written(OwedAnswers::delivered);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_delivery_that_is_not_announced_is_waited_for_in_vain() {
    a_kept_answer_is_written(|_| {});
}
