//! Traces read from a file: a line for each call, with the second at which it is sent, its tenant, and how many
//! milliseconds it takes alone. Lines that begin with `#` say nothing.
//!
//! ```text
//! # second, tenant, milliseconds
//! 0.013, alice, 0.035
//! 0.021, bob,   2.6
//! ```

use std::collections::HashMap;

use super::{Arrival, S, sorted};
use crate::simulator::costs::Work;

/// Calls that are read at most.
const MOST: usize = 50_000_000;
/// The longest time that a trace or a call may last.
const LONGEST_S: f64 = 30.0 * 86_400.0;
/// How many calls of one process fit on the chip side by side, which a trace does not say.
const WIDTH: f64 = 4.0;

/// Why a trace is not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line that is none.
    #[error("line {0}: expected SECOND, TENANT, MILLISECONDS, e.g. 0.013, alice, 0.035")]
    Line(usize),
    /// Too many lines.
    #[error("more than {MOST} calls")]
    TooLong,
    /// No line.
    #[error("no calls in it")]
    Empty,
}

/// The calls of a trace, and how many tenants they are of.
pub fn parse(text: &str) -> Result<(Vec<Arrival>, usize), TraceError> {
    let mut tenants: HashMap<&str, usize> = HashMap::new();
    let mut arrivals = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let arrival = parse_line(line, &mut tenants).ok_or(TraceError::Line(at + 1))?;
        if arrivals.len() >= MOST {
            return Err(TraceError::TooLong);
        }
        arrivals.push(arrival);
    }
    match arrivals.is_empty() {
        true => Err(TraceError::Empty),
        false => Ok((sorted(arrivals, u64::MAX), tenants.len())),
    }
}

fn parse_line<'a>(line: &'a str, tenants: &mut HashMap<&'a str, usize>) -> Option<Arrival> {
    let mut fields = line.split(',').map(str::trim);
    let (second, name, ms) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || name.is_empty() {
        return None;
    }
    let number = |text: &str, most: f64| text.parse::<f64>().ok().filter(|n| (0.0..=most).contains(n));
    let (second, ms) = (number(second, LONGEST_S)?, number(ms, LONGEST_S * 1e3)?);
    let next = tenants.len();
    let tenant = *tenants.entry(name).or_insert(next);
    let work = Work::lasting("of a file", ((ms * S / 1e3) as u64).max(1), WIDTH);
    Some(Arrival { at_ns: (second * S) as u64, tenant, work })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_and_sorted() {
        let (all, tenants) = parse("# a trace\n2, bob, 1.5\n\n1,alice,0.035\n3 , bob , 1\n").unwrap();
        let seen: Vec<_> = all.iter().map(|a| (a.at_ns / 1_000_000_000, a.tenant, a.work.alone_ns)).collect();
        assert_eq!(seen, [(1, 1, Some(35_000)), (2, 0, Some(1_500_000)), (3, 0, Some(1_000_000))]);
        assert_eq!(tenants, 2);
    }

    #[test]
    fn what_is_no_call_is_named_by_its_line() {
        for bad in ["1,a", "1,a,2,3", "x,a,1", "-1,a,1", "1,,1", "nan,a,1", "1,a,inf"] {
            assert_eq!(parse(&format!("0,a,1\n{bad}")), Err(TraceError::Line(2)), "{bad}");
        }
        assert_eq!(parse("# nothing\n"), Err(TraceError::Empty));
    }
}
