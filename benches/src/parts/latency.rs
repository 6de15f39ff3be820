//! An empty call, one after the other over one connection, against a round trip through pipes.
//!
//! The floor is a round trip between two cores: a worker works beside the supervisor, not instead of it.
//! Left alone, the kernel puts both ends of a ping-pong on one core, where a wake-up costs a twentieth
//! and nothing can run at the same time; that ratio is shown too.

use pappus_client::{Client, Invocation};

use super::ONE_WORKER;
use crate::Result;
use crate::harness::cores::{self, Pinned};
use crate::harness::functions::{polled, register};
use crate::harness::pipes::{Peer, Waiting};
use crate::harness::sampling::Samples;
use crate::harness::supervisor::Home;
use crate::report::{Report, Unit};

const CALLS: u32 = 1000;
const BLOCKING_TARGET: f64 = 3.0;
const POLLING_TARGET: f64 = 2.0;

/// A way to wait for answers.
struct Way {
    title: &'static str,
    poll_us: u32,
    /// Whether the client asks again and again, too.
    client_polls: bool,
    target: Option<f64>,
}

const WAYS: [Way; 4] = [
    Way { title: "blocking (poll-us=0)", poll_us: 0, client_polls: false, target: Some(BLOCKING_TARGET) },
    Way {
        title: "polling (poll-us=50, the default)",
        poll_us: 50,
        client_polls: false,
        target: Some(POLLING_TARGET),
    },
    Way { title: "polling (poll-us=1000)", poll_us: 1000, client_polls: false, target: Some(POLLING_TARGET) },
    Way { title: "polling (poll-us=1000), client too", poll_us: 1000, client_polls: true, target: None },
];

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    let mut client = supervisor.connect()?;
    register(&mut client, &["hello"])?;
    let hello = Invocation::new("hello");
    client.invoke(&hello)?;

    let mut pipe = Peer::start(Waiting::Blocking)?;
    let mut blocking = Samples::new()?;
    let mut polling = Samples::new()?;
    let (mut one_core, mut two_cores) = (Samples::new()?, Samples::new()?);
    let mut ways = Vec::new();
    for way in &WAYS {
        ways.push((way, Samples::new()?));
    }
    for _ in 0..rounds {
        blocking.round(CALLS, || pipe.round_trip())?;
        pinned_round(&mut one_core, &mut two_cores)?;
        // A peer that polls would take a processor from whatever else is measured.
        let mut spinning = Peer::start(Waiting::Polling)?;
        polling.round(CALLS, || spinning.round_trip())?;
        drop(spinning);
        for (way, samples) in &mut ways {
            supervisor.set("poll-us", way.poll_us)?;
            samples.round(CALLS, || call(&mut client, &hello, way.client_polls))?;
        }
    }

    report.info("pipe round trip, wherever the kernel puts it, p50", blocking.p50(), Unit::Nanoseconds);
    report.info("… with both ends on one core, p50", one_core.p50(), Unit::Nanoseconds);
    report.info("… with its ends on two cores, p50", two_cores.p50(), Unit::Nanoseconds);
    report.info("pipe round trip, polling, p50", polling.p50(), Unit::Nanoseconds);
    for (way, samples) in &ways {
        let title = |what: &str| format!("empty call, {}, {what}", way.title);
        report.info(title("p50"), samples.p50(), Unit::Nanoseconds);
        report.info(title("p99"), samples.p99(), Unit::Nanoseconds);
        let what = title("in pipe round trips on one core");
        report.info(what, samples.ratio_to(&one_core), Unit::Ratio);
        let (what, ratio) = (title("in pipe round trips between two cores"), samples.ratio_to(&two_cores));
        match way.target {
            Some(target) => report.at_most(target, what, ratio, Unit::Ratio),
            None => report.info(what, ratio, Unit::Ratio),
        }
    }
    Ok(())
}

/// The bounds between which a round trip lies, depending on where the kernel puts its ends.
fn pinned_round(one_core: &mut Samples, two_cores: &mut Samples) -> Result<()> {
    let cores = cores::allowed()?;
    let (Some(first), Some(last)) = (cores.first(), cores.last()) else {
        return Err("no core to run on".into());
    };
    for (there, samples) in [(first, one_core), (last, two_cores)] {
        let away = Pinned::to(*there)?;
        let mut pipe = Peer::start(Waiting::Blocking)?;
        drop(away);
        let _here = Pinned::to(*first)?;
        samples.round(CALLS, || pipe.round_trip())?;
    }
    Ok(())
}

fn call(client: &mut Client, invocation: &Invocation, polls: bool) -> Result<()> {
    if polls {
        polled(client, invocation)?;
    } else {
        client.invoke(invocation)?;
    }
    Ok(())
}
