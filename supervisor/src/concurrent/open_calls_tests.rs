//! Request ids and the limit of open calls, one thread.

use std::sync::Arc;

use super::{OpenCalls, OpenError};

/// Open calls whose handles are bytes: every handle has an address of its own.
fn calls() -> OpenCalls<u8, ()> {
    OpenCalls::new(2)
}

#[test]
fn an_id_in_use_is_refused_until_its_call_is_closed() {
    let calls = calls();
    let first = calls.open(7, || Arc::new(1)).unwrap();
    assert_eq!(calls.open(7, || Arc::new(2)).unwrap_err(), OpenError::IdInUse);
    calls.close(7, &first);
    calls.open(7, || Arc::new(2)).unwrap();
}

#[test]
fn an_earlier_call_of_an_id_does_not_touch_the_later_one() {
    let calls = calls();
    let first = calls.open(7, || Arc::new(1)).unwrap();
    calls.close(7, &first);
    let second = calls.open(7, || Arc::new(2)).unwrap();
    calls.close(7, &first);
    assert_eq!(calls.placed(7, &first, ()), Some(()));
    assert_eq!(calls.placed(7, &second, ()), None);
}

#[test]
fn more_calls_than_the_limit_are_refused() {
    let calls = calls();
    (0..2).for_each(|id| drop(calls.open(id, || Arc::new(0)).unwrap()));
    assert_eq!(calls.open(2, || Arc::new(0)).unwrap_err(), OpenError::TooMany);
    assert_eq!(calls.take_all().len(), 2);
    calls.open(2, || Arc::new(0)).unwrap();
}
