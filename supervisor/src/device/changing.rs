//! How the setup of a device changes while it serves: all of a change or nothing of it, and no call fails for it.
//!
//! What follows is decided by the scheduler ([`Resize`]). Processes are made for an *edition* of
//! the settings: those of an earlier one are not put into slots any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::decisions::{Actions, shape};
use super::runtime::Device;
use super::setup::{ChangeError, Changed, Setup};
use super::thread;
use crate::config::{ConfigError, DeviceRequest, DeviceSettings, Fixed};
use crate::processes::launcher::Launcher;
use crate::schedule::events::Resize;

impl Setup {
    /// Starts missing threads: one per worker, one per standby. Existing ones stay.
    fn grow(&mut self, device: &Arc<Device>, settings: &DeviceSettings) -> io::Result<()> {
        let Some(launcher) = self.launcher.clone() else { return Ok(()) };
        while self.workers < settings.workers {
            self.threads.push(thread::spawn_worker(device, &launcher, self.workers)?);
            self.workers += 1;
        }
        while self.standbys < settings.standbys {
            self.threads.push(thread::spawn_standby(device, &launcher, self.standbys)?);
            self.standbys += 1;
        }
        Ok(())
    }
}

impl Device {
    /// Starts the device's threads: one per worker, one per standby, and the reaper.
    pub fn start(self: &Arc<Self>, launcher: &Arc<Launcher>) -> io::Result<()> {
        let mut setup = self.setup.lock();
        setup.launcher = Some(launcher.clone());
        let reaper = thread::spawn_reaper(self, launcher)?;
        setup.threads.push(reaper);
        let settings = setup.settings;
        setup.grow(self, &settings)
    }

    /// Takes the device's threads, which end once the device is closed.
    pub fn take_threads(&self) -> Vec<JoinHandle<()>> {
        let mut setup = self.setup.lock();
        // No further ones.
        setup.launcher = None;
        std::mem::take(&mut setup.threads)
    }

    /// The settings in force.
    pub fn settings(&self) -> DeviceSettings {
        self.setup.lock().settings
    }

    /// Concurrent calls of a worker that is made now.
    pub(super) fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed)
    }

    /// How many domains can have a worker at the same time.
    pub(super) fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// Checks that [`Device::change`] would take these settings now.
    pub fn check(&self, request: &DeviceRequest) -> Result<(), ChangeError> {
        let wanted = self.config.changed(self.settings(), request)?;
        let most = self.processes.largest_call_of(wanted.memory_bytes, wanted.standbys);
        self.check_calls(self.decisions.ask().largest_bytes(), most)
    }

    fn check_calls(&self, needs: u64, most: u64) -> Result<(), ChangeError> {
        match needs > most {
            true => Err(ChangeError::CallNeeds { device: self.config.name.clone(), needs, most }),
            false => Ok(()),
        }
    }

    /// Sets what a request gives; what has another value than before.
    pub fn change(self: &Arc<Self>, request: &DeviceRequest) -> Result<Vec<Changed>, ChangeError> {
        self.set_up(|now| self.config.changed(now, request))
    }

    /// The same for `KEY=VALUE` pairs.
    pub fn change_pairs<'a>(
        self: &Arc<Self>,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Vec<Changed>, ChangeError> {
        self.set_up(|now| self.config.change(now, pairs))
    }

    /// Settings that a request gives and that take another start.
    pub fn fixed(&self, request: &DeviceRequest) -> Vec<Fixed> {
        self.config.fixed(request)
    }

    fn set_up(
        self: &Arc<Self>,
        wanted: impl FnOnce(DeviceSettings) -> Result<DeviceSettings, ConfigError>,
    ) -> Result<Vec<Changed>, ChangeError> {
        let mut actions = Actions::default();
        let (before, after, outdated) = {
            let mut setup = self.setup.lock();
            let before = setup.settings;
            let after = wanted(before)?;
            if after == before {
                return Ok(Vec::new());
            }
            let grown = self.slots.grow(after.workers).and_then(|()| self.standbys.grow(after.standbys));
            grown
                .and_then(|()| setup.grow(self, &after))
                .map_err(|why| ChangeError::Threads { device: self.config.name.clone(), why })?;
            let most = self.processes.largest_call_of(after.memory_bytes, after.standbys);
            // With the scheduler locked, so that no process and no call comes in between.
            let outdated = self.decisions.decide(&mut actions, |deciding| {
                self.check_calls(deciding.largest_bytes(), most)?;
                self.processes.resize(&after);
                let made_for = self.made_for();
                let next = made_for.after(&self.config, &after);
                *self.made_for.lock() = next;
                let remakes = next.edition != made_for.edition;
                let to = shape(&self.config.with(after));
                let serving = deciding.residents();
                deciding.handle(Resize { to, remakes });
                self.slots.open(after.workers);
                Ok::<_, ChangeError>(if remakes { serving } else { 0 })
            })?;
            self.lanes.store(after.lanes, Ordering::Relaxed);
            self.workers.store(after.workers, Ordering::Relaxed);
            setup.settings = after;
            (before, after, outdated)
        };
        self.commands.carry_out(&mut actions, None);
        self.standbys.resize(after.standbys);
        self.standbys_changed();
        let changes = self.describe(&before, &after, outdated);
        for Changed { name, before, after, effect } in &changes {
            tracing::info!(device = self.config.name, "{name} is {after}, was {before}: {effect}");
        }
        Ok(changes)
    }

    /// What follows from a change, in words.
    fn describe(&self, before: &DeviceSettings, after: &DeviceSettings, outdated: usize) -> Vec<Changed> {
        let replaced = match outdated {
            0 => "at once".to_owned(),
            n => format!(
                "processes made from now on; {n} that serve are replaced one after the other, when idle"
            ),
        };
        let effect = |name: &str| match name {
            "workers" if after.workers > before.workers => {
                "at once: processes are made as domains need them".into()
            }
            "workers" => {
                "residents beyond it take no more calls, those worth least first, and end when idle".into()
            }
            "lanes" => replaced.clone(),
            "memory" if after.memory_bytes > before.memory_bytes => match outdated {
                0 => "calls may be lent it at once".into(),
                _ => format!("calls may be lent it at once; {replaced}"),
            },
            "memory" => "taken back from lanes without calls first; what runs ends first".into(),
            "standbys" if after.standbys > before.standbys => "they are made one at a time".into(),
            "standbys" => "those too many end".into(),
            "quantum" if !self.config.takes_turns() => {
                "of no effect: workers of this device take no turns".into()
            }
            "quantum" => "from the next turn on".into(),
            _ => "at once".into(),
        };
        let values = before.values().into_iter().zip(after.values());
        let changed = values.filter(|(before, after)| before != after);
        changed
            .map(|((name, before), (_, after))| Changed { name, before, after, effect: effect(name) })
            .collect()
    }
}
