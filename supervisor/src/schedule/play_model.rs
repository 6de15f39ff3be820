//! A run of the model: events, and then an end to everything.

use super::event::Event;
use super::*;
use crate::schedule::quarantine::Use;

/// All of these events; then every call is answered, and nothing may be left behind.
pub(super) fn play(shape: Shape, policy: Policy, events: &[Event]) -> Result<(), TestCaseError> {
    let mut w = World::new(shape, policy);
    let mut next = 0;
    for event in events {
        match *event {
            Event::Submit { domain, function, deadline_ms, memory } => {
                next += 1;
                let memory = if domain == LIMITED.0 { memory.min(LIMITED.1 - OTHERS) } else { memory };
                // Calls that need more go elsewhere.
                let memory = memory.min(w.shape.memory_bytes - 2 * OTHERS);
                w.submit(next, domain, function, deadline_ms, memory);
            }
            Event::Finish { pick, verdict } => w.finish(pick, verdict),
            Event::Outlast { pick } => w.outlast(pick),
            Event::FallApart { pick } => w.fall_apart(pick),
            Event::Gone { worker, from_outside } if w.processes.contains_key(&WorkerId::new(worker)) => {
                w.gone(WorkerId::new(worker), from_outside);
            }
            Event::Clear { pick } => w.clear(pick),
            Event::Bury { pick, loss } => w.bury(pick, loss),
            Event::Ready(worker) if worker < w.slots => w.ready(WorkerId::new(worker)),
            Event::Scrubbed(worker) => w.scrubbed(WorkerId::new(worker)),
            Event::Cancel(pick) => w.cancel(1 + pick as u64 % (next + 1)),
            Event::Yield { used_ms } => w.yields(used_ms),
            Event::Moved => w.moved(),
            Event::Wait(ms) => {
                w.now += ms * MS;
                w.scheduler.handle(w.now, Tick {}, &mut w.actions);
            }
            Event::Context { urgent } => w.context(urgent),
            Event::ContextGone => {
                w.set_contexts(w.contexts.saturating_sub(OTHERS));
            }
            Event::Standbys(count) => {
                w.scheduler.handle(w.now, StandbysReady { count }, &mut w.actions);
            }
            Event::Resize(to, remakes) => w.resize(to, remakes),
            Event::Withdraw { pick, elsewhere } => w.withdraw(pick, elsewhere),
            Event::Gone { .. } | Event::Ready(_) => {}
        }
        w.apply();
    }
    // With every worker there, every lost call buried and every call answered, nothing is left behind. Nothing
    // expires from here on: no residency is waited for.
    w.scheduler.queues.residency.set_least(0);
    w.scheduler.queues.residency.set_ready(w.slots);
    w.scheduler.turns.iter_mut().for_each(Turns::forgive);
    // Who waited for the end of a fine is next.
    w.scheduler.handle(w.now, Tick {}, &mut w.actions);
    w.shape.residency_ns = 0;
    w.set_contexts(0);
    // Nor does a call wait for company.
    w.scheduler.now_ns = w.now;
    let used = w.calls.values().map(|known| Use { function: known.function, caller: known.domain });
    for used in used.collect::<Vec<_>>() {
        w.scheduler.end_company(used);
        w.actions.append(&mut w.scheduler.actions);
        w.apply();
    }
    for _ in 0..20 * (next + 1) {
        w.scheduler.now_ns = w.now;
        w.scheduler.make_room();
        w.actions.append(&mut w.scheduler.actions);
        w.apply();
        WorkerId::first(w.slots).for_each(|worker| {
            w.scrubbed(worker);
            w.apply();
            w.ready(worker);
            w.apply();
        });
        w.bury(0, Loss::InIt);
        w.apply();
        w.yields(0);
        w.apply();
        w.moved();
        w.apply();
        w.context_again();
        w.apply();
        w.set_contexts(0);
        w.finish(0, Verdict::Well);
        w.apply();
    }
    for (call, known) in &w.calls {
        prop_assert!(!w.trouble.may_start(w.now, known.domain), "{call} left waiting: {known:?}");
    }
    w.now += 3_600_000 * MS;
    w.scheduler.handle(w.now, Tick {}, &mut w.actions);
    w.apply();
    prop_assert!(w.calls.is_empty(), "left waiting: {:?}", w.calls);
    prop_assert_eq!(w.scheduler.queued() + w.scheduler.running(), 0);
    // What was changed has taken effect.
    prop_assert!(!w.scheduler.resizing, "{:?}", w.scheduler.workers);
    prop_assert!(w.processes.len() <= w.shape.workers);
    for (_, _, memory) in w.processes.values() {
        prop_assert_eq!(memory.lanes.len(), w.shape.lanes as usize);
    }
    Ok(())
}
