//! The supervisor's own log, of which no tenant can fill more than a share: so many lines of each place in the code for
//! each tenant in a while. The next line says how many were left out before it.
//!
//! Whose line it is say its fields `tenant`, `caller`, `owner` or `uid`; lines without them share one budget for each
//! place.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::IsTerminal;
use std::sync::OnceLock;

use pappus_protocol::now_ns;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Json, JsonFields, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::defences::Defence;
use crate::metrics;
use crate::sync::{OrderedMutex, rank};

/// Changes which lines are written.
static SET_LEVEL: OnceLock<Box<dyn Fn(Level) + Send + Sync>> = OnceLock::new();

/// How lines are written: the variable `PAPPUS_LOG_FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// Each line a JSON object, for programs.
    Json,
}

/// Writes the log to stderr from now on, once in a process: lines of this level and above.
pub fn begin(level: Level, format: Format) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        Format::Text => {
            let text = Limited::new(tracing_subscriber::fmt::format(), false);
            registry.with(lines.with_ansi(std::io::stderr().is_terminal()).event_format(text)).init();
        }
        Format::Json => {
            let json = Limited::new(json_lines(), true);
            registry.with(lines.with_ansi(false).fmt_fields(JsonFields::new()).event_format(json)).init();
        }
    }
    let _ = SET_LEVEL.set(Box::new(move |level| {
        // It lives as long as the process.
        let _ = handle.modify(|filter| *filter = LevelFilter::from(level));
    }));
}

/// Lines of this level and above are written from now on.
pub fn set_level(level: Level) {
    SET_LEVEL.get().iter().for_each(|set| set(level));
}

/// Lines as flat JSON objects: `timestamp`, `level`, `target`, `message`, and the fields of the line.
fn json_lines() -> tracing_subscriber::fmt::format::Format<Json> {
    tracing_subscriber::fmt::format()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
}

/// The target of lines about what tenants change.
pub const AUDIT: &str = "audit";
/// Fields that name a tenant.
const TENANT_FIELDS: [&str; 4] = ["tenant", "caller", "owner", "uid"];
/// How long lines are counted together.
const PERIOD_NS: u64 = 10_000_000_000;
/// Lines of one place for one tenant in that time.
const LINES: u64 = 20;
/// The same for the audit log, whose lines an operator may need one by one.
const AUDIT_LINES: u64 = 200;
/// Bytes of a line.
const LINE_BYTES: usize = 8 << 10;
/// Budgets that are remembered.
const MAX_BUDGETS: usize = 4096;

/// A place in the code, and a tenant by a hash.
type Key = (Identifier, u64);

#[derive(Debug, Default, Clone, Copy)]
struct Budget {
    period: u64,
    lines: u64,
    left_out: u64,
}

impl Budget {
    /// Asks for one more line: the number of lines left out before it, or none if it must be left out, too.
    fn allow(&mut self, period: u64, most: u64) -> Option<u64> {
        if self.period != period {
            (self.period, self.lines) = (period, 0);
        }
        self.lines += 1;
        match self.lines <= most {
            true => Some(std::mem::take(&mut self.left_out)),
            false => {
                self.left_out += 1;
                None
            }
        }
    }
}

/// Lines as `F` writes them, as far as their budgets go.
#[derive(Debug)]
pub struct Limited<F> {
    format: F,
    /// True if the format writes each line as a JSON object.
    is_json: bool,
    budgets: OrderedMutex<HashMap<Key, Budget>, { rank::LOG }>,
}

impl<F> Limited<F> {
    /// Limits what `format` writes: JSON objects, or text.
    pub fn new(format: F, is_json: bool) -> Self {
        Self { format, is_json, budgets: OrderedMutex::default() }
    }

    fn allow(&self, event: &Event<'_>) -> Option<u64> {
        if Defence::Logs.is_off() {
            return Some(0);
        }
        let mut tenant = TenantHash::default();
        event.record(&mut tenant);
        let most = if event.metadata().target() == AUDIT { AUDIT_LINES } else { LINES };
        let period = now_ns() / PERIOD_NS + 1;
        let mut budgets = self.budgets.lock();
        if budgets.len() >= MAX_BUDGETS {
            budgets.retain(|_, budget| budget.period == period);
        }
        if budgets.len() >= MAX_BUDGETS {
            // More tenants than this write at once: they share what is left.
            tenant.0 = 0;
        }
        budgets.entry((event.metadata().callsite(), tenant.0)).or_default().allow(period, most)
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match *event.metadata().level() {
            Level::ERROR => metrics::log_line("error"),
            Level::WARN => metrics::log_line("warn"),
            _ => {}
        }
        let Some(left_out) = self.allow(event) else { return Ok(()) };
        // With colours it is for a terminal, which keeps nothing, and is written as it is.
        if left_out == 0 && writer.has_ansi_escapes() {
            return self.format.format_event(context, writer, event);
        }
        let mut cut = Cut::default();
        self.format.format_event(context, Writer::new(&mut cut), event)?;
        let Cut { line, over_bytes } = cut;
        if self.is_json {
            return write_json(&mut writer, &line, over_bytes, left_out);
        }
        writer.write_str(line.trim_end())?;
        if over_bytes > 0 {
            write!(writer, "… cut_bytes={over_bytes}")?;
        }
        if left_out > 0 {
            write!(writer, " left_out={left_out}")?;
        }
        writeln!(writer)
    }
}

/// A line that is a JSON object, still one where something of it or of others before is left out.
fn write_json(writer: &mut Writer<'_>, line: &str, over_bytes: usize, left_out: u64) -> fmt::Result {
    match (line.trim_end().strip_suffix('}'), over_bytes, left_out) {
        (Some(open), 0, 1..) => writeln!(writer, "{open},\"left_out\":{left_out}}}"),
        (_, 0, _) => writer.write_str(line),
        // What is left of it is no JSON any more: it becomes a text in another object.
        _ => {
            let cut = serde_json::Value::from(line);
            writeln!(writer, "{{\"cut\":{cut},\"cut_bytes\":{over_bytes},\"left_out\":{left_out}}}")
        }
    }
}

/// A line, as far as it may go: what tenants name may be as long as a request.
#[derive(Debug, Default)]
struct Cut {
    line: String,
    /// What did not fit.
    over_bytes: usize,
}

impl fmt::Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = match self.over_bytes {
            0 if Defence::Logs.is_off() => text.len(),
            0 => LINE_BYTES - self.line.len(),
            _ => 0,
        };
        let fits = text.floor_char_boundary(room.min(text.len()));
        self.line.push_str(&text[..fits]);
        self.over_bytes += text.len() - fits;
        Ok(())
    }
}

/// The tenant that a line is about, as a hash of its fields; 0 without any.
#[derive(Default)]
struct TenantHash(u64);

impl TenantHash {
    fn add(&mut self, field: &Field, value: impl Hash) {
        if TENANT_FIELDS.contains(&field.name()) {
            let mut hasher = DefaultHasher::new();
            (self.0, field.name(), value).hash(&mut hasher);
            self.0 = hasher.finish();
        }
    }
}

impl Visit for TenantHash {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if TENANT_FIELDS.contains(&field.name()) {
            self.add(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use tracing::Dispatch;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<OrderedMutex<Vec<u8>, { rank::LOG }>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written of lines in which each of these tenants floods the log.
    fn written(tenants: &[&str], lines: usize) -> String {
        let text = |writer: Lines| {
            let lines = Limited::new(tracing_subscriber::fmt::format(), false);
            let text = tracing_subscriber::fmt().with_ansi(false).event_format(lines);
            text.with_writer(move || writer.clone()).finish().into()
        };
        written_as(text, tenants, lines)
    }

    /// The same, as JSON.
    fn written_as_json(tenants: &[&str], lines: usize) -> Vec<serde_json::Value> {
        let json = |writer: Lines| {
            let json = tracing_subscriber::fmt().with_ansi(false).fmt_fields(JsonFields::new());
            let json = json.event_format(Limited::new(json_lines(), true));
            json.with_writer(move || writer.clone()).finish().into()
        };
        let log = written_as(json, tenants, lines);
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn written_as(how: impl FnOnce(Lines) -> Dispatch, tenants: &[&str], lines: usize) -> String {
        let out = Lines::default();
        tracing::dispatcher::with_default(&how(out.clone()), || {
            for nth in 0..lines {
                for tenant in tenants {
                    tracing::warn!(tenant, nth, "it failed");
                }
            }
            tracing::warn!(tenant = "quiet", "it failed elsewhere");
        });
        let bytes = out.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_tenant_that_floods_the_log_takes_no_lines_from_others() {
        let log = written(&["a", "b"], 500);
        let of = |tenant: &str| {
            log.lines().filter(|line| line.contains(&format!("tenant=\"{tenant}\""))).count() as u64
        };
        // A period may end in between.
        assert!((LINES..=2 * LINES).contains(&of("a")), "{}", of("a"));
        assert!((LINES..=2 * LINES).contains(&of("b")));
        assert_eq!(of("quiet"), 1);
        // The control: few lines are all written.
        assert_eq!(written(&["a"], 3).lines().count(), 4);
    }

    #[test]
    fn a_line_that_a_tenant_makes_long_is_cut() {
        let log = written(&["\u{1b}é".repeat(100_000).as_str()], 1);
        let line = log.lines().next().unwrap();
        assert!(line.len() < LINE_BYTES + 100 && line.contains("… cut_bytes="), "{}", line.len());
        assert_eq!(log.lines().count(), 2, "the next one is whole");
        // The control: one of a usual length is.
        assert!(!written(&["a"], 1).contains("cut_bytes"));
    }

    #[test]
    fn every_line_of_json_is_an_object_also_one_that_is_cut() {
        let lines = written_as_json(&["a\"\n{", &"\u{1b}\"".repeat(100_000)], 1);
        let of = |at: usize, field: &str| lines[at][field].clone();
        assert_eq!((of(0, "tenant"), of(0, "nth")), ("a\"\n{".into(), 0.into()));
        assert_eq!((of(0, "message"), of(0, "level")), ("it failed".into(), "WARN".into()));
        assert!(of(1, "cut_bytes").as_u64() > Some(100_000));
        assert!(of(1, "cut").as_str().is_some_and(|cut| cut.starts_with("{\"timestamp\"")));
        assert_eq!(of(2, "tenant"), "quiet");
        let mut text = String::new();
        write_json(&mut Writer::new(&mut text), "{\"a\":1}\n", 0, 7).unwrap();
        assert_eq!(text, "{\"a\":1,\"left_out\":7}\n");
    }

    #[test]
    fn the_next_line_says_how_many_were_left_out() {
        let mut budget = Budget::default();
        let written = (0..LINES + 30).filter_map(|_| budget.allow(1, LINES)).collect::<Vec<_>>();
        assert_eq!(written, [0; LINES as usize]);
        assert_eq!((budget.allow(2, LINES), budget.allow(2, LINES)), (Some(30), Some(0)));
    }
}
