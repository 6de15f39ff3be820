//! Small cases of how memory moves, and of whose turn it is meanwhile.

use super::*;

const CALL: CallId = CallId(7);
const CALLER: TenantId = TenantId::new(1);
const WORKER: WorkerId = WorkerId::new(1);

fn generation(nth: u64) -> Generation {
    Generation::new(nth)
}

/// Three workers whose settings are in force, and a call that memory moves to [`WORKER`] for.
fn shrinking() -> (Exclusive, Shares) {
    let (mut exclusive, mut shares) = (Exclusive::new(3), Shares::new());
    for worker in WorkerId::first(3) {
        assert_eq!(exclusive.arrived(worker, generation(1)), Share::Own);
        assert!(exclusive.confirmed(worker) && !exclusive.confirmed(worker));
    }
    exclusive.push(0, CALLER, CALL, false, || (false, 0));
    assert!(!exclusive.is_shared(0, false, |_| false));
    exclusive.begin(0, CALLER, CALL, WORKER, &mut shares);
    (exclusive, shares)
}

fn all_confirm(exclusive: &mut Exclusive, shares: &mut Shares) {
    shares.drain(..).for_each(|(worker, _)| assert!(exclusive.confirmed(worker)));
}

#[test]
fn at_no_moment_more_is_given_than_there_is() {
    let (mut exclusive, mut shares) = shrinking();
    let units = |share| match share {
        Share::Nothing => 0,
        Share::Own => 1,
        Share::All => 3,
    };
    let mut has = [Share::Own; 3];
    let mut whole = 0;
    loop {
        // Each worker has what it had, or already what it gets.
        let mut most = has.map(units);
        for (worker, share) in &shares {
            most[worker.get()] = most[worker.get()].max(units(*share));
            has[worker.get()] = *share;
        }
        assert!(most.iter().sum::<u32>() <= 3, "{most:?}");
        all_confirm(&mut exclusive, &mut shares);
        match exclusive.advance(0, &mut shares) {
            Some(Moved::Whole(CALL, WORKER)) => {
                assert_eq!(has, [Share::Nothing, Share::All, Share::Nothing]);
                exclusive.run(CALLER, CALL, WORKER);
                exclusive.give_back(0, &mut shares);
                whole += 1;
            }
            Some(Moved::Shared) => break,
            other => assert_eq!(other, None),
        }
    }
    assert_eq!((has, whole, exclusive.barrier()), ([Share::Own; 3], 1, None));
}

#[test]
fn nothing_is_given_out_before_every_process_confirmed() {
    let (mut exclusive, mut shares) = shrinking();
    assert_eq!(shares, [(WorkerId::new(0), Share::Nothing), (WorkerId::new(2), Share::Nothing)]);
    shares.clear();
    assert!(exclusive.confirmed(WorkerId::new(0)));
    assert_eq!((exclusive.advance(0, &mut shares), shares.len()), (None, 0));
    assert!(exclusive.confirmed(WorkerId::new(2)));
    assert_eq!(exclusive.advance(0, &mut shares), None);
    assert_eq!(shares, [(WORKER, Share::All)]);
}

#[test]
fn nothing_is_given_out_before_a_process_that_ended_is_reaped() {
    let (mut exclusive, mut shares) = shrinking();
    shares.clear();
    assert!(exclusive.confirmed(WorkerId::new(0)));
    exclusive.gone(WorkerId::new(2));
    exclusive.advance(0, &mut shares);
    assert_eq!(shares, []);
    // Its successor has nothing either, while memory moves.
    assert_eq!(exclusive.arrived(WorkerId::new(2), generation(2)), Share::Nothing);
    exclusive.reaped(WorkerId::new(2), generation(2));
    assert!(exclusive.confirmed(WorkerId::new(2)));
    exclusive.advance(0, &mut shares);
    assert_eq!(shares, [], "another process was reaped");
    exclusive.reaped(WorkerId::new(2), generation(1));
    exclusive.advance(0, &mut shares);
    assert_eq!(shares, [(WORKER, Share::All)]);
}

#[test]
fn who_does_not_confirm_holds_a_move_up_only_so_long() {
    let (mut exclusive, mut shares) = shrinking();
    assert_eq!(exclusive.next_ns(), Some(SETTLE_NS));
    assert!(exclusive.expire(SETTLE_NS - 1).is_empty());
    assert_eq!(exclusive.expire(SETTLE_NS), [0, 2].map(WorkerId::new));
    assert!(exclusive.confirmed(WorkerId::new(0)));
    assert_eq!(exclusive.expire(2 * SETTLE_NS), [WorkerId::new(2)]);
    exclusive.gone(WorkerId::new(2));
    exclusive.reaped(WorkerId::new(2), generation(1));
    exclusive.advance(0, &mut shares);
    all_confirm(&mut exclusive, &mut vec![(WORKER, Share::All)]);
    assert_eq!(exclusive.advance(0, &mut shares), Some(Moved::Whole(CALL, WORKER)));
    exclusive.run(CALLER, CALL, WORKER);
    assert_eq!(exclusive.next_ns(), None);
}

#[test]
fn other_settings_must_be_confirmed_too() {
    let (mut exclusive, mut shares) = shrinking();
    all_confirm(&mut exclusive, &mut shares);
    exclusive.tell_all(&mut shares);
    assert_eq!(
        shares,
        [(WorkerId::new(0), Share::Nothing), (WORKER, Share::Own), (WorkerId::new(2), Share::Nothing)]
    );
    exclusive.advance(0, &mut Shares::new());
    assert_eq!(exclusive.stage, Stage::Shrinking(CALL, WORKER));
    all_confirm(&mut exclusive, &mut shares);
    exclusive.advance(0, &mut shares);
    assert_eq!(shares, [(WORKER, Share::All)]);
}

#[test]
fn the_first_in_line_lets_calls_before_it_start_for_a_while() {
    let mut exclusive = Exclusive::new(1);
    assert_eq!(exclusive.barrier(), None);
    exclusive.push(5, CALLER, CALL, false, || (true, 1));
    assert_eq!((exclusive.barrier(), exclusive.next_ns()), (Some(CALL), Some(5 + SHARED_PHASE_NS)));
    // Such a call waits.
    assert!(exclusive.is_shared(5 + SHARED_PHASE_NS - 1, false, |before| before == Some(CALL)));
    // It takes too long: the lanes run empty.
    assert!(exclusive.is_shared(5 + SHARED_PHASE_NS, true, |_| true));
    assert_eq!((exclusive.barrier(), exclusive.next_ns()), (Some(CallId(0)), None));
    assert!(!exclusive.is_shared(6 + SHARED_PHASE_NS, false, |_| true));
    assert_eq!(exclusive.shared_tag_ns, 6 + SHARED_PHASE_NS);
}

#[test]
fn after_a_call_for_the_whole_device_others_have_it_as_long_for_each_caller_that_waits() {
    let mut exclusive = Exclusive::new(1);
    exclusive.push(0, CALLER, CALL, false, || (false, 0));
    exclusive.push(0, CALLER, CallId(8), false, || (false, 0));
    assert!(!exclusive.is_shared(0, false, |_| false));
    exclusive.run_alone(CALLER, CALL, WORKER);
    assert_eq!(exclusive.barrier(), Some(CallId(0)));
    assert!(exclusive.end_alone(WORKER));
    exclusive.share(SHARED_PHASE_NS, 3);
    // Until a process is there for them, their turn did not begin.
    assert_eq!(exclusive.next_ns(), Some(SHARED_PHASE_NS + WORKER_START_S * 1_000_000_000));
    exclusive.started(SHARED_PHASE_NS);
    assert_eq!((exclusive.barrier(), exclusive.next_ns()), (None, Some(4 * SHARED_PHASE_NS)));
    // Another caller had nothing: it need not wait so long.
    exclusive.push(SHARED_PHASE_NS, TenantId::new(2), CallId(9), false, || unreachable!("there is a line"));
    assert_eq!((exclusive.next(), exclusive.next_ns()), (Some(CallId(9)), Some(2 * SHARED_PHASE_NS)));
    // Nothing else is left to run.
    assert!(!exclusive.is_shared(SHARED_PHASE_NS + 1, false, |_| false));
}
