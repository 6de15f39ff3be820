//! One tenant cannot take memory, descriptors, threads or time from the others (ATTACKS 23, 31). Each case was found by
//! an attacker on the socket; the randomised abuser (`tests/hostile/abuser`) is their generalisation.
//!
//! - [`memory`]: what the supervisor holds in memory for a tenant: requests, plans, weights, unfinished frames.
//! - [`storage`]: many small blobs, functions in memory, room on disk.
//! - [`clients_files`]: descriptors that a tenant owns: how many, and how long a system call on one takes.
//! - [`turns`]: processor time: the device, the compiler, plans.
//! - [`ending`]: a second signal ends the process, whatever is stuck.
//! - [`restart`]: a supervisor that ended is started again, whatever it still hangs on.
//! - [`log`]: lines of the log.
//! - [`doors`]: the state directory, the sockets, the first frame.
//! - [`groups`]: control groups.
//! - [`randomised`]: the abuser itself, for some seconds; its judge.

mod clients_files;
mod doors;
mod ending;
mod groups;
mod log;
mod memory;
mod randomised;
mod restart;
mod storage;
mod turns;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pappus_client::v1::{self, request};
use pappus_client::{Client, Invocation};
use serde_json::json;

use crate::fixture::Supervisor;
use crate::house::token;
use crate::kit::{self, Function};
use crate::programs::files_below;
use crate::raw::Raw;

const MIB: u64 = 1 << 20;

/// A connection of a tenant of a house, without manners.
fn raw_of(supervisor: &Supervisor, tenant: &str) -> Raw {
    let mut raw = Raw::greeted(&supervisor.socket());
    let act = v1::ActFor { token: token(tenant).into_bytes().into() };
    raw.request(1, request::Body::ActFor(act), &[]);
    assert_eq!(raw.body().0, 1);
    raw
}

/// How much of something a tenant has.
fn used(client: &mut Client, name: &str) -> u64 {
    let quotas = client.quota().unwrap().quotas;
    let found = quotas.into_iter().find(|quota| quota.name == name);
    found.unwrap_or_else(|| panic!("there is no quota {name}")).used
}

/// A function of one input whose plan has `steps` steps, some fifty bytes each; with `fails`, the plan
/// fails at its end for every input.
fn add_steps(client: &mut Client, name: &str, steps: usize, fails: bool) {
    let mut all = vec![json!({"Fill": {"buffer": "b", "byte": 0}}); steps];
    if fails {
        all.push(json!({"Copy": {"from": "in", "from_offset": {"Absolute": 1 << 30}, "to": "b"}}));
    }
    let buffers = [("b", json!({"Sizeof": "in"}))];
    Function { inputs: &["in"], buffers: &buffers, steps: &all, ..Function::default() }.add(client, name);
}

/// The only worker is busy with an endless call of this tenant, sent here.
fn keep_busy(supervisor: &Supervisor, client: &mut Client) -> u64 {
    kit::add_spin(client);
    let id = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    id
}

/// A value in KiB of what the kernel says about the supervisor's process, in bytes.
fn kernel_says(supervisor: &Supervisor, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", supervisor.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Files below a folder and the bytes of their blocks.
fn on_disk(folder: &Path) -> (u64, u64) {
    const BLOCK: u64 = 512;
    let blocks = files_below(folder)
        .iter()
        .filter_map(|file| Some(file.metadata().ok()?.blocks()))
        .collect::<Vec<_>>();
    (blocks.len() as u64, BLOCK * blocks.iter().sum::<u64>())
}
