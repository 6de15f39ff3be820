//! Judges measurements by their bounds. Pure: numbers in, judgements out.

use std::time::Duration;

/// Memory beyond an idle supervisor's and what the quotas show.
const SLACK_BYTES: u64 = 64 << 20;
/// The same once the abusers left.
const KEPT_BYTES: u64 = 32 << 20;
/// Descriptors beyond an idle supervisor's and what the quotas show.
const SLACK_DESCRIPTORS: u64 = 64;
/// Threads beyond an idle supervisor's; the same once the abusers left.
const SLACK_THREADS: u64 = 128;
const KEPT_THREADS: u64 = 32;
/// Honest latency: so many times the undisturbed one, and so much; or so many times the one beside guests.
const TIMES: u32 = 10;
const SLACK_LATENCY: Duration = Duration::from_millis(20);
const GUEST_TIMES: u32 = 2;
/// How long the operator, and who connects, may wait; and on a machine that is busy with other things.
const OPERATOR: Duration = Duration::from_secs(1);
const OPERATOR_BUSY: Duration = Duration::from_secs(5);
/// How much more of memory, descriptors and log lines such a machine may show.
const BUSY_TIMES: u64 = 2;
/// Lines of the log in a second: four tenants' of the audit log, twenty each, and as many of all other places.
const LOG_LINES: u64 = 150;

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Judgement {
    /// An honest call has no right answer.
    Answers,
    /// Honest calls take long.
    Latency,
    /// The operator waits.
    Operator,
    /// A tenant that connects waits.
    Newcomer,
    /// More memory than is shown.
    Memory,
    /// More shared memory than is shown.
    SharedMemory,
    /// More descriptors than are shown.
    Descriptors,
    /// Threads.
    Threads,
    /// A function that an honest tenant calls all the time is not in memory.
    Evicted,
    /// A flood of lines.
    Log,
    /// Not everything is back.
    Recovery,
    /// The supervisor ended.
    Alive,
}

/// What a supervisor takes, or is accounted for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) resident: u64,
    pub(crate) shared: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    pub(crate) connections: u64,
}

impl Amounts {
    /// Of each the larger.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            shared: self.shared.max(other.shared),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            connections: self.connections.max(other.connections),
        }
    }

    /// Of each the smaller.
    fn and(self, other: Self) -> Self {
        Self {
            resident: self.resident.min(other.resident),
            shared: self.shared.min(other.shared),
            descriptors: self.descriptors.min(other.descriptors),
            threads: self.threads.min(other.threads),
            connections: self.connections.min(other.connections),
        }
    }

    /// How much of each is beyond another amount.
    pub(crate) fn beyond(self, other: Self) -> Self {
        Self {
            resident: self.resident.saturating_sub(other.resident),
            shared: self.shared.saturating_sub(other.shared),
            descriptors: self.descriptors.saturating_sub(other.descriptors),
            threads: self.threads.saturating_sub(other.threads),
            connections: self.connections.saturating_sub(other.connections),
        }
    }
}

/// A while, measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// Honest calls.
    pub(crate) calls: usize,
    /// Of these, those without a right answer, as far as there is room: what came instead.
    pub(crate) wrong: Vec<String>,
    pub(crate) p99: Duration,
    /// The operator's longest wait, less what this machine was late itself.
    pub(crate) operator: Duration,
    /// The longest wait of a tenant that connects, until its first answer.
    pub(crate) newcomer: Duration,
    /// The most beyond an idle supervisor's and what the quotas showed at that time.
    pub(crate) beyond: Amounts,
    /// Lines of the log, for each second.
    pub(crate) log_lines: u64,
    /// True if an honest tenant's function was not in memory.
    pub(crate) evicted: bool,
}

/// The most of each that lasts from one look to the next, a tenth of a second later: what is measured and what is shown
/// are not of the same moment, and a request of a hundred megabytes may live for less.
pub(crate) fn lasting(looks: &[Amounts]) -> Amounts {
    looks.windows(2).map(|pair| pair[0].and(pair[1])).fold(Amounts::default(), Amounts::or)
}

/// The most that the honest p99 may be, by what it is undisturbed, and beside as many guests as there are abusers: a
/// neighbour that behaves has its share of the device, too, and an abuser may take little more than that.
pub(crate) fn latency_bound(undisturbed_p99: Duration, beside_guests_p99: Duration) -> Duration {
    (undisturbed_p99 * TIMES + SLACK_LATENCY).max(beside_guests_p99 * GUEST_TIMES)
}

/// What is wrong with a while under abuse, whose honest p99 has this bound; without one, the machine is busy with other
/// things, and latencies say little.
pub(crate) fn round(round: &Round, bound: Option<Duration>) -> Vec<Judgement> {
    // What is measured is looked at later there than what is shown.
    let (operator, times) = match bound {
        Some(_) => (OPERATOR, 1),
        None => (OPERATOR_BUSY, BUSY_TIMES),
    };
    let wrong = [
        (Judgement::Answers, !round.wrong.is_empty() || round.calls == 0),
        (Judgement::Latency, bound.is_some_and(|bound| round.p99 > bound)),
        (Judgement::Operator, round.operator > operator),
        (Judgement::Newcomer, round.newcomer > operator),
        (Judgement::Memory, round.beyond.resident > times * SLACK_BYTES),
        (Judgement::SharedMemory, round.beyond.shared > times * SLACK_BYTES),
        (Judgement::Descriptors, round.beyond.descriptors > times * SLACK_DESCRIPTORS),
        (Judgement::Threads, round.beyond.threads > SLACK_THREADS),
        (Judgement::Evicted, round.evicted),
        (Judgement::Log, round.log_lines > times * LOG_LINES),
    ];
    wrong.into_iter().filter_map(|(judgement, fires)| fires.then_some(judgement)).collect()
}

/// Everything against a run: what was against its rounds; whether everything was back in time, and the supervisor there.
pub(crate) fn whole(rounds: &[Vec<Judgement>], is_back: bool, is_alive: bool) -> Vec<Judgement> {
    let mut against = rounds.concat();
    against.extend((!is_back).then_some(Judgement::Recovery));
    against.extend((!is_alive).then_some(Judgement::Alive));
    against.sort_unstable();
    against.dedup();
    against
}

/// True if a supervisor is back: what is beyond its idle amounts and its caches is small.
pub(crate) fn is_back(beyond: Amounts) -> bool {
    beyond.resident <= KEPT_BYTES
        && beyond.shared <= KEPT_BYTES
        && beyond.descriptors <= SLACK_DESCRIPTORS / 4
        && beyond.threads <= KEPT_THREADS
        && beyond.connections == 0
}

/// The value below which so many hundredths of the sorted times lie; zero where there are none.
pub(crate) fn percentile(sorted: &[Duration], hundredths: usize) -> Duration {
    let at = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}
