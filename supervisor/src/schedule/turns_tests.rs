//! Small cases of the turns of a device.

use super::*;
use crate::ids::WorkerId;
use crate::schedule::Class;
use crate::schedule::limits::CPU_CHANGE_NS;

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const W2: WorkerId = WorkerId::new(2);
const QUANTUM_US: u32 = 5000;

const MS: u64 = 1_000_000;

/// What a worker is told.
type Told = (WorkerId, Order);

fn expect(turns: &mut Turns, wanted: &[Told]) {
    let orders: Vec<Told> = turns.take_orders().collect();
    assert_eq!(orders, wanted);
}

fn grant(worker: WorkerId, turn: u64) -> Told {
    let change_us = (CPU_CHANGE_NS / 1000) as u32;
    (worker, Order::Grant { turn: TurnId::new(turn), quantum_us: QUANTUM_US, change_us })
}

/// What a worker was charged up to now that nobody heard of yet, an event included.
fn charged<R>(turns: &mut Turns, worker: WorkerId, event: impl FnOnce(&mut Turns) -> R) -> Option<Charge> {
    event(turns);
    let own = turns.charges.extract_if(.., |charge| charge.tenant == tenant(worker));
    let used_ns = own.map(|charge| charge.used_ns).sum();
    (used_ns > 0).then_some(Charge { tenant: tenant(worker), used_ns })
}

impl Turns {
    /// True if nobody has the device since the first in line was fined.
    pub(in crate::schedule) fn keeps_waiting(&self) -> bool {
        self.line.first().is_some_and(|(tenant, _)| self.waits_until_ns(tenant).is_some())
    }

    /// What tenants were fined is forgotten.
    pub(in crate::schedule) fn forgive(&mut self) {
        self.fines = Fines::default();
    }
}

/// So many workers, each of a tenant of its own.
fn turns(workers: usize) -> Turns {
    Turns::new(workers, QUANTUM_US, CPU_CHANGE_NS)
}

/// The tenant of a worker.
fn tenant(worker: WorkerId) -> TenantId {
    TenantId::new(worker.get() as u32)
}

fn has_work(turns: &mut Turns, now_ns: u64, worker: WorkerId) {
    turns.has_work(now_ns, worker, tenant(worker));
}

fn charge(worker: WorkerId, used_ns: u64) -> Option<Charge> {
    Some(Charge { tenant: tenant(worker), used_ns })
}

fn revoke(worker: WorkerId, turn: u64) -> Told {
    (worker, Order::Revoke { turn: TurnId::new(turn) })
}

#[test]
fn a_worker_that_is_alone_keeps_its_turn() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    expect(&mut turns, &[grant(W0, 1)]);
    turns.idle(1, W0);
    has_work(&mut turns, 2, W0);
    expect(&mut turns, &[]);
    assert_eq!(turns.next_deadline_ns(), None);
}

#[test]
fn workers_with_calls_get_turns_by_what_their_tenants_had() {
    let mut turns = turns(3);
    for worker in [2, 0, 1, 0] {
        has_work(&mut turns, 0, WorkerId::new(worker));
    }
    expect(&mut turns, &[grant(W2, 1), revoke(W2, 1)]);
    // Others wait, so each grant comes with its end; who still has calls goes to the end of the ring.
    assert_eq!(charged(&mut turns, W2, |turns| turns.yielded(5, W2, TurnId::new(1), 5, true)), charge(W2, 5));
    expect(&mut turns, &[grant(W0, 2), revoke(W0, 2)]);
    // What it had counts, not what it says.
    assert_eq!(
        charged(&mut turns, W0, |turns| turns.yielded(9, W0, TurnId::new(2), 3, false)),
        charge(W0, 4)
    );
    expect(&mut turns, &[grant(W1, 3), revoke(W1, 3)]);
    assert_eq!(
        charged(&mut turns, W1, |turns| turns.yielded(15, W1, TurnId::new(3), 99, true)),
        charge(W1, 6)
    );
    // It had less than the other one.
    expect(&mut turns, &[grant(W2, 4), revoke(W2, 4)]);
    assert_eq!(
        charged(&mut turns, W2, |turns| turns.yielded(17, W2, TurnId::new(4), 2, false)),
        charge(W2, 2)
    );
    expect(&mut turns, &[grant(W1, 5)]);
    assert_eq!([0, 1, 2].map(|worker| turns.used_ns(WorkerId::new(worker))), [4, 6, 7]);
}

#[test]
fn the_next_one_is_woken_in_time_and_once() {
    let mut turns = turns(3);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, 0, W1);
    turns.orders.clear();
    assert!(turns.yielding(W0, TurnId::new(1)));
    expect(&mut turns, &[(W1, Order::Soon)]);
    assert!(turns.yielding(W0, TurnId::new(1)));
    has_work(&mut turns, 0, W2);
    expect(&mut turns, &[]);
}

#[test]
fn a_worker_without_calls_gets_no_turn() {
    let mut turns = turns(3);
    WorkerId::first(3).for_each(|worker| has_work(&mut turns, 0, worker));
    turns.idle(1, W1);
    turns.orders.clear();
    turns.yielded(2, W0, TurnId::new(1), 2, false);
    expect(&mut turns, &[grant(W2, 2)]);
    turns.gone(3, W2);
    expect(&mut turns, &[]);
    has_work(&mut turns, 4, W1);
    expect(&mut turns, &[grant(W1, 3)]);
}

#[test]
fn a_turn_that_no_worker_has_is_not_yielded() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    turns.orders.clear();
    for (worker, turn) in [(0, 0), (0, 2), (1, 1)] {
        assert!(!turns.yielding(WorkerId::new(worker), TurnId::new(turn)));
        assert!(!turns.yielded(1, WorkerId::new(worker), TurnId::new(turn), 1, true));
    }
    expect(&mut turns, &[]);
}

#[test]
fn patience_with_an_idle_holder_counts_from_what_came_later() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, MS, W1);
    assert_eq!(turns.next_deadline_ns(), Some(15 * MS), "it still has a call, and overruns its turn then");
    turns.idle(3 * MS, W0);
    assert_eq!(turns.next_deadline_ns(), Some(3 * MS + YIELD_NS));
    assert_eq!(turns.expire(3 * MS + YIELD_NS - 1), None);
    has_work(&mut turns, 4 * MS, W0);
    assert_eq!(turns.next_deadline_ns(), Some(15 * MS), "it has one again");
    turns.idle(5 * MS, W0);
    assert_eq!(turns.expire(5 * MS + YIELD_NS), Some(W0));
    assert_eq!(turns.expire(5 * MS + YIELD_NS), None);
}

#[test]
fn time_that_none_waited_for_is_used_and_not_charged() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, 1000 * MS, W1);
    let used = charged(&mut turns, W0, |turns| turns.yielded(1001 * MS, W0, TurnId::new(1), 900 * MS, true));
    assert_eq!(used, charge(W0, 900 * MS));
    turns.orders.clear();
    // The other one may have as much as the first had while it waited, and not a second.
    turns.yielded(1003 * MS, W1, TurnId::new(2), 2 * MS, true);
    expect(&mut turns, &[grant(W0, 3), revoke(W0, 3)]);
}

#[test]
fn a_call_that_fails_used_the_device_where_none_waits() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    assert_eq!(charged(&mut turns, W0, |turns| turns.failed(200 * MS, W0, 200 * MS)), charge(W0, 200 * MS));
    // Two that ended together were on the device once.
    assert_eq!(charged(&mut turns, W0, |turns| turns.failed(200 * MS, W0, 200 * MS)), None);
    // Whoever waits is waited for: that is charged when the turn ends, and only then.
    has_work(&mut turns, 300 * MS, W1);
    assert_eq!(charged(&mut turns, W0, |turns| turns.failed(301 * MS, W0, 100 * MS)), None);
    let used = charged(&mut turns, W0, |turns| turns.yielded(302 * MS, W0, TurnId::new(1), 302 * MS, true));
    assert_eq!(used, charge(W0, 102 * MS));
    // One without a turn had nothing of the device.
    assert_eq!(charged(&mut turns, W0, |turns| turns.failed(303 * MS, W0, MS)), None);
}

/// W0 has the device and does not yield, W1 waits.
fn overrun() -> (Turns, u64) {
    let mut turns = turns(3);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, MS, W1);
    turns.orders.clear();
    let at_ns = turns.next_deadline_ns().unwrap();
    assert_eq!(at_ns, 15 * MS, "three quanta");
    turns.overrun(at_ns - 1);
    expect(&mut turns, &[]);
    turns.overrun(at_ns);
    (turns, at_ns)
}

#[test]
fn a_turn_that_overruns_is_not_exclusive_any_more() {
    let (mut turns, now) = overrun();
    expect(&mut turns, &[grant(W1, 2)]);
    // Who comes while it lasts is granted at once.
    has_work(&mut turns, now + MS, W2);
    expect(&mut turns, &[grant(W2, 3)]);
    assert_eq!(turns.next_deadline_ns(), None, "none waits");
    // Once it yields, turns are taken again; it waits for its own.
    let over = charged(&mut turns, W0, |turns| turns.yielded(now + 100 * MS, W0, TurnId::new(1), 0, true));
    // It is charged for what the others, whose calls run all that time, had not.
    let used_ns = now - MS + 100 * MS - (100 * MS / 3 + 99 * MS / 3);
    assert_eq!(over, charge(W0, used_ns));
    expect(&mut turns, &[revoke(W1, 2), revoke(W2, 3)]);
    turns.yielded(now + 101 * MS, W1, TurnId::new(2), MS, true);
    expect(&mut turns, &[]);
    turns.yielded(now + 101 * MS, W2, TurnId::new(3), MS, false);
    // It had more than its part.
    expect(&mut turns, &[grant(W1, 4), revoke(W1, 4)]);
}

#[test]
fn beside_an_overrun_others_pay_for_what_they_did_and_it_pays_for_the_rest() {
    let (mut turns, now) = overrun();
    assert_eq!(
        charged(&mut turns, W1, |turns| turns.finished(now + 10 * MS, W1, 10 * MS, MS, true)),
        charge(W1, MS)
    );
    // A worker says itself how long its calls take: no more than its part of the time counts.
    assert_eq!(
        charged(&mut turns, W1, |turns| turns.finished(now + 14 * MS, W1, 60 * MS, 60 * MS, true)),
        charge(W1, 2 * MS)
    );
    has_work(&mut turns, now + 14 * MS, W2);
    turns.gone(now + 100 * MS, W0);
    turns.fine(tenant(W0), MS);
    // W0's tenant comes back: it stands behind what it used and its fine.
    has_work(&mut turns, now + 100 * MS, W0);
    let used_ns = now + 99 * MS;
    let ahead_ns = |worker| turns.line.ahead_ns(tenant(worker));
    // W2 has a call that did not end: a third of the chip was its own.
    assert_eq!(ahead_ns(W0) - ahead_ns(W2), used_ns + MS - 86 * MS / 3);
}

#[test]
fn who_was_fined_waits_until_others_want_nothing_for_a_while() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    turns.fine(tenant(W1), 50 * MS);
    has_work(&mut turns, MS, W1);
    expect(&mut turns, &[grant(W0, 1), revoke(W0, 1)]);
    // W0 has no call at the moment at which its turn ends.
    turns.idle(5 * MS, W0);
    turns.yielded(5 * MS, W0, TurnId::new(1), 5 * MS, false);
    expect(&mut turns, &[]);
    assert_eq!(turns.next_deadline_ns(), Some(10 * MS));
    has_work(&mut turns, 6 * MS, W0);
    expect(&mut turns, &[grant(W0, 2), revoke(W0, 2)]);
    turns.idle(9 * MS, W0);
    turns.yielded(9 * MS, W0, TurnId::new(2), 3 * MS, false);
    turns.overrun(14 * MS - 1);
    expect(&mut turns, &[]);
    turns.overrun(14 * MS);
    expect(&mut turns, &[grant(W1, 3)]);
}

#[test]
fn who_was_fined_is_not_next_while_answers_of_others_are_on_their_way() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    turns.fine(tenant(W1), 500 * MS);
    has_work(&mut turns, MS, W1);
    expect(&mut turns, &[grant(W0, 1), revoke(W0, 1)]);
    // W0 gives its turn back before its answers are read: it was never heard to be idle.
    turns.yielded(105 * MS, W0, TurnId::new(1), 105 * MS, false);
    turns.idle(105 * MS, W0);
    expect(&mut turns, &[]);
    has_work(&mut turns, 106 * MS, W0);
    expect(&mut turns, &[grant(W0, 2), revoke(W0, 2)]);
}

#[test]
fn who_waits_for_the_end_of_a_fine_is_next_once_it_stands_behind_nobody() {
    let mut turns = turns(2);
    turns.fine(tenant(W1), 50 * MS);
    has_work(&mut turns, 0, W1);
    expect(&mut turns, &[]);
    // The operator moves it into another class, where it was fined nothing.
    turns.set_share(tenant(W1), TenantShare { class: Class::Latency, ..TenantShare::default() });
    let due = turns.next_deadline_ns().unwrap();
    assert!(due <= MS, "{due}");
    turns.overrun(MS);
    expect(&mut turns, &[grant(W1, 1)]);
}

#[test]
fn who_had_a_part_of_the_device_has_not_overrun_its_turn() {
    // Eight join a turn that overran. Once that is over they yield one after the other: the last one has the device for 58 ms by
    // then, 10 of them its own.
    let mut turns = turns(9);
    (0..9).for_each(|worker| has_work(&mut turns, 0, WorkerId::new(worker)));
    let begun = turns.next_deadline_ns().unwrap();
    turns.overrun(begun);
    turns.yielded(begun, W0, TurnId::new(1), 0, true);
    turns.orders.clear();
    let mut now_ns = begun + 40 * MS;
    for worker in (1..8).map(WorkerId::new) {
        turns.overrun(now_ns);
        let turn = turns.holders[0].turn;
        turns.yielded(now_ns, worker, turn, 0, true);
        now_ns += 3 * MS;
    }
    let last = turns.next_deadline_ns();
    assert_eq!(turns.take_orders().collect::<Vec<_>>(), [], "no other has a grant before all yielded");
    // It had an eighth of 40 ms, a seventh of three, a sixth of three and so on; then it is alone.
    let part_ns = 5 * MS + (2..8).map(|of| 3 * MS / of).sum::<u64>();
    assert!(
        last.is_some_and(|at_ns| at_ns.abs_diff(now_ns - 3 * MS + 15 * MS - part_ns) < MS / 100),
        "{last:?}"
    );
    // It overruns as any other does; whoever did so before has no part in that.
    turns.overrun(last.unwrap());
    let orders: Vec<Told> = turns.take_orders().collect();
    assert!(
        orders.iter().filter(|(_, order)| matches!(order, Order::Grant { .. })).count() == 7,
        "{orders:?}"
    );
}

/// A turn of 15 ms that overran and ended 320 ms later by itself, or with its process, while `others` waited for it, whose calls
/// took so much of each millisecond, or do not end. What its tenant is charged, and what all are.
fn charged_for_an_overrun(others: usize, work_ns: Option<u64>, ended: bool) -> (u64, u64) {
    let mut turns = turns(1 + others);
    (0..=others).for_each(|worker| has_work(&mut turns, 0, WorkerId::new(worker)));
    let begun = turns.next_deadline_ns().unwrap();
    assert_eq!(begun, 15 * MS);
    turns.overrun(begun);
    for (ms, work_ns) in (1..=320).filter_map(|ms| Some((ms, work_ns?))) {
        for worker in (1..=others).map(WorkerId::new) {
            turns.finished(begun + ms * MS, worker, MS, work_ns, true);
        }
    }
    let over = begun + 320 * MS;
    let charge = charged(&mut turns, W0, |turns| match ended {
        true => drop(turns.yielded(over, W0, TurnId::new(1), over, false)),
        false => turns.gone(over, W0),
    });
    let all = (0..=others).map(|worker| turns.used_ns(WorkerId::new(worker))).sum();
    assert_eq!(charge.unwrap().used_ns, turns.used_ns(W0));
    (turns.used_ns(W0), all)
}

#[test]
fn who_overran_is_charged_for_what_others_left_of_the_chip() {
    let all = 335 * MS;
    // Calls of all run as long as its own, beside which they have equal parts of the chip.
    assert_eq!(charged_for_an_overrun(31, None, true), (15 * MS + 320 * MS / 32, all));
    assert_eq!(charged_for_an_overrun(1, None, true), (15 * MS + 320 * MS / 2, all));
    // They take a tenth of what they could have.
    assert_eq!(charged_for_an_overrun(1, Some(MS / 20), true), (15 * MS + 320 * MS * 19 / 20, all));
    assert_eq!(charged_for_an_overrun(3, Some(MS / 40), true), (15 * MS + 320 * MS * 37 / 40, all));
    // They take all they can have, which is no more than that.
    assert_eq!(charged_for_an_overrun(3, Some(MS), true), (15 * MS + 320 * MS / 4, all));
    // A process that was ended pays for all of it.
    assert_eq!(charged_for_an_overrun(3, Some(MS / 40), false).0, all);
    assert_eq!(charged_for_an_overrun(31, None, false).0, all);
}

#[test]
fn who_overran_is_not_granted_beside_another_that_overruns() {
    let (mut turns, now) = overrun();
    turns.yielded(now, W0, TurnId::new(1), 0, true);
    turns.orders.clear();
    // W1 does not yield either: who did not overrun joins it.
    has_work(&mut turns, now, W2);
    let late = turns.next_deadline_ns().unwrap();
    turns.overrun(late);
    expect(&mut turns, &[grant(W2, 3)]);
    turns.yielded(late, W2, TurnId::new(3), 0, false);
    expect(&mut turns, &[]);
    turns.gone(late, W1);
    expect(&mut turns, &[grant(W0, 4)]);
    assert!(turns.barred.is_empty() || turns.barred == [tenant(W1)]);
}

#[test]
fn time_is_contended_while_two_parties_want_the_device() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    assert_eq!((turns.contended_ns(10), turns.is_contended()), (0, false));
    has_work(&mut turns, 10, W1);
    assert_eq!(turns.contended_ns(15), 5);
    turns.idle(20, W1);
    assert_eq!(turns.contended_ns(99), 10);
    turns.set_outside(100, true);
    assert_eq!((turns.contended_ns(101), turns.parties()), (11, 2));
    assert_eq!(turns.granted().collect::<Vec<_>>(), [(W0, 0)]);
}

#[test]
fn who_says_that_it_answered_everything_has_no_excuse() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, 0, W1);
    assert!(!turns.could_act(MS, W0, 2 * MS) && turns.could_act(2 * MS, W0, 2 * MS));
    assert!(!turns.could_act(2 * MS, W1, 2 * MS), "it waits");
    turns.yielded(3 * MS, W0, TurnId::new(1), 0, false);
    assert!(turns.could_act(3 * MS, W0, 2 * MS));
}

#[test]
fn where_turns_are_short_the_next_worker_is_woken_when_the_last_one_gets_the_device() {
    let mut turns = turns(2);
    turns.set_polls(true);
    has_work(&mut turns, 0, W0);
    has_work(&mut turns, 0, W1);
    let mut now = 0;
    for turn in 1..60 {
        let worker = if turn % 2 == 1 { W0 } else { W1 };
        turns.orders.clear();
        now += MS / 10;
        turns.yielded(now, worker, TurnId::new(turn), 0, true);
    }
    expect(&mut turns, &[grant(W1, 60), revoke(W1, 60), (W0, Order::Soon)]);
}

#[test]
fn what_a_tenant_used_is_known_while_it_keeps_the_device() {
    let mut turns = turns(2);
    has_work(&mut turns, 0, W0);
    assert_eq!(charged(&mut turns, W0, |turns| turns.finished(10, W0, 7, 7, true)), charge(W0, 7));
    // Two calls in two lanes at the same time are not twice the time.
    assert_eq!(charged(&mut turns, W0, |turns| turns.finished(12, W0, 9, 9, true)), charge(W0, 2));
    assert_eq!(turns.used_ns(W0), 9);
    has_work(&mut turns, 20, W1);
    assert_eq!(
        charged(&mut turns, W0, |turns| turns.finished(25, W0, 9, 9, true)),
        None,
        "charged when it yields"
    );
    assert_eq!(
        charged(&mut turns, W0, |turns| turns.yielded(30, W0, TurnId::new(1), 25, false)),
        charge(W0, 16)
    );
    assert_eq!(turns.used_ns(W0), 25);
}

#[test]
fn each_of_several_has_its_part() {
    let mut clock = SlowedClock::new();
    clock.set_sharers(100, 4);
    assert_eq!((clock.ns(100), clock.ns(140), clock.shows_at_ns(110)), (100, 110, 140));
    clock.set_sharers(140, 1);
    assert_eq!((clock.ns(150), clock.shows_at_ns(120), clock.shows_at_ns(5)), (120, 150, 140));
    clock.set_sharers(150, 0);
    assert_eq!(clock.ns(160), 130);
}
