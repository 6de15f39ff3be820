//! The gateway's log on stderr: as text or JSON, and its level, which may change while it serves.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Changes which lines are written, and says which are.
static FILTER: OnceLock<reload::Handle<LevelFilter, tracing_subscriber::Registry>> = OnceLock::new();

/// Writes the log from now on, once in a process: lines of this level and above; each a JSON object if `is_json`.
pub fn begin(level: Level, is_json: bool) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match is_json {
        false => registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init(),
        true => registry
            .with(lines.json().flatten_event(true).with_current_span(false).with_span_list(false))
            .init(),
    }
    let _ = FILTER.set(handle);
}

/// Lines of this level and above are written from now on.
pub fn set_level(level: Level) {
    // The filter lives as long as the process.
    let change = |handle: &reload::Handle<_, _>| handle.modify(|filter| *filter = LevelFilter::from(level));
    let _ = FILTER.get().map(change);
}

/// Which lines are written now.
pub fn level() -> LevelFilter {
    LevelFilter::current()
}
