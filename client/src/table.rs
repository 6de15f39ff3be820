//! Tables of text: columns as wide as they need to be, numbers to the right. Own code because thousands of rows
//! must not cost a layout each, and nothing is ever wrapped: scripts may cut at the columns. What others chose is shown
//! without the characters that a terminal obeys.

use std::io::Write;

use anstyle::Style;

/// The fewest characters of a column of words that has to be narrower than its words.
const NARROWEST: usize = 8;
/// What stands for the characters that were left out.
const LEFT_OUT: char = '…';

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, a cell for each column.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.push(cells.into());
    }

    /// The same, of as many cells as there are columns.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|cell| plain(cell)).collect());
    }

    /// True if there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints heading and rows.
    pub(crate) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.print_with(&self.widths(), out)
    }

    /// Prints heading and rows in lines of at most so many characters, as long as numbers leave room: of words that are too long,
    /// the middle is left out.
    pub(crate) fn print_within(&self, most: usize, out: &mut dyn Write) -> std::io::Result<()> {
        let mut widths = self.widths();
        let too_many =
            |widths: &[usize]| widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) > most;
        while too_many(&widths) {
            let words =
                (0..widths.len()).filter(|at| self.columns[*at].1 == Align::Left && widths[*at] > NARROWEST);
            let Some(widest) = words.max_by_key(|at| widths[*at]) else { break };
            widths[widest] -= 1;
        }
        self.print_with(&widths, out)
    }

    /// How wide each column is.
    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }

    fn print_with(&self, widths: &[usize], out: &mut dyn Write) -> std::io::Result<()> {
        let bold = Style::new().bold();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        writeln!(out, "{bold}{}{bold:#}", self.line(&heading, widths))?;
        self.rows.iter().try_for_each(|row| writeln!(out, "{}", self.line(row, widths)))
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let cells = cells.iter().zip(widths).zip(&self.columns);
        let padded: Vec<String> = cells
            .map(|((cell, width), (_, align))| match align {
                Align::Left => format!("{:width$}", shortened(cell, *width)),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    }
}

/// A text that others chose, as a terminal may get it: what is no letter, sign or blank is written as an escape, such as `\u{1b}`.
pub(crate) fn plain(text: &str) -> String {
    let is_harmless = |c: char| matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
    match text.chars().all(is_harmless) {
        true => text.to_owned(),
        false => text
            .chars()
            .map(|c| if is_harmless(c) { c.to_string() } else { c.escape_debug().to_string() })
            .collect(),
    }
}

/// At most so many characters of a text: its beginning and its end.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    text.chars().take(head).chain([LEFT_OUT]).chain(text.chars().skip(count - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("NAME", Align::Left), ("BYTES", Align::Right), ("TYPE", Align::Left)]);
        table.row(["a µ".into(), "1".into(), String::new()]);
        table.row(["longer".into(), "123456".into(), "f32".into()]);
        let mut out = anstream::StripStream::new(Vec::new());
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert_eq!(text, "NAME     BYTES  TYPE\na µ          1\nlonger  123456  f32\n");
    }

    #[test]
    fn lines_are_as_long_as_they_may_be() {
        let mut table = Table::new(&[("NAME", Align::Left), ("BYTES", Align::Right), ("FOR", Align::Left)]);
        table.row(["n".repeat(128), "1".into(), format!("{}z", "f".repeat(40))]);
        let mut out = anstream::StripStream::new(Vec::new());
        table.print_within(40, &mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert_eq!(text.lines().map(|line| line.chars().count()).max(), Some(40), "{text}");
        assert!(text.contains("n…n") && text.ends_with("z\n"), "{text}");
    }

    #[test]
    fn a_terminal_gets_nothing_that_it_obeys() {
        assert_eq!(plain("a µ \"x\" …"), "a µ \"x\" …");
        assert_eq!(plain("\x1b[2J\n\u{202e}a"), "\\u{1b}[2J\\n\\u{202e}a");
        let mut table = Table::new(&[("NAME", Align::Left)]);
        table.row(["\x1b]0;owned\x07".into()]);
        let mut out = Vec::new();
        table.print(&mut anstream::StripStream::new(&mut out)).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME\n\\u{1b}]0;owned\\u{7}\n");
    }
}
