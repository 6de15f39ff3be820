//! What the reader makes of PTX text.

use pappus_fence::read::module;
use pappus_fence::read::tree::{Operand, Space, StatementKind};

const HEAD: &str = ".version 8.0\n.target sm_90a, debug\n.address_size 64\n";

fn operands(line: &str) -> Vec<Operand<'static>> {
    let text = format!("{HEAD}.entry k() {{ {line} }}");
    let module = module(Box::leak(text.into_boxed_str())).unwrap_or_else(|refused| panic!("{refused}"));
    match &module.functions[0].body[0].kind {
        StatementKind::Instruction(instruction) => instruction.operands.clone(),
        other => panic!("{other:?}"),
    }
}

fn word(text: &str) -> Operand<'_> {
    Operand::Word(text.into())
}

fn wrong(text: &str) -> (u32, u32, String) {
    let refused = module(text).expect_err("refused");
    (refused.line, refused.column, refused.what)
}

#[test]
fn a_header_has_version_and_target() {
    let module = module(HEAD).expect("a module");
    assert_eq!((module.version, module.target), ((8, 0), "sm_90a"));
}

#[test]
fn comments_and_debuggers_sections_are_dropped() {
    let text = format!(
        "// one\n{HEAD}/* two\n */ .file 1 \"a.py\"\n.section .debug_abbrev {{ .b8 1 }}\n.section .debug_macinfo {{ }}\n\
         .entry k() {{ .loc 1 2 3\n.loc 1 2 3, function_name $L_x, inlined_at 1 4 5\n// begin inline asm\nret; }}"
    );
    assert_eq!(module(&text).expect("a module").functions[0].body.len(), 1);
}

#[test]
fn an_opcode_keeps_its_modifiers() {
    let text =
        format!("{HEAD}.entry k() {{ ld.global.nc.L1::evict_last.v4 .b32 {{%r1, %r2, %r3, %r4}}, [%rd1]; }}");
    let module = module(&text).expect("a module");
    let StatementKind::Instruction(instruction) = &module.functions[0].body[0].kind else { panic!() };
    assert_eq!(instruction.opcode, "ld.global.nc.L1::evict_last.v4.b32");
    assert_eq!(instruction.modifiers().last(), Some("b32"));
}

#[test]
fn addresses_have_offsets() {
    assert_eq!(operands("ld.b32 %r1, [ %rd1 + 0 ];")[1], Operand::Address("%rd1".into(), 0));
    assert_eq!(operands("ld.b32 %r1, [%rd1+-4];")[1], Operand::Address("%rd1".into(), -4));
    assert_eq!(operands("ld.b32 %r1, [x-4];")[1], Operand::Address("x".into(), -4));
    assert_eq!(operands("ld.b32 %r1, [%rd1 + 4 * (100 - 0x60)];")[1], Operand::Address("%rd1".into(), 16));
    assert_eq!(operands("ld.b32 %r1, [64];")[1], Operand::Absolute(64));
}

#[test]
fn operands_of_every_form_are_read() {
    assert_eq!(
        operands("setp.eq.and.s32 %p1|%p2, %r1, -1, !%p3;")[..],
        [
            Operand::Pair("%p1".into(), "%p2".into()),
            word("%r1"),
            Operand::Number("-1".into()),
            Operand::Not("%p3".into()),
        ]
    );
    assert_eq!(operands("mov.b32 {%rs1, _}, %r1;")[0], Operand::Vector(vec![word("%rs1"), word("_")]));
    assert_eq!(operands("mov.u64 %rd1, x+8;")[1], Operand::Sum("x".into(), 8));
    assert_eq!(
        operands("call.uni (r), f, (a, b);"),
        [Operand::List(vec![word("r")]), word("f"), Operand::List(vec![word("a"), word("b")]),]
    );
    assert_eq!(operands("bar.sync 0;"), [Operand::Number("0".into())]);
}

#[test]
fn variables_have_initial_values() {
    let text = format!(
        "{HEAD}.visible .global .align 8 .b8 a[6] = {{1, -2, 0xFF(a)}};\n.extern .shared .align 16 .b8 s[];"
    );
    let module = module(&text).expect("a module");
    let [a, s] = module.variables.as_slice() else { panic!() };
    assert_eq!((a.space, a.align, a.size, a.initial.len()), (Space::Global, Some(8), 6, 3));
    assert_eq!((s.space, s.size, s.array), (Space::Shared, 0, true));
}

#[test]
fn a_reason_has_line_column_and_word() {
    assert_eq!(wrong(&format!("{HEAD}.entry k() {{\n  mov.b32 %r1 %r2;\n}}")), (5, 15, "%r2".to_owned()));
    assert_eq!(wrong(&format!("{HEAD}.entry k() {{")), (4, 12, "end of text".to_owned()));
    assert_eq!(wrong(&format!("{HEAD}.surprise x;")), (4, 1, ".surprise".to_owned()));
    assert_eq!(wrong(".version 8.0\n.target sm_90, sm_80"), (2, 16, "sm_80".to_owned()));
    assert_eq!(wrong(&format!("{HEAD}/* on and on")), (4, 1, "/*".to_owned()));
    assert_eq!(wrong(&format!("{HEAD}\u{e9}")), (4, 1, "\u{e9}".to_owned()));
}

#[test]
fn what_is_no_number_is_refused() {
    for number in ["0x", "12ab", "0f3F80", "1.2.3", "0b2", "99999999999999999999"] {
        assert_eq!(wrong(&format!("{HEAD}.entry k() {{ mov.b32 %r1, {number}; }}")).2, number);
    }
}
