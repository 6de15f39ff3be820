//! Machines without free disk, memory, processes or descriptors (ATTACKS 27): the client is told what is missing and
//! when to come back; calls that do not need it go on, and everything works again once there is enough.

use nix::errno::Errno;
use pappus_client::{Blob, Code, Invocation};

use crate::disk::TinyDisk;
use crate::fixture::{Supervisor, until};
use crate::kit::{self, refused};
use crate::programs::program;
use crate::tracer::{Deed, trace};

/// The number of `mmap`.
const MMAP: u64 = 9;

/// A supervisor with a function, whose state is on a disk that can be filled; none where this user may not mount.
fn on_a_tiny_disk() -> Option<(TinyDisk, Supervisor)> {
    let dir = tempfile::tempdir().unwrap();
    let disk = TinyDisk::at(dir.path(), &program("pappus-supervisor"))?;
    let flags = ["--device", "cpu:workers=1,memory=16MiB"].map(str::to_owned);
    let supervisor = Supervisor::new(disk.start(), flags.to_vec(), dir);
    kit::add_copy(&mut supervisor.client());
    Some((disk, supervisor))
}

#[test]
fn a_full_disk_is_said_and_disturbs_no_call() {
    let Some((disk, mut supervisor)) = on_a_tiny_disk() else { return };
    let mut client = supervisor.client();
    let content = vec![7; 1 << 20];
    disk.fill();
    let error = refused(client.put_blob(Blob::Bytes(&content)), Code::ResourceExhausted, "no room left");
    assert!(error.retryable, "{error}");
    // Nothing of the host.
    assert!(!error.to_string().contains('/'), "{error}");
    kit::works(&mut client);
    disk.free();
    client.put_blob(Blob::Bytes(&content)).unwrap();
    // On a full disk it starts again, with what was registered.
    supervisor.kill9();
    disk.fill();
    supervisor.restart();
    kit::works(&mut supervisor.client());
}

/// Its holder could have filled the disk to keep the right.
#[test]
fn a_right_is_taken_away_on_a_full_disk_for_good() {
    let Some((disk, mut supervisor)) = on_a_tiny_disk() else { return };
    let mut client = supervisor.client();
    for tenant in ["acme", "evil", "zeta"] {
        client.grant("copy", tenant).unwrap();
    }
    client.set_alias("copy", "live", 1).unwrap();
    disk.fill();
    // The control: there is no room for a new file.
    refused(client.grant("copy", "more"), Code::ResourceExhausted, "no room left");
    client.revoke("copy", "evil").unwrap();
    assert_eq!(client.list_grants("copy").unwrap(), ["acme", "zeta"]);
    supervisor.kill9();
    supervisor.restart();
    let mut client = supervisor.client();
    assert_eq!(client.list_grants("copy").unwrap(), ["acme", "zeta"]);
    client.revoke("copy", "acme").unwrap();
    // What goes are three files, for which nothing is written.
    client.remove_function("copy").unwrap();
    supervisor.kill9();
    supervisor.restart();
    assert_eq!(supervisor.client().list_functions().unwrap(), []);
}

#[test]
fn an_arena_that_could_not_be_mapped_is_mapped_by_the_call_that_needs_it() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let pids = supervisor.worker_pids();
    let mut arena = client.open_arena(4096).unwrap();
    let (from, to) = (arena.store(b"twice").unwrap(), arena.alloc(5).unwrap());
    let call = Invocation::new("copy").input("in", from).output_to("out", to);
    let no_memory = trace(pids[0], |call| match call.number {
        MMAP => Deed::Fail(Errno::ENOMEM),
        _ => Deed::Pass,
    });
    let Some(tracer) = no_memory else { return };
    client.invoke(&call).unwrap();
    assert_eq!(arena.load(to).unwrap(), b"twice");
    // The control: it did fail at first.
    assert!(tracer.stop());
    until("the worker's words are in the log", || supervisor.log().contains("cannot be mapped"));
    assert_eq!(supervisor.worker_pids(), pids);
}
