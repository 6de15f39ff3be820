//! A deadline that the supervisor shortened, since the operator allows none that long: whoever asked for it is told.

use std::time::Duration;

use humantime::format_duration;
use pappus_client::{Code, Error, v1};

use crate::arguments::InvokeArguments;
use crate::failure::Failure;

const WHY: &str = "the supervisor's max-deadline is the most that it gives";

/// What is said behind the results of a call that had less time than was asked for.
pub(super) fn shortened(arguments: &InvokeArguments, answer: &v1::Invoked) -> Option<String> {
    let (asked, had) = (arguments.deadline?, Duration::from_nanos(answer.deadline_ns));
    // An older supervisor does not say.
    (!had.is_zero() && had < asked)
        .then(|| format!("deadline: {} in place of {}: {WHY}", format_duration(had), format_duration(asked)))
}

/// The same behind the error of a call that had not that much time yet when its deadline passed.
pub(super) fn explain(why: Error, arguments: &InvokeArguments, after: Duration) -> Failure {
    match (&why, arguments.deadline) {
        (Error::Refused(error), Some(asked)) if error.code() == Code::DeadlineExceeded && after < asked => {
            Failure::Library(Error::Refused(v1::Error {
                message: format!("{} ({} were asked for: {WHY})", error.message, format_duration(asked)),
                ..error.clone()
            }))
        }
        _ => why.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn asked(deadline: &str) -> InvokeArguments {
        match Arguments::parse_from(["pappus", "invoke", "f", "--deadline", deadline]).command {
            Command::Invoke(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shorter_deadline_is_said() {
        let had =
            |seconds: u64| v1::Invoked { deadline_ns: seconds * 1_000_000_000, ..v1::Invoked::default() };
        let words = shortened(&asked("1h"), &had(600)).unwrap();
        assert!(words.starts_with("deadline: 10m in place of 1h: the supervisor's max-deadline"), "{words}");
        assert_eq!(shortened(&asked("10m"), &had(600)), None);
        assert_eq!(shortened(&asked("1h"), &had(0)), None);
    }

    #[test]
    fn a_shorter_deadline_that_passed_is_said() {
        let told = |code, after| {
            let why = Error::Refused(v1::Error::new(code, "the deadline of 1s passed"));
            explain(why, &asked("1h"), Duration::from_secs(after)).to_string()
        };
        assert!(
            told(Code::DeadlineExceeded, 1).contains("passed (1h were asked for: "),
            "{}",
            told(Code::DeadlineExceeded, 1)
        );
        assert!(!told(Code::DeadlineExceeded, 3600).contains("asked"));
        assert!(!told(Code::KernelFault, 1).contains("asked"));
    }
}
