//! What the rewriter writes, the checker accepts: of whole modules, and of texts with lines that were changed at random.

mod fixture;

use fixture::folder;
use pappus_fence::{check, fence};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;

const SEEDS: [&str; 5] = [
    include_str!("ptx/clang_O0.ptx"),
    include_str!("ptx/clang_O1.ptx"),
    include_str!("ptx/refused.ptx"),
    include_str!("ptx/triton_hist_90.ptx"),
    include_str!("ptx/triton_softmax_90.ptx"),
];

/// Lines that use what the seeds do not; registers are those of clang's text.
const LINES: [&str; 44] = [
    "ld.param::entry.u64 %rd1, [k1_param_0];",
    "@%p1 ret.uni;\n@!%p1 exit;",
    "ld.global.nc.L1::no_allocate.L2::256B.v2.b64 {%rd1, %rd2}, [%rd3];",
    "cp.async.ca.shared.global.L2::64B [%r1], [%rd1], 4, %r2;",
    "activemask.b32 %r1;",
    "add.cc.u32 %r1, %r2, %r3;\naddc.u32 %r4, %r5, 0;",
    "atom.shared.cas.b32 %r1, [%r2], %r3, %r4;",
    "atom.global.add.noftz.v2.f16x2 {%r1, %r2}, [%rd1], {%r3, %r4};",
    "bar.red.popc.u32 %r1, 0, %p1;",
    "bar.warp.sync %r1;",
    "bfind.shiftamt.u32 %r1, %r2;",
    "bra.uni $L__BB0_2;",
    "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;",
    "cp.async.commit_group;",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];",
    "cvta.to.global.u64 %rd1, %rd2;",
    "cvta.shared.u64 %rd1, %rd2;\nst.u32 [%rd1], 1;",
    "elect.sync %r1|%p1, -1;",
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.async;",
    "ld.global.L1::evict_last.L2::cache_hint.u32 %r1, [%rd1], %rd2;",
    "ld.global.v4.u32 {%r1, _, %r2, %r3}, [%rd1+-16];",
    "ld.shared.u8 %rs1, [%r1+3];",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];",
    "ldu.global.u32 %r1, [%rd1];",
    "match.any.sync.b32 %r1, %r2, -1;",
    "mbarrier.arrive.shared.b64 %rd1, [%r1];",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2, 100;",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%r1, %r2}, {%r1, %r2, %r3, %r4};",
    "mov.b64 {%r1, %r2}, %rd1;",
    "mov.b64 %rd1, {%r1, %r2};",
    "mov.u32 %r1, %smid;",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
    "nanosleep.u32 100;",
    "prefetch.global.L2 [%rd1];",
    "red.global.add.f32 [%rd1+4], %r1;",
    "redux.sync.add.s32 %r1, %r2, -1;",
    "setp.lt.s32 %p1|%p2, %r1, %r2;",
    "shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};",
    "vote.sync.ballot.b32 %r1, %p1, -1;",
    "wgmma.fence.sync.aligned;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, %rd1, 1, 1, 1, 0;",
    "trap;",
];

/// What can stand for a word of a line.
const WORDS: [&str; 48] = [
    "%r1",
    "%r2",
    "%rd1",
    "%rd2",
    "%p1",
    "%rs1",
    "%f1",
    "_",
    "0",
    "-1",
    "4294967296",
    "0x10",
    "0f3F800000",
    "%tid.x",
    "%ctaid.y",
    "%clock64",
    "%laneid",
    "{%r1, %r2}",
    "[%rd1]",
    "[%r1+4]",
    "[%rd1+-2147483648]",
    "[16]",
    "%p1|%p2",
    "!%p1",
    "@%p1",
    "@!%p2",
    "add.u32",
    "ld.global.u32",
    "st.global.b64",
    "ld.u32",
    "st.u8",
    "ld.shared.b16",
    "mov.u32",
    "mov.b64",
    "bra",
    "ret",
    "exit",
    "setp.ne.u32",
    "cvta.global.u64",
    "atom.global.add.u32",
    ".global",
    ".shared",
    ".u64",
    ".f16x2",
    ".volatile",
    ".v2",
    "-%r1",
    "1.5",
];

/// A change of one line.
#[derive(Debug, Clone)]
enum Change {
    Drop(Index),
    Swap(Index, Index),
    Repeat(Index, Index),
    Insert(Index, &'static str),
    Word(Index, Index, &'static str),
    Exchange(Index, Index, Index, Index),
    Part(Index, Index, Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        at().prop_map(Change::Drop),
        (at(), at()).prop_map(|(a, b)| Change::Swap(a, b)),
        (at(), at()).prop_map(|(a, b)| Change::Repeat(a, b)),
        (at(), select(LINES.to_vec())).prop_map(|(a, line)| Change::Insert(a, line)),
        (at(), at(), select(WORDS.to_vec())).prop_map(|(a, b, word)| Change::Word(a, b, word)),
        (at(), at(), at(), at()).prop_map(|(a, b, c, d)| Change::Exchange(a, b, c, d)),
        (at(), at(), at(), at()).prop_map(|(a, b, c, d)| Change::Part(a, b, c, d)),
    ]
}

/// Replaces one piece of a line, as a separator cuts the line, by a piece of another line.
fn piece(lines: &mut [String], separator: &[char], places: (&Index, &Index, &Index, &Index)) {
    let (to, from) = (places.0.index(lines.len()), places.1.index(lines.len()));
    let pieces: Vec<&str> = lines[from].split(separator).collect();
    let new = pieces[places.2.index(pieces.len())].to_owned();
    let old: Vec<&str> = lines[to].split_inclusive(separator).collect();
    let nth = places.3.index(old.len().max(1));
    let Some(end) = old.get(nth).and_then(|old| old.strip_suffix(separator).map(|rest| &old[rest.len()..]))
    else {
        return;
    };
    let changed = format!("{new}{end}");
    let line = old.iter().enumerate().map(|(at, piece)| if at == nth { changed.as_str() } else { piece });
    lines[to] = line.collect();
}

fn apply(seed: &str, changes: &[Change]) -> String {
    let mut lines: Vec<String> = seed.lines().map(str::to_owned).collect();
    for change in changes {
        let place = |at: &Index| at.index(lines.len());
        match change {
            Change::Drop(at) => drop(lines.remove(place(at))),
            Change::Swap(a, b) => {
                let (a, b) = (place(a), place(b));
                lines.swap(a, b);
            }
            Change::Repeat(from, to) => lines.insert(place(to), lines[place(from)].clone()),
            Change::Insert(at, line) => lines.insert(place(at), (*line).to_owned()),
            Change::Word(at, nth, word) => {
                let at = place(at);
                let mut words: Vec<&str> = lines[at].split_inclusive(['\t', ' ', ',', ';']).collect();
                if !words.is_empty() {
                    let nth = nth.index(words.len());
                    let end = words[nth].trim_start_matches(|c| !['\t', ' ', ',', ';'].contains(&c));
                    let new = format!("{word}{end}");
                    words[nth] = &new;
                    lines[at] = words.concat();
                }
            }
            Change::Exchange(a, b, c, d) => piece(&mut lines, &['\t', ' ', ',', ';'], (a, b, c, d)),
            Change::Part(a, b, c, d) => piece(&mut lines, &['.', ' ', '\t'], (a, b, c, d)),
        }
    }
    lines.join("\n")
}

/// The line of fenced text that the checker does not accept, and why; nothing where the rewriter refuses the text.
fn not_accepted(text: &str) -> Option<String> {
    let fenced = fence(text).ok()?;
    let why = check(&fenced.text).err()?;
    let line = fenced.text.lines().nth(why.line - 1).unwrap_or_default();
    Some(format!("{why}: {}", line.trim()))
}

#[test]
fn what_is_rewritten_of_whole_modules_is_accepted() {
    let mut fenced = 0;
    for file in folder("../kernels/built").into_iter().chain(folder("tests/ptx")) {
        let text = std::fs::read_to_string(&file).expect("a text");
        assert_eq!(not_accepted(&text), None, "{}", file.display());
        fenced += usize::from(fence(&text).is_ok());
    }
    // All but the one that is there to be refused.
    assert_eq!(fenced, 12);
}

#[test]
fn names_that_only_ptx_admits_are_made_others_or_refused() {
    for name in ["$x", "_x", "__x", "%x", "_$", "%tid", "x_y$", "WARP_SZ", "s0x1", "bra", "_", "%clock"] {
        for text in [
            ".entry NAME(.param .u32 a) { ret; }",
            ".entry k(.param .u32 NAME) { ret; }",
            ".entry k(.param .u32 a) { .reg .b32 NAME; mov.b32 NAME, 1; ret; }",
            ".entry k(.param .u32 a) { bra NAME; NAME: ret; }",
            ".entry k(.param .u32 a) { .local .b8 NAME[8]; st.local.u32 [NAME], 1; ret; }",
            ".entry k(.param .u32 a) { .shared .b8 NAME[8]; st.shared.u32 [NAME], 1; ret; }",
            ".shared .b8 NAME[8]; .entry k(.param .u32 a) { st.shared.u32 [NAME], 1; ret; }",
            ".const .b8 NAME[8]; .entry k(.param .u32 a) { ret; }",
        ] {
            let text =
                format!(".version 8.1\n.target sm_90\n.address_size 64\n{}", text.replace("NAME", name));
            assert_eq!(not_accepted(&text), None, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 300 } else { 30_000 },
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_rewritten_of_changed_text_is_accepted(
        seed in select(SEEDS.to_vec()),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let text = apply(seed, &changes);
        prop_assert_eq!(not_accepted(&text), None);
    }
}
