//! Attacks by name. Each test has the attack and, where one exists, a harmless twin that is accepted.

use crate::kernels::{CLAMP, DECLARED, FENCE, FUEL, accepted, module, refused, refused_text, zero};

/// A fence and then these lines.
fn fenced(lines: &str) -> String {
    format!("{FENCE}{lines}")
}

/// A module with lines between the declarations and the first statement of the kernel.
fn declared(lines: &str) -> String {
    module("", "").replace("ld.param.b32 %pappus_hi", &format!("{lines}ld.param.b32 %pappus_hi"))
}

// Names.

#[test]
fn the_window_is_not_declared_again() {
    for line in [
        ".reg .b32 %pappus_hi;\n",
        ".reg .b32 %pappus_hi<4>;\n",
        ".reg .b32 %pappus_<5>;\n",
        ".reg .v2 .b32 %pappus_hi;\n",
        ".reg .b32 %r9, %pappus_lo;\n",
    ] {
        refused_text(&declared(line), "a declaration of an unknown form or name");
    }
    refused_text(&declared(".param .b32 pappus_window;\n"), "a declaration");
    refused_text(
        &declared(".local .align 8 .b8 pappus_window[8];\n"),
        "local memory of an unknown form or name",
    );
}

#[test]
fn a_scope_inside_of_a_body_is_refused() {
    refused("{\n.reg .b32 %pappus_hi;\n}\n", "no statement");
    refused("{\n", "no statement");
    refused_text(&declared("{\n.reg .b32 %r1;\n"), "window is not loaded first");
}

#[test]
fn a_declaration_behind_statements_is_refused() {
    refused(".reg .b32 %pappus_hi;\n", "`.reg` is not known");
    refused(".param .b32 other;\n", "not known");
}

#[test]
fn a_name_of_a_special_register_is_not_declared() {
    for name in ["%tid", "%aggr_smem_size", "%ntid", "%clock"] {
        refused_text(&declared(&format!(".reg .b32 {name};\n")), "a declaration");
    }
}

#[test]
fn registers_have_known_types_and_one_percent_sign() {
    for line in [
        ".reg .v4 .b32 %x;\n",
        ".reg .b32 x;\n",
        ".reg .b32 $x;\n",
        ".reg .b32 %;\n",
        ".reg .b32 %x = 1;\n",
        ".reg .b32 %x<4;\n",
        ".reg .texref %x;\n",
        ".reg .b32;\n",
        ".reg\n",
    ] {
        refused_text(&declared(line), "");
    }
}

#[test]
fn parameters_and_variables_have_different_names() {
    let text = module("", "");
    for name in ["tile", "first", "WARP_SZ", "$x", "%x", "pappus_x", "1st", "_"] {
        refused_text(&text.replace("depot", name), "");
        refused_text(
            &text.replace(".align 4 .b8 bytes", &format!(".align 4 .b8 {name}")),
            if name == "first" { "" } else { "not known" },
        );
    }
    refused_text(&module(".shared .b32 first;\n", ""), "not known");
    refused_text(&module(".shared .b32 depot;\n", ""), "local memory of an unknown form");
}

// The window's registers.

#[test]
fn nothing_else_writes_the_window() {
    for line in [
        "mov.b32 %pappus_hi, 0;\n",
        "mov.b64 {%pappus_hi, %r1}, %rd1;\n",
        "mov.b64 {%r1, %pappus_hi}, %rd1;\n",
        "mov.b64 {%r1,%pappus_hi}, %rd1;\n",
        "ld.param.b32 %pappus_hi, [first];\n",
        "ld.shared.v2.b32 {%r1, %pappus_hi}, [tile];\n",
        "shfl.sync.idx.b32 %pappus_hi|%p2, %r1, 0, 31, -1;\n",
        "setp.eq.s32 %p2|%pappus_out, %r1, 0;\n",
        "add.s32 %pappus_fuel, %pappus_fuel, 1;\n",
        "mov.b32 %pappus_fuel, 1024;\n",
        "@%p1 mov.b32 %pappus_hi, %r1;\n",
        "activemask.b32 %pappus_out;\n",
        "mov.pred %pappus_out, 0;\n",
    ] {
        refused(line, "may not be written");
    }
}

#[test]
fn nothing_else_reads_the_window() {
    // A compiler that knows of an equal value may use that one instead.
    refused("mov.b32 %r1, %pappus_hi;\n", "no register");
    refused("setp.eq.u32 %p2, %r1, %pappus_hi;\n", "no register");
    refused("ld.param.b32 %r1, [pappus_window];\n", "out of a parameter");
    refused("mov.b64 %rd1, pappus_window;\n", "no register");
    refused("@%pappus_out bra $x;\n$x:\n", "no register");
}

// Fences.

#[test]
fn an_access_stands_right_behind_its_fence() {
    let load = "ld.global.u32 %r1, [%pappus_at];\n";
    accepted(&fenced(load));
    refused(load, "without its fence");
    refused(&fenced(&format!("$x:\n{load}")), "without its fence");
    refused(&fenced(&format!("{load}{load}")), "without its fence");
    refused(&fenced(&format!("add.u64 %pappus_at, %pappus_at, %rd1;\n{load}")), "without its fence");
    refused(&fenced(&format!("mov.b64 %pappus_at, %rd1;\n{load}")), "without its fence");
    refused(&fenced(&format!("bra $x;\n$x:\n{load}")), "without its fence");
    refused(&format!("{CLAMP}{load}"), "without its fence");
}

#[test]
fn a_fence_is_not_predicated() {
    let fence = "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};\n";
    refused(&format!("mov.b32 %pappus_lo, 0;\n@%p1 {fence}ld.global.u32 %r1, [%pappus_at];\n"), "");
}

#[test]
fn an_access_may_be_predicated() {
    accepted(&fenced("@%p1 ld.global.u32 %r1, [%pappus_at];\n"));
    accepted(&fenced("@!%p1 st.global.u32 [%pappus_at], %r1;\n"));
}

#[test]
fn offsets_are_plain_and_within_the_guard() {
    accepted(&fenced("ld.global.u32 %r1, [%pappus_at+2147483647];\n"));
    accepted(&fenced("ld.global.u32 %r1, [%pappus_at+-2147483647];\n"));
    for offset in [
        "+2147483648",
        "+-2147483649",
        "+4294967296",
        "+18446744073709551615",
        "+18446744073709551616",
        "+0x10",
        "+010",
        "+4+8",
        "+%r1",
        "-8",
        "+-",
        "+",
        "+--8",
        "*2",
        "+4U",
        " + 4",
        "+1e3",
        "+0f3F800000",
        "[3]",
    ] {
        refused(&fenced(&format!("ld.global.u32 %r1, [%pappus_at{offset}];\n")), "");
    }
}

#[test]
fn other_forms_of_address_are_refused() {
    for operand in [
        "[%rd1]",
        "[%rd1+4]",
        "[tile]",
        "[64]",
        "[first]",
        "[]",
        "%pappus_at",
        "[%pappus_at]+4",
        "[[%pappus_at]]",
    ] {
        refused(&fenced(&format!("ld.global.u32 %r1, {operand};\n")), "");
    }
    refused(&fenced("ld.shared.u32 %r1, [64];\n"), "");
    refused(&fenced("ld.const.u32 %r1, table[3];\n"), "");
}

#[test]
fn an_access_without_a_state_space_is_refused() {
    for line in [
        "ld.u32 %r1, [%pappus_at];\n",
        "st.u32 [%pappus_at], %r1;\n",
        "atom.add.u32 %r1, [%pappus_at], 1;\n",
        "red.add.u32 [%pappus_at], 1;\n",
        "ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%pappus_at];\n",
        "mbarrier.init.b64 [%pappus_at], 1;\n",
        "prefetch.L2 [%pappus_at];\n",
        "prefetchu.L1 [%pappus_at];\n",
        "cp.async.mbarrier.arrive.b64 [%pappus_at];\n",
        "wmma.load.a.sync.aligned.m16n16k16.row.f16 {%r1}, [%pappus_at], 16;\n",
    ] {
        refused(&fenced(line), "");
    }
}

#[test]
fn one_access_has_one_space() {
    refused(&fenced("ld.global.shared.u32 %r1, [%pappus_at];\n"), "not known");
    refused(&fenced("ld.shared.global.u32 %r1, [%r1];\n"), "not known");
    refused(&fenced("ld.shared .global.u32 %r1, [%r1];\n"), "");
    refused(&fenced("ld.shared.u32 %r1, [%r1], [%pappus_at];\n"), "without a state space");
    refused(&fenced("add.s32 %r1, %r1, [%pappus_at];\n"), "without a state space");
    refused(&fenced("cp.async.ca.shared.global [%pappus_at], [%rd1], 4;\n"), "");
}

#[test]
fn the_fence_has_its_low_word() {
    let text = "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};\nld.global.u32 %r1, [%pappus_at];\n";
    refused(&format!("$x:\n{text}").replace("$x:\n", "bra $x;\n$x:\n"), "before it is written");
}

// What reaches memory without looking like that.

#[test]
fn instructions_that_reach_memory_by_other_ways_are_refused() {
    for line in [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%pappus_at], 64, [%r2];\n",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%pappus_at], 64, [%r2];\n",
        "cp.async.bulk.global.shared::cta.bulk_group [%pappus_at], [%r1], 64;\n",
        "cp.async.bulk.prefetch.L2.global [%pappus_at], %r1;\n",
        "cp.async.bulk.commit_group;\n",
        "cp.async.bulk.tensor.1d.shared::cta.global.tile [%r1], [%pappus_at, {%r1}], [%r2];\n",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%pappus_at], [%r1], 64;\n",
        "tensormap.replace.tile.global_address.global.b1024.b64 [%pappus_at], %rd1;\n",
        "prefetch.tensormap [%pappus_at];\n",
        "multimem.ld_reduce.global.add.u32 %r1, [%pappus_at];\n",
        "multimem.red.global.add.u32 [%pappus_at], %r1;\n",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r1, [%r2];\n",
        "red.async.relaxed.cluster.global.add.u32 [%pappus_at], %r1;\n",
        "st.bulk.shared::cta [%r1], 64, 0;\n",
        "mapa.shared::cluster.u32 %r1, %r1, 0;\n",
        "getctarank.shared::cluster.u32 %r1, %r1;\n",
        "ld.shared::cluster.u32 %r1, [%r1];\n",
        "atom.shared::cluster.add.u32 %r1, [%r1], 1;\n",
        "barrier.cluster.arrive;\n",
        "discard.global.L2 [%pappus_at], 128;\n",
        "applypriority.global.L2::evict_normal [%pappus_at], 128;\n",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd1, [%pappus_at], 64, 64;\n",
        "ld.global.L2::cache_hint.u32 %r1, [%pappus_at], %rd1;\n",
        "griddepcontrol.wait;\n",
        "griddepcontrol.launch_dependents;\n",
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r1];\n",
        "wmma.load.a.sync.aligned.m16n16k16.row.global.f16 {%r1}, [%pappus_at], %r1;\n",
        "wmma.load.a.sync.aligned.m16n16k16.row.shared.f16 {%r1}, [%r1], %r1;\n",
        "wmma.store.d.sync.aligned.m16n16k16.row.global.f32 [%pappus_at], {%r1}, %r1;\n",
        "fence.proxy.tensormap::generic.acquire.gpu [%pappus_at], 128;\n",
        "ld.mmio.relaxed.sys.global.u32 %r1, [%pappus_at];\n",
        "ld.global.unified.u32 %r1, [%pappus_at];\n",
        "ld.global.lu.u32 %r1, [%pappus_at];\n",
        "tex.1d.v4.f32.s32 {%f1, %f1, %f1, %f1}, [tile, {%r1}];\n",
        "suld.b.1d.b32.trap %r1, [tile, {%r1}];\n",
        "sust.b.1d.b32.trap [tile, {%r1}], %r1;\n",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];\n",
    ] {
        refused(&fenced(line), "not known");
    }
}

#[test]
fn stacks_and_registers_of_others_are_not_asked_for() {
    for line in [
        "alloca.u64 %rd1, 64;\n",
        "stacksave.u64 %rd1;\n",
        "stackrestore.u64 %rd1;\n",
        "isspacep.global %p1, %rd1;\n",
        "istypep.texref %p1, %rd1;\n",
        "brkpt;\n",
        "setmaxnreg.inc.sync.aligned.u32 232;\n",
        "pmevent 1;\n",
        "lookup.u32 %r1;\n",
    ] {
        refused(line, "not known");
    }
}

#[test]
fn opcodes_have_no_foreign_bytes() {
    for line in [
        "mov.b32@ %r1, 0;\n",
        "mov{.b32} %r1, 0;\n",
        "mov.b32; mov.b32 %r1, 0;\n",
        "MOV.b32 %r1, 0;\n",
        ".b32 %r1, 0;\n",
    ] {
        refused(line, "");
    }
    refused("mov.b32 %r1 , 0;\n", "may not be written");
    refused("mov.b32  %r1, 0;\n", "may not be written");
    refused("mov.b32\t%r1, 0;\n", "a byte");
}

// Operands.

#[test]
fn only_mov_takes_the_address_of_a_variable() {
    accepted("mov.b64 %rd1, tile;\nmov.b64 %rd1, tile+16;\nmov.b64 %rd1, depot;\nmov.b64 %rd1, table+4;\n");
    for line in [
        "mov.b64 %rd1, first;\n",
        "mov.b64 %rd1, bytes+4;\n",
        "mov.b64 %rd1, passed;\n",
        "mov.b64 %rd1, kernel;\n",
        "mov.b64 %rd1, $x;\n$x:\n",
        "mov.b64 %rd1, generic(tile);\n",
        "mov.b64 %rd1, tile+-4;\n",
        "mov.b64 %rd1, tile[4];\n",
        "mov.b64 %rd1, unknown;\n",
        "mov.b64 %rd1, {tile, %r1};\n",
        "cvta.shared.u64 %rd1, tile;\n",
        "cvta.param.u64 %rd1, first;\n",
        "add.s64 %rd1, tile, 4;\n",
    ] {
        refused(line, "no register");
    }
}

#[test]
fn special_registers_are_on_a_list() {
    accepted("mov.u32 %r1, %tid.x;\nmov.u32 %r1, %laneid;\nmov.u64 %rd1, %clock64;\n");
    for name in [
        "%envreg3",
        "%gridid",
        "%pm0",
        "%pm1_64",
        "%cluster_ctaid.x",
        "%current_graph_exec",
        "%tid",
        "%tid.w",
        "%reserved_smem_offset_begin",
        "%pappus_hi.x",
    ] {
        refused(&format!("mov.u32 %r1, {name};\n"), "no register");
    }
    refused("add.u32 %r1, %r1, %tid.x;\n", "no register");
    refused("mov.v4.u32 {%r1, %r1, %r1, %r1}, %tid;\n", "no register");
}

#[test]
fn numbers_are_read_by_all_in_the_same_way() {
    accepted(
        "mov.b32 %r1, 0x7fffffff;\nmov.b32 %r1, -1;\nmov.f32 %f1, 0f3F800000;\nmov.b64 %rd1, 0d3FF0000000000000;\n",
    );
    for number in [
        "017",
        "0b101",
        "1.5",
        "1e5",
        "0f3F8",
        "0F3F800000",
        "0x",
        "0x12345678901234567",
        "--1",
        "+1",
        "1U",
        "0x1g",
        "- 1",
    ] {
        refused(&format!("mov.b32 %r1, {number};\n"), "no register");
    }
}

#[test]
fn parts_of_registers_are_refused() {
    refused("mov.b32 %r1.b0, 0;\n", "may not be written");
    refused("mov.b32 %r1, %rd1.x;\n", "no register");
    refused("mov.b32 %r1, %r1[0];\n", "no register");
}

// Local memory.

#[test]
fn local_memory_is_reached_inside_of_its_array() {
    accepted("st.local.b64 [depot+8], %rd1;\nld.local.b64 %rd1, [depot];\n");
    for address in [
        "depot+9",
        "depot+16",
        "depot+-8",
        "depot+4294967295",
        "depot+18446744073709551612",
        "depot+2147483647",
        "%rd1",
        "%rd1+8",
        "tile",
        "first",
    ] {
        refused(&format!("ld.local.b64 %rd1, [{address}];\n"), "");
    }
    refused("ld.local.v4.b64 {%rd1, %rd1, %rd1, %rd1}, [depot];\n", "out of its array");
    refused("ld.local.b128 %rd1, [depot+8];\n", "out of its array");
}

#[test]
fn a_computed_local_address_is_bounded() {
    accepted(&format!("{CLAMP}st.local.b64 [%pappus_at], %rd1;\n"));
    let wide = "st.local.v2.b64 [%pappus_at], {%rd1, %rd1};\n";
    refused(&format!("{CLAMP}{wide}"), "out of its array");
    let store = "st.local.b64 [%pappus_at], %rd1;\n";
    for (from, to) in [
        (", 8;", ", 9;"),
        (", 8;", ", -8;"),
        (", 8;", ", 0x8;"),
        (", 8;", ", 4294967304;"),
        (", 8;", ", %rd1;"),
        ("min.u64", "min.s64"),
        ("min.u64", "max.u64"),
        ("min.u64", "@%p1 min.u64"),
        ("add.s64", "@%p1 add.s64"),
        ("add.s64", "sub.s64"),
        ("add.s64", "$x:\nadd.s64"),
        ("min.u64", "$x:\nmin.u64"),
        ("%pappus_base, depot", "%pappus_base, tile"),
        ("%pappus_base, depot", "%pappus_base, depot+8"),
        ("%pappus_at, %pappus_base;", "%pappus_at, %rd1;"),
        ("mov.b64 %pappus_base, depot;\n", ""),
    ] {
        let clamp = CLAMP.replace(from, to);
        assert_ne!(clamp, CLAMP);
        refused(&format!("{clamp}{store}"), "");
    }
    refused(&format!("{CLAMP}$x:\n{store}"), "out of its array");
    refused(&format!("{CLAMP}add.s64 %pappus_at, %pappus_at, 8;\n{store}"), "out of its array");
    refused(&format!("{CLAMP}{store}{store}"), "out of its array");
    refused(&format!("{CLAMP}st.local.b64 [%pappus_at+8], %rd1;\n"), "out of its array");
}

#[test]
fn local_memory_is_one_array_and_zeroed() {
    let zeroed = "st.local.b64 [depot], 0;\nst.local.b64 [depot+8], 0;\n";
    let text = module("", "");
    assert!(text.contains(zeroed));
    for other in [
        "",
        "st.local.b64 [depot], 0;\n",
        "st.local.b64 [depot+8], 0;\n",
        "st.local.b64 [depot], 0;\nst.local.b32 [depot+8], 0;\n",
        "st.local.b64 [depot], 0;\n@%p1 st.local.b64 [depot+8], 0;\n",
        "st.local.b64 [depot], 0;\nst.local.b64 [depot+8], %rd1;\n",
    ] {
        refused_text(&text.replace(zeroed, other), "not zeroed");
    }
    refused_text(&declared(".local .align 8 .b8 second[16];\n"), "local memory of an unknown form");
    for (from, to) in [
        ("depot[16]", "depot[17]"),
        ("depot[16]", "depot[8192]"),
        (".align 8 .b8", ".align 4 .b8"),
        (".align 8 .b8", ".align 0 .b8"),
        ("depot[16]", "depot[]"),
        ("depot[16]", "depot[2][8]"),
        ("depot[16]", "depot[18446744073709551615]"),
    ] {
        refused_text(&text.replace(from, to), "");
    }
}

// Parameters.

#[test]
fn parameters_are_read_inside_of_their_bytes() {
    accepted("ld.param.u64 %rd1, [first];\nld.param.b32 %r1, [bytes+8];\n");
    for line in [
        "ld.param.u64 %rd1, [first+1];\n",
        "ld.param.u64 %rd1, [first+8];\n",
        "ld.param.u64 %rd1, [first+-8];\n",
        "ld.param.b32 %r1, [bytes+9];\n",
        "ld.param.v4.b32 {%r1, %r1, %r1, %r1}, [bytes];\n",
        "ld.param.u64 %rd1, [first+18446744073709551615];\n",
        "ld.param.u64 %rd1, [%rd1];\n",
        "ld.param.u64 %rd1, [tile];\n",
        "ld.param::entry.u64 %rd1, [first];\n",
        "ld.param.u64 %rd1, [depot];\n",
        "ld.param %rd1, [first];\n",
    ] {
        refused(line, "");
    }
}

// Registers.

#[test]
fn a_register_is_written_before_it_is_read() {
    accepted("mov.b32 %late, 1;\nmov.b32 %r1, %late;\n");
    for lines in [
        "mov.b32 %r1, %late;\n",
        "add.s32 %late, %late, 1;\n",
        "@%p3 mov.b32 %r1, 0;\n",
        "@!%p3 bra $x;\n$x:\n",
        "@%p1 mov.b32 %late, 1;\nmov.b32 %r1, %late;\n",
        "bra $x;\nmov.b32 %late, 1;\n$x:\nmov.b32 %r1, %late;\n",
        "@%p1 bra $x;\nmov.b32 %late, 1;\n$x:\nmov.b32 %r1, %late;\n",
        "ret;\nmov.b32 %late, 1;\n$x:\nmov.b32 %r1, %late;\n",
        "st.shared.u32 [%late], 0;\n",
        "st.shared.v2.u32 [%r1], {%r1, %late};\n",
        "selp.b32 %r1, 1, 2, %p3;\n",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%late}, %rd1, %rd1, 1, 1, 1, 0, 0;\n",
        "mov.b64 %rd1, {%r1, %late};\n",
        "st.shared.u32 [tile], %late;\n",
        "bar.red.popc.u32 %late, 0, %p1;\n",
        "mov.b32 %r1, %undeclared;\n",
    ] {
        refused(lines, "before it is written");
    }
}

#[test]
fn the_carry_is_written_before_it_is_read() {
    accepted("add.cc.u32 %r1, %r1, 1;\naddc.u32 %r1, %r1, 0;\n");
    refused("addc.u32 %r1, %r1, 0;\n", "before it is written");
    refused("@%p1 add.cc.u32 %r1, %r1, 1;\naddc.u32 %r1, %r1, 0;\n", "before it is written");
    refused(
        "bra $x;\n$x:\nadd.cc.u32 %r1, %r1, 1;\n$y:\nmadc.lo.u32 %r1, %r1, %r1, 0;\n",
        "before it is written",
    );
}

#[test]
fn registers_of_lanes_that_do_not_run_are_not_read() {
    // Found on an H100: a block of one thread gets other kernels' values from the other lanes of its warp.
    let whole = "activemask.b32 %pappus_lo;\nsetp.ne.s32 %pappus_out, %pappus_lo, -1;\n@%pappus_out exit;\n";
    for line in [
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r1}, {%r2}, {%r1, %r2};\n",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}, %r1, 0;\n",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;\n",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r1];\n",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r1};\n",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, {%r1, %r2}, %rd1, 1, 1, 1, 0;\n",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1}, %rd1, %rd1, %r1, 0, 1, 1, 1, 0, 0;\n",
    ] {
        let why = "lanes that may not run";
        accepted(&format!("{whole}{line}"));
        accepted(&format!("{whole}mov.b32 %r1, 1;\n{line}bar.sync 0;\n@%p1 mov.b32 %r1, 0;\n{line}"));
        refused(line, why);
        for between in ["$x:\n", "@%p1 exit;\n", "@%p1 ret;\n", "@%p1 bra $x;\n$x:\n"] {
            refused(&format!("{whole}{between}{line}"), why);
        }
        refused(&format!("$x:\n{whole}{FUEL}{line}bra $x;\n"), why);
        refused(&format!("{whole}@%p1 {line}"), why);
        for (from, to) in [
            ("ne.s32", "eq.s32"),
            ("-1", "1"),
            ("@%pappus_out", "@!%pappus_out"),
            ("exit", "ret"),
            ("exit;", "bra $x;\n$x:"),
            ("%pappus_lo,", "%r1,"),
        ] {
            refused(&format!("{}{line}", whole.replace(from, to)), "");
        }
        refused(&format!("{}{line}", whole.replace("activemask.b32", "@%p1 activemask.b32")), "");
    }
    accepted("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd1, 1, 1, 1, 0, 0;\n");
    accepted("shfl.sync.idx.b32 %r1|%p1, %r2, 5, 31, 1;\n");
}

// Shared memory.

#[test]
fn shared_memory_is_zeroed_first() {
    let text = |lines: &str| module("", lines).replace(&zero(), "");
    assert!(pappus_fence::check(&text("")).is_ok());
    assert!(pappus_fence::check(&text("mov.b64 %rd1, tile;\n")).is_ok());
    for line in [
        "ld.shared.u32 %r1, [tile];\n",
        "ld.shared::cta.u32 %r1, [%r1];\n",
        "st.shared.u32 [%r1], 0;\n",
        "atom.shared.add.u32 %r1, [%r1], 1;\n",
        "activemask.b32 %pappus_lo;\nsetp.ne.s32 %pappus_out, %pappus_lo, -1;\n@%pappus_out exit;\n\
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r1];\n",
        "mbarrier.init.shared.b64 [%r1], 1;\n",
        "cp.async.mbarrier.arrive.shared.b64 [%r1];\n",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd1, 1, 1, 1, 0, 0;\n",
    ] {
        accepted(line);
        refused_text(&text(line), "was not zeroed");
    }
    refused_text(&text(&fenced("cp.async.ca.shared.global [%r1], [%pappus_at], 4;\n")), "was not zeroed");
}

// Fuel.

#[test]
fn a_branch_backward_spends_fuel() {
    accepted(&format!("$x:\n{FUEL}bra $x;\n"));
    accepted(&format!("$x:\n{FUEL}@%p1 bra $x;\n"));
    accepted("@%p1 bra $x;\n$x:\n");
    for lines in [
        "$x:\nbra $x;\n".to_owned(),
        "$x:\n@%p1 bra $x;\n".to_owned(),
        "$x:\nbra.uni $x;\n".to_owned(),
        format!("$x:\n{FUEL}mov.b32 %r1, 0;\nbra $x;\n"),
        format!("$x:\n{FUEL}$y:\nbra $x;\n"),
        format!("$x:\n{FUEL}@%p1 bra $x;\nbra $x;\n"),
    ] {
        refused(&lines, "without fuel");
    }
}

#[test]
fn fuel_is_spent_in_one_form() {
    for (from, to) in [
        ("sub.u32 %pappus_fuel, %pappus_fuel, 1", "sub.u32 %pappus_fuel, %pappus_fuel, 0"),
        ("sub.u32", "add.u32"),
        ("setp.eq.u32", "setp.ne.u32"),
        ("%pappus_fuel, 0;", "%pappus_fuel, 1;"),
        ("@%pappus_out bra", "@!%pappus_out bra"),
        ("@%pappus_out bra", "@%p1 bra"),
        ("bra $pappus_check_0", "bra $pappus_on_0"),
        ("bra $pappus_check_0", "bra $pappus_check_00"),
        ("bra $pappus_check_0", "bra $y"),
        ("$pappus_on_0:", "$pappus_on_1:"),
        ("$pappus_on_0:", "$pappus_on_00:"),
        ("setp.eq.u32", "$y:\nsetp.eq.u32"),
        ("setp.eq.u32", "@%p1 setp.eq.u32"),
        ("sub.u32", "@%p1 sub.u32"),
    ] {
        let fuel = FUEL.replacen(from, to, 1);
        assert_ne!(fuel, FUEL);
        refused(&format!("$x:\n{fuel}bra $x;\n"), "");
    }
    refused(&format!("$x:\n{FUEL}bra $x;\n$y:\n{FUEL}bra $y;\n"), "twice");
}

#[test]
fn fuel_is_filled_at_the_entry_and_by_its_check() {
    let text = module("", &format!("$x:\n{FUEL}bra $x;\n"));
    let fill = "mov.b32 %pappus_fuel, 1024;\n";
    for (from, to) in [
        (fill, ""),
        (fill, "mov.b32 %pappus_fuel, 1025;\n"),
        (fill, "mov.b32 %pappus_fuel, 0;\n"),
        ("setp.ne.u32 %pappus_out, %pappus_lo, 0;\n", ""),
        ("@%pappus_out exit", "@!%pappus_out exit"),
        ("@%pappus_out exit;\n", ""),
        ("0xfffff000", "0xffffe000"),
        ("ld.volatile.global", "ld.global"),
        ("$pappus_check_0:\n", "$pappus_check_0:\n$y:\n"),
        ("bra.uni $pappus_on_0", "bra.uni $x"),
        ("bra.uni $pappus_on_0", "@%p1 bra $pappus_on_0"),
        ("$pappus_check_0:\n", ""),
    ] {
        assert!(text.contains(from));
        refused_text(&text.replacen(from, to, 1), "");
        // The last of several: the check's.
        let (before, behind) = text.rsplit_once(from).unwrap();
        refused_text(&format!("{before}{to}{behind}"), "");
    }
}

#[test]
fn nobody_else_jumps_into_the_fence() {
    for label in ["$pappus_on_0", "$pappus_check_0", "$pappus_zero", "$pappus_zeroed"] {
        refused(&format!("$x:\n{FUEL}bra $x;\nbra {label};\n"), "");
    }
    refused("$pappus_mine:\n", "label");
    // Nor falls into it: a register that the branch's block has written would not be.
    let text = module("", &format!("$x:\n{FUEL}bra $x;\n"));
    for end in ["@%p1 ret;\n", "@%p1 bra $x;\n", "mov.b32 %r1, 0;\n", "$y:\n"] {
        refused_text(&text.replace("ret;\n$pappus", &format!("{end}$pappus")), "");
    }
}

#[test]
fn waits_that_a_kernel_times_are_refused() {
    accepted("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n");
    refused("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0, 4000000000;\n", "not known");
    refused("nanosleep.u32 1000000;\n", "not known");
}

// Jumps and labels.

#[test]
fn jumps_by_value_are_refused() {
    for line in [
        "brx.idx %r1, $x;\n$x:\n",
        "$t: .branchtargets $x;\n$x:\n",
        "bra %rd1;\n",
        "bra twice;\n",
        "bra unknown;\n",
        "bra $unknown;\n",
        "bra $x, 1;\n$x:\n",
        "call %rd1, (pappus_argument);\n",
        "jmp $x;\n$x:\n",
        "$c: .callprototype _ ();\n",
        "$c: .calltargets twice;\n",
    ] {
        refused(line, "");
    }
}

#[test]
fn labels_are_unique_and_plain() {
    for lines in [
        "$x:\n$x:\n",
        "x:\n",
        "%x:\n",
        "$x y:\n",
        ":\n",
        "$:\n",
        "$x::\n",
        "$x: ret;\n",
        "$x:$y:\n",
        "tile:\n",
        "$1.2:\n",
    ] {
        let lines = lines.replace("$:\n", "_:\n");
        refused(&lines, "");
    }
}

#[test]
fn a_promise_of_uniformity_is_refused_where_it_may_be_false() {
    accepted("bra.uni $x;\n$x:\n");
    refused("@%p1 bra.uni $x;\n$x:\n", "`.uni`");
    refused("@%p1 ret.uni;\n", "`.uni`");
}

// Kernels.

#[test]
fn functions_and_calls_are_refused() {
    let body = format!("{{\n{DECLARED}ld.param.b32 %pappus_hi, [pappus_window];\nret;\n}}\n");
    for head in [
        ".func f(\n",
        ".visible .func f(\n",
        ".func (.param .b32 r) f(\n",
        ".extern .func f(\n",
        ".weak .func f(\n",
    ] {
        refused_text(&module(&format!("{head}.param .b32 pappus_window\n)\n{body}"), ""), "not known");
        refused_text(&module(&format!("{head}.param .b32 pappus_window\n)\n;\n"), ""), "not known");
    }
    for line in [
        "call f, (passed);\n",
        "call.uni (%r1), vprintf, (%rd1, %rd1);\n",
        "call %rd1;\n",
        "call kernel;\n",
        "call.uni cudaLaunchDevice;\n",
    ] {
        refused(line, "not known");
    }
    refused_text(&declared(".param .b32 passed;\n"), "declaration");
    refused("st.param.b32 [first], %r1;\n", "not known");
}

#[test]
fn a_function_does_not_run_into_the_next() {
    let text = module("", "").replace("ret;\n}", "}");
    refused_text(&text, "goes on behind");
    refused_text(&module("", "").replace("ret;\n}", "@%p1 ret;\n}"), "goes on behind");
    refused_text(&module("", "").replace("ret;\n}", "ret;\n$x:\n}"), "goes on behind");
}

#[test]
fn the_window_is_the_last_parameter() {
    let text = module("", "");
    let window = ",\n.param .b32 pappus_window\n)";
    for other in [
        "\n)",
        ",\n.param .b64 pappus_window\n)",
        ",\n.param .u32 pappus_window\n)",
        ",\n.param .b32 pappus_window,\n.param .b32 z\n)",
        ",\n.param .align 4 .b32 pappus_window\n)",
        ",\n.param .b32 pappus_window,\n.param .b32 pappus_window\n)",
        ",\n.reg .b32 pappus_window\n)",
    ] {
        refused_text(&text.replace(window, other), "");
    }
    refused_text(&text.replace(".param .u64 first", ".param .u64 .ptr .global .align 16 first"), "");
    refused_text(&text.replace(".param .u64 first", ".param .u64 first[]"), "not known");
    refused_text(&text.replace(".param .u64 first", ".reg .u64 first"), "not known");
}

#[test]
fn the_first_lines_are_the_fences() {
    let text = module("", "");
    for (from, to) in [
        (".reg .b32 %pappus_hi, %pappus_lo, %pappus_fuel, %pappus_step, %pappus_end;\n", ""),
        ("%pappus_hi, %pappus_lo,", "%pappus_lo, %pappus_hi,"),
        (".reg .b32 %pappus_hi", ".reg .b64 %pappus_hi"),
        (".reg .pred %pappus_out;\n", ""),
        ("ld.param.b32 %pappus_hi, [pappus_window];\n", ""),
        ("[pappus_window];", "[first];"),
        ("[pappus_window];", "[pappus_window+0];"),
        ("ld.param.b32 %pappus_hi", "mov.b32 %r1, 0;\nld.param.b32 %pappus_hi"),
        ("ld.param.b32 %pappus_hi", "$x:\nld.param.b32 %pappus_hi"),
        ("ld.param.b32 %pappus_hi", "@%p1 ld.param.b32 %pappus_hi"),
        ("ld.param.b32 %pappus_hi", "ld.param.u32 %pappus_hi"),
    ] {
        assert!(text.contains(from));
        refused_text(&text.replacen(from, to, 1), "");
    }
    assert!(text.contains(DECLARED));
}

#[test]
fn names_of_the_module_are_unique() {
    refused_text(&module(".shared .b32 tile;\n", ""), "not known");
    refused_text(&module(".const .b32 kernel;\n", ""), "not known");
    let text = module("", "");
    let (header, kernel) = text.split_at(text.find(".visible .entry").unwrap());
    assert!(pappus_fence::check(&format!("{text}{}", kernel.replace(" kernel(", " other("))).is_ok());
    refused_text(&format!("{text}{kernel}"), "not known");
    for name in [
        "__kernel",
        "$kernel",
        "%kernel",
        "pappus_kernel",
        "tile",
        "ker nel",
        "kernel.x",
        "1st",
        "",
        "_",
        "(kernel",
    ] {
        refused_text(&format!("{header}{}", kernel.replace(" kernel(", &format!(" {name}("))), "not known");
    }
}

#[test]
fn other_linkage_and_attributes_are_refused() {
    let text = module("", "");
    for head in [
        ".weak .entry",
        ".extern .entry",
        ".common .entry",
        ".visible .visible .entry",
        ".visible .func (.param .b32 r)",
        ".attribute(.managed) .entry",
        ".alias",
    ] {
        refused_text(&text.replace(".visible .entry", head), "");
    }
    for directive in [
        ".noreturn",
        ".pragma \"nounroll\";",
        ".pragma \"used_bytes_mask 1\";",
        ".maxclusterrank 2",
        ".reqnctapercluster 2",
        ".explicitcluster",
        ".blocksareclusters",
        ".abi_preserve 4",
        ".maxntid",
        ".maxntid 1, x",
        ".maxntid 256, 1, 1 .noreturn",
        ".maxntid 0x100",
    ] {
        refused_text(&text.replace("pappus_window\n)\n", &format!("pappus_window\n)\n{directive}\n")), "");
    }
}

// The module.

#[test]
fn the_header_is_known() {
    let text = module("", "");
    for (from, to) in [
        (".version 8.6", ".version 9.1"),
        (".version 8.6", ".version 10.0"),
        (".version 8.6", ".version 5.0"),
        (".version 8.6", ".version 8"),
        (".version 8.6", ".version 8.06"),
        (".version 8.6", ".version 8.6 "),
        (".target sm_90a", ".target sm_90a, debug"),
        (".target sm_90a", ".target sm_60"),
        (".target sm_90a", ".target sm_090"),
        (".target sm_90a", ".target sm_90aa"),
        (".target sm_90a", ".target compute_90"),
        (".target sm_90a", ".target sm_90, sm_80"),
        (".address_size 64", ".address_size 32"),
        (".address_size 64\n", ""),
        (".address_size 64\n", ".address_size 64\n.version 8.6\n"),
        (".address_size 64\n", ".address_size 64\n.target sm_90\n"),
    ] {
        refused_text(&text.replacen(from, to, 1), "");
    }
    refused_text("", "not `.version`");
}

#[test]
fn variables_of_other_spaces_are_refused() {
    for item in [
        ".global .b32 g;\n",
        ".visible .global .b32 g;\n",
        ".global .b64 g = tile;\n",
        ".const .b64 c = tile;\n",
        ".const .b64 c = {tile, 1};\n",
        ".const .b64 c = generic(tile);\n",
        ".const .b64 c[2] = {1, kernel};\n",
        ".const .b64 c[];\n",
        ".extern .const .b64 c[];\n",
        ".extern .shared .b64 c;\n",
        ".extern .global .b64 c[];\n",
        ".shared .b32 s = 1;\n",
        ".shared .b32 s[];\n",
        ".const .texref t;\n",
        ".global .texref t;\n",
        ".local .b32 l;\n",
        ".reg .b32 %r;\n",
        ".tex .u32 t;\n",
        ".section .debug_info { .b8 1 }\n",
        ".file 1 \"a.cu\"\n",
        ".loc 1 2 3\n",
        "@@DWARF .byte 1\n",
        ".alias a, b;\n",
        ";\n",
        "}\n",
        ".const .b32 c; .const .b32 d;\n",
        ".shared .attribute(.managed) .b32 s;\n",
        ".const .b32 c[18446744073709551615];\n",
    ] {
        refused_text(&module(item, ""), "");
    }
}

// Bytes.

#[test]
fn comments_strings_and_directives_of_lines_are_refused() {
    for line in [
        "// ret;\n",
        "/* mov.b32 %r1, 0; */\n",
        "mov.b32 %r1, 0; // why\n",
        "mov.b32 %r1, /* */ 0;\n",
        "mov.b32 %r1, \\\n0;\n",
        "#line 1\n",
        "# 1 \"a\"\n",
        "#define %pappus_hi %r1\n",
        ".pragma \"nounroll\";\n",
        ".loc 1 2 3;\n",
        "mov.b32 %r1, 0;\r\n",
        "mov.b32 %r1, 0;\0\n",
        "mov.b32 %r1, 0;\u{b}\n",
        "mov.b32 %r1,\u{a0}0;\n",
        "mov.b32 %r1, \u{661};\n",
        "mov.b32 %r\u{391}, 0;\n",
        "mov.b32 %r1, 'a';\n",
        "mov.b32 %r1, 0; mov.b32 %r1, 0;\n",
        "mov.b32 %r1, 0;;\n",
        "mov.b32 %r1,\n0;\n",
        "mov.b32 %r1, 0\n;\n",
        ";\n",
        "mov.b32 %r1, 0; \n",
        "mov.b32 %r1, 4 + 4;\n",
        "mov.b32 %r1, (4);\n",
        "mov.b32 %r1, ~4;\n",
    ] {
        refused(line, "");
    }
    let text = module("", "");
    refused_text(&format!("\u{feff}{text}"), "");
    refused_text(&format!("{text}\0"), "");
    refused_text(&format!("{text}// end"), "");
}
