//! The lanes with a running call, and which of them to look at. Asking about every lane costs more than
//! what a small call takes, and calls mostly end in the order in which they started: a look is at the
//! oldest ones, and at one more of the others in turn, so that none is overlooked for long.

use std::collections::VecDeque;

/// Of the oldest, how many that still run are asked.
const OLDEST: usize = 2;

/// Running lanes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Running {
    lanes: VecDeque<usize>,
    /// Counts looks, to take turns among those that are not the oldest.
    turn: usize,
}

/// One round of looks.
#[derive(Debug)]
pub(super) struct Looks {
    /// Where in the order the next look is.
    at: usize,
    /// Of the oldest, how many still run.
    waiting: usize,
    /// The one of the others that is looked at this time.
    other: Option<usize>,
}

impl Running {
    /// A lane's call started.
    pub(super) fn push(&mut self, lane: usize) {
        self.lanes.push_back(lane);
    }

    /// Whether nothing runs.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// A round of looks.
    pub(super) fn looks(&mut self) -> Looks {
        self.turn = self.turn.wrapping_add(1);
        let others = self.lanes.len().saturating_sub(OLDEST);
        let other = (others > 0).then(|| OLDEST + self.turn % others);
        Looks { at: 0, waiting: 0, other }
    }
}

impl Looks {
    /// The lane to look at; the one before it still runs unless [`Looks::ended`] was called.
    pub(super) fn next(&mut self, running: &Running) -> Option<usize> {
        if self.waiting == OLDEST {
            // Behind the oldest, only the one whose turn it is.
            self.at = self.at.max(self.other.take()?);
        }
        self.waiting = (self.waiting + 1).min(OLDEST);
        let lane = running.lanes.get(self.at).copied();
        self.at += 1;
        lane
    }

    /// The call of the lane that was looked at is over.
    pub(super) fn ended(&mut self, running: &mut Running) {
        self.at -= 1;
        running.lanes.remove(self.at);
        self.waiting = self.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round over lanes of which some are over; the lanes that were looked at.
    fn round(running: &mut Running, over: &[usize]) -> Vec<usize> {
        let mut looks = running.looks();
        let mut seen = Vec::new();
        while let Some(lane) = looks.next(running) {
            seen.push(lane);
            if over.contains(&lane) {
                looks.ended(running);
            }
        }
        seen
    }

    #[test]
    fn what_is_over_is_found_in_order_and_no_lane_is_overlooked() {
        let mut running = Running::default();
        (0..8).for_each(|lane| running.push(lane));
        assert_eq!(round(&mut running, &[0, 1, 2])[..5], [0, 1, 2, 3, 4], "on behind those that are over");
        assert_eq!(running.lanes, [3, 4, 5, 6, 7]);
        let mut seen: Vec<_> = (0..3).flat_map(|_| round(&mut running, &[])).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [3, 4, 5, 6, 7], "each within as many rounds as there are others");
        while !running.is_empty() {
            round(&mut running, &[3, 4, 5, 6, 7]);
        }
        assert!(round(&mut running, &[]).is_empty());
    }

    #[test]
    fn few_lanes_are_all_looked_at() {
        let mut running = Running::default();
        for lane in [5, 9, 1] {
            running.push(lane);
        }
        assert_eq!(round(&mut running, &[]), [5, 9, 1]);
        assert_eq!(round(&mut running, &[9]), [5, 9, 1]);
        assert_eq!(round(&mut running, &[5, 1]), [5, 1]);
    }
}
