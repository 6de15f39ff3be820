//! Several clients at once: every answer belongs to its call.

use pappus_client::{Invocation, Result};

use crate::fixture::Supervisor;
use crate::kit;

const CLIENTS: u64 = 8;
const CALLS: u64 = 50;

/// What call `call` of client `client` sends: no two are alike.
fn data(client: u64, call: u64) -> Vec<u8> {
    let word = (client << 32) | call;
    word.to_le_bytes().repeat(1 + (client + call) as usize % 40)
}

#[test]
fn every_client_gets_its_own_answers() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    kit::add_copy(&mut supervisor.client());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mut connection = supervisor.client();
            scope.spawn(move || {
                for call in 0..CALLS {
                    let sent = data(client, call);
                    assert_eq!(kit::copied(&mut connection, &sent).unwrap(), sent);
                }
            });
        }
    });
    assert_eq!(supervisor.device().completed, CLIENTS * CALLS);
}

#[test]
fn pipelined_calls_through_one_arena_keep_apart() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    let mut arena = client.open_arena(1 << 20).unwrap();
    let calls = (0..400).map(|call| {
        let input = arena.store(&data(9, call))?;
        let output = arena.alloc(input.bytes)?;
        let copy = Invocation::new("copy").input("in", input).output_to("out", output);
        Ok((client.send_invocation(&copy)?, input, output))
    });
    let calls = calls.collect::<Result<Vec<_>>>().unwrap();
    // Answers in the opposite order of the calls.
    for (id, input, output) in calls.into_iter().rev() {
        client.wait_invoked(id).unwrap();
        assert_eq!(arena.load(output).unwrap(), arena.load(input).unwrap());
    }
}
