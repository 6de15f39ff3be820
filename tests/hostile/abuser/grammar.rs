//! What an abuser can send. A part is one way to ask a supervisor for much with little; it is composed of steps by
//! seeded random numbers alone, so the same seed composes the same, whatever is answered.

use std::time::Duration;

use fastrand::Rng;
use pappus_proto::limits::{MAX_INLINE_BYTES, MAX_ITEMS, MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS, MAX_NAME_BYTES};

/// Connections of one process; the oldest makes room.
pub(crate) const MAX_CONNECTIONS: usize = 48;

/// A way to ask for much with little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Messages of empty messages, which take much more memory decoded.
    Hollow,
    /// Frames that never become whole.
    Halves,
    /// Requests with long answers that are not read.
    Deaf,
    /// Calls that wait with eight descriptors each, of every kind.
    Descriptors,
    /// Arenas whose inode another thread keeps locked.
    BusyInodes,
    /// Descriptors that take long to close.
    SlowCloses,
    /// Such descriptors with urgent bytes, which a reader may pass over.
    Urgent,
    /// Calls that wait, each with a large plan of its own.
    Plans,
    /// Calls whose plan fails at its end.
    Failures,
    /// Many functions of one blob of weights.
    Weights,
    /// More functions than stay in memory, called in turn.
    Cycle,
    /// Blobs of three bytes.
    Blobs,
    /// Modules that take the compiler long.
    Compilations,
    /// Calls that need all workers' memory.
    WholeDevice,
    /// Tokens that are no tenant's.
    Tokens,
    /// Arenas that are sealed against writing once they are open.
    LateSeals,
    /// Two requests, again and again.
    Pairs,
    /// The cheapest requests, as many as fit.
    Floods,
    /// Sizes at their limits, and one beyond.
    Sizes,
    /// Grants to other tenants, given and taken.
    Grants,
}

impl Part {
    pub(crate) const ALL: [Self; 20] = [
        Self::Hollow,
        Self::Halves,
        Self::Deaf,
        Self::Descriptors,
        Self::BusyInodes,
        Self::SlowCloses,
        Self::Urgent,
        Self::Plans,
        Self::Failures,
        Self::Weights,
        Self::Cycle,
        Self::Blobs,
        Self::Compilations,
        Self::WholeDevice,
        Self::Tokens,
        Self::LateSeals,
        Self::Pairs,
        Self::Floods,
        Self::Sizes,
        Self::Grants,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hollow => "hollow",
            Self::Halves => "halves",
            Self::Deaf => "deaf",
            Self::Descriptors => "descriptors",
            Self::BusyInodes => "busy-inodes",
            Self::SlowCloses => "slow-closes",
            Self::Urgent => "urgent",
            Self::Plans => "plans",
            Self::Failures => "failures",
            Self::Weights => "weights",
            Self::Cycle => "cycle",
            Self::Blobs => "blobs",
            Self::Compilations => "compilations",
            Self::WholeDevice => "whole-device",
            Self::Tokens => "tokens",
            Self::LateSeals => "late-seals",
            Self::Pairs => "pairs",
            Self::Floods => "floods",
            Self::Sizes => "sizes",
            Self::Grants => "grants",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// Who a connection says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The tenant.
    Tenant,
    /// It says nothing.
    Silent,
    /// It greets and says nothing more; where its user is a gateway, it names no tenant.
    Greeted,
    /// A token that is no tenant's.
    WrongToken,
    /// A greeting with a descriptor that is slow to close.
    Laden,
}

/// What a request is about; names are those of `functions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A message without a request.
    Nothing,
    /// A field of a later version.
    Unknown,
    Status,
    Quota,
    List,
    ListModules,
    ListGrants,
    /// For the operator only.
    Tenants,
    Settings,
    Reload,
    Show(String),
    /// So many bytes, a content of their own.
    Put(usize, u64),
    /// Bytes in the descriptor of the request.
    PutDescriptor,
    /// A function under another name.
    Add(&'static str, String),
    Replace(&'static str, String),
    Remove(String),
    Module(String),
    RemoveModule(String),
    Grant(String),
    Revoke(String),
    OpenArena,
    /// The arena opened last.
    CloseArena,
    Call(Call),
    /// The request sent last.
    Cancel,
    Token(usize),
    /// So many empty messages where a list of messages may be.
    Hollow(Hollow, usize),
}

/// A list of messages in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hollow {
    Inputs,
    Items,
    Outputs,
    Modules,
    Weights,
    Variants,
    Settings,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) deadline: Duration,
}

/// Where a call's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    None,
    Inline(usize),
    /// Items of one byte.
    Items(usize),
    /// The first of so many descriptors that come with it.
    Descriptors,
    Arena(u64),
}

/// Where a call's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    None,
    Inline,
    Arena,
}

/// What a descriptor is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sealed(usize),
    Unsealed(usize),
    /// Sealed as arenas are.
    Arena(u64),
    /// The same, its inode kept locked.
    Busy(u64),
    /// The same, with all its pages there.
    Filled(u64),
    Pipe,
    Socket,
    /// A socket with so many descriptors on their way.
    Laden(usize),
    /// A socket in the queue of a socket, so deep.
    Nested(usize),
    /// A TCP connection whose last close takes so long.
    Lingering(Duration),
    Folder,
    Null,
    EventFd,
    /// A file without a name.
    Deleted,
}

/// One thing that a process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Makes a connection, and goes on with it.
    Open(Door),
    /// Goes on with another connection.
    Switch(usize),
    Send(Ask),
    /// Several at once.
    Burst(Vec<Ask>),
    /// The same request so often on every connection, as shortly after each other as can be.
    Volley(Ask, usize),
    SendWith(Ask, Vec<Kind>),
    /// The same with one descriptor, and an urgent first byte.
    SendUrgent(Ask, Kind),
    /// Opens an arena, and waits until it is there.
    Arena(Kind),
    /// Seals the arena opened last against writing.
    Seal,
    /// Hands a module over that is slow to compile, waits until it is there, and registers it.
    Compile(u64),
    /// So many thousandths of a frame; nothing more is sent on this connection.
    Begin(Ask, usize),
    /// Takes what was answered.
    Read,
    Rest(Duration),
    Close,
}

/// How long a call that stands still may hold its worker. With one worker, all other tenants wait meanwhile: a fair use of
/// device time, which the tenant is charged for.
const HOLDS_MS: u64 = 20;

/// A call with a deadline that lets it wait, not run on for long.
fn call(function: &str, input: Input, output: Output, deadline_ms: u64) -> Ask {
    let deadline = Duration::from_millis(deadline_ms);
    Ask::Call(Call { function: function.to_owned(), input, output, deadline })
}

impl Kind {
    /// True if the descriptor's last close takes a while.
    pub(crate) fn is_slow_to_close(self) -> bool {
        matches!(self, Self::Filled(_) | Self::Lingering(_) | Self::Laden(_) | Self::Nested(_))
    }
}

fn rest(ms: u64) -> Step {
    Step::Rest(Duration::from_millis(ms))
}

fn any_kind(rng: &mut Rng) -> Kind {
    match rng.u8(..12) {
        0 => Kind::Sealed(rng.usize(1..1 << 16)),
        1 => Kind::Unsealed(rng.usize(1..1 << 16)),
        2 => Kind::Arena(1 << rng.u64(12..24)),
        3 => Kind::Filled(1 << rng.u64(12..24)),
        4 => Kind::Pipe,
        5 => Kind::Socket,
        6 => Kind::Laden(rng.usize(1..100)),
        7 => Kind::Nested(rng.usize(1..20)),
        8 => Kind::Folder,
        9 => Kind::Null,
        10 => Kind::EventFd,
        _ => Kind::Deleted,
    }
}

fn any_ask(rng: &mut Rng) -> Ask {
    let name = format!("other-{}", rng.u8(..4));
    match rng.u8(..26) {
        0 => Ask::Nothing,
        1 => Ask::Unknown,
        2 => Ask::Status,
        3 => Ask::Quota,
        4 => Ask::List,
        5 => Ask::ListModules,
        6 => Ask::ListGrants,
        7 => Ask::Tenants,
        8 => Ask::Settings,
        9 => Ask::Reload,
        10 => Ask::Show("copy".to_owned()),
        11 => Ask::Put(rng.usize(..1 << 16), rng.u64(..)),
        12 => Ask::Add("tiny", name),
        13 => Ask::Replace("tiny", name),
        14 => Ask::Remove(name),
        15 => Ask::Module(name),
        16 => Ask::RemoveModule(name),
        17 => Ask::Grant("0".to_owned()),
        18 => Ask::Revoke("0".to_owned()),
        19 => Ask::CloseArena,
        20 => Ask::Cancel,
        21 => Ask::Token(rng.usize(..100)),
        22 => call("missing", Input::None, Output::None, 100),
        23 => call("failing", Input::Inline(1), Output::None, 100),
        24 => call("work", Input::None, Output::None, 100),
        _ => call("copy", Input::Inline(rng.usize(1..1 << 12)), Output::Inline, 100),
    }
}

/// Steps of one part.
pub(crate) fn compose(part: Part, rng: &mut Rng) -> Vec<Step> {
    let mut steps = vec![Step::Open(Door::Tenant)];
    match part {
        Part::Hollow => hollow(rng, &mut steps),
        Part::Halves => {
            for _ in 0..rng.usize(8..MAX_CONNECTIONS) {
                let bytes = [1 << 16, MAX_MESSAGE_BYTES - 64][rng.usize(..5).min(1)];
                let thousandths = rng.usize(1..2000).min(999);
                steps.push(Step::Open([Door::Greeted, Door::Tenant][rng.usize(..3).min(1)]));
                steps.push(Step::Begin(Ask::Put(bytes, rng.u64(..)), thousandths));
            }
            steps.extend([Step::Open(Door::Silent), rest(500)]);
        }
        Part::Deaf => {
            for _ in 0..rng.usize(4..16) {
                steps.push(Step::Open(Door::Tenant));
                // Answers are as long as the inputs.
                let ask = call("copy", Input::Inline(1 << rng.usize(12..20)), Output::Inline, 1000);
                steps.extend((0..rng.usize(20..200)).map(|_| Step::Send(ask.clone())));
            }
            steps.push(rest(200));
        }
        Part::Descriptors => {
            steps.push(Step::Send(call("work", Input::None, Output::None, 100)));
            for _ in 0..rng.usize(50..400) {
                let same = Kind::Sealed(rng.usize(1..4096));
                let mixed = rng.u8(..4) == 0;
                let kinds = (0..MAX_MESSAGE_FDS).map(|_| if mixed { any_kind(rng) } else { same });
                let ask = call("work-on", Input::Descriptors, Output::None, 500);
                steps.push(Step::SendWith(ask, kinds.collect()));
            }
            // More than a message may carry.
            let many = vec![Kind::Null; rng.usize(MAX_MESSAGE_FDS + 1..200)];
            steps.extend([Step::Read, Step::SendWith(Ask::Status, many)]);
        }
        Part::BusyInodes => {
            for _ in 0..rng.usize(1..4) {
                steps.push(Step::Arena(Kind::Busy(1 << rng.u64(20..28))));
                for _ in 0..4 {
                    // Given up by its worker's end: the supervisor zeroes what it may have written.
                    steps.push(Step::Send(call("spin-out", Input::None, Output::Arena, 5)));
                    steps.push(Step::Send(call("copy", Input::Arena(4096), Output::Arena, HOLDS_MS)));
                }
                steps.extend([rest(100), Step::Read, Step::Send(Ask::CloseArena)]);
            }
            steps.push(Step::Close);
        }
        Part::SlowCloses => {
            for _ in 0..rng.usize(4..40) {
                let kind = match rng.u8(..4) {
                    3 => Kind::Lingering(Duration::from_secs(rng.u64(1..10))),
                    0 => Kind::Laden(rng.usize(100..250)),
                    1 => Kind::Nested(rng.usize(10..60)),
                    _ => Kind::Filled(1 << rng.u64(20..25)),
                };
                let ask = [Ask::OpenArena, Ask::Status, Ask::PutDescriptor][rng.usize(..3)].clone();
                steps.push(Step::SendWith(ask, vec![kind]));
            }
            steps.push(Step::Close);
            steps.extend((0..rng.usize(..8)).map(|_| Step::Open(Door::Laden)));
        }
        Part::Urgent => {
            for _ in 0..rng.usize(1..20) {
                let kind = match rng.u8(..3) {
                    0 => any_kind(rng),
                    _ => Kind::Lingering(Duration::from_secs(rng.u64(1..10))),
                };
                steps.push(Step::SendUrgent([Ask::OpenArena, Ask::Status][rng.usize(..2)].clone(), kind));
            }
            steps.extend([Step::Read, Step::Close]);
        }
        Part::Plans => {
            for _ in 0..rng.usize(1..4) {
                steps.push(Step::Open(Door::Tenant));
                let calls = rng.usize(20..200);
                steps.extend((0..calls).map(|_| {
                    Step::Send(call("hungry", Input::Inline(rng.usize(1..4096)), Output::None, 1000))
                }));
            }
            steps.extend([rest(300), Step::Read]);
        }
        Part::Failures => {
            let calls = rng.usize(50..500);
            for _ in 0..rng.usize(1..MAX_CONNECTIONS) {
                // Of many sizes: that there is no plan for one is remembered.
                let mut any = |_| call("failing", Input::Inline(rng.usize(1..2000)), Output::None, 1000);
                let asks = (0..calls).map(&mut any).collect();
                steps.extend([Step::Open(Door::Tenant), Step::Burst(asks)]);
            }
            steps.extend([rest(50), Step::Read]);
        }
        Part::Weights => {
            for nth in 0..rng.u32(4..16) {
                let name = format!("weighted-{nth}");
                steps.extend([Step::Send(Ask::Add("weighted", name.clone())), rest(20)]);
                steps.push(Step::Send(call(&name, Input::None, Output::None, 1000)));
            }
            steps.push(rest(300));
            steps.extend((0..16).map(|nth| Step::Send(Ask::Remove(format!("weighted-{nth}")))));
            steps.push(Step::Read);
        }
        Part::Cycle => {
            let (first, count) = (rng.u32(..4) * 400, rng.u32(50..400));
            for nth in first..first + count {
                steps.push(Step::Send(Ask::Add("tiny", format!("tiny-{nth}"))));
                steps.push(Step::Read);
            }
            for nth in first..first + count {
                let ask = call(&format!("tiny-{nth}"), Input::None, Output::None, 100);
                steps.extend([Step::Send(ask), Step::Read]);
            }
        }
        Part::Blobs => {
            for _ in 0..rng.usize(100..3000) {
                steps.extend([Step::Send(Ask::Put(3, rng.u64(..))), Step::Read]);
            }
            steps.extend([Step::Send(Ask::Status), Step::Close]);
        }
        Part::Compilations => {
            steps.extend((0..rng.usize(1..6)).map(|_| Step::Compile(rng.u64(..))));
            steps.extend([rest(100), Step::Close]);
        }
        Part::WholeDevice => {
            let ask = call("large", Input::None, Output::None, 2000);
            steps.extend((0..rng.usize(50..400)).map(|_| Step::Send(ask.clone())));
            steps.extend([rest(200), Step::Read]);
        }
        Part::Tokens => steps.extend((0..rng.usize(50..300)).map(|_| Step::Open(Door::WrongToken))),
        Part::LateSeals => {
            steps.extend([Step::Arena(Kind::Arena(1 << 16)), Step::Seal]);
            let ask = call("copy", Input::Inline(16), Output::Arena, 100);
            steps.extend((0..rng.usize(50..300)).flat_map(|_| [Step::Send(ask.clone()), Step::Read]));
        }
        Part::Pairs => {
            let pair = [any_ask(rng), any_ask(rng)];
            for _ in 0..rng.usize(50..500) {
                steps.extend(pair.iter().cloned().map(Step::Send));
                steps.push(Step::Read);
            }
        }
        Part::Floods => {
            let connections = rng.usize(1..MAX_CONNECTIONS);
            steps.extend((0..connections).map(|_| Step::Open(Door::Tenant)));
            let asks = [Ask::Nothing, Ask::Status, Ask::Quota, Ask::List, Ask::Unknown, Ask::Cancel];
            let ask = asks[rng.usize(..asks.len())].clone();
            let (reads, together) = (rng.bool(), 1 << rng.u32(6..13));
            let read_all = |_| (0..MAX_CONNECTIONS).flat_map(|nth| [Step::Switch(nth), Step::Read]);
            for _ in 0..rng.usize(1..20) {
                steps.push(Step::Volley(ask.clone(), together));
                steps.extend(Some(()).filter(|()| reads).into_iter().flat_map(read_all));
            }
            // What waits in all sockets for room in those for answers comes at the same time.
            steps.push(rest(200));
            steps.extend(read_all(()));
        }
        Part::Sizes => sizes(rng, &mut steps),
        Part::Grants => {
            for nth in 0..rng.u32(50..500) {
                let tenant = (70_000 + nth % 50).to_string();
                steps.extend([Step::Send(Ask::Grant(tenant.clone())), Step::Send(Ask::Revoke(tenant))]);
                steps.push(Step::Read);
            }
        }
    }
    steps
}

fn hollow(rng: &mut Rng, steps: &mut Vec<Step>) {
    const LISTS: [Hollow; 7] = [
        Hollow::Inputs,
        Hollow::Items,
        Hollow::Outputs,
        Hollow::Modules,
        Hollow::Weights,
        Hollow::Variants,
        Hollow::Settings,
    ];
    let list = LISTS[rng.usize(..LISTS.len())];
    for _ in 0..rng.usize(1..4) {
        steps.push(Step::Open(Door::Tenant));
        for _ in 0..rng.usize(4..24) {
            // Two bytes each, and the request around them.
            let count = [1, 10_000, 500_000, MAX_MESSAGE_BYTES / 2 - 32][rng.usize(..4)];
            steps.push(Step::Send(Ask::Hollow(list, count)));
        }
    }
    steps.extend([rest(200), Step::Read]);
}

fn sizes(rng: &mut Rng, steps: &mut Vec<Step>) {
    let most = MAX_INLINE_BYTES as usize;
    for _ in 0..rng.usize(4..20) {
        let ask = match rng.u8(..9) {
            0 => call("copy", Input::Inline(most), Output::None, 500),
            1 => call("copy", Input::Inline(most + 1), Output::None, 500),
            2 => call("copy", Input::Inline(0), Output::Inline, 500),
            3 => call("copy", Input::Items(MAX_ITEMS), Output::Inline, 500),
            4 => call("copy", Input::Items(MAX_ITEMS + 1), Output::Inline, 500),
            5 => Ask::Put(MAX_MESSAGE_BYTES - 64, rng.u64(..)),
            6 => Ask::Add("tiny", "n".repeat(MAX_NAME_BYTES + rng.usize(..2))),
            7 => Ask::Show("x".repeat(1 << rng.usize(1..21))),
            _ => Ask::Put(MAX_MESSAGE_BYTES + 1, rng.u64(..)),
        };
        steps.extend([Step::Send(ask), Step::Read]);
    }
}
