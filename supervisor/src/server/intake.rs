//! What a connection receives: bytes and descriptors, counted for its tenant from the moment they are here, until they
//! are requests.
//!
//! ```text
//! bytes ──► a whole frame ──► whose? ──► decoded within its bound ──► a request
//!   │ no memory left for it        │ too many parts, no memory
//!   └─ the rest is skipped ────────┴─ refused by its id: RESOURCE_EXHAUSTED or INVALID_ARGUMENT
//! ```
//!
//! Requests that are decoded and handled at once need no memory of their own beyond [`AT_ONCE_BYTES`]; larger ones are
//! charged while they exist. What is received is the connection's until it is a whole frame; from then on the tenant's that the
//! request is from.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pappus_proto::decoding::{self, DecodingCost, DecodingError};
use pappus_proto::frame;
use pappus_proto::v1;
use prost::Message;

use super::reader::Reader;
use super::violation::Violation;
use crate::client_fd::ClientFd;
use crate::client_io::ClientIo;
use crate::defences::Defence;
use crate::limits::CONNECTION_BYTES;
use crate::quota::{Limit, QuotaError};
use crate::refusal::{Reason, Refusable};
use crate::tenants::{Account, Taken};

/// Bytes taken from the socket at a time.
const READ_BYTES: usize = 64 << 10;
const _: () = assert!(CONNECTION_BYTES == (READ_BYTES + frame::KEPT_BYTES) as u64);
/// Between two looks whether descriptors are closed.
const CLOSING_PAUSE: Duration = Duration::from_millis(10);
/// What a request may take in memory without being charged, while it is decoded and handled on a socket thread.
const AT_ONCE_BYTES: u64 = 16 << 10;

/// Whom memory and descriptors are charged to.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The account of a tenant, or of a gateway that has not named a tenant yet.
    pub account: Arc<Account>,
    /// The operator is counted and never refused.
    pub operator: bool,
}

impl Holder {
    /// Takes so much of one thing.
    pub fn take(&self, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
        take(&self.account, self.operator, limit, amount)
    }
}

/// As [`Holder::take`], for what has the account and knows whether it is the operator's.
pub fn take(account: &Arc<Account>, operator: bool, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
    match operator {
        false => account.take(limit, amount),
        true => Ok(account.charge(limit, amount)),
    }
}

/// A descriptor that came with a request.
#[derive(Debug)]
pub enum Passed {
    /// It is here.
    Fd(ClientFd),
    /// The tenant has as many as it may: closed again.
    Refused(QuotaError),
}

impl Passed {
    /// The `nth` descriptor of a request is this tenant's from now on, or closed.
    fn hand_to(self, holder: &Holder, nth: u64) -> Self {
        match self {
            Self::Refused(_) => self,
            Self::Fd(fd) => match holder.take(Limit::Descriptors, 1) {
                Ok(taken) => Self::Fd(fd.hand_to(holder.account.clone(), taken)),
                Err(why) => Self::Refused(why.with_own(nth)),
            },
        }
    }
}

/// A request, and the charges for it.
#[derive(Debug)]
pub struct Received {
    /// As decoded.
    pub request: v1::Request,
    /// Descriptors that came with it.
    pub passed: Vec<Passed>,
    /// Memory that is charged for the request; none for a small one.
    pub memory: Option<Taken>,
}

/// A frame that is complete, or was given up.
#[derive(Debug)]
pub enum Frame {
    /// It can be decoded.
    Whole(WholeFrame),
    /// It is not decoded: its request's id, and why.
    Refused(u64, IntakeError),
}

/// A frame as it was received, with what has to be known of it before it is decoded.
#[derive(Debug)]
pub struct WholeFrame {
    message: Bytes,
    passed: Vec<Passed>,
    cost: DecodingCost,
}

impl WholeFrame {
    /// The request's id.
    pub fn id(&self) -> u64 {
        self.cost.id
    }

    /// True if the request says for whom the whole connection acts.
    pub fn acts_for(&self) -> bool {
        self.cost.asks == decoding::ACT_FOR
    }

    /// True if the request asks for the status.
    pub fn asks_status(&self) -> bool {
        self.cost.asks == decoding::STATUS
    }

    /// The token of the tenant that the request is from, if it has one.
    pub fn tenant_token(&self) -> Option<&[u8]> {
        self.cost.tenant_token.clone().map(|range| &self.message[range])
    }
}

/// What came of a frame.
#[derive(Debug)]
pub enum Intake {
    /// A request.
    Request(Received),
    /// A request that was not decoded: its id, and why.
    Refused(u64, IntakeError),
}

/// Why a request is not decoded.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// It holds too much.
    #[error("{0}")]
    Parts(DecodingError),
    /// There is no memory for it.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl Refusable for IntakeError {
    fn reason(&self) -> Reason {
        match self {
            Self::Parts(_) => Reason::InvalidArgument,
            Self::Quota(_) => Reason::ResourceExhausted,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Parts(_) => None,
            Self::Quota(error) => error.retry_after_ms(),
        }
    }

    fn quota(&self) -> Option<Limit> {
        match self {
            Self::Parts(_) => None,
            Self::Quota(error) => Some(error.limit),
        }
    }
}

/// The receiving side of a connection.
#[derive(Debug)]
pub struct Incoming {
    decoder: frame::Decoder<Passed>,
    /// Scratch for the socket.
    buffer: Vec<u8>,
    holder: Holder,
    io: ClientIo,
    /// The scratch and what waits for the rest of its frame.
    memory: Taken,
    /// A frame that was given up: its request's id, and why.
    given_up: Option<(u64, IntakeError)>,
    /// A frame that was looked at, and is the next one.
    put_back: Option<WholeFrame>,
}

impl Incoming {
    /// Nothing was received yet.
    pub fn new(holder: Holder, io: ClientIo) -> Result<Self, QuotaError> {
        let decoder = frame::Decoder::default();
        let memory = holder.take(Limit::RequestBytes, held_bytes(&decoder))?;
        Ok(Self { decoder, buffer: vec![0; READ_BYTES], holder, io, memory, given_up: None, put_back: None })
    }

    /// From now on this one is charged.
    pub fn charge(&mut self, holder: Holder) -> Result<(), QuotaError> {
        self.memory = holder.take(Limit::RequestBytes, held_bytes(&self.decoder))?;
        self.holder = holder;
        Ok(())
    }

    /// True if a frame has begun and is not complete.
    pub fn has_part(&self) -> bool {
        self.decoder.pending() > 0
    }

    /// The next frame that is complete.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Violation> {
        if let Some(whole) = self.put_back.take() {
            return Ok(Some(Frame::Whole(whole)));
        }
        if let Some((id, why)) = self.given_up.take() {
            return Ok(Some(Frame::Refused(id, why)));
        }
        let Some((message, passed)) = self.decoder.next_frame()? else { return Ok(None) };
        self.settle();
        let cost = match decoding::cost(&message) {
            Ok(cost) => cost,
            Err(DecodingError::Malformed) => return Err(Violation::NotRequest),
            Err(DecodingError::TooManyParts { id }) if Defence::Decoding.is_off() => {
                DecodingCost { id, bytes: message.len(), asks: 0, tenant_token: None }
            }
            Err(why @ DecodingError::TooManyParts { id }) => {
                return Ok(Some(Frame::Refused(id, IntakeError::Parts(why))));
            }
        };
        Ok(Some(Frame::Whole(WholeFrame { message, passed, cost })))
    }

    /// The frame is the next one once more.
    pub fn put_back(&mut self, whole: WholeFrame) {
        self.put_back = Some(whole);
    }

    /// Decodes a frame for this tenant, who is charged for the request and its descriptors.
    pub fn decode(&self, whole: WholeFrame, holder: &Holder) -> Result<Intake, Violation> {
        let WholeFrame { message, passed, cost } = whole;
        let is_own = Arc::ptr_eq(&holder.account, &self.holder.account);
        let memory = match cost.bytes as u64 {
            bytes if bytes <= AT_ONCE_BYTES => None,
            bytes => match holder.take(Limit::RequestBytes, bytes) {
                Ok(taken) => Some(taken),
                Err(why) => {
                    let why = why.with_own(if is_own { self.memory.amount() } else { 0 });
                    return Ok(Intake::Refused(cost.id, why.into()));
                }
            },
        };
        let passed = match is_own {
            true => passed,
            false => (0..).zip(passed).map(|(nth, passed)| passed.hand_to(holder, nth)).collect(),
        };
        let request = v1::Request::decode(message).map_err(|_| Violation::NotRequest)?;
        Ok(Intake::Request(Received { request, passed, memory }))
    }

    /// True if more may be received. False while the tenant, or all tenants, have more descriptors than allowed and refused
    /// ones of this tenant are slow to close. A tenant whose quota was lowered below its use can still ask to close some.
    fn has_room(&self) -> bool {
        let account = &self.holder.account;
        self.holder.operator || !account.is_over(Limit::Descriptors) || self.io.backlog(account.tenant) == 0
    }

    /// Waits for more; false when the client closed its side. Nothing is received while too many of the tenant's
    /// descriptors are still being closed: of a client that is gone by then, nothing more.
    pub async fn receive(&mut self, reader: &mut Reader, patience: Duration) -> Result<bool, Violation> {
        while !self.has_room() {
            if reader.is_gone() {
                return Ok(false);
            }
            tokio::time::sleep(CLOSING_PAUSE).await;
        }
        let Some((bytes, passed)) = reader.receive(&mut self.buffer, patience).await? else {
            return Ok(false);
        };
        let passed = (0..).zip(passed).map(|(nth, fd)| self.count(fd, nth)).collect();
        self.decoder.feed(&self.buffer[..bytes], passed)?;
        self.settle();
        Ok(true)
    }

    /// Descriptors that nothing is done with, closed as any that a client passes: never here, where it may take long.
    pub fn refuse(&self, passed: Vec<OwnedFd>) {
        passed.into_iter().for_each(|fd| drop(self.count(fd, 0)));
    }

    /// Takes the `nth` descriptor of a request.
    fn count(&self, fd: OwnedFd, nth: u64) -> Passed {
        let account = &self.holder.account;
        match self.holder.take(Limit::Descriptors, 1) {
            Ok(taken) => Passed::Fd(ClientFd::new(fd, account.clone(), self.io.clone(), taken)),
            Err(why) => {
                // Counted, too, until it is closed: see `has_room`.
                let taken = account.charge(Limit::Descriptors, 1);
                drop(ClientFd::new(fd, account.clone(), self.io.clone(), taken));
                Passed::Refused(why.with_own(nth))
            }
        }
    }

    /// Charges what waits for the rest of its frame. Where there is no memory for it, the frame is given up.
    fn settle(&mut self) {
        let bytes = held_bytes(&self.decoder);
        if self.memory.amount() == bytes {
            return;
        }
        let Err(why) = self.memory.resize(bytes) else { return };
        if let Some(beginning) = self.decoder.abandon() {
            self.given_up = Some((decoding::id_of(&beginning), why.into()));
            // Less than before: it always fits.
            let _ = self.memory.resize(held_bytes(&self.decoder));
        }
    }
}

/// What the scratch and the decoder take. The latter keeps some memory between frames, so that ordinary requests change
/// nothing here.
fn held_bytes(decoder: &frame::Decoder<Passed>) -> u64 {
    (READ_BYTES + decoder.held_bytes().max(frame::KEPT_BYTES)) as u64
}
