//! Draws a picture on a terminal.

use pappus_client::v1;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use super::picture::{Cell, Pane, Picture};
use super::view::View;
use crate::command::verdict::{praise, troubles};
use crate::table::{Align, plain};

/// What the keys do.
const KEYS: &str = "Tab 1-4 table   ← → sort   r reverse   / search   ↑ ↓ scroll   p pause   q end";

/// Title, verdict, the names of the tables, one table, and what the keys do.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    picture: &Picture,
    status: &v1::Status,
    failed: Option<&str>,
    view: &mut View,
) {
    let rows = [1, 1, 1].map(Constraint::Length);
    let parts = [&rows[..], &[Constraint::Fill(1), Constraint::Length(1)]].concat();
    let [title, health, tabs, table, foot] = *Layout::vertical(parts).split(frame.area()) else { return };
    let paused = if view.is_paused { "  PAUSED" } else { "" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(format!("{}{paused}", picture.title), bold), title);
    frame.render_widget(verdict(status, failed), health);
    let names = picture.panes.iter().enumerate().flat_map(|(at, pane)| {
        let style =
            if at == view.pane { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {} {} ", at + 1, pane.name), style), Span::raw(" ")]
    });
    frame.render_widget(Line::from_iter(names), tabs);
    let pane = &picture.panes[view.pane];
    // The heading takes a line.
    let shown = view.rows(picture, usize::from(table.height.saturating_sub(1)));
    frame.render_widget(rows_of(pane, &shown, view), table);
    let search = plain(&view.search);
    let words = match (view.is_typing, view.search.is_empty()) {
        (true, _) => format!("search: {search}_   Enter keeps it, Esc drops it"),
        (false, false) => format!("found: {search}   Esc shows all   {KEYS}"),
        (false, true) => KEYS.to_owned(),
    };
    frame.render_widget(Paragraph::new(words), foot);
}

/// That all is well, or the worst of what is not.
fn verdict(status: &v1::Status, failed: Option<&str>) -> Line<'static> {
    let colour = |colour| Style::new().fg(colour).add_modifier(Modifier::BOLD);
    if let Some(why) = failed {
        return Line::styled(format!("no newer picture: {}", plain(why)), colour(Color::Red));
    }
    let troubles = troubles(status);
    match troubles.first() {
        None => Line::styled(praise(status), colour(Color::Green)),
        Some(worst) => {
            let more = match troubles.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            Line::styled(format!("not well: {}: {}{more}", worst.what, worst.cure), colour(Color::Red))
        }
    }
}

fn rows_of<'a>(pane: &'a Pane, shown: &[&'a Vec<Cell>], view: &View) -> Table<'a> {
    let by = view.sorted_by(pane);
    let heading = pane.columns.iter().enumerate().map(|(at, (name, align))| {
        let mark = match (at == by, view.is_reversed()) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        Text::from(format!("{name}{mark}")).alignment(alignment(*align))
    });
    let style = Style::new().add_modifier(Modifier::BOLD);
    let heading = Row::new(heading.collect::<Vec<_>>()).style(style);
    let rows = shown.iter().map(|row| {
        let cells = row.iter().zip(&pane.columns);
        Row::new(cells.map(|(cell, (_, align))| Text::from(&*cell.text).alignment(alignment(*align))))
    });
    let widths = pane.columns.iter().enumerate().map(|(at, (name, _))| {
        let cells = shown.iter().map(|row| row[at].text.chars().count());
        let mark = usize::from(at == by);
        let widest = cells.chain([name.chars().count() + mark]).max().unwrap_or(0);
        Constraint::Length(u16::try_from(widest).unwrap_or(u16::MAX))
    });
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>()).header(heading).column_spacing(2)
}

fn alignment(align: Align) -> Alignment {
    match align {
        Align::Left => Alignment::Left,
        Align::Right => Alignment::Right,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::picture::tests::sample;
    use super::*;

    /// What is drawn, line by line.
    fn drawn(width: u16, height: u16, failed: Option<&str>, view: &mut View) -> Vec<String> {
        let now = sample(Instant::now(), 100);
        let picture = Picture::of(&now, None);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &picture, &now.status, failed, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
        buffer.content.chunks(usize::from(width)).map(|row| line(row).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_has_title_verdict_tables_and_keys() {
        let lines = drawn(110, 8, None, &mut View { pane: 3, ..View::default() });
        assert!(lines[0].starts_with("pappus ") && lines[1].starts_with("all is well"), "{lines:?}");
        assert!(lines[2].contains("1 devices") && lines[2].contains("4 functions"), "{lines:?}");
        assert!(lines[3].starts_with("FUNCTION") && lines[3].contains("DEVICE TIME▼"), "{lines:?}");
        assert!(lines[4].starts_with("large") && lines[5].starts_with("small"), "{lines:?}");
        assert!(lines[7].contains("q end") && !lines.concat().contains('\x1b'), "{lines:?}");
    }

    #[test]
    fn any_terminal_is_large_enough_not_to_fail() {
        for (width, height) in [(1, 1), (3, 2), (20, 4), (500, 100)] {
            drawn(width, height, None, &mut View::default());
        }
        let lines = drawn(
            60,
            6,
            Some("gone\n\x1b"),
            &mut View { is_typing: true, search: "x".into(), ..View::default() },
        );
        assert!(
            lines[1].starts_with("no newer picture: gone\\n\\u{1b}") && lines[5].starts_with("search: x_"),
            "{lines:?}"
        );
    }
}
