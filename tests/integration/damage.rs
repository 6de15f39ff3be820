//! Stored bytes that are damaged: refused with the part that is, or made again; never served, and never the end of a worker.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pappus_client::{Blob, Client, Code, Invocation, v1};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal, until};
use crate::kit::{Function, absolute, constant, launch, ptr, refused};
use crate::programs::files_below;

const WEIGHTS: [u8; 4096] = [7; 4096];

/// Registers a function that returns its weights.
fn add(client: &mut Client, replace: bool) {
    let buffers = [("out", absolute(WEIGHTS.len() as u64))];
    let steps = [launch("copy", &[ptr("w"), ptr("out"), constant(WEIGHTS.len() as i64)])];
    let weights = [("w", &WEIGHTS[..])];
    let function = Function {
        weights: &weights,
        buffers: &buffers,
        outputs: &["out"],
        steps: &steps,
        ..Function::default()
    };
    match replace {
        true => function.replace(client, "says").map(drop).unwrap(),
        false => function.add(client, "says"),
    }
}

fn says(client: &mut Client) -> pappus_client::Result<Vec<u8>> {
    Ok(client.invoke(&Invocation::new("says").output("out"))?.outputs[0].inline.to_vec())
}

/// Changes a byte in the middle of a file, in its place.
fn flip(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[bytes[bytes.len() / 2] ^ 1], bytes.len() as u64 / 2).unwrap();
}

/// The stored file with this beginning.
fn stored(supervisor: &Supervisor, folder: &str, beginning: &[u8]) -> PathBuf {
    let mut files = files_below(&supervisor.tenant_dir().join(folder));
    files.retain(|file| std::fs::read(file).unwrap().starts_with(beginning));
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

fn machine_code(supervisor: &Supervisor) -> Vec<PathBuf> {
    let mut files = files_below(&supervisor.tenant_dir().join("code"));
    files.retain(|file| file.extension().is_none_or(|extension| extension != "json"));
    assert!(!files.is_empty());
    files
}

/// A supervisor that starts again after `damage` was done to its state directory.
fn damaged(damage: impl FnOnce(&Supervisor)) -> (Supervisor, Client) {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client, false);
    assert_eq!(says(&mut client).unwrap(), WEIGHTS);
    supervisor.kill9();
    damage(&supervisor);
    supervisor.restart();
    let client = supervisor.client();
    (supervisor, client)
}

/// Its calls are refused until it is registered again, with the same bytes.
fn refused_until_replaced(supervisor: &Supervisor, mut client: Client, part: &str) {
    for _ in 0..2 {
        let error = refused(says(&mut client), Code::Internal, "--replace");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(supervisor.log().contains("is damaged: its bytes are not those that were stored"));
    add(&mut client, true);
    assert_eq!(says(&mut client).unwrap(), WEIGHTS);
    let status = supervisor.device();
    assert!(status.workers.iter().all(|worker| worker.restarts == 0), "{status:?}");
    assert!(!supervisor.log().contains("sandbox violation"));
}

#[test]
fn weights_with_another_byte_are_never_served() {
    let (supervisor, client) = damaged(|supervisor| flip(&stored(supervisor, "blobs", &WEIGHTS)));
    refused_until_replaced(&supervisor, client, "weights w");
}

#[test]
fn weights_that_were_cut_are_never_served() {
    let (supervisor, client) = damaged(|supervisor| {
        let path = stored(supervisor, "blobs", &WEIGHTS);
        std::fs::File::options().write(true).open(path).unwrap().set_len(4095).unwrap();
    });
    refused_until_replaced(&supervisor, client, "weights w");
}

#[test]
fn a_module_with_another_byte_is_never_compiled() {
    let (supervisor, client) = damaged(|supervisor| {
        flip(&stored(supervisor, "blobs", b"\0asm"));
        supervisor.forget_code();
    });
    refused_until_replaced(&supervisor, client, "module probes");
}

#[test]
fn machine_code_with_another_byte_is_made_again_when_its_function_is_loaded() {
    let (supervisor, mut client) =
        damaged(|supervisor| machine_code(supervisor).iter().for_each(|file| flip(file)));
    // What its code must be made for is known then.
    supervisor.worker_pids();
    assert_eq!(says(&mut client).unwrap(), WEIGHTS);
    assert!(supervisor.log().contains("the machine code is removed, and made again from its module"));
    assert!(!supervisor.log().contains("sandbox violation"));
}

/// The function is in memory, and a fresh worker gets its machine code.
#[test]
fn machine_code_that_is_damaged_later_costs_one_call_and_no_worker() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client, false);
    assert_eq!(says(&mut client).unwrap(), WEIGHTS);
    machine_code(&supervisor).iter().for_each(|file| flip(file));
    let [before] = supervisor.worker_pids()[..] else { panic!("one worker") };
    signal(before, Signal::KILL);
    until("there is another worker", || supervisor.worker_pids() != [before]);
    let error = refused(says(&mut client), Code::Unavailable, "call again");
    assert!(error.retryable, "{error}");
    let pids = supervisor.worker_pids();
    assert_eq!(says(&mut client).unwrap(), WEIGHTS);
    assert_eq!(supervisor.worker_pids(), pids);
    assert!(!supervisor.log().contains("sandbox violation"));
}

/// A tenant cannot have the log say that the disk is damaged.
#[test]
fn a_configuration_that_is_too_large_is_not_damaged() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let config_sha256 = client.put_blob(Blob::Bytes(&vec![b' '; (4 << 20) + 1])).unwrap().sha256;
    let large = v1::AddFunction { name: "large".to_owned(), config_sha256, ..Default::default() };
    refused(client.add_function(large), Code::InvalidArgument, "expected at most 4194304");
    let log = supervisor.log();
    assert!(!log.contains("ERROR"), "{log}");
}
