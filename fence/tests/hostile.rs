//! Text of whoever wrote it: whatever the bytes are, the answer is a text or a reason, in time that grows with the length.

mod fixture;

use std::time::{Duration, Instant};

use pappus_fence::{fence, reasons};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const SEEDS: [&str; 3] = [
    include_str!("ptx/clang_O1.ptx"),
    include_str!("ptx/triton_hist_90.ptx"),
    include_str!("ptx/refused.ptx"),
];

/// Pieces that mean something somewhere.
const PIECES: [&str; 24] = [
    "{",
    "}",
    ";",
    "[",
    "]",
    "(",
    ")",
    "@",
    "%r1",
    "<4>",
    ".reg",
    ".global",
    "::",
    "bra",
    "-",
    "99999999999999999999",
    "\"",
    "/*",
    ":",
    ".branchtargets",
    "0f",
    "\u{e4}",
    "generic(",
    "call",
];

fn answers(text: &str) {
    let fenced = fence(text);
    assert_eq!(fenced.is_err(), !reasons(text).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 200 } else { 3000 },
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_text_has_an_answer(
        seed in 0..SEEDS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..PIECES.len(), 0..40_usize), 1..6),
    ) {
        let mut text = SEEDS[seed].to_owned();
        for (place, piece, length) in changes {
            let begin = place.index(text.len());
            let begin = (0..=begin).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            let end = (begin + length).min(text.len());
            let end = (end..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(begin);
            text.replace_range(begin..end, PIECES[piece]);
        }
        answers(&text);
    }

    #[test]
    fn pieces_in_any_order_have_an_answer(pieces in prop::collection::vec(0..PIECES.len(), 0..60)) {
        let lines: Vec<&str> = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        answers(&fixture::module("", &lines.join(" ")));
    }

    #[test]
    fn words_exchanged_have_an_answer(seed in 0..SEEDS.len(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let mut words: Vec<&str> = SEEDS[seed].split_inclusive([' ', '\t', '\n', ',']).collect();
        let (a, b) = (a.index(words.len()), b.index(words.len()));
        words.swap(a, b);
        answers(&words.concat());
    }
}

#[test]
fn scopes_and_parentheses_have_a_depth() {
    let refused = fixture::refused(&"{".repeat(1_000_000));
    assert!(refused.why.contains("too many scopes"), "{refused}");
    let refused = fixture::refused(&format!("ld.global.b32 %r1, [%rd1+{}", "(-".repeat(1_000_000)));
    assert!(refused.why.contains("too many parentheses"), "{refused}");
}

#[test]
fn a_count_that_cannot_be_is_refused() {
    for lines in [".reg .b32 %x<4000000000>;", ".local .b8 x[99999999999][99999999999];", ".shared .b8 x[0];"]
    {
        fixture::refused(lines);
    }
}

#[test]
fn declarations_cannot_make_a_text_many_times_longer() {
    let kernel = ".entry fN() { .local .b8 a[4096]; st.local.b8 [a], 0; ret; }\n";
    let items: String = (0..8000).map(|n| kernel.replace('N', &n.to_string())).collect();
    let refused = fixture::refused_module(&items, "");
    assert!(refused.why.contains("too long"), "{refused}");
}

/// Lines of each kind that asks something of what was read before, as often as asked.
fn many(count: usize) -> Vec<String> {
    let numbered = |line: &str| (0..count).map(|n| line.replace('N', &n.to_string())).collect::<String>();
    vec![
        numbered("$lN:\n@%p1 bra $lN;\n"),
        format!("$t: .branchtargets {}$l;\nbrx.idx %r1, $t;\n$l:", "$l, ".repeat(count)),
        numbered("{ .reg .b64 %rd<4>; mov.b64 %rd1, %rd2; }\n"),
        numbered("cvta.local.u64 %rd1, %rd2; st.u64 [%rd1], %rd3; ld.u64 %rd3, [%rd1];\n"),
        numbered("{ .param .b64 sNx; st.param.b64 [sNx], %rd1; }\n"),
        format!("mov.b32 {{%r1{}}}, %r2;", ", %r1".repeat(1000)).repeat(count / 1000),
    ]
}

#[test]
fn time_grows_with_the_length() {
    let time = |count: usize| -> Vec<Duration> {
        let texts = many(count).into_iter().map(|lines| fixture::module("", &lines));
        texts
            .map(|text| {
                let begin = Instant::now();
                let _ = fence(&text);
                begin.elapsed()
            })
            .collect()
    };
    let (short, long) = (time(2_000), time(20_000));
    for (kind, (short, long)) in short.into_iter().zip(long).enumerate() {
        assert!(long < 60 * short + Duration::from_secs(2), "{kind}: {short:?}, ten times as much {long:?}");
    }
}

#[test]
fn a_mebibyte_is_fenced_soon() {
    let kernel = include_str!("ptx/triton_matmul_80.ptx");
    let begin = kernel.find(".visible .entry").expect("a kernel");
    let end = kernel.find("\n}\n").expect("its end") + 3;
    let (head, kernel) = (&kernel[..begin], &kernel[begin..end]);
    let copies = (1 << 20) / kernel.len() + 1;
    let kernels: String = (0..copies).map(|n| kernel.replace("matmul", &format!("matmul{n}"))).collect();
    let text = format!("{head}{kernels}");
    let begin = Instant::now();
    let fenced = fence(&text).expect("fenced");
    let took = begin.elapsed();
    println!("{} bytes to {} in {took:?}", text.len(), fenced.text.len());
    assert!(took < Duration::from_secs(20), "{took:?}");
}
