//! How worker processes are confined. It is one decision, made when the supervisor starts: what every process is
//! started with, and what it must have reached to be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pappus_protocol::launch::{Arguments, Role};
use pappus_protocol::{Layer, Layers};

use super::cgroup::{Groups, GroupsError, Limits, Membership};
use super::target::DeviceTarget;
use crate::config::SandboxSettings;

/// Threads of a worker of the CPU device, and of a driver.
const PROCESSES: [u32; 2] = [16, 256];
/// Processors: a worker of the CPU device has one thread that computes.
const PROCESSORS: [u32; 2] = [2, 8];
/// Parts of busy processors, as control groups count. A process that compiles gets a tenth of what one that serves calls
/// gets; its own low priority counts only where there are no control groups.
const WEIGHT: u32 = 100;
const COMPILER_WEIGHT: u32 = 10;

/// The decision.
#[derive(Debug)]
pub struct Confinement {
    settings: SandboxSettings,
    groups: Option<Arc<Groups>>,
    /// A pid namespace was of no use to a device's driver here.
    without_pidns: AtomicBool,
}

/// What a process has reached.
#[derive(Debug, Clone, Default)]
pub struct Reached {
    greeted: Layers,
    membership: Option<Arc<Membership>>,
}

impl Reached {
    /// The layers that a process reports, and the control group that the supervisor gives it.
    pub(super) fn new(greeted: Layers, membership: Option<Arc<Membership>>) -> Self {
        Self { greeted, membership }
    }

    /// Layers that are in force now.
    pub fn layers(&self) -> Layers {
        self.with(Membership::joined)
    }

    fn with(&self, joined: impl Fn(&Membership) -> bool) -> Layers {
        let mut layers = self.greeted;
        layers.remove(Layer::Cgroup);
        if self.membership.as_deref().is_some_and(joined) {
            layers.add(Layer::Cgroup);
        }
        layers
    }
}

/// A process lacks a layer of the sandbox that the configuration requires.
#[derive(Debug, thiserror::Error)]
#[error("sandbox-require names {}, but a worker here has only {has}: {}", .missing.name(), what_to_do(*.missing))]
pub struct LayerMissing {
    missing: Layer,
    has: Layers,
}

impl Confinement {
    /// By these settings, with these control groups.
    pub fn new(settings: SandboxSettings, groups: Option<Arc<Groups>>) -> Self {
        Self { settings, groups, without_pidns: AtomicBool::new(false) }
    }

    /// Makes the decision for this supervisor and logs what workers cannot have.
    pub fn decide(settings: SandboxSettings) -> Self {
        let (decided, without) = Self::look(settings);
        if let Some(why) = without {
            tracing::info!(
                "workers run without control groups (memory of the host is not limited): {why}; docs/sandbox.md says \
                 what the host must permit"
            );
        }
        decided
    }

    /// Makes the decision from what the host permits; also says why there are no control groups, where there are none.
    pub fn look(settings: SandboxSettings) -> (Self, Option<GroupsError>) {
        // Workers become children of the supervisor when the process that started them ends.
        if let Err(e) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::warn!("processes cannot be adopted: {e}; workers get no pid namespace");
        }
        match Groups::find() {
            Ok(groups) => (Self::new(settings, Some(groups)), None),
            Err(why) => (Self::new(settings, None), Some(why)),
        }
    }

    /// The command line of a worker process.
    pub(super) fn arguments(&self, role: Role, target: &DeviceTarget) -> Arguments {
        let without_pidns = target.kind.traits().has_driver && self.without_pidns.load(Ordering::Relaxed);
        Arguments {
            lanes: target.lanes,
            numa_node: target.numa_node,
            uid: rustix::process::geteuid().is_root().then_some(self.settings.worker_uid),
            adopted: true,
            interruptible: target.interruptible,
            shared_limit_us: target.shared_limit.map(|limit| limit.as_micros().min(u32::MAX.into()) as u32),
            without: without_pidns.then_some(Layer::PidNs).into_iter().collect(),
            ..Arguments::new(role, target.kind)
        }
    }

    /// Lets a process join control groups, where there can be any.
    pub(super) fn admit(&self, pid: u32, role: Role, target: &DeviceTarget) -> Option<Arc<Membership>> {
        Some(self.groups.as_ref()?.admit(pid, self.limits(role, target)))
    }

    /// What a process may take.
    fn limits(&self, role: Role, target: &DeviceTarget) -> Limits {
        let gpu = usize::from(target.kind.traits().has_driver);
        let memory_bytes = match role {
            Role::Serve => self.settings.worker_memory.saturating_add(target.memory_bytes),
            Role::Compile | Role::Survey | Role::Meter => self.settings.worker_memory,
        };
        let cpu_weight = if role == Role::Compile { COMPILER_WEIGHT } else { WEIGHT };
        let (processes, processors) = (PROCESSES[gpu], PROCESSORS[gpu]);
        Limits { memory_bytes, processes, processors, cpu_weight }
    }

    /// Nothing is started any more.
    pub fn close(&self) {
        if let Some(groups) = &self.groups {
            groups.close();
        }
    }

    /// Here a pid namespace is of no use: processes to come go without.
    pub(super) fn give_up_pidns(&self) {
        if !self.without_pidns.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "workers of GPUs get no pid namespace: the host does not let /proc be mounted in it"
            );
        }
    }

    /// Users that workers become, beside that of the supervisor.
    pub fn worker_uids(&self) -> Vec<u32> {
        rustix::process::geteuid().is_root().then_some(self.settings.worker_uid).into_iter().collect()
    }

    /// True if processes must have any layer at all.
    pub fn requires_something(&self) -> bool {
        !self.settings.require.is_empty()
    }

    /// Checks that a process reached the layers it must have.
    pub fn check(&self, reached: &Reached) -> Result<(), LayerMissing> {
        let has = match self.settings.require.has(Layer::Cgroup) {
            true => reached.with(Membership::joined_once_tried),
            false => reached.layers(),
        };
        let satisfied = |layer: Layer| match layer {
            // Either keeps a worker from being who its supervisor is.
            Layer::Uid | Layer::UserNs if self.settings.require_all => {
                has.has(Layer::Uid) || has.has(Layer::UserNs)
            }
            layer => has.has(layer),
        };
        match self.settings.require.iter().find(|layer| !satisfied(*layer)) {
            None => Ok(()),
            Some(missing) => Err(LayerMissing { missing, has }),
        }
    }
}

/// What gives a host the layer.
fn what_to_do(layer: Layer) -> &'static str {
    match layer {
        Layer::Seccomp => "the kernel needs CONFIG_SECCOMP_FILTER",
        Layer::Landlock => {
            "the kernel needs Landlock (5.13, CONFIG_SECURITY_LANDLOCK, and landlock in the boot parameter lsm=), and \
             a container runtime must let landlock_* system calls through"
        }
        Layer::Uid => "run the supervisor as root, or with CAP_SETUID, CAP_SETGID and CAP_KILL",
        Layer::UserNs => {
            "allow user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns); a \
             supervisor with CAP_SYS_ADMIN needs none and uses none"
        }
        Layer::Cgroup => {
            "let the supervisor make control groups with memory, pids and cpu: Delegate=yes in a systemd unit, or a \
             writable /sys/fs/cgroup in a container"
        }
        Layer::PidNs => {
            "run the supervisor with CAP_SYS_ADMIN, or allow user namespaces; GPUs also need a /proc that is not masked"
        }
        Layer::NetNs | Layer::MountNs | Layer::IpcNs | Layer::UtsNs | Layer::CgroupNs => {
            "run the supervisor with CAP_SYS_ADMIN, or allow user namespaces"
        }
    }
}

#[cfg(test)]
mod tests {
    use pappus_protocol::Kind;

    use super::*;

    #[test]
    fn who_compiles_gets_a_tenth_of_busy_processors_and_no_devices_memory() {
        let confinement = Confinement::new(SandboxSettings::default(), None);
        let target = DeviceTarget { memory_bytes: 1 << 30, ..DeviceTarget::any(Kind::Cpu) };
        let [serves, compiles] = [Role::Serve, Role::Compile].map(|role| confinement.limits(role, &target));
        assert_eq!((serves.cpu_weight, compiles.cpu_weight), (100, 10));
        assert_eq!(serves.memory_bytes - compiles.memory_bytes, 1 << 30);
    }

    #[test]
    fn a_process_is_told_that_tenants_share_it() {
        let confinement = Confinement::new(SandboxSettings::default(), None);
        let any = DeviceTarget::any(Kind::Cuda);
        let told = |target| confinement.arguments(Role::Serve, &target).encode();
        let shared =
            told(DeviceTarget { shared_limit: Some(std::time::Duration::from_millis(10)), ..any.clone() });
        let is_told =
            |arguments: &[String]| arguments.iter().any(|argument| argument == "--shared-limit-us=10000");
        assert!(is_told(&shared) && !is_told(&told(any)));
    }
}
