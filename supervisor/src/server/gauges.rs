//! What is exported without an event of its own: looked at once a second, where there is an endpoint.

use std::time::Duration;

use super::state::Server;
use crate::device::Device;
use crate::metrics;
use crate::quota::Limit;
use crate::routing::Destination;
use crate::schedule::Compartment;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

impl Server {
    /// Exports it for ever.
    pub async fn run_gauges(&self) {
        loop {
            self.devices.iter().for_each(|device| self.export(device));
            let (functions, modules) = self.registry.counts();
            metrics::registered(functions, modules);
            metrics::sessions(
                self.sessions.count(),
                self.registry.tenants.ledger().used(Limit::SessionBytes),
            );
            self.metrics.open.set(self.connections() as f64);
            self.heartbeat.beat();
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn export(&self, device: &Device) {
        let (status, settings, gauges) = (device.status(), device.settings(), &device.metrics);
        gauges.queued.set(status.queued as f64);
        gauges.running.set(status.running as f64);
        let used = status.workers.iter().filter(|worker| worker.resident.is_used);
        let serving = || used.clone().filter_map(|worker| worker.resident.serves);
        gauges.residents.set(serving().count() as f64);
        gauges.shared.set(serving().filter(|whom| *whom == Compartment::Shared).count() as f64);
        gauges.kept_apart.set(device.kept_apart().len() as f64);
        gauges.workers.set(used.count() as f64);
        gauges.workers_at_most.set(settings.workers as f64);
        gauges.standbys_ready.set(device.standbys_ready() as f64);
        gauges.standbys_wanted.set(settings.standbys as f64);
        gauges.lost.set(f64::from(u8::from(device.is_lost())));
        let memory = device.memory();
        gauges.memory.contexts.set(memory.context_bytes as f64);
        gauges.memory.stacks.set(memory.stack_bytes as f64);
        gauges.memory.leases.set(memory.lease_bytes as f64);
        gauges.memory.weights.set(memory.weight_bytes as f64);
        gauges.memory.free.set(memory.free_bytes as f64);
        gauges.lent_bytes.set(memory.lease_bytes as f64);
        gauges.weights(status.weights_bytes, &status.weights);
        let (quarantined, budgets) = device.refusals();
        gauges.batch_wait.set(device.waited_for_company_ns() as f64 * 1e-9);
        gauges.quarantined.set(quarantined.len() as f64);
        gauges.spent_budgets.set(budgets.iter().filter(|budget| budget.left == 0).count() as f64);
        for (tenant, ns, _) in device.device_times() {
            let name = self.registry.tenants.names().name(tenant);
            metrics::tenant_seconds(&device.config.name, &name).set(ns as f64 * 1e-9);
        }
    }
}
