//! Sends calls when they are due, or one behind the other, and has what becomes of them counted. One thread does all of it; the
//! clock and whoever answers are handed in, so tests bring others.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::tally::{CallError, NOT_SENT, Rules, Tally};

/// The time since a run began.
pub(super) trait Clock {
    fn now(&self) -> Duration;
    /// Returns at the moment, or at once where that has passed.
    async fn until(&self, moment: Duration);
}

/// Whoever answers calls.
pub(super) trait Target {
    /// Makes the tenant's call with this number, which has so much time left. A call that fails says why.
    async fn call(&self, tenant: usize, number: u64, left: Duration) -> Result<(), CallError>;
}

/// One run: a target, a clock, and what is counted for each tenant.
#[derive(Debug)]
pub(super) struct Run<T, C> {
    target: Rc<T>,
    clock: C,
    rules: Rules,
    /// For each tenant, how many more calls may be on their way.
    places: Vec<Semaphore>,
    pub(super) tallies: RefCell<Vec<Tally>>,
}

impl<T: Target + 'static, C: Clock + 'static> Run<T, C> {
    pub(super) fn new(target: Rc<T>, clock: C, rules: Rules, tenants: usize, in_flight: u32) -> Rc<Self> {
        let places = (0..tenants).map(|_| Semaphore::new(in_flight as usize)).collect();
        let tallies = RefCell::new(vec![Tally::new(rules); tenants]);
        Rc::new(Self { target, clock, rules, places, tallies })
    }

    /// Sends each call when it is due, whatever became of those before; returns once all have ended.
    pub(super) async fn open(self: &Rc<Self>, calls: impl Iterator<Item = (Duration, usize)>) {
        let mut on_their_way = JoinSet::new();
        for (number, (due, tenant)) in (0..).zip(calls) {
            match self.clock.now() < due {
                true => self.clock.until(due).await,
                // Whoever is behind must let calls begin that were due before.
                false => tokio::task::yield_now().await,
            }
            self.tallies.borrow_mut()[tenant].begins(due, self.clock.now());
            on_their_way.spawn_local(self.clone().one(due, tenant, number));
            while on_their_way.try_join_next().is_some() {}
        }
        while on_their_way.join_next().await.is_some() {}
    }

    /// Every client of every tenant sends its next call when the last one has ended.
    pub(super) async fn closed(self: &Rc<Self>, clients: u32) {
        let mut loops = JoinSet::new();
        for tenant in 0..self.places.len() {
            for client in 0..u64::from(clients) {
                let run = self.clone();
                loops.spawn_local(async move {
                    let mut number = client;
                    while run.clock.now() < run.rules.to {
                        let due = run.clock.now();
                        run.tallies.borrow_mut()[tenant].begins(due, due);
                        run.clone().one(due, tenant, number).await;
                        number += u64::from(clients);
                    }
                });
            }
        }
        while loops.join_next().await.is_some() {}
    }

    async fn one(self: Rc<Self>, due: Duration, tenant: usize, number: u64) {
        // A semaphore that nobody closes has a place at some time: calls end.
        let _place = self.places[tenant].acquire().await;
        let sent = self.clock.now();
        let left = {
            let mut tallies = self.tallies.borrow_mut();
            if tallies[tenant].is_too_late(due, sent) {
                return tallies[tenant].fails(due, NOT_SENT);
            }
            tallies[tenant].left(due, sent)
        };
        let end = self.target.call(tenant, number, left).await;
        self.tallies.borrow_mut()[tenant].ends(due, sent, self.clock.now(), end);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::future::poll_fn;
    use std::task::{Poll, Waker};

    use super::super::arrivals::{Arrivals, Merged};
    use super::*;
    use crate::arguments::ArrivalKind;

    const TO: Duration = Duration::from_secs(10);
    const RULES: Rules = Rules { from: Duration::ZERO, to: TO, until: TO, deadline: Duration::from_secs(2) };

    /// A clock that goes on when nobody has anything left to do.
    #[derive(Debug, Clone, Default)]
    struct Fake {
        now: Rc<Cell<Duration>>,
        sleepers: Rc<RefCell<BTreeMap<(Duration, u64), Waker>>>,
        next: Rc<Cell<u64>>,
    }

    impl Fake {
        async fn go_on(self) {
            loop {
                // More than there are steps between two waits.
                for _ in 0..32 {
                    tokio::task::yield_now().await;
                }
                let first = self.sleepers.borrow_mut().pop_first();
                if let Some(((moment, _), sleeper)) = first {
                    self.now.set(self.now.get().max(moment));
                    sleeper.wake();
                }
            }
        }
    }

    impl Clock for Fake {
        fn now(&self) -> Duration {
            self.now.get()
        }

        async fn until(&self, moment: Duration) {
            // A wait that is looked at again takes its own place.
            let id = self.next.replace(self.next.get() + 1);
            poll_fn(|context| {
                if self.now() >= moment {
                    return Poll::Ready(());
                }
                self.sleepers.borrow_mut().insert((moment, id), context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    /// A server that has one call at a time, which takes as long as is said of its number.
    #[derive(Debug)]
    struct Server {
        clock: Fake,
        free_at: Cell<Duration>,
        takes: fn(u64) -> Duration,
        /// True if the server ends calls at their deadline.
        is_prompt: bool,
    }

    impl Target for Server {
        async fn call(&self, _: usize, number: u64, left: Duration) -> Result<(), CallError> {
            let begins = self.free_at.get().max(self.clock.now());
            let ends = begins + (self.takes)(number);
            let latest = self.clock.now() + left;
            if self.is_prompt && ends > latest {
                self.clock.until(latest).await;
                return Err("DEADLINE_EXCEEDED".into());
            }
            self.free_at.set(ends);
            self.clock.until(ends).await;
            Ok(())
        }
    }

    fn run(
        in_flight: u32,
        takes: fn(u64) -> Duration,
        load: impl AsyncFnOnce(&Rc<Run<Server, Fake>>),
    ) -> Tally {
        served(in_flight, takes, true, load)
    }

    fn served(
        in_flight: u32,
        takes: fn(u64) -> Duration,
        is_prompt: bool,
        load: impl AsyncFnOnce(&Rc<Run<Server, Fake>>),
    ) -> Tally {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let clock = Fake::default();
            let server = Rc::new(Server { clock: clock.clone(), free_at: Cell::default(), takes, is_prompt });
            let run = Run::new(server, clock.clone(), RULES, 1, in_flight);
            tokio::task::spawn_local(clock.go_on());
            load(&run).await;
            run.tallies.borrow()[0].clone()
        })
    }

    fn every(gap_ms: u64) -> impl Iterator<Item = (Duration, usize)> {
        let dues = (0u64..).map(move |nth| Duration::from_millis(nth * gap_ms));
        dues.take_while(|due| *due < TO).map(|due| (due, 0))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn quantile(tally: &Tally, at: f64) -> Duration {
        Duration::from_nanos(tally.latency.value_at_quantile(at))
    }

    #[test]
    fn calls_are_sent_when_they_are_due() {
        let tally = run(256, |_| ms(4), async |run| run.open(every(10)).await);
        assert_eq!((tally.due, tally.answered, tally.failed()), (1000, 1000, 0));
        assert!(quantile(&tally, 1.0).abs_diff(ms(4)) < ms(1) && tally.late.max() <= 1);
    }

    #[test]
    fn a_stall_is_charged_to_every_call_that_it_keeps_waiting() {
        // One call of a thousand takes a second: an open loop shows it in a tenth of all calls, a closed loop in one.
        let takes = |number| if number == 300 { ms(1000) } else { ms(4) };
        let open = run(256, takes, async |run| run.open(every(10)).await);
        assert_eq!((open.due, open.answered), (1000, 1000));
        assert!(quantile(&open, 0.9) > ms(100), "{:?}", quantile(&open, 0.9));
        assert!(quantile(&open, 0.8) < ms(5));
        let closed = run(256, takes, async |run| run.closed(1).await);
        assert!(quantile(&closed, 0.99) < ms(5));
    }

    #[test]
    fn what_is_too_much_fails_and_the_rest_keeps_its_deadline() {
        // Twice of what the server can do.
        let tally = run(64, |_| ms(20), async |run| run.open(every(10)).await);
        assert_eq!(tally.due, 1000);
        assert_eq!(tally.answered + tally.failed(), 1000);
        assert!(tally.failed_share() > 0.3, "{:?}", tally.errors);
        assert!(quantile(&tally, 1.0) <= RULES.deadline + ms(2));
    }

    #[test]
    fn no_more_calls_are_on_their_way_than_may_be() {
        // One at a time, each of three seconds: every one of them comes too late, and most of those behind it are never sent.
        let tally = served(1, |_| ms(3000), false, async |run| run.open(every(100)).await);
        let not_sent = tally.errors.get(NOT_SENT).copied().unwrap_or_default();
        assert_eq!((tally.due, tally.answered), (100, 0));
        assert!(not_sent > 50, "{:?}", tally.errors);
        assert_eq!(not_sent + tally.errors["DEADLINE_EXCEEDED"], 100);
    }

    #[test]
    fn a_closed_loop_sends_the_next_call_when_the_last_one_ended() {
        let tally = run(256, |_| ms(5), async |run| run.closed(2).await);
        // Two clients share a server of 200 calls a second: each call waits for one before.
        assert!(tally.answered.abs_diff(2000) <= 2, "{}", tally.answered);
        assert!(quantile(&tally, 0.5).abs_diff(ms(10)) < ms(1));
    }

    #[test]
    fn a_queue_is_as_long_as_theory_says() {
        // M/D/1 at half load: a call waits half a service time on average.
        let calls = || Merged::new(vec![Arrivals::new(ArrivalKind::Poisson, 100.0, 11)], TO);
        let tally = run(256, |_| ms(5), async |run| run.open(calls()).await);
        let mean = tally.latency.mean() / 1e6;
        assert!((6.7..8.3).contains(&mean), "{mean} ms");
    }
}
