//! The allow-list of instructions, why others are refused, and what each writes.

use crate::read::tree::{Instruction, Operand};

/// True if the instruction touches registers only, whatever its modifiers.
fn computes(name: &str) -> bool {
    matches!(
        name,
        "abs"
            | "activemask"
            | "add"
            | "addc"
            | "and"
            | "bfe"
            | "bfi"
            | "bfind"
            | "bmsk"
            | "brev"
            | "clz"
            | "cnot"
            | "copysign"
            | "cos"
            | "cvt"
            | "div"
            | "dp2a"
            | "dp4a"
            | "elect"
            | "ex2"
            | "fma"
            | "fns"
            | "lg2"
            | "lop3"
            | "mad"
            | "mad24"
            | "madc"
            | "match"
            | "max"
            | "min"
            | "mma"
            | "mov"
            | "movmatrix"
            | "mul"
            | "mul24"
            | "neg"
            | "not"
            | "or"
            | "popc"
            | "prmt"
            | "rcp"
            | "redux"
            | "rem"
            | "rsqrt"
            | "sad"
            | "selp"
            | "set"
            | "setp"
            | "shf"
            | "shfl"
            | "shl"
            | "shr"
            | "sin"
            | "slct"
            | "sqrt"
            | "sub"
            | "subc"
            | "szext"
            | "tanh"
            | "testp"
            | "vote"
            | "xor"
    )
}

/// True if other passes look at the instruction more closely, or if it only waits or ends.
fn others(name: &str) -> bool {
    matches!(
        name,
        "applypriority"
            | "atom"
            | "bar"
            | "barrier"
            | "bra"
            | "brx"
            | "call"
            | "cp"
            | "createpolicy"
            | "cvta"
            | "discard"
            | "exit"
            | "fence"
            | "ld"
            | "ldmatrix"
            | "ldu"
            | "mbarrier"
            | "membar"
            | "nanosleep"
            | "prefetch"
            | "prefetchu"
            | "red"
            | "ret"
            | "setmaxnreg"
            | "st"
            | "stmatrix"
            | "trap"
            | "wgmma"
    )
}

/// True if an instruction that waits, orders or copies matrices may have the modifier; others are looked at elsewhere.
fn has_known(name: &str, modifier: &str) -> bool {
    let list = match name {
        "bar" | "barrier" => "sync arrive red warp cta aligned popc and or pred u32",
        "membar" => "cta gl sys",
        "fence" => {
            "sc acq_rel acquire release cta gpu sys cluster proxy async mbarrier_init shared shared::cta global"
        }
        "mbarrier" => {
            "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity pending_count noComplete \
             release acquire relaxed cta cluster shared shared::cta b64"
        }
        "ldmatrix" | "stmatrix" => "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16",
        "bra" | "ret" | "call" => "uni",
        "exit" | "trap" => "",
        _ => return true,
    };
    list.split(' ').any(|known| known == modifier)
}

/// Why an instruction is refused by its opcode, if the opcode is a reason.
pub(crate) fn refusal(instruction: &Instruction<'_>) -> Option<&'static str> {
    let name = instruction.name();
    if instruction.opcode.contains("::cluster") {
        return Some("memory of other blocks of a cluster cannot be fenced: use `.shared::cta`");
    }
    if instruction.opcode.contains('$') {
        return Some("no instruction of PTX is called so");
    }
    if computes(name) {
        let lanes = matches!(name, "shfl" | "vote");
        return (lanes && !instruction.has("sync"))
            .then_some("write it with `.sync` and a mask of its lanes");
    }
    let has = |modifier| instruction.has(modifier);
    if others(name) {
        return match name {
            "barrier" if has("cluster") => Some("clusters cannot be fenced"),
            "createpolicy" if !has("fractional") => {
                Some("of cache policies only `createpolicy.fractional` is admitted")
            }
            "cvta" if has("param") || instruction.opcode.contains("param::") => {
                Some("the address of a parameter cannot be fenced: load the parameter with `ld.param`")
            }
            "cp" if has("bulk") => Some("bulk copies cannot be fenced: copy with `cp.async`"),
            "fence" | "cp" | "prefetch" if instruction.opcode.contains("tensormap") || has("tensor") => {
                Some("tensor maps cannot be fenced: copy with `cp.async`")
            }
            _ if !instruction.modifiers().all(|modifier| has_known(name, modifier)) => {
                Some("the fence does not know one of the instruction's modifiers")
            }
            "brx" if !has("idx") => Some("only `brx.idx` with a table can be fenced"),
            _ => None,
        };
    }
    Some(match name {
        "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" => {
            "textures and surfaces cannot be fenced"
        }
        "alloca" | "stacksave" | "stackrestore" => {
            "stacks that grow cannot be fenced: use arrays of a fixed size"
        }
        "mapa" | "getctarank" | "clusterlaunchcontrol" => "clusters cannot be fenced",
        "multimem" => "memory of several devices cannot be fenced",
        "tensormap" => "tensor maps cannot be fenced: copy with `cp.async`",
        "isspacep" => "an instruction cannot ask which memory an address is of: use `ld.global` or the like",
        "wmma" => "its rows lie as far apart as a register says: use `ldmatrix` and `mma`",
        "griddepcontrol" => "launches that overlap cannot be fenced",
        "tcgen05" => "tensor memory cannot be fenced yet",
        "brkpt" | "pmevent" => "instructions for debuggers cannot be fenced",
        _ => "the instruction is not on the fence's list",
    })
}

/// True if the first operand is written, and only written.
pub(crate) fn writes_first(instruction: &Instruction<'_>) -> bool {
    match instruction.name() {
        // What `bar.red` writes is cleared as if it was read: the checker does not know better.
        "applypriority" | "bar" | "barrier" | "bra" | "brx" | "call" | "cp" | "discard" | "exit"
        | "fence" | "membar" | "nanosleep" | "prefetch" | "prefetchu" | "red" | "ret" | "setmaxnreg"
        | "st" | "stmatrix" | "trap" | "wgmma" => false,
        "mbarrier" => {
            !matches!(instruction.operands.first(), Some(Operand::Address(..) | Operand::Absolute(_)))
        }
        _ => true,
    }
}
