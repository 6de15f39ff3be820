//! A `--device` as typed: which device, and the settings that were given.
//!
//! ```text
//! cpu[:KEY=VALUE,…]    cpu:1[:KEY=VALUE,…]    cuda:0[:KEY=VALUE,…]    cuda:GPU-…[:…]    cuda:MIG-…[:…]    cuda:all[:…]
//! hip:0[:…]  hip:GPU-…[:…]  hip:all[:…]
//! ```

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use pappus_protocol::Kind;

use super::{ConfigError, bad, size};
use crate::limits;

/// Which device is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// A device that needs no driver: `cpu` is the first one, `cpu:1` the second.
    BuiltIn(Kind, u32),
    /// Every GPU of a kind that there is.
    AllGpus(Kind),
    /// A GPU by its position on the bus.
    Gpu(Kind, u32),
    /// A GPU by its UUID, `GPU-…`, or the beginning of it.
    GpuUuid(Kind, String),
    /// A slice of a GPU by its UUID, such as `MIG-…`.
    SliceUuid(Kind, String),
}

impl Selector {
    /// What kind of device it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::BuiltIn(kind, _)
            | Self::AllGpus(kind)
            | Self::Gpu(kind, _)
            | Self::GpuUuid(kind, _)
            | Self::SliceUuid(kind, _) => *kind,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(kind, 0) => write!(f, "{kind}"),
            Self::AllGpus(kind) => write!(f, "{kind}:all"),
            Self::BuiltIn(kind, index) | Self::Gpu(kind, index) => write!(f, "{kind}:{index}"),
            Self::GpuUuid(kind, uuid) | Self::SliceUuid(kind, uuid) => write!(f, "{kind}:{uuid}"),
        }
    }
}

/// A device as asked for; what was not given is decided once the device is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Which.
    pub selector: Selector,
    /// As typed, for messages.
    pub text: String,
    pub(super) workers: Option<usize>,
    pub(super) lanes: Option<u32>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) standbys: Option<usize>,
    pub(super) turns: Option<bool>,
    pub(super) quantum: Option<Duration>,
    pub(super) weights_bytes: Option<u64>,
    pub(super) states_bytes: Option<u64>,
    pub(super) stack_bytes: Option<u64>,
    pub(super) scrub_calls: Option<bool>,
    pub(super) min_residency: Option<Duration>,
    pub(super) scrub_switch: Option<bool>,
    pub(super) shares: Option<bool>,
    pub(super) shared_limit: Option<Duration>,
    /// Keys that were given.
    seen: Vec<String>,
}

const CPU_SETTINGS: &str = "workers=N, memory=SIZE, weights=SIZE, standbys=N, turns=on|off, \
    quantum=DURATION, min-residency=DURATION, isolation=process|auto, shared-limit=DURATION and \
    tenant-switch=replace|scrub, e.g. cpu:workers=2,memory=256MiB";
const GPU_SETTINGS: &str = "workers=N, lanes=N, memory=SIZE, standbys=N, quantum=DURATION, \
    turns=on|off, weights=SIZE, states=SIZE, stack=SIZE, scrub=switch|call, min-residency=DURATION and \
    tenant-switch=replace|scrub, e.g. cuda:0:workers=4,lanes=8";
/// Behind those, where kernels of strangers can be in one process.
const SHARED_SETTINGS: &str = "; isolation=process|auto and shared-limit=DURATION";
/// The longest UUID that is read.
const MAX_UUID: usize = 96;

impl FromStr for DeviceRequest {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (selector, settings) = select(text)?;
        let mut request = Self::plain(selector, text);
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| request.no_setting(setting))?;
            request.give(key, value, setting)?;
        }
        Ok(request)
    }
}

impl DeviceRequest {
    /// A device with nothing but defaults.
    pub fn plain(selector: Selector, text: &str) -> Self {
        Self {
            selector,
            text: text.to_owned(),
            workers: None,
            lanes: None,
            memory_bytes: None,
            standbys: None,
            turns: None,
            quantum: None,
            weights_bytes: None,
            states_bytes: None,
            stack_bytes: None,
            scrub_calls: None,
            min_residency: None,
            scrub_switch: None,
            shares: None,
            shared_limit: None,
            seen: Vec::new(),
        }
    }

    /// How long a domain keeps a worker that another one waits for.
    pub(super) fn min_residency(&self) -> Duration {
        self.min_residency.unwrap_or(Duration::from_nanos(crate::schedule::limits::RESIDENCY_NS))
    }

    /// How long a call may run in a worker that all domains share.
    pub(super) fn shared_limit(&self) -> Duration {
        self.shared_limit.unwrap_or(Duration::from_nanos(crate::schedule::limits::SHARED_LIMIT_NS))
    }

    fn no_setting(&self, setting: &str) -> ConfigError {
        let traits = self.selector.kind().traits();
        let (there_are, and) = match (traits.has_driver, traits.keeps_kernels_in) {
            (false, _) => (CPU_SETTINGS, ""),
            (true, true) => (GPU_SETTINGS, SHARED_SETTINGS),
            (true, false) => (GPU_SETTINGS, ""),
        };
        bad("device", &self.text, format!("{setting:?} is no setting of it; there are {there_are}{and}"))
    }

    /// One more setting is given, as `setting` says.
    pub(super) fn give(&mut self, key: &str, value: &str, setting: &str) -> Result<(), ConfigError> {
        if self.seen.iter().any(|seen| seen == key) {
            return Err(self.bad(format!("{key} is given twice: keep one of them")));
        }
        self.set(key, value, setting)?;
        self.seen.push(key.to_owned());
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str, setting: &str) -> Result<(), ConfigError> {
        let kind = self.selector.kind();
        let gpu = kind.traits().has_driver;
        match key {
            "workers" => self.workers = Some(self.number(key, value, 1, limits::MAX_WORKERS)?),
            "standbys" => self.standbys = Some(self.number(key, value, 0, limits::MAX_WORKERS)?),
            "memory" => self.memory_bytes = Some(self.bytes(key, value)?),
            "quantum" => {
                let (least, most) = (limits::MIN_QUANTUM_US, limits::MAX_QUANTUM_US);
                self.quantum =
                    Some(self.duration("quantum", value, least..=most, "100us to 1s, e.g. quantum=5ms")?);
            }
            "min-residency" => {
                let range = 0..=limits::MAX_RESIDENCY_US;
                self.min_residency = Some(self.duration(
                    "min-residency",
                    value,
                    range,
                    "0s to 10m, e.g. min-residency=100ms",
                )?);
            }
            "tenant-switch" => {
                self.scrub_switch = Some(match value {
                    "replace" => false,
                    "scrub" => true,
                    _ => {
                        return Err(
                            self.bad("tenant-switch must be replace or scrub, e.g. tenant-switch=replace")
                        );
                    }
                });
            }
            "isolation" if kind.traits().keeps_kernels_in => {
                self.shares = Some(match value {
                    "process" => false,
                    "auto" => true,
                    _ => return Err(self.bad("isolation must be process or auto, e.g. isolation=auto")),
                });
            }
            "shared-limit" if kind.traits().keeps_kernels_in => {
                let range = limits::MIN_SHARED_LIMIT_US..=limits::MAX_SHARED_LIMIT_US;
                let must = "100us to 10s, e.g. shared-limit=10ms";
                self.shared_limit = Some(self.duration("shared-limit", value, range, must)?);
            }
            "turns" => {
                self.turns = Some(match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(self.bad("turns must be on or off, e.g. turns=on")),
                });
            }
            "lanes" if gpu => {
                self.lanes = Some(self.number(key, value, 1, limits::MAX_LANES as usize)? as u32)
            }
            "lanes" => {
                return Err(self.bad(format!("a {kind} worker has one lane: give it more workers instead")));
            }
            "weights" => self.weights_bytes = Some(self.bytes(key, value)?),
            "states" if gpu => self.states_bytes = Some(self.bytes(key, value)?),
            "stack" if gpu => self.stack_bytes = Some(self.bytes(key, value)?),
            "scrub" if gpu => {
                self.scrub_calls = Some(match value {
                    "switch" => false,
                    "call" => true,
                    _ => return Err(self.bad("scrub must be switch or call, e.g. scrub=switch")),
                });
            }
            _ => return Err(self.no_setting(setting)),
        }
        Ok(())
    }

    fn number(&self, key: &str, value: &str, least: usize, most: usize) -> Result<usize, ConfigError> {
        let number = value.parse().ok().filter(|n| (least..=most).contains(n));
        number
            .ok_or_else(|| self.bad(format!("{key} must be {least} to {most}, e.g. {key}={}", least.max(1))))
    }

    fn bytes(&self, key: &str, value: &str) -> Result<u64, ConfigError> {
        size("device", value).map_err(|e| self.bad(format!("{key}: {e}")))
    }

    /// A duration in a range of microseconds, which `must` says in words.
    fn duration(
        &self,
        key: &str,
        value: &str,
        range: RangeInclusive<u64>,
        must: &str,
    ) -> Result<Duration, ConfigError> {
        let range = Duration::from_micros(*range.start())..=Duration::from_micros(*range.end());
        let duration = humantime::parse_duration(value).ok().filter(|duration| range.contains(duration));
        duration.ok_or_else(|| self.bad(format!("{key} must be {must}")))
    }

    /// A mistake in this device's settings.
    pub(super) fn bad(&self, why: impl ToString) -> ConfigError {
        bad("device", &self.text, why)
    }
}

/// Splits into what names the device and what sets it up.
pub(super) fn select(text: &str) -> Result<(Selector, &str), ConfigError> {
    let wrong = |why: String| bad("device", text, why);
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let kind: Kind = kind.parse().map_err(|_| wrong(known()))?;
    let (which, settings) = rest.split_once(':').unwrap_or((rest, ""));
    if !kind.traits().has_driver {
        if which.is_empty() || which.contains('=') {
            return Ok((Selector::BuiltIn(kind, 0), rest));
        }
        let index = which.parse().ok().filter(|index| *index < limits::MAX_CPU_DEVICES);
        let most = limits::MAX_CPU_DEVICES - 1;
        let index = index.ok_or_else(|| {
            wrong(format!(
                "expected {kind}, {kind}:1 to {kind}:{most}, then settings, e.g. {kind}:1:workers=2"
            ))
        })?;
        return Ok((Selector::BuiltIn(kind, index), settings));
    }
    let uuid = || which.len() <= MAX_UUID && which.bytes().all(is_uuid_byte);
    let selector = match which {
        "all" => Selector::AllGpus(kind),
        _ if which.starts_with("GPU-") && uuid() => Selector::GpuUuid(kind, which.to_owned()),
        _ if kind.traits().is_slice(which) && uuid() => Selector::SliceUuid(kind, which.to_owned()),
        _ => {
            let index = which.parse().map_err(|_| {
                let slice = kind.traits().slices.map(|slices| format!(", {kind}:{slices}UUID"));
                wrong(format!(
                    "which GPU is missing: expected {kind}:0 (its position), {kind}:GPU-UUID{} or {kind}:all, then its \
                     settings, e.g. {kind}:0:workers=4,lanes=8",
                    slice.unwrap_or_default()
                ))
            })?;
            Selector::Gpu(kind, index)
        }
    };
    Ok((selector, settings))
}

/// The devices that this build knows, each with an example.
fn known() -> String {
    let known = Kind::ALL.map(|kind| match kind.traits().has_driver {
        true => format!("{}, e.g. {kind}:0:workers=4,lanes=8", kind.traits().devices),
        false => format!("{kind}, e.g. {kind}:workers=2,memory=256MiB"),
    });
    format!("this build knows the devices {}", known.join("; "))
}

fn is_uuid_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/' | b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> DeviceRequest {
        text.parse().unwrap()
    }

    #[test]
    fn the_device_ends_where_its_settings_begin() {
        for (text, selector) in [
            ("cpu", Selector::BuiltIn(Kind::Cpu, 0)),
            ("cpu:", Selector::BuiltIn(Kind::Cpu, 0)),
            ("cpu:workers=2", Selector::BuiltIn(Kind::Cpu, 0)),
            ("cpu:0", Selector::BuiltIn(Kind::Cpu, 0)),
            ("cpu:1", Selector::BuiltIn(Kind::Cpu, 1)),
            ("cpu:15:workers=2", Selector::BuiltIn(Kind::Cpu, 15)),
            ("cuda:0", Selector::Gpu(Kind::Cuda, 0)),
            ("hip:1:lanes=2", Selector::Gpu(Kind::Hip, 1)),
            ("hip:all", Selector::AllGpus(Kind::Hip)),
            ("hip:GPU-XX#1", Selector::GpuUuid(Kind::Hip, "GPU-XX#1".into())),
            ("cuda:12:workers=4", Selector::Gpu(Kind::Cuda, 12)),
            ("cuda:all:workers=4", Selector::AllGpus(Kind::Cuda)),
            ("cuda:GPU-8f01:lanes=2", Selector::GpuUuid(Kind::Cuda, "GPU-8f01".into())),
            ("cuda:MIG-GPU-8f01/1/0", Selector::SliceUuid(Kind::Cuda, "MIG-GPU-8f01/1/0".into())),
        ] {
            assert_eq!(request(text).selector, selector, "{text}");
        }
    }

    #[test]
    fn every_setting_is_read() {
        let text = "cuda:0:workers=4,lanes=8,memory=100GiB,standbys=2,quantum=0.5ms,turns=on,weights=20GiB,\
                    stack=1GiB,scrub=call,min-residency=2s,tenant-switch=scrub";
        let r = request(text);
        assert_eq!((r.workers, r.lanes, r.standbys), (Some(4), Some(8), Some(2)));
        assert_eq!((r.memory_bytes, r.weights_bytes), (Some(100 << 30), Some(20 << 30)));
        assert_eq!((r.stack_bytes, r.scrub_calls), (Some(1 << 30), Some(true)));
        assert_eq!((r.turns, r.quantum), (Some(true), Some(Duration::from_micros(500))));
        assert_eq!((r.min_residency(), r.scrub_switch), (Duration::from_secs(2), Some(true)));
        assert_eq!(request("cpu:min-residency=0s").min_residency(), Duration::ZERO);
        assert_eq!(request("cpu").min_residency(), Duration::from_millis(100));
    }

    #[test]
    fn each_mistake_is_named_with_its_range_and_an_example() {
        for (text, words) in [
            ("gpu", "knows the devices cpu"),
            ("cpu:16", "cpu:1 to cpu:15"),
            ("cpu:-1", "cpu:1 to cpu:15"),
            ("cuda", "expected cuda:0"),
            ("hip", "expected hip:0 (its position), hip:GPU-UUID or hip:all"),
            ("hip:MIG-1", "expected hip:0"),
            ("cuda:workers=4", "expected cuda:0"),
            ("cuda:-1", "expected cuda:0"),
            ("cuda:GPU-§", "expected cuda:0"),
            ("cuda:0:workers=65", "workers must be 1 to 64, e.g. workers=1"),
            ("cuda:0:lanes=33", "lanes must be 1 to 32, e.g. lanes=1"),
            ("cuda:0:lanes=0", "lanes must be 1 to 32"),
            ("cuda:0:memory=lots", "memory"),
            ("cuda:0:quantum=2s", "quantum must be 100us to 1s, e.g. quantum=5ms"),
            ("cuda:0:quantum=10us", "quantum must be 100us to 1s"),
            ("cpu:min-residency=1h", "min-residency must be 0s to 10m"),
            ("cpu:tenant-switch=keep", "tenant-switch must be replace or scrub"),
            ("cuda:0:turns=maybe", "turns must be on or off"),
            ("cuda:0:scrub=never", "scrub must be switch or call"),
            ("cuda:0:workers=1,workers=2", "given twice"),
            ("cuda:0:colour=red", "\"colour=red\" is no setting of it; there are workers=N, lanes=N"),
            ("cpu:lanes=2", "one lane"),
            ("cpu:turns=maybe", "turns must be on or off"),
            ("cpu:stack=1GiB", "is no setting of it; there are workers=N, memory=SIZE"),
        ] {
            let why = text.parse::<DeviceRequest>().unwrap_err().to_string();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
