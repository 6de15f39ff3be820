//! A CUDA device under test whose lanes are windows, as strangers share it. Its probes are those of every CUDA device that can
//! be fenced.

use std::sync::OnceLock;

use pappus_protocol::{FaultCode, now_ns};

use super::blueprints::{Blueprint, filling, i64, launch, ptr, u32};
use super::cuda::{OnCuda, PROBES, library_text};
use super::leaks_on_chip::{ChipUnderTest, step};
use super::{GpuUnderTest, UnderTest};
use crate::harness::program::{self, Options};
use crate::harness::{Call, OUTPUTS_AT, Worker};

pub struct OnSharedCuda;

/// A text without the functions that stand in the way of fencing it, and without those that call them.
pub fn fenceable(text: &str) -> String {
    let mut text = text.to_owned();
    loop {
        let reasons = pappus_fence::reasons(&text);
        if reasons.is_empty() {
            return text;
        }
        let before = text.len();
        for reason in &reasons {
            text = without(&text, &reason.kernel);
        }
        assert!(text.len() < before, "{}", reasons[0]);
    }
}

/// A text without the function of that name: from its head to the `}` at the beginning of a line.
fn without(text: &str, name: &str) -> String {
    let is_head = |line: &str| {
        let head = line.split("//").next().unwrap_or_default();
        let is_function = head.contains(".entry ") || head.contains(".func ");
        let mut words = head.split(|c: char| !c.is_alphanumeric() && !"_$".contains(c));
        is_function && !head.contains(".extern") && words.any(|word| word == name)
    };
    let mut inside = false;
    let kept = text.lines().filter(|line| {
        inside |= is_head(line);
        let keep = !inside;
        inside &= !line.starts_with('}');
        keep
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

fn compile(ptx: &[u8]) -> Vec<u8> {
    let text = fenceable(std::str::from_utf8(ptx).unwrap());
    let (code, module) = program::compile(&Options::SHARED_CUDA, text.as_bytes()).unwrap();
    assert!(module.fenced, "not fenced: is this GPU one that docs/fence.md has measured?");
    code
}

fn worker_with(options: &Options) -> Worker {
    let mut worker = Worker::process(options);
    worker.lane_bytes = OnSharedCuda::LANE_BYTES;
    worker
}

impl GpuUnderTest for OnSharedCuda {
    fn worker_with(lanes: u32) -> Worker {
        worker_with(&Options { lanes, ..Options::SHARED_CUDA })
    }
}

impl UnderTest for OnSharedCuda {
    const LANE_BYTES: u64 = OnCuda::LANE_BYTES;
    const SMALL_LANE_BYTES: u64 = OnCuda::SMALL_LANE_BYTES;
    const FAULTS_END_THE_WORKER: bool = true;
    const ENDS_RUNNING_KERNELS: bool = true;
    const STRAY: &'static str = OnCuda::STRAY;
    const NO_CODE: &'static str = "not fenced";
    const GRIDS: &'static [[u64; 3]] = OnCuda::GRIDS;

    fn worker() -> Worker {
        worker_with(&Options::SHARED_CUDA)
    }

    fn uncleared_worker() -> Worker {
        worker_with(&Options { uncleared: true, ..Options::SHARED_CUDA })
    }

    fn probes() -> &'static [u8] {
        static CODE: OnceLock<Vec<u8>> = OnceLock::new();
        CODE.get_or_init(|| compile(PROBES))
    }

    fn library(name: &str) -> Vec<u8> {
        compile(library_text(name))
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        let traps = OnCuda::traps();
        traps.into_iter().filter(|(kernel, ..)| ["trap", "misaligned"].contains(kernel)).collect()
    }

    fn strays() -> Vec<(&'static str, String)> {
        OnCuda::strays()
    }
}

/// Again and again, beside calls that go on: no context is lost.
pub fn an_endless_kernel_ends_by_its_deadline_and_nobody_else_notices<T: GpuUnderTest>() {
    let mut worker = T::worker_with(2);
    worker.install(1, &filling(8, &[launch("endless", &ptr("out"))]), T::probes(), &[]);
    let fill = launch("fill", &[ptr("out"), i64(7), i64(8)].join(","));
    worker.install(2, &filling(8, &[fill]), T::probes(), &[]);
    for nth in 0..5 {
        let mut endless = Call::on(1, 0, &[], OUTPUTS_AT, &[8]).lane(0);
        endless.deadline_ns = now_ns() + 200_000_000;
        let guilty = worker.begin(&endless);
        let mut answered = 0;
        let fault = loop {
            let other = Call::on(2, 0, &[], OUTPUTS_AT + 4096, &[8]).lane(1);
            let sent = worker.begin(&other);
            let (first, result) = worker.finished().expect("the device failed");
            if first == guilty {
                let (second, result_of_other) = worker.finished().expect("the device failed");
                assert_eq!(second, sent);
                result_of_other.unwrap();
                break result.unwrap_err();
            }
            result.unwrap();
            answered += 1;
        };
        assert_eq!(fault.code, FaultCode::Deadline, "{fault}");
        // The first call of a lane maps its memory.
        assert!(answered > 10, "others waited: {answered} calls in 200 ms, {nth} endless ones before");
        let late_ns = now_ns().saturating_sub(endless.deadline_ns);
        assert!(late_ns < 1_000_000_000, "{late_ns} ns late");
        // The same lane, at once.
        let next = Call::on(2, 0, &[], OUTPUTS_AT, &[8]).lane(0);
        worker.invoke(&next).unwrap();
        assert_eq!(worker.outputs(&next), [[7; 8]]);
    }
    worker.end().unwrap();
}

/// Code from a compiler that fences nothing, and code of a text that cannot be fenced.
pub fn plain_code_is_refused<T: UnderTest>() {
    let unfenceable = program::compile(&Options::SHARED_CUDA, PROBES).unwrap();
    assert!(!unfenceable.1.fenced);
    for code in [OnCuda::probes(), &unfenceable.0] {
        let mut worker = T::worker();
        worker.install(1, &filling(8, &[launch("work", "")]), code, &[]);
        let fault = worker.call(1, &[], &[8]).unwrap_err();
        assert!(fault.code == FaultCode::Load && fault.message.contains("not fenced"), "{fault}");
        worker.end().unwrap();
    }
}

/// A worker of one tenant takes the plain code out of the same file.
pub fn unfenced_code_serves_one_tenant<T: UnderTest>() {
    let mut worker = worker_with(&Options { shared: false, ..Options::SHARED_CUDA });
    let fill = launch("fill", &[ptr("out"), i64(7), i64(8)].join(","));
    for (function, code) in
        [(1, T::probes()), (2, &*program::compile(&Options::SHARED_CUDA, PROBES).unwrap().0)]
    {
        worker.install(function, &filling(8, std::slice::from_ref(&fill)), code, &[]);
        assert_eq!(worker.call(function, &[], &[8]).unwrap(), [[7; 8]]);
    }
    worker.end().unwrap();
}

/// Copies eight bytes from a place of its window to its output.
fn look(at: u64) -> String {
    launch("read_at", &[i64(at), ptr("out"), i64(8)].join(","))
}

/// A kernel reaches all of its lane's pool: what a call wrote behind its own plan is another tenant's to the next.
pub fn nothing_of_a_call_is_in_reach_of_a_smaller_one<T: GpuUnderTest>() {
    const POOL: u64 = 0x2000_0000;
    const FAR: u64 = 1 << 20;
    let found = |mut worker: Worker| {
        let fill = launch("fill", &[ptr("out"), i64(0xaa), i64(FAR + 8)].join(","));
        worker.install(1, &filling(8, &[fill]), T::probes(), &[]);
        worker.install(2, &filling(8, &[look(POOL + FAR)]), T::probes(), &[]);
        worker.call(1, &[], &[8]).unwrap();
        let seen = worker.call(2, &[], &[8]).unwrap();
        worker.end().unwrap();
        seen == [[0xaa; 8]]
    };
    assert!(found(T::uncleared_worker()), "the control finds nothing: was it built with test-hooks?");
    assert!(!found(T::worker()));
}

/// By their address in the window, whose upper half no kernel chooses.
pub fn weights_are_in_reach_of_their_own_function_only<T: GpuUnderTest>() {
    // Two pieces of 2 MiB below the header.
    const AT: u64 = 0xffe0_0000 - (4 << 20);
    let own = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 8)],
        outputs: &["out"],
        steps: &[look(AT)],
    };
    let mut worker = T::worker();
    worker.install(1, &own.json(), T::probes(), &[&[0xaa; 4096]]);
    worker.install(2, &filling(8, &[look(AT)]), T::probes(), &[]);
    assert_eq!(worker.call(1, &[], &[8]).unwrap(), [[0xaa; 8]], "the control finds nothing");
    let fault = worker.call_alone(2, &[], &[8]).unwrap_err();
    assert!(fault.code == FaultCode::KernelTrap && fault.message.contains(T::STRAY), "{fault}");
    worker.breaks();
}

/// Without any scrub; where code is not fenced, the same probes find something.
pub fn nothing_is_left_on_the_chip<T: GpuUnderTest>() {
    const SMALL: u64 = 48 << 10;
    let (pattern, hits, marks) = (u32(u32::from_le_bytes([OnCuda::PATTERN; 4])), ptr("hits"), ptr("marks"));
    let words = u32((SMALL / 4) as u32);
    let blocks = OnCuda::COVERING;
    let places = [
        (
            "shared memory",
            step("shared_fill", &[&pattern, &words, &marks], blocks, 1024, SMALL),
            step("shared_scan", &[&pattern, &words, &hits, &marks], blocks, 1024, SMALL),
        ),
        (
            "local memory",
            step("local_fill", &[&pattern, &u32(7)], blocks, 1024, 0),
            step("local_scan", &[&pattern, &u32(7), &hits], blocks, 1024, 0),
        ),
    ];
    let json = |step: &String| {
        Blueprint {
            inputs: &[],
            weights: &[],
            buffers: &[("hits", 8), ("marks", 4 * 512)],
            outputs: &["hits"],
            steps: std::slice::from_ref(step),
        }
        .json()
    };
    let found = |mut worker: Worker, code: &[u8], fill: &String, scan: &String| {
        worker.install(1, &json(fill), code, &[]);
        worker.install(2, &json(scan), code, &[]);
        worker.call(1, &[], &[8]).unwrap();
        let hits = worker.call(2, &[], &[8]).unwrap().remove(0);
        worker.end().unwrap();
        u64::from_le_bytes(hits.try_into().unwrap())
    };
    for (name, fill, scan) in &places {
        assert!(
            found(OnCuda::worker(), OnCuda::probes(), fill, scan) > 0,
            "{name}: the control finds nothing"
        );
        assert_eq!(found(T::worker(), T::probes(), fill, scan), 0, "{name}");
    }
}

#[test]
fn most_probes_can_be_fenced() {
    let text = fenceable(std::str::from_utf8(PROBES).unwrap());
    assert!(pappus_fence::check(&pappus_fence::fence(&text).unwrap().text).is_ok());
    for kernel in
        ["copy", "fill", "work", "module_global", "endless", "trap", "occupy", "local_fill", "shared_scan"]
    {
        assert!(text.contains(&format!(".entry {kernel}")), "{kernel}");
    }
    assert!(!text.contains(".entry wild_jump") && !text.contains(".entry constant_write"));
}
