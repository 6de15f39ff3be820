//! Instructions that read registers of all lanes stand behind a look whether all lanes run.

mod fixture;

use fixture::{because, rewritten};

const LOOK: [&str; 4] = [
    "bar.warp.sync -1;",
    "activemask.b32 %pappus_lo;",
    "setp.ne.s32 %pappus_out, %pappus_lo, -1;",
    "@%pappus_out exit;",
];
const TRANSPOSED: &str = "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;";

/// How often a kernel of these lines looks.
fn looks(lines: &str) -> usize {
    rewritten(lines).windows(4).filter(|four| *four == LOOK).count()
}

#[test]
fn the_look_stands_right_before_the_first_instruction() {
    let found = rewritten(&format!("mov.b32 %r2, %tid.x;\n{TRANSPOSED}\nadd.s32 %r1, %r1, 1;\n{TRANSPOSED}"));
    assert_eq!(found[1..5], LOOK);
    assert_eq!(found[5..], [TRANSPOSED, "add.s32 %r1, %r1, 1;", TRANSPOSED, "ret;"]);
}

#[test]
fn behind_labels_and_branches_lanes_are_looked_at_again() {
    assert_eq!(looks(&format!("{TRANSPOSED}\n{TRANSPOSED}")), 1);
    assert_eq!(looks(&format!("{TRANSPOSED}\n@%p1 bra $l;\nmov.b32 %r2, 1;\n$l:\n{TRANSPOSED}")), 2);
    assert_eq!(looks(&format!("{TRANSPOSED}\n@%p1 ret;\n{TRANSPOSED}")), 2);
    assert_eq!(looks(&format!("{TRANSPOSED}\n$l:\n{TRANSPOSED}\n@%p1 bra $l;")), 2);
}

#[test]
fn matrices_in_registers_are_looked_at_and_descriptors_are_not() {
    let product = |a: &str, sparse: &str| {
        format!(
            "wgmma.mma_async{sparse}.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f1, %f2, %f3, %f4}}, {a}, %rd1, 1, 1, 1, 0;"
        )
    };
    assert_eq!(looks(&product("{%r1, %r2, %r3, %r4}", "")), 1);
    assert_eq!(looks(&product("%rd2", "")), 0);
    assert_eq!(looks(&product("%rd2", ".sp")), 1);
    for line in [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r1};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd1, %rd2}, {%rd3}, {%rd4}, {%rd1, %rd2};",
    ] {
        assert_eq!(looks(line), 1, "{line}");
    }
}

#[test]
fn what_reads_all_lanes_cannot_have_a_predicate() {
    because(&format!("@%p1 {TRANSPOSED}"), "registers of all lanes");
}
