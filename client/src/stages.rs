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

/// Prints a line for each stage, with a bar that says its share.
pub(crate) fn print(timings: &Timings, out: &mut dyn Write) -> std::io::Result<()> {
    let stages = all(timings);
    let longest = stages.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
    for (name, ns) in stages {
        let line = format!("  {name:<9} {:>9}  {}", nanoseconds(ns), bar(ns, longest));
        writeln!(out, "{}", line.trim_end())?;
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
    fn bars_are_proportional_and_never_vanish() {
        assert_eq!(bar(0, 0), "");
        assert_eq!(bar(8, 8), "█".repeat(40));
        assert_eq!(bar(4, 8), "█".repeat(20));
        assert_eq!(bar(1, u64::MAX), "▏");
        assert_eq!(bar(u64::MAX, u64::MAX), "█".repeat(40));
    }
}
