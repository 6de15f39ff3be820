//! Judges a history: exactly one answer to every accepted call, the right one, and no error that the events
//! do not explain. It knows nothing of how Pappus works inside; what it holds to be possible is what
//! `docs/errors.md` tells clients.

use std::collections::HashMap;
use std::time::Duration;

use pappus_client::Code;

use super::history::{Answer, Ask, Conn, End, Event, Fault, What};

/// How far behind its deadline a call may still succeed.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Nothing that is injected lasts so long: a call that waits out a longer deadline was forgotten.
pub(crate) const FORGOTTEN: Duration = Duration::from_secs(20);
/// What ends connections.
const ENDING: [Fault; 3] = [Fault::SupervisorKilled, Fault::Drained, Fault::NoDescriptors];
/// How often a process must end under a call until the call is given up.
const ENDS_TO_LOSE: usize = 2;

/// A rule that the history breaks, and where.
#[derive(Debug, PartialEq)]
pub(crate) struct Wrong {
    /// The event's place in the history; the last one's if something is missing.
    pub(crate) at: usize,
    pub(crate) why: String,
}

/// A call as the history tells it.
struct Call<'a> {
    conn: Conn,
    sent: usize,
    ask: &'a Ask,
    cancelled: bool,
    answered: bool,
}

/// A connection's life.
#[derive(Default)]
struct Life {
    joined: usize,
    left: Option<usize>,
    lost: Option<usize>,
}

struct Checker<'a> {
    events: &'a [Event],
    calls: HashMap<u64, Call<'a>>,
    lives: HashMap<Conn, Life>,
    /// For each connection the place of the last call that has an answer: all before it were read.
    read_to: HashMap<Conn, usize>,
    wrong: Vec<Wrong>,
}

/// Everything that is wrong with a history.
pub(crate) fn check(events: &[Event]) -> Vec<Wrong> {
    let mut checker = Checker {
        events,
        calls: HashMap::new(),
        lives: HashMap::new(),
        read_to: HashMap::new(),
        wrong: Vec::new(),
    };
    for (at, event) in events.iter().enumerate() {
        checker.event(at, &event.what);
    }
    checker.finish();
    checker.wrong.sort_by_key(|wrong| wrong.at);
    checker.wrong
}

impl<'a> Checker<'a> {
    fn refuse(&mut self, at: usize, why: impl Into<String>) {
        self.wrong.push(Wrong { at, why: why.into() });
    }

    fn event(&mut self, at: usize, what: &'a What) {
        match what {
            What::Joined { conn } => {
                self.lives.insert(*conn, Life { joined: at, ..Life::default() });
            }
            What::Sent { conn, id, ask } => {
                let call = Call { conn: *conn, sent: at, ask, cancelled: false, answered: false };
                if self.calls.insert(*id, call).is_some() {
                    self.refuse(at, format!("id {id} is used twice: the history itself is wrong"));
                }
            }
            What::Cancelled { conn, id } => match self.calls.get_mut(id) {
                Some(call) if call.conn == *conn => call.cancelled = true,
                _ => self.refuse(at, format!("a call {id} that is not there is cancelled")),
            },
            What::Answered { conn, id, answer } => self.answered(at, *conn, *id, answer),
            What::Left { conn } => {
                self.lives.entry(*conn).or_default().left.get_or_insert(at);
            }
            What::Lost { conn } => {
                self.lives.entry(*conn).or_default().lost.get_or_insert(at);
            }
            What::Fault(_) | What::Over(_) => {}
        }
    }

    fn answered(&mut self, at: usize, conn: Conn, id: u64, answer: &Answer) {
        let Some(call) = self.calls.get_mut(&id) else {
            return self.refuse(at, format!("an answer to call {id}, which was not sent before"));
        };
        if call.conn != conn {
            let owner = call.conn;
            return self.refuse(at, format!("connection {conn} got the answer to call {id} of {owner}"));
        }
        if std::mem::replace(&mut call.answered, true) {
            return self.refuse(at, format!("call {id} got a second answer"));
        }
        let (sent, ask, cancelled) = (call.sent, call.ask, call.cancelled);
        let read_to = self.read_to.entry(conn).or_default();
        *read_to = sent.max(*read_to);
        if let Err(why) = self.judge(at, sent, ask, cancelled, answer) {
            self.refuse(at, format!("call {id} of `{}`: {why}", ask.function));
        }
    }

    /// Checks that an answer may come to a call.
    fn judge(
        &self,
        at: usize,
        sent: usize,
        ask: &Ask,
        cancelled: bool,
        answer: &Answer,
    ) -> Result<(), String> {
        let (code, words) = match answer {
            Answer::Done { digest, total } => {
                return match ask.end {
                    End::Well(wanted) if wanted != *digest => Err("wrong outputs".into()),
                    End::Well(_) if *total > ask.deadline + GRACE => {
                        Err(format!("it succeeded after {total:?}, its deadline was {:?}", ask.deadline))
                    }
                    End::Well(_) => Ok(()),
                    other => Err(format!("it succeeded but ends like this: {other:?}")),
                };
            }
            Answer::Refused { code, words } => (*code, words),
        };
        let took = self.events[at].at - self.events[sent].at;
        let during = |faults: &[Fault]| faults.iter().any(|fault| self.lasts(*fault, sent, at));
        let explained = match code {
            Code::KernelFault => ask.end == End::Fault,
            Code::Cancelled => cancelled,
            Code::Overrun => ask.end == End::Never,
            Code::DeadlineExceeded => {
                took >= ask.deadline && (ask.end == End::Never || ask.deadline < FORGOTTEN)
            }
            // A standby may take a worker's place just before it is killed.
            Code::WorkerLost => {
                let kills = [Fault::WorkerKilled, Fault::OtherKilled];
                self.count(&kills, sent, at) >= ENDS_TO_LOSE || during(&[Fault::NoMemory])
            }
            Code::Unavailable => during(&[Fault::Drained]),
            Code::ResourceExhausted => {
                ask.hostile || during(&[Fault::NoDescriptors, Fault::DiskFull, Fault::NoMemory])
            }
            // A compiler that ends twice is blamed on the module; the first call after a restart may compile.
            Code::InvalidArgument => self.count(&[Fault::OtherKilled], sent, at) >= ENDS_TO_LOSE,
            _ => false,
        };
        match explained {
            true => Ok(()),
            false => Err(format!("nothing explains {code:?} after {took:?}: {words}")),
        }
    }

    /// True if something was being done at a moment between two events.
    fn lasts(&self, fault: Fault, from: usize, to: usize) -> bool {
        let mut on = 0usize;
        for event in &self.events[..from] {
            match &event.what {
                What::Fault(other) if *other == fault => on += 1,
                What::Over(other) if *other == fault => on = on.saturating_sub(1),
                _ => {}
            }
        }
        on > 0 || self.events[from..to].iter().any(|event| event.what == What::Fault(fault))
    }

    /// How often any of these was done between two events.
    fn count(&self, faults: &[Fault], from: usize, to: usize) -> usize {
        let done = |event: &&Event| matches!(event.what, What::Fault(fault) if faults.contains(&fault));
        self.events[from..to].iter().filter(done).count()
    }

    /// What is missing in the end.
    fn finish(&mut self) {
        let last = self.events.len().saturating_sub(1);
        let missing: Vec<_> = self.calls.iter().filter(|(_, call)| !call.answered).collect();
        let mut found = Vec::new();
        for (id, call) in missing {
            let life = self.lives.get(&call.conn);
            let excused = match life {
                // It did not wait for the answer.
                Some(Life { left: Some(left), lost, .. }) if lost.is_none_or(|lost| *left < lost) => true,
                Some(Life { joined, lost: Some(lost), .. }) => self.may_lose(call, *joined, *lost),
                _ => false,
            };
            if !excused {
                let over = life.is_some_and(|life| life.lost.is_some());
                let how = if over { "the end of its connection is no excuse" } else { "it waits still" };
                let why = format!("call {id} of `{}` got no answer: {how}", call.ask.function);
                found.push(Wrong { at: last, why });
            }
        }
        for (conn, life) in &self.lives {
            if let Life { joined, left, lost: Some(lost) } = life
                && left.is_none_or(|left| *lost < left)
                && !ENDING.iter().any(|fault| self.lasts(*fault, *joined, *lost))
            {
                found
                    .push(Wrong { at: *lost, why: format!("nothing explains the end of connection {conn}") });
            }
        }
        self.wrong.extend(found);
    }

    /// True if a call may go without an answer because its connection ended.
    fn may_lose(&self, call: &Call<'_>, joined: usize, lost: usize) -> bool {
        if self.lasts(Fault::SupervisorKilled, joined, lost) || self.lasts(Fault::NoDescriptors, joined, lost)
        {
            return true;
        }
        // Draining answers what was accepted. What was sent later than everything that was answered may lie
        // unread in the socket.
        let read_to = self.read_to.get(&call.conn).copied();
        self.lasts(Fault::Drained, joined, lost) && read_to.is_none_or(|read_to| read_to < call.sent)
    }
}
