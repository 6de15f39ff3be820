//! Commands in their order: as decided, turns around, memory moved before it is used, none after an epoch.

use super::*;
use crate::ids::TurnId;
use crate::schedule::{Action, Address, Command, Order};

#[test]
fn commands_that_come_in_another_order_are_written_as_they_were_decided() {
    let mut gpu = Gpu::new(true);
    let generation = Generation::new(1);
    let turn = TurnId::new(7);
    // The first command was its settings.
    let commands =
        [Order::Revoke { turn }, Order::Soon, Order::Grant { turn, quantum_us: 5000, change_us: 20 }]
            .map(Command::Turn);
    for (nth, command) in [2, 3].into_iter().zip(commands.clone()) {
        gpu.device.commands.carry_out(
            &mut vec![Action::Tell { to: Address { worker: W0, generation, nth }, command }].into(),
            None,
        );
        gpu.expect(W0, &[]);
    }
    let to = Address { worker: W0, generation, nth: 1 };
    gpu.device.commands.carry_out(&mut vec![Action::Tell { to, command: commands[2].clone() }].into(), None);
    gpu.expect(W0, &["Soon", "grant 7 for 5000", "revoke 7"]);
    // What was decided about a process before is void.
    let to = Address { worker: W0, generation: Generation::new(0), nth: 4 };
    gpu.device
        .commands
        .carry_out(&mut vec![Action::Tell { to, command: Command::Turn(Order::Soon) }].into(), None);
    gpu.expect(W0, &[]);
}

#[test]
fn turns_go_around_and_calls_come_before_their_grant() {
    let mut gpu = Gpu::new(true);
    let function = gpu.function("f", 0);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0", "grant 1 for 5000"]);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    gpu.expect(W0, &["revoke 1"]);
    gpu.device.events.yielding(W0, TurnId::new(1)).unwrap();
    gpu.expect(W1, &["Soon"]);
    gpu.done(W0, first);
    assert!(gpu.device.events.yielded(W0, TurnId::new(1), 1000, 0).unwrap());
    gpu.expect(W1, &["grant 2 for 5000"]);
    assert!(gpu.device.events.yielded(W0, TurnId::new(1), 1000, 0).is_err());
}

#[test]
fn a_turn_that_more_calls_wait_for_is_over_once_its_answers_are_heard() {
    let mut gpu = Gpu::new(true);
    let function = gpu.function("f", 0);
    let calls: Vec<_> = (0..5).map(|_| gpu.submit(&function, TenantId::new(1), 0)).collect();
    gpu.submit(&function, TenantId::new(2), 0);
    let turn = TurnId::new(1);
    assert!(!gpu.device.events.yielded(W0, turn, 1000, 4).unwrap(), "one call waits for a lane");
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    calls[..4].iter().for_each(|id| gpu.done(W0, *id));
    assert!(gpu.device.events.yielded(W0, turn, 1000, 0).unwrap());
    // The fifth is in its worker and wants a turn, too.
    gpu.expect(W1, &["grant 2 for 5000", "revoke 2"]);
}

#[test]
fn memory_moves_to_one_worker_and_back_without_ever_being_there_twice() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    // Beside a worker, one that compiles may take its 10 MiB.
    assert_eq!(gpu.device.largest_call_bytes(), 90 * MIB);
    let small = gpu.submit(&function, TenantId::new(2), 30 * MIB);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0"]);
    gpu.done(W0, small);
    assert_eq!(gpu.device.memory().lease_bytes, 32 * MIB, "it keeps what it was lent");
    let large = gpu.submit(&function, TenantId::new(1), 90 * MIB);
    let behind = gpu.submit(&function, TenantId::new(2), 30 * MIB);
    gpu.expect(W1, &[]);
    gpu.expect(W0, &["give back 1"]);
    gpu.device.events.leased(W0, 0).unwrap();
    gpu.expect(W1, &["install 1", "invoke on 0 flags 0"]);
    gpu.expect(W0, &[]);
    gpu.done(W1, large);
    gpu.expect(W1, &["give back 1"]);
    gpu.expect(W0, &[]);
    gpu.device.events.leased(W1, 0).unwrap();
    gpu.expect(W0, &["invoke on 0 flags 0"]);
    gpu.done(W0, behind);
    assert!(gpu.device.events.leased(W1, 0).is_err(), "it was not asked");
}

#[test]
fn a_worker_that_keeps_what_it_was_told_to_give_back_is_found_out() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let small = gpu.submit(&function, TenantId::new(2), 30 * MIB);
    gpu.done(W0, small);
    gpu.submit(&function, TenantId::new(1), 90 * MIB);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0", "give back 1"]);
    assert!(matches!(gpu.device.events.leased(W0, 1), Err(Unusable::MemoryKept)));
}

#[test]
fn a_process_of_an_epoch_that_is_over_gets_no_calls() {
    let mut gpu = Gpu::new(false);
    drop(gpu.workers.remove(0));
    assert!(gpu.device.processes.end_epoch(Epoch::new(0)));
    let refused = attach_of(&gpu.device, W0, Generation::new(2), Epoch::new(0));
    assert!(matches!(refused, Err(Unusable::EpochOver)));
    // The control: one of the next epoch is taken.
    assert!(attach_of(&gpu.device, W0, Generation::new(3), Epoch::new(1)).is_ok());
}
