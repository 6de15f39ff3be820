//! Configuration in two stages: as typed (flags and a TOML file with the same names, flags win), and
//! ready to use.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Parser;
use pappus_protocol::Kind;
use serde::Deserialize;

use crate::limits;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "pappus-supervisor",
    version,
    about = "Runs functions made of nothing but GPU kernels, for untrusted tenants.",
    long_about = "Runs functions made of nothing but GPU kernels, for untrusted tenants.\n\n\
        One supervisor per machine: clients talk to its Unix socket, it feeds isolated worker\n\
        processes. Registered functions survive restarts in the state directory.",
    after_help = "Examples:\n  \
        pappus-supervisor --socket /run/pappus.sock --state-dir /var/lib/pappus \\\n      \
            --device cpu:workers=2,memory=256MiB\n  \
        pappus-supervisor --config /etc/pappus.toml\n\n\
        Signals: SIGTERM and SIGINT finish what was accepted, then exit; a second one exits at once.\n\
        Exit codes: 0 drained, 1 failed, 2 usage."
)]
pub struct Flags {
    /// Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Socket for drain and settings, mode 0600 [default: the socket's path + ".admin"].
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// Directory for registered functions.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A device and its settings, may be repeated, e.g. cpu:workers=2,memory=256MiB.
    #[arg(long, value_name = "DEVICE[:KEY=VALUE,...]")]
    pub device: Vec<String>,
    /// Address for Prometheus metrics (off unless given).
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<String>,
    /// TOML file with the same names as these flags.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Most invocations that may wait on one device.
    #[arg(long, value_name = "N")]
    pub queue_calls: Option<u64>,
    /// Most inline bytes that may wait on one device.
    #[arg(long, value_name = "SIZE")]
    pub queue_bytes: Option<String>,
    /// Deadline of invocations that name none.
    #[arg(long, value_name = "DURATION")]
    pub default_deadline: Option<String>,
    /// Longest deadline an invocation may ask for.
    #[arg(long, value_name = "DURATION")]
    pub max_deadline: Option<String>,
    /// How long idle workers spin before they block, in microseconds.
    #[arg(long, value_name = "N")]
    pub poll_us: Option<u32>,
}

/// The configuration file: the flags' names, nothing else.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    socket: Option<PathBuf>,
    admin_socket: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    #[serde(default)]
    device: Vec<String>,
    metrics: Option<String>,
    queue_calls: Option<u64>,
    queue_bytes: Option<String>,
    default_deadline: Option<String>,
    max_deadline: Option<String>,
    poll_us: Option<u32>,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not given anywhere.
    #[error("--{0} is missing: give the flag or put `{0} = …` into the configuration file")]
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
    /// The file does not read.
    #[error("configuration file {path}: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

fn bad(name: &str, value: &str, why: impl ToString) -> ConfigError {
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
    /// Devices, at least one.
    pub devices: Vec<DeviceConfig>,
    /// Prometheus endpoint.
    pub metrics: Option<std::net::SocketAddr>,
    /// What may change while running.
    pub settings: Settings,
}

/// Settings that the admin socket can change while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Most invocations waiting on one device.
    pub queue_calls: u64,
    /// Most inline bytes waiting on one device.
    pub queue_bytes: u64,
    /// Deadline of invocations that name none.
    pub default_deadline: Duration,
    /// Longest deadline.
    pub max_deadline: Duration,
    /// Spin time of idle workers in microseconds.
    pub poll_us: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_calls: 10_000,
            queue_bytes: 256 << 20,
            default_deadline: Duration::from_secs(30),
            max_deadline: Duration::from_secs(600),
            poll_us: 50,
        }
    }
}

impl Settings {
    /// Changes one setting by its name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let number = |text: &str| text.parse::<u64>().map_err(|e| bad(name, value, e));
        let duration = |text: &str| match humantime::parse_duration(text) {
            Ok(d) if !d.is_zero() => Ok(d),
            Ok(_) => Err(bad(name, value, "must be longer than zero")),
            Err(e) => Err(bad(name, value, format!("{e}; expected a duration such as 500ms or 30s"))),
        };
        match name {
            "queue-calls" => self.queue_calls = number(value)?,
            "queue-bytes" => self.queue_bytes = size(name, value)?,
            "default-deadline" => self.default_deadline = duration(value)?,
            "max-deadline" => self.max_deadline = duration(value)?,
            "poll-us" => match number(value)? {
                us @ 0..=limits::MAX_POLL_US => self.poll_us = us as u32,
                _ => return Err(bad(name, value, format!("at most {}", limits::MAX_POLL_US))),
            },
            _ => {
                return Err(bad(
                    name,
                    value,
                    "no such setting; there are queue-calls, queue-bytes, default-deadline, max-deadline, poll-us",
                ));
            }
        }
        Ok(())
    }

    /// Checks what settings demand of each other, once all are set.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.default_deadline > self.max_deadline {
            true => Err(bad(
                "default-deadline",
                &humantime::format_duration(self.default_deadline).to_string(),
                "would exceed max-deadline",
            )),
            false => Ok(()),
        }
    }

    /// All settings by name.
    pub fn values(&self) -> Vec<(&'static str, String)> {
        vec![
            ("queue-calls", self.queue_calls.to_string()),
            ("queue-bytes", ByteSize::b(self.queue_bytes).display().iec().to_string()),
            ("default-deadline", humantime::format_duration(self.default_deadline).to_string()),
            ("max-deadline", humantime::format_duration(self.max_deadline).to_string()),
            ("poll-us", self.poll_us.to_string()),
        ]
    }
}

fn size(name: &str, value: &str) -> Result<u64, ConfigError> {
    ByteSize::from_str(value)
        .map(|size| size.as_u64())
        .map_err(|e| bad(name, value, format!("{e}; expected a size such as 256MiB")))
}

/// One device: its name and what Pappus may use of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Such as `cpu` or `cuda:0`.
    pub name: String,
    /// What runs it.
    pub kind: Kind,
    /// The UUID of a GPU; empty for the CPU.
    pub uuid: String,
    /// The host's memory node that it is attached to.
    pub numa_node: Option<u32>,
    /// Worker processes.
    pub workers: usize,
    /// Concurrent calls of one worker.
    pub lanes: u32,
    /// Initialised processes kept ready to take a worker's place.
    pub standbys: usize,
    /// Workers that one domain may have.
    pub workers_per_domain: usize,
    /// Device memory for everything, in bytes.
    pub memory_bytes: u64,
    /// Of it, what weights may take.
    pub weights_bytes: u64,
    /// Of it, what the driver may take for the stacks of one worker's kernels.
    pub stack_bytes: u64,
    /// Workers submit by turns.
    pub turns: bool,
    /// How long a turn lasts while others wait.
    pub quantum: Duration,
    /// On-chip state is cleared between any two calls.
    pub scrub_calls: bool,
}

/// Lease sizes are whole wasm pages.
const LEASE_GRANULARITY: u64 = 64 << 10;

impl DeviceConfig {
    /// Device memory of one worker in bytes.
    pub fn lease_bytes(&self) -> u64 {
        self.memory_bytes / self.workers as u64 / LEASE_GRANULARITY * LEASE_GRANULARITY
    }
}

impl FromStr for DeviceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name != "cpu" {
            return Err(bad(
                "device",
                text,
                "this build knows the device `cpu`, e.g. cpu:workers=2,memory=256MiB",
            ));
        }
        let mut device = Self {
            name: name.to_owned(),
            kind: Kind::Cpu,
            uuid: String::new(),
            numa_node: None,
            workers: 2,
            lanes: 1,
            standbys: 0,
            workers_per_domain: limits::MAX_WORKERS,
            memory_bytes: 512 << 20,
            weights_bytes: 0,
            stack_bytes: 0,
            turns: false,
            quantum: Duration::from_millis(5),
            scrub_calls: false,
        };
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            match setting.split_once('=') {
                Some(("workers", n)) => match n.parse() {
                    Ok(n @ 1..=limits::MAX_WORKERS) => device.workers = n,
                    _ => {
                        return Err(bad(
                            "device",
                            text,
                            format!("workers must be 1 to {}", limits::MAX_WORKERS),
                        ));
                    }
                },
                Some(("memory", value)) => device.memory_bytes = size("device", value)?,
                Some(("standbys", n)) => match n.parse() {
                    Ok(n @ 0..=limits::MAX_WORKERS) => device.standbys = n,
                    _ => return Err(bad("device", text, "standbys must be 0 to 64")),
                },
                Some(("turns", value)) => match value {
                    "on" | "off" => device.turns = value == "on",
                    _ => return Err(bad("device", text, "turns must be on or off")),
                },
                Some(("quantum", value)) => match humantime::parse_duration(value) {
                    Ok(quantum) => device.quantum = quantum,
                    Err(e) => return Err(bad("device", text, e)),
                },
                _ => {
                    let why = format!("{setting:?} is no setting; there are workers=N and memory=SIZE");
                    return Err(bad("device", text, why));
                }
            }
        }
        let lease = device.lease_bytes();
        if !(LEASE_GRANULARITY..=limits::MAX_CPU_LEASE_BYTES).contains(&lease) {
            let why = format!(
                "memory / workers is {}, but a cpu worker can use 64KiB to {}: change one of them",
                ByteSize::b(lease).display().iec(),
                ByteSize::b(limits::MAX_CPU_LEASE_BYTES).display().iec()
            );
            return Err(bad("device", text, why));
        }
        Ok(device)
    }
}

impl Config {
    /// Flags over the file over defaults.
    pub fn resolve(flags: Flags) -> Result<Self, ConfigError> {
        let file = match &flags.config {
            None => File::default(),
            Some(path) => {
                let failed = |why: String| ConfigError::File { path: path.clone(), why };
                let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
                toml::from_str(&text).map_err(|e| failed(e.to_string()))?
            }
        };
        let socket = flags.socket.or(file.socket).ok_or(ConfigError::Missing("socket"))?;
        let admin_socket = flags.admin_socket.or(file.admin_socket).unwrap_or_else(|| {
            let mut path = socket.clone().into_os_string();
            path.push(".admin");
            path.into()
        });
        let state_dir = flags.state_dir.or(file.state_dir).ok_or(ConfigError::Missing("state-dir"))?;
        let mut devices = if flags.device.is_empty() { file.device } else { flags.device };
        if devices.is_empty() {
            devices.push("cpu".to_owned());
        }
        let metrics = match flags.metrics.or(file.metrics) {
            None => None,
            Some(text) => Some(text.parse().map_err(|e| bad("metrics", &text, e))?),
        };
        let mut settings = Settings::default();
        let values = [
            ("max-deadline", flags.max_deadline.or(file.max_deadline)),
            ("default-deadline", flags.default_deadline.or(file.default_deadline)),
            ("queue-calls", flags.queue_calls.or(file.queue_calls).map(|n| n.to_string())),
            ("queue-bytes", flags.queue_bytes.or(file.queue_bytes)),
            ("poll-us", flags.poll_us.or(file.poll_us).map(|n| n.to_string())),
        ];
        let default_given = values.iter().any(|(name, value)| *name == "default-deadline" && value.is_some());
        for (name, value) in values {
            if let Some(value) = value {
                settings.set(name, &value)?;
            }
        }
        if !default_given {
            // A short maximum alone also shortens the default.
            settings.default_deadline = settings.default_deadline.min(settings.max_deadline);
        }
        settings.check()?;
        let devices = devices.iter().map(|text| text.parse()).collect::<Result<Vec<DeviceConfig>, _>>()?;
        for (nth, device) in devices.iter().enumerate() {
            if devices[..nth].iter().any(|other| other.name == device.name) {
                return Err(bad("device", &device.name, "given twice: give it more workers instead"));
            }
        }
        Ok(Self { socket, admin_socket, state_dir, devices, metrics, settings })
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(config.devices, ["cpu:workers=2,memory=512MiB".parse().unwrap()]);
        assert_eq!(config.settings, Settings::default());
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pappus.toml");
        let text = "socket = '/file'\nstate-dir = '/d'\ndevice = ['cpu:workers=3']\npoll-us = 7\nmax-deadline = '2s'";
        std::fs::write(&path, text).unwrap();
        let config = resolve(&["--config", path.to_str().unwrap(), "--poll-us", "9"]).unwrap();
        assert_eq!((config.socket.to_str(), config.devices[0].workers), (Some("/file"), 3));
        assert_eq!((config.settings.poll_us, config.settings.default_deadline), (9, Duration::from_secs(2)));
        std::fs::write(&path, "sokcet = '/s'").unwrap();
        refused(&["--config", path.to_str().unwrap()], "unknown field `sokcet`");
    }

    #[test]
    fn each_mistake_is_named() {
        refused(&["--state-dir", "/d"], "--socket is missing");
        for (device, words) in [
            ("gpu", "knows the device `cpu`"),
            ("cpu:workers=0", "workers must be 1 to"),
            ("cpu:wokers=1", "\"wokers=1\" is no setting"),
            ("cpu:memory=lots", "such as 256MiB"),
            ("cpu:workers=1,memory=64GiB", "memory / workers is 64.0 GiB"),
            ("cpu:workers=2,memory=1KiB", "memory / workers is 0 B"),
        ] {
            refused(&[&BASE[..], &["--device", device]].concat(), words);
        }
        refused(&[&BASE[..], &["--device", "cpu", "--device", "cpu"]].concat(), "given twice");
        refused(&[&BASE[..], &["--default-deadline", "1h"]].concat(), "exceed max-deadline");
        refused(&[&BASE[..], &["--metrics", "here"]].concat(), "metrics");
    }
}
