//! Commands to one process in the order in which they were decided.
//!
//! A decision is made with the scheduler locked and carried out after that, by the thread that caused it. So two
//! threads may reach a process's channel in another order than they decided in. The scheduler numbers the commands to
//! each process; here, where they arrive, the next one passes at once and early ones wait for it. Threads do not wait.

/// How many commands may be early. A lane that is busy takes no further call, so there are a few times as many as lanes
/// at most; a process whose channel stalls beyond that is killed.
pub(super) const MAX_EARLY: usize = 256;

/// The commands to one process that were not carried out.
#[derive(Debug)]
pub(super) struct CommandOrder<T> {
    next: u64,
    /// With their numbers, in no order.
    early: Vec<(u64, T)>,
}

/// Too many commands are early: the command that all of them wait for is not expected any more.
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
