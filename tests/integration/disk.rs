//! A disk that can be filled: a tmpfs of a few MiB in a mount namespace that a process of ours keeps, and that
//! supervisors are started in. It goes with that process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Room on it; a full one is filled quickly.
const MIB: u64 = 8;

/// The disk.
#[derive(Debug)]
pub(crate) struct TinyDisk {
    keeper: Child,
    /// As seen from here.
    filler: PathBuf,
    /// A script that starts a program with the disk in its place.
    start: PathBuf,
}

impl TinyDisk {
    /// Mounts one at `DIR/state` for a program; none where this user may not mount.
    pub(crate) fn at(dir: &Path, program: &Path) -> Option<Self> {
        let state = dir.join("state");
        std::fs::create_dir_all(&state).unwrap();
        // The keeper ends with the pipe that it reads from.
        let script = format!("mount -t tmpfs -o size={MIB}m,mode=0700 none \"$0\" && echo ready && exec cat");
        let mut keeper = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(&state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut said = String::new();
        let heard = BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut said);
        let pid = keeper.id();
        let filler = format!("/proc/{pid}/root{}/filler", state.display()).into();
        let start = dir.join("start.sh");
        let disk = Self { keeper, filler, start };
        if heard.is_err() || said != "ready\n" {
            return None;
        }
        let script = format!(
            "exec nsenter --target {pid} --mount sh -c 'cd \"$0\" && exec \"$@\"' '{}' '{}' \"$@\"\n",
            dir.display(),
            program.display()
        );
        std::fs::write(&disk.start, script).unwrap();
        Some(disk)
    }

    /// What starts the program there.
    pub(crate) fn start(&self) -> PathBuf {
        self.start.clone()
    }

    /// Takes all room.
    pub(crate) fn fill(&self) {
        let zeros = vec![0; MIB as usize * (1 << 20)];
        // As much as there is.
        let full = std::fs::write(&self.filler, zeros);
        assert!(full.is_err(), "there is more room than there was");
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        std::fs::remove_file(&self.filler).unwrap();
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
