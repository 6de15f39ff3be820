//! What an instruction does with memory: which operand is an address, in which space, of how many bytes.

use crate::read::tree::{Instruction, Operand, Space};
use crate::read::types::bytes;

/// One address of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// The operand that is the address.
    pub(crate) operand: usize,
    /// Where it points; none for a generic address.
    pub(crate) space: Option<Space>,
    /// The bytes that are reached.
    pub(crate) bytes: u64,
}

/// True if the modifier of a load, store or atomic changes neither what is reached nor how much.
fn plain(modifier: &str) -> bool {
    matches!(
        modifier,
        "weak"
            | "volatile"
            | "relaxed"
            | "acquire"
            | "release"
            | "acq_rel"
            | "cta"
            | "cluster"
            | "gpu"
            | "sys"
            | "nc"
            | "ca"
            | "cg"
            | "cs"
            | "lu"
            | "cv"
            | "wb"
            | "wt"
            | "L1::evict_normal"
            | "L1::evict_unchanged"
            | "L1::evict_first"
            | "L1::evict_last"
            | "L1::no_allocate"
            | "L2::evict_normal"
            | "L2::evict_first"
            | "L2::evict_last"
            | "L2::cache_hint"
            | "L2::64B"
            | "L2::128B"
            | "L2::256B"
            | "and"
            | "or"
            | "xor"
            | "cas"
            | "exch"
            | "add"
            | "inc"
            | "dec"
            | "min"
            | "max"
            | "noftz"
    )
}

/// The addresses of an instruction, at most two; why not if the fence does not know them all.
pub(crate) fn accesses(instruction: &Instruction<'_>) -> Result<Vec<Access>, &'static str> {
    let found: Vec<usize> = instruction
        .operands
        .iter()
        .enumerate()
        .filter(|(_, o)| matches!(o, Operand::Address(..) | Operand::Absolute(_)))
        .map(|(i, _)| i)
        .collect();
    let name = instruction.name();
    let wanted: &[usize] = match name {
        "ld" | "ldu" | "atom" => &[1],
        "st" | "red" | "prefetch" | "prefetchu" | "discard" | "applypriority" => &[0],
        "cp" => return copies(instruction, &found),
        "ldmatrix" | "stmatrix" | "mbarrier" => return in_shared(instruction, &found),
        _ if found.is_empty() => return Ok(Vec::new()),
        _ => return Err("the fence does not know what this instruction does with an address"),
    };
    if found != wanted {
        return Err("the address does not stand where the fence expects it");
    }
    let (mut space, mut element, mut count) = (None, None, 1);
    for modifier in instruction.modifiers() {
        match modifier {
            "global" => set(&mut space, Space::Global)?,
            "shared" | "shared::cta" => set(&mut space, Space::Shared)?,
            "local" => set(&mut space, Space::Local)?,
            "const" => set(&mut space, Space::Const)?,
            "param" | "param::entry" | "param::func" => set(&mut space, Space::Param)?,
            "v2" => count = 2,
            "v4" => count = 4,
            "v8" => count = 8,
            other if bytes(other).is_some() && element.is_none() => element = bytes(other),
            "L1" | "L2" if !matches!(name, "ld" | "ldu" | "st" | "atom" | "red") => {}
            other if plain(other) => {}
            _ => return Err("the fence does not know one of the instruction's modifiers"),
        }
    }
    let last = instruction.modifiers().last().and_then(bytes);
    if last.is_none() && matches!(name, "ld" | "ldu" | "st") {
        return Err("the type does not stand last");
    }
    let hint = !matches!(name, "ld" | "ldu" | "st" | "atom" | "red");
    let element = element.or(hint.then_some(1)).ok_or("the instruction does not say what type it reaches")?;
    let fits = matches!(
        (name, space),
        ("ld" | "st", _) | (_, Some(Space::Global) | None) | ("atom" | "red", Some(Space::Shared))
    );
    if !fits {
        return Err("the fence does not know this instruction for this kind of memory");
    }
    Ok(vec![Access { operand: wanted[0], space, bytes: element * count }])
}

fn set(space: &mut Option<Space>, to: Space) -> Result<(), &'static str> {
    if space.replace(to).is_some() { Err("the instruction names two kinds of memory") } else { Ok(()) }
}

/// `cp.async` in its forms.
fn copies(instruction: &Instruction<'_>, found: &[usize]) -> Result<Vec<Access>, &'static str> {
    let shared = Access { operand: 0, space: Some(Space::Shared), bytes: 16 };
    let modifiers: Vec<&str> = instruction.modifiers().filter(|m| !m.starts_with("L2::")).collect();
    match (modifiers.as_slice(), found) {
        (["async", "commit_group" | "wait_group" | "wait_all"], []) => Ok(Vec::new()),
        (["async", "ca" | "cg", "shared" | "shared::cta", "global"], [0, 1]) => {
            Ok(vec![shared, Access { operand: 1, space: Some(Space::Global), bytes: 16 }])
        }
        (["async", "mbarrier", "arrive", .., "shared" | "shared::cta", "b64"], [0]) => Ok(vec![shared]),
        _ => Err("the fence does not know this form of copy"),
    }
}

/// Instructions that reach shared memory only, and have to say so.
fn in_shared(instruction: &Instruction<'_>, found: &[usize]) -> Result<Vec<Access>, &'static str> {
    if !found.is_empty() && !instruction.modifiers().any(|m| matches!(m, "shared" | "shared::cta")) {
        return Err("write `.shared` into the instruction: other memory cannot be fenced for it");
    }
    Ok(found.iter().map(|&operand| Access { operand, space: Some(Space::Shared), bytes: 1 }).collect())
}
