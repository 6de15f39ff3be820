//! The functions that clients call: good ones whose output is their input, so that a wrong answer is seen, and ones
//! that fault, hang or do not load.

use std::time::Duration;

use pappus_client::Client;
use serde_json::json;

use super::history::End;
use crate::kit::{self, Function, absolute, constant, launch, ptr};

/// Memory of the device and its workers; a `big` call needs more than one lease of two workers or more.
pub(crate) const MEMORY: u64 = 16 << 20;
const BIG_BYTES: u64 = 12 << 20;
/// How long a call may keep others waiting; and a deadline beyond that, of calls that never end.
pub(crate) const OVERRUN_LIMIT: &str = "1s";
pub(crate) const BEYOND_LIMIT: Duration = Duration::from_secs(3);
/// A fraction of a millisecond of work.
const SLOW_ROUNDS: i64 = 20_000;

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Copies its input.
    Copy,
    /// The same, in several steps that take a while.
    Slow,
    /// The same, with the memory of the whole device.
    Big,
    /// Traps.
    Trap,
    /// Writes where nothing is.
    Stray,
    /// Never ends.
    Spin,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Copy, Self::Slow, Self::Big, Self::Trap, Self::Stray, Self::Spin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Slow => "slow",
            Self::Big => "big",
            Self::Trap => "trap",
            Self::Stray => "stray",
            Self::Spin => "spin",
        }
    }

    pub(crate) fn takes_input(self) -> bool {
        matches!(self, Self::Copy | Self::Slow | Self::Big)
    }

    /// How a call of it ends; the digest is for the caller to say.
    pub(crate) fn end(self) -> End {
        match self {
            Self::Copy | Self::Slow | Self::Big => End::Well(0),
            Self::Trap | Self::Stray => End::Fault,
            Self::Spin => End::Never,
        }
    }

    /// Registers it.
    pub(crate) fn add(self, client: &mut Client) {
        let size = json!({"Sizeof": "in"});
        let copied = |from, to| launch("copy", &[ptr(from), ptr(to), json!({"I64": size})]);
        let work = launch("work", &[constant(SLOW_ROUNDS)]);
        match self {
            Self::Copy => kit::add_copy(client),
            Self::Slow => Function {
                inputs: &["in"],
                buffers: &[("between", size.clone()), ("out", size.clone())],
                outputs: &["out"],
                steps: &[copied("in", "between"), work, copied("between", "out")],
                ..Function::default()
            }
            .add(client, self.name()),
            Self::Big => Function {
                inputs: &["in"],
                buffers: &[("room", absolute(BIG_BYTES)), ("out", size.clone())],
                outputs: &["out"],
                steps: &[copied("in", "room"), copied("room", "out")],
                ..Function::default()
            }
            .add(client, self.name()),
            Self::Trap => kit::add_kernel(client, self.name(), "trap", &[]),
            Self::Stray => {
                let nowhere = json!({"U64": 0xf000_0000u64});
                kit::add_kernel(client, self.name(), "fill", &[nowhere, constant(1), constant(8)]);
            }
            Self::Spin => kit::add_spin(client),
        }
    }
}

/// The input of a call: no two calls have the same.
pub(crate) fn bytes_of(id: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(id);
    std::iter::repeat_with(|| rng.u8(..)).take(bytes.max(1)).collect()
}
