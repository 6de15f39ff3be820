//! What is done again where a supervisor went away or takes no more calls, and for how long: one rule for the clients that outlive
//! restarts, the one that [blocks](crate::steady) and the [asynchronous](crate::aio::SteadyClient) one.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use pappus_proto::Code;

use crate::error::{Error, Result};

/// Between two attempts to connect where nobody listens.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(10);
/// How long a connection that refused something is watched at least before the next one.
const PAUSE: Duration = Duration::from_millis(10);
/// The same at most, where the supervisor names no time.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// More patience is as good as this: the clock goes no further than some centuries.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// How long one piece of work is tried again. The time begins with the first failure.
#[derive(Debug)]
pub(crate) struct Patience {
    lasts: Duration,
    end: Option<Instant>,
}

/// What follows from how work on a connection ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// It is over, well or not: the connection stays.
    Over,
    /// The connection broke: the work is done again on another one.
    Again,
    /// The supervisor takes no calls: the connection is watched for so long, or until it ends, and then the same.
    AgainAfter(Duration),
}

impl Patience {
    pub(crate) fn new(lasts: Duration) -> Self {
        Self { lasts: lasts.min(FOR_EVER), end: None }
    }

    /// What is left, if it began; else all of it.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.map_or(self.lasts, |end| end.saturating_duration_since(Instant::now()))
    }

    /// What is left. It begins now, if it did not before.
    pub(crate) fn left(&mut self) -> Duration {
        self.end.get_or_insert_with(|| Instant::now() + self.lasts);
        self.remaining()
    }

    /// What follows from how work ended.
    pub(crate) fn next<T>(&mut self, done: &Result<T>) -> Next {
        match done {
            Err(Error::Refused(why)) if why.code() == Code::Unavailable => {
                let pause = match why.retry_after_ms {
                    0 => LONG_PAUSE,
                    ms => Duration::from_millis(ms).clamp(PAUSE, LONG_PAUSE),
                };
                Next::AgainAfter(pause.min(self.left()))
            }
            Err(Error::Lost) => Next::Again,
            _ => Next::Over,
        }
    }

    /// True if what failed in this way, the attempt to connect included, is tried again.
    pub(crate) fn lasts_after(&mut self, why: &Error) -> bool {
        let comes_again = match why {
            Error::Lost => true,
            Error::Refused(why) => why.code() == Code::Unavailable,
            _ => false,
        };
        comes_again && !self.left().is_zero()
    }
}

/// True if nobody listens on the socket: a supervisor may come.
pub(crate) fn nobody_listens(source: &std::io::Error) -> bool {
    matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use pappus_proto::v1;

    use super::*;

    fn refused(code: Code, retry_after_ms: u64) -> Result<()> {
        Err(Error::Refused(v1::Error { code: code as i32, retry_after_ms, ..Default::default() }))
    }

    #[test]
    fn what_was_not_accepted_or_has_no_answer_comes_again_and_nothing_else() {
        let mut patience = Patience::new(Duration::from_secs(3600));
        assert_eq!(patience.next(&Ok(())), Next::Over);
        assert_eq!(patience.next(&refused(Code::NotFound, 5)), Next::Over);
        assert_eq!(patience.next::<()>(&Err(Error::Lost)), Next::Again);
        for (named_ms, pause_ms) in [(0, 1000), (1, 10), (20, 20), (5000, 1000)] {
            let next = patience.next(&refused(Code::Unavailable, named_ms));
            assert_eq!(next, Next::AgainAfter(Duration::from_millis(pause_ms)), "{named_ms}");
        }
        assert!(patience.lasts_after(&Error::Lost));
        assert!(patience.lasts_after(&refused(Code::Unavailable, 0).unwrap_err()));
        assert!(!patience.lasts_after(&refused(Code::NotFound, 0).unwrap_err()));
        assert!(!patience.lasts_after(&Error::Protocol(String::new())));
    }

    #[test]
    fn patience_ends_and_is_never_too_long_for_the_clock() {
        let mut none = Patience::new(Duration::ZERO);
        assert_eq!(none.next(&refused(Code::Unavailable, 0)), Next::AgainAfter(Duration::ZERO));
        assert!(!none.lasts_after(&Error::Lost));
        let most = Duration::from_secs(60);
        let mut some = Patience::new(most);
        assert_eq!((some.remaining(), some.remaining()), (most, most), "it did not begin");
        some.left();
        assert!(some.remaining() < most);
        assert!(Patience::new(Duration::MAX).left() > Duration::from_secs(1 << 29));
    }
}
