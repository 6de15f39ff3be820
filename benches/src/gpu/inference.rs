//! Saturated throughput of `inference` with 500 repetitions, cleared, from one tenant: against the best bare
//! programs and the ancestors' design.

use super::bed::{Bed, Best};
use super::load::{self, Load, USUAL_ROUNDS};
use crate::Result;
use crate::bare::loops::{Rate, best};
use crate::bare::work::Work;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

/// Lanes that are tried.
pub(super) const LANES: [usize; 3] = [8, 16, 32];
/// Of the short one.
const SHORT_REPETITIONS: u32 = 10;
const BARE_LANES: [usize; 5] = [1, 8, 16, 24, 32];
const BARE_THREADS: [usize; 5] = [1, 2, 4, 8, 14];
const ANCESTORS: [usize; 4] = [1, 2, 4, 8];
/// Rounds in which Pappus and the best bare program take turns.
pub(super) const ROUNDS: usize = 3;
pub(super) const CONNECTIONS: usize = 4;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let bare_args = ["--work=inference", "--repetitions=500"];
    let direct = bed.bare(&bare_args, &BARE_THREADS, &[1])?;
    for rate in &direct {
        let what = format!("bare, kernel by kernel, threads: {}", rate.threads);
        report.info(what, rate.per_second, Unit::PerSecond);
    }
    let graph_args = ["--work=inference", "--repetitions=500", "--graph"];
    let graphs = bed.best_bare(&graph_args, &BARE_LANES)?;
    for Best { rate, .. } in &graphs {
        report.info(format!("bare, graphs, streams: {}", rate.lanes), rate.per_second, Unit::PerSecond);
    }
    let mut ancestors = Vec::new();
    for workers in ANCESTORS {
        let rate = bed.ancestors(workers, &bare_args)?;
        report.info(format!("ancestors' design, workers: {workers}"), rate.per_second, Unit::PerSecond);
        ancestors.push(rate);
    }

    let mut ours = Vec::new();
    for lanes in LANES {
        let running = bed.start(&format!("workers=1,lanes={lanes},memory=16GiB"))?;
        bed.register(&mut running.connect()?, &["inference"])?;
        let rate = load::run(&running, saturating(bed, bed.inference(), lanes), 0)?.all;
        report.info(format!("Pappus, lanes: {lanes}"), rate.per_second, Unit::PerSecond);
        ours.push((lanes, rate));
    }
    let (lanes, _) = best_of(&ours)?;
    let best_graph = Best::of(&graphs)?;

    let running = bed.start(&format!("workers=1,lanes={lanes},memory=16GiB"))?;
    bed.register(&mut running.connect()?, &["inference"])?;
    let (mut to_best, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let bare = bed.again(&graph_args, best_graph)?;
        let ours = load::run(&running, saturating(bed, bed.inference(), lanes), 0)?.all;
        to_best.push(ours.per_second / bare.per_second);
        rates.push(ours.per_second);
    }
    let rate = median(&rates);
    let to = |others: &[Rate]| best(others).map_or(f64::NAN, |other| rate / other.per_second);
    report.at_least(
        0.95,
        format!("Pappus ({lanes} lanes, cleared) / best bare graphs"),
        median(&to_best),
        Unit::Ratio,
    );
    report.at_least(3.0, "Pappus / best bare, kernel by kernel", to(&direct), Unit::Ratio);
    report.at_least(6.0, "Pappus / best of the ancestors' design", to(&ancestors), Unit::Ratio);
    Ok(())
}

/// `inference` with ten repetitions, where launches take most of the time: against the best bare program that launches
/// kernel by kernel.
pub(super) fn short(bed: &Bed, report: &mut Report) -> Result<()> {
    let work = Work::Inference(if bed.rehearses() { 1 } else { SHORT_REPETITIONS });
    let args = ["--work=inference", "--repetitions=10"];
    let direct = bed.bare(&args, &BARE_THREADS, &[1])?;
    let graphs = bed.best_bare(&["--work=inference", "--repetitions=10", "--graph"], &[8, 16])?;
    let graphs: Vec<Rate> = graphs.into_iter().map(|best| best.rate).collect();
    let mut ours = Vec::new();
    for lanes in [8, 16] {
        let running = bed.start(&format!("workers=1,lanes={lanes},memory=16GiB"))?;
        bed.register(&mut running.connect()?, &["inference"])?;
        ours.push((lanes, load::run(&running, saturating(bed, work, lanes), 0)?.all));
    }
    let (lanes, rate) = best_of(&ours)?;
    let title = format!("inference ×10, Pappus ({lanes} lanes, cleared)");
    report.info(&title, rate.per_second, Unit::PerSecond);
    let mut of = |target: f64, others: &[Rate], what: &str| {
        let other = best(others).map_or(f64::NAN, |other| other.per_second);
        report.info(format!("inference ×10, best bare, {what}"), other, Unit::PerSecond);
        report.at_least(target, format!("{title} / best bare, {what}"), rate.per_second / other, Unit::Ratio);
    };
    of(3.0, &direct, "kernel by kernel");
    of(0.95, &graphs, "graphs");
    Ok(())
}

/// Twice as many calls in flight as lanes.
pub(super) fn saturating(bed: &Bed, work: Work, lanes: usize) -> Load {
    let in_flight = (2 * lanes).div_ceil(CONNECTIONS);
    Load {
        work,
        tenants: 1,
        connections: CONNECTIONS,
        in_flight,
        rounds: USUAL_ROUNDS,
        measured: bed.measured,
    }
}

/// The lanes with the most calls a second.
pub(super) fn best_of(rates: &[(usize, Rate)]) -> Result<(usize, Rate)> {
    let best = rates.iter().max_by(|(_, a), (_, b)| a.per_second.total_cmp(&b.per_second));
    Ok(best.cloned().ok_or("nothing was measured")?)
}
