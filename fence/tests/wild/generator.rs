//! Kernels that reach for every address: random PTX whose accesses to global memory go anywhere, by every instruction that the
//! fence lets pass. What a kernel reads is compared with the secret that the memory of others is filled with.
#![allow(dead_code)] // Each program uses a part of it.

use std::fmt::Write;

/// What the memory of others is filled with, each byte.
pub(crate) const SECRET: u8 = 0xc3;
/// Where in its own memory a kernel counts what it read of the secret: five words, each this far behind the one before. Wild stores may
/// hit one.
pub(crate) const COUNTERS: [u32; 5] = [0x40, 0x12340, 0x56780, 0x9abc0, 0xdef00];
/// Where in its own memory a table of 512 addresses lies.
pub(crate) const TABLE: u32 = 0x10_0000;

/// A kernel, and how often each of its threads accesses memory.
#[derive(Debug)]
pub(crate) struct Wild {
    /// The text, as a stranger would bring it.
    pub(crate) text: String,
    /// Accesses of each thread to addresses that are wild.
    pub(crate) accesses: u32,
}

/// Random numbers, the same for a seed everywhere.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// One of several.
    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    /// True in one of `n` cases.
    fn rarely(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The kernel of a seed. With `mapped`, its addresses are its own or the witness's, so that it runs without a fence as well.
pub(crate) fn wild(seed: u64, mapped: bool) -> Wild {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d);
    random.below(2);
    let mut body = String::new();
    let mut accesses = 0;
    let only_loads = random.rarely(2);
    for loop_ in 0..1 + random.below(3) {
        let turns = if random.rarely(2) { 1 + random.below(4) as u32 } else { 1 };
        if turns > 1 {
            writeln!(body, "mov.u32 %r9, 0;\n$again_{loop_}:").expect("a string takes every text");
        }
        for _ in 0..1 + random.below(6) {
            accesses += turns;
            address(&mut body, &mut random, mapped);
            access(&mut body, &mut random, only_loads);
        }
        if turns > 1 {
            writeln!(body, "add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p1, %r9, {turns};\n@%p1 bra $again_{loop_};")
                .expect("a string takes every text");
        }
    }
    let mut counters = String::new();
    for at in COUNTERS {
        writeln!(counters, "@%p1 red.global.add.u32 [%rd1+{at}], %r5;").expect("a string takes every text");
    }
    let text = format!(
        ".version 8.1\n.target sm_90\n.address_size 64\n.shared .align 16 .b8 buffer[4096];\n\
         .visible .entry wild(.param .u64 own, .param .u64 witness, .param .u64 seed)\n{{\n\
         .reg .b64 %rd<16>;\n.reg .b32 %r<24>;\n.reg .b16 %h<4>;\n.reg .f32 %f<4>;\n.reg .f64 %d<2>;\n.reg .pred %p<6>;\n\
         ld.param.u64 %rd1, [own];\nld.param.u64 %rd2, [witness];\nld.param.u64 %rd3, [seed];\n\
         cvta.to.global.u64 %rd1, %rd1;\ncvta.to.global.u64 %rd2, %rd2;\n\
         mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.u32 %r4, %r1, %r2, %r3;\n\
         mul.wide.u32 %rd4, %r4, 2654435769;\nadd.u64 %rd3, %rd3, %rd4;\nmov.u32 %r5, 0;\n\
         {body}setp.ne.u32 %p1, %r5, 0;\n{counters}ret;\n}}\n"
    );
    Wild { text, accesses }
}

/// Puts an address into `%rd7`: another one in each thread and turn.
fn address(body: &mut String, random: &mut Random, mapped: bool) {
    body.push_str(
        "mul.lo.u64 %rd3, %rd3, 6364136223846793005;\nadd.u64 %rd3, %rd3, 1442695040888963407;\nshr.u64 %rd5, %rd3, 29;\n\
         xor.b64 %rd5, %rd5, %rd3;\nand.b64 %rd6, %rd5, 4294967295;\ncvt.u32.u64 %r6, %rd5;\n",
    );
    let inside = [
        "add.u64 %rd7, %rd2, %rd6;",
        "add.u64 %rd7, %rd1, %rd6;",
        "or.b64 %rd7, %rd2, %rd6;",
        "mad.wide.u32 %rd7, %r6, 1, %rd2;",
        "setp.lt.s32 %p2, %r6, 0;\nadd.u64 %rd8, %rd2, %rd6;\nadd.u64 %rd9, %rd1, %rd6;\nselp.b64 %rd7, %rd8, %rd9, %p2;",
        "mov.b64 {%r7, %r8}, %rd2;\nmov.b64 %rd7, {%r6, %r8};",
        "sub.u64 %rd8, %rd2, %rd1;\nadd.u64 %rd9, %rd1, %rd6;\nadd.u64 %rd7, %rd9, %rd8;",
        "shr.u64 %rd8, %rd2, 32;\nbfi.b64 %rd7, %rd8, %rd6, 32, 32;",
        "cvt.rn.f64.u64 %d1, %rd2;\ncvt.rzi.u64.f64 %rd8, %d1;\nadd.u64 %rd7, %rd8, %rd6;",
        "shl.b64 %rd8, %rd2, 1;\nsub.u64 %rd8, %rd8, %rd2;\nadd.u64 %rd7, %rd8, %rd6;",
        "@%p3 add.u64 %rd7, %rd2, %rd6;\n@!%p3 add.u64 %rd7, %rd1, %rd6;",
    ];
    let anywhere = [
        // A table of addresses, which wild stores may have hit.
        "and.b64 %rd8, %rd5, 4088;\nadd.u64 %rd8, %rd8, %rd1;\nld.global.u64 %rd7, [%rd8+1048576];",
        "mov.u64 %rd7, %rd5;",
        "mov.u64 %rd7, %rd6;",
        "shr.s64 %rd8, %rd5, 20;\nadd.s64 %rd7, %rd1, %rd8;",
        "neg.s64 %rd7, %rd6;",
        "shl.b64 %rd8, %rd6, 16;\nadd.u64 %rd7, %rd1, %rd8;",
        "and.b64 %rd8, %rd5, 281474976710655;\nmov.u64 %rd7, %rd8;",
        "add.s64 %rd7, %rd1, -4294967296;\nadd.s64 %rd7, %rd7, %rd6;",
        "mul.hi.u64 %rd7, %rd5, %rd2;",
        "popc.b64 %r7, %rd5;\nshl.b64 %rd8, %rd5, %r7;\nxor.b64 %rd7, %rd8, %rd1;",
        "cvt.rn.f32.u32 %f1, %r6;\ncvt.rzi.s64.f32 %rd8, %f1;\nadd.s64 %rd7, %rd2, %rd8;",
        "mov.u64 %rd7, buffer;\nadd.u64 %rd7, %rd7, %rd6;",
        "setp.gt.s32 %p2, %r6, 0;\nselp.b64 %rd7, %rd5, %rd2, %p2;",
    ];
    body.push_str("and.b32 %r7, %r6, 1;\nsetp.eq.u32 %p3, %r7, 0;\n");
    let how = if mapped || random.rarely(2) { random.one_of(&inside) } else { random.one_of(&anywhere) };
    body.push_str(how);
    body.push('\n');
}

/// An access to the address in `%rd7`, and a look at what it gave.
fn access(body: &mut String, random: &mut Random, only_loads: bool) {
    let (kind, bytes): (&str, u32) = match random.below(if only_loads { 8 } else { 14 }) {
        0 => ("ld", 1),
        1 => ("ld", 2),
        2 | 3 => ("ld", 4),
        4 => ("ld", 8),
        5 => ("ld", 16),
        6 => ("prefetch", 4),
        7 => ("cp.async", 16),
        8 => ("st", 1),
        9 => ("st", 4),
        10 => ("st", 8),
        11 => ("st", 16),
        12 => ("atom", 4),
        _ => ("red", 4),
    };
    writeln!(body, "and.b64 %rd7, %rd7, -{bytes};").expect("a string takes every text");
    // An offset in both directions stays in the window of whoever keeps the low word in between.
    let offset = match random.below(3) {
        0 => {
            body.push_str("and.b64 %rd7, %rd7, -3221225473;\nor.b64 %rd7, %rd7, 1073741824;\n");
            let far = random.below((1 << 30) / 16) * 16;
            if random.rarely(2) { format!("+{far}") } else { format!("+-{far}") }
        }
        _ => String::new(),
    };
    let at = format!("[%rd7{offset}]");
    let predicate = if random.rarely(6) { "@%p3 " } else { "" };
    match kind {
        "ld" => load(body, random, bytes, &at, predicate, only_loads),
        "prefetch" => {
            let level = random.one_of(&["L1", "L2"]);
            writeln!(body, "{predicate}prefetch.global.{level} {at};").expect("a string takes every text");
        }
        "cp.async" => {
            writeln!(
                body,
                "shl.b32 %r10, %r3, 4;\nand.b32 %r10, %r10, 4080;\nmov.u32 %r11, buffer;\nadd.u32 %r10, %r10, %r11;\n\
                 cp.async.cg.shared.global [%r10], {at}, 16;\ncp.async.commit_group;\ncp.async.wait_all;\n\
                 ld.shared.u32 %r12, [%r10];"
            )
            .expect("a string takes every text");
            seen(body, "setp.eq.u32 %p4, %r12, 3284386755;");
        }
        "st" => {
            let how = match bytes {
                16 => "st.global.v4.b32".to_owned(),
                _ => format!(
                    "st{}.global.b{}",
                    random.one_of(&["", ".volatile", ".relaxed.gpu", ".release.gpu"]),
                    8 * bytes
                ),
            };
            let what = match bytes {
                16 => "{286331153, 286331153, 286331153, 286331153}",
                8 => "1229782938247303441",
                1 => "17",
                _ => "286331153",
            };
            writeln!(body, "{}", store(&how, what, &at, predicate, bytes))
                .expect("a string takes every text");
        }
        "atom" => {
            let how = random.one_of(&["add.u32", "exch.b32", "or.b32", "max.u32", "inc.u32", "xor.b32"]);
            writeln!(body, "mov.u32 %r12, 0;\n{predicate}atom.global.{how} %r12, {at}, 1;")
                .expect("a string takes every text");
            seen(body, "setp.eq.u32 %p4, %r12, 3284386755;");
        }
        _ => {
            let how = random.one_of(&["add.u32", "or.b32", "min.u32", "xor.b32"]);
            writeln!(body, "{predicate}red.global.{how} {at}, 1;").expect("a string takes every text");
        }
    }
}

/// A store of a constant, by way of a register.
fn store(how: &str, what: &str, at: &str, predicate: &str, bytes: u32) -> String {
    match bytes {
        16 => format!("mov.u32 %r13, 286331153;\n{predicate}{how} {at}, {{%r13, %r13, %r13, %r13}};"),
        8 => format!("mov.u64 %rd10, {what};\n{predicate}{how} {at}, %rd10;"),
        1 => format!("mov.u16 %h1, {what};\n{predicate}{how} {at}, %h1;"),
        _ => format!("mov.u32 %r13, {what};\n{predicate}{how} {at}, %r13;"),
    }
}

/// A load of so many bytes. One or two are told from what wild stores and atomics leave where there are only loads.
fn load(body: &mut String, random: &mut Random, bytes: u32, at: &str, predicate: &str, only_loads: bool) {
    let modifier = random.one_of(&["", ".volatile", ".relaxed.gpu", ".acquire.gpu", ".relaxed.sys"]);
    match bytes {
        1 => {
            writeln!(body, "mov.u16 %h1, 0;\n{predicate}ld{modifier}.global.u8 %h1, {at};")
                .expect("a string takes every text");
            seen(body, if only_loads { "setp.eq.u16 %p4, %h1, 195;" } else { NOTHING });
        }
        2 => {
            writeln!(body, "mov.u16 %h1, 0;\n{predicate}ld{modifier}.global.u16 %h1, {at};")
                .expect("a string takes every text");
            seen(body, if only_loads { "setp.eq.u16 %p4, %h1, 50115;" } else { NOTHING });
        }
        4 => {
            let how =
                random.one_of(&["ld.global.nc", "ldu.global", "ld.global", "ld.global.cg", "ld.global.cv"]);
            writeln!(body, "mov.u32 %r12, 0;\n{predicate}{how}.u32 %r12, {at};")
                .expect("a string takes every text");
            seen(body, "setp.eq.u32 %p4, %r12, 3284386755;");
        }
        8 => {
            writeln!(body, "mov.u64 %rd10, 0;\n{predicate}ld{modifier}.global.u64 %rd10, {at};")
                .expect("a string takes every text");
            seen(body, "cvt.u32.u64 %r12, %rd10;\nsetp.eq.u32 %p4, %r12, 3284386755;");
        }
        _ => {
            writeln!(
                body,
                "mov.u32 %r12, 0;\nmov.u32 %r13, 0;\nmov.u32 %r14, 0;\nmov.u32 %r15, 0;\n\
                 {predicate}ld.global.v4.u32 {{%r12, %r13, %r14, %r15}}, {at};"
            )
            .expect("a string takes every text");
            seen(body, "setp.eq.u32 %p4, %r15, 3284386755;");
        }
    }
}

/// A test that nothing passes.
const NOTHING: &str = "setp.ne.u16 %p4, %h1, %h1;";

/// Counts the secret, where `test` sets `%p4`.
fn seen(body: &mut String, test: &str) {
    writeln!(body, "{test}\n@%p4 add.u32 %r5, %r5, 1;").expect("a string takes every text");
}
