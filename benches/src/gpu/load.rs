//! Calls through the client library: tenants with connections, each with calls in flight, all inputs and
//! outputs in one arena for each connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::v1::{Region, response};
use pappus_client::{Arena, Client, Invocation};
use pappus_kernels::bytes::from_elements;

use super::bed::Running;
use crate::Result;
use crate::bare::loops::Rate;
use crate::bare::program::expected;
use crate::bare::work::Work;
use crate::harness::functions::PICTURE;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;

/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at a supervisor.
const LOOK: Duration = Duration::from_millis(5);
/// Clocks rise, processors wake.
const WARM_UP: Duration = Duration::from_millis(700);
/// Nothing takes longer to warm up.
const LONGEST_WARM_UP: Duration = Duration::from_secs(60);
/// Calls in each place before anything counts, so that every lane has its graph.
pub const USUAL_ROUNDS: usize = 8;
/// Before the first of the tenants' uids; they need not exist.
pub const FIRST_UID: u32 = 20_000;

/// Who calls, what, and how much at once.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What is called.
    pub work: Work,
    /// Tenants; one alone is this process' own user.
    pub tenants: usize,
    /// Connections of each, with a thread each.
    pub connections: usize,
    /// Calls in flight of each connection.
    pub in_flight: usize,
    /// Answers to every one of these calls before anything counts.
    pub rounds: usize,
    /// How long it is measured.
    pub measured: Duration,
}

/// The moment when all threads are warm and measuring begins.
#[derive(Debug)]
struct Start {
    /// Threads that are not warm.
    cold: AtomicUsize,
    at: OnceLock<Instant>,
}

impl Start {
    fn new(threads: usize) -> Self {
        Self { cold: AtomicUsize::new(threads), at: OnceLock::new() }
    }

    /// One more thread is warm.
    fn warm(&self) {
        if self.cold.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.at.set(Instant::now());
        }
    }

    /// A thread that failed must not keep the others waiting.
    fn give_up(&self) {
        let _ = self.at.set(Instant::now());
    }
}

/// What a load reached.
#[derive(Debug, Clone)]
pub struct Reached {
    /// All tenants together.
    pub all: Rate,
    /// Each one's calls a second.
    pub tenants: Vec<f64>,
}

impl Work {
    /// The library's function.
    pub fn function(self) -> &'static str {
        match self {
            Self::Inference(_) => "inference",
            Self::Matmul => "matmul",
            Self::Empty => "hello",
        }
    }

    /// The names of its inputs and output.
    fn names(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Inference(_) => (&["A", "B"], "D"),
            Self::Matmul => (&["A"], "B"),
            Self::Empty => (&[], ""),
        }
    }

    /// Further inputs, which only Pappus needs.
    fn told(self) -> Vec<(&'static str, Vec<u64>)> {
        match self {
            Self::Inference(times) => vec![("size", vec![PICTURE; 2]), ("times", vec![times.into()])],
            Self::Matmul | Self::Empty => Vec::new(),
        }
    }
}

/// What a function is given and gives back, by name.
#[derive(Debug, Clone)]
pub struct Data {
    /// Its inputs.
    pub inputs: Vec<(String, Vec<u8>)>,
    /// Its output and how many bytes that has.
    pub output: Option<(String, usize)>,
    /// What the output must be.
    pub wanted: Wanted,
}

/// What an output must be.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// What the library computes.
    Of(Work),
    /// These bytes.
    Bytes(Vec<u8>),
    /// Anything.
    Any,
}

impl Data {
    fn of(work: Work) -> Self {
        let needs = work.needs();
        let (names, output) = work.names();
        let mut inputs: Vec<_> = names.iter().map(|name| (*name).to_owned()).zip(needs.inputs).collect();
        inputs.extend(work.told().into_iter().map(|(name, words)| (name.to_owned(), from_elements(&words))));
        let output = needs.output.map(|bytes| (output.to_owned(), bytes));
        Self { inputs, output, wanted: Wanted::Of(work) }
    }
}

/// A connection's calls, each with regions of its own in one arena.
#[derive(Debug)]
pub struct Calls {
    function: String,
    wanted: Wanted,
    /// The calls.
    pub calls: Vec<Invocation>,
    arena: Arena,
    regions: Vec<Regions>,
    outputs: Vec<Region>,
}

/// The inputs and the output of a call, by name.
type Regions = (Vec<(String, Region)>, Option<(String, Region)>);

fn call_of(function: &str, (inputs, output): &Regions) -> Invocation {
    let call =
        inputs.iter().fold(Invocation::new(function), |call, (name, region)| call.input(name, *region));
    match output {
        Some((name, region)) => call.output_to(name, *region),
        None => call,
    }
}

impl Calls {
    /// So many calls of a registered function of the library.
    pub fn new(client: &mut Client, function: &str, work: Work, count: usize) -> Result<Self> {
        Self::with(client, function, Data::of(work), count)
    }

    /// So many calls of any registered function.
    pub fn with(client: &mut Client, function: &str, data: Data, count: usize) -> Result<Self> {
        let Data { inputs, output, wanted } = data;
        let aligned = |bytes: usize| pappus_client::arena::aligned(bytes as u64);
        let each = inputs.iter().map(|(_, bytes)| aligned(bytes.len())).sum::<u64>()
            + output.as_ref().map_or(0, |(_, bytes)| aligned(*bytes));
        let mut arena = client.open_arena((each * count as u64).next_multiple_of(4096).max(4096))?;
        let (mut regions, mut outputs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut stored = Vec::new();
            for (name, bytes) in &inputs {
                stored.push((name.clone(), arena.store(bytes)?));
            }
            let mut written = None;
            if let Some((name, bytes)) = &output {
                let region = arena.alloc(*bytes as u64)?;
                outputs.push(region);
                written = Some((name.clone(), region));
            }
            regions.push((stored, written));
        }
        let calls = regions.iter().map(|regions| call_of(function, regions)).collect();
        Ok(Self { function: function.to_owned(), wanted, calls, arena, regions, outputs })
    }

    /// The first of the calls, of another function, in the same regions.
    pub fn of(&self, function: &str) -> Invocation {
        call_of(function, &self.regions[0])
    }

    /// Checks that every output is the one that the function must compute.
    pub fn check(&self) -> Result<()> {
        let wanted = match &self.wanted {
            Wanted::Of(work) => expected(*work),
            Wanted::Bytes(bytes) => bytes.clone(),
            Wanted::Any => return Ok(()),
        };
        for output in &self.outputs {
            if self.arena.load(*output)? != wanted {
                return Err(format!("{} computed something else than it must", self.function).into());
            }
        }
        Ok(())
    }

    /// What the first of the calls gave back.
    pub fn first_output(&self) -> Result<Vec<u8>> {
        let output = self.outputs.first().ok_or("a function without an output")?;
        Ok(self.arena.load(*output)?)
    }
}

/// A configuration in which tenants, from the first on, have these weights.
pub fn weighted(weights: &[u32]) -> String {
    let tenants = (1..).zip(weights);
    tenants
        .map(|(nth, weight)| format!("[tenants.t{nth}]\nuid = {}\nweight = {weight}\n", FIRST_UID + nth))
        .collect()
}

/// A tenant's connection; tenant 0 is this process' own user.
pub fn connect(running: &Running, tenant: usize) -> Result<Client> {
    match u32::try_from(tenant)? {
        0 => running.connect(),
        tenant => running.connect_as(FIRST_UID + tenant),
    }
}

/// Waits until a standby is ready: while a process is made, others wait for the driver now and then, for 20 ms at the most
/// on an H200, which is not what first calls are measured for.
pub fn until_standby(running: &Running) -> Result<()> {
    let mut admin = running.admin()?;
    let give_up = Instant::now() + PATIENCE;
    while admin.status()?.devices.iter().any(|device| device.standbys_ready == 0) {
        if Instant::now() > give_up {
            return Err("no standby was ready after 30 s".into());
        }
        pace::until(Instant::now() + LOOK);
    }
    Ok(())
}

/// Waits for the answer to one call; an error unless it is good.
pub fn finish(client: &mut Client, id: u64) -> Result<()> {
    let answer = client.recv_within(PATIENCE)?.ok_or("a call was not answered for 30 s")?;
    match answer.body {
        Some(response::Body::Invoked(_)) if answer.id == id => Ok(()),
        other => Err(format!("a call ended with {other:?}").into()),
    }
}

/// Makes one call and waits for its good end; the nanoseconds it took.
pub fn call(client: &mut Client, call: &Invocation) -> Result<u64> {
    let start = Instant::now();
    let id = client.send_invocation(call)?;
    finish(client, id)?;
    Ok(nanoseconds(start))
}

/// Keeps all calls of a load in flight; the functions are registered. Tenants count from `first`.
pub fn run(running: &Running, load: Load, first: usize) -> Result<Reached> {
    let threads = load.tenants * load.connections;
    let counted = at_once(threads, load.rounds, load.measured, |nth| {
        let mut client = connect(running, first + nth / load.connections)?;
        let calls = Calls::new(&mut client, load.work.function(), load.work, load.in_flight)?;
        Ok((client, calls))
    })?;
    let mut latencies = Histogram::new(3)?;
    let mut tenants = vec![0.0; load.tenants];
    for (nth, histogram) in counted.iter().enumerate() {
        latencies.add(histogram)?;
        tenants[nth / load.connections] += histogram.len() as f64 / load.measured.as_secs_f64();
    }
    let all = Rate::new(threads, threads * load.in_flight, latencies.len(), load.measured, &latencies);
    Ok(Reached { all, tenants })
}

/// So many threads at once, each of which keeps the calls that `ready` gives it in flight; the latencies of each.
pub fn at_once(
    threads: usize,
    rounds: usize,
    measured: Duration,
    ready: impl Fn(usize) -> Result<(Client, Calls)> + Sync,
) -> Result<Vec<Histogram<u64>>> {
    let barrier = Barrier::new(threads);
    let start = Start::new(threads);
    let one = |nth: usize| -> Result<Histogram<u64>, String> {
        let ready = ready(nth);
        // A thread that failed must not keep the others waiting.
        barrier.wait();
        let (mut client, calls) = ready.inspect_err(|_| start.give_up()).map_err(|e| e.to_string())?;
        let counted = keep_in_flight(&mut client, &calls, rounds, measured, &start);
        counted.inspect_err(|_| start.give_up()).map_err(|e| e.to_string())
    };
    let counted = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|nth| scope.spawn(move || one(nth))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let flat = joined.map(|result| result.unwrap_or_else(|_| Err("a client's thread panicked".into())));
        flat.collect::<Result<Vec<_>, String>>()
    })?;
    Ok(counted)
}

/// Keeps each call on its way: an answer is followed by the same call again.
fn keep_in_flight(
    client: &mut Client,
    calls: &Calls,
    rounds: usize,
    measured: Duration,
    start: &Start,
) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    let mut sent: Vec<(u64, Instant)> = Vec::with_capacity(calls.calls.len());
    let begin = Instant::now();
    for call in &calls.calls {
        sent.push((client.send_invocation(call)?, Instant::now()));
    }
    let mut answers = vec![0; calls.calls.len()];
    // Calls that are not warm.
    let mut cold = if rounds == 0 { 0 } else { answers.len() };
    let mut said = false;
    while client.in_flight() > 0 {
        let answer = client.recv_within(PATIENCE)?.ok_or("no call was answered for 30 s")?;
        let Some(response::Body::Invoked(_)) = answer.body else {
            return Err(format!("a call ended with {:?}", answer.body).into());
        };
        let slot = sent.iter().position(|(id, _)| *id == answer.id);
        let slot = slot.ok_or("an answer to a call that was not sent")?;
        let now = Instant::now();
        answers[slot] += 1;
        cold -= usize::from(answers[slot] == rounds);
        let warm = cold == 0 && now >= begin + WARM_UP || now >= begin + LONGEST_WARM_UP;
        if warm && !said {
            said = true;
            start.warm();
        }
        if let Some(&start) = start.at.get() {
            if now >= start + measured {
                continue;
            }
            if now >= start {
                latencies.record(nanoseconds(sent[slot].1))?;
            }
        }
        sent[slot] = (client.send_invocation(&calls.calls[slot])?, now);
    }
    calls.check()?;
    Ok(latencies)
}

/// Keeps each call on its way until it is `over`; hears of each good answer, and how long it took in nanoseconds.
pub fn keep_until(
    client: &mut Client,
    calls: &Calls,
    over: &AtomicBool,
    mut answered: impl FnMut(Instant, u64) -> Result<()>,
) -> Result<()> {
    let send = |client: &mut Client, call| -> Result<(u64, Instant)> {
        let sent = Instant::now();
        Ok((client.send_invocation(call)?, sent))
    };
    let mut sent = calls.calls.iter().map(|call| send(client, call)).collect::<Result<Vec<_>>>()?;
    let mut left = sent.len();
    while left > 0 {
        let answer = client.recv_within(PATIENCE)?.ok_or("no call was answered for 30 s")?;
        let Some(response::Body::Invoked(_)) = answer.body else {
            return Err(format!("a call ended with {:?}", answer.body).into());
        };
        let slot = sent.iter().position(|(id, _)| *id == answer.id);
        let slot = slot.ok_or("an answer to a call that was not sent")?;
        answered(Instant::now(), nanoseconds(sent[slot].1))?;
        match over.load(Ordering::Relaxed) {
            true => left -= 1,
            false => sent[slot] = send(client, &calls.calls[slot])?,
        }
    }
    calls.check()
}

/// How evenly something is shared: 1 where all have the same, 1/n where one has all (Jain's index).
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equal_shares_and_falls_to_one_of_n() {
        assert!((jain(&[5.0, 5.0, 5.0, 5.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
