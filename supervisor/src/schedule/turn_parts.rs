//! How much of the device each of several holders had: a clock that runs as much slower as there are holders. One that had
//! the device beside seven others for 40 ms had 5 ms of it, and has not overrun its turn, however few are left by then.

/// The clock.
#[derive(Debug)]
pub(super) struct Parts {
    /// What it showed at a moment.
    shown_ns: u64,
    at_ns: u64,
    holders: u64,
}

impl Parts {
    /// Nobody has the device.
    pub(super) fn new() -> Self {
        Self { shown_ns: 0, at_ns: 0, holders: 1 }
    }

    /// What it shows.
    pub(super) fn ns(&self, now_ns: u64) -> u64 {
        self.shown_ns + now_ns.saturating_sub(self.at_ns) / self.holders
    }

    /// When it shows so much, if no holder comes or goes until then.
    pub(super) fn shows_at_ns(&self, part_ns: u64) -> u64 {
        self.at_ns.saturating_add(part_ns.saturating_sub(self.shown_ns).saturating_mul(self.holders))
    }

    /// So many have the device from now on.
    pub(super) fn set_holders(&mut self, now_ns: u64, holders: usize) {
        (self.shown_ns, self.at_ns) = (self.ns(now_ns), now_ns.max(self.at_ns));
        self.holders = (holders as u64).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_has_its_part() {
        let mut parts = Parts::new();
        parts.set_holders(100, 4);
        assert_eq!((parts.ns(100), parts.ns(140), parts.shows_at_ns(110)), (100, 110, 140));
        parts.set_holders(140, 1);
        assert_eq!((parts.ns(150), parts.shows_at_ns(120), parts.shows_at_ns(5)), (120, 150, 140));
        // None is one: nobody is charged by it then.
        parts.set_holders(150, 0);
        assert_eq!(parts.ns(160), 130);
    }
}
