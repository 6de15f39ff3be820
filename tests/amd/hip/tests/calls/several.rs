//! Several processes: memory that is counted, and memory that is shared.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::library::{file, opened};
use crate::{PINNED, UNIT, mapped};

const FOLDER: &str = "LOOKALIKE_FOLDER";
const ROLE: &str = "LOOKALIKE_ROLE";

/// Starts this test once more in a role, with a folder in which the library is found.
fn start(role: &str, folder: &std::path::Path, fd: Option<i32>) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "several::memory_is_counted_and_shared", "--nocapture"]);
    command.env(ROLE, role).env(FOLDER, folder).env("LD_LIBRARY_PATH", folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(fd) = fd {
        command.env("LOOKALIKE_FD", fd.to_string());
    }
    command.spawn().unwrap()
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0usize, 0usize);
    opened().ok("hipMemGetInfo", [(&raw mut free).addr(), (&raw mut total).addr()]);
    assert_eq!(total, 64 << 20);
    free
}

/// What the other process does: takes memory, says so, and waits for its end.
fn holder() {
    let mut memory = 0usize;
    opened().ok("hipMemCreate", [(&raw mut memory).addr(), 8 * UNIT, PINNED.as_ptr().addr(), 0]);
    println!("ready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn read_line(child: &mut std::process::Child, wanted: &str) {
    let output = child.stdout.as_mut().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output));
    assert!(lines.any(|line| line.unwrap().contains(wanted)));
}

/// Imports memory of the other process, finds its bytes, and writes to it.
fn importer() {
    let hip = opened();
    let fd: usize = std::env::var("LOOKALIKE_FD").unwrap().parse().unwrap();
    let (mut memory, mut base, mut word) = (0usize, 0usize, 0u32);
    let before = free_bytes();
    hip.ok("hipMemImportFromShareableHandle", [(&raw mut memory).addr(), fd, 1]);
    assert_eq!(free_bytes(), before, "it is the other's");
    hip.ok("hipMemAddressReserve", [(&raw mut base).addr(), UNIT, 0, 0, 0]);
    hip.ok("hipMemMap", [base, UNIT, 0, memory, 0]);
    let access = [1u32, 0, 3];
    hip.ok("hipMemSetAccess", [base, UNIT, access.as_ptr().addr(), 1]);
    hip.ok("hipMemcpyDtoHAsync", [(&raw mut word).addr(), base, 4, 0]);
    assert_eq!(word, 0x0505_0505);
    hip.ok("hipMemsetD8Async", [base, 9, 4, 0]);
    hip.ok("hipDeviceSynchronize", []);
    // Other descriptors are no memory: standard input, one that is not open, and 0 by itself.
    for none in [1usize, 999, 0] {
        assert_eq!(hip.call("hipMemImportFromShareableHandle", [(&raw mut memory).addr(), none, 1]), 1);
    }
}

#[test]
fn memory_is_counted_and_shared() {
    match std::env::var(ROLE).as_deref() {
        Ok("holder") => return holder(),
        Ok("importer") => return importer(),
        Ok("main") => {}
        _ => {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("lookalike"), format!("memory={}\n", 64 << 20)).unwrap();
            std::os::unix::fs::symlink(file(), folder.path().join("libamdhip64.so.7")).unwrap();
            assert!(start("main", folder.path(), None).wait().unwrap().success());
            return;
        }
    }
    let folder: std::path::PathBuf = std::env::var_os(FOLDER).unwrap().into();
    let all = free_bytes();
    let mut other = start("holder", &folder, None);
    read_line(&mut other, "ready");
    assert_eq!(free_bytes(), all - 8 * UNIT);
    let mut memory = 0usize;
    let create = |memory: &mut usize, bytes: usize| {
        opened().call("hipMemCreate", [std::ptr::from_mut(memory).addr(), bytes, PINNED.as_ptr().addr(), 0])
    };
    assert_eq!(create(&mut memory, all), 2, "not while the other has its part");
    other.kill().unwrap();
    other.wait().unwrap();
    // The next process that starts finds that it is gone.
    let (base, memory) = mapped(opened(), 3);
    opened().ok("hipMemsetD8Async", [base, 5, UNIT, 0]);
    opened().ok("hipDeviceSynchronize", []);
    let mut fd = -1i32;
    opened().ok("hipMemExportToShareableHandle", [(&raw mut fd).addr(), memory, 1, 0]);
    // SAFETY: the descriptor was made just now; the other process is to have it.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    assert!(start("importer", &folder, Some(fd)).wait().unwrap().success());
    let mut word = 0u32;
    opened().ok("hipMemcpyDtoHAsync", [(&raw mut word).addr(), base, 4, 0]);
    assert_eq!(word, 0x0909_0909);
    assert_eq!(free_bytes(), all - UNIT, "what was killed has given back");
}
