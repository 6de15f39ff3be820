//! Settings of a device that can change while it serves: the same as behind `--device`, checked in the same way.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;

use super::ConfigError;
use super::device::DeviceConfig;
use super::request::{DeviceRequest, Selector, select};

/// What they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSettings {
    /// The most worker processes that there may be.
    pub workers: usize,
    /// Concurrent calls of one worker that is made from now on.
    pub lanes: u32,
    /// Device memory for everything, in bytes.
    pub memory_bytes: u64,
    /// Initialised processes kept ready to take a worker's place.
    pub standbys: usize,
    /// How long a turn lasts while others wait.
    pub quantum: Duration,
    /// How long a domain keeps a worker that another one waits for.
    pub min_residency: Duration,
}

/// Their names.
pub const LIVE: [&str; 6] = ["workers", "lanes", "memory", "standbys", "quantum", "min-residency"];

impl DeviceSettings {
    /// All of them, by name.
    pub fn values(&self) -> [(&'static str, String); LIVE.len()] {
        let values = [
            self.workers.to_string(),
            self.lanes.to_string(),
            ByteSize::b(self.memory_bytes).display().iec().to_string().replace(' ', ""),
            self.standbys.to_string(),
            humantime::format_duration(self.quantum).to_string(),
            humantime::format_duration(self.min_residency).to_string(),
        ];
        let mut values = values.into_iter();
        LIVE.map(|name| (name, values.next().unwrap_or_default()))
    }
}

/// A setting that was given a value which it has only after another start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// Which.
    pub name: &'static str,
    /// The device; none if the setting is the supervisor's own.
    pub device: Option<String>,
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{} of {device}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl DeviceConfig {
    /// What it starts with.
    pub fn settings(&self) -> DeviceSettings {
        DeviceSettings {
            workers: self.workers,
            lanes: self.lanes,
            memory_bytes: self.memory_bytes,
            standbys: self.standbys,
            quantum: self.quantum,
            min_residency: self.min_residency,
        }
    }

    /// The same device with other settings.
    pub fn with(&self, settings: DeviceSettings) -> Self {
        let DeviceSettings { workers, lanes, memory_bytes, standbys, quantum, min_residency } = settings;
        let workers_per_domain = self.per_domain(workers);
        let config = Self { workers, lanes, memory_bytes, standbys, quantum, min_residency, ..self.clone() };
        Self { workers_per_domain, ..config }
    }

    /// What its settings would be after a change by `KEY=VALUE` pairs, all of which must be fine.
    pub fn change<'a>(
        &self,
        now: DeviceSettings,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<DeviceSettings, ConfigError> {
        let mut request = DeviceRequest::plain(self.selector(), &self.name);
        for (key, value) in pairs {
            let setting = format!("{key}={value}");
            request.give(key, value, &setting)?;
            if !LIVE.contains(&key) {
                let live = LIVE.join(", ");
                return Err(request.bad(format!(
                    "{key} cannot change while the device serves; {live} can: put {setting} behind --device and start \
                     the supervisor again"
                )));
            }
        }
        self.changed(now, &request)
    }

    /// The device's settings after a request's changes.
    pub fn changed(
        &self,
        now: DeviceSettings,
        request: &DeviceRequest,
    ) -> Result<DeviceSettings, ConfigError> {
        let wanted = DeviceSettings {
            workers: request.workers.unwrap_or(now.workers),
            lanes: request.lanes.unwrap_or(now.lanes),
            memory_bytes: request.memory_bytes.unwrap_or(now.memory_bytes),
            standbys: request.standbys.unwrap_or(now.standbys),
            quantum: request.quantum.unwrap_or(now.quantum),
            min_residency: request.min_residency.unwrap_or(now.min_residency),
        };
        let is_single =
            self.workers == 1 && (self.turns || self.kind.traits().has_own_memory && !self.under_mps);
        if is_single && wanted.workers > 1 {
            return Err(request.bad(
                "workers: it was started with one, and so without turns, which several workers need: start the \
                 supervisor with more; they can become fewer while it serves",
            ));
        }
        self.with(wanted).check(request)?;
        Ok(wanted)
    }

    /// Settings in a request that take effect only after another start.
    pub fn fixed(&self, request: &DeviceRequest) -> Vec<Fixed> {
        let differs = [
            ("weights", request.weights_bytes.is_some_and(|bytes| bytes != self.weights_bytes)),
            ("states", request.states_bytes.is_some_and(|bytes| bytes != self.states_bytes)),
            ("stack", request.stack_bytes.is_some_and(|bytes| bytes != self.stack_bytes)),
            ("scrub", request.scrub_calls.is_some_and(|call| call != self.scrub_calls)),
            ("tenant-switch", request.scrub_switch.is_some_and(|scrub| scrub != self.scrub_switch)),
            ("turns", request.turns.is_some_and(|turns| turns != self.turns)),
            ("isolation", request.shares.is_some_and(|shares| shares != (self.shared_workers > 0))),
            ("shared-limit", request.shared_limit.is_some_and(|limit| limit != self.shared_limit)),
        ];
        let differs = differs.into_iter().filter(|(_, differs)| *differs);
        differs.map(|(name, _)| Fixed { name, device: Some(self.name.clone()) }).collect()
    }

    /// True if a request means this device.
    pub fn is_meant(&self, selector: &Selector) -> bool {
        let is_slice = self.kind.traits().is_slice(&self.uuid);
        match selector {
            Selector::AllGpus(kind) => self.kind == *kind,
            Selector::BuiltIn(..) | Selector::Gpu(..) => self.name == selector.to_string(),
            Selector::GpuUuid(kind, uuid) => {
                self.kind == *kind && !is_slice && self.uuid.to_lowercase().starts_with(&uuid.to_lowercase())
            }
            Selector::SliceUuid(_, uuid) => self.uuid == *uuid,
        }
    }

    /// True if the name, which must be without settings, selects this device.
    pub fn is_called(&self, name: &str) -> bool {
        match select(name) {
            Ok((Selector::AllGpus(_), _)) | Err(_) => false,
            Ok((selector, settings)) => settings.is_empty() && self.is_meant(&selector),
        }
    }

    /// What names it.
    fn selector(&self) -> Selector {
        match self.uuid.is_empty() {
            true => {
                let index = self.name.split_once(':').and_then(|(_, index)| index.parse().ok());
                Selector::BuiltIn(self.kind, index.unwrap_or(0))
            }
            false => Selector::GpuUuid(self.kind, self.uuid.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pappus_protocol::Kind;
    use pappus_protocol::from_worker::{FoundDevice, Survey};

    use super::*;
    use crate::config::device::{Surveys, resolve};

    const GIB: u64 = 1 << 30;

    fn device(request: &str) -> DeviceConfig {
        let found = FoundDevice {
            index: 0,
            uuid: "GPU-1".into(),
            arch: "sm_90".into(),
            name: "NVIDIA H200".into(),
            memory_bytes: 140 * GIB,
            free_bytes: 139 * GIB,
            numa_node: None,
        };
        let survey = Survey { driver: "580".into(), devices: vec![found], ..Survey::default() };
        let surveys = Surveys::from([(Kind::Cuda, survey)]);
        resolve(&[request.parse().unwrap()], &surveys).unwrap().remove(0)
    }

    fn change(device: &DeviceConfig, pairs: &[(&str, &str)]) -> Result<DeviceSettings, String> {
        device.change(device.settings(), pairs.iter().copied()).map_err(|e| e.to_string())
    }

    #[test]
    fn what_may_change_is_checked_as_at_a_start() {
        let gpu = device("cuda:0:workers=4");
        let all = [
            ("workers", "16"),
            ("lanes", "2"),
            ("memory", "20GiB"),
            ("standbys", "0"),
            ("quantum", "1ms"),
            ("min-residency", "0s"),
        ];
        let changed = change(&gpu, &all).unwrap();
        assert_eq!((changed.workers, changed.lanes, changed.memory_bytes), (16, 2, 20 * GIB));
        assert_eq!(changed.values().map(|(_, value)| value), ["16", "2", "20.0GiB", "0", "1ms", "0s"]);
        assert_eq!(change(&gpu, &[]), Ok(gpu.settings()));
        for (pairs, words) in [
            (&[("workers", "65")][..], "workers must be 1 to 64"),
            (&[("wokers", "6")], "\"wokers=6\" is no setting"),
            (&[("workers", "6"), ("workers", "7")], "given twice"),
            (&[("lanes", "0")], "lanes must be 1 to 32"),
            (&[("memory", "200GiB")], "cuda:0 has 140.0 GiB: ask for less"),
            (&[("memory", "2GiB")], "the contexts of 4 workers"),
            (&[("standbys", "5")], "standbys must be 0 to 4"),
            (&[("workers", "1"), ("standbys", "2")], "standbys must be 0 to 1"),
            (&[("quantum", "2s")], "quantum must be"),
            (&[("turns", "off")], "turns cannot change while the device serves"),
            (&[("weights", "1GiB")], "put weights=1GiB behind --device"),
            (&[("lanes", "2"), ("scrub", "call")], "scrub cannot change"),
        ] {
            let why = change(&gpu, pairs).expect_err("must be refused");
            assert!(why.contains(words), "{why}");
        }
        let cpu = device("cpu:workers=2");
        assert!(
            device("cpu:3:workers=2").is_meant(&Selector::BuiltIn(Kind::Cpu, 3))
                && !cpu.is_meant(&Selector::BuiltIn(Kind::Cpu, 3))
        );
        assert!(change(&cpu, &[("lanes", "2")]).unwrap_err().contains("one lane"));
        assert!(change(&cpu, &[("memory", "1KiB")]).unwrap_err().contains("64KiB"));
        assert_eq!(
            cpu.with(change(&cpu, &[("workers", "1"), ("standbys", "0")]).unwrap()).workers_per_domain,
            1
        );
    }

    #[test]
    fn several_workers_need_a_start_with_turns() {
        let one = device("cuda:0:workers=1,turns=on");
        assert!(change(&one, &[("workers", "2")]).unwrap_err().contains("start the supervisor with more"));
        assert!(change(&device("cuda:0:workers=1"), &[("workers", "2")]).is_err());
        assert!(change(&device("cpu:workers=1"), &[("workers", "2")]).is_ok());
        assert!(change(&device("cuda:0:workers=2"), &[("workers", "1")]).is_ok());
    }

    #[test]
    fn a_request_names_its_device_and_what_takes_a_start() {
        let gpu = device("cuda:0:workers=4,weights=1GiB");
        for (text, is_meant) in [
            ("cuda:0", true),
            ("cuda:all", true),
            ("cuda:gpu-1", false),
            ("cuda:GPU-1", true),
            ("cuda:1", false),
            ("cpu", false),
            ("cuda:MIG-1", false),
        ] {
            let Ok(request) = text.parse::<DeviceRequest>() else { continue };
            assert_eq!(gpu.is_meant(&request.selector), is_meant, "{text}");
            assert_eq!(gpu.is_called(text), is_meant && text != "cuda:all", "one device, called {text}");
        }
        assert!(!gpu.is_called("cuda:0:workers=4") && !gpu.is_called("cuda:gpu-1"));
        let cpu = device("cpu");
        assert_eq!(["cpu", "cpu:0", "cpu:1"].map(|name| cpu.is_called(name)), [true, true, false]);
        let fixed = |text: &str| {
            let fixed = gpu.fixed(&text.parse().unwrap());
            fixed.into_iter().map(|fixed| fixed.name).collect::<Vec<_>>()
        };
        assert_eq!(fixed("cuda:0:workers=9,weights=1GiB,turns=on"), Vec::<&str>::new());
        assert_eq!(fixed("cuda:0:weights=2GiB,turns=off,scrub=call"), ["weights", "scrub", "turns"]);
    }
}
