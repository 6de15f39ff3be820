//! Reading a configuration takes so many times the memory of its JSON at the most, as the kernel sees it: each case in a process of
//! its own, since memory that was freed before would be used again.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use pappus_blueprint::{limits, parse};

/// The case of a process that this test starts.
const CASE: &str = "PAPPUS_TEST_CASE";
const LAUNCH: &str = r#"{"grid_dim_x":{"Absolute":1},"grid_dim_y":{"Absolute":1},"grid_dim_z":{"Absolute":1},"block_dim_x":{"Absolute":1},"block_dim_y":{"Absolute":1},"block_dim_z":{"Absolute":1},"shared_mem_bytes":{"Absolute":0}}"#;

/// A configuration of the largest permitted length, filled with repetitions of `part`.
fn full_of(part: &str, around: impl Fn(&str) -> String) -> String {
    let around = around("\0");
    let (before, after) = around.split_once('\0').unwrap();
    let mut json = String::with_capacity(limits::JSON_BYTES);
    json.push_str(before);
    while json.len() + part.len() + 1 + after.len() <= limits::JSON_BYTES {
        json.push_str(part);
        json.push(',');
    }
    json.pop();
    json.push_str(after);
    json
}

fn config(kernels: &str, inputs: &str, buffers: &str, flow: &str) -> String {
    format!(
        r#"{{"module_path":"m","kernels":[{kernels}],"blueprint":{{"inputs":[{inputs}],"buffers":{{{buffers}}},"outputs":[],"control_flow":[{flow}]}}}}"#
    )
}

/// Writes a configuration.
type Writer = Box<dyn Fn() -> String>;

/// What is written shortest takes most; what is refused is not refused before it is read, unless it is longer than it may be.
fn cases() -> Vec<(&'static str, Writer)> {
    fn steps(part: &str) -> String {
        full_of(part, |flow| config(r#""k""#, r#""b""#, "", flow))
    }
    fn sums(part: &str) -> String {
        full_of(part, |sums| config("", r#""b""#, &format!(r#""c":{{"Sum":[{sums}]}}"#), ""))
    }
    fn launches(arguments: &str) -> String {
        steps(&format!(r#"{{"ExecKernel":["k",[{arguments}],{LAUNCH}]}}"#))
    }
    vec![
        ("copies", Box::new(|| steps(r#"{"Copy":{"from":"b","to":"b"}}"#))),
        ("fills", Box::new(|| steps(r#"{"Fill":{"buffer":"b","byte":0}}"#))),
        (
            "long names",
            Box::new(|| steps(&format!(r#"{{"Fill":{{"buffer":"{}","byte":0}}}}"#, "b".repeat(24)))),
        ),
        ("repeats", Box::new(|| steps(r#"{"Repeat":[{"Absolute":1},[]]}"#))),
        ("launches", Box::new(|| launches(""))),
        ("arguments", Box::new(|| launches(&[r#"{"Ptr":"b"}"#; 512].join(",")))),
        (
            "offsets",
            Box::new(|| {
                steps(r#"{"Fill":{"buffer":"b","byte":0,"offset":{"Sub":[{"Sizeof":"b"},{"Absolute":1}]}}}"#)
            }),
        ),
        ("sums", Box::new(|| sums(r#"{"Sizeof":"b"}"#))),
        ("empty sums", Box::new(|| sums(r#"{"Sum":[]}"#))),
        (
            "fields",
            Box::new(|| {
                let fields = [r#"{"offset":0,"value":{"Ptr":"b"}}"#; 4096].join(",");
                launches(&format!(r#"{{"Struct":{{"size":8,"fields":[{fields}]}}}}"#))
            }),
        ),
        ("kernels", Box::new(|| full_of(r#""k""#, |kernels| config(kernels, "", "", "")))),
        ("inputs", Box::new(|| full_of(r#""b""#, |inputs| config("", inputs, "", "")))),
        ("buffers", Box::new(|| full_of(r#""b":{"Free":"x"}"#, |buffers| config("", "", buffers, "")))),
    ]
}

/// What the kernel says of this process, in KiB.
fn kernel_says(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Says how much more memory the process took for one of the cases.
fn measure(case: usize) {
    let (_, json) = cases().swap_remove(case);
    let json = json();
    let before = kernel_says("VmRSS:");
    let read = parse(json.as_bytes()).map_err(|e| e.to_string());
    let took = (kernel_says("VmHWM:") - before) << 10;
    drop(read);
    println!("took {:.1} times", took as f64 / json.len() as f64);
}

#[test]
fn reading_takes_no_more_memory_than_is_said() {
    if let Ok(case) = std::env::var(CASE) {
        return measure(case.parse().unwrap());
    }
    for (at, (name, _)) in cases().into_iter().enumerate() {
        let mut test = Command::new(std::env::current_exe().unwrap());
        let test = test.args(["--exact", "reading_takes_no_more_memory_than_is_said", "--nocapture"]);
        let said = String::from_utf8(test.env(CASE, at.to_string()).output().unwrap().stdout).unwrap();
        let times = said.split("took ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or(&said);
        println!("{name}: {times} times");
        let times: f64 = times.parse().unwrap();
        assert!((0.0..=limits::PARSE_MEMORY as f64).contains(&times), "{name}: {times} times its bytes");
    }
}
