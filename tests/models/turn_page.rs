//! One side of a turn page changes it while the other one looks, and sleeps.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pappus_protocol::TurnId;

use crate::concurrent::sync::Notify;
use crate::concurrent::turn_page::{Orders, Prices, USED_WORDS, Words, WorkerEnd, Yield, Yields};

/// A page, as much of it as has a meaning.
#[derive(Clone)]
struct Page(Arc<Vec<AtomicU64>>);

impl Page {
    fn new() -> Self {
        Self(Arc::new((0..USED_WORDS).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Words for Page {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }
}

const TURN: TurnId = TurnId::new(3);
const PRICES: Prices = Prices { quantum_us: 5000, change_us: 140 };

/// A worker that has no call waits for its grant, polling first. The pipe wakes it.
fn a_sleeping_worker_is_granted(sleeps: fn(&WorkerEnd<Page>) -> bool) {
    loom::model(move || {
        let (page, pipe) = (Page::new(), Arc::new(Notify::new()));
        {
            let (page, pipe) = (page.clone(), pipe.clone());
            thread::spawn(move || {
                let mut orders = Orders::new(page);
                // Others wait, too: the worker may see both at once.
                for woken in [orders.grant(TURN, PRICES), orders.revoke(TURN)] {
                    if woken {
                        pipe.notify_one();
                    }
                }
            });
        }
        let mut worker = WorkerEnd::new(page);
        let mut has_turn = false;
        loop {
            if let Some(order) = worker.look() {
                assert_eq!((order.turn, order.prices), (TURN, PRICES), "half of an order");
                assert_ne!(order.granted, has_turn, "a turn begins once");
                has_turn = true;
                if order.revoked {
                    return;
                }
            }
            if sleeps(&worker) {
                loom::future::block_on(pipe.notified());
                worker.awake();
            }
        }
    });
}

#[test]
fn no_order_is_missed_by_a_worker_that_goes_to_sleep() {
    a_sleeping_worker_is_granted(WorkerEnd::may_sleep);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_worker_that_sleeps_without_saying_so_is_not_woken() {
    a_sleeping_worker_is_granted(|worker| !worker.has_news());
}

/// A worker gives its turn back and says that it answered a call, whose frame follows; the supervisor's thread waits for
/// both.
#[test]
fn no_yield_is_missed_and_its_numbers_are_there() {
    loom::model(|| {
        let (page, pipe) = (Page::new(), Arc::new(Notify::new()));
        {
            let (page, pipe) = (page.clone(), pipe.clone());
            thread::spawn(move || {
                let mut worker = WorkerEnd::new(page);
                worker.answered();
                if worker.give_back(TURN, 99) {
                    pipe.notify_one();
                }
            });
        }
        let mut yields = Yields::new(page);
        loop {
            if let Some(said) = yields.look() {
                assert_eq!(said, Yield::Over { turn: TURN, used_ns: 99, answered: 1 });
                return;
            }
            if yields.may_sleep() {
                loom::future::block_on(pipe.notified());
                yields.awake();
            }
        }
    });
}

/// Looks for a reader that sleeps before it writes.
#[test]
#[should_panic(expected = "deadlock")]
fn control_a_look_before_the_change_loses_the_wake_up() {
    loom::model(|| {
        let (page, pipe) = (Page::new(), Arc::new(Notify::new()));
        {
            let (page, pipe) = (page.clone(), pipe.clone());
            thread::spawn(move || {
                let word = page.word(0);
                let sleeps = word.load(Ordering::Acquire) & 1 != 0;
                word.store(TURN.get() << 2, Ordering::Release);
                if sleeps {
                    pipe.notify_one();
                }
            });
        }
        let mut worker = WorkerEnd::new(page);
        while worker.look().is_none() {
            if worker.may_sleep() {
                loom::future::block_on(pipe.notified());
                worker.awake();
            }
        }
    });
}

/// Changes the word before the numbers.
#[test]
#[should_panic(expected = "half of a yield")]
fn control_numbers_that_follow_the_word_are_not_there() {
    loom::model(|| {
        let page = Page::new();
        {
            let page = page.clone();
            thread::spawn(move || {
                page.word(16).store(TURN.get() << 2 | 2, Ordering::Release);
                page.word(17).store(99, Ordering::Relaxed);
            });
        }
        let mut yields = Yields::new(page);
        if let Some(said) = yields.look() {
            assert_eq!(said, Yield::Over { turn: TURN, used_ns: 99, answered: 0 }, "half of a yield");
        }
    });
}
