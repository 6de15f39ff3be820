//! `pappus bench`: loads functions with calls and shows how long they take and how many fail.
//!
//! - [`arrivals`]: when calls are due.
//! - [`tally`]: what becomes of them, counted.
//! - [`drive`]: sends them, by the time of [`clock`].
//! - [`socket`], [`http`]: who answers.
//! - [`sweep`]: which rate is next.
//! - [`report`], [`compare`]: what is shown.

mod arrivals;
mod clock;
mod compare;
mod drive;
mod http;
mod report;
mod socket;
mod sweep;
mod tally;
mod tenants;

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pappus_client::{Client, Error};
use serde_json::json;
use tokio::task::LocalSet;

use self::arrivals::{Arrivals, Merged};
use self::clock::Real;
use self::drive::{Run, Target};
use self::http::Gateway;
use self::report::Measured;
use self::socket::{Socket, Work};
use self::sweep::{Limits, Sweep};
use self::tally::{Rules, Tally};
use self::tenants::Tenant;
use crate::arguments::{BenchArguments, InvokeArguments, Json};
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// How long a rate is measured where nothing is said, and how long calls are made before.
const DURATION: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);
/// How often progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(250);

/// Measures, or compares what was measured.
pub(crate) fn run(
    socket: Option<&Path>,
    token_file: Option<&Path>,
    connect: impl FnOnce() -> Result<Client>,
    arguments: &BenchArguments,
    out: &mut dyn Write,
) -> Result<()> {
    if let [a, b] = &arguments.compare[..] {
        return compare::run(a, b, arguments.json.json, out);
    }
    for function in &arguments.functions {
        of_invoke(arguments, function).check().map_err(|why| Failure::Usage(why.to_string()))?;
    }
    let tenants = Tenant::all(arguments.tenants.as_deref(), token_file)?;
    let load = Load::read(arguments, &tenants)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Io { what: "epoll_create", source })?;
    let tokens: Vec<_> = tenants.iter().map(|tenant| tenant.token.clone()).collect();
    let progress = Progress::spinner("preparing inputs");
    let runs = match (&arguments.gateway, socket) {
        (Some(url), _) => LocalSet::new().block_on(&runtime, async {
            let gateway = Gateway::prepare(url, &arguments.functions, &arguments.inputs, &tokens).await?;
            Ok::<_, Failure>(load.measure(Rc::new(gateway), &tenants, &progress).await)
        })?,
        (None, socket) => {
            // It says what to do where there is no socket.
            let mut client = connect_for(connect, &tenants, arguments)?;
            let socket = socket.ok_or_else(|| Failure::Usage("no socket".into()))?;
            let calls: Vec<_> = arguments.functions.iter().map(|name| of_invoke(arguments, name)).collect();
            let work = Work::prepare(&mut client, &calls)?;
            drop(client);
            LocalSet::new().block_on(&runtime, async {
                let in_flight =
                    arguments.clients.unwrap_or(arguments.in_flight).clamp(1, arguments.in_flight);
                let socket = Socket::connect(socket, &tokens, work, in_flight).await?;
                Ok::<_, Failure>(load.measure(Rc::new(socket), &tenants, &progress).await)
            })?
        }
    };
    drop(progress);
    show(arguments, &load, &tenants, &runs, out)
}

/// A connection that asks what functions take: as the first tenant, or as the user.
fn connect_for(
    connect: impl FnOnce() -> Result<Client>,
    tenants: &[Tenant],
    arguments: &BenchArguments,
) -> Result<Client> {
    let mut client = connect()?;
    if let (Some(_), Some(token)) = (&arguments.tenants, &tenants[0].token) {
        client.act_for(token.as_bytes())?;
    }
    Ok(client)
}

/// The same call as `pappus invoke` would make it.
fn of_invoke(arguments: &BenchArguments, function: &str) -> InvokeArguments {
    InvokeArguments {
        name: function.to_owned(),
        inputs: arguments.inputs.clone(),
        outputs: Vec::new(),
        checked: false,
        dumps: Vec::new(),
        deadline: None,
        request_id: None,
        repeat: u64::MAX,
        json: Json { json: false },
    }
}

/// Which calls are made, and what is asked of their answers.
#[derive(Debug)]
struct Load<'a> {
    arguments: &'a BenchArguments,
    rules: Rules,
    limits: Limits,
    /// The times of a trace, by tenant.
    trace: Option<Vec<Vec<Duration>>>,
}

impl<'a> Load<'a> {
    fn read(arguments: &'a BenchArguments, tenants: &[Tenant]) -> Result<Self> {
        let trace = arguments.trace.as_deref().map(|path| {
            let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
            let names: Vec<_> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            let read = arrivals::trace(&text, &names);
            read.map_err(|why| Failure::Refused(format!("trace {}: {why}", path.display())))
        });
        let trace = trace.transpose()?;
        let last = trace.as_ref().map(|calls| calls.iter().flatten().max().copied().unwrap_or_default());
        let warm_up = if trace.is_some() { Duration::ZERO } else { WARM_UP };
        let from = arguments.warm_up.unwrap_or(warm_up);
        let to = match (arguments.duration, last) {
            (Some(duration), _) => from.saturating_add(duration),
            // The last call of a trace is one, too.
            (None, Some(last)) => last.max(from) + Duration::from_nanos(1),
            (None, None) => from + DURATION,
        };
        let until = if arguments.duration.is_none() && last.is_some() { Duration::MAX } else { to };
        let rules = Rules { from, to, until, deadline: arguments.deadline };
        let limits = Limits { failed_share: arguments.max_errors, p99: arguments.max_p99 };
        Ok(Self { arguments, rules, limits, trace })
    }

    /// One run, or those of a sweep.
    async fn measure<T: Target + 'static>(
        &self,
        target: Rc<T>,
        tenants: &[Tenant],
        progress: &Progress,
    ) -> Vec<Measured> {
        let mut runs = Vec::new();
        let mut sweep = Sweep::new(self.arguments.step);
        let mut rate = self.arguments.rate;
        loop {
            let run = self.once(target.clone(), rate, tenants, progress).await;
            let holds = run.holds;
            runs.push(run);
            let Some(last) = rate.filter(|_| self.arguments.sweep) else { break };
            rate = sweep.next(last, holds);
            if rate.is_none() {
                break;
            }
        }
        runs
    }

    async fn once<T: Target + 'static>(
        &self,
        target: Rc<T>,
        rate: Option<f64>,
        tenants: &[Tenant],
        progress: &Progress,
    ) -> Measured {
        let run = Run::new(target, Real::new(), self.rules, tenants.len(), self.arguments.in_flight);
        let work = async {
            match (rate, &self.trace, self.arguments.clients) {
                (Some(rate), _, _) => {
                    let streams = (0..).zip(tenants).map(|(nth, tenant)| {
                        let seed = self.arguments.seed.wrapping_mul(1 << 32).wrapping_add(nth);
                        Arrivals::new(self.arguments.arrivals, tenant.rate.unwrap_or(rate), seed)
                    });
                    run.open(Merged::new(streams.collect(), self.rules.to)).await;
                }
                (None, Some(trace), _) => {
                    let streams = trace.iter().map(|calls| calls.iter().copied()).collect();
                    run.open(Merged::new(streams, self.rules.to)).await;
                }
                (None, None, clients) => run.closed(clients.unwrap_or(1)).await,
            }
        };
        let showing = async {
            let began = tokio::time::Instant::now();
            loop {
                tokio::time::sleep(SHOW_EVERY).await;
                let sum = |count: fn(&Tally) -> u64| run.tallies.borrow().iter().map(count).sum::<u64>();
                let (answered, failed) = (sum(|tally| tally.answered), sum(|tally| tally.failed()));
                let rate = rate.map_or_else(String::new, |rate| format!("{rate:.1} calls/s: "));
                let (at, of) = (began.elapsed().as_secs(), self.rules.to.as_secs());
                progress.says(&format!("{rate}{at} of {of} s, {answered} answered, {failed} failed"));
            }
        };
        // Showing never ends by itself.
        beside(work, showing).await;
        let tallies = run.tallies.take();
        let mut all = Tally::new(self.rules);
        tallies.iter().for_each(|tally| all.add(tally));
        let names = tenants.iter().map(|tenant| tenant.name.clone());
        Measured { rate, holds: self.limits.hold(&all), all, tenants: names.zip(tallies).collect() }
    }
}

/// Does the work, and something else as long as it takes.
async fn beside(work: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut work, mut other) = (std::pin::pin!(work), std::pin::pin!(other));
    std::future::poll_fn(|context| {
        let _ = other.as_mut().poll(context);
        work.as_mut().poll(context)
    })
    .await;
}

fn show(
    arguments: &BenchArguments,
    load: &Load<'_>,
    tenants: &[Tenant],
    runs: &[Measured],
    out: &mut dyn Write,
) -> Result<()> {
    let held = runs.iter().filter(|run| run.holds).filter_map(|run| run.rate);
    let highest = held.fold(None, |most: Option<f64>, rate| Some(most.map_or(rate, |most| most.max(rate))));
    if arguments.csv {
        report::csv(runs, out)?;
    } else if arguments.json.json {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let how = match (arguments.rate, arguments.clients) {
            (Some(_), _) => format!("{:?}", arguments.arrivals).to_lowercase(),
            (None, Some(_)) => "closed".to_owned(),
            (None, None) => "trace".to_owned(),
        };
        let value = json!({
            "version": pappus_version::VERSION,
            "functions": arguments.functions,
            "over": arguments.gateway.as_deref().unwrap_or("socket"),
            "arrivals": how,
            "clients": arguments.clients,
            "seed": arguments.seed,
            "tenants": tenants.len(),
            "in_flight": arguments.in_flight,
            "warm_up_ns": ns(load.rules.from),
            "duration_ns": ns(load.rules.to - load.rules.from),
            "deadline_ns": ns(load.rules.deadline),
            "max_failed_share": load.limits.failed_share,
            "max_p99_ns": load.limits.p99.map(ns),
            "highest_rate": highest,
            "runs": runs.iter().map(Measured::to_json).collect::<Vec<_>>(),
        });
        writeln!(out, "{value}")?;
    } else {
        report::print(runs, out)?;
        if arguments.sweep {
            match highest {
                Some(rate) => writeln!(out, "highest rate that holds: {rate:.1} calls/s of each tenant")?,
                None => writeln!(out, "no rate holds: begin lower")?,
            }
        }
    }
    match runs.iter().any(|run| run.all.answered > 0) {
        true => Ok(()),
        false => {
            let errors = runs.iter().flat_map(|run| run.all.errors.keys()).map(String::as_str);
            let codes: std::collections::BTreeSet<&str> = errors.collect();
            let codes = codes.into_iter().collect::<Vec<_>>().join(", ");
            Err(Failure::Failed(format!(
                "no call was answered: {}",
                if codes.is_empty() { "none was due" } else { &codes }
            )))
        }
    }
}
