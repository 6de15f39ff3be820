//! The supervisor of a run: its configuration, its tenants, its processes.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pappus_client::Client;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::Result;
use super::functions::WORKER_MIB;
use super::options::Options;

/// Tenants that behave.
pub(crate) const HONEST: [&str; 3] = ["ann", "bob", "cai"];
/// Tenants that behave, as many as there can be abusing ones.
const GUESTS: [&str; HOSTILE.len() + HOSTILE_UIDS.len()] = ["dan", "eve", "fay", "gus"];
/// Tenants that abuse, with tokens.
const HOSTILE: [&str; 2] = ["mallory", "trudy"];
/// Uids that abuse, tenants by themselves, if this process may become another user.
const HOSTILE_UIDS: [u32; 2] = [60_001, 60_002];
/// What each tenant may have in a run with small quotas: some of each, and less than the abusers ask for.
const TIGHT: &str = include_str!("../../../docs/examples/strangers.toml");
/// How long it may take to start.
const START: Duration = Duration::from_secs(60);

/// A tenant's token.
pub(crate) fn token(tenant: &str) -> String {
    format!("the token of {tenant}")
}

/// Tenants that behave, as many as will abuse.
pub(crate) fn guests() -> impl Iterator<Item = &'static str> {
    GUESTS.into_iter().take(HOSTILE.len() + hostile_uids().count())
}

fn hostile_uids() -> impl Iterator<Item = u32> {
    HOSTILE_UIDS.into_iter().filter(|_| rustix::process::geteuid().is_root())
}

/// A running supervisor; it ends with this.
#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    dir: TempDir,
    log: File,
}

/// Processes that abuse; they end with this.
#[derive(Debug)]
pub(crate) struct Abusers(Vec<Child>);

impl Supervisor {
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Clients of other users reach the socket through it.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        std::fs::write(dir.path().join("pappus.toml"), config(options.tight))?;
        let log = dir.path().join("log");
        let written = File::create(&log)?;
        let Options { workers, switch, .. } = options;
        let memory = WORKER_MIB * workers;
        let device = format!(
            "cpu:workers={workers},memory={memory}MiB,standbys=1,min-residency=2ms,tenant-switch={switch}"
        );
        let mut command = Command::new(&options.supervisor);
        command
            .current_dir(dir.path())
            .args(["--socket", "socket", "--state-dir", "state", "--config", "pappus.toml"])
            .args(["--device", &device])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(written);
        if let Some(defence) = &options.without {
            command.env("PAPPUS_TEST_UNDEFENDED", defence);
        }
        let mut supervisor = Self { child: command.spawn()?, log: File::open(log)?, dir };
        let until = Instant::now() + START;
        while Client::connect(supervisor.admin_socket()).is_err() {
            if let Some(status) = supervisor.child.try_wait()? {
                return Err(format!("the supervisor ended, {status}:\n{}", supervisor.new_log()?).into());
            }
            if Instant::now() > until {
                return Err("the supervisor does not answer".into());
            }
            super::rest(Duration::from_millis(10));
        }
        Ok(supervisor)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.dir.path().join("socket.admin")
    }

    /// What it logged since the last look.
    pub(crate) fn new_log(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.log.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Everything it logged, for a run that failed.
    pub(crate) fn whole_log(&mut self) -> Result<String> {
        self.log.seek(SeekFrom::Start(0))?;
        self.new_log()
    }

    /// True if the supervisor still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it at once.
    pub(crate) fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the abusing processes, one for each hostile tenant.
    pub(crate) fn abuse(&self, options: &Options) -> Result<Abusers> {
        let own = std::env::current_exe()?;
        let parts: Vec<_> = options.parts.iter().map(|part| part.name()).collect();
        let named = HOSTILE.into_iter().map(|tenant| ("--tenant", tenant.to_owned()));
        let all = named.chain(hostile_uids().map(|uid| ("--uid", uid.to_string())));
        let mut children = Abusers(Vec::new());
        for (nth, (who, name)) in all.enumerate() {
            let seed = options.seed.wrapping_mul(1000).wrapping_add(nth as u64);
            let played = File::create(self.dir.path().join(format!("played-{nth}")))?;
            let child = Command::new(&own)
                .args(["actor", who, &name, "--parts", &parts.join(",")])
                .args(["--seed", &seed.to_string(), "--workers", &options.workers.to_string()])
                .arg("--socket")
                .arg(self.socket())
                .stdin(Stdio::null())
                .stdout(played)
                .stderr(Stdio::null())
                .spawn()?;
            children.0.push(child);
        }
        Ok(children)
    }

    /// Parts of the grammar that were played so far.
    pub(crate) fn played(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for nth in 0..HOSTILE.len() + HOSTILE_UIDS.len() {
            let text = std::fs::read_to_string(self.dir.path().join(format!("played-{nth}")));
            // Fewer where this process cannot become another user.
            all.extend(text.unwrap_or_default().lines().map(str::to_owned));
        }
        Ok(all)
    }
}

/// Everyone's tokens, and what they may have.
fn config(tight: bool) -> String {
    let sections = HONEST.iter().chain(&GUESTS).chain(&HOSTILE).map(|tenant| {
        let hash: String = Sha256::digest(token(tenant)).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[tenants.{tenant}]\ntoken-sha256 = \"{hash}\"\n")
    });
    let own = rustix::process::geteuid().as_raw();
    let quotas = if tight { TIGHT } else { "" };
    format!("gateways = [{own}]\n{quotas}{}", sections.collect::<String>())
}

impl Abusers {
    /// An abuser that ended by itself, as none should.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let ended = self.0.iter_mut().filter_map(|child| child.try_wait().ok().flatten());
        ended.map(|status| format!("an abuser ended, {status}")).next()
    }
}

impl Drop for Abusers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}
