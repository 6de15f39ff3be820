//! Commands to one process in the order in which they were decided.
//!
//! A decision is made with the scheduler locked and carried out after that, by the thread that caused it. So two
//! threads may reach a process's channel in another order than they decided in. The scheduler numbers the commands to
//! each process; here, where they arrive, the next one passes at once and early ones wait for it. Threads do not wait.

/// How many commands may be early. A lane that is busy takes no further call, so there are a few times as many as lanes
/// at most; a process whose channel stalls beyond that is killed.
const MAX_EARLY: usize = 256;

/// The commands to one process that were not carried out.
#[derive(Debug)]
pub(super) struct CommandOrder<T> {
    next: u64,
    /// With their numbers, in no order.
    early: Vec<(u64, T)>,
}

/// Too many commands are early: the one that all of them wait for will hardly come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stalled;

impl<T> CommandOrder<T> {
    /// Before the first command.
    pub(super) fn new() -> Self {
        Self { next: 0, early: Vec::new() }
    }

    /// A command arrives. It is to be carried out now, and then those that [`CommandOrder::take_next`] returns; or it
    /// waits here.
    pub(super) fn admit(&mut self, nth: u64, command: T) -> Result<Option<T>, Stalled> {
        if nth == self.next {
            self.next += 1;
            return Ok(Some(command));
        }
        if self.early.len() >= MAX_EARLY {
            return Err(Stalled);
        }
        self.early.push((nth, command));
        Ok(None)
    }

    /// The next command, if it came early.
    pub(super) fn take_next(&mut self) -> Option<T> {
        let at = self.early.iter().position(|(nth, _)| *nth == self.next)?;
        self.next += 1;
        Some(self.early.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        fn whatever_the_order_of_arrival_commands_are_carried_out_as_they_were_decided(
            arrivals in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle()
        ) {
            prop_assert_eq!(carried_out(&arrivals), (0..40).collect::<Vec<_>>());
        }
    }
}
