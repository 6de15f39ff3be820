//! The order in which busy lanes are polled. Polling every lane costs more than a small call takes, and calls
//! mostly end in the order in which they started: a round polls the two oldest lanes and one of the others, a
//! different one each time, so that every lane is polled within as many rounds as there are lanes.

use std::collections::VecDeque;

use pappus_protocol::LaneId;

/// How many of the oldest lanes a round polls.
const OLDEST: usize = 2;

/// Busy lanes, oldest call first.
#[derive(Debug, Default)]
pub(super) struct PollOrder {
    lanes: VecDeque<LaneId>,
    /// Counts rounds, to pick one of the lanes that are not the oldest.
    rounds: usize,
}

/// One round of polling.
#[derive(Debug)]
pub(super) struct Round {
    /// Position of the lane to poll next.
    at: usize,
    /// How many of the oldest lanes were polled and are still busy.
    busy: usize,
    /// Position of the second lane that this round polls.
    other: Option<usize>,
}

impl PollOrder {
    /// A lane's call started.
    pub(super) fn push(&mut self, lane: LaneId) {
        self.lanes.push_back(lane);
    }

    /// True if no lane is busy.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Begins a round.
    pub(super) fn round(&mut self) -> Round {
        self.rounds = self.rounds.wrapping_add(1);
        let others = self.lanes.len().saturating_sub(OLDEST);
        let other = (others > 0).then(|| OLDEST + self.rounds % others);
        Round { at: 0, busy: 0, other }
    }
}

impl Round {
    /// The lane to poll; the one before it is still busy unless [`Round::ended`] was called.
    pub(super) fn next(&mut self, order: &PollOrder) -> Option<LaneId> {
        if self.busy == OLDEST {
            // Behind the oldest, only the lane that this round picked.
            self.at = self.at.max(self.other.take()?);
        }
        self.busy = (self.busy + 1).min(OLDEST);
        let lane = order.lanes.get(self.at).copied();
        self.at += 1;
        lane
    }

    /// The call of the lane that was polled last is over.
    pub(super) fn ended(&mut self, order: &mut PollOrder) {
        self.at -= 1;
        order.lanes.remove(self.at);
        self.busy = self.busy.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round over lanes of which the calls in `over` have ended; the lanes that were polled.
    fn polled(order: &mut PollOrder, over: &[u32]) -> Vec<u32> {
        let mut round = order.round();
        let mut seen = Vec::new();
        while let Some(lane) = round.next(order) {
            seen.push(lane.get());
            if over.contains(&lane.get()) {
                round.ended(order);
            }
        }
        seen
    }

    #[test]
    fn ended_calls_are_found_in_order_and_every_lane_is_polled() {
        let mut order = PollOrder::default();
        LaneId::first(8).for_each(|lane| order.push(lane));
        assert_eq!(polled(&mut order, &[0, 1, 2])[..5], [0, 1, 2, 3, 4], "on behind those that are over");
        assert_eq!(order.lanes, [3, 4, 5, 6, 7].map(LaneId::new));
        let mut seen: Vec<_> = (0..3).flat_map(|_| polled(&mut order, &[])).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [3, 4, 5, 6, 7], "each within as many rounds as there are others");
        while !order.is_empty() {
            polled(&mut order, &[3, 4, 5, 6, 7]);
        }
        assert!(polled(&mut order, &[]).is_empty());
    }

    #[test]
    fn few_lanes_are_all_polled_each_round() {
        let mut order = PollOrder::default();
        for lane in [5, 9, 1] {
            order.push(LaneId::new(lane));
        }
        assert_eq!(polled(&mut order, &[]), [5, 9, 1]);
        assert_eq!(polled(&mut order, &[9]), [5, 9, 1]);
        assert_eq!(polled(&mut order, &[5, 1]), [5, 1]);
    }
}
