//! Which device a worker process is for, and the environment that follows from that.

use std::ffi::OsString;
use std::time::Duration;

use pappus_protocol::Kind;
use pappus_protocol::kind::DriverEnvironment;

use crate::config::DeviceConfig;

/// Which device a process is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTarget {
    /// What runs it.
    pub kind: Kind,
    /// The UUID of a GPU; empty for the CPU, and for a survey of all.
    pub uuid: String,
    /// Concurrent calls of a serving worker.
    pub lanes: u32,
    /// The host's memory node to pin threads to.
    pub numa_node: Option<u32>,
    /// Host memory that is the device's.
    pub memory_bytes: u64,
    /// True if its processes make and run machine code that ends in the middle of a kernel when its call's time is over.
    pub interruptible: bool,
    /// How long a call may have the device where its process serves strangers beside each other and only a process made for that can.
    pub shared_limit: Option<Duration>,
}

impl DeviceTarget {
    /// Any device of a kind, with one lane: for what runs no call.
    pub fn any(kind: Kind) -> Self {
        let (uuid, interruptible, shared_limit) = (String::new(), false, None);
        Self { kind, uuid, lanes: 1, numa_node: None, memory_bytes: 0, interruptible, shared_limit }
    }

    /// The device of a configuration.
    pub fn of(config: &DeviceConfig) -> Self {
        Self::with(config, config.lanes, config.memory_bytes)
    }

    /// The same with so many lanes and so much memory.
    pub fn with(config: &DeviceConfig, lanes: u32, memory_bytes: u64) -> Self {
        Self {
            kind: config.kind,
            uuid: config.uuid.clone(),
            lanes,
            numa_node: config.numa_node,
            // A call may have the memory of all workers.
            memory_bytes: if config.kind.traits().has_own_memory { 0 } else { memory_bytes },
            interruptible: config.interruptible,
            shared_limit: None,
        }
    }

    /// The environment of its processes: nothing but what the driver's library is found and told by.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let present = |name: &&'static str| Some((*name, std::env::var_os(name)?));
        let mut environment: Vec<_> = TEST_HOOKS.iter().filter_map(present).collect();
        let Some(driver) = &self.kind.traits().environment else { return environment };
        environment.extend(driver.passed.iter().filter_map(present));
        // Lanes that share a hardware queue wait for each other; queues cost time when the process ends.
        let queues = self.lanes.clamp(8, 32).to_string();
        environment.push((driver.queues, queues.into()));
        environment.extend(driver.fixed.iter().map(|(name, value)| (*name, value.into())));
        let given = |name: &str| std::env::var(name).ok();
        let visible = visible(driver, &self.uuid, given);
        environment.extend(visible.into_iter().map(|(name, value)| (name, value.into())));
        environment
    }
}

/// Environment variables that show a process one device and no other, or all devices that the supervisor
/// sees.
fn visible(
    driver: &DriverEnvironment,
    uuid: &str,
    given: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let mut names = vec![driver.visible];
    if driver.positions != driver.visible {
        names.push(driver.positions);
    }
    let passed = names.iter().filter_map(|name| Some((*name, given(name)?)));
    match uuid.split_once('#') {
        _ if uuid.is_empty() => passed.collect(),
        None => vec![(driver.visible, uuid.to_owned())],
        // A position among the devices that the survey saw, with what is passed.
        Some((_, position)) => {
            let mut visible: Vec<_> = passed.collect();
            let listed = given(driver.positions);
            let nth = position.parse().ok().and_then(|nth| listed.as_ref()?.split(',').nth(nth));
            let position = nth.unwrap_or(position).to_owned();
            visible.retain(|(name, _)| *name != driver.positions);
            visible.push((driver.positions, position));
            visible
        }
    }
}

/// What workers that were built for tests are told through the environment; nothing where this was not.
#[cfg(feature = "test-hooks")]
const TEST_HOOKS: &[&str] = &["PAPPUS_TEST_UNCLEARED", "PAPPUS_TEST_WITHOUT"];
#[cfg(not(feature = "test-hooks"))]
const TEST_HOOKS: &[&str] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_device_and_a_survey_all_that_the_operator_shows() {
        let cases = [
            (
                Kind::Cuda,
                "GPU-1",
                &[("CUDA_VISIBLE_DEVICES", "3")][..],
                &[("CUDA_VISIBLE_DEVICES", "GPU-1")][..],
            ),
            (Kind::Cuda, "", &[("CUDA_VISIBLE_DEVICES", "3")], &[("CUDA_VISIBLE_DEVICES", "3")]),
            (Kind::Cuda, "", &[], &[]),
            (
                Kind::Hip,
                "",
                &[("ROCR_VISIBLE_DEVICES", "1,2"), ("HIP_VISIBLE_DEVICES", "1")],
                &[("ROCR_VISIBLE_DEVICES", "1,2"), ("HIP_VISIBLE_DEVICES", "1")],
            ),
            (Kind::Hip, "GPU-1", &[("HIP_VISIBLE_DEVICES", "1")], &[("ROCR_VISIBLE_DEVICES", "GPU-1")]),
            (Kind::Hip, "GPU-XX#1", &[], &[("HIP_VISIBLE_DEVICES", "1")]),
            (
                Kind::Hip,
                "GPU-XX#1",
                &[("ROCR_VISIBLE_DEVICES", "0,2"), ("HIP_VISIBLE_DEVICES", "4,3")],
                &[("ROCR_VISIBLE_DEVICES", "0,2"), ("HIP_VISIBLE_DEVICES", "3")],
            ),
        ];
        for (kind, uuid, given, expected) in cases {
            let driver = kind.traits().environment.as_ref().unwrap();
            let given = |name: &str| {
                given.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
            };
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            assert_eq!(visible(driver, uuid, given), expected, "{kind} {uuid}");
        }
    }
}
