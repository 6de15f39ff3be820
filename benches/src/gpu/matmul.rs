//! Small calls through arenas, 128 KiB in and out: calls a second with the latency at that rate, against the
//! best bare program with the same machine code.

use super::bed::{Bed, Best};
use super::inference::{ROUNDS, best_of};
use super::load::{self, Load, USUAL_ROUNDS};
use crate::Result;
use crate::bare::loops::{Rate, best};
use crate::bare::work::Work;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

const LANES: [usize; 3] = [8, 16, 32];
const BARE_LANES: [usize; 5] = [1, 4, 8, 16, 32];
/// Calls in flight for each lane.
const DEPTHS: [usize; 2] = [2, 3];
const CONNECTIONS: usize = 8;
const P99_NS: f64 = 1e6;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let graph_args = ["--work=matmul", "--graph"];
    let graphs = bed.best_bare(&graph_args, &BARE_LANES)?;
    for Best { rate, .. } in &graphs {
        report.info(format!("bare, graphs, streams: {}", rate.lanes), rate.per_second, Unit::PerSecond);
    }
    let direct_args = ["--work=matmul"];
    let direct = bed.best_bare(&direct_args, &BARE_LANES)?;
    for Best { rate, .. } in &direct {
        report.info(format!("bare, launches, streams: {}", rate.lanes), rate.per_second, Unit::PerSecond);
    }
    let threaded = bed.bare(&graph_args, &[2, 4], &[8])?;
    for rate in &threaded {
        let what = format!("bare, graphs, threads with 8 streams each: {}", rate.threads);
        report.info(what, rate.per_second, Unit::PerSecond);
    }

    let mut ours = Vec::new();
    let mut depths = Vec::new();
    for lanes in LANES {
        let running = bed.start(&settings(lanes))?;
        bed.register(&mut running.connect()?, &["matmul"])?;
        for depth in DEPTHS {
            let rate = load::run(&running, small(bed, lanes, depth), 0)?.all;
            let title = format!("Pappus, lanes: {lanes}, in flight: {}", rate.lanes);
            report.info(title.clone(), rate.per_second, Unit::PerSecond);
            report.info(format!("{title}, p99"), rate.p99_ns, Unit::Nanoseconds);
            // The rate counts only with its latency; where none keeps it, the best of them is shown as missed.
            let counted = if rate.p99_ns <= P99_NS { rate } else { late(rate) };
            ours.push((ours.len(), counted));
            depths.push((lanes, depth));
        }
    }
    let (nth, _) = best_of(&ours)?;
    let (lanes, depth) = depths[nth];
    let (graph, launches) = (Best::of(&graphs)?, Best::of(&direct)?);
    let (bare, args) = match graph.rate.per_second >= launches.rate.per_second {
        true => (graph, &graph_args[..]),
        false => (launches, &direct_args[..]),
    };

    let running = bed.start(&settings(lanes))?;
    bed.register(&mut running.connect()?, &["matmul"])?;
    let (mut ratios, mut latencies, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let beside = bed.again(args, bare)?;
        let rate = load::run(&running, small(bed, lanes, depth), 0)?.all;
        ratios.push(rate.per_second / beside.per_second);
        latencies.push(rate.p99_ns);
        rates.push(rate.per_second);
    }
    let what = format!("Pappus ({lanes} lanes, cleared) / best bare, one thread");
    report.at_least(0.9, what, median(&ratios), Unit::Ratio);
    report.at_most(P99_NS, "… p99 at that rate", median(&latencies), Unit::Nanoseconds);
    if let Some(threaded) = best(&threaded) {
        report.info("… / best bare, several threads", median(&rates) / threaded.per_second, Unit::Ratio);
    }
    Ok(())
}

fn settings(lanes: usize) -> String {
    format!("workers=1,lanes={lanes},memory=16GiB")
}

fn small(bed: &Bed, lanes: usize, depth: usize) -> Load {
    let in_flight = (depth * lanes).div_ceil(CONNECTIONS);
    Load {
        work: Work::Matmul,
        tenants: 1,
        connections: CONNECTIONS,
        in_flight,
        rounds: USUAL_ROUNDS,
        measured: bed.measured,
    }
}

/// Below every rate that keeps the latency, in the same order.
fn late(rate: Rate) -> Rate {
    Rate { per_second: rate.per_second / 1e6, ..rate }
}
