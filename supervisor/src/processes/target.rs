//! Which device a worker process is for, and the environment that follows from that.

use std::ffi::OsString;

use pappus_protocol::Kind;

use crate::config::DeviceConfig;

/// Which device a process is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
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
}

impl Target {
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
        }
    }

    /// The environment of its processes: nothing but what the driver's library is found and told by.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let present = |name: &&'static str| Some((*name, std::env::var_os(name)?));
        let mut environment: Vec<_> = TEST_HOOKS.iter().filter_map(present).collect();
        if !self.kind.traits().has_driver {
            return environment;
        }
        environment.extend(["LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"].iter().filter_map(present));
        // Positions follow the bus; machine code comes from the registry alone and is loaded whole.
        // Lanes that share a hardware queue wait for each other; queues cost time when the process ends.
        let queues = self.lanes.clamp(8, 32).to_string();
        environment.push(("CUDA_DEVICE_MAX_CONNECTIONS", queues.into()));
        let fixed = [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_MODULE_LOADING", "EAGER"),
            ("CUDA_CACHE_DISABLE", "1"),
        ];
        environment.extend(fixed.map(|(name, value)| (name, value.into())));
        if !self.uuid.is_empty() {
            // The process sees this device and no other.
            environment.push(("CUDA_VISIBLE_DEVICES", self.uuid.clone().into()));
        } else if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
            environment.push(("CUDA_VISIBLE_DEVICES", visible));
        }
        environment
    }
}

/// What workers that were built for tests are told through the environment; nothing where this was not.
#[cfg(feature = "test-hooks")]
const TEST_HOOKS: &[&str] = &["PAPPUS_TEST_UNCLEARED", "PAPPUS_TEST_WITHOUT"];
#[cfg(not(feature = "test-hooks"))]
const TEST_HOOKS: &[&str] = &[];
