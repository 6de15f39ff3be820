//! What may happen to a scheduler, at random.

use proptest::prelude::*;

use crate::ids::{FunctionId, TenantId};
use crate::schedule::{Loss, Shape, Verdict};

/// One of them, in terms that the state at that moment gives a meaning.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Submit { domain: TenantId, function: FunctionId, deadline_ms: u64, memory: u64 },
    Finish { pick: usize, verdict: Verdict },
    Outlast { pick: usize },
    FallApart { pick: usize },
    Gone { worker: usize, from_outside: bool },
    Clear { pick: usize },
    Bury { pick: usize, loss: Loss },
    Ready(usize),
    Scrubbed(usize),
    Cancel(usize),
    Yield { used_ms: u64 },
    Moved,
    Wait(u64),
    Context { urgent: bool },
    ContextGone,
    Standbys(usize),
    Resize(Shape, bool),
    Withdraw { pick: usize, elsewhere: bool },
}

/// What the device may become; some of it is decided where it does.
fn sizes() -> impl Strategy<Value = (Shape, bool)> {
    let parts = (1..5usize, 1..4u32, 100..9000u32, 0..200u64, 40..120u64, any::<bool>());
    parts.prop_map(|(workers, lanes, quantum_us, residency_ms, memory_bytes, remakes)| {
        let (quantum_us, residency_ns) = (Some(quantum_us), residency_ms * 1_000_000);
        (Shape { quantum_us, residency_ns, memory_bytes, ..Shape::new(workers, lanes) }, remakes)
    })
}

/// Any of them, in any order.
pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let memory = prop_oneof![4 => Just(0), 8 => 1..20u64, 4 => 20..51u64, 1 => 51..81u64];
    let verdict =
        prop_oneof![4 => Just(Verdict::Well), 3 => Just(Verdict::Fault), 1 => Just(Verdict::Neither)];
    let loss = prop_oneof![
        4 => Just(Loss::InIt), 3 => Just(Loss::NeverHanded), 1 => Just(Loss::EndedFromOutside),
        1 => Just(Loss::Unexplained)
    ];
    let event = prop_oneof![
        6 => (0..5u32, 0..2u64, 1..400u64, memory).prop_map(|(domain, function, deadline_ms, memory)| {
            Event::Submit { domain: TenantId::new(domain), function: FunctionId::new(function), deadline_ms, memory }
        }),
        6 => (any::<usize>(), verdict).prop_map(|(pick, verdict)| Event::Finish { pick, verdict }),
        2 => any::<usize>().prop_map(|pick| Event::Outlast { pick }),
        2 => any::<usize>().prop_map(|pick| Event::FallApart { pick }),
        1 => (0..4usize, prop::bool::weighted(0.2)).prop_map(|(worker, from_outside)| {
            Event::Gone { worker, from_outside }
        }),
        2 => any::<usize>().prop_map(|pick| Event::Clear { pick }),
        3 => (any::<usize>(), loss).prop_map(|(pick, loss)| Event::Bury { pick, loss }),
        4 => (0..4usize).prop_map(Event::Ready),
        4 => (0..4usize).prop_map(Event::Scrubbed),
        1 => any::<usize>().prop_map(Event::Cancel),
        4 => (0..9u64).prop_map(|used_ms| Event::Yield { used_ms }),
        3 => Just(Event::Moved),
        3 => (1..80u64).prop_map(Event::Wait),
        1 => any::<bool>().prop_map(|urgent| Event::Context { urgent }),
        1 => Just(Event::ContextGone),
        1 => (0..3usize).prop_map(Event::Standbys),
        1 => sizes().prop_map(|(to, remakes)| Event::Resize(to, remakes)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(pick, elsewhere)| Event::Withdraw { pick, elsewhere }),
    ];
    proptest::collection::vec(event, 0..200)
}
