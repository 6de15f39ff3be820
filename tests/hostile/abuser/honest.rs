//! A tenant that behaves: ordinary calls at a modest rate, each answer compared byte by byte.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pappus_client::v1::response;
use pappus_client::{Arena, Client, Invocation};

use super::Result;
use super::functions;
use super::supervisor::token;

/// From the beginning of one call to that of the next.
const EVERY: Duration = Duration::from_millis(20);
/// Who arrives, and from one arrival to the next.
const UID: u32 = 60_003;
const ARRIVES: Duration = Duration::from_millis(250);
/// A call that is not answered by then is not answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the tenant's arena.
const ARENA_BYTES: u64 = 1 << 20;

/// One call.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Whose it is.
    pub(crate) tenant: &'static str,
    /// From its sending to its answer.
    pub(crate) took: Duration,
    /// Why the answer is not right.
    pub(crate) wrong: Option<String>,
}

/// Calls until it is over.
pub(crate) fn live(
    socket: &Path,
    tenant: &'static str,
    seed: u64,
    over: &AtomicBool,
    samples: &Sender<Sample>,
) {
    let mut rng = Rng::with_seed(seed);
    let mut session = None;
    while !over.load(Ordering::Acquire) {
        let began = Instant::now();
        let outcome = match &mut session {
            Some(session) => call(session, &mut rng),
            None => enter(socket, tenant).map(|entered| session = Some(entered)),
        };
        let took = began.elapsed();
        let wrong = outcome.err().map(|why| format!("{tenant}: {why}"));
        if wrong.is_some() {
            session = None;
        }
        // The receiver is gone once the run failed.
        if samples.send(Sample { tenant, took, wrong }).is_err() {
            return;
        }
        super::rest(EVERY.saturating_sub(took));
    }
}

/// Connects again and again, each time until its first answer, as a tenant of its own where this process can become another
/// user. Otherwise it may be told that there are too many of its user's, which are the abusers' connections, too.
pub(crate) fn arrive(socket: &Path, over: &AtomicBool, waits: &Sender<Duration>) {
    if rustix::process::geteuid().is_root()
        && let Err(why) = rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(UID))
    {
        return eprintln!("nobody arrives: {why}");
    }
    while !over.load(Ordering::Acquire) {
        let began = Instant::now();
        // What the answer is does not matter.
        let _ = Client::connect(socket).and_then(|mut client| client.status());
        if waits.send(began.elapsed()).is_err() {
            return;
        }
        super::rest(ARRIVES);
    }
}

fn enter(socket: &Path, tenant: &str) -> Result<(Client, Arena)> {
    let mut client = Client::connect_within(socket, PATIENCE)?;
    client.act_for(token(tenant).as_bytes())?;
    functions::copy().add(&mut client, &functions::probes()?)?;
    let arena = client.open_arena(ARENA_BYTES)?;
    Ok((client, arena))
}

/// A copy, inline or through the arena.
fn call((client, arena): &mut (Client, Arena), rng: &mut Rng) -> Result<()> {
    arena.reset();
    let inline = rng.bool();
    let mut sent = vec![0; rng.usize(1..if inline { 4 << 10 } else { 64 << 10 })];
    rng.fill(&mut sent);
    let (invocation, region) = match inline {
        true => (Invocation::new("copy").input("in", sent.as_slice()).output("out"), None),
        false => {
            let (from, to) = (arena.store(&sent)?, arena.alloc(sent.len() as u64)?);
            // Whatever the call before left there is no answer to this one.
            arena.write(to, 0, &vec![0xa5; sent.len()])?;
            (Invocation::new("copy").input("in", from).output_to("out", to), Some(to))
        }
    };
    client.send_invocation(&invocation)?;
    let answer = client.recv_within(PATIENCE)?.ok_or("no answer")?;
    let got = match (answer.body, region) {
        (Some(response::Body::Invoked(_)), Some(region)) => arena.load(region)?,
        (Some(response::Body::Invoked(invoked)), None) => {
            invoked.outputs.first().map(|output| output.inline.to_vec()).unwrap_or_default()
        }
        (Some(response::Body::Error(error)), _) => return Err(error.to_string().into()),
        _ => return Err("an answer to something else".into()),
    };
    if got != sent {
        return Err(format!("a wrong answer: {} bytes of {} are right", same(&got, &sent), sent.len()).into());
    }
    Ok(())
}

fn same(got: &[u8], sent: &[u8]) -> usize {
    got.iter().zip(sent).filter(|(got, sent)| got == sent).count()
}
