//! What may happen to a scheduler, at random.

use proptest::prelude::*;

use crate::ids::{FunctionId, TenantId};
use crate::schedule::{Loss, Size, Verdict};

/// One of them, in terms that the state at that moment gives a meaning.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Submit { domain: TenantId, function: FunctionId, deadline_ms: u64, size: Size },
    Finish { pick: usize, verdict: Verdict },
    Gone { worker: usize, from_outside: bool },
    Clear { pick: usize },
    Bury { pick: usize, loss: Loss },
    Ready(usize),
    Scrubbed(usize),
    Cancel(usize),
    Yield { used_ms: u64 },
    Moved,
    Wait(u64),
}

/// Any of them, in any order.
pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let size = prop_oneof![12 => Just(Size::Lane), 2 => Just(Size::Wide), 1 => Just(Size::Exclusive)];
    let verdict =
        prop_oneof![4 => Just(Verdict::Well), 3 => Just(Verdict::Fault), 1 => Just(Verdict::Neither)];
    let loss = prop_oneof![
        4 => Just(Loss::InIt), 3 => Just(Loss::NeverHanded), 1 => Just(Loss::EndedFromOutside)
    ];
    let event = prop_oneof![
        6 => (0..5u32, 0..2u64, 1..400u64, size).prop_map(|(domain, function, deadline_ms, size)| {
            Event::Submit { domain: TenantId::new(domain), function: FunctionId::new(function), deadline_ms, size }
        }),
        6 => (any::<usize>(), verdict).prop_map(|(pick, verdict)| Event::Finish { pick, verdict }),
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
    ];
    proptest::collection::vec(event, 0..200)
}
