//! What fenced text may say: instructions, types, special registers, and the lines of the fence. The rewriter has its own
//! copies; nothing here comes from the rewriter.

/// Where the high word of the window comes from.
pub(super) const WINDOW: &str = "ld.param.b32 %pappus_hi, [pappus_window];";
/// The last parameter of every function.
pub(super) const PARAMETER: &str = ".param .b32 pappus_window";
/// The fence: the line right before an access to global memory.
pub(super) const FENCE: &str = "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};";
/// An offset becomes an address of the local array. The lines before take the array's address and bound the offset.
pub(super) const REBASE: &str = "add.s64 %pappus_at, %pappus_at, %pappus_base;";
/// A callee gets the window of its caller.
pub(super) const ARGUMENT: &str = "st.param.b32 [pappus_argument], %pappus_hi;";
/// Iterations between two looks at the stop word are fewer.
pub(super) const REFUEL: &str = "mov.b32 %pappus_fuel, 16384;";
/// A unit of fuel is spent; a jump to the check and a label follow.
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

/// Modifiers of loads, stores and atomic operations: spaces, orders, scopes of one device, caches, operations, vectors.
const ACCESS: &str = "global shared shared::cta local param const v2 v4 v8 nc volatile weak relaxed acquire release acq_rel \
    cta gpu sys ca cg cs cv wb wt L1 L2 L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate \
    L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B add min max inc dec and or xor exch cas noftz";

/// Other instructions, each with the modifiers that it may have.
const FORMS: [(&str, &str); 12] = [
    ("bar", "sync arrive red warp cta aligned popc and or pred u32"),
    ("barrier", "sync arrive red cta aligned popc and or pred u32"),
    ("membar", "cta gl sys"),
    ("fence", "sc acq_rel acquire release cta gpu sys cluster proxy async shared::cta global mbarrier_init"),
    ("setmaxnreg", "inc dec sync aligned u32"),
    (
        "cp",
        "async ca cg shared shared::cta global L2::64B L2::128B L2::256B commit_group wait_group wait_all mbarrier arrive noinc b64",
    ),
    ("ldmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16"),
    ("stmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16"),
    (
        "mbarrier",
        "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity pending_count noComplete release \
        acquire relaxed cta shared shared::cta b64",
    ),
    ("ret", "uni"),
    ("exit", ""),
    ("trap", ""),
];

/// A state space that an address is in.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    /// Bytes of an access.
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

/// Bytes of a type, written without its dot.
pub(super) fn bytes(name: &str) -> Option<u64> {
    TYPES.iter().find(|(_, names)| has(names, name)).map(|(bytes, _)| *bytes)
}

/// The space that a modifier names.
fn space(modifier: &str) -> Option<Space> {
    Some(match modifier {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Parameter,
        "const" => Space::Constant,
        _ => return None,
    })
}

/// The form of an instruction with this many operands, or `None` where no rule knows the form. Jumps and calls are not asked here.
pub(super) fn form(opcode: &str, operands: usize) -> Option<Form> {
    let (root, rest) = opcode.split_once('.').unwrap_or((opcode, ""));
    if !opcode.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:".contains(&byte)) {
        return None;
    }
    if has(PURE, root) {
        return Some(Form { writes: true, ..Form::default() });
    }
    let modifiers: Vec<&str> = rest.split('.').filter(|_| !rest.is_empty()).collect();
    let first = modifiers.first().copied().unwrap_or_default();
    let mut spaces: Vec<Space> = modifiers.iter().filter_map(|word| space(word)).collect();
    let mut shares = spaces.contains(&Space::Shared);
    let (mut writes, mut width) = (false, 0);
    let is_known = match root {
        "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" => {
            writes = ["ld", "ldu", "atom"].contains(&root);
            let is_admitted = match spaces.as_slice() {
                [Space::Global] => true,
                [Space::Shared] => root != "prefetch",
                [Space::Local | Space::Parameter] => ["ld", "st"].contains(&root),
                [Space::Constant] => root == "ld",
                _ => false,
            };
            let (rest, lanes) = match modifiers.split_last() {
                Some((last, rest)) if root != "prefetch" => {
                    width = bytes(last)?;
                    (rest, rest.iter().find_map(|word| word.strip_prefix('v')?.parse().ok()).unwrap_or(1))
                }
                _ => (modifiers.as_slice(), 1),
            };
            width *= lanes;
            is_admitted && rest.iter().all(|word| has(ACCESS, word))
        }
        "wmma" => {
            writes = first != "store";
            let is_access = ["load", "store"].contains(&first) && spaces == [Space::Shared];
            (first == "mma" && spaces.is_empty()) || is_access
        }
        "wgmma" => {
            shares = true;
            ["fence", "commit_group", "wait_group", "mma_async"].contains(&first) && spaces.is_empty()
        }
        _ => {
            writes = root == "ldmatrix"
                || (root == "mbarrier" && !["init", "inval", "expect_tx", "complete_tx"].contains(&first));
            if root == "fence" {
                spaces.clear();
            }
            // A wait with a fourth operand would last as long as the kernel likes.
            let is_form = (root != "cp" || first == "async") && (root != "mbarrier" || operands <= 3);
            let (_, list) = FORMS.iter().find(|(name, _)| *name == root)?;
            let is_shared = spaces.iter().all(|space| *space == Space::Shared) && spaces.len() < 2;
            let is_copy = root == "cp" && spaces == [Space::Shared, Space::Global];
            is_form && (is_shared || is_copy) && modifiers.iter().all(|word| has(list, word))
        }
    };
    is_known.then_some(Form { writes, shares, spaces, bytes: width })
}
