//! Decisions carried out: commands to workers, in order, and answers to calls that are over.
//!
//! A panic ends one action: the others are carried out. Where it was a command, the process that it was for is killed,
//! so that its calls are decided about; nothing else would end them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pappus_protocol::to_worker::Configure;
use pappus_protocol::turn_page::Prices;
use pappus_protocol::{Fault, now_ns};
use tokio::sync::watch;

use super::decisions::{Actions, Decisions};
use super::held::Held;
use super::panics::{Panicked, contained};
use super::quota::MemoryQuota;
use super::standby::Standbys;
use super::weights::{Follows, WeightStore};
use super::worker_channel::{Start, StartError, WorkerChannel};
use super::worker_slots::WorkerSlots;
use crate::call::{Call, Outcome, SpentBudget};
use crate::config::{DeviceConfig, Settings};
use crate::ids::{FunctionId, Generation, WorkerId};
use crate::metrics::DeviceMetrics;
use crate::refusal::Refusal;
use crate::schedule::events::{
    Buried, Cooled, Event, Finished, NotStarted, StandbysReady, WeightsGivenUp, WeightsInUse,
};
use crate::schedule::{Action, Address, CallId, Command, KillReason, Loss, Verdict};
use crate::store::StateDir;

/// Carries out what the scheduler of one device decides.
#[derive(Debug)]
pub(super) struct CommandRunner {
    pub(super) config: Arc<DeviceConfig>,
    pub(super) metrics: Arc<DeviceMetrics>,
    pub(super) settings: watch::Receiver<Settings>,
    pub(super) store: Arc<StateDir>,
    pub(super) weights: Option<Arc<WeightStore>>,
    pub(super) slots: Arc<WorkerSlots>,
    pub(super) decisions: Arc<Decisions>,
    pub(super) quota: Arc<MemoryQuota>,
    /// Numbers for workers that are scrubbed for another domain.
    pub(super) handovers: AtomicU64,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(super) struct ProcessEnd {
    /// In words.
    pub(super) ended: String,
    /// What it said of a lost device context.
    pub(super) broken: Option<Fault>,
}

/// What is left to do once a worker's channel is free again.
#[derive(Debug, Default)]
struct Leftover {
    follows: Follows,
    /// Functions whose weights were to be loaded for calls that wait, and there was no room.
    left_out: Vec<FunctionId>,
    /// Calls that could not be handed over.
    refused: Vec<(CallId, Arc<Call>, Refusal)>,
    /// Calls that wait again, for so much memory.
    short: Vec<(CallId, u64)>,
    /// Calls that wait again, for weights that others use: since which moment.
    crowded: Vec<(CallId, u64)>,
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

    /// Carries decisions out, and those that follow from them. With `held`, workers are told of their calls by
    /// [`WorkerSlots::release`] at the latest.
    pub(super) fn carry_out(&self, work: &mut Actions, mut held: Option<&mut Held>) {
        let mut next = Actions::default();
        while !work.is_empty() {
            for action in work.drain() {
                if let Err(why) = contained(|| self.act(action, &mut next, held.as_deref_mut())) {
                    tracing::error!("not all that follows from a decision is done: {why}");
                }
            }
            std::mem::swap(work, &mut next);
        }
    }

    fn act(&self, action: Action<Arc<Call>>, next: &mut Actions, held: Option<&mut Held>) {
        match action {
            Action::Tell { to, command } => self.tell(to, command, next, held),
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
            Action::GiveUpWeights { bytes } => self.give_up_weights(bytes, next),
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

    /// Hands a command to a worker's channel, which carries it out once those before it are.
    fn tell(
        &self,
        to: Address,
        command: Command<Arc<Call>>,
        next: &mut Actions,
        mut held: Option<&mut Held>,
    ) {
        let mut leftover = Leftover::default();
        let mut channel = self.slots.channel(to.worker);
        let mut command = channel.admit(to, command);
        while let Some(now) = command {
            let told = contained(|| {
                self.command(&mut channel, to.worker, &now, &mut leftover, held.as_deref_mut());
            });
            if let Err(why) = told {
                kill_untold(&channel, to, &now, &why);
            }
            command = channel.next_command();
        }
        drop(channel);
        if let Some(held) = held.filter(|_| leftover.write) {
            self.slots.release(held);
        }
        for (id, call, error) in leftover.refused {
            self.metrics.failed.increment(1);
            self.complete(&call, Outcome::Refused(error));
            let finished = Finished { worker: to.worker, id, verdict: Verdict::Neither };
            self.decisions.decide(next, |deciding| deciding.handle(finished));
        }
        for (id, missing_bytes) in leftover.short {
            let not_started = NotStarted { worker: to.worker, id, missing_bytes };
            self.decisions.decide(next, |deciding| deciding.handle(not_started));
        }
        for (id, moment) in leftover.crowded {
            let in_use = WeightsInUse { worker: to.worker, id, moment };
            self.decisions.decide(next, |deciding| deciding.handle(in_use));
        }
        next.append(&mut leftover.follows.actions);
        self.evict(&leftover.follows.evicted, next);
        for function in leftover.left_out {
            self.decisions.decide(next, |deciding| deciding.handle(Cooled { function }));
        }
    }

    /// Weights leave every worker.
    fn evict(&self, functions: &[FunctionId], next: &mut Actions) {
        for &function in functions {
            self.slots.each_channel(|channel| channel.unload(function));
            self.decisions.decide(next, |deciding| deciding.handle(Cooled { function }));
        }
    }

    /// Weights that no call uses give way to calls.
    fn give_up_weights(&self, bytes: u64, next: &mut Actions) {
        let mut evicted = Vec::new();
        let coming_bytes = self.weights.as_ref().map_or(0, |weights| weights.give_up(bytes, &mut evicted));
        self.evict(&evicted, next);
        let given_up = WeightsGivenUp { coming_bytes };
        self.decisions.decide(next, |deciding| deciding.handle(given_up));
    }

    /// Other standbys are ready than before.
    pub(super) fn standbys_changed(&self, standbys: &Standbys) {
        let mut actions = Actions::default();
        self.decisions.decide(&mut actions, |deciding| {
            deciding.handle(StandbysReady { count: standbys.ready() });
        });
        self.carry_out(&mut actions, None);
    }

    fn command(
        &self,
        channel: &mut WorkerChannel,
        worker: WorkerId,
        command: &Command<Arc<Call>>,
        leftover: &mut Leftover,
        held: Option<&mut Held>,
    ) {
        match *command {
            Command::Start { lane, alone, memory_bytes, id, ref call } => {
                let now = held.map(|held| held.add(worker, call));
                self.start(channel, Start { worker, lane, alone, memory_bytes, id }, call, leftover);
                match now {
                    Some(now) => leftover.write |= now,
                    None => channel.write(),
                }
            }
            Command::LookAhead { ref calls } => self.look_ahead(channel, worker, calls, leftover),
            Command::Configure => channel.configure(self.worker_settings()),
            Command::GiveBack { lanes } => channel.give_back(lanes),
            Command::Grant { turn, quantum_us, change_us } => {
                channel.grant(turn, Prices { quantum_us, change_us });
            }
            Command::Revoke { turn } => channel.revoke(turn),
            Command::Soon => channel.soon(),
            Command::Leave => channel.hang_up(),
            Command::Scrub => channel.scrub(self.handovers.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands a call over.
    fn start(&self, channel: &mut WorkerChannel, start: Start, call: &Arc<Call>, leftover: &mut Leftover) {
        let weights = self.weights.as_deref();
        let reserved = self.quota.reserve_weights(start.worker, call);
        let started = reserved.map_err(|error| StartError::Refused(error.into())).and_then(|given_up| {
            given_up.iter().for_each(|function| channel.unload(*function));
            leftover.follows.evicted.extend(given_up);
            let started = channel.start(&self.store, weights, start, call, &mut leftover.follows);
            if let Some(weights) = weights {
                weights.settled(&call.function, start.worker);
            }
            started
        });
        match started {
            Ok(()) => {}
            Err(StartError::NoMemory(bytes)) => leftover.short.push((start.id, bytes)),
            Err(StartError::WeightsInUse { moment }) => leftover.crowded.push((start.id, moment)),
            Err(StartError::Refused(error)) => leftover.refused.push((start.id, call.clone(), error)),
            Err(StartError::Broken(error)) => {
                tracing::error!(worker = start.worker.get(), "a worker does not take a call: {error}");
                count_as_handed_over(call);
                channel.kill_any();
            }
        }
    }

    /// Has weights loaded of functions whose calls wait. Those of an owner that may have so much only are loaded when they
    /// are needed.
    fn look_ahead(
        &self,
        channel: &mut WorkerChannel,
        worker: WorkerId,
        calls: &[Arc<Call>],
        leftover: &mut Leftover,
    ) {
        let Some(weights) = &self.weights else { return };
        if calls.iter().any(|call| MemoryQuota::limits_weights(call)) {
            return;
        }
        let left_out = channel.look_ahead(&self.store, weights, worker, calls, &mut leftover.follows);
        leftover.left_out.extend(left_out);
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

/// Kills a process that was not told all of a command, after a panic.
fn kill_untold(channel: &WorkerChannel, to: Address, command: &Command<Arc<Call>>, why: &Panicked) {
    tracing::error!(worker = to.worker.get(), "a worker is not told a command, and is killed: {why}");
    if let Command::Start { call, .. } = command {
        count_as_handed_over(call);
    }
    channel.kill(to.generation);
}

/// It may be the call that no worker can be told: otherwise it would be tried for ever.
fn count_as_handed_over(call: &Call) {
    call.started_ns.store(now_ns(), Ordering::Relaxed);
}
