//! The seats of one connection: of its own tenant, and on a gateway's connection of each tenant whose token came with a request.
//!
//! ```text
//! request ──no token──► the connection's own seat
//!         ──token──► its tenant, by the rules of this moment ──► that tenant's seat, made where there is none
//!                       │ none: PERMISSION_DENIED; the connection, which is others' too, goes on
//! ```
//!
//! A seat at which nothing is open goes after a while, and with it what the supervisor keeps for a tenant that is here. A seat
//! whose token is no tenant's any more goes with the first request behind the reload that said so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::request_error::RequestError;
use super::seat::Seat;
use super::state::RequestCtx;
use super::violation::GatewayError;
use crate::ids::TenantId;
use crate::limits::{MAX_SEATS, MAX_TOKEN_BYTES};
use crate::refusal::Refusal;
use crate::registry::Handed;
use crate::tenants::{Grounds, Sitting};

/// How long a seat stays at which nothing is open.
const UNUSED: Duration = Duration::from_secs(60);
/// Between two looks for such seats.
const LOOK: Duration = Duration::from_secs(10);

/// The seats of one connection.
#[derive(Debug)]
pub struct Seats {
    own: Arc<Seat>,
    /// True if requests may be from other tenants.
    of_many: bool,
    others: HashMap<TenantId, Taken>,
    /// The last look for seats at which nothing is open.
    looked: Instant,
    /// Which reading of the rules about tenants the seats are by.
    rules: u64,
}

/// A tenant's seat.
#[derive(Debug)]
struct Taken {
    seat: Arc<Seat>,
    /// Why it is the tenant's.
    grounds: Grounds,
    used: Instant,
    _sitting: Sitting,
}

impl Seats {
    /// Only the connection's own seat. `of_many`: requests may bring tokens of other tenants.
    pub fn new(own: Arc<Seat>, of_many: bool) -> Self {
        let rules = own.ctx.server.registry.tenants.readings();
        Self { own, of_many, others: HashMap::new(), looked: Instant::now(), rules }
    }

    /// The connection's own seat.
    pub fn own(&self) -> &Arc<Seat> {
        &self.own
    }

    /// The seat of the tenant that a request is from.
    pub fn of(&mut self, token: Option<&[u8]>) -> Result<Arc<Seat>, Refusal> {
        let Some(token) = token else { return Ok(self.own.clone()) };
        if !self.of_many {
            tracing::warn!(
                uid = self.own.ctx.uid,
                "a tenant's token with a request on a connection of one tenant"
            );
            return Err(RequestError::OneTenant.into());
        }
        let now = Instant::now();
        self.tidy(now);
        let tenants = &self.own.ctx.server.registry.tenants;
        let known = (token.len() <= MAX_TOKEN_BYTES).then(|| {
            let grounds = Grounds::Token { gateway: self.own.ctx.uid, sha256: Sha256::digest(token).into() };
            tenants.stands(grounds).map(|tenant| (tenant, grounds))
        });
        let Some((tenant, grounds)) = known.flatten() else {
            self.own.ctx.server.metrics.wrong_tokens.increment(1);
            tracing::warn!(uid = self.own.ctx.uid, "a gateway's request with a token that is no tenant's");
            return Err(GatewayError::UnknownToken.into());
        };
        if let Some(taken) = self.others.get_mut(&tenant) {
            (taken.used, taken.grounds) = (now, grounds);
            return Ok(taken.seat.clone());
        }
        if self.others.len() >= MAX_SEATS {
            self.others.retain(|_, taken| !taken.seat.is_idle());
            if self.others.len() >= MAX_SEATS {
                return Err(RequestError::TooManySeats.into());
            }
        }
        let account = tenants.account(tenant);
        let sitting = Sitting::at(&account);
        let ctx = RequestCtx {
            server: self.own.ctx.server.clone(),
            account,
            uid: self.own.ctx.uid,
            // Whoever a gateway acts for sees what that tenant sees.
            admin: false,
            operator: false,
            looks_on: false,
            nobody: false,
            handed: Handed::default(),
        };
        let seat = Seat::new(ctx, self.own.replies.clone(), true);
        self.others.insert(tenant, Taken { seat: seat.clone(), grounds, used: now, _sitting: sitting });
        Ok(seat)
    }

    /// Ends seats whose tokens are their tenants' no more, and now and then those at which nothing is open.
    fn tidy(&mut self, now: Instant) {
        let tenants = &self.own.ctx.server.registry.tenants;
        let rules = tenants.readings();
        if rules != self.rules {
            self.rules = rules;
            self.others.retain(|tenant, taken| {
                let stays = tenants.stands(taken.grounds) == Some(*tenant);
                if !stays {
                    taken.seat.leave();
                }
                stays
            });
        }
        if now.duration_since(self.looked) >= LOOK {
            self.looked = now;
            self.others.retain(|_, taken| now.duration_since(taken.used) < UNUSED || !taken.seat.is_idle());
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Seat>> {
        std::iter::once(&self.own).chain(self.others.values().map(|taken| &taken.seat))
    }

    /// The places of slow requests of all seats.
    pub fn places(&self) -> Vec<Arc<Semaphore>> {
        self.all().map(|seat| seat.cold.clone()).collect()
    }

    /// The client is gone: what was opened at any seat goes, too.
    pub fn clean_up(&self) {
        self.all().for_each(|seat| seat.clean_up());
    }
}
