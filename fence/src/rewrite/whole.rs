//! Instructions that read registers of all lanes stand behind a look whether all lanes run: of lanes that have ended, or never
//! were, they would read what other kernels left. A thread ends there if not.
//!
//! The look counts lanes that run at that moment, so lanes that a branch parted are waited for first. In Triton's matmul and
//! attention ptxas 12.9 makes no `WARPSYNC` of the wait, and at most eight instructions of a kernel.

use super::body::{Body, made, number, word};
use super::fuel::guarded;
use crate::read::tree::{Instruction, Operand, Statement, StatementKind};
use crate::refused::Position;
use crate::window::{LO, OUT};

/// True if the instruction reads registers of lanes other than its own, whether they run or not.
pub(crate) fn gathers(i: &Instruction<'_>) -> bool {
    match i.name() {
        "mma" | "movmatrix" | "ldmatrix" | "stmatrix" => true,
        // A matrix in registers, or the sparse one's pattern.
        "wgmma" => {
            i.has("mma_async") && (i.has("sp") || matches!(i.operands.get(1), Some(Operand::Vector(_))))
        }
        _ => false,
    }
}

/// Puts the look in front of the first such instruction behind each label, branch and end.
pub(crate) fn whole(body: &mut Body<'_>) {
    let statements = std::mem::take(&mut body.statements);
    let mut looked = false;
    let mut all = Vec::with_capacity(statements.len());
    for statement in statements {
        match &statement.kind {
            StatementKind::Instruction(i) if gathers(i) => {
                if !looked {
                    all.extend(look(statement.at));
                }
                looked = true;
            }
            StatementKind::Instruction(i) => looked &= !matches!(i.name(), "bra" | "ret" | "exit" | "trap"),
            _ => looked = false,
        }
        all.push(statement);
    }
    body.statements = all;
}

/// Ends the thread where a lane of its warp does not run.
fn look<'t>(at: Position) -> [Statement<'t>; 4] {
    [
        made(at, "bar.warp.sync", [number(-1)]),
        made(at, "activemask.b32", [word(LO)]),
        made(at, "setp.ne.s32", [word(OUT), word(LO), number(-1)]),
        guarded(made(at, "exit", [])),
    ]
}
