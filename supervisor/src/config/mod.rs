//! Configuration in two stages: as typed (flags and a TOML file with the same names, flags win), and
//! ready to use.
//!
//! - [`flags`]: the command line; `file`: the file, with the places of its mistakes; `words`: what to write instead.
//! - [`settings`]: what may change while running.
//! - [`request`]: a `--device` as typed.
//! - [`sandbox`]: what is asked of the sandbox.
//! - [`device`]: a device ready to use: a request and what a survey found.
//! - [`live`]: what may change while a supervisor serves.
//! - [`tenants`]: who the tenants are and what each may have; can be read again while running;
//!   [`tenant_changes`]: what that changes.

pub mod device;
mod file;
pub mod flags;
pub mod live;
#[cfg(test)]
mod packaged_tests;
pub mod request;
pub mod sandbox;
pub mod settings;
pub mod tenant_changes;
pub mod tenants;
mod words;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

pub use device::DeviceConfig;
use file::File;
pub use flags::Flags;
pub use live::{DeviceSettings, Fixed};
pub use request::DeviceRequest;
pub use sandbox::SandboxSettings;
pub use settings::Settings;
pub use tenants::TenantRules;

use crate::limits::SOCKET_PATH_BYTES;

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not given anywhere.
    #[error(
        "--{0} is missing: give the flag or put `{0} = …` into the configuration file; --socket and --state-dir are needed"
    )]
    Missing(&'static str),
    /// A value that does not read.
    #[error("{name} = {value:?}: {why}")]
    Value {
        /// Flag or key.
        name: String,
        /// As given.
        value: String,
        /// What was expected.
        why: String,
    },
    /// A key that no setting has.
    #[error("{name}: no such setting{meant}")]
    Unknown {
        /// The key.
        name: String,
        /// What it could be.
        meant: String,
    },
    /// A device that cannot be had.
    #[error("device {name}: {why}")]
    Device {
        /// As asked for.
        name: String,
        /// What is missing, and what to do.
        why: String,
    },
    /// The file does not read.
    #[error("configuration file {path}: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Everything that is wrong, a line each.
    #[error("{}", .0.join("\n"))]
    Many(Vec<String>),
}

impl ConfigError {
    /// The key in the file whose value is wrong.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Value { name, .. } | Self::Unknown { name, .. } => Some(name),
            Self::Device { .. } => Some("device"),
            Self::Missing(_) | Self::File { .. } | Self::Many(_) => None,
        }
    }
}

/// Keeps what is right, and what is wrong apart.
fn kept<T>(wrong: &mut Vec<ConfigError>, outcome: Result<T, ConfigError>) -> Option<T> {
    outcome.map_err(|error| wrong.push(error)).ok()
}

pub(crate) fn bad(name: &str, value: &str, why: impl ToString) -> ConfigError {
    ConfigError::Value { name: name.to_owned(), value: value.to_owned(), why: why.to_string() }
}

/// Everything the supervisor needs to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Clients' socket.
    pub socket: PathBuf,
    /// Privileged socket.
    pub admin_socket: PathBuf,
    /// State directory.
    pub state_dir: PathBuf,
    /// Devices as asked for; none means every GPU there is, else the CPU.
    pub devices: Vec<DeviceRequest>,
    /// Prometheus endpoint.
    pub metrics: Option<std::net::SocketAddr>,
    /// What is asked of the sandbox.
    pub sandbox: SandboxSettings,
    /// What may change while running.
    pub settings: Settings,
    /// Of these, what flags and file say.
    pub given: Vec<(&'static str, String)>,
    /// What it was read by, to be read again.
    pub flags: Flags,
    /// The file it was read from, to be read again.
    pub file: Option<PathBuf>,
    /// Who the tenants are.
    pub tenants: TenantRules,
}

fn size(name: &str, value: &str) -> Result<u64, ConfigError> {
    match ByteSize::from_str(value).map(|size| size.as_u64()) {
        Ok(u64::MAX) => Err(bad(
            name,
            value,
            "more than any machine has: expected a size such as 256MiB, or for a quota \"unlimited\"",
        )),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(bad(name, value, "expected a size such as 256MiB, or a number of bytes")),
    }
}

fn duration(name: &str, value: &str) -> Result<Duration, ConfigError> {
    match humantime::parse_duration(value) {
        Ok(d) if !d.is_zero() => Ok(d),
        Ok(_) => Err(bad(name, value, "must be longer than zero")),
        Err(_) if value.parse::<u64>().is_ok() => Err(bad(name, value, words::expected_duration(value))),
        Err(e) => Err(bad(name, value, format!("{e}; expected a duration such as 500ms or 30s"))),
    }
}

fn given_twice(device: &str) -> ConfigError {
    bad("device", device, "given twice: give it more workers instead")
}

impl Config {
    /// Flags over the file over defaults. Everything that is wrong is told at once.
    pub fn resolve(flags: Flags) -> Result<Self, ConfigError> {
        let as_given = flags.clone();
        let mut file = match &flags.config {
            None => File::default(),
            Some(path) => File::read(path)?,
        };
        let mut wrong = Vec::new();
        let tenants = TenantRules::resolve(&file, &mut wrong);
        // A flag or the key of that name; the key's place is none of a flag's mistake.
        macro_rules! given {
            ($name:literal, $field:ident) => {{
                if flags.$field.is_some() {
                    file.places.forget($name);
                }
                flags.$field.or(file.$field.take())
            }};
        }
        let socket = given!("socket", socket);
        if socket.is_none() {
            wrong.push(ConfigError::Missing("socket"));
        }
        let socket = socket.unwrap_or_default();
        let admin_socket = given!("admin-socket", admin_socket).unwrap_or_else(|| {
            let mut path = socket.clone().into_os_string();
            path.push(".admin");
            path.into()
        });
        for (name, path) in [("socket", &socket), ("admin-socket", &admin_socket)] {
            if path.as_os_str().len() > SOCKET_PATH_BYTES {
                let why = format!("a socket's path may have {SOCKET_PATH_BYTES} bytes");
                wrong.push(bad(name, &path.display().to_string(), why));
            }
        }
        let state_dir = given!("state-dir", state_dir);
        if state_dir.is_none() {
            wrong.push(ConfigError::Missing("state-dir"));
        }
        if !flags.device.is_empty() {
            file.places.forget("device");
        }
        let devices = if flags.device.is_empty() { &file.device } else { &flags.device };
        let devices = requests(devices, &mut wrong);
        let metrics = given!("metrics", metrics).and_then(|text| {
            let address = text
                .parse()
                .map_err(|_| bad("metrics", &text, "expected IP:PORT, e.g. 127.0.0.1:9464 or [::1]:9464"));
            kept(&mut wrong, address)
        });
        if flags.sandbox_require.is_some() {
            file.places.forget("sandbox-require");
        }
        let require = flags.sandbox_require.map(sandbox::Names::Text).or(file.sandbox_require.take());
        let sandbox = SandboxSettings::given(
            given!("worker-uid", worker_uid),
            given!("worker-memory", worker_memory),
            require,
        );
        let sandbox = kept(&mut wrong, sandbox).unwrap_or_default();
        let values = [
            ("max-deadline", given!("max-deadline", max_deadline)),
            ("default-deadline", given!("default-deadline", default_deadline)),
            ("queue-calls", given!("queue-calls", queue_calls).map(|n| n.to_string())),
            ("queue-bytes", given!("queue-bytes", queue_bytes)),
            ("poll-us", given!("poll-us", poll_us).map(|n| n.to_string())),
            ("cancel-grace", given!("cancel-grace", cancel_grace)),
            ("overrun-limit", given!("overrun-limit", overrun_limit)),
            ("quarantine-after", given!("quarantine-after", quarantine_after).map(|n| n.to_string())),
            ("fault-budget", given!("fault-budget", fault_budget).map(|n| n.to_string())),
            ("metrics-of", given!("metrics-of", metrics_of)),
            ("kept-versions", given!("kept-versions", kept_versions).map(|n| n.to_string())),
            ("session-idle", given!("session-idle", session_idle)),
            ("session-grace", given!("session-grace", session_grace)),
        ];
        let given: Vec<_> = values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut settings = Settings::default();
        let before = wrong.len();
        for (name, value) in &given {
            kept(&mut wrong, settings.set(name, value));
        }
        if wrong.len() == before {
            let all = settings.give(&given).and_then(|()| settings.check());
            kept(&mut wrong, all);
        }
        if !wrong.is_empty() {
            return Err(ConfigError::Many(wrong.iter().map(|error| file.places.show(error)).collect()));
        }
        let (file, flags) = (as_given.config.clone(), as_given);
        Ok(Self {
            socket,
            admin_socket,
            state_dir: state_dir.unwrap_or_default(),
            devices,
            metrics,
            sandbox,
            settings,
            given,
            flags,
            file,
            tenants,
        })
    }
}

/// Devices as asked for. A mistake about a built-in device is known without a look at the machine.
fn requests(texts: &[String], wrong: &mut Vec<ConfigError>) -> Vec<DeviceRequest> {
    let mut requests: Vec<DeviceRequest> = Vec::new();
    for text in texts {
        let Some(request) = kept(wrong, text.parse::<DeviceRequest>()) else { continue };
        if requests.iter().any(|other| other.selector == request.selector) {
            wrong.push(given_twice(&request.selector.to_string()));
        }
        if matches!(request.selector, request::Selector::BuiltIn(..)) {
            kept(wrong, device::resolve(std::slice::from_ref(&request), &device::Surveys::new()));
        }
        requests.push(request);
    }
    requests
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn resolve(args: &[&str]) -> Result<Config, String> {
        let flags =
            Flags::try_parse_from([&["pappus-supervisor"], args].concat()).map_err(|e| e.to_string())?;
        Config::resolve(flags).map_err(|e| e.to_string())
    }

    fn refused(args: &[&str], words: &str) {
        let why = resolve(args).expect_err("must be refused");
        assert!(why.contains(words), "{why}");
    }

    const BASE: [&str; 4] = ["--socket", "/s", "--state-dir", "/d"];

    #[test]
    fn defaults_are_filled_in() {
        let config = resolve(&BASE).unwrap();
        assert_eq!(config.admin_socket, PathBuf::from("/s.admin"));
        assert_eq!(config.devices, []);
        assert_eq!(config.settings, Settings::default());
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let name = |bytes: usize| "x".repeat(bytes);
        let with = |socket: &str| resolve(&["--socket", socket, "--state-dir", "/d"]);
        assert!(with(&name(SOCKET_PATH_BYTES - ".admin".len())).is_ok());
        let why = with(&name(SOCKET_PATH_BYTES)).unwrap_err();
        assert!(why.contains("admin-socket") && why.contains("107 bytes"), "{why}");
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pappus.toml");
        let text = "socket = '/file'\nstate-dir = '/d'\ndevice = ['cpu:workers=3']\npoll-us = 7\nmax-deadline = '2s'";
        std::fs::write(&path, text).unwrap();
        let config = resolve(&["--config", path.to_str().unwrap(), "--poll-us", "9"]).unwrap();
        assert_eq!(
            (config.socket.to_str(), config.devices[0].text.as_str()),
            (Some("/file"), "cpu:workers=3")
        );
        assert_eq!((config.settings.poll_us, config.settings.default_deadline), (9, Duration::from_secs(2)));
        std::fs::write(&path, "sokcet = '/s'").unwrap();
        refused(&["--config", path.to_str().unwrap()], ":1:1: sokcet: no such setting; did you mean socket?");
    }

    #[test]
    fn each_mistake_is_named() {
        refused(&["--state-dir", "/d"], "--socket is missing");
        for (device, words) in [
            ("gpu", "knows the devices cpu"),
            ("cpu:workers=0", "workers must be 1 to"),
            ("cpu:wokers=1", "\"wokers=1\" is no setting"),
            ("cpu:memory=lots", "such as 256MiB"),
            ("cuda:0:lanes=99", "lanes must be 1 to 32"),
        ] {
            refused(&[&BASE[..], &["--device", device]].concat(), words);
        }
        refused(&[&BASE[..], &["--device", "cpu", "--device", "cpu"]].concat(), "given twice");
        refused(&[&BASE[..], &["--default-deadline", "1h"]].concat(), "exceed max-deadline");
        refused(&[&BASE[..], &["--metrics", "here"]].concat(), "metrics");
        refused(&[&BASE[..], &["--max-deadline", "60"]].concat(), "expected a duration: write \"60s\"");
    }

    #[test]
    fn all_mistakes_are_told_at_once_each_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pappus.toml");
        let text = "device = ['cpu:wokers=1', 'cpu:1']\nmax-deadline = '60'\npoll-us = 99999999\nmetrics = 'here'\n\
                    [tenants.acme]\nuid = 1\nwieght = 4\nclass = 'best'\n[tenants.b]\nuid = 1\ncalls = -1\n";
        std::fs::write(&path, text).unwrap();
        let why = resolve(&["--config", path.to_str().unwrap(), "--metrics", "there"]).unwrap_err();
        let at = |place: &str| format!("{}:{place}: ", path.display());
        for (place, words) in [
            ("1:10", "\"wokers=1\" is no setting"),
            ("2:16", "expected a duration: write \"60s\""),
            ("3:11", "at most"),
            ("7:10", "tenants.acme.wieght: no such setting; did you mean weight?"),
            ("8:9", "expected \"latency\", \"normal\" or \"batch\""),
            ("10:7", "it is tenant acme already"),
            ("11:9", "expected a number such as 100"),
        ] {
            let line = why.lines().find(|line| line.starts_with(&at(place)));
            assert!(line.is_some_and(|line| line.contains(words)), "{place} {words}: {why}");
        }
        // Neither of these is in the file.
        for words in ["--socket is missing", "--state-dir is missing", "metrics = \"there\""] {
            assert!(why.lines().any(|line| line.starts_with(words)), "{words}: {why}");
        }
        assert_eq!(why.lines().count(), 10, "{why}");
    }
}
