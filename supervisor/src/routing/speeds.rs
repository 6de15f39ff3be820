//! How long calls of one function take on each device, as the callers measured who called it there last.
//!
//! What a caller measured is told to that caller. Others are told what the one in the middle of several callers measured, so that
//! no single caller, slow or quick on purpose, decides where calls of others go.

use super::load::WEIGHT;
use crate::ids::TenantId;

/// Callers that are remembered on each device.
const MAX_CALLERS: usize = 8;
/// What fewer callers measured tells nothing to others.
const ENOUGH_CALLERS: usize = 3;
/// What was measured so long ago tells nothing any more.
const FORGOTTEN_NS: u64 = 600_000_000_000;
/// So much of itself the least that a call takes rises with each call that takes longer.
const RISE: f64 = 1.0 / 4096.0;

/// How long calls of one function take, by device.
#[derive(Debug, Default)]
pub(super) struct Speeds(Vec<Vec<Measured>>);

/// Times of one caller's calls on one device.
#[derive(Debug, Clone, Copy)]
struct Measured {
    caller: TenantId,
    at_ns: u64,
    time: RunTime,
}

/// How long calls of one caller take on one device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunTime {
    pub(super) mean_ns: f64,
    /// The least, which rises slowly while none is as short: others that use the device at the same time are not in it.
    pub(super) least_ns: f64,
}

impl RunTime {
    fn add(&mut self, ran_ns: f64) {
        self.mean_ns += (ran_ns - self.mean_ns) * WEIGHT;
        self.least_ns = (self.least_ns * (1.0 + RISE)).min(ran_ns);
    }
}

impl Speeds {
    /// A call of this caller ran for so long.
    pub(super) fn add(&mut self, device: usize, caller: TenantId, now_ns: u64, ran_ns: f64) {
        if self.0.len() <= device {
            self.0.resize_with(device + 1, Vec::new);
        }
        let there = &mut self.0[device];
        if let Some(own) = there.iter_mut().find(|one| one.caller == caller && one.is_known(now_ns)) {
            own.at_ns = now_ns;
            return own.time.add(ran_ns);
        }
        there.retain(|one| one.is_known(now_ns) && one.caller != caller);
        if there.len() >= MAX_CALLERS
            && let Some((oldest, _)) = there.iter().enumerate().min_by_key(|(_, one)| one.at_ns)
        {
            there.swap_remove(oldest);
        }
        let time = RunTime { mean_ns: ran_ns, least_ns: ran_ns };
        there.push(Measured { caller, at_ns: now_ns, time });
    }

    /// What a caller measured itself.
    pub(super) fn own(&self, device: usize, caller: TenantId, now_ns: u64) -> Option<RunTime> {
        self.known(device, now_ns).find(|one| one.caller == caller).map(|one| one.time)
    }

    /// What the caller in the middle measured, if there are enough.
    pub(super) fn usual(&self, device: usize, now_ns: u64) -> Option<RunTime> {
        let (mut times, mut count) = ([RunTime::default(); MAX_CALLERS], 0);
        for (time, known) in times.iter_mut().zip(self.known(device, now_ns)) {
            *time = known.time;
            count += 1;
        }
        let times = times.get_mut(..count).filter(|_| count >= ENOUGH_CALLERS)?;
        let (_, middle, _) = times.select_nth_unstable_by(count / 2, |a, b| a.mean_ns.total_cmp(&b.mean_ns));
        Some(*middle)
    }

    fn known(&self, device: usize, now_ns: u64) -> impl Iterator<Item = &Measured> {
        let all = self.0.get(device).into_iter().flatten();
        all.filter(move |one| one.is_known(now_ns))
    }
}

impl Measured {
    fn is_known(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < FORGOTTEN_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(times_ms: &[u64]) -> Speeds {
        let mut speeds = Speeds::default();
        for (caller, ms) in (0..).zip(times_ms) {
            speeds.add(0, TenantId::new(caller), 0, (ms * 1_000_000) as f64);
        }
        speeds
    }

    fn usual_ms(speeds: &Speeds, now_ns: u64) -> Option<u64> {
        speeds.usual(0, now_ns).map(|time| (time.mean_ns / 1e6).round() as u64)
    }

    #[test]
    fn one_caller_among_others_decides_for_itself_alone() {
        assert_eq!(usual_ms(&measured(&[2, 2]), 0), None, "two say nothing to others");
        let speeds = measured(&[2, 3, 60_000]);
        assert_eq!(usual_ms(&speeds, 0), Some(3));
        assert_eq!(usual_ms(&measured(&[2, 3, 0]), 0), Some(2));
        let own = speeds.own(0, TenantId::new(2), 0).unwrap();
        assert_eq!(own.mean_ns, 60_000e6);
        assert!(speeds.own(1, TenantId::new(2), 0).is_none() && speeds.usual(1, 0).is_none());
    }

    #[test]
    fn what_is_old_is_forgotten_and_few_callers_are_kept() {
        let mut speeds = measured(&[2, 2, 2]);
        assert_eq!(usual_ms(&speeds, FORGOTTEN_NS - 1), Some(2));
        assert_eq!(usual_ms(&speeds, FORGOTTEN_NS), None);
        speeds.add(0, TenantId::new(0), FORGOTTEN_NS, 7e6);
        assert_eq!(speeds.own(0, TenantId::new(0), FORGOTTEN_NS).unwrap().mean_ns, 7e6, "it begins anew");
        assert_eq!(speeds.0[0].len(), 1);
        for caller in 1..100 {
            speeds.add(0, TenantId::new(caller), FORGOTTEN_NS + u64::from(caller), 1e6);
        }
        assert_eq!(speeds.0[0].len(), MAX_CALLERS);
        assert!(speeds.own(0, TenantId::new(0), FORGOTTEN_NS).is_none());
    }

    #[test]
    fn the_mean_follows_and_the_least_stays_for_long() {
        let mut speeds = measured(&[1]);
        (0..100).for_each(|_| speeds.add(0, TenantId::new(0), 0, 4e6));
        let own = speeds.own(0, TenantId::new(0), 0).unwrap();
        assert!(own.mean_ns > 3.9e6 && own.least_ns < 1.1e6, "{own:?}");
    }
}
