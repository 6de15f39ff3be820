//! Reading a configuration takes so many times the memory of its JSON at the most: counted by the allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use pappus_blueprint::{Error, limits, parse};

/// Bytes that are allocated, and the most there were.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn grew(bytes: usize) {
        let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
        MOST.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: everything is the system allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::grew(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    /// The system moves the pages of what is large, so that there are never two of it.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        Self::grew(bytes);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What has `part` so often that the JSON is as long as one may be.
fn full_of(part: &str, around: impl Fn(&str) -> String) -> String {
    let parts = (limits::JSON_BYTES - around("").len() - 1) / (part.len() + 1);
    around(&vec![part; parts].join(","))
}

fn config(kernels: &str, inputs: &str, buffers: &str, flow: &str) -> String {
    format!(
        r#"{{"module_path":"m","kernels":[{kernels}],"blueprint":{{"inputs":[{inputs}],"buffers":{{{buffers}}},"outputs":[],"control_flow":[{flow}]}}}}"#
    )
}

/// The most memory that reading it takes, in times of its bytes, beside the outcome.
fn times(json: &str) -> (f64, Result<(), Error>) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let read = parse(json.as_bytes()).map(drop);
    let most = MOST.load(Ordering::Relaxed) - before;
    (most as f64 / json.len() as f64, read)
}

/// One test: what runs beside it would be counted, too.
#[test]
fn reading_takes_no_more_memory_than_is_said() {
    const LAUNCH: &str = r#"{"grid_dim_x":{"Absolute":1},"grid_dim_y":{"Absolute":1},"grid_dim_z":{"Absolute":1},"block_dim_x":{"Absolute":1},"block_dim_y":{"Absolute":1},"block_dim_z":{"Absolute":1},"shared_mem_bytes":{"Absolute":0}}"#;
    let steps = |part: &str| full_of(part, |flow| config(r#""k""#, r#""b""#, "", flow));
    let arguments = |part: &str| steps(&format!(r#"{{"ExecKernel":["k",[{part}],{LAUNCH}]}}"#));
    let cases = [
        // What is written shortest takes most.
        ("copies", steps(r#"{"Copy":{"from":"b","to":"b"}}"#)),
        ("fills", steps(r#"{"Fill":{"buffer":"b","byte":0}}"#)),
        ("repeats", steps(r#"{"Repeat":[{"Absolute":1},[]]}"#)),
        ("launches", arguments("")),
        ("arguments", arguments(&vec![r#"{"Ptr":"b"}"#; 512].join(","))),
        (
            "offsets",
            steps(r#"{"Fill":{"buffer":"b","byte":0,"offset":{"Sub":[{"Sizeof":"b"},{"Absolute":1}]}}}"#),
        ),
        (
            "sums",
            full_of(r#"{"Sizeof":"b"}"#, |sums| {
                config("", r#""b""#, &format!(r#""c":{{"Sum":[{sums}]}}"#), "")
            }),
        ),
        // Refused, but not before they are read.
        (
            "nothing",
            full_of(r#"{"Sum":[]}"#, |sums| config("", "", &format!(r#""c":{{"Sum":[{sums}]}}"#), "")),
        ),
        (
            "fields",
            arguments(&format!(
                r#"{{"Struct":{{"size":8,"fields":[{}]}}}}"#,
                vec![r#"{"offset":0,"value":{"Ptr":"b"}}"#; 4096].join(",")
            )),
        ),
        // Longer than they may be, which is seen at once.
        ("kernels", full_of(r#""k""#, |kernels| config(kernels, "", "", ""))),
        ("inputs", full_of(r#""b""#, |inputs| config("", inputs, "", ""))),
        ("buffers", full_of(r#""b":{"Free":"x"}"#, |buffers| config("", "", buffers, ""))),
    ];
    for (name, json) in cases {
        let (times, read) = times(&json);
        println!("{name}: {times:.1} times {} bytes, {:?}", json.len(), read.map_err(|e| e.to_string()));
        assert!(times <= limits::PARSE_MEMORY as f64, "{name}: {times:.1} times");
    }
}
