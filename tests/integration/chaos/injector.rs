//! Disturbs the system by seeded random numbers, which choose the disturbance, the process and the duration. The
//! injector reads the system's state only to find processes.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use pappus_client::{Client, v1};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::caller::Run;
use super::history::{Fault, What};
use crate::disk::TinyDisk;
use crate::fixture::{Supervisor, is_alive, until};

/// Each as often as it stands here.
const CHOICES: [(Fault, u32); 10] = [
    (Fault::WorkerKilled, 50),
    (Fault::OtherKilled, 10),
    (Fault::WorkerStopped, 16),
    (Fault::SupervisorStopped, 4),
    (Fault::SupervisorKilled, 2),
    (Fault::Drained, 2),
    (Fault::NoDescriptors, 6),
    (Fault::DiskFull, 4),
    (Fault::NoMemory, 6),
    (Fault::DeviceLost, 2),
];

/// The one who does it.
pub(crate) struct Injector<'r> {
    pub(crate) run: &'r Run,
    pub(crate) supervisor: &'r mut Supervisor,
    pub(crate) disk: Option<&'r TinyDisk>,
    /// How many devices there are.
    pub(crate) devices: usize,
    /// As long as this file is there, no worker comes up.
    pub(crate) absent: &'r Path,
    pub(crate) rng: Rng,
}

impl Injector<'_> {
    /// One fault, and a pause.
    pub(crate) fn step(&mut self) {
        let all: u32 = CHOICES.iter().map(|(_, weight)| weight).sum();
        let mut pick = self.rng.u32(..all);
        let chosen = CHOICES.iter().find(|(_, weight)| match pick.checked_sub(*weight) {
            Some(rest) => {
                pick = rest;
                false
            }
            None => true,
        });
        let (victim, lasts, then_kill) = (self.rng.usize(..), self.rng.u64(1..40), self.rng.bool());
        let lasts = Duration::from_millis(lasts);
        self.inject(chosen.unwrap().0, victim, lasts, then_kill);
        // Often at once: processes that take the place of others are hit while they start.
        if self.rng.u8(..3) > 0 {
            std::thread::park_timeout(Duration::from_micros(self.rng.u64(..20_000)));
        }
    }

    fn inject(&mut self, fault: Fault, victim: usize, lasts: Duration, then_kill: bool) {
        match fault {
            Fault::WorkerKilled => self.kill(fault, self.worker(victim)),
            Fault::OtherKilled => self.kill(fault, self.other(victim)),
            Fault::WorkerStopped => {
                let Some(pid) = self.worker(victim) else { return };
                self.stop(fault, pid, lasts);
                if then_kill {
                    self.kill(Fault::WorkerKilled, Some(pid));
                }
                send(pid, Signal::CONT);
                self.over(fault);
            }
            Fault::SupervisorStopped => {
                let pid = self.supervisor.pid();
                self.stop(fault, pid, lasts);
                send(pid, Signal::CONT);
                self.over(fault);
            }
            Fault::SupervisorKilled => {
                self.begin(fault);
                self.supervisor.kill9();
                self.supervisor.restart();
                self.over(fault);
            }
            Fault::Drained => {
                self.begin(fault);
                self.supervisor.terminate();
                let ended = self.supervisor.ended();
                assert_eq!(ended.code(), Some(0), "draining ended with {ended}");
                self.supervisor.restart();
                self.over(fault);
            }
            Fault::NoDescriptors => {
                let pid = self.supervisor.pid();
                let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |list| list.count());
                // A few more, now and then: what needs several gets some of them.
                self.scarce(fault, pid, Resource::Nofile, open as u64 + (victim % 4) as u64, lasts);
            }
            Fault::NoMemory => {
                if let Some(pid) = self.worker(victim) {
                    self.scarce(fault, pid, Resource::As, 1, lasts);
                }
            }
            Fault::DiskFull => {
                let Some(disk) = self.disk else { return };
                self.begin(fault);
                disk.fill();
                std::thread::park_timeout(lasts);
                disk.free();
                self.over(fault);
            }
            Fault::DeviceLost => self.lose_device(fault, victim, lasts),
        }
    }

    /// One device of several, or all of them.
    fn lose_device(&self, fault: Fault, victim: usize, lasts: Duration) {
        let is_hit =
            |nth: usize| self.devices == 1 || [nth, self.devices].contains(&(victim % (self.devices + 1)));
        self.begin(fault);
        std::fs::write(self.absent, "").unwrap();
        let mut killed = HashSet::new();
        until("the device is lost", || {
            let status = Client::connect(self.supervisor.admin_socket()).and_then(|mut admin| admin.status());
            let Ok(v1::Status { devices, .. }) = status else { return false };
            let hit: Vec<_> =
                (0..).zip(&devices).filter(|(nth, _)| is_hit(*nth)).map(|(_, device)| device).collect();
            // Standbys take the places of those that are killed.
            let workers = hit.iter().flat_map(|device| &device.workers).map(|worker| worker.pid);
            for pid in workers.filter(|pid| *pid != 0 && killed.insert(*pid)) {
                self.kill(Fault::WorkerKilled, Some(pid));
            }
            hit.iter().all(|device| device.lost)
        });
        std::thread::park_timeout(lasts);
        std::fs::remove_file(self.absent).unwrap();
        self.over(fault);
    }

    fn begin(&self, fault: Fault) {
        self.run.history.note(What::Fault(fault));
    }

    fn over(&self, fault: Fault) {
        self.run.history.note(What::Over(fault));
    }

    fn kill(&self, fault: Fault, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.begin(fault);
            send(pid, Signal::KILL);
        }
    }

    fn stop(&self, fault: Fault, pid: u32, lasts: Duration) {
        self.begin(fault);
        send(pid, Signal::STOP);
        std::thread::park_timeout(lasts);
    }

    /// A process may have no more of something than `limit` for a while.
    fn scarce(&self, fault: Fault, pid: u32, what: Resource, limit: u64, lasts: Duration) {
        self.begin(fault);
        let process = Pid::from_raw(pid.try_into().unwrap());
        let all = getrlimit(what).maximum;
        // A process that is gone lacks nothing.
        if let Ok(before) = prlimit(process, what, Rlimit { current: Some(limit), maximum: all }) {
            std::thread::park_timeout(lasts);
            let _ = prlimit(process, what, before);
        }
        self.over(fault);
    }

    /// A process that serves, as far as the supervisor says so.
    fn worker(&self, victim: usize) -> Option<u32> {
        let mut admin = Client::connect(self.supervisor.admin_socket()).ok()?;
        let status = admin.status().ok()?;
        let workers = status.devices.iter().flat_map(|device| &device.workers);
        let pids: Vec<_> = workers.map(|worker| worker.pid).filter(|pid| *pid != 0).collect();
        pids.get(victim % pids.len().max(1)).copied()
    }

    /// Any other of its processes.
    fn other(&self, victim: usize) -> Option<u32> {
        let mut admin = Client::connect(self.supervisor.admin_socket()).ok()?;
        let status = admin.status().ok()?;
        let workers: Vec<_> =
            status.devices.iter().flat_map(|device| &device.workers).map(|worker| worker.pid).collect();
        let mut others = self.supervisor.children();
        others.retain(|pid| !workers.contains(pid) && is_alive(*pid));
        others.get(victim % others.len().max(1)).copied()
    }
}

/// A process that is gone already takes no signal.
fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}
