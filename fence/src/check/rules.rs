//! What fenced text may say: instructions, types, special registers, and the lines of the fence. The rewriter has its own
//! copies; nothing here comes from the rewriter.

/// Where the high word of the window comes from.
pub(super) const WINDOW: &str = "ld.param.b32 %pappus_hi, [pappus_window];";
/// The last parameter of every kernel.
pub(super) const PARAMETER: &str = ".param .b32 pappus_window";
/// The fence: the line right before an access to global memory.
pub(super) const FENCE: &str = "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};";
/// An offset becomes an address of the local array: the array's name follows `BASE`, the highest offset `LEAST`.
pub(super) const BASE: &str = "mov.b64 %pappus_base, ";
pub(super) const LEAST: &str = "min.u64 %pappus_at, %pappus_at, ";
pub(super) const REBASE: &str = "add.s64 %pappus_at, %pappus_at, %pappus_base;";
/// Iterations between two looks at the stop word are fewer.
pub(super) const REFUEL: &str = "mov.b32 %pappus_fuel, 1024;";
/// A unit of fuel is spent; a number follows `CHECK`, and a label behind.
pub(super) const CHECK: &str = "@%pappus_out bra $pappus_check_";
pub(super) const SPEND: &str = "sub.u32 %pappus_fuel, %pappus_fuel, 1;";
pub(super) const SPENT: &str = "setp.eq.u32 %pappus_out, %pappus_fuel, 0;";
/// Offsets in an address reach as far: less than the guard on each side of a window, with the access.
pub(super) const MOST_OFFSET: u64 = (1 << 31) - 1;
/// Limits of a launch.
pub(super) const LIMITS: [&str; 4] = [".maxntid", ".reqntid", ".minnctapersm", ".maxnreg"];
/// The carry of `add.cc` is a register without a name: no name has a blank.
pub(super) const CARRY: &str = "the carry";
/// Bytes of a `.local` array, at most: all of it is written by single stores.
pub(super) const MOST_LOCAL: u64 = 4096;

/// The first lines of every body.
pub(super) const REGISTERS: [&str; 3] = [
    ".reg .b32 %pappus_hi, %pappus_lo, %pappus_fuel, %pappus_step, %pappus_end;",
    ".reg .b64 %pappus_at, %pappus_base;",
    ".reg .pred %pappus_out;",
];

/// A thread ends where the worker has written the window's stop word.
pub(super) const STOP: [&str; 5] = [
    "mov.b32 %pappus_lo, 0xfffff000;",
    FENCE,
    "ld.volatile.global.u32 %pappus_lo, [%pappus_at];",
    "setp.ne.u32 %pappus_out, %pappus_lo, 0;",
    "@%pappus_out exit;",
];

/// All lanes of the warp run, or none goes on: some instructions read registers of lanes that have ended or never were.
pub(super) const WHOLE: [&str; 3] =
    ["activemask.b32 %pappus_lo;", "setp.ne.s32 %pappus_out, %pappus_lo, -1;", "@%pappus_out exit;"];

/// All shared memory that a block can reach becomes zero, for the asynchronous proxy (`wgmma`) too.
pub(super) const ZERO: [&str; 25] = [
    "mov.u32 %pappus_lo, %tid.z;",
    "mov.u32 %pappus_step, %ntid.y;",
    "mov.u32 %pappus_end, %tid.y;",
    "mad.lo.u32 %pappus_lo, %pappus_lo, %pappus_step, %pappus_end;",
    "mov.u32 %pappus_step, %ntid.x;",
    "mov.u32 %pappus_end, %tid.x;",
    "mad.lo.u32 %pappus_lo, %pappus_lo, %pappus_step, %pappus_end;",
    "shl.b32 %pappus_lo, %pappus_lo, 4;",
    "mov.u32 %pappus_end, %ntid.y;",
    "mul.lo.u32 %pappus_step, %pappus_step, %pappus_end;",
    "mov.u32 %pappus_end, %ntid.z;",
    "mul.lo.u32 %pappus_step, %pappus_step, %pappus_end;",
    "shl.b32 %pappus_step, %pappus_step, 4;",
    "mov.u32 %pappus_end, %aggr_smem_size;",
    "add.u32 %pappus_end, %pappus_end, 127;",
    "and.b32 %pappus_end, %pappus_end, -128;",
    "$pappus_zero:",
    "setp.ge.u32 %pappus_out, %pappus_lo, %pappus_end;",
    "@%pappus_out bra $pappus_zeroed;",
    "st.shared.v4.b32 [%pappus_lo], {0, 0, 0, 0};",
    "add.u32 %pappus_lo, %pappus_lo, %pappus_step;",
    "bra.uni $pappus_zero;",
    "$pappus_zeroed:",
    "fence.proxy.async.shared::cta;",
    "bar.sync 0;",
];

/// Special registers that a kernel may read.
const SPECIAL: &str = "%tid.x %tid.y %tid.z %ntid.x %ntid.y %ntid.z %ctaid.x %ctaid.y %ctaid.z %nctaid.x %nctaid.y \
    %nctaid.z %laneid %warpid %nwarpid %smid %nsmid %lanemask_eq %lanemask_le %lanemask_lt %lanemask_ge %lanemask_gt \
    %clock %clock_hi %clock64 %globaltimer %globaltimer_lo %globaltimer_hi %total_smem_size %aggr_smem_size %dynamic_smem_size";

/// Instructions from registers of the own warp to the first operand; no modifier gives one of these an operand in memory.
const PURE: &str = "mov add sub setp mul mad fma cvt and or shl shr selp xor not max min abs neg cvta shfl mma lop3 prmt div rem \
    activemask addc bfe bfi bfind bmsk brev clz cnot copysign cos dp2a dp4a elect ex2 fns lg2 mad24 madc match movmatrix mul24 \
    popc rcp redux rsqrt sad set shf sin slct sqrt subc szext tanh testp vote";

/// Types by bytes.
const TYPES: [(u64, &str); 5] = [
    (4, "b32 u32 s32 f32 f16x2 bf16x2"),
    (8, "b64 u64 s64 f64"),
    (2, "b16 u16 s16 f16 bf16"),
    (1, "b8 u8 s8"),
    (16, "b128"),
];

/// Modifiers of loads, stores and atomic operations: orders, scopes of one device, caches, operations, vectors.
const ACCESS: &str = "v2 v4 v8 nc volatile weak relaxed acquire release acq_rel \
    cta gpu sys ca cg cs cv wb wt L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate \
    L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B add min max inc dec and or xor exch cas noftz";

/// Modifiers of `mbarrier`.
const MBARRIER: &str = "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity pending_count noComplete \
    release acquire relaxed cta";

/// Other instructions, each with the spaces of its operands in brackets (one letter for each operand, `-` for none) and the
/// modifiers that the instruction may have.
const FORMS: [(&str, &str, &str); 17] = [
    ("ld", "g s l p c", ACCESS),
    ("st", "g s l", ACCESS),
    ("ldu", "g", ACCESS),
    ("atom", "g s", ACCESS),
    ("red", "g s", ACCESS),
    ("prefetch", "g", "L1 L2"),
    ("cp", "sg s -", "async ca cg L2::128B L2::256B commit_group wait_group wait_all mbarrier arrive noinc"),
    ("ldmatrix", "s", "sync aligned m8n8 x1 x2 x4 trans"),
    ("stmatrix", "s", "sync aligned m8n8 x1 x2 x4 trans"),
    ("mbarrier", "s -", MBARRIER),
    ("bar", "-", "sync arrive red warp cta aligned popc and or pred"),
    ("barrier", "-", "sync arrive red cta aligned popc and or pred"),
    ("membar", "-", "cta gl sys"),
    ("fence", "- s g", "sc acq_rel acquire release cta gpu sys cluster proxy async mbarrier_init"),
    ("ret", "-", "uni"),
    ("exit", "-", ""),
    ("trap", "-", ""),
];

/// A state space that an address is in.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
    Parameter,
    Constant,
}

/// What an instruction does with its operands.
#[derive(Default)]
pub(super) struct Form {
    /// True if the first operand is written, all of the operand, and nothing else is.
    pub(super) writes: bool,
    /// True if shared memory is reached.
    pub(super) shares: bool,
    /// The space of each operand in brackets, in the order of the operands.
    pub(super) spaces: Vec<Space>,
    /// Bytes of an access: too many, where the instruction names no type.
    pub(super) bytes: u64,
}

/// True if a list of words has a word.
fn has(list: &str, word: &str) -> bool {
    list.split(' ').any(|item| item == word)
}

/// True if a kernel may read this special register.
pub(super) fn is_special(name: &str) -> bool {
    name.starts_with('%') && has(SPECIAL, name)
}

/// True if no declaration may use a name: one of the fence's, or of a special register.
pub(super) fn is_taken(name: &str) -> bool {
    name.contains("pappus") || SPECIAL.split(' ').any(|special| special.split('.').next() == Some(name))
}

/// True if only the fence's own lines write a register.
pub(super) fn is_guarded(name: &str) -> bool {
    name.contains("pappus") && !["%pappus_lo", "%pappus_at", "%pappus_base"].contains(&name)
}

/// True if an instruction reads registers of all lanes. `wgmma` does where its second operand is no descriptor.
pub(super) fn gathers(opcode: &str, operands: &[&str]) -> bool {
    let root = opcode.split('.').next().unwrap_or_default();
    let takes_registers =
        opcode.contains(".sp") || operands.get(1).is_some_and(|second| second.starts_with('{'));
    has("mma movmatrix ldmatrix stmatrix", root) || (opcode.starts_with("wgmma.mma_async") && takes_registers)
}

/// Bytes of a type, written without its dot.
pub(super) fn bytes(name: &str) -> Option<u64> {
    TYPES.iter().find(|(_, names)| has(names, name)).map(|(bytes, _)| *bytes)
}

/// The space that a modifier names, and its letter.
fn space(modifier: &str) -> Option<(char, Space)> {
    Some(match modifier {
        "global" => ('g', Space::Global),
        "shared" | "shared::cta" => ('s', Space::Shared),
        "local" => ('l', Space::Local),
        "param" => ('p', Space::Parameter),
        "const" => ('c', Space::Constant),
        _ => return None,
    })
}

/// The form of an instruction with this many operands, or `None` where no rule knows the form. Branches are not asked here.
pub(super) fn form(opcode: &str, operands: usize) -> Option<Form> {
    let (root, modifiers) = opcode.split_once('.').unwrap_or((opcode, ""));
    let is_pure = has(PURE, root);
    if !opcode.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:".contains(&byte)) {
        return None;
    }
    if is_pure || root == "wgmma" {
        // Descriptors of `wgmma` are registers that name shared memory; its result is read, too.
        return Some(Form { writes: is_pure, shares: !is_pure, ..Form::default() });
    }
    let (_, kinds, list) = FORMS.iter().find(|(name, ..)| *name == root)?;
    let words: Vec<&str> = modifiers.split('.').filter(|word| !word.is_empty()).collect();
    let (kind, spaces): (String, Vec<Space>) = words.iter().filter_map(|word| space(word)).unzip();
    let width = words.last().and_then(|last| bytes(last));
    let lanes = words.iter().find_map(|word| word.strip_prefix('v')?.parse().ok()).unwrap_or(1);
    let plain = &words[..words.len() - usize::from(width.is_some())];
    let is_known = plain.iter().all(|word| has(list, word) || space(word).is_some());
    let first = words.first().copied().unwrap_or_default();
    // A wait with a fourth operand would last as long as the kernel likes.
    let is_admitted = (root != "cp" || first == "async") && (root != "mbarrier" || operands <= 3);
    let is_arrival = root == "mbarrier" && !["init", "inval", "expect_tx", "complete_tx"].contains(&first);
    let form = Form {
        writes: is_arrival || has("ld ldu atom ldmatrix", root),
        shares: kind.contains('s'),
        bytes: width.unwrap_or(u64::MAX).saturating_mul(lanes),
        spaces: if root == "fence" { Vec::new() } else { spaces },
    };
    let is_kind = has(kinds, if kind.is_empty() { "-" } else { &kind });
    (is_known && is_admitted && is_kind).then_some(form)
}
