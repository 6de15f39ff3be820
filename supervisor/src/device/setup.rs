//! How a device is set up: its settings and threads, and what processes are made for. Changes of them are in `changing`.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytesize::ByteSize;

use crate::config::{ConfigError, DeviceConfig, DeviceSettings};
use crate::processes::launcher::Launcher;

/// What processes are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MadeFor {
    /// Counts changes that processes cannot follow.
    pub(super) edition: u64,
    /// Concurrent calls.
    pub(super) lanes: u32,
    /// The device's part of host memory; for a device without memory of its own.
    pub(super) memory_bytes: u64,
}

impl MadeFor {
    /// For a device as it starts.
    pub(super) fn new(config: &DeviceConfig) -> Self {
        Self { edition: 0, lanes: config.lanes, memory_bytes: config.memory_bytes }
    }

    /// What processes are made for after a change of settings.
    pub(super) fn after(self, config: &DeviceConfig, settings: &DeviceSettings) -> Self {
        let more = !config.kind.traits().has_own_memory && settings.memory_bytes > self.memory_bytes;
        match more || settings.lanes != self.lanes {
            true => Self {
                edition: self.edition + 1,
                lanes: settings.lanes,
                memory_bytes: settings.memory_bytes.max(self.memory_bytes),
            },
            false => self,
        }
    }
}

/// A device's settings and threads.
#[derive(Debug)]
pub(super) struct Setup {
    /// In force.
    pub(super) settings: DeviceSettings,
    /// Starts its processes, once it has threads.
    pub(super) launcher: Option<Arc<Launcher>>,
    /// Its threads.
    pub(super) threads: Vec<JoinHandle<()>>,
    /// How many of these are workers'.
    pub(super) workers: usize,
    /// And standbys'.
    pub(super) standbys: usize,
}

impl Setup {
    /// Of a device without threads.
    pub(super) fn new(config: &DeviceConfig) -> Self {
        let (launcher, threads) = (None, Vec::new());
        Self { settings: config.settings(), launcher, threads, workers: 0, standbys: 0 }
    }
}

/// A setting that has another value than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Which.
    pub name: &'static str,
    /// Its value before.
    pub before: String,
    /// Its value now.
    pub after: String,
    /// What takes effect when.
    pub effect: String,
}

/// Why a device stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A call that was accepted would never fit.
    #[error(
        "device {device}: a call that waits or runs needs {} of its memory, and the most for one call would be {}: leave it \
         more, or try again when that call is over; nothing was changed",
        ByteSize::b(*.needs).display().iec(),
        ByteSize::b(*.most).display().iec()
    )]
    CallNeeds {
        /// The device.
        device: String,
        /// What the call needs.
        needs: u64,
        /// What there would be for one.
        most: u64,
    },
    /// Threads or descriptors for more workers cannot be had.
    #[error("device {device}: no more workers or standbys can be had: {why}; nothing was changed")]
    Threads {
        /// The device.
        device: String,
        /// What failed.
        why: io::Error,
    },
}
