//! What the rewriter makes of a few lines of PTX.

mod fixture;

use fixture::{because, becomes, fenced, refused, refused_module, rewritten, statements};

const ABOVE: &str = "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};";
const POINTER: &str = "ld.param.u64 %rd1, [pointer];\n";

#[test]
fn a_load_gets_the_windows_high_half() {
    becomes(
        "ld.global.f32 %f1, [%rd1+8];",
        &["cvt.u32.u64 %pappus_lo, %rd1;", ABOVE, "ld.global.f32 %f1, [%pappus_at+8];"],
    );
}

#[test]
fn a_guard_stays_with_the_access() {
    becomes(
        "@!%p1 st.global.v2.b32 [ %rd1 + -4 ], { %r1, %r2 };",
        &["cvt.u32.u64 %pappus_lo, %rd1;", ABOVE, "@!%p1 st.global.v2.b32 [%pappus_at+-4], {%r1, %r2};"],
    );
}

#[test]
fn atomics_and_prefetches_are_accesses() {
    for line in [
        "atom.global.gpu.acq_rel.add.u32 %r1, [%rd1], %r2;",
        "red.relaxed.gpu.global.add.f32 [%rd1], %f1;",
        "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
        "prefetch.global.L2 [%rd1];",
        "ldu.global.f32 %f1, [%rd1];",
    ] {
        let found = rewritten(line);
        assert_eq!(found[2], line.replace("%rd1", "%pappus_at"), "{found:?}");
    }
}

#[test]
fn a_large_offset_goes_into_the_low_half() {
    becomes(
        "ld.global.b32 %r1, [%rd1+4294967300];",
        &[
            "cvt.u32.u64 %pappus_lo, %rd1;",
            "add.u32 %pappus_lo, %pappus_lo, 4;",
            ABOVE,
            "ld.global.b32 %r1, [%pappus_at];",
        ],
    );
}

#[test]
fn the_source_of_an_asynchronous_copy_is_fenced() {
    let found = rewritten("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 16 ], 0x10, %r2;");
    assert_eq!(found[found.len() - 2], "cp.async.cg.shared.global [%r1], [%pappus_at+16], 0x10, %r2;");
    assert_eq!(found[found.len() - 3], ABOVE);
}

#[test]
fn a_generic_access_to_a_parameter_is_global() {
    let found = rewritten(&format!("{POINTER}add.s64 %rd2, %rd1, 16;\nst.volatile.u32 [%rd2], 7;"));
    assert_eq!(found[4], "st.volatile.global.u32 [%pappus_at], 7;");
}

#[test]
fn a_generic_access_to_what_was_loaded_is_global() {
    let found = rewritten(&format!("{POINTER}ld.global.u64 %rd2, [%rd1];\nld.u32 %r1, [%rd2];"));
    assert_eq!(found.last().map(String::as_str), Some("ret;"));
    assert_eq!(found[found.len() - 2], "ld.global.u32 %r1, [%pappus_at];");
}

#[test]
fn a_generic_access_to_shared_memory_is_converted_back() {
    let items = ".shared .align 4 .b8 tile[64];";
    let text = fenced(items, "mov.u64 %rd1, tile;\ncvta.shared.u64 %rd2, %rd1;\nst.u32 [%rd2+4], 1;").text;
    let found = statements(&text, "k");
    assert_eq!(
        found[found.len() - 3..],
        ["cvta.to.shared.u64 %pappus_at, %rd2;", "st.shared.u32 [%pappus_at+4], 1;", "ret;"]
    );
}

#[test]
fn an_address_from_nowhere_is_refused() {
    because("mov.u32 %r1, %tid.x;\ncvt.u64.u32 %rd1, %r1;\nld.u32 %r2, [%rd1];", "comes from no pointer");
    assert_eq!(refused("mov.u64 %rd1, 64;\nld.u32 %r2, [%rd1];").line, 2);
}

#[test]
fn a_volatile_access_to_local_memory_is_a_plain_one() {
    let lines = ".local .b8 own[8];\nmov.u64 %rd2, own;\ncvta.local.u64 %rd3, %rd2;\nst.volatile.u32 [%rd3], 7;\n\
                 ld.relaxed.gpu.u32 %r1, [%rd3];";
    let found = fenced("", lines).text;
    assert!(found.contains("st.local.u32 [") && found.contains("ld.local.u32 %r1"), "{found}");
    assert!(!found.contains("volatile.local") && !found.contains("gpu.local"), "{found}");
}

#[test]
fn an_address_of_two_kinds_is_refused() {
    because(
        &format!(
            ".local .b8 own[8];\n{POINTER}mov.u64 %rd2, own;\ncvta.local.u64 %rd3, %rd2;\n\
         selp.b64 %rd4, %rd1, %rd3, %p1;\nld.u32 %r1, [%rd4];"
        ),
        "more than one kind",
    );
}

#[test]
fn a_module_variable_lies_in_the_window() {
    let found = fenced(
        ".global .align 4 .u32 counter = 7;\n.visible .global .align 8 .u64 place = generic(counter)+4;\n\
         .global .align 16 .b8 zeros[100];\n.global .b8 parts[2] = {0xFF00(place), 255};",
        "ld.global.u32 %r1, [counter+4];\nmov.u64 %rd1, place;\ncvta.global.u64 %rd2, zeros;",
    );
    let variables: Vec<_> = found.variables.iter().map(|v| (v.name.as_str(), v.offset, v.size)).collect();
    let expected = [
        ("counter", 0x1000_0000, 4),
        ("place", 0x1000_0008, 8),
        ("zeros", 0x1000_0010, 100),
        ("parts", 0x1000_0074, 2),
    ];
    assert_eq!(variables, expected);
    assert_eq!(found.variables[0].bytes, [7]);
    assert_eq!(found.variables[1].bytes, [4, 0, 0, 0x10]);
    assert_eq!(found.variables[3].bytes, [0, 255]);
    assert_eq!(found.variables_bytes, 0x76);
    assert!(!found.text.contains(".global ."), "{}", found.text);
    assert_eq!(
        statements(&found.text, "k"),
        [
            "mov.b32 %pappus_lo, 268435456;",
            ABOVE,
            "ld.global.u32 %r1, [%pappus_at+4];",
            "mov.u64 %rd1, 268435464;",
            "mov.u64 %rd2, 268435472;",
            "cvta.global.u64 %rd2, %rd2;",
            "ret;"
        ]
    );
}

#[test]
fn constants_stay_with_addresses_as_numbers() {
    let items = ".global .u32 x;\n.const .align 8 .u64 table[2] = {x, 2};";
    let text = fenced(items, "mov.u64 %rd1, table;\nld.const.u64 %rd2, [%rd1+8];").text;
    assert!(text.contains(".const .align 8 .u64 table[2] = {268435456, 2};"), "{text}");
    assert!(text.contains("ld.const.u64 %rd2, [%rd1+8];"), "{text}");
}

#[test]
fn a_generic_load_of_a_constant_is_converted_back() {
    let items = ".const .align 4 .b32 table[4];";
    let take = "mov.u64 %rd1, table;\ncvta.const.u64 %rd2, %rd1;\n";
    let found = statements(&fenced(items, &format!("{take}ld.u32 %r1, [%rd2+4];")).text, "k");
    let expected = ["cvta.to.const.u64 %pappus_at, %rd2;", "ld.const.u32 %r1, [%pappus_at+4];", "ret;"];
    assert_eq!(found[2..], expected);
    assert!(
        refused_module(items, &format!("{take}st.u32 [%rd2], 1;"))
            .why
            .contains("only be reached by `ld.const`")
    );
}

#[test]
fn a_pointer_that_is_kept_in_local_memory_stays_global() {
    let lines = ".local .align 8 .b8 own[8];\nld.param.u64 %rd1, [pointer];\nst.local.u64 [own], %rd1;\n\
                 ld.local.u64 %rd2, [own];\nst.u32 [%rd2], 1;";
    let found = rewritten(lines);
    assert_eq!(found[found.len() - 2], "st.global.u32 [%pappus_at], 1;");
}

#[test]
fn local_arrays_become_one_that_is_zeroed() {
    let text =
        fenced("", ".local .align 4 .b8 a[4];\n.local .align 16 .b8 b[10];\nst.local.u8 [b+9], %r1;").text;
    assert!(text.contains("\t.local .align 16 .b8 a[32];\n"), "{text}");
    let found = statements(&text, "k");
    let expected = [
        "st.local.b64 [a], 0;",
        "st.local.b64 [a+8], 0;",
        "st.local.b64 [a+16], 0;",
        "st.local.b64 [a+24], 0;",
    ];
    assert_eq!(found[..4], expected);
    assert_eq!(found[4], "st.local.u8 [a+25], %r1;");
}

#[test]
fn a_local_access_stays_within_the_array() {
    let found =
        rewritten(".local .align 8 .b8 own[64];\nmov.u64 %rd1, own;\nld.local.v2.f32 {%f1, %f2}, [%rd1+-8];");
    assert_eq!(
        found[8..],
        [
            "mov.u64 %rd1, own;",
            "mov.b64 %pappus_base, own;",
            "sub.s64 %pappus_at, %rd1, %pappus_base;",
            "add.s64 %pappus_at, %pappus_at, -8;",
            "mov.b64 %pappus_base, own;",
            "min.u64 %pappus_at, %pappus_at, 56;",
            "add.s64 %pappus_at, %pappus_at, %pappus_base;",
            "ld.local.v2.f32 {%f1, %f2}, [%pappus_at];",
            "ret;"
        ]
    );
    because(".local .b8 own[8];\nld.local.u32 %r1, [own+5];", "not within the local array");
    because(".local .b8 own[5000];\nst.local.u8 [own], 1;", "4096 bytes together");
    because("ld.local.u32 %r1, [%rd1];", "no local array");
}

#[test]
fn a_parameter_is_reached_by_its_name() {
    let lines = "mov.b64 %rd1, both;\nadd.s64 %rd2, %rd1, 4;\nld.param.u32 %r1, [%rd2+4];\nld.param.u32 %r2, [both+12];";
    becomes(lines, &["ld.param.u32 %r1, [both+8];", "ld.param.u32 %r2, [both+12];"]);
    because("ld.param.u64 %rd1, [both+9];", "only 16 bytes");
    because("mov.b64 %rd1, both;\nst.global.u64 [%rd2], %rd1;", "address of the parameter");
    because("ld.param.u64 %rd1, [%rd2];", "by its name");
}

#[test]
fn a_loop_has_fuel() {
    let found = rewritten("again:\nadd.s32 %r1, %r1, 1;\n@%p1 bra again;");
    assert_eq!(
        found,
        [
            "mov.b32 %pappus_fuel, 1024;",
            "$s0x0_again:",
            "add.s32 %r1, %r1, 1;",
            "sub.u32 %pappus_fuel, %pappus_fuel, 1;",
            "setp.eq.u32 %pappus_out, %pappus_fuel, 0;",
            "@%pappus_out bra $pappus_check_0;",
            "$pappus_on_0:",
            "@%p1 bra $s0x0_again;",
            "ret;",
            "$pappus_check_0:",
            "mov.b32 %pappus_lo, 0xfffff000;",
            ABOVE,
            "ld.volatile.global.u32 %pappus_lo, [%pappus_at];",
            "setp.ne.u32 %pappus_out, %pappus_lo, 0;",
            "@%pappus_out exit;",
            "mov.b32 %pappus_fuel, 1024;",
            "bra.uni $pappus_on_0;",
        ]
    );
}

#[test]
fn a_branch_forward_has_none() {
    becomes("@%p1 bra.uni $on;\ntrap;\n$on:\n$unused:", &["@%p1 bra $on;", "trap;", "$on:"]);
}

#[test]
fn a_table_becomes_comparisons() {
    let found = rewritten("$table: .branchtargets $a, $b, $a;\n@%p1 brx.idx %r1, $table;\n$a:\nexit;\n$b:");
    assert_eq!(
        found,
        [
            "@!%p1 bra $s0x_case1;",
            "setp.lt.u32 %s0x_case, %r1, 1;",
            "@%s0x_case bra $s0x_case2;",
            "setp.lt.u32 %s0x_case, %r1, 2;",
            "@%s0x_case bra $s0x_case3;",
            "bra $a;",
            "$s0x_case3:",
            "bra $b;",
            "$s0x_case2:",
            "bra $a;",
            "$s0x_case1:",
            "$a:",
            "exit;",
            "$b:",
            "ret;"
        ]
    );
}

#[test]
fn scopes_get_names_of_their_own() {
    let lines = "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared.b64 done, [%r1], %r2;\n@!done bra.uni wait;\n}\n\
                 {\n.reg .pred done;\nsetp.eq.s32 done, %r1, 0;\n@done bra wait;\nwait:\n}";
    let text = fenced("", lines).text;
    for part in [
        "$s0x1_wait:",
        "@!%s0x1_done bra $s0x1_wait;",
        "@%s0x2_done bra $s0x2_wait;",
        ".reg .pred %s0x2_done;",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_register_that_may_be_read_first_is_cleared() {
    let text = fenced("", "@%p1 mov.b32 %r1, 5;\nadd.s32 %r2, %r1, %r3;\nmov.b32 %r4, %r2;").text;
    for cleared in ["mov.pred %p1, 0;", "mov.b32 %r1, 0;", "mov.b32 %r3, 0;"] {
        assert!(text.contains(cleared), "{cleared}: {text}");
    }
    for written in ["mov.b32 %r2, 0;", "mov.b32 %r4, 0;"] {
        assert!(!text.contains(written), "{written}: {text}");
    }
}

#[test]
fn registers_of_every_width_are_cleared() {
    let registers = ".reg .b8 %b; .reg .b128 %q; .reg .f64 %d; .reg .f16x2 %h;";
    let reads =
        "st.global.b8 [%rd1], %b;\nst.global.b128 [%rd1], %q;\nadd.f64 %d, %d, %d;\nadd.f16x2 %h, %h, %h;";
    let text = fenced("", &format!("{registers}\n{reads}")).text;
    let whole = "mov.b64 %pappus_at, 0;\n\tmov.b128 %q, {%pappus_at, %pappus_at};";
    for cleared in ["cvt.u8.u32 %b, 0;", whole, "mov.b64 %d, 0;", "mov.b32 %h, 0;"] {
        assert!(text.contains(cleared), "{cleared}: {text}");
    }
}

#[test]
fn what_a_loop_carries_is_cleared_unless_it_is_written_first() {
    let text =
        fenced("", "mov.b32 %r1, 1;\n$again:\nadd.s32 %r1, %r1, %r2;\nmov.b32 %r2, %r1;\n@%p1 bra $again;")
            .text;
    assert!(!text.contains("mov.b32 %r1, 0;") && text.contains("mov.b32 %r2, 0;"), "{text}");
}

#[test]
fn a_kernel_that_touches_shared_memory_clears_it() {
    let found = fenced(".shared .align 4 .b8 tile[64];", "st.shared.u32 [tile], 1;");
    assert_eq!(found.clearing, ["k"]);
    assert!(found.text.contains(
        "$pappus_zeroed:\n\tfence.proxy.async.shared::cta;\n\tbar.sync 0;\n\tst.shared.u32 [tile], 1;"
    ));
    assert!(fenced("", "").clearing.is_empty());
}

#[test]
fn clearing_needs_a_late_target() {
    let old = fixture::module("", "st.shared.u32 [%r1], 1;").replace("8.1", "6.3").replace("sm_90", "sm_70");
    let text = pappus_fence::fence(&old).expect("fenced").text;
    assert!(text.starts_with(".version 8.1\n.target sm_90\n.address_size 64\n"), "{text}");
}

const HELPER: &str = ".func (.param .b32 result) __half(.param .b64 from)\n{\n.reg .b64 %rd<3>; .reg .b32 %r<3>;\n\
                      ld.param.b64 %rd1, [from];\nld.u32 %r1, [%rd1];\nst.param.b32 [result], %r1;\nret;\n}";

const CALL: &str = "ld.param.u64 %rd1, [pointer];\n{ .param .b64 param0; .param .b32 retval0;\nst.param.b64 [param0], %rd1;\n\
                    call.uni (retval0), __half, (param0);\nld.param.b32 %r1, [retval0]; }";

#[test]
fn a_call_becomes_a_copy() {
    let text = fenced(HELPER, CALL).text;
    assert_eq!(
        statements(&text, "k")[1..],
        [
            "mov.b64 %vs0x1_param0, %rd1;",
            "mov.b64 %s0xi0_rd1, %vs0x1_param0;",
            "cvt.u32.u64 %pappus_lo, %s0xi0_rd1;",
            ABOVE,
            "ld.global.u32 %s0xi0_r1, [%pappus_at];",
            "mov.b32 %vs0x1_retval0, %s0xi0_r1;",
            "mov.b32 %r1, %vs0x1_retval0;",
            "ret;"
        ]
    );
    assert!(!text.contains(".func") && !text.contains("call"), "{text}");
}

#[test]
fn a_copy_ends_where_its_function_returns() {
    let items = ".func f() { .reg .pred %p;\n@%p ret;\n$again:\n@%p bra $again;\nret; }";
    let text = fenced(items, "call f;\ncall f;").text;
    for part in [
        "@%s0xi0_p bra $s0xi0_end;",
        "$s0xi0_end:",
        "$s0xi0_again:",
        "$s0xi1_again:",
        "@%s0xi1_p bra $s0xi1_end;",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_argument_of_parts_lies_in_local_memory() {
    let items = ".func f(.param .align 4 .b8 pair[8]) { .reg .b32 %r;\nld.param.b32 %r, [pair+4];\nret; }";
    let lines =
        "{ .param .align 4 .b8 param0[8];\nst.param.v2.b32 [param0], {%r1, %r2};\ncall f, (param0); }";
    let text = fenced(items, lines).text;
    assert!(text.contains("\t.local .align 8 .b8 vs0x1_param0[8];\n"), "{text}");
    let found = statements(&text, "k");
    let expected = [
        "st.local.b64 [vs0x1_param0], 0;",
        "st.local.v2.b32 [vs0x1_param0], {%r1, %r2};",
        "ld.local.b32 %s0xi0_r, [vs0x1_param0+4];",
    ];
    assert_eq!(found[..3], expected);
}

#[test]
fn a_call_that_does_not_fit_is_refused() {
    assert!(refused_module(".func f(.param .b32 x) { ret; }", "call f;").why.contains("another number"));
}

#[test]
fn copies_cannot_be_without_end() {
    let mut items = ".func f0() { trap; ret; }\n".to_owned();
    for n in 1..30 {
        items += &format!(".func f{n}() {{ call f{}; call f{}; ret; }}\n", n - 1, n - 1);
    }
    assert!(refused_module(&items, "call f29;").why.contains("too many"));
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let items = ".func a() { call b; ret; }\n.func b() { call a; ret; }";
    let refused = refused_module(items, "");
    assert!(refused.why.contains("calls itself"), "{refused}");
}

#[test]
fn advice_is_dropped() {
    becomes(
        "createpolicy.fractional.L2::evict_first.b64 %rd2, 1.0;\nnanosleep.u32 %r1;\ndiscard.global.L2 [%rd1], 128;\n\
         ld.global.L1::evict_first.L2::cache_hint.f32 %f1, [%rd1], %rd2;",
        &["cvt.u32.u64 %pappus_lo, %rd1;", ABOVE, "ld.global.L1::evict_first.f32 %f1, [%pappus_at];"],
    );
}

#[test]
fn a_type_stands_last() {
    let found = rewritten("red.global.v2.f32.add [%rd1], {%f1, %f2};");
    assert_eq!(found[2], "red.global.add.v2.f32 [%pappus_at], {%f1, %f2};");
}

#[test]
fn a_scope_of_a_cluster_is_one_of_the_device() {
    let found = rewritten("ld.acquire.cluster.global.b32 %r1, [%rd1];");
    assert_eq!(found[2], "ld.acquire.gpu.global.b32 %r1, [%pappus_at];");
}

#[test]
fn numbers_have_one_spelling() {
    becomes(
        "add.f32 %f1, %f2, 1.5;\nadd.f32 %f1, %f2, 0F3f800000;\nadd.s32 %r1, %r2, -0x10;\nadd.s32 %r1, %r2, 010;\nadd.s32 %r1, %r2, 7U;",
        &[
            "add.f32 %f1, %f2, 0d3FF8000000000000;",
            "add.f32 %f1, %f2, 0f3F800000;",
            "add.s32 %r1, %r2, -16;",
            "add.s32 %r1, %r2, 8;",
            "add.s32 %r1, %r2, 7;",
        ],
    );
}

#[test]
fn a_special_register_is_moved_before_it_is_used() {
    becomes("cvt.u64.u32 %rd1, %tid.x;", &["mov.u32 %s0x_w0, %tid.x;", "cvt.u64.u32 %rd1, %s0x_w0;"]);
}

#[test]
fn what_the_fence_does_not_know_is_refused_by_name() {
    for (line, why) in [
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [tex, {%f1, %f2}];", "tensors, textures"),
        ("alloca.u64 %rd1, 8;", "stacks that grow"),
        ("mapa.u64 %rd1, %rd2, 0;", "clusters"),
        ("barrier.cluster.arrive;", "clusters"),
        ("st.async.shared::cluster.b32 [%r1], %r2, [%r3];", "cluster"),
        ("multimem.ld_reduce.global.add.f32 %f1, [%rd1];", "several devices"),
        ("tcgen05.wait::ld.sync.aligned;", "tensor memory"),
        ("griddepcontrol.wait;", "overlap"),
        ("brkpt;", "debuggers"),
        ("exit.u32;", "modifiers"),
        ("mov.b32 5, %r1;", "has to be a register"),
        ("frobnicate.b32 %r1, %r2;", "not on the fence's list"),
        ("ld.global.sideways.b32 %r1, [%rd1];", "modifiers"),
        ("cp.async.bulk.commit_group;", "bulk"),
        ("shfl.bfly.b32 %r1, %r2, 1, 31;", ".sync"),
        ("isspacep.global %p1, %rd1;", "ask"),
        ("addc.u32 %r1, %r2, 0;", "carry"),
        ("call vprintf;", "not declared"),
        ("mov.u32 %r1, %envreg3;", "special register"),
        ("add.s32 %r1, %r9, 1;", "neither a declared register"),
        ("ldmatrix.sync.aligned.m8n8.x4.b16 {%r1, %r2, %r3, %r4}, [%rd1];", "write `.shared`"),
    ] {
        let refused = refused(line);
        assert!(refused.why.contains(why) || refused.what.contains(why), "{refused}");
        assert_eq!(refused.line, 1, "{refused}");
    }
}

#[test]
fn what_is_refused_outside_of_functions() {
    for (item, why) in [
        (".extern .global .u32 x;", "not defined"),
        (".global .texref t;", "not known"),
        (".tex .u32 t;", "textures"),
        (".alias a, b;", "two names"),
        (".local .b8 x[4];", "in the function"),
        (".global .u64 x = k;", "called through their addresses"),
        (".global .b8 x[300000000];", "256 MiB"),
        (".pragma \"enable_smem_spilling\";", "nounroll"),
        (".global .u32 pappus_x;", "the fence's own"),
        (".func f() .callprototype { ret; }", "not known to the fence here"),
    ] {
        let refused = refused_module(item, "");
        assert!(refused.why.contains(why), "{refused}");
    }
}

#[test]
fn every_reason_is_listed() {
    let text = fixture::module("", "brkpt;\nld.u32 %r1, [%rd1];\ntrap;\nmapa.u64 %rd1, %rd2, 0;");
    let lines: Vec<u32> = pappus_fence::reasons(&text).iter().map(|r| r.line).collect();
    assert_eq!(lines, [7, 8, 10]);
}

#[test]
fn a_reason_reads_as_a_sentence() {
    let refused = refused("brkpt;").to_string();
    assert!(
        refused.ends_with("column 1, in k: `brkpt`: instructions for debuggers cannot be fenced"),
        "{refused}"
    );
}

#[test]
fn names_that_only_the_fence_may_use_are_refused() {
    assert!(refused(".reg .b32 %pappus_hi;").why.contains("the fence's own"));
}
