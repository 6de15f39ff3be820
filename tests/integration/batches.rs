//! Calls of one caller that wait at the same time run side by side, where their function says along which dimension: each has its
//! own answer, and what fails together is tried again call by call.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation, v1};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Supervisor, signal, until};
use crate::kit::{self, Function, ptr, refused};
use crate::metrics::{address, scrape, value};

/// One lane, so that calls wait for each other.
const DEVICE: &str = "cpu:workers=1,memory=64MiB";

/// In place of the probe: trap(from, bytes: i64) traps if one of the bytes is 255.
const GUARD: &str = r#"(func (export "trap") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $at i32) (local $end i32)
    (local.set $at (i32.load (local.get $args)))
    (local.set $end (i32.add (local.get $at) (i32.load offset=8 (local.get $args))))
    (loop $again
      (if (i32.lt_u (local.get $at) (local.get $end)) (then
        (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 255)) (then unreachable))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $again))))))"#;

fn module() -> Vec<u8> {
    let (before, _) = include_str!("probes.wat").split_once("(func (export \"trap\")").unwrap();
    wat::parse_str(format!("{before}{GUARD}")).unwrap()
}

/// `x`: u8[n,row] → `y`: u8[n,row], a copy of `x` in which no byte may be 255. Up to 8 of `n` at once.
fn config() -> Value {
    let (n, row) = (json!({"Free": "n"}), json!({"Free": "row"}));
    let bytes = json!({"Product": [n, row]});
    let count = json!({"I64": bytes});
    let function = Function {
        inputs: &["x"],
        buffers: &[("y", bytes)],
        outputs: &["y"],
        steps: &[
            kit::launch("trap", &[ptr("x"), count.clone()]),
            kit::launch("copy", &[ptr("x"), ptr("y"), count]),
        ],
        ..Function::default()
    };
    let mut config: Value = serde_json::from_str(&function.json()).unwrap();
    let rows = json!({"dtype": "u8", "shape": [n, row]});
    config["blueprint"]["types"] = json!({"x": rows, "y": rows});
    config["blueprint"]["batch"] = json!({"dimension": "n", "most": 8});
    config
}

fn add(client: &mut Client, config: &Value) -> pappus_client::Result<()> {
    let variant = kit::wasm(client, &module());
    let function = kit::parts(client, "rows", &config.to_string(), kit::module_of("probes", vec![variant]))?;
    client.add_function(function).map(drop)
}

/// A call with rows of so many bytes, all of them `byte`.
fn rows(byte: u8, n: u64, row: u64) -> Invocation {
    Invocation::new("rows").input("x", vec![byte; (n * row) as usize]).typed("x", "u8", &[n, row]).output("y")
}

struct Bench {
    supervisor: Supervisor,
    client: Client,
    address: String,
}

impl Bench {
    fn new(port: u16) -> Self {
        let address = address(port);
        let supervisor = Supervisor::with(&["--device", DEVICE, "--metrics", &address]);
        let mut client = supervisor.client();
        add(&mut client, &config()).unwrap();
        client.invoke(&rows(1, 1, 1)).unwrap();
        Self { supervisor, client, address }
    }

    /// Sends calls of which the first keeps the lane until all others wait.
    fn send(&mut self, calls: &[Invocation]) -> Vec<u64> {
        self.send_but(calls, None)
    }

    /// As [`Bench::send`]; one of them is given up while it waits.
    fn send_but(&mut self, calls: &[Invocation], given_up: Option<usize>) -> Vec<u64> {
        let pid = self.supervisor.worker_pids()[0];
        signal(pid, Signal::STOP);
        let ids: Vec<u64> = calls.iter().map(|call| self.client.send_invocation(call).unwrap()).collect();
        let wait = |count: usize| until("others wait", || self.supervisor.device().queued == count as u64);
        wait(calls.len() - 1);
        if let Some(at) = given_up {
            self.client.cancel(ids[at]).unwrap();
            wait(calls.len() - 2);
        }
        signal(pid, Signal::CONT);
        ids
    }

    /// How often calls ran side by side, and how many of them did.
    fn batches(&self) -> (f64, f64) {
        let text = scrape(&self.address);
        let of = |name: &str| value(&text, &format!("pappus_{name}_total{{device=\"cpu\"}}"));
        (of("batches"), of("batched_invocations"))
    }
}

#[test]
fn what_waits_at_the_same_time_runs_side_by_side_and_nobody_has_anothers_bytes() {
    let mut b = Bench::new(9481);
    // Behind the first: eight rows, eight rows, one call of another shape, then two.
    let shapes = [(1, 16), (3, 16), (5, 16), (2, 16), (6, 16), (1, 24), (1, 16), (2, 16)];
    let calls: Vec<_> = (1u8..).zip(shapes).map(|(byte, (n, row))| rows(byte, n, row)).collect();
    let ids = b.send(&calls);
    for (byte, (id, (n, row))) in (1u8..).zip(ids.into_iter().zip(shapes)) {
        let answer = b.client.wait_invoked(id).unwrap();
        assert_eq!(&answer.outputs[0].inline[..], vec![byte; (n * row) as usize], "{byte}");
        assert_eq!(answer.outputs[0].shape, [n, row]);
    }
    assert_eq!(b.batches(), (3.0, 6.0));
}

#[test]
fn a_batch_that_fails_runs_again_call_by_call_and_the_guilty_call_is_named() {
    let mut b = Bench::new(9482);
    let calls = [rows(1, 1, 4), rows(2, 2, 4), rows(255, 2, 4), rows(4, 2, 4)];
    let ids = b.send(&calls);
    for (byte, id) in [1u8, 2, 255, 4].into_iter().zip(ids) {
        let answer = b.client.wait_invoked(id);
        match byte {
            255 => drop(refused(answer, Code::KernelFault, "")),
            _ => assert_eq!(answer.unwrap().outputs[0].inline[0], byte),
        }
    }
    // Calls that come soon after run apart.
    b.send(&[rows(1, 1, 4), rows(2, 2, 4), rows(3, 2, 4)]).into_iter().for_each(|id| {
        b.client.wait_invoked(id).unwrap();
    });
    assert_eq!(b.batches(), (0.0, 0.0));
}

#[test]
fn a_call_of_a_batch_that_is_given_up_changes_nothing_for_others() {
    let mut b = Bench::new(9483);
    let pid = b.supervisor.worker_pids()[0];
    let ids = b.send_but(&[rows(1, 1, 4), rows(2, 2, 4), rows(3, 2, 4), rows(4, 2, 4)], Some(2));
    for at in [0, 1, 3] {
        assert_eq!(b.client.wait_invoked(ids[at]).unwrap().outputs[0].inline[0], at as u8 + 1);
    }
    assert_eq!((b.supervisor.worker_pids(), b.batches()), (vec![pid], (1.0, 2.0)));
}

#[test]
fn arenas_take_their_part_of_a_batch() {
    let mut b = Bench::new(9484);
    let mut arena = b.client.open_arena(4096).unwrap();
    let mut results = Vec::new();
    let calls: Vec<_> = (10..14u8)
        .map(|byte| {
            let (from, to) = (arena.store(&[byte; 16]).unwrap(), arena.alloc(16).unwrap());
            results.push((byte, to));
            Invocation::new("rows").input("x", from).typed("x", "u8", &[2, 8]).output_to("y", to)
        })
        .collect();
    for id in b.send(&calls) {
        b.client.wait_invoked(id).unwrap();
    }
    for (byte, to) in results {
        assert_eq!(arena.load(to).unwrap(), [byte; 16]);
    }
    assert_eq!(b.batches(), (1.0, 3.0));
}

#[test]
fn a_batch_that_calls_could_not_share_is_refused_when_it_is_registered() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let mut check = |change: &dyn Fn(&mut Value), words: &str| {
        let mut config = config();
        change(&mut config["blueprint"]);
        refused(add(&mut client, &config), Code::InvalidArgument, words);
    };
    check(&|b| b["batch"]["dimension"] = json!("m"), "\"m\" is no free dimension");
    check(&|b| b["batch"]["most"] = json!(1), "1, expected 2 to 65536 items");
    check(&|b| b["batch"]["dimension"] = json!("row"), "the shape of \"x\" does not begin with \"row\"");
    check(&|b| b["types"]["y"] = json!({"dtype": "u8"}), "the shape of \"y\" does not begin with \"n\"");
    let inner = json!({"dtype": "u8", "shape": [{"Free": "n"}, {"CeilDiv": [{"Free": "n"}, 4]}]});
    check(&|b| b["types"]["y"] = inner.clone(), "no other one that depends on it");
    let word = json!({"Sum": [{"Product": [{"Free": "n"}, {"Free": "row"}]}, {"FromInput": {"bufname": "x", "idx": 0}}]});
    check(
        &|b| b["buffers"] = json!({"y": {"Product": [{"Free": "n"}, {"Free": "row"}]}, "z": word}),
        "sizes depend on words of inputs",
    );
}

#[test]
fn a_call_waits_for_company_where_its_function_says_so() {
    let mut b = Bench::new(9488);
    let mut patient = config();
    patient["blueprint"]["batch"]["delay_us"] = json!(1_000_000);
    let variant = kit::wasm(&mut b.client, &module());
    let module = kit::module_of("probes", vec![variant]);
    let function = kit::parts(&mut b.client, "rows", &patient.to_string(), module).unwrap();
    b.client.add_function(v1::AddFunction { replace: true, ..function }).unwrap();
    // The lane is free; the third call makes the batch full.
    let sizes = [3, 2, 3];
    let ids = sizes.map(|n| b.client.send_invocation(&rows(n as u8, n, 4)).unwrap());
    for (n, id) in sizes.into_iter().zip(ids) {
        assert_eq!(b.client.wait_invoked(id).unwrap().outputs[0].inline[..], vec![n as u8; 4 * n as usize]);
    }
    assert_eq!(b.batches(), (1.0, 3.0));
    // One that waits can be given up, and one without time for that does not wait.
    let id = b.client.send_invocation(&rows(1, 1, 4)).unwrap();
    b.client.cancel(id).unwrap();
    kit::fails(&mut b.client, id, Code::Cancelled);
    b.client.invoke(&rows(1, 1, 4).deadline(Duration::from_secs(1))).unwrap();
    let waited = || value(&scrape(&b.address), "pappus_batch_wait_seconds{device=\"cpu\"}");
    until("it is told", || waited() > 0.0);
    assert_eq!(b.supervisor.device().queued, 0);
}
