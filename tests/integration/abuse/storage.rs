//! What a tenant keeps on disk and in the cache of functions: counted as what it takes, and no lock is held for it.

use pappus_client::v1::{self, request, response};
use pappus_client::{Blob, Code, Invocation};

use super::{on_disk, raw_of, used};
use crate::fixture::until;
use crate::house::{enter, house};
use crate::kit::{self, Function, refused};

/// Who hands over and leaves keeps no thread, however much it is.
#[test]
fn a_blob_is_not_copied_for_a_client_that_left() {
    const BYTES: u64 = 16 << 30;
    let supervisor = house(&[("alice", "")]);
    let mut alice = enter(&supervisor, "alice");
    let fd = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, BYTES).unwrap();
    let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    let mut leaves = enter(&supervisor, "alice");
    let put = request::Body::PutBlob(v1::PutBlob::default());
    leaves.send(put, &[std::os::fd::AsFd::as_fd(&fd)]).unwrap();
    until("it is copied", || used(&mut alice, "blob-bytes") > 0);
    drop(leaves);
    until("it is given up", || used(&mut alice, "blob-bytes") == 0);
    let io = std::fs::read_to_string(format!("/proc/{}/io", supervisor.pid())).unwrap();
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    assert!(written.parse::<u64>().unwrap() < BYTES / 2, "{written} bytes were written");
}

#[test]
fn blobs_count_as_files_and_as_their_blocks() {
    let supervisor = house(&[("alice", "blob-files = 20")]);
    let mut alice = enter(&supervisor, "alice");
    for nth in 0..20u8 {
        alice.put_blob(Blob::Bytes(&[nth; 3])).unwrap();
    }
    let (files, bytes) = on_disk(&supervisor.path("state/tenants/alice/blobs"));
    assert_eq!((files, used(&mut alice, "blob-files")), (20, 20));
    let counted = used(&mut alice, "blob-bytes");
    assert!(counted >= bytes && counted >= 20 * 512, "{counted} counted, {bytes} on disk");
    refused(alice.put_blob(Blob::Bytes(b"one more")), Code::ResourceExhausted, "blob-files");
    // With the connection they go, and make room.
    drop(alice);
    let mut alice = enter(&supervisor, "alice");
    until("they are gone", || used(&mut alice, "blob-files") == 0);
    alice.put_blob(Blob::Bytes(b"one more")).unwrap();
}

/// Each of the blobs that go with a connection costs a look into a folder that this case makes slow to list.
#[test]
fn removing_blobs_delays_no_other_tenant() {
    const BLOBS: u64 = 100;
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    kit::add_copy(&mut alice);
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    let code = supervisor.path("state/tenants/alice/code");
    for nth in 0..20_000 {
        std::fs::File::create(code.join(format!("nothing-{nth}"))).unwrap();
    }
    let mut raw = raw_of(&supervisor, "alice");
    for id in 2..2 + BLOBS {
        raw.request(
            id,
            request::Body::PutBlob(v1::PutBlob { inline: id.to_le_bytes().to_vec().into() }),
            &[],
        );
    }
    (0..BLOBS).for_each(|_| assert!(matches!(raw.body().1, response::Body::Blob(_))));
    let mut admin = supervisor.admin();
    drop(raw);
    // Before, during and after: as long as anything is left to remove.
    let mut meanwhile = 0;
    until("they are gone", || {
        admin.status().unwrap();
        bob.status().unwrap();
        kit::works(&mut bob);
        // Its module and its configuration.
        let are_gone = on_disk(&supervisor.path("state/tenants/alice/blobs")).0 <= 2;
        meanwhile += u64::from(!are_gone);
        are_gone
    });
    assert!(meanwhile >= 3, "others were answered {meanwhile} times before they were gone");
}

#[test]
fn functions_in_memory_are_their_tenants_own() {
    const FEW: u64 = 4;
    let supervisor = house(&[("alice", "loaded-functions = 4"), ("bob", "")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    let names: Vec<_> = (0..2 * FEW).map(|nth| format!("tiny-{nth}")).collect();
    for name in &names {
        Function::default().add(&mut alice, name);
    }
    // Each call finds its function gone, and reads it again.
    for name in names.iter().chain(&names) {
        alice.invoke(&Invocation::new(name)).unwrap();
        assert!(used(&mut alice, "loaded-functions") <= FEW);
    }
    assert_eq!(used(&mut bob, "loaded-functions"), 1);
    kit::works(&mut bob);
}
