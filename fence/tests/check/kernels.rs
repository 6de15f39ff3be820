//! The fixture: a fenced kernel around a few lines.

use pappus_fence::{Unfenced, check};

/// Behind which every access to global memory stands.
pub(crate) const FENCE: &str = "mov.b32 %pappus_lo, 64;\nmov.b64 %pappus_at, {%pappus_lo, %pappus_hi};\n";
/// Spends a unit of fuel; its check is part of the kernel.
pub(crate) const FUEL: &str = "sub.u32 %pappus_fuel, %pappus_fuel, 1;\nsetp.eq.u32 %pappus_out, %pappus_fuel, 0;\n\
    @%pappus_out bra $pappus_check_0;\n$pappus_on_0:\n";
/// An offset that becomes an address of the kernel's 16 bytes of local memory, for an access of 8.
pub(crate) const CLAMP: &str = "mov.b64 %pappus_at, %rd1;\nmov.b64 %pappus_base, depot;\n\
    min.u64 %pappus_at, %pappus_at, 8;\nadd.s64 %pappus_at, %pappus_at, %pappus_base;\n";
/// Declarations that a body begins with.
pub(crate) const DECLARED: &str = ".reg .b32 %pappus_hi, %pappus_lo, %pappus_fuel, %pappus_step, %pappus_end;\n\
    .reg .b64 %pappus_at, %pappus_base;\n.reg .pred %pappus_out;\n";
/// A thread ends where the worker says so.
pub(crate) const STOP: &str = "mov.b32 %pappus_lo, 0xfffff000;\nmov.b64 %pappus_at, {%pappus_lo, %pappus_hi};\n\
    ld.volatile.global.u32 %pappus_lo, [%pappus_at];\nsetp.ne.u32 %pappus_out, %pappus_lo, 0;\n@%pappus_out exit;\n";
const HEADER: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n";

/// The lines that zero shared memory, from the sample.
pub(crate) fn zero() -> String {
    let text = crate::accepted::EVERYTHING;
    let begin = text.find("\tmov.u32 %pappus_lo, %tid.z").unwrap_or_default();
    text[begin..].lines().take(25).map(|line| format!("{line}\n")).collect()
}

/// A module with items in front of a kernel of these lines. Without fuel in the lines, the kernel has no check of fuel.
pub(crate) fn module(items: &str, lines: &str) -> String {
    let check = format!("$pappus_check_0:\n{STOP}mov.b32 %pappus_fuel, 1024;\nbra.uni $pappus_on_0;\n");
    let check = if lines.contains("$pappus_on_0:") { check } else { String::new() };
    format!(
        "{HEADER}.const .b32 table[4];\n.shared .align 16 .b8 tile[64];\n{items}.visible .entry kernel(\n.param .u64 first,\n\
        .param .align 4 .b8 bytes[12],\n.param .b32 pappus_window\n)\n{{\n{DECLARED}.reg .pred %p<4>;\n.reg .b32 %r<8>, %late;\n\
        .reg .f32 %f<4>;\n.reg .b64 %rd<4>;\n.local .align 8 .b8 depot[16];\nld.param.b32 %pappus_hi, [pappus_window];\nmov.b32 %pappus_fuel, 1024;\n{}\
        st.local.b64 [depot], 0;\nst.local.b64 [depot+8], 0;\nmov.pred %p1, 0;\nmov.b32 %r1, 0;\nmov.b32 %r2, 0;\n\
        mov.f32 %f1, 0f00000000;\nmov.b64 %rd1, 0;\n{lines}ret;\n{check}}}\n",
        zero()
    )
}

/// What the checker says of a kernel with these lines.
pub(crate) fn kernel(lines: &str) -> Result<(), Unfenced> {
    check(&module("", lines)).map(drop)
}

/// The control: the lines are accepted.
#[track_caller]
pub(crate) fn accepted(lines: &str) {
    assert_eq!(kernel(lines), Ok(()), "{lines}");
}

/// The lines are refused, for a reason that has these words.
#[track_caller]
pub(crate) fn refused(lines: &str, why: &str) {
    refused_text(&module("", lines), why);
}

/// A whole text is refused, for a reason that has these words.
#[track_caller]
pub(crate) fn refused_text(text: &str, why: &str) {
    match check(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(unfenced) => assert!(unfenced.what.contains(why), "{unfenced}\n{text}"),
    }
}
