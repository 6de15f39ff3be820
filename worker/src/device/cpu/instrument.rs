//! Checks in front of every access to memory, for checked calls: each calls a function added to the module, which looks
//! the range up among the [bounds](super::bounds) of the launch. A range that is in none of them is written down and traps.
//!
//! ```text
//! … address value  i32.store offset=8      becomes
//! … address value  local.set V  8 4 column place  call check  local.get V  i32.store offset=8
//! ```
//! `check` returns the address that it was given. The *place* is where the access stands in the module as its author
//! made it: a byte of the content of its code section, which is how debug information counts.

use wasm_encoder::{BlockType, Encode, Function, InstructionSink, MemArg, ValType};
use wasmparser::{BinaryReader, BinaryReaderError, FunctionBody, Operator};

use super::bounds::{ENTRIES_AT, ENTRY_BYTES, FOR_LOADS, FOR_STORES, STRAY_AT};
use super::bulk;
use super::layout::CHECKS_AT;
use super::polls::poll;

/// The types of the functions that are added, as they lie in a type section: five i32 to one, and four i32 to none.
pub(super) const TYPES: [u8; 16] =
    [0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 0];
/// How many types there are, and which of them each function has.
pub(super) const TYPE_COUNT: u32 = 2;
pub(super) const FUNCTION_TYPES: [u32; 3] = [0, 1, 1];

/// Positions of the added functions, behind those of [`bulk`].
const CHECK: u32 = bulk::FUNCTIONS;
const CHECKED_FILL: u32 = CHECK + 1;
const CHECKED_COPY: u32 = CHECK + 2;

/// Locals that hold a value while the address below it is checked.
const KEEPERS: [ValType; 5] = [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128];

/// A load or a store.
#[derive(Debug, Clone, Copy)]
struct Access {
    bytes: u32,
    offset: u64,
    is_store: bool,
    /// What lies on the stack above the address.
    above: Option<ValType>,
}

/// What an instruction does with memory; none if it is neither a load nor a store.
fn access(operator: &Operator<'_>) -> Option<Access> {
    use Operator::*;
    use ValType::{F32, F64, I32, I64, V128};
    let load = |bytes, memarg: &wasmparser::MemArg, above| {
        Some(Access { bytes, offset: memarg.offset, is_store: false, above })
    };
    let store = |bytes, memarg: &wasmparser::MemArg, value| {
        Some(Access { bytes, offset: memarg.offset, is_store: true, above: Some(value) })
    };
    match operator {
        I32Load8S { memarg }
        | I32Load8U { memarg }
        | I64Load8S { memarg }
        | I64Load8U { memarg }
        | V128Load8Splat { memarg } => load(1, memarg, None),
        I32Load16S { memarg }
        | I32Load16U { memarg }
        | I64Load16S { memarg }
        | I64Load16U { memarg }
        | V128Load16Splat { memarg } => load(2, memarg, None),
        I32Load { memarg }
        | F32Load { memarg }
        | I64Load32S { memarg }
        | I64Load32U { memarg }
        | V128Load32Splat { memarg }
        | V128Load32Zero { memarg } => load(4, memarg, None),
        I64Load { memarg }
        | F64Load { memarg }
        | V128Load8x8S { memarg }
        | V128Load8x8U { memarg }
        | V128Load16x4S { memarg }
        | V128Load16x4U { memarg }
        | V128Load32x2S { memarg }
        | V128Load32x2U { memarg }
        | V128Load64Splat { memarg }
        | V128Load64Zero { memarg } => load(8, memarg, None),
        V128Load { memarg } => load(16, memarg, None),
        V128Load8Lane { memarg, .. } => load(1, memarg, Some(V128)),
        V128Load16Lane { memarg, .. } => load(2, memarg, Some(V128)),
        V128Load32Lane { memarg, .. } => load(4, memarg, Some(V128)),
        V128Load64Lane { memarg, .. } => load(8, memarg, Some(V128)),
        I32Store8 { memarg } => store(1, memarg, I32),
        I32Store16 { memarg } => store(2, memarg, I32),
        I32Store { memarg } => store(4, memarg, I32),
        I64Store8 { memarg } => store(1, memarg, I64),
        I64Store16 { memarg } => store(2, memarg, I64),
        I64Store32 { memarg } => store(4, memarg, I64),
        I64Store { memarg } => store(8, memarg, I64),
        F32Store { memarg } => store(4, memarg, F32),
        F64Store { memarg } => store(8, memarg, F64),
        V128Store { memarg } => store(16, memarg, V128),
        V128Store8Lane { memarg, .. } => store(1, memarg, V128),
        V128Store16Lane { memarg, .. } => store(2, memarg, V128),
        V128Store32Lane { memarg, .. } => store(4, memarg, V128),
        V128Store64Lane { memarg, .. } => store(8, memarg, V128),
        _ => None,
    }
}

/// The place of an instruction that may be checked; none for all others.
pub(super) fn place(operator: &Operator<'_>, at: usize, code_at: usize) -> Option<u32> {
    let is_bulk = matches!(operator, Operator::MemoryFill { .. } | Operator::MemoryCopy { .. });
    (is_bulk || access(operator).is_some()).then(|| (at - code_at) as u32)
}

/// A function's body with checks, and with polls if it is `interruptible`. `params` is how many parameters the function has, `functions` how many the module
/// defines, `code_at` where in the module the content of its code section begins.
pub(super) fn body(
    module: &[u8],
    body: &FunctionBody<'_>,
    params: u32,
    functions: u32,
    code_at: usize,
    interruptible: bool,
) -> Result<Vec<u8>, BinaryReaderError> {
    let range = body.range();
    let mut operators = body.get_operators_reader()?;
    let mut out = Vec::with_capacity(range.len() * 3);
    // The keepers are the last locals.
    let mut reader = BinaryReader::new(&module[range.clone()], range.start);
    let groups = reader.read_var_u32()?;
    (groups + KEEPERS.len() as u32).encode(&mut out);
    out.extend_from_slice(&module[reader.original_position()..operators.original_position()]);
    for keeper in KEEPERS {
        1u32.encode(&mut out);
        keeper.encode(&mut out);
    }
    let mut keepers_at = params;
    for group in body.get_locals_reader()? {
        keepers_at += group?.0;
    }
    poll(&mut InstructionSink::new(&mut out), interruptible);
    let mut copied = operators.original_position();
    while !operators.eof() {
        let (operator, at) = operators.read_with_offset()?;
        if matches!(operator, Operator::Loop { .. }) {
            out.extend_from_slice(&module[copied..operators.original_position()]);
            poll(&mut InstructionSink::new(&mut out), interruptible);
            copied = operators.original_position();
        }
        let Some(place) = place(&operator, at, code_at) else { continue };
        out.extend_from_slice(&module[copied..at]);
        copied = at;
        let mut code = InstructionSink::new(&mut out);
        match access(&operator) {
            Some(Access { bytes, offset, is_store, above }) => {
                let keeper = KEEPERS.iter().position(|keeper| Some(*keeper) == above);
                let keeper = keeper.map(|keeper| keepers_at + keeper as u32);
                keeper.map(|keeper| code.local_set(keeper));
                let column = if is_store { FOR_STORES } else { FOR_LOADS };
                code.i32_const(offset as i32)
                    .i32_const(bytes as i32)
                    .i32_const(column)
                    .i32_const(place as i32);
                code.call(functions + CHECK);
                keeper.map(|keeper| code.local_get(keeper));
            }
            None => {
                let is_fill = matches!(operator, Operator::MemoryFill { .. });
                code.i32_const(place as i32);
                code.call(functions + if is_fill { CHECKED_FILL } else { CHECKED_COPY });
                copied = operators.original_position();
            }
        }
    }
    out.extend_from_slice(&module[copied..range.end]);
    Ok(out)
}

/// The functions that are added, in the order of their positions.
pub(super) fn functions(functions: u32) -> [Function; 3] {
    [check(), checked_bulk(functions, bulk::FILL, false), checked_bulk(functions, bulk::COPY, true)]
}

/// `check(address, offset, bytes, column, place) -> address`.
fn check() -> Function {
    let [address, offset, bytes, column, place, at, low, high, middle] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut function = Function::new([(1, ValType::I64), (3, ValType::I32)]);
    let code = &mut function.instructions();
    let field = |at: u64| MemArg { offset: at, align: 0, memory_index: 0 };
    code.local_get(address).i64_extend_i32_u().local_get(offset).i64_extend_i32_u().i64_add().local_set(at);
    // `low` becomes the number of entries that begin at `at` or before.
    code.i32_const(0).i32_load(field(CHECKS_AT.into())).local_set(high);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(low).local_get(high).i32_ge_u().br_if(1);
    code.local_get(low).local_get(high).i32_add().i32_const(1).i32_shr_u().local_tee(middle);
    code.i32_const(ENTRY_BYTES as i32).i32_mul().i64_load32_u(field(ENTRIES_AT));
    code.local_get(at).i64_le_u().if_(BlockType::Empty);
    code.local_get(middle).i32_const(1).i32_add().local_set(low);
    code.else_().local_get(middle).local_set(high).end();
    code.br(0).end().end();
    // The last of them holds all of the range, or none does.
    code.block(BlockType::Empty);
    code.local_get(low).i32_eqz().br_if(0);
    code.local_get(at).local_get(bytes).i64_extend_i32_u().i64_add();
    code.local_get(low).i32_const(1).i32_sub().i32_const(ENTRY_BYTES as i32).i32_mul();
    code.local_get(column).i32_add().i64_load32_u(field(ENTRIES_AT)).i64_gt_u().br_if(0);
    code.local_get(address).return_().end();
    code.i32_const(0).local_get(at).i64_store(field(STRAY_AT));
    for (nth, local) in [bytes, place, column].into_iter().enumerate() {
        code.i32_const(0).local_get(local).i32_store(field(STRAY_AT + 8 + 4 * nth as u64));
    }
    code.unreachable().end();
    function
}

/// `checked_fill(to, byte, bytes, place)` or `checked_copy(to, from, bytes, place)`: checks, then what `bulk` has.
fn checked_bulk(functions: u32, bulk: u32, reads: bool) -> Function {
    let [to, from, bytes, place] = [0, 1, 2, 3];
    let mut function = Function::new([]);
    let code = &mut function.instructions();
    code.block(BlockType::Empty);
    code.local_get(bytes).i32_eqz().br_if(0);
    let ranges = [(to, FOR_STORES)].into_iter().chain(reads.then_some((from, FOR_LOADS)));
    for (start, column) in ranges {
        code.local_get(start).i32_const(0).local_get(bytes).i32_const(column).local_get(place);
        code.call(functions + CHECK).drop();
    }
    code.local_get(to).local_get(from).local_get(bytes).call(functions + bulk);
    code.end().end();
    function
}
