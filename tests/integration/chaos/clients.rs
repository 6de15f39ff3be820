//! The clients of a run. Each decides by its own seeded random numbers alone, not by the answers that it gets, so
//! that the same seed gives the same clients; only how far they get depends on the machine.

use std::time::Duration;

use fastrand::Rng;
use pappus_client::{Client, Error, Invocation};
use rustix::process::Uid;

use super::caller::{Caller, Gone, REGION_BYTES, Run, SLOTS, Way, Wish};
use super::functions::{BEYOND_LIMIT, Kind, bytes_of};
use super::history::{Answer, Ask, End, What, digest};
use crate::fixture::PATIENCE;
use crate::kit::{self, probes};

/// Deadline of calls that nothing in the run may delay: it may not pass.
const PATIENT: Duration = Duration::from_secs(25);
/// What [`Role::Registrar`] calls its registrations in a history.
pub(crate) const REGISTER: &str = "register";
/// Functions that it keeps.
const KEPT: usize = 4;
/// The first tenant beside the supervisor's own.
const STRANGER: u32 = 54_321;

/// What a client is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Calls good functions and waits for every answer, whatever it takes.
    Neighbour,
    /// Sends much and reads late.
    Lazy,
    /// Cancels, is in a hurry, leaves in the middle, half-closes, sends garbage.
    Rude,
    /// Calls functions that trap, stray and never end.
    Hostile,
    /// Adds functions, calls and removes them.
    Registrar,
}

/// A client's role and tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Actor {
    pub(crate) role: Role,
    /// 0 is the supervisor's own user.
    pub(crate) tenant: u32,
}

/// Of every run.
pub(crate) const ACTORS: [Actor; 7] = [
    Actor { role: Role::Neighbour, tenant: 0 },
    Actor { role: Role::Neighbour, tenant: 1 },
    Actor { role: Role::Neighbour, tenant: 1 },
    Actor { role: Role::Lazy, tenant: 1 },
    Actor { role: Role::Rude, tenant: 2 },
    Actor { role: Role::Hostile, tenant: 2 },
    Actor { role: Role::Registrar, tenant: 0 },
];

/// The calling thread speaks for that tenant from now on, where it may.
pub(crate) fn become_tenant(tenant: u32) {
    if tenant > 0 && rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_uid(Uid::from_raw(STRANGER + tenant)).unwrap();
    }
}

/// Lives until the run is over.
pub(crate) fn live(actor: Actor, run: &Run, mut rng: Rng) {
    become_tenant(actor.tenant);
    match actor.role {
        Role::Registrar => register(run, &mut rng),
        role => {
            while let Some(mut caller) = Caller::connect(run, role == Role::Neighbour) {
                let ended = loop {
                    match burst(role, run, &mut caller, &mut rng) {
                        Ok(true) => {}
                        ended => break ended,
                    }
                };
                // In the middle of something.
                if ended.is_ok() && caller.has_open() {
                    leave(caller, &mut rng);
                }
                if run.is_over() {
                    break;
                }
            }
        }
    }
}

/// A few calls; whether the client stays.
fn burst(role: Role, run: &Run, caller: &mut Caller<'_>, rng: &mut Rng) -> Result<bool, Gone> {
    match role {
        Role::Lazy => {
            for _ in 0..40 {
                caller.call(Wish { bytes: REGION_BYTES, ..good(rng, Kind::Copy, Way::Inline) })?;
            }
            std::thread::park_timeout(Duration::from_millis(rng.u64(1..20)));
            caller.settle(0)?;
        }
        Role::Rude => {
            for _ in 0..rng.usize(1..=SLOTS) {
                let kind = if rng.bool() { Kind::Copy } else { Kind::Slow };
                let deadline = Duration::from_micros(rng.u64(1..50_000));
                let way = if rng.bool() { Way::Inline } else { Way::Sealed };
                let wish = Wish { hostile: true, ..good(rng, kind, way) };
                let id = caller.call(if rng.bool() { Wish { deadline, ..wish } } else { wish })?;
                if rng.u8(..4) == 0 {
                    caller.cancel(id)?;
                }
            }
            if rng.u8(..8) == 0 {
                return Ok(false);
            }
            caller.settle(0)?;
        }
        Role::Hostile => {
            for _ in 0..rng.usize(1..=2) {
                let kind = [Kind::Trap, Kind::Trap, Kind::Stray, Kind::Spin, Kind::Copy][rng.usize(..5)];
                let deadline = match kind {
                    Kind::Spin if rng.u8(..4) == 0 => BEYOND_LIMIT,
                    Kind::Spin => Duration::from_millis(rng.u64(1..10)),
                    _ => PATIENT,
                };
                caller.call(Wish { deadline, hostile: true, ..good(rng, kind, Way::Inline) })?;
            }
            if rng.u8(..16) == 0 {
                return Ok(false);
            }
            caller.settle(0)?;
        }
        Role::Neighbour | Role::Registrar => {
            for slot in 0..rng.usize(1..=SLOTS) {
                let kind = match rng.u8(..32) {
                    0 => Kind::Big,
                    1..8 => Kind::Slow,
                    _ => Kind::Copy,
                };
                let way = [Way::Inline, Way::Arena(slot), Way::Arena(slot), Way::Sealed][rng.usize(..4)];
                caller.call(good(rng, kind, way))?;
            }
            caller.settle(0)?;
        }
    }
    Ok(!run.is_over())
}

fn good(rng: &mut Rng, kind: Kind, way: Way) -> Wish {
    Wish { kind, way, bytes: rng.usize(1..=REGION_BYTES), deadline: PATIENT, hostile: false }
}

/// Calls may still be open.
fn leave(caller: Caller<'_>, rng: &mut Rng) {
    match rng.u8(..3) {
        0 => caller.leave(),
        1 => caller.half_close(),
        _ => caller.break_rules(&bytes_of(rng.u64(..), 64)),
    }
}

/// Adds functions, calls and removes them: what was acknowledged is there, also after a restart.
fn register(run: &Run, rng: &mut Rng) {
    let mut names: Vec<String> = Vec::new();
    while !run.is_over() {
        let conn = run.next_conn();
        run.history.note(What::Joined { conn });
        let Ok(mut client) = Client::connect_within(&run.socket, PATIENCE) else { continue };
        let mut lost = false;
        while !lost && !run.is_over() {
            let name = format!("temporary-{}", rng.u64(..));
            let added = noted(run, conn, REGISTER, 0, || add(&mut client, &name, rng.u64(..)).map(|()| 0));
            match added {
                Ok(true) => names.push(name),
                Ok(false) => {}
                Err(Gone) => {
                    lost = true;
                    continue;
                }
            }
            if names.is_empty() {
                continue;
            }
            let name = names[rng.usize(..names.len())].clone();
            let sent = bytes_of(rng.u64(..), 100);
            let called = noted(run, conn, "temporary", digest(&sent), || {
                let call = Invocation::new(&name).input("in", &sent[..]).output("out").deadline(PATIENT);
                Ok(digest(&client.invoke(&call)?.outputs[0].inline))
            });
            if called.is_err() {
                lost = true;
                continue;
            }
            if names.len() > KEPT {
                let name = names.remove(0);
                if client.remove_function(&name).is_err() {
                    break;
                }
            }
        }
        if !lost {
            run.history.note(What::Left { conn });
        }
    }
}

/// A request as an event and its answer as another; whether it was granted.
fn noted(
    run: &Run,
    conn: u32,
    function: &'static str,
    right: u64,
    ask: impl FnOnce() -> Result<u64, Error>,
) -> Result<bool, Gone> {
    let id = run.next_id();
    let end = End::Well(right);
    run.history.note(What::Sent { conn, id, ask: Ask { function, end, deadline: PATIENT, hostile: false } });
    let answer = match ask() {
        Ok(digest) => Answer::Done { digest, total: Duration::ZERO },
        Err(Error::Refused(error)) => Answer::Refused { code: error.code(), words: error.message },
        Err(_) => {
            run.history.note(What::Lost { conn });
            return Err(Gone);
        }
    };
    let well = matches!(answer, Answer::Done { .. });
    run.history.note(What::Answered { conn, id, answer });
    Ok(well)
}

/// Registers a copy with a module that no other function has, so that it is stored and compiled.
fn add(client: &mut Client, name: &str, unique: u64) -> Result<(), Error> {
    // A section that means nothing: its kind, its size, an empty name, its content.
    let section = [&[0, 9, 0][..], &unique.to_le_bytes()].concat();
    kit::add_copy_as(client, name, &[probes(), &section].concat()).map(drop)
}
