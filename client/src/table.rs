//! Tables of text: columns as wide as they need to be, numbers to the right. Own code because thousands of rows
//! must not cost a layout each, and nothing is ever wrapped: scripts may cut at the columns.

use std::io::Write;

use anstyle::Style;

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
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// Prints heading and rows.
    pub(crate) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let bold = Style::new().bold();
        let heading: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        writeln!(out, "{bold}{}{bold:#}", self.line(&heading, &widths))?;
        for row in &self.rows {
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            writeln!(out, "{}", self.line(&row, &widths))?;
        }
        Ok(())
    }

    fn line(&self, cells: &[&str], widths: &[usize]) -> String {
        let cells = cells.iter().zip(widths).zip(&self.columns);
        let padded: Vec<String> = cells
            .map(|((cell, width), (_, align))| match align {
                Align::Left => format!("{cell:width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    }
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
}
