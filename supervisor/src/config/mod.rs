//! Configuration in two stages: as typed (flags and a TOML file with the same names, flags win), and
//! ready to use.
//!
//! - [`flags`]: the command line and the file.
//! - [`settings`]: what may change while running.
//! - [`request`]: a `--device` as typed.
//! - [`sandbox`]: what is asked of the sandbox.
//! - [`device`]: a device ready to use: a request and what a survey found.
//! - [`live`]: what may change of it while it serves.
//! - [`tenants`]: who the tenants are and what each may have; can be read again while running;
//!   [`tenant_changes`]: what that changes.

pub mod device;
pub mod flags;
pub mod live;
#[cfg(test)]
mod packaged_tests;
pub mod request;
pub mod sandbox;
pub mod settings;
pub mod tenant_changes;
pub mod tenants;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

pub use device::DeviceConfig;
use flags::File;
pub use flags::Flags;
pub use live::{DeviceSettings, Fixed};
pub use request::DeviceRequest;
pub use sandbox::SandboxSettings;
pub use settings::Settings;
pub use tenants::TenantRules;

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
    #[error("{name}: no such setting; there are {known}")]
    Unknown {
        /// The key.
        name: String,
        /// What it could be.
        known: String,
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
        Err(e) => Err(bad(name, value, format!("{e}; expected a duration such as 500ms or 30s"))),
    }
}

fn given_twice(device: &str) -> ConfigError {
    bad("device", device, "given twice: give it more workers instead")
}

impl Config {
    /// Flags over the file over defaults.
    pub fn resolve(flags: Flags) -> Result<Self, ConfigError> {
        let as_given = flags.clone();
        let file = match &flags.config {
            None => File::default(),
            Some(path) => File::read(path)?,
        };
        let tenants = TenantRules::resolve(&file)?;
        let socket = flags.socket.or(file.socket).ok_or(ConfigError::Missing("socket"))?;
        let admin_socket = flags.admin_socket.or(file.admin_socket).unwrap_or_else(|| {
            let mut path = socket.clone().into_os_string();
            path.push(".admin");
            path.into()
        });
        let state_dir = flags.state_dir.or(file.state_dir).ok_or(ConfigError::Missing("state-dir"))?;
        let devices = if flags.device.is_empty() { file.device } else { flags.device };
        let metrics =
            match flags.metrics.or(file.metrics) {
                None => None,
                Some(text) => Some(text.parse().map_err(|_| {
                    bad("metrics", &text, "expected IP:PORT, e.g. 127.0.0.1:9464 or [::1]:9464")
                })?),
            };
        let require = flags.sandbox_require.map(sandbox::Names::Text).or(file.sandbox_require);
        let sandbox = SandboxSettings::given(
            flags.worker_uid.or(file.worker_uid),
            flags.worker_memory.or(file.worker_memory),
            require,
        )?;
        let mut settings = Settings::default();
        let values = [
            ("max-deadline", flags.max_deadline.or(file.max_deadline)),
            ("default-deadline", flags.default_deadline.or(file.default_deadline)),
            ("queue-calls", flags.queue_calls.or(file.queue_calls).map(|n| n.to_string())),
            ("queue-bytes", flags.queue_bytes.or(file.queue_bytes)),
            ("poll-us", flags.poll_us.or(file.poll_us).map(|n| n.to_string())),
            ("cancel-grace", flags.cancel_grace.or(file.cancel_grace)),
            ("overrun-limit", flags.overrun_limit.or(file.overrun_limit)),
            ("quarantine-after", flags.quarantine_after.or(file.quarantine_after).map(|n| n.to_string())),
            ("fault-budget", flags.fault_budget.or(file.fault_budget).map(|n| n.to_string())),
        ];
        let given: Vec<_> = values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        settings.give(&given)?;
        settings.check()?;
        let devices =
            devices.iter().map(|text| text.parse()).collect::<Result<Vec<DeviceRequest>, ConfigError>>()?;
        for (nth, device) in devices.iter().enumerate() {
            if devices[..nth].iter().any(|other| other.selector == device.selector) {
                return Err(given_twice(&device.selector.to_string()));
            }
            if matches!(device.selector, request::Selector::Cpu(_)) {
                // Known without a look at the machine: a mistake is one of the command line.
                device::resolve(std::slice::from_ref(device), &device::Surveys::new())?;
            }
        }
        let file = flags.config;
        let flags = as_given;
        Ok(Self {
            socket,
            admin_socket,
            state_dir,
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
        refused(&["--config", path.to_str().unwrap()], "unknown field `sokcet`");
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
    }
}
