//! Commands that arrive in any order, one thread; `tests/models` has threads.

use proptest::prelude::*;

use super::command_order::{CommandOrder, MAX_EARLY, Stalled};

/// What is carried out when commands with these numbers arrive.
fn carried_out(arrivals: &[u64]) -> Vec<u64> {
    let mut order = CommandOrder::new();
    let mut done = Vec::new();
    for nth in arrivals {
        let mut next = order.admit(*nth, *nth).unwrap();
        while let Some(command) = next {
            done.push(command);
            next = order.take_next();
        }
    }
    done
}

#[test]
fn early_commands_wait_for_the_one_before_them() {
    assert_eq!(carried_out(&[0, 2, 3]), [0]);
    assert_eq!(carried_out(&[0, 2, 3, 1]), [0, 1, 2, 3]);
}

#[test]
fn a_command_that_never_comes_does_not_gather_others_for_ever() {
    let mut order = CommandOrder::new();
    (1..=MAX_EARLY as u64).for_each(|nth| assert_eq!(order.admit(nth, ()), Ok(None)));
    assert_eq!(order.admit(9999, ()), Err(Stalled));
    assert_eq!(order.admit(0, ()), Ok(Some(())), "the one that was missing still passes");
}

proptest! {
    #[test]
    fn commands_that_arrive_in_any_order_are_carried_out_as_they_were_decided(
        arrivals in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle()
    ) {
        prop_assert_eq!(carried_out(&arrivals), (0..40).collect::<Vec<_>>());
    }
}
