//! Who pays for the turns of shared workers: the payers of the calls that ended meanwhile, by how long these were on the device.

use crate::ids::{IdMap, TenantId};

/// Device time that was not paid for yet.
#[derive(Debug, Default)]
pub(super) struct SharedCharges {
    /// How long calls were on the device, by payer.
    ran_ns: IdMap<TenantId, u64>,
    /// How long turns lasted.
    turns_ns: u64,
}

impl SharedCharges {
    /// A payer's call was on the device for so long.
    pub(super) fn ran(&mut self, payer: TenantId, device_ns: u64) {
        *self.ran_ns.entry(payer).or_default() += device_ns;
    }

    /// Turns lasted so long: what each payer is charged. Where no call ended yet, those that end next pay.
    pub(super) fn took(&mut self, used_ns: u64) -> Vec<(TenantId, u64)> {
        self.turns_ns = self.turns_ns.saturating_add(used_ns);
        let sum_ns: u128 = self.ran_ns.values().map(|ns| u128::from(*ns)).sum();
        if sum_ns == 0 {
            return Vec::new();
        }
        let turns_ns = u128::from(std::mem::take(&mut self.turns_ns));
        let part =
            |(payer, ran_ns): (TenantId, u64)| (payer, (u128::from(ran_ns) * turns_ns / sum_ns) as u64);
        self.ran_ns.drain().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_paid_for_by_those_whose_calls_ran_in_it() {
        let mut charges = SharedCharges::default();
        let [alice, bob] = [1, 2].map(TenantId::new);
        assert_eq!(charges.took(100), [], "no call ended yet");
        charges.ran(alice, 30);
        charges.ran(bob, 10);
        charges.ran(alice, 30);
        let mut paid = charges.took(40);
        paid.sort_unstable();
        assert_eq!(paid, [(alice, 120), (bob, 20)]);
        charges.ran(bob, u64::MAX);
        assert_eq!(charges.took(7), [(bob, 7)]);
    }
}
