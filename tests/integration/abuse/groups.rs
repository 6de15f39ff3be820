//! Control groups are used again; what a tenant left charged to one is not the next tenant's.

use pappus_client::Invocation;
use pappus_client::v1;

use crate::fixture::Supervisor;
use crate::house::{config, enter};
use crate::kit::{Function, absolute, constant, launch, ptr};

/// Written by each call.
const OUTPUT: u64 = 8 << 20;
/// Calls of each tenant: two tenants' pages are more than a group may have, one tenant's are not.
const CALLS: u64 = 12;

/// Pages of an arena are charged to the group of the worker that touches them first, for as long as they exist.
#[test]
fn pages_of_one_tenant_are_not_charged_to_the_next() {
    let tenants = [("alice", ""), ("bob", "")];
    let device = "cpu:workers=1,memory=16MiB,min-residency=0s";
    let supervisor =
        Supervisor::configured(&config(&tenants), &["--worker-memory", "160MiB", "--device", device]);
    supervisor.worker_pids();
    let workers = supervisor.device().workers;
    if !workers.iter().all(|worker| worker.sandbox.iter().any(|layer| layer == "cgroup")) {
        // No control groups can be made here.
        return;
    }
    let steps = [launch("fill", &[ptr("out"), constant(7), constant(OUTPUT as i64)])];
    let buffers = [("out", absolute(OUTPUT))];
    let function = Function { buffers: &buffers, outputs: &["out"], steps: &steps, ..Function::default() };
    let mut kept = Vec::new();
    for (tenant, _) in tenants {
        let mut client = enter(&supervisor, tenant);
        function.add(&mut client, "fill");
        let arena = client.open_arena(CALLS * OUTPUT).unwrap();
        for nth in 0..CALLS {
            let region = v1::Region { arena: arena.id(), offset: nth * OUTPUT, bytes: OUTPUT };
            client.invoke(&Invocation::new("fill").output_to("out", region)).unwrap();
        }
        // The arena's pages stay, and so does their charge.
        kept.push((client, arena));
    }
    assert_eq!(supervisor.device().failed, 0, "{}", supervisor.log());
}
