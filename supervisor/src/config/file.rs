//! The configuration file: the flags' names, and the tenants. It is read from a regular file of bounded length; every key has a
//! place in it, and all mistakes are told at once, each with its place.

use std::collections::{BTreeMap, HashMap};
use std::fs::File as OpenFile;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::sandbox::Names;
use super::words::{did_you_mean, expected_duration, expected_size};
use crate::limits::MAX_CONFIG_BYTES;

/// What it says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct File {
    pub(super) socket: Option<PathBuf>,
    pub(super) admin_socket: Option<PathBuf>,
    pub(super) state_dir: Option<PathBuf>,
    #[serde(default)]
    pub(super) device: Vec<String>,
    pub(super) metrics: Option<String>,
    pub(super) sandbox_require: Option<Names>,
    pub(super) worker_uid: Option<u32>,
    pub(super) worker_memory: Option<String>,
    pub(super) queue_calls: Option<u64>,
    pub(super) queue_bytes: Option<String>,
    pub(super) default_deadline: Option<String>,
    pub(super) max_deadline: Option<String>,
    pub(super) poll_us: Option<u32>,
    pub(super) cancel_grace: Option<String>,
    pub(super) overrun_limit: Option<String>,
    pub(super) quarantine_after: Option<u32>,
    pub(super) fault_budget: Option<u32>,
    pub(super) metrics_of: Option<String>,
    pub(super) kept_versions: Option<u32>,
    pub(super) session_idle: Option<String>,
    pub(super) session_grace: Option<String>,
    pub(super) unknown_tenants: Option<String>,
    #[serde(default)]
    pub(super) gateways: Vec<u32>,
    #[serde(default)]
    pub(super) tenant_defaults: toml::Table,
    #[serde(default)]
    pub(super) tenants: BTreeMap<String, toml::Table>,
    #[serde(skip)]
    pub(super) places: Places,
}

/// What belongs behind a key.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A text, such as this one.
    Text(&'static str),
    Duration,
    Size,
    /// A whole number of at most so much.
    Number(u64),
    /// A text or a list of texts.
    Names,
    /// A list of texts.
    Texts,
    /// A list of uids.
    Uids,
    Table,
    /// Tables by name.
    Tables,
}

/// Every key of the file.
const KEYS: [(&str, Kind); 25] = [
    ("socket", Kind::Text("/run/pappus/pappus.sock")),
    ("admin-socket", Kind::Text("/run/pappus/pappus.sock.admin")),
    ("state-dir", Kind::Text("/var/lib/pappus")),
    ("device", Kind::Texts),
    ("metrics", Kind::Text("127.0.0.1:9464")),
    ("sandbox-require", Kind::Names),
    ("worker-uid", Kind::Number(u32::MAX as u64)),
    ("worker-memory", Kind::Size),
    ("queue-calls", Kind::Number(i64::MAX as u64)),
    ("queue-bytes", Kind::Size),
    ("default-deadline", Kind::Duration),
    ("max-deadline", Kind::Duration),
    ("poll-us", Kind::Number(u32::MAX as u64)),
    ("cancel-grace", Kind::Duration),
    ("overrun-limit", Kind::Duration),
    ("quarantine-after", Kind::Number(u32::MAX as u64)),
    ("fault-budget", Kind::Number(u32::MAX as u64)),
    ("metrics-of", Kind::Text("tenants")),
    ("kept-versions", Kind::Number(u32::MAX as u64)),
    ("session-idle", Kind::Duration),
    ("session-grace", Kind::Duration),
    ("unknown-tenants", Kind::Text("refuse")),
    ("gateways", Kind::Uids),
    ("tenant-defaults", Kind::Table),
    ("tenants", Kind::Tables),
];

impl File {
    /// Reads it.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_regular(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), why: error.to_string() })?;
        Self::parse(path, &text)
    }

    /// The file of this text.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        // What an editor of Windows puts in front of it says nothing.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut places = Places { path: path.to_owned(), lines: lines(text), of: HashMap::new() };
        let mut wrong: Vec<_> = errors.iter().map(|error| places.mistake(error)).collect();
        if wrong.is_empty() {
            let mut found = places.look_at(table.get_ref());
            found.sort_unstable();
            wrong = found.into_iter().map(|(at, what)| places.at(at, &what)).collect();
        }
        if !wrong.is_empty() {
            return Err(ConfigError::Many(wrong));
        }
        let file = toml::from_str(text).map_err(|error| ConfigError::Many(vec![places.mistake(&error)]))?;
        Ok(Self { places, ..file })
    }
}

/// Where the keys of a file are.
#[derive(Debug, Default)]
pub(super) struct Places {
    path: PathBuf,
    /// Where each line begins, and the line.
    lines: Vec<(usize, String)>,
    /// Where the value of a key is that has this name in messages.
    of: HashMap<String, usize>,
}

impl Places {
    /// A key's value does not count: a flag says otherwise.
    pub(super) fn forget(&mut self, name: &str) {
        self.of.remove(name);
    }

    /// What is wrong, with its place if that is in the file.
    pub(super) fn show(&self, error: &ConfigError) -> String {
        match error.key().and_then(|key| self.of.get(key)) {
            Some(at) => self.at(*at, &error.to_string()),
            None => error.to_string(),
        }
    }

    fn at(&self, byte: usize, what: &str) -> String {
        let nth = self.lines.partition_point(|(begin, _)| *begin <= byte).max(1);
        let column = self.lines.get(nth - 1).map_or(1, |(begin, line)| {
            1 + line.char_indices().take_while(|(at, _)| begin + at < byte).count()
        });
        format!("{}:{nth}:{column}: {what}", self.path.display())
    }

    fn mistake(&self, error: &toml::de::Error) -> String {
        let at = error.span().map_or(0, |span| span.start);
        self.at(at, &error.message().replace('\n', "; "))
    }

    /// Remembers where everything is; what of it is none of the keys, or of another kind.
    fn look_at(&mut self, table: &DeTable<'_>) -> Vec<(usize, String)> {
        let mut wrong = Vec::new();
        for (key, value) in table {
            let name = &**key.get_ref();
            self.of.insert(name.to_owned(), value.span().start);
            let Some((_, kind)) = KEYS.iter().find(|(known, _)| *known == name) else {
                let known = did_you_mean(name, KEYS.map(|(known, _)| known).into_iter());
                wrong.push((key.span().start, format!("{name}: no such setting{known}")));
                continue;
            };
            let mistakes = kind.mistakes(value);
            let given = shown(value.get_ref());
            wrong.extend(mistakes.into_iter().map(|(at, why)| (at, format!("{name} = {given}: {why}"))));
            let Some(inner) = value.get_ref().as_table() else { continue };
            for (key, value) in inner {
                let name = format!("{name}.{}", key.get_ref());
                self.of.insert(name.clone(), value.span().start);
                for (key, value) in value.get_ref().as_table().into_iter().flatten() {
                    self.of.insert(format!("{name}.{}", key.get_ref()), value.span().start);
                }
            }
        }
        wrong
    }
}

impl Kind {
    /// Where a value is not of this kind, and what it should be.
    fn mistakes(self, value: &Spanned<DeValue<'_>>) -> Vec<(usize, String)> {
        let one = |why: Option<String>| -> Vec<(usize, String)> {
            why.into_iter().map(|why| (value.span().start, why)).collect()
        };
        let each = |of: fn(&DeValue<'_>) -> Option<String>| match value.get_ref().as_array() {
            Some(list) => {
                list.iter().filter_map(|one| Some((one.span().start, of(one.get_ref())?))).collect()
            }
            None => one(of(value.get_ref())
                .or_else(|| Some(format!("expected a list: write [{}]", shown(value.get_ref()))))),
        };
        match (self, value.get_ref()) {
            (Self::Text(_) | Self::Duration | Self::Size | Self::Names, DeValue::String(_)) => Vec::new(),
            (Self::Text(such), _) => one(Some(format!("expected a text in quotes, such as {such:?}"))),
            (Self::Duration, other) => one(Some(expected_duration(&plain(other)))),
            (Self::Size, other) => one(Some(expected_size(&plain(other)))),
            (Self::Number(most), number) => one(not_a_number(number, most)),
            (Self::Names | Self::Texts, _) => each(not_a_text),
            (Self::Uids, _) => each(|uid| not_a_number(uid, u32::MAX.into())),
            (Self::Table, other) => {
                one((!other.is_table()).then(|| "expected a table, such as [tenant-defaults]".to_owned()))
            }
            (Self::Tables, DeValue::Table(tables)) => {
                let others = tables.iter().filter(|(_, value)| !value.get_ref().is_table());
                let why = |name: &str| format!("expected a table for each tenant: write [tenants.{name}]");
                others.map(|(name, value)| (value.span().start, why(name.get_ref()))).collect()
            }
            (Self::Tables, _) => {
                one(Some("expected a table for each tenant, such as [tenants.acme]".to_owned()))
            }
        }
    }
}

fn not_a_text(value: &DeValue<'_>) -> Option<String> {
    (!value.is_str()).then(|| "expected texts in quotes, such as [\"a\", \"b\"]".to_owned())
}

fn not_a_number(value: &DeValue<'_>, most: u64) -> Option<String> {
    let parsed = |text: &str, radix| u64::from_str_radix(text, radix).ok().filter(|number| *number <= most);
    match value {
        DeValue::Integer(number) if parsed(number.as_str(), number.radix()).is_some() => None,
        DeValue::String(text) if parsed(text, 10).is_some() => Some(format!("write {text} without quotes")),
        _ => Some(format!("expected a whole number of at most {most}")),
    }
}

/// A value as it could stand in the file.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        other => plain(other),
    }
}

/// The text of a value, without quotes.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Array(_) => "[…]".to_owned(),
        DeValue::Table(_) => "{…}".to_owned(),
        DeValue::Datetime(moment) => moment.to_string(),
    }
}

fn lines(text: &str) -> Vec<(usize, String)> {
    let mut begin = 0;
    let line = |line: &str| {
        let at = begin;
        begin += line.len();
        (at, line.to_owned())
    };
    text.split_inclusive('\n').map(line).collect()
}

/// The text of a regular file of bounded length. Neither a pipe that nobody writes to nor a device without an end is waited for.
fn read_regular(path: &Path) -> std::io::Result<String> {
    let invalid = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = OpenFile::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(invalid("it is no regular file: give a file that can be read again".to_owned()));
    }
    let mut text = String::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_CONFIG_BYTES {
        true => Err(invalid(format!("it is longer than {} MiB", MAX_CONFIG_BYTES >> 20))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let why = File::parse(Path::new("p.toml"), text).unwrap_err().to_string();
        why.lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_mistake_is_told_with_its_place_and_what_to_write() {
        let text = "sokcet = '/s'\nmax-deadline = 60\n  queue-bytes = 268435456\npoll-us = '50'\ndevice = 'cpu'\n\
                    gateways = [33, 'www']\nmetrics = 9464\nfault-budget = -1\ntenants = 7\noverrun-limit = 1.5\n";
        assert_eq!(
            wrong(text),
            [
                "p.toml:1:1: sokcet: no such setting; did you mean socket?",
                "p.toml:2:16: max-deadline = 60: expected a duration: write \"60s\"",
                "p.toml:3:17: queue-bytes = 268435456: expected a size: write \"256MiB\"",
                "p.toml:4:11: poll-us = \"50\": write 50 without quotes",
                "p.toml:5:10: device = \"cpu\": expected a list: write [\"cpu\"]",
                "p.toml:6:17: gateways = […]: expected a whole number of at most 4294967295",
                "p.toml:7:11: metrics = 9464: expected a text in quotes, such as \"127.0.0.1:9464\"",
                "p.toml:8:16: fault-budget = -1: expected a whole number of at most 4294967295",
                "p.toml:9:11: tenants = 7: expected a table for each tenant, such as [tenants.acme]",
                "p.toml:10:17: overrun-limit = 1.5: expected a duration in quotes, such as \"500ms\" or \"30s\"",
            ]
        );
    }

    #[test]
    fn what_does_not_parse_is_told_with_its_place() {
        assert!(wrong("socket = '/s'\nstate-dir = /d\n")[0].starts_with("p.toml:2:13: "));
        assert!(wrong("\u{feff}sokcet = '/s'")[0].starts_with("p.toml:1:1: sokcet"));
        assert!(wrong("[tenants.a]\nuid = 1\nuid = 2\n")[0].starts_with("p.toml:3:1: "));
        let several = wrong("socket = \nmetrics = \n");
        assert!(several.len() >= 2 && several[1].starts_with("p.toml:2:"), "{several:?}");
    }

    #[test]
    fn only_a_regular_file_of_bounded_length_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let why = |path: &Path| File::read(path).unwrap_err().to_string();
        assert!(why(Path::new("/dev/zero")).contains("no regular file"));
        assert!(why(dir.path()).contains("no regular file"));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(why(&pipe).contains("no regular file"), "nobody writes to it");
        let long = dir.path().join("long");
        OpenFile::create(&long).unwrap().set_len(1 << 40).unwrap();
        assert!(why(&long).contains("longer than 16 MiB"));
        // The control: a link to a file of just that length.
        let file = dir.path().join("file");
        std::fs::write(&file, " ".repeat(MAX_CONFIG_BYTES as usize)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(File::read(&link).is_ok());
    }
}
