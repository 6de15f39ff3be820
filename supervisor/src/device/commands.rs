//! Decisions carried out: commands to workers, in order, and answers to calls that are over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::now_ns;

use super::held::Held;
use super::runtime::{Actions, Device};
use super::worker_channel::{Start, StartError, WorkerChannel};
use crate::call::{Call, Outcome, SpentBudget};
use crate::ids::{FunctionId, Generation, WorkerId};
use crate::refusal::Refusal;
use crate::schedule::events::Finished;
use crate::schedule::{Action, Address, CallId, Command, KillReason, Share, Verdict};

/// What is left to do once a worker's channel is free again.
#[derive(Debug, Default)]
struct Leftover {
    /// Functions that every worker must forget, since their weights gave way.
    evicted: Vec<FunctionId>,
    /// Calls that could not be handed over.
    refused: Vec<(CallId, Arc<Call>, Refusal)>,
    /// Frames waited for company long enough.
    write: bool,
}

impl Device {
    /// Carries decisions out, and those that follow from them. With `held`, workers are told of their calls by
    /// [`Device::release`] at the latest.
    pub(super) fn carry_out(&self, work: &mut Actions, mut held: Option<&mut Held>) {
        let mut next = Actions::new();
        while !work.is_empty() {
            for action in work.drain(..) {
                match action {
                    Action::Tell { to, command } => {
                        self.tell(to, command, &mut next, held.as_deref_mut());
                    }
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
                    Action::Kill { worker, generation, why } => self.kill(worker, generation, &why),
                }
            }
            std::mem::swap(work, &mut next);
        }
    }

    fn kill(&self, worker: WorkerId, generation: Generation, why: &KillReason<Arc<Call>>) {
        let channel = self.channel(worker);
        let pid = channel.pid();
        match why {
            KillReason::Overdue(call) => {
                let (function, owner, caller) = call.names();
                let why = match call.reply.is_over() {
                    true => "a call that was given up does not end",
                    false => "a call is overdue",
                };
                tracing::warn!(
                    function,
                    owner,
                    caller,
                    worker = worker.get(),
                    pid,
                    "{why}: killing its worker"
                );
            }
            KillReason::TurnKept => {
                tracing::warn!(
                    worker = worker.get(),
                    pid,
                    "a worker without calls keeps its turn: killing it"
                );
            }
            KillReason::NotScrubbed => {
                tracing::warn!(worker = worker.get(), pid, "a worker does not forget a tenant: killing it");
            }
            KillReason::NotConfirmed => {
                tracing::warn!(worker = worker.get(), pid, "a worker does not take new settings: killing it");
            }
        }
        channel.kill(generation);
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
        let mut channel = self.channel(to.worker);
        let mut command = channel.admit(to, command);
        while let Some(now) = command {
            self.command(&mut channel, to, now, &mut leftover, held.as_deref_mut());
            command = channel.next_command();
        }
        drop(channel);
        if let Some(held) = held.filter(|_| leftover.write) {
            self.release(held);
        }
        for function in leftover.evicted {
            self.every_channel(|channel| channel.uninstall(function));
        }
        for (id, call, error) in leftover.refused {
            self.metrics.failed.increment(1);
            self.complete(&call, Outcome::Refused(error));
            let finished = Finished { worker: to.worker, id, verdict: Verdict::Neither };
            self.decide(|scheduler| scheduler.handle(now_ns(), finished, next));
        }
    }

    fn command(
        &self,
        channel: &mut WorkerChannel,
        to: Address,
        command: Command<Arc<Call>>,
        leftover: &mut Leftover,
        held: Option<&mut Held>,
    ) {
        match command {
            Command::Start { lane, alone, id, call } => {
                let start = Start { worker: to.worker, lane, alone, id };
                let now = held.map(|held| held.add(to.worker, &call));
                self.start(channel, start, call, leftover);
                match now {
                    Some(now) => leftover.write |= now,
                    None => channel.write(),
                }
            }
            Command::Configure(share) => {
                self.grant_share(to.worker, share);
                channel.configure(self.configure(to.worker));
            }
            Command::Grant { turn, quantum_us } => channel.grant(turn, quantum_us),
            Command::Revoke { turn } => channel.revoke(turn),
            Command::Soon => channel.soon(),
            Command::Leave => channel.hang_up(),
            Command::Scrub => channel.scrub(self.handovers.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands a call over.
    fn start(&self, channel: &mut WorkerChannel, start: Start, call: Arc<Call>, leftover: &mut Leftover) {
        let weights = self.weights.as_ref();
        let reserved = self.reserve_weights(start.worker, &call);
        let started = reserved.map_err(|error| StartError::Refused(error.into())).and_then(|given_up| {
            given_up.iter().for_each(|function| channel.uninstall(*function));
            leftover.evicted.extend(given_up);
            let started = channel.start(&self.store, weights, start, &call);
            if let Some(weights) = weights {
                weights.settled(&call.function, start.worker);
            }
            started
        });
        match started {
            Ok(evicted) => leftover.evicted.extend(evicted),
            Err(StartError::Refused(error)) => leftover.refused.push((start.id, call, error)),
            Err(StartError::Broken(error)) => {
                tracing::error!(worker = start.worker.get(), "a worker does not take a call: {error}");
                // It may be the call that no worker can take: it counts as handed over.
                call.started_ns.store(now_ns(), Ordering::Relaxed);
                channel.kill_any();
            }
        }
    }

    /// What a worker may have of the device's memory from now on.
    fn grant_share(&self, worker: WorkerId, share: Share) {
        let slot = self.slot(worker);
        let bytes = match share {
            Share::Nothing => 0,
            Share::Own => slot.own_bytes.load(Ordering::Relaxed),
            Share::All => self.largest_call_bytes(),
        };
        slot.lease_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Answers a call that ended by itself.
    pub(super) fn complete(&self, call: &Call, outcome: Outcome) {
        call.reply.complete(call, &self.config.name, outcome);
    }
}
