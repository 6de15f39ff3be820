//! Turns change hands over a page of memory that one worker and the supervisor share: who polls it sees a change without
//! a system call, and who sleeps is woken by a frame of its pipe that says nothing but that there is something to see.
//!
//! Each direction has a word, written by one side and read by the other, and numbers beside that word:
//!
//! ```text
//!  orders: | turn | others wait | the worker sleeps     |   quantum, what a change costs
//!  yields: | turn | given back  | the supervisor sleeps |   device time used, calls answered so far
//!          63     2             1                       0
//! ```
//!
//! - A writer writes the numbers first, then exchanges the word: it learns in the same step whether the reader sleeps, and
//!   then has to wake it.
//! - A reader that is about to sleep says so in the word, in one step with making sure that it has seen what is there. So
//!   either the reader sees the change, or the writer sees that the reader sleeps: no wake-up is lost.
//! - Turns have rising numbers; 0 is none. A word shows the newest state only: who sees that a turn was given back need
//!   not have seen that it was about to.
//! - What is written before a change of a word is seen by who sees the change. So frames that are in the pipe before the
//!   change can be read after it; for frames that follow the change it is the other way round.
//!
//! The supervisor believes nothing of what a worker can write: it keeps what it ordered itself, reads each number once, and
//! checks it like a number in a frame. The bit that says that the supervisor sleeps can be changed by the worker, which
//! makes its own yields late and nothing else.

use super::ids::TurnId;
use super::sync::{AtomicU64, Ordering};

/// A page of words that both sides have.
pub trait Words {
    /// One of its first [`USED_WORDS`] words.
    fn word(&self, at: usize) -> &AtomicU64;
}

/// Words of a page that have a meaning.
pub const USED_WORDS: usize = YIELD + 3;
const ORDER: usize = 0;
const PRICES: usize = ORDER + 1;
/// Two lines of a cache further on, which processors fetch together: writers do not disturb each other.
const YIELD: usize = 16;
const USED: usize = YIELD + 1;
const ANSWERED: usize = YIELD + 2;

const READER_SLEEPS: u64 = 1;
/// In orders: others wait. In yields: the turn is given back.
const FLAG: u64 = 2;
const TURN_SHIFT: u32 = 2;

fn state(turn: TurnId, flag: bool) -> u64 {
    turn.get() << TURN_SHIFT | if flag { FLAG } else { 0 }
}

fn parts(state: u64) -> (TurnId, bool) {
    (TurnId::new(state >> TURN_SHIFT), state & FLAG != 0)
}

/// Changes a word; true if its reader sleeps.
fn post(word: &AtomicU64, state: u64) -> bool {
    word.swap(state, Ordering::AcqRel) & READER_SLEEPS != 0
}

/// What a reader saw last of its word.
#[derive(Debug, Default)]
struct Seen(u64);

impl Seen {
    fn has_news(&self, word: &AtomicU64) -> bool {
        word.load(Ordering::Acquire) & !READER_SLEEPS != self.0
    }

    /// The state before, and the one now, if that is another.
    fn take(&mut self, word: &AtomicU64) -> Option<(u64, u64)> {
        let now = word.load(Ordering::Acquire) & !READER_SLEEPS;
        let before = std::mem::replace(&mut self.0, now);
        (before != now).then_some((before, now))
    }

    fn may_sleep(&self, word: &AtomicU64) -> bool {
        let sleeps = self.0 | READER_SLEEPS;
        match word.compare_exchange(self.0, sleeps, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(is) => is == sleeps,
        }
    }

    fn awake(&self, word: &AtomicU64) {
        if word.load(Ordering::Relaxed) & READER_SLEEPS != 0 {
            word.fetch_and(!READER_SLEEPS, Ordering::Relaxed);
        }
    }
}

/// What a turn lasts and costs, as the worker is told: microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// How long a worker keeps its turn while others wait.
    pub quantum_us: u32,
    /// What a change of turns costs, as measured lately.
    pub change_us: u32,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Which turn.
    pub turn: TurnId,
    /// It has the turn from now on; otherwise it was told of it before.
    pub granted: bool,
    /// Others wait: it stops submitting when its quantum is over or it has no call left, lets its lanes run empty, and
    /// gives the turn back.
    pub revoked: bool,
    /// As of the grant.
    pub prices: Prices,
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yield {
    /// It submits nothing more in this turn, and its lanes run empty.
    Ending(TurnId),
    /// It gives the turn back; its lanes are empty.
    Over {
        /// As granted.
        turn: TurnId,
        /// Device time that it used.
        used_ns: u64,
        /// Calls that the process answered since its start or its last scrub, including calls whose frames come behind
        /// this message.
        answered: u64,
    },
}

/// The supervisor's writing end. One thread at a time has it.
#[derive(Debug)]
pub struct Orders<W>(W);

impl<W: Words> Orders<W> {
    /// Of a fresh page.
    pub fn new(words: W) -> Self {
        Self(words)
    }

    /// Grants the worker a turn; true if it must be woken.
    #[must_use]
    pub fn grant(&mut self, turn: TurnId, prices: Prices) -> bool {
        let both = u64::from(prices.quantum_us) << 32 | u64::from(prices.change_us);
        self.0.word(PRICES).store(both, Ordering::Relaxed);
        post(self.0.word(ORDER), state(turn, false))
    }

    /// Says that others wait for the worker's turn; true if the worker must be woken.
    #[must_use]
    pub fn revoke(&mut self, turn: TurnId) -> bool {
        post(self.0.word(ORDER), state(turn, true))
    }
}

/// The supervisor's reading end.
#[derive(Debug)]
pub struct Yields<W> {
    words: W,
    seen: Seen,
}

impl<W: Words> Yields<W> {
    /// Of a fresh page.
    pub fn new(words: W) -> Self {
        Self { words, seen: Seen::default() }
    }

    /// What the worker said since the last look, if anything.
    pub fn look(&mut self) -> Option<Yield> {
        let (_, now) = self.seen.take(self.words.word(YIELD))?;
        let (turn, over) = parts(now);
        let number = |at| self.words.word(at).load(Ordering::Relaxed);
        Some(match over {
            true => Yield::Over { turn, used_ns: number(USED), answered: number(ANSWERED) },
            false => Yield::Ending(turn),
        })
    }

    /// The worker serves another domain from now on: nothing that it said of the old one is left.
    pub fn forget(&self) {
        [USED, ANSWERED].into_iter().for_each(|at| self.words.word(at).store(0, Ordering::Relaxed));
    }

    /// True if [`Yields::look`] would show something.
    pub fn has_news(&self) -> bool {
        self.seen.has_news(self.words.word(YIELD))
    }

    /// The reader is about to sleep; false if there is something to look at first.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.seen.may_sleep(self.words.word(YIELD))
    }

    /// The reader does not sleep any more.
    pub fn awake(&self) {
        self.seen.awake(self.words.word(YIELD));
    }
}

/// The worker's end.
#[derive(Debug)]
pub struct WorkerEnd<W> {
    words: W,
    seen: Seen,
    answered: u64,
}

impl<W: Words> WorkerEnd<W> {
    /// Of a fresh page.
    pub fn new(words: W) -> Self {
        Self { words, seen: Seen::default(), answered: 0 }
    }

    /// What was ordered since the last look, if anything.
    pub fn look(&mut self) -> Option<Order> {
        let (before, now) = self.seen.take(self.words.word(ORDER))?;
        let ((turn, revoked), granted) = (parts(now), parts(before).0 != parts(now).0);
        let both = self.words.word(PRICES).load(Ordering::Relaxed);
        let prices = Prices { quantum_us: (both >> 32) as u32, change_us: both as u32 };
        Some(Order { turn, granted, revoked, prices })
    }

    /// A call was answered, or is about to be.
    pub fn answered(&mut self) {
        self.answered += 1;
    }

    /// Says that the lanes run empty; true if the supervisor must be woken.
    #[must_use]
    pub fn ending(&mut self, turn: TurnId) -> bool {
        post(self.words.word(YIELD), state(turn, false))
    }

    /// Gives the turn back; true if the supervisor must be woken.
    #[must_use]
    pub fn give_back(&mut self, turn: TurnId, used_ns: u64) -> bool {
        self.words.word(USED).store(used_ns, Ordering::Relaxed);
        self.words.word(ANSWERED).store(self.answered, Ordering::Relaxed);
        post(self.words.word(YIELD), state(turn, true))
    }

    /// Another domain is served from now on.
    pub fn forget(&mut self) {
        self.answered = 0;
    }

    /// True if [`WorkerEnd::look`] would show something.
    pub fn has_news(&self) -> bool {
        self.seen.has_news(self.words.word(ORDER))
    }

    /// The worker is about to sleep; false if there is something to look at first.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.seen.may_sleep(self.words.word(ORDER))
    }

    /// The worker does not sleep any more.
    pub fn awake(&self) {
        self.seen.awake(self.words.word(ORDER));
    }
}
