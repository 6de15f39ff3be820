//! A worker that has a grant, and what is known of its turn: plain state that `turns` decides with.

use crate::ids::{TenantId, TurnId, WorkerId};

/// A worker with a grant.
#[derive(Debug)]
pub(super) struct TurnHolder {
    pub(super) worker: WorkerId,
    pub(super) tenant: TenantId,
    pub(super) turn: TurnId,
    pub(super) granted_ns: u64,
    /// The clock by which calls are in the way of others at that time.
    pub(super) granted_clock_ns: u64,
    /// The clock of what each holder had at that time.
    pub(super) granted_part_ns: u64,
    pub(super) revoked_ns: Option<u64>,
    /// What that clock showed then.
    pub(super) revoked_part_ns: Option<u64>,
    /// From when on it is still to be charged: since then others want the device, too.
    pub(super) charged_from_ns: Option<u64>,
    /// How much of its time is accounted for: others waited meanwhile, or it is known to have used it.
    pub(super) accounted_ns: u64,
    /// What it was charged and no [`Charge`](super::turns::Charge) said yet.
    pub(super) unsaid_ns: u64,
    /// Up to when what it used alone was counted.
    pub(super) counted_ns: u64,
    /// Since when it has no calls, if it has none.
    pub(super) idle_ns: Option<u64>,
    /// True if the next worker was told to be next.
    pub(super) announced: bool,
    /// True if the worker did not yield in time.
    pub(super) overran: bool,
    /// Time since then that it is not charged for yet: what is beyond its equal part, before the others' is subtracted.
    pub(super) overrun_ns: u64,
    /// [`Turns::beside_ns`](super::turns::Turns) when it overran.
    pub(super) beside_from_ns: u64,
    /// True if the worker is killed for keeping its turn.
    pub(super) given_up: bool,
}

impl TurnHolder {
    /// A worker gets its grant, while both clocks show nothing.
    pub(super) fn new(worker: WorkerId, tenant: TenantId, turn: TurnId, now_ns: u64) -> Self {
        Self {
            worker,
            tenant,
            turn,
            granted_ns: now_ns,
            granted_clock_ns: 0,
            granted_part_ns: 0,
            revoked_ns: None,
            revoked_part_ns: None,
            charged_from_ns: None,
            accounted_ns: 0,
            unsaid_ns: 0,
            counted_ns: now_ns,
            idle_ns: None,
            announced: false,
            overran: false,
            overrun_ns: 0,
            beside_from_ns: 0,
            given_up: false,
        }
    }
}
