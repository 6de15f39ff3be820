//! What the two ends of a turn page see of each other, one thread. `tests/models` has every order of events of two.

use std::sync::Arc;

use pappus_shmem::SharedWords;
use proptest::prelude::*;

use crate::TurnId;
use crate::turn_page::{Order, Orders, Prices, WorkerEnd, Yield, Yields};

const PRICES: Prices = Prices { quantum_us: 5000, change_us: u32::MAX };

struct Both {
    words: Arc<SharedWords>,
    orders: Orders<Arc<SharedWords>>,
    yields: Yields<Arc<SharedWords>>,
    worker: WorkerEnd<SharedWords>,
}

fn both() -> Both {
    let (words, memfd) = SharedWords::create("turns").unwrap();
    let words = Arc::new(words);
    let worker = WorkerEnd::new(SharedWords::open(&memfd).unwrap());
    Both { orders: Orders::new(words.clone()), yields: Yields::new(words.clone()), worker, words }
}

fn granted(turn: u64, revoked: bool) -> Order {
    Order { turn: TurnId::new(turn), granted: true, revoked, prices: PRICES }
}

#[test]
fn a_turn_goes_and_comes_back() {
    let Both { mut orders, mut yields, mut worker, .. } = both();
    assert_eq!((worker.look(), yields.look()), (None, None));
    let turn = TurnId::new(7);
    assert!(!orders.grant(turn, PRICES), "none sleeps");
    assert!(worker.has_news());
    assert_eq!((worker.look(), worker.look()), (Some(granted(7, false)), None));
    assert!(!orders.revoke(turn));
    assert_eq!((worker.look(), worker.look()), (Some(Order { granted: false, ..granted(7, true) }), None));
    assert!(!worker.ending(turn));
    assert_eq!((yields.look(), yields.look()), (Some(Yield::Ending(turn)), None));
    worker.answered();
    assert!(!worker.give_back(turn, 99));
    assert_eq!(yields.look(), Some(Yield::Over { turn, used_ns: 99, answered: 1 }));
    assert_eq!(yields.look(), None);
}

#[test]
fn the_newest_state_is_seen() {
    let Both { mut orders, mut yields, mut worker, .. } = both();
    for turn in 1..100 {
        let id = TurnId::new(turn);
        let _ = orders.grant(id, PRICES);
        let _ = orders.revoke(id);
        assert_eq!(worker.look(), Some(granted(turn, true)));
        let _ = worker.ending(id);
        let _ = worker.give_back(id, turn);
        assert_eq!(yields.look(), Some(Yield::Over { turn: id, used_ns: turn, answered: 0 }));
    }
}

#[test]
fn who_sleeps_is_to_be_woken_once_and_who_missed_something_does_not_sleep() {
    let Both { mut orders, mut yields, mut worker, .. } = both();
    let turn = TurnId::new(1);
    assert!(worker.may_sleep() && worker.may_sleep());
    assert!(orders.grant(turn, PRICES), "it sleeps");
    assert!(!orders.revoke(turn), "it was woken");
    assert!(!worker.may_sleep(), "there is something to look at");
    assert_eq!(worker.look(), Some(granted(1, true)));
    assert!(worker.may_sleep());
    worker.awake();
    assert!(!orders.grant(TurnId::new(2), PRICES), "it woke by itself");
    assert!(yields.may_sleep());
    assert!(worker.give_back(turn, 0));
    assert!(!yields.may_sleep() && yields.has_news());
    assert!(yields.look().is_some() && yields.may_sleep());
}

#[test]
fn a_scrubbed_worker_begins_anew() {
    let Both { mut orders, mut yields, mut worker, words } = both();
    worker.answered();
    let _ = orders.grant(TurnId::new(1), PRICES);
    let _ = worker.give_back(TurnId::new(1), 99);
    assert!(yields.look().is_some());
    worker.forget();
    yields.forget();
    let left = words.words().iter().map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(left.filter(|word| *word != 0).count(), 3, "the two words, and prices");
    let _ = worker.give_back(TurnId::new(2), 0);
    assert_eq!(yields.look(), Some(Yield::Over { turn: TurnId::new(2), used_ns: 0, answered: 0 }));
}

proptest! {
    /// Whatever a worker writes: the supervisor reads some yield at most once for each change, and always can sleep in
    /// the end.
    #[test]
    fn scribbles_are_read_as_yields_and_never_keep_the_supervisor_awake(
        scribbles in proptest::collection::vec((0usize..19, any::<u64>()), 0..50),
    ) {
        let Both { mut yields, words, .. } = both();
        for (at, scribble) in scribbles {
            words.words()[at].store(scribble, std::sync::atomic::Ordering::Relaxed);
            let said = yields.look();
            prop_assert!(said.is_none() || at == 16);
            prop_assert_eq!(yields.look(), None);
            prop_assert!(yields.may_sleep());
            yields.awake();
        }
    }
}
