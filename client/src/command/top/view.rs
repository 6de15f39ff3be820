//! What of a picture is shown, and what a key changes. Pure: keys in, rows out.
//!
//! ```text
//! watching ── / ──► typing a search ── Enter: keeps it, Esc: drops it ──► watching
//! ```

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::picture::{Cell, Pane, Picture, sorted};

/// The longest search, in characters.
const SEARCH_CHARS: usize = 128;
/// Rows that a page key moves by.
const PAGE: usize = 10;

/// How one table is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sorting {
    /// A column; the table's own choice where none was made.
    by: Option<usize>,
    pub(super) is_reversed: bool,
}

/// What is looked at, and how.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) pane: usize,
    pub(super) sortings: [Sorting; 4],
    /// The first row that is shown.
    pub(super) top: usize,
    /// Rows must hold this, in whatever case.
    pub(super) search: String,
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    GoOn,
    End,
}

impl View {
    /// Does what a key asks for.
    pub(super) fn press(&mut self, key: KeyEvent, picture: &Picture) -> Step {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Step::End } else { Step::GoOn };
        }
        if self.is_typing {
            self.type_in(key.code);
            return Step::GoOn;
        }
        let pane = &picture.panes[self.pane];
        let (count, columns) = (picture.panes.len(), pane.columns.len());
        let by = self.sorted_by(pane);
        match key.code {
            KeyCode::Char('q') => return Step::End,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.search.clear(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r') => self.sortings[self.pane].is_reversed ^= true,
            KeyCode::Char(digit @ '1'..='4') => self.turn_to(digit as usize - '1' as usize),
            KeyCode::Tab => self.turn_to((self.pane + 1) % count),
            KeyCode::BackTab => self.turn_to((self.pane + count - 1) % count),
            KeyCode::Right => self.sort((by + 1) % columns),
            KeyCode::Left => self.sort((by + columns - 1) % columns),
            KeyCode::Down | KeyCode::Char('j') => self.top += 1,
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top += PAGE,
            KeyCode::PageUp => self.top = self.top.saturating_sub(PAGE),
            KeyCode::Home => self.top = 0,
            _ => {}
        }
        Step::GoOn
    }

    fn type_in(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.search) = (false, String::new()),
            KeyCode::Backspace => drop(self.search.pop()),
            KeyCode::Char(c) if self.search.chars().count() < SEARCH_CHARS => self.search.push(c),
            _ => {}
        }
        self.top = 0;
    }

    fn turn_to(&mut self, pane: usize) {
        (self.pane, self.top) = (pane, 0);
    }

    fn sort(&mut self, by: usize) {
        self.sortings[self.pane].by = Some(by);
    }

    /// The column by which a table is sorted.
    pub(super) fn sorted_by(&self, pane: &Pane) -> usize {
        self.sortings[self.pane].by.unwrap_or(pane.sorted_by)
    }

    /// True if the table on show is sorted the other way round.
    pub(super) fn is_reversed(&self) -> bool {
        self.sortings[self.pane].is_reversed
    }

    /// The rows of the table on show, from the first to the last that fits. Never beyond the last row.
    pub(super) fn rows<'p>(&mut self, picture: &'p Picture, fit: usize) -> Vec<&'p Vec<Cell>> {
        let pane = &picture.panes[self.pane];
        let search = self.search.to_lowercase();
        let found = |row: &&Vec<Cell>| row.iter().any(|cell| cell.text.to_lowercase().contains(&search));
        let all = sorted(&pane.rows, self.sorted_by(pane), self.is_reversed());
        let all: Vec<_> = all.into_iter().filter(found).collect();
        self.top = self.top.min(all.len().saturating_sub(fit));
        all.into_iter().skip(self.top).take(fit).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::picture::tests::sample;
    use super::*;

    fn press(view: &mut View, picture: &Picture, keys: &[KeyCode]) -> Step {
        let steps = keys.iter().map(|code| view.press(KeyEvent::new(*code, KeyModifiers::NONE), picture));
        steps.last().unwrap()
    }

    fn first(view: &mut View, picture: &Picture) -> Vec<String> {
        view.rows(picture, 9).iter().map(|row| row[0].text.clone()).collect()
    }

    #[test]
    fn keys_sort_search_and_turn() {
        let picture = Picture::of(&sample(Instant::now(), 100), None);
        let mut view = View::default();
        assert_eq!(first(&mut view, &picture), ["cpu"]);
        press(&mut view, &picture, &[KeyCode::Char('4')]);
        assert_eq!(first(&mut view, &picture), ["large", "small"]);
        press(&mut view, &picture, &[KeyCode::Char('r')]);
        assert_eq!(first(&mut view, &picture), ["small", "large"]);
        // Column by column, around the end: to the name of the function.
        press(&mut view, &picture, &[KeyCode::Char('r'), KeyCode::Right, KeyCode::Right, KeyCode::Right]);
        assert_eq!(first(&mut view, &picture), ["large", "small"]);
        press(&mut view, &picture, &[KeyCode::Char('r')]);
        assert_eq!(first(&mut view, &picture), ["small", "large"]);
        press(&mut view, &picture, &[KeyCode::Char('/'), KeyCode::Char('L'), KeyCode::Char('A')]);
        assert_eq!(first(&mut view, &picture), ["large"]);
        // A letter that is a command otherwise.
        assert_eq!(press(&mut view, &picture, &[KeyCode::Char('q')]), Step::GoOn);
        assert!(first(&mut view, &picture).is_empty());
        press(&mut view, &picture, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!(first(&mut view, &picture), ["large"]);
        press(&mut view, &picture, &[KeyCode::Esc]);
        assert_eq!(first(&mut view, &picture).len(), 2);
        press(&mut view, &picture, &[KeyCode::Tab]);
        assert_eq!((view.pane, first(&mut view, &picture)), (0, vec!["cpu".to_owned()]));
        press(&mut view, &picture, &[KeyCode::BackTab, KeyCode::BackTab]);
        assert_eq!(view.pane, 2);
        assert_eq!(press(&mut view, &picture, &[KeyCode::Char('q')]), Step::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(interrupt, &picture), Step::End);
    }

    #[test]
    fn no_row_is_beyond_the_last() {
        let picture = Picture::of(&sample(Instant::now(), 1), None);
        let mut view = View { pane: 3, ..View::default() };
        press(&mut view, &picture, &[KeyCode::PageDown]);
        assert_eq!(view.rows(&picture, 1)[0][0].text, "small");
        press(&mut view, &picture, &[KeyCode::PageUp]);
        assert_eq!(view.rows(&picture, 1)[0][0].text, "large");
        assert!(view.rows(&picture, 0).is_empty());
    }
}
