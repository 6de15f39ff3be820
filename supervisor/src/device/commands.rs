//! Decisions carried out: commands to workers, in order, and answers to calls that are over.
//!
//! A panic ends one action: the others are carried out. If the action was a command, its process is killed, so that
//! the process's calls are decided about; nothing else would end them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pappus_protocol::to_worker::Configure;
use pappus_protocol::turn_page::Prices;
use pappus_protocol::{Fault, now_ns};
use tokio::sync::watch;

use super::decisions::{Actions, Decisions};
use super::job::Job;
use super::panics::{Panicked, contained};
use super::quota::exceeds;
use super::standby::Standbys;
use super::unwritten::Unwritten;
use super::weights::Memory;
use super::worker_channel::{Start, StartError, WorkerChannel};
use super::worker_slots::WorkerSlots;
use crate::call::{Call, Outcome, SpentBudget};
use crate::config::{DeviceConfig, Settings};
use crate::ids::{FunctionId, Generation, WorkerId};
use crate::metrics::DeviceMetrics;
use crate::refusal::Refusal;
use crate::schedule::events::{Buried, Event, FellApart, Finished, NotSent, StandbysReady};
use crate::schedule::weights::Supply;
use crate::schedule::{Action, Address, CallId, Command, KillReason, Loss, Order, Verdict};
use crate::store::StateDir;

/// Carries out what the scheduler of one device decides.
#[derive(Debug)]
pub(super) struct CommandRunner {
    pub(super) config: Arc<DeviceConfig>,
    pub(super) metrics: Arc<DeviceMetrics>,
    pub(super) settings: watch::Receiver<Settings>,
    pub(super) store: Arc<StateDir>,
    pub(super) slots: Arc<WorkerSlots>,
    pub(super) decisions: Arc<Decisions>,
    /// Numbers for workers that are scrubbed for another domain.
    pub(super) handovers: AtomicU64,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(super) struct ProcessEnd {
    /// In words.
    pub(super) ended: String,
    /// The process's fault, if it lost its device context.
    pub(super) broken: Option<Fault>,
}

/// What is left to do once a worker's channel is free again.
#[derive(Debug, Default)]
struct Leftover {
    /// Functions whose weights the worker was not told to load after all.
    not_sent: Vec<FunctionId>,
    /// Calls that could not be handed over.
    refused: Vec<(CallId, Arc<Call>, Refusal)>,
    /// Calls of a job that could not be handed over.
    fell_apart: Vec<(CallId, Arc<Call>)>,
    /// Frames waited for company long enough.
    write: bool,
}

impl CommandRunner {
    /// One event, and what follows from it.
    pub(super) fn handle<E: Event<Arc<Call>>>(&self, event: E) -> E::Reply {
        let mut actions = Actions::default();
        let reply = self.decisions.decide(&mut actions, |deciding| deciding.handle(event));
        self.carry_out(&mut actions, None);
        reply
    }

    /// Carries out decisions and their consequences. With `unwritten`, workers hear of their calls by
    /// [`WorkerSlots::release`] at the latest.
    pub(super) fn carry_out(&self, work: &mut Actions, mut unwritten: Option<&mut Unwritten>) {
        let mut next = Actions::default();
        while !work.is_empty() {
            for action in work.drain() {
                if let Err(why) = contained(|| self.act(action, &mut next, unwritten.as_deref_mut())) {
                    tracing::error!("not all that follows from a decision is done: {why}");
                }
            }
            std::mem::swap(work, &mut next);
        }
    }

    fn act(&self, action: Action<Arc<Call>>, next: &mut Actions, unwritten: Option<&mut Unwritten>) {
        match action {
            Action::Tell { to, command } => self.tell(to, command, next, unwritten),
            Action::Expired { call, budget_ns } => {
                self.metrics.failed.increment(1);
                let per_minute = self.settings.borrow().fault_budget;
                let budget = budget_ns.map(|left_ns| SpentBudget { left_ns, per_minute });
                self.complete(&call, Outcome::Expired { budget });
            }
            Action::Refused { call, refusal } => {
                self.metrics.failed.increment(1);
                self.metrics.quarantines.increment(1);
                self.complete(&call, Outcome::Quarantined(refusal));
            }
            Action::NotCleared { call } => {
                let (function, owner, caller) = call.names();
                tracing::debug!(function, owner, caller, "the outputs of a lost call cannot be cleared");
                self.metrics.failed.increment(1);
                self.complete(&call, Outcome::NotCleared);
            }
            Action::Bring { worker } => self.slots.want(worker),
            Action::OverQuota { call, is_caller, has_bytes, needs_bytes } => {
                self.metrics.failed.increment(1);
                let account = if is_caller { call.reply.account() } else { &call.function.account };
                let error = exceeds(account, has_bytes, needs_bytes);
                self.complete(&call, Outcome::Refused(error.into()));
            }
            Action::Release { memory } => drop(memory),
            Action::Kill { worker, generation, why } => self.kill(worker, generation, &why),
        }
    }

    fn kill(&self, worker: WorkerId, generation: Generation, why: &KillReason<Arc<Call>>) {
        let pid = {
            let channel = self.slots.channel(worker);
            channel.kill(generation);
            channel.pid()
        };
        let worker = worker.get();
        match why {
            KillReason::Overdue(call) => {
                let (function, owner, caller) = call.names();
                let why = match call.reply.is_over() {
                    true => "a call that was given up does not end",
                    false => "a call is overdue",
                };
                tracing::warn!(function, owner, caller, worker, pid, "{why}: killing its worker");
            }
            KillReason::Overran(call) => {
                let (function, owner, caller) = call.names();
                tracing::warn!(
                    function,
                    owner,
                    caller,
                    worker,
                    pid,
                    "a call keeps others from the device for longer than overrun-limit: ending its worker"
                );
            }
            KillReason::TurnKept => {
                tracing::warn!(worker, pid, "a worker without calls keeps its turn: killing it");
            }
            KillReason::NotScrubbed => {
                tracing::warn!(worker, pid, "a worker does not forget a tenant: killing it");
            }
            KillReason::NotGivenBack => {
                tracing::warn!(worker, pid, "a worker does not give memory back: killing it");
            }
        }
    }

    /// Hands a command to a worker's channel, which carries it out after the earlier ones.
    fn tell(
        &self,
        to: Address,
        command: Command<Arc<Call>>,
        next: &mut Actions,
        mut unwritten: Option<&mut Unwritten>,
    ) {
        let mut leftover = Leftover::default();
        let mut channel = self.slots.channel(to.worker);
        let mut command = channel.admit(to, command);
        while let Some(now) = command {
            let told = contained(|| {
                self.command(&mut channel, to.worker, &now, &mut leftover, unwritten.as_deref_mut());
            });
            if let Err(why) = told {
                kill_untold(&channel, to, &now, &why);
            }
            command = channel.next_command();
        }
        drop(channel);
        if let Some(unwritten) = unwritten.filter(|_| leftover.write) {
            self.slots.release(unwritten);
        }
        for function in leftover.not_sent {
            let not_sent = NotSent { worker: to.worker, function };
            self.decisions.decide(next, |deciding| deciding.handle(not_sent));
        }
        for (id, call) in leftover.fell_apart {
            let worker = to.worker;
            let is_over = self.decisions.decide(next, |deciding| {
                let finished = Finished { worker, id, verdict: Verdict::Neither };
                !deciding.handle(FellApart { worker, id }) && deciding.handle(finished).is_some()
            });
            if is_over {
                self.metrics.failed.increment(1);
                self.complete(&call, Outcome::Expired { budget: None });
            }
        }
        for (id, call, error) in leftover.refused {
            let finished = Finished { worker: to.worker, id, verdict: Verdict::Neither };
            // Its process may be gone meanwhile: then the call runs again, or is answered, once that is reaped.
            if self.decisions.decide(next, |deciding| deciding.handle(finished)).is_some() {
                self.metrics.failed.increment(1);
                self.complete(&call, Outcome::Refused(error));
            }
        }
    }

    /// Other standbys are ready than before.
    pub(super) fn standbys_changed(&self, standbys: &Standbys) {
        let mut actions = Actions::default();
        self.decisions.decide(&mut actions, |deciding| {
            deciding.handle(StandbysReady { count: standbys.ready_for_domains() });
        });
        self.carry_out(&mut actions, None);
    }

    fn command(
        &self,
        channel: &mut WorkerChannel,
        worker: WorkerId,
        command: &Command<Arc<Call>>,
        leftover: &mut Leftover,
        unwritten: Option<&mut Unwritten>,
    ) {
        match *command {
            Command::Start { lane, alone, memory_bytes, until_ns, ref job, ref load } => {
                let now = unwritten.map(|unwritten| {
                    job.calls().map(|(_, call)| unwritten.add(worker, call)).fold(false, |now, one| now | one)
                });
                let start = Start { worker, lane, alone, memory_bytes, until_ns };
                self.start(channel, start, job, load.as_ref(), leftover);
                match now {
                    Some(now) => leftover.write |= now,
                    None => channel.write(),
                }
            }
            Command::Load { ref call, ref load } => {
                if channel.load(&self.store, call, load).is_err() {
                    // What is wrong is said when a call starts.
                    not_loaded(channel, call, load, leftover);
                }
            }
            Command::Unload { function } => channel.unload(function),
            Command::Uninstall { function } => channel.uninstall(function),
            Command::Configure => channel.configure(self.worker_settings()),
            Command::GiveBack { lanes } => channel.give_back(lanes),
            Command::Turn(Order::Grant { turn, quantum_us, change_us }) => {
                channel.grant(turn, Prices { quantum_us, change_us });
            }
            Command::Turn(Order::Revoke { turn }) => channel.revoke(turn),
            Command::Turn(Order::Soon) => channel.soon(),
            Command::Leave => channel.hang_up(),
            Command::Scrub => channel.scrub(self.handovers.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands a job over.
    fn start(
        &self,
        channel: &mut WorkerChannel,
        start: Start,
        job: &Job,
        load: Option<&Supply<Memory>>,
        leftover: &mut Leftover,
    ) {
        match channel.start(&self.store, start, job, load) {
            Ok(()) => {}
            Err(StartError::Refused(error)) => {
                load.into_iter().for_each(|load| not_loaded(channel, &job.call, load, leftover));
                match job.others.is_empty() {
                    true => leftover.refused.push((job.id, job.call.clone(), error)),
                    // Whose fault it is shows when each runs by itself.
                    false => leftover.fell_apart.extend(job.calls().map(|(id, call)| (id, call.clone()))),
                }
            }
            Err(StartError::Broken(error)) => {
                tracing::error!(worker = start.worker.get(), "a worker does not take a call: {error}");
                job.calls().for_each(|(_, call)| count_as_handed_over(call));
                channel.kill_any();
            }
        }
    }

    /// The settings of workers.
    fn worker_settings(&self) -> Configure {
        Configure {
            poll_us: self.settings.borrow().poll_us,
            turns: self.config.takes_turns(),
            scrub_calls: self.config.scrub_calls,
            scrub_switch: self.config.scrub_switch,
        }
    }

    /// Nothing is left of a lost call's attempt: it runs again, or is answered.
    pub(super) fn bury(&self, id: CallId, loss: Loss, end: ProcessEnd) {
        if let Some((call, why)) = self.handle(Buried { id, loss }) {
            self.metrics.failed.increment(1);
            let ProcessEnd { ended, broken } = end;
            self.complete(&call, Outcome::Lost { why, process: ended, broken });
        }
    }

    /// Answers a call that ended by itself.
    pub(super) fn complete(&self, call: &Call, outcome: Outcome) {
        if let Err(why) = contained(|| call.reply.complete(call, &self.config.name, outcome)) {
            tracing::error!("a call is not answered: {why}");
        }
    }
}

/// A worker was not told to load a function's weights, unless what failed came behind that.
fn not_loaded(channel: &mut WorkerChannel, call: &Call, load: &Supply<Memory>, leftover: &mut Leftover) {
    let function = call.function.id;
    if channel.has_weights(function) {
        return;
    }
    // The worker still has the weights that were to be replaced, and nobody counts their memory any more.
    load.instead_of.into_iter().for_each(|replaced| channel.unload(replaced));
    leftover.not_sent.push(function);
}

/// Kills a process that was not told all of a command, after a panic.
fn kill_untold(channel: &WorkerChannel, to: Address, command: &Command<Arc<Call>>, why: &Panicked) {
    tracing::error!(worker = to.worker.get(), "a worker is not told a command, and is killed: {why}");
    if let Command::Start { job, .. } = command {
        job.calls().for_each(|(_, call)| count_as_handed_over(call));
    }
    channel.kill(to.generation);
}

/// It may be the call that no worker can be told: otherwise it would be tried for ever.
fn count_as_handed_over(call: &Call) {
    call.started_ns.store(now_ns(), Ordering::Relaxed);
}
