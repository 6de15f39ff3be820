//! Control groups: limits on memory, processes and processor time of a worker, where this process may make
//! groups below its own. Version 2 and version 1, also side by side.
//!
//! The kernel takes up to milliseconds to make a group and to move a process into it, so a thread does both beside the
//! worker's start. A group is used again as long as hardly anything of its last process is still charged to it: pages
//! of a client's memfd which that process touched first stay charged while the client keeps them, and must not be taken
//! from what the next client's process may have. Such a group is removed; the kernel keeps a few kilobytes of it until
//! the pages are gone, which is why groups with little charged are not removed as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::subreaper;
use crate::sync::{OrderedMutex, rank};

/// What a worker may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of host memory.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u32,
    /// Processors at the same time.
    pub processors: u32,
    /// Its part of busy processors beside that of others, as version 2 counts: usually 100.
    pub cpu_weight: u32,
}

/// The controllers that limit something.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The beginning of every group's name, before the supervisor's process id.
const PREFIX: &str = "pappus-";
/// Time slices in which processor time is limited, in microseconds.
const PERIOD_US: u64 = 100_000;

/// Groups that are kept for processes to come, and those that could not be removed yet.
const KEPT: usize = 64;
/// Bytes that may still be charged to a group that is used again. Its limit grows by what is.
const RESIDUE_BYTES: u64 = 4 << 20;
/// How long a process waits for its group where it must have one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there are no control groups for workers.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// A file or directory of the kernel's does not let itself be read or changed.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// A controller is not there at all.
    #[error("no control groups for {0} are mounted")]
    NotMounted(&'static str),
    /// A controller was not handed down to this process's group.
    #[error("{} has no controller for {controller}", group.display())]
    NoController {
        /// The group.
        group: PathBuf,
        /// The controller.
        controller: &'static str,
    },
    /// No group can be made, or no thread that moves processes into groups.
    #[error(transparent)]
    Trial(#[from] std::io::Error),
}

/// An error of the kernel's about a file or directory.
fn at(path: &Path) -> impl FnOnce(std::io::Error) -> GroupsError {
    |source| GroupsError::Path { path: path.to_owned(), source }
}

/// Where groups can be made.
#[derive(Debug)]
pub struct Groups {
    /// Directories and the controllers that are limited there.
    parents: Vec<(PathBuf, Vec<&'static str>)>,
    made: AtomicU64,
    /// Empty ones.
    kept: OrderedMutex<Vec<Group>, { rank::CONTROL_GROUPS }>,
    leaving: Arc<Leaving>,
    joining: OrderedMutex<Sender<Arc<Membership>>, { rank::JOINING }>,
}

/// Directories of groups that could not be removed yet: a process that is not reaped keeps its group.
#[derive(Debug, Default)]
struct Leaving(OrderedMutex<Vec<PathBuf>, { rank::LEAVING_GROUPS }>);

impl Leaving {
    /// Removes a group's directories, or keeps them in mind.
    fn remove(&self, dirs: Vec<PathBuf>) {
        let mut left = self.0.lock();
        left.extend(dirs);
        left.retain(|dir| match std::fs::remove_dir(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::debug!("the control group {} stays: {e}", dir.display());
                true
            }
            _ => false,
        });
        // What is left for good is removed by the next supervisor.
        let too_many = left.len().saturating_sub(KEPT);
        left.drain(..too_many);
    }
}

/// The groups of one process; removed with this.
#[derive(Debug)]
struct Group {
    dirs: Vec<PathBuf>,
    leaving: Arc<Leaving>,
    limits: Limits,
    /// Processes that were killed in it for lack of memory, as far as it was asked.
    starved: u64,
}

/// A process and its groups.
#[derive(Debug)]
pub struct Membership {
    groups: Arc<Groups>,
    limits: Limits,
    state: OrderedMutex<MembershipState, { rank::MEMBERSHIP }>,
    tried: Condvar,
    /// The process was killed since its group's memory was used up.
    starved: AtomicBool,
}

#[derive(Debug)]
enum MembershipState {
    /// The process has its number.
    Outside(u32),
    /// The thread is about to move the process, whose number must stay its own.
    Joining,
    /// The limits are in force.
    Inside(Group),
    /// The limits cannot be in force.
    Refused,
    /// The process ended while it was moved: the moving thread reaps it.
    Left,
    /// The process is reaped: its number may belong to another process.
    Over,
}

/// How many processes were killed in a group for lack of memory.
fn starved_in(dirs: &[PathBuf]) -> u64 {
    let files =
        dirs.iter().flat_map(|dir| ["memory.events", "memory.oom_control"].map(|file| dir.join(file)));
    let said = files.filter_map(|file| std::fs::read_to_string(file).ok());
    let count = said.filter_map(|said| {
        said.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
    });
    count.sum()
}

impl Groups {
    /// Looks where groups can be made with every limit, and removes those of supervisors that were killed.
    pub fn find() -> Result<Arc<Self>, GroupsError> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(at(Path::new(path)));
        let own = own_groups(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let mut parents: Vec<(PathBuf, Vec<&'static str>)> = Vec::new();
        for controller in CONTROLLERS {
            let parent = match (own.get(controller), own.get("")) {
                (Some(version1), _) => version1.clone(),
                (None, Some(version2)) => delegated(version2, controller)?,
                (None, None) => return Err(GroupsError::NotMounted(controller)),
            };
            match parents.iter_mut().find(|(dir, _)| *dir == parent) {
                Some((_, controllers)) => controllers.push(controller),
                None => parents.push((parent, vec![controller])),
            }
        }
        parents.iter().for_each(|(dir, _)| remove_stale(dir));
        let (sender, joining) = channel();
        let (made, kept) = (AtomicU64::new(0), OrderedMutex::default());
        let (leaving, joining_in) = (Arc::default(), OrderedMutex::new(sender));
        let groups = Self { parents, made, kept, leaving, joining: joining_in };
        // A trial: directories may be read-only or belong to others.
        groups.make(Limits { memory_bytes: 1 << 30, processes: 16, processors: 1, cpu_weight: 100 })?;
        let groups = Arc::new(groups);
        let join = groups.clone();
        let thread = std::thread::Builder::new().name("cgroups".to_owned());
        thread.spawn(move || join.join_all(&joining))?;
        Ok(groups)
    }

    /// Lets a process join groups with these limits, soon.
    pub fn admit(self: &Arc<Self>, pid: u32, limits: Limits) -> Arc<Membership> {
        let membership = Arc::new(Membership {
            groups: self.clone(),
            limits,
            state: OrderedMutex::new(MembershipState::Outside(pid)),
            tried: Condvar::new(),
            starved: AtomicBool::new(false),
        });
        // The thread lives as long as this.
        let _ = self.joining.lock().send(membership.clone());
        membership
    }

    fn join_all(&self, joining: &Receiver<Arc<Membership>>) {
        for membership in joining {
            let group = self.group(membership.limits);
            let pid = match (&mut *membership.state.lock(), &group) {
                (state @ MembershipState::Outside(_), Ok(_)) => {
                    match std::mem::replace(state, MembershipState::Joining) {
                        MembershipState::Outside(pid) => Some(pid),
                        _ => None,
                    }
                }
                _ => None,
            };
            let joined = match (pid, group) {
                (Some(pid), Ok(group)) => group.join(pid).map(|()| group),
                (_, group) => group,
            };
            let mut state = membership.state.lock();
            match (&*state, joined, pid) {
                (MembershipState::Joining, Ok(group), _) => *state = MembershipState::Inside(group),
                (MembershipState::Left, joined, Some(pid)) => {
                    let number = pid;
                    let pid = Pid::from_raw(number as i32).map(WaitId::Pid);
                    let _ = pid.map(|pid| rustix::process::waitid(pid, WaitIdOptions::EXITED));
                    subreaper::forget(number);
                    *state = MembershipState::Over;
                    self.keep(joined.ok());
                }
                (MembershipState::Over, joined, _) => self.keep(joined.ok()),
                (_, joined, _) => {
                    if let Err(e) = joined {
                        tracing::warn!("a worker has no control group: {e}");
                    }
                    *state = MembershipState::Refused;
                }
            }
            drop(state);
            membership.tried.notify_all();
        }
    }

    fn keep(&self, group: Option<Group>) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT {
            kept.extend(group);
        }
    }

    /// Removes those that are kept.
    pub fn close(&self) {
        self.kept.lock().clear();
    }

    fn group(&self, limits: Limits) -> std::io::Result<Group> {
        // Nothing is removed with the lock held.
        let take = || {
            let mut kept = self.kept.lock();
            let fits = kept.iter().position(|group| group.limits == limits)?;
            Some(kept.swap_remove(fits))
        };
        while let Some(group) = take() {
            let has_room = |bytes: u64| group.limit_memory(limits.memory_bytes.saturating_add(bytes)).is_ok();
            if residue(&group.dirs).is_some_and(|bytes| bytes <= RESIDUE_BYTES && has_room(bytes)) {
                return Ok(group);
            }
        }
        self.make(limits)
    }

    fn make(&self, limits: Limits) -> std::io::Result<Group> {
        let nth = self.made.fetch_add(1, Ordering::Relaxed);
        let mut group = Group { dirs: Vec::new(), leaving: self.leaving.clone(), limits, starved: 0 };
        for (parent, controllers) in &self.parents {
            let dir = parent.join(format!("{PREFIX}{}-{nth}", std::process::id()));
            std::fs::create_dir(&dir)?;
            group.dirs.push(dir.clone());
            for controller in controllers {
                limit(&dir, controller, limits)?;
            }
        }
        Ok(group)
    }
}

impl Membership {
    /// The process ended, and `reap` takes it out of the kernel's table, or only looks how it ended where its
    /// number is still in use. Then its groups are free.
    pub fn over<T>(&self, reap: impl FnOnce(WaitIdOptions) -> T) -> T {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, MembershipState::Over) {
            MembershipState::Joining => {
                *state = MembershipState::Left;
                reap(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            }
            MembershipState::Inside(mut group) => {
                let reaped = reap(WaitIdOptions::EXITED);
                let starved = starved_in(&group.dirs);
                self.starved.store(starved > group.starved, Ordering::Release);
                group.starved = starved;
                self.groups.keep(Some(group));
                reaped
            }
            _ => reap(WaitIdOptions::EXITED),
        }
    }

    /// True if the limits are in force.
    pub fn joined(&self) -> bool {
        matches!(*self.state.lock(), MembershipState::Inside(_))
    }

    /// True if the process was killed for lack of memory of its group; known once it is reaped.
    pub fn was_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire)
    }

    /// True if the limits are in force; waits until that was tried.
    pub fn joined_once_tried(&self) -> bool {
        let untried =
            |state: &MembershipState| matches!(state, MembershipState::Outside(_) | MembershipState::Joining);
        let waited = self.state.lock().wait_timeout_while(&self.tried, PATIENCE, untried);
        matches!(*waited, MembershipState::Inside(_))
    }
}

impl Group {
    fn limit_memory(&self, bytes: u64) -> std::io::Result<()> {
        self.dirs.iter().filter(|dir| charged(dir).is_some()).try_for_each(|dir| limit_memory(dir, bytes))
    }

    fn join(&self, pid: u32) -> std::io::Result<()> {
        self.dirs.iter().try_for_each(|dir| std::fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.leaving.remove(std::mem::take(&mut self.dirs));
    }
}

fn limit(dir: &Path, controller: &str, limits: Limits) -> std::io::Result<()> {
    let write = |file: &str, value: String| std::fs::write(dir.join(file), value);
    let Limits { memory_bytes, processes, processors, cpu_weight } = limits;
    let quota_us = u64::from(processors) * PERIOD_US;
    match controller {
        "memory" => limit_memory(dir, memory_bytes),
        "pids" => write("pids.max", processes.to_string()),
        _ if dir.join("cpu.max").exists() => {
            write("cpu.weight", cpu_weight.to_string())?;
            write("cpu.max", format!("{quota_us} {PERIOD_US}"))
        }
        _ => {
            // Usually 1024.
            write("cpu.shares", (u64::from(cpu_weight) * 1024 / 100).to_string())?;
            write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            write("cpu.cfs_quota_us", quota_us.to_string())
        }
    }
}

fn limit_memory(dir: &Path, bytes: u64) -> std::io::Result<()> {
    let version2 = dir.join("memory.max");
    let file = if version2.exists() { version2 } else { dir.join("memory.limit_in_bytes") };
    std::fs::write(file, bytes.to_string())
}

/// What is charged to the group of one directory; none if it does not limit memory.
fn charged(dir: &Path) -> Option<u64> {
    let said =
        ["memory.current", "memory.usage_in_bytes"].map(|file| std::fs::read_to_string(dir.join(file)).ok());
    said.into_iter().flatten().find_map(|said| said.trim().parse().ok())
}

/// What is still charged to a group without processes; none if it does not say.
fn residue(dirs: &[PathBuf]) -> Option<u64> {
    dirs.iter().filter_map(|dir| charged(dir)).max()
}

/// This process's groups by controller, version 2 under the empty name, as directories.
fn own_groups(mountinfo: &str, cgroup: &str) -> BTreeMap<String, PathBuf> {
    let mut own = BTreeMap::new();
    // ID:CONTROLLERS:PATH
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        for controller in controllers.split(',') {
            if let Some(dir) = mounted(mountinfo, controller, path) {
                own.insert(controller.to_owned(), dir);
            }
        }
    }
    own
}

/// Where a controller's group can be found, if it is mounted.
fn mounted(mountinfo: &str, controller: &str, path: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        // ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let fits = match controller {
            "" => name == "cgroup2",
            controller => name == "cgroup" && options.split(',').any(|option| option == controller),
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        fits.then(|| Path::new(point).join(below))
    })
}

/// A directory of version 2 whose children can be limited by `controller`. Below the very top, a group that
/// hands a controller down must not have processes itself, so this one moves into a child if it is alone.
fn delegated(own: &Path, controller: &'static str) -> Result<PathBuf, GroupsError> {
    let control = own.join("cgroup.subtree_control");
    // Where this process moved before, its groups lie beside it.
    let is_leaf = own.file_name().is_some_and(|name| name == leaf().as_str());
    if let (true, Some(parent)) = (is_leaf, own.parent()) {
        return delegated(parent, controller);
    }
    let has = |file: &Path| -> Result<bool, GroupsError> {
        let list = std::fs::read_to_string(file).map_err(at(file))?;
        Ok(list.split_whitespace().any(|name| name == controller))
    };
    if !has(&own.join("cgroup.controllers"))? {
        return Err(GroupsError::NoController { group: own.to_owned(), controller });
    }
    if has(&control)? {
        return Ok(own.to_owned());
    }
    let hand_down = || std::fs::write(&control, format!("+{controller}"));
    if hand_down().is_err() {
        let child = own.join(leaf());
        match std::fs::create_dir(&child) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(at(&child)(e)),
            _ => {}
        }
        std::fs::write(child.join("cgroup.procs"), "0").map_err(at(&child))?;
        if let Err(e) = hand_down() {
            // Others live here, too: back to them.
            let _ = std::fs::write(own.join("cgroup.procs"), "0");
            let _ = std::fs::remove_dir(&child);
            return Err(at(&control)(e));
        }
    }
    Ok(own.to_owned())
}

/// The group that the supervisor itself moves to.
fn leaf() -> String {
    format!("{PREFIX}{}-supervisor", std::process::id())
}

/// Removes groups whose supervisor is gone; those that still have processes stay.
fn remove_stale(parent: &Path) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        26 25 0:23 /docker/abc /sys/fs/cgroup/memory rw,nosuid shared:1 - cgroup cgroup rw,memory\n\
        27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn own_groups_are_found_where_they_are_mounted() {
        let own = own_groups(HYBRID, "4:memory:/docker/abc/x\n2:cpu,cpuacct:/\n3:pids:/\n0::/user\n");
        let of = |controller: &str| own.get(controller).map(|dir| dir.to_str().unwrap());
        assert_eq!(of("memory"), Some("/sys/fs/cgroup/memory/x"), "below what is mounted");
        assert_eq!(of("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct/"));
        assert_eq!(of(""), Some("/sys/fs/cgroup/unified/user"));
        assert_eq!(of("pids"), None, "not mounted");
    }

    #[test]
    fn a_version_2_group_that_hands_controllers_down_is_used_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("cgroup.controllers", "cpu memory pids\n");
        write("cgroup.subtree_control", "memory\n");
        assert_eq!(delegated(dir.path(), "memory").unwrap(), dir.path());
        let missing = delegated(dir.path(), "io").unwrap_err().to_string();
        assert!(missing.contains("no controller for io"), "{missing}");
        // Asked to hand another one down, an ordinary directory accepts everything.
        assert_eq!(delegated(dir.path(), "pids").unwrap(), dir.path());
    }

    #[test]
    fn limits_are_written_in_the_words_of_either_version() {
        let limits = Limits { memory_bytes: 1 << 30, processes: 7, processors: 2, cpu_weight: 10 };
        let new = tempfile::tempdir().unwrap();
        std::fs::write(new.path().join("memory.max"), "max").unwrap();
        std::fs::write(new.path().join("cpu.max"), "max 100000").unwrap();
        let old = tempfile::tempdir().unwrap();
        for dir in [&new, &old] {
            CONTROLLERS.iter().for_each(|controller| limit(dir.path(), controller, limits).unwrap());
        }
        let read =
            |dir: &tempfile::TempDir, file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(
            (read(&new, "memory.max"), read(&new, "cpu.max")),
            ("1073741824".into(), "200000 100000".into())
        );
        assert_eq!((read(&new, "cpu.weight"), read(&old, "cpu.shares")), ("10".into(), "102".into()));
        assert_eq!(read(&new, "pids.max"), "7");
        assert_eq!(read(&old, "memory.limit_in_bytes"), "1073741824");
        assert_eq!(read(&old, "cpu.cfs_quota_us"), "200000");
    }

    /// Groups that are directories without a kernel behind them.
    fn pretended(parent: &Path) -> Groups {
        Groups {
            parents: vec![(parent.to_owned(), vec!["memory"])],
            made: AtomicU64::new(0),
            kept: OrderedMutex::default(),
            leaving: Arc::default(),
            joining: OrderedMutex::new(channel().0),
        }
    }

    #[test]
    fn what_a_process_left_charged_is_not_taken_from_the_next_one() {
        let parent = tempfile::tempdir().unwrap();
        let groups = pretended(parent.path());
        let limits = Limits { memory_bytes: 1 << 30, processes: 7, processors: 2, cpu_weight: 10 };
        let group = groups.group(limits).unwrap();
        let dir = group.dirs[0].clone();
        let limit = || std::fs::read_to_string(dir.join("memory.limit_in_bytes")).unwrap();
        let leaves =
            |bytes: u64| std::fs::write(dir.join("memory.usage_in_bytes"), bytes.to_string()).unwrap();
        assert_eq!(limit(), (1u64 << 30).to_string());
        // Little: it is used again, and has as much as a fresh one.
        leaves(RESIDUE_BYTES);
        groups.keep(Some(group));
        let group = groups.group(limits).unwrap();
        assert_eq!((&group.dirs[0], limit()), (&dir, ((1 << 30) + RESIDUE_BYTES).to_string()));
        // Much: another one takes its place.
        leaves(RESIDUE_BYTES + 1);
        groups.keep(Some(group));
        let fresh = groups.group(limits).unwrap();
        assert_ne!(fresh.dirs[0], dir);
        // It could not be removed: it had files here, as it may have a process elsewhere. It is tried again.
        assert!(dir.exists());
        for file in ["memory.limit_in_bytes", "memory.usage_in_bytes"] {
            std::fs::remove_file(dir.join(file)).unwrap();
        }
        drop(fresh);
        assert!(!dir.exists());
    }

    #[test]
    fn processes_killed_for_lack_of_memory_are_counted_in_both_versions() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = [dirs[0].path().to_owned(), dirs[1].path().to_owned()];
        assert_eq!(starved_in(&paths), 0);
        std::fs::write(paths[0].join("memory.events"), "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
            .unwrap();
        std::fs::write(paths[1].join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
            .unwrap();
        assert_eq!(starved_in(&paths), 3);
    }
}
