//! Where the time of a call went: a line and a bar for each stage.

use std::io::Write;

use pappus_client::v1::Timings;

use crate::units::nanoseconds;

/// Cells of the longest bar.
const BAR_WIDTH: u64 = 40;
/// A cell, filled from an eighth to the whole.
const CELLS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];

/// The stages in the order they happen, then all of them together.
pub(crate) fn all(timings: &Timings) -> [(&'static str, u64); 6] {
    [
        ("queued", timings.queued_ns),
        ("copy in", timings.copy_in_ns),
        ("execute", timings.execute_ns),
        ("copy out", timings.copy_out_ns),
        ("clear", timings.clear_ns),
        ("total", timings.total_ns),
    ]
}

/// What no stage accounts for is called.
pub(crate) const OTHER: &str = "other";
/// The same of a call that waited for code or weights, of which next to all of it is that.
pub(crate) const LOADING: &str = "loading";

/// The same for people, who add up: what no stage accounts for stands before the total. It is at least 0: what
/// was cleared before the call came is no part of the total.
pub(crate) fn rows(timings: &Timings) -> [(&'static str, u64); 7] {
    let [queued, copy_in, execute, copy_out, clear, total] = all(timings);
    // Figures of a supervisor that counts differently must not overflow.
    let known =
        [queued, copy_in, execute, copy_out].iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
    let cleared_ns = if cleared_before(timings) { 0 } else { clear.1 };
    let other = (OTHER, total.1.saturating_sub(known).saturating_sub(cleared_ns));
    [queued, copy_in, execute, copy_out, clear, other, total]
}

/// True if some of the clearing was done before the call came, so that the stages add up to more than the total.
pub(crate) fn cleared_before(timings: &Timings) -> bool {
    let [queued, copy_in, execute, copy_out, clear, total] = all(timings).map(|(_, ns)| u128::from(ns));
    clear > 0 && queued + copy_in + execute + copy_out + clear > total
}

/// What is said below stages of which [`cleared_before`] is true.
pub(crate) const CLEARED_BEFORE: &str =
    "clear: done behind the answer of the call before, at least in part, and no part of the total";

/// Prints a line for each stage, with a bar that says its share. `other` is what the time is called that no stage accounts for.
pub(crate) fn print(timings: &Timings, other: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let stages = rows(timings);
    let longest = stages.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
    for (name, ns) in stages {
        let name = if name == OTHER { other } else { name };
        let line = format!("  {name:<9} {:>9}  {}", nanoseconds(ns), bar(ns, longest));
        writeln!(out, "{}", line.trim_end())?;
    }
    if cleared_before(timings) {
        writeln!(out, "  {CLEARED_BEFORE}")?;
    }
    Ok(())
}

/// A bar of eighths of cells; anything but zero shows.
fn bar(value: u64, longest: u64) -> String {
    if value == 0 {
        return String::new();
    }
    let eighths = u128::from(value) * u128::from(BAR_WIDTH) * 8 / u128::from(longest);
    let eighths = (eighths as usize).max(1);
    let (whole, part) = (eighths / 8, eighths % 8);
    let tail = if part > 0 { CELLS[part - 1] } else { "" };
    CELLS[7].repeat(whole) + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up_to_the_total() {
        let timings =
            Timings { queued_ns: 1, execute_ns: 5, clear_ns: 2, total_ns: 10, ..Timings::default() };
        let rows = rows(&timings);
        assert_eq!(rows[5], ("other", 2));
        assert_eq!(rows[..6].iter().map(|(_, ns)| ns).sum::<u64>(), 10);
        let odd = Timings { queued_ns: u64::MAX, execute_ns: 1, total_ns: 3, ..Timings::default() };
        assert_eq!(super::rows(&odd)[5], ("other", 0));
    }

    #[test]
    fn clearing_that_is_no_part_of_the_total_has_a_footnote() {
        let shown = |clear_ns| {
            let mut out = Vec::new();
            let timings = Timings { execute_ns: 5, clear_ns, total_ns: 6, ..Timings::default() };
            print(&timings, OTHER, &mut out).unwrap();
            String::from_utf8(out).unwrap().contains(CLEARED_BEFORE)
        };
        assert!(shown(2) && !shown(1) && !shown(0));
    }

    #[test]
    fn time_of_no_stage_has_the_name_that_it_is_given() {
        let shown = |other| {
            let mut out = Vec::new();
            print(&Timings { execute_ns: 5, total_ns: 16, ..Timings::default() }, other, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(shown(LOADING).contains("\n  loading       11 ns"), "{}", shown(LOADING));
        assert!(shown(OTHER).contains("\n  other         11 ns") && !shown(OTHER).contains(LOADING));
    }

    #[test]
    fn bars_are_proportional_and_never_vanish() {
        assert_eq!(bar(0, 0), "");
        assert_eq!(bar(8, 8), "█".repeat(40));
        assert_eq!(bar(4, 8), "█".repeat(20));
        assert_eq!(bar(1, u64::MAX), "▏");
        assert_eq!(bar(u64::MAX, u64::MAX), "█".repeat(40));
    }
}
