//! `pappus bench` in front of a supervisor: what it counts is what the supervisor did.

use serde_json::Value;

use crate::fixture::Supervisor;
use crate::house::{enter, house, token};
use crate::kit;

/// Short, and every call well within its deadline on a busy machine.
const SHORT: [&str; 6] = ["--duration", "500ms", "--warm-up", "100ms", "--deadline", "20s"];

fn json(supervisor: &Supervisor, arguments: &[&str]) -> Value {
    let printed = supervisor.ok(&[&["bench", "--json"], arguments, &SHORT].concat());
    serde_json::from_str(&printed).unwrap()
}

fn count(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn calls_of_an_open_loop_are_those_that_the_supervisor_completed() {
    let supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    let result = json(&supervisor, &["copy", "-i", "in=u8:1,2,3", "--rate", "200", "--arrivals", "uniform"]);
    let all = &result["runs"][0]["all"];
    assert_eq!((count(all, "due"), count(all, "answered"), count(all, "failed")), (100, 100, 0), "{all}");
    // Those of the warm-up ran, too.
    assert_eq!(supervisor.device().completed, 120);
    assert_eq!((&result["over"], &result["arrivals"]), (&"socket".into(), &"uniform".into()));
    assert!(all["latency_ns"]["p50"].as_u64() >= all["service_ns"]["p50"].as_u64(), "{all}");
}

/// Has so many bytes copied again and again, none of which fails.
fn copies(supervisor: &Supervisor, bytes: usize, flags: &[&str]) -> Value {
    kit::add_copy(&mut supervisor.client());
    let file = supervisor.write("in.bin", vec![7; bytes]);
    let input = format!("in={}", file.display());
    let all = json(supervisor, &[&["copy", "-i", &input], flags].concat())["runs"][0]["all"].clone();
    assert!(count(&all, "answered") > 0 && count(&all, "failed") == 0, "{all}");
    all
}

#[test]
fn large_data_lies_in_an_arena_and_several_calls_are_on_their_way() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    let all = copies(&supervisor, 256 << 10, &["--clients", "4", "--in-flight", "4"]);
    assert!(supervisor.device().completed >= count(&all, "answered"));
}

/// At first there is room for one output of such a size.
#[test]
fn room_for_outputs_is_made_when_several_calls_are_on_their_way() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=1,memory=256MiB"]);
    copies(&supervisor, 40 << 20, &["--clients", "3"]);
}

#[test]
fn tenants_call_by_their_tokens_at_rates_of_their_own() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    kit::add_copy(&mut enter(&supervisor, "alice"));
    kit::add_copy(&mut enter(&supervisor, "bob"));
    let tenants = format!("alice 40 {}\nbob - {}\n", token("alice"), token("bob"));
    let tenants = supervisor.write("tenants.txt", tenants);
    let tenants = tenants.to_str().unwrap();
    let arguments = ["copy", "-i", "in=u8:1", "--rate", "120", "--arrivals", "uniform", "--tenants", tenants];
    let run = json(&supervisor, &arguments)["runs"][0].clone();
    let answered = |tenant: &str| count(&run["tenants"][tenant], "answered");
    assert_eq!((answered("alice"), answered("bob"), count(&run["all"], "failed")), (20, 60, 0), "{run}");
}

#[test]
fn outputs_of_anothers_function_have_as_much_room_as_an_answer_told() {
    // Room for one output of unknown size, whose arena may still be closing, and for those of all calls that are on their way.
    let supervisor = house(&[("alice", ""), ("bob", "arena-bytes = \"66MiB\"")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    alice.grant("copy", "bob").unwrap();
    let file = supervisor.write("in.bin", vec![7; 256 << 10]);
    let input = format!("in={}", file.display());
    let tenants = supervisor.write("tenants.txt", format!("bob - {}\n", token("bob")));
    let tenants = ["--tenants", tenants.to_str().unwrap()];
    let call = ["alice/copy", "-i", &input, "--clients", "4", "--in-flight", "8"];
    let all = json(&supervisor, &[&call[..], &tenants].concat())["runs"][0]["all"].clone();
    assert!(count(&all, "answered") > 0 && count(&all, "failed") == 0, "{all}");
}

#[test]
fn failures_are_counted_by_code_and_a_sweep_ends_with_them() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    kit::add_copy(&mut enter(&supervisor, "alice"));
    // Bob has no such function.
    let tenants = format!("alice - {}\nbob - {}\n", token("alice"), token("bob"));
    let tenants = supervisor.write("tenants.txt", tenants);
    let tenants = tenants.to_str().unwrap();
    let arguments = ["copy", "-i", "in=u8:1", "--rate", "40", "--sweep", "--tenants", tenants];
    let result = json(&supervisor, &arguments);
    assert_eq!(result["runs"].as_array().unwrap().len(), 1, "{result}");
    let run = &result["runs"][0];
    let bob = &run["tenants"]["bob"];
    assert_eq!(bob["errors"]["NOT_FOUND"], bob["due"], "{bob}");
    assert_eq!(
        (count(bob, "answered"), &run["holds"], &result["highest_rate"]),
        (0, &false.into(), &Value::Null)
    );
    assert_eq!(count(&run["tenants"]["alice"], "failed"), 0, "{run}");
}

#[test]
fn a_trace_is_followed_and_results_are_compared() {
    let supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    let trace = supervisor.write("trace.txt", "0.01\n0.02\n0.02\n0.05\n");
    let trace = trace.to_str().unwrap();
    let arguments = ["bench", "copy", "-i", "in=u8:1", "--trace", trace, "--deadline", "20s"];
    let result = supervisor.ok(&[&arguments[..], &["--json"]].concat());
    assert!(result.contains("\"due\":4,"), "{result}");
    let csv = supervisor.ok(&[&arguments[..], &["--csv"]].concat());
    assert!(csv.starts_with("rate,tenant,due,answered,failed,") && csv.contains("\n,all,4,4,0,"), "{csv}");
    let told: serde_json::Value = serde_json::from_str(&result).unwrap();
    assert_eq!(told["runs"][0]["holds"], true, "its last answer counts, too: {result}");
    let file = supervisor.write("a.json", result);
    let file = file.to_str().unwrap();
    let shown = supervisor.ok(&["bench", "--compare", file, file]);
    assert!(shown.contains("B/A") && shown.contains("1.00") && !shown.contains("not the same"), "{shown}");
}

#[test]
fn nothing_answered_is_an_error_and_what_cannot_be_meant_is_refused() {
    let supervisor = Supervisor::start();
    kit::add_kernel(&mut supervisor.client(), "trap", "trap", &[]);
    let ran = supervisor.pappus(&[&["bench", "trap", "--rate", "20"], &SHORT[..]].concat());
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("no call was answered: ") && ran.stderr.contains("KERNEL_FAULT"),
        "{}",
        ran.stderr
    );
    for (arguments, code) in [
        (&["bench", "trap"][..], 2),
        (&["bench", "trap", "--rate", "1", "--clients", "1"], 2),
        (&["bench", "trap", "--clients", "1", "--sweep"], 2),
        (&["bench", "absent", "--rate", "1"], 3),
        (&["bench", "trap", "--rate", "1", "--tenants", "nowhere"], 3),
        (&["bench", "trap", "--rate", "1", "--gateway", "https://h"], 2),
    ] {
        assert_eq!(supervisor.pappus(arguments).code, code, "{arguments:?}");
    }
}
