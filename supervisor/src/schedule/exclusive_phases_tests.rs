//! Small cases of whose turn it is.

use super::*;

const CALL: CallId = CallId(7);
const CALLER: TenantId = TenantId::new(1);
const WORKER: WorkerId = WorkerId::new(1);

#[test]
fn the_device_is_prepared_for_a_call_that_waits_and_no_other() {
    let mut exclusive = Exclusive::new();
    exclusive.push(0, CALLER, CALL, false, || (false, 0));
    exclusive.push(0, CALLER, CallId(8), false, || (false, 0));
    assert!(!exclusive.is_shared(0, false, |_| false));
    exclusive.begin(CALLER, CALL, WORKER);
    assert!(exclusive.is_closed() && exclusive.is_for(WORKER));
    assert_eq!((exclusive.prepared(), exclusive.barrier(CALLER)), (Some((CALL, WORKER)), Some(CallId(0))));
    assert!(!exclusive.remove(CALLER, CallId(8)) && exclusive.remove(CALLER, CALL), "in vain");
    assert!(!exclusive.is_closed() && !exclusive.has_line());
}

#[test]
fn the_first_in_line_lets_others_start_for_a_while_and_its_callers_calls_before_it() {
    let mut exclusive = Exclusive::new();
    assert_eq!(exclusive.barrier(CALLER), None);
    exclusive.push(5, CALLER, CALL, false, || (true, 1));
    assert_eq!((exclusive.barrier(CALLER), exclusive.next_ns()), (Some(CALL), Some(5 + SHARED_PHASE_NS)));
    let other = TenantId::new(2);
    assert!(exclusive.barrier(other).is_none() && exclusive.has_barrier());
    // Such a call waits.
    assert!(exclusive.is_shared(5 + SHARED_PHASE_NS - 1, false, |before| before == Some(CALL)));
    // It takes too long: the lanes run empty.
    assert!(exclusive.is_shared(5 + SHARED_PHASE_NS, true, |_| true));
    assert_eq!((exclusive.barrier(CALLER), exclusive.next_ns()), (Some(CallId(0)), None));
    assert_eq!(exclusive.barrier(other), Some(CallId(0)));
    assert!(!exclusive.is_shared(6 + SHARED_PHASE_NS, false, |_| true));
    assert_eq!(exclusive.shared_tag_ns, 6 + SHARED_PHASE_NS);
}

#[test]
fn after_a_call_for_the_whole_device_others_have_it_as_long_for_each_caller_that_waits() {
    let mut exclusive = Exclusive::new();
    exclusive.push(0, CALLER, CALL, false, || (false, 0));
    exclusive.push(0, CALLER, CallId(8), false, || (false, 0));
    assert!(!exclusive.is_shared(0, false, |_| false));
    exclusive.begin(CALLER, CALL, WORKER);
    exclusive.run(CALLER, CALL, WORKER);
    assert_eq!((exclusive.barrier(CALLER), exclusive.prepared()), (Some(CallId(0)), None));
    exclusive.end();
    exclusive.share(SHARED_PHASE_NS, 3, true);
    // Until a process is there for them, their turn did not begin.
    assert_eq!(exclusive.next_ns(), Some(SHARED_PHASE_NS + WORKER_START_S * 1_000_000_000));
    exclusive.started(SHARED_PHASE_NS);
    assert_eq!((exclusive.barrier(CALLER), exclusive.next_ns()), (None, Some(4 * SHARED_PHASE_NS)));
    // Another caller had nothing: it need not wait so long.
    exclusive.push(SHARED_PHASE_NS, TenantId::new(2), CallId(9), false, || unreachable!("there is a line"));
    assert_eq!((exclusive.next(), exclusive.next_ns()), (Some(CallId(9)), Some(2 * SHARED_PHASE_NS)));
    // Nothing else is left to run.
    assert!(!exclusive.is_shared(SHARED_PHASE_NS + 1, false, |_| false));
}

/// Four callers that each have calls of 8 ms, and others of one caller.
#[test]
fn others_have_the_device_between_the_calls_of_several_callers() {
    let (mut exclusive, mut now_ns) = (Exclusive::new(), 0);
    for caller in 0..4 {
        let (caller, id) = (TenantId::new(caller), CallId(u64::from(caller)));
        exclusive.push(now_ns, caller, id, false, || (false, 0));
        exclusive.push(now_ns, caller, CallId(10 + id.0), false, || (false, 0));
    }
    assert!(!exclusive.is_shared(now_ns, false, |_| false));
    let mut serve = |exclusive: &mut Exclusive, between| {
        let First { id, caller, .. } = exclusive.line.first().unwrap();
        exclusive.begin(caller, id, WORKER);
        exclusive.run(caller, id, WORKER);
        now_ns += 8_000_000;
        exclusive.end();
        exclusive.share(now_ns, 1, between);
        exclusive.started(now_ns);
        now_ns
    };
    let first_ns = serve(&mut exclusive, true);
    // Nobody had less than they: it is a quarter of what the call took.
    assert_eq!(exclusive.next_ns(), Some(first_ns + 2_000_000));
    assert!(exclusive.is_shared(first_ns + 1_999_999, false, |_| true));
    assert!(!exclusive.is_shared(first_ns + 2_000_000, false, |_| true));
    assert_eq!(exclusive.shared_tag_ns, 2_000_000);
    // Not where that is not wanted.
    serve(&mut exclusive, false);
    assert_eq!((exclusive.next_ns(), exclusive.next().is_some()), (None, true));
}
