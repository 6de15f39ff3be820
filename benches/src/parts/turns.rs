//! How long a turn takes from one worker's word to the next one's, beyond what the supervisor decides and the device needs:
//! over the turn page and over pipes alone, where both sides poll and where both sleep.

use std::time::Duration;

use pappus_protocol::pipe::{self, Got, Inbox, Outbox};
use pappus_protocol::turn_page::{Orders, Prices, WorkerEnd, Yields};
use pappus_protocol::{FromWorker, ToWorker, TurnId};
use pappus_shmem::SharedWords;

use crate::Result;
use crate::harness::sampling::Samples;
use crate::report::{Report, Unit};

/// Changes of a round.
const CHANGES: u32 = 2_000;
const PRICES: Prices = Prices { quantum_us: 5_000, change_us: 140 };
/// What the supervisor may add to a change of turns.
const TARGET_NS: f64 = 20_000.0;

/// How a change is made known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// On the page; by a frame to who sleeps.
    Page,
    /// By a frame.
    Pipes,
}

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let polls = Duration::from_secs(10);
    for (waits, spin) in [("both poll", polls), ("both sleep", Duration::ZERO)] {
        let (mut page, mut pipes) = (Samples::new()?, Samples::new()?);
        for _ in 0..rounds {
            changes(Over::Page, spin, &mut page)?;
            changes(Over::Pipes, spin, &mut pipes)?;
        }
        let title = |over: &str| format!("a turn changes hands over {over}, {waits}");
        match spin.is_zero() {
            true => report.info(title("the page"), page.p50(), Unit::Nanoseconds),
            false => report.at_most(TARGET_NS, title("the page"), page.p50(), Unit::Nanoseconds),
        }
        report.info(title("pipes alone"), pipes.p50(), Unit::Nanoseconds);
        report.info(format!("page / pipes, {waits}"), page.ratio_to(&pipes), Unit::Ratio);
    }
    Ok(())
}

/// One end of the channels of a worker that does nothing but take turns.
struct End {
    over: Over,
    spin: Duration,
    inbox: Inbox,
    outbox: Outbox,
}

impl End {
    /// Waits until `look` finds something; over pipes alone, a frame says so. False at the end.
    fn until<B: pipe::Beside>(&mut self, page: &mut B, look: impl Fn(&mut B) -> bool) -> Result<bool> {
        loop {
            let mut told = self.over == Over::Page;
            while self.inbox.frame()?.is_some() {
                told = true;
            }
            if told && look(page) {
                return Ok(true);
            }
            let got = match self.over {
                Over::Page => self.inbox.wait_beside(self.spin, None, None, page)?,
                Over::Pipes => self.inbox.wait(self.spin, None, None)?,
            };
            if got == Got::Closed {
                return Ok(false);
            }
        }
    }

    fn is_told(&self, sleeps: bool) -> bool {
        sleeps || self.over == Over::Pipes
    }
}

/// A round: the supervisor grants a turn, and the worker gives it back at once, which are the two steps of a change.
fn changes(over: Over, spin: Duration, samples: &mut Samples) -> Result<()> {
    let (words, memfd) = SharedWords::create("pappus-bench-turns")?;
    let (commands, to) = pipe::pipe()?;
    let (from, answers) = pipe::pipe()?;
    let end = |inbox, outbox| End { over, spin, inbox: Inbox::new(inbox), outbox: Outbox::new(outbox) };
    let (mut ours, mut theirs) = (end(from, to), end(commands, answers));
    let words = std::sync::Arc::new(words);
    let (mut orders, mut yields) = (Orders::new(words.clone()), Yields::new(words));
    let worker = std::thread::spawn(move || -> std::result::Result<(), String> {
        let words = SharedWords::open(&memfd).map_err(|e| e.to_string())?;
        keep_yielding(&mut theirs, WorkerEnd::new(words)).map_err(|e| e.to_string())
    });
    let mut turns = (1..).map(TurnId::new);
    let measured = samples.round(CHANGES, || {
        let turn = turns.next().ok_or("no more turns")?;
        let sleeps = orders.grant(turn, PRICES);
        if ours.is_told(sleeps) {
            ours.outbox.push_to_worker(&ToWorker::Order);
            ours.outbox.flush_blocking()?;
        }
        match ours.until(&mut yields, |yields| yields.look().is_some())? {
            true => Ok(()),
            false => Err("the worker ended".into()),
        }
    });
    // It ends with its pipe.
    drop(ours);
    worker.join().map_err(|_| "the worker panicked")??;
    measured
}

fn keep_yielding(end: &mut End, mut page: WorkerEnd<SharedWords>) -> Result<()> {
    let mut turns = (1..).map(TurnId::new);
    while end.until(&mut page, |page| page.look().is_some())? {
        let turn = turns.next().ok_or("no more turns")?;
        let sleeps = page.give_back(turn, 0);
        if end.is_told(sleeps) {
            end.outbox.push_from_worker(&FromWorker::Yield);
            end.outbox.flush_blocking()?;
        }
    }
    Ok(())
}
