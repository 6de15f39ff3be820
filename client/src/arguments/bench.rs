//! The options of `pappus bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::assignment;
use super::{Assignment, Json, values};
use crate::input::Spec;

pub(super) const EXAMPLES: &str = "\
Open loop, with --rate: calls are sent when they are due, whether or not earlier ones were answered, as by many
users who know nothing of each other. A latency is counted from the moment at which its call was due, so a server that
stalls is charged for every call that it keeps waiting (no coordinated omission).
Closed loop, with --clients: each client sends its next call when its last one is answered. It shows the most calls a
second; its latencies say little about users.

Examples:
  pappus bench vec_add -i A=f32:1,2 -i B=f32:3,4 --rate 500
  pappus bench vec_add -i A=a.npy -i B=b.npy --clients 8 --duration 5s
  pappus bench inference -i size=i64:224,224 … --rate 20 --sweep --max-p99 200ms --json > now.json
  pappus bench resnet18 -i x=x.npy --trace arrivals.txt
  pappus bench vec_add -i A=a.npy -i B=b.npy --rate 200 --tenants tenants.txt --gateway http://localhost:8000
  pappus bench --compare before.json now.json

A sweep begins at --rate and multiplies by --step until a rate does not hold: more than --max-errors of its calls
failed, its p99 is above --max-p99, or fewer than 95 % as many calls were answered as were due. Two more rates between
the last that held and the first that did not find the limit more exactly.

A line of --tenants is NAME RATE TOKEN: all of them call the function, at rates of their own, or with - at --rate,
which is what a sweep raises. Their tokens are taken as from a gateway's user. A line of --trace is SECONDS [TENANT],
from the start of the run; the trace's last call ends it.

A call that failed is counted by its code. An answer later than --deadline behind the moment at which its call was due is a
failure, too; so is NOT_SENT, a call that all of --in-flight kept back until its deadline. LATE is by how much the
generator itself sent calls after they were due: where it is not far below the latencies, use a faster or quieter machine.

Together at most 64 KiB of inputs and outputs travel with a call over the socket, others through shared memory.";

/// How calls of an open loop arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalKind {
    /// At random, as from many independent users.
    Poisson,
    /// One each so many milliseconds.
    Uniform,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchArguments {
    /// The function; several are called by turns, with the same inputs
    #[arg(value_name = "FUNCTION", required_unless_present = "compare")]
    pub(crate) functions: Vec<String>,
    /// An input, as of `pappus invoke`
    #[arg(
        short = 'i',
        long = "input",
        value_name = "A=[TYPE:]FILE[,FILE...]",
        value_parser = assignment::<Spec>("NAME=FILE", "--input A=")
    )]
    pub(crate) inputs: Vec<Assignment<Spec>>,
    /// Open loop: so many calls a second, of each tenant
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with_all = ["clients", "trace"])]
    #[arg(required_unless_present_any = ["clients", "trace", "compare"])]
    pub(crate) rate: Option<f64>,
    /// How the calls of an open loop arrive
    #[arg(long, value_enum, value_name = "HOW", default_value = "poisson")]
    pub(crate) arrivals: ArrivalKind,
    /// Open loop: calls at the times of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["clients", "sweep"])]
    pub(crate) trace: Option<PathBuf>,
    /// Closed loop: so many clients of each tenant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "sweep")]
    pub(crate) clients: Option<u32>,
    /// Raise the rate until it does not hold any more
    #[arg(long, requires = "rate")]
    pub(crate) sweep: bool,
    /// By what a sweep multiplies the rate
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = step, requires = "sweep")]
    pub(crate) step: f64,
    /// The most failed calls of a rate that holds
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = share)]
    pub(crate) max_errors: f64,
    /// The highest p99 of a rate that holds, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = values::some_time)]
    pub(crate) max_p99: Option<Duration>,
    /// How long each rate is measured [default: 10s, or to the end of the trace]
    #[arg(long, value_name = "TIME", value_parser = values::some_time)]
    pub(crate) duration: Option<Duration>,
    /// How long calls are made before that and not counted [default: 1s, with a trace none]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Option<Duration>,
    /// The latest answer that counts as one
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::some_time)]
    pub(crate) deadline: Duration,
    /// The most calls of a tenant that are on their way at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: u32,
    /// Tenants that call, one a line: NAME RATE TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) tenants: Option<PathBuf>,
    /// Call over HTTP through the gateway at this address, such as http://localhost:8000
    #[arg(long, value_name = "URL")]
    pub(crate) gateway: Option<String>,
    /// Where random arrivals begin; the same number gives the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print a line of comma-separated values for each rate and tenant
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Show two results of --json side by side
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], conflicts_with_all = ["functions", "rate", "clients", "trace"])]
    pub(crate) compare: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// A rate that can be sent: above none, and less than one machine can send.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(rate),
        _ => Err("expected calls a second, more than 0 and at most 1000000".into()),
    }
}

fn step(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(step) if step > 1.0 && step <= 100.0 => Ok(step),
        _ => Err("expected a factor above 1, such as 1.5".into()),
    }
}

/// `1%` as 0.01.
fn share(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').map(|percent| percent.trim().parse::<f64>());
    match share {
        Some(Ok(percent)) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a percentage, such as 1%".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        assert_eq!(
            (rate("0.5"), step("1.5"), share("1%"), share("0 %")),
            (Ok(0.5), Ok(1.5), Ok(0.01), Ok(0.0))
        );
        for wrong in ["0", "-1", "NaN", "inf", "x", ""] {
            assert!(rate(wrong).is_err() && step(wrong).is_err() && share(wrong).is_err(), "{wrong}");
        }
        assert!(step("1").is_err() && share("0.01").is_err() && share("101%").is_err());
    }
}
