//! Instructions that only advise, or that the fence knows in another form: hints are dropped, a special register is moved into a
//! plain one before it is used, a table of labels becomes branches.

use std::collections::HashMap;

use super::body::{Body, Reasons, made, number, word};
use super::flatten::special;
use super::write;
use crate::read::tree::{Instruction, Operand, Statement, StatementKind, Word};
use crate::read::types::bytes;
use crate::refused::Refused;

/// Rewrites a function's instructions one by one.
pub(crate) fn simplify<'t>(body: &mut Body<'t>, prefix: &str) {
    let statements = std::mem::take(&mut body.statements);
    let mut plain = Vec::with_capacity(statements.len());
    let mut temporary = Temporary { prefix, words: 0, doubles: 0 };
    for mut statement in statements {
        if let StatementKind::Instruction(i) = &mut statement.kind {
            if advises(i) {
                continue;
            }
            hints(i);
            registers(i, statement.at, &mut temporary, &mut plain);
            if i.name() == "cvta"
                && matches!(i.operands.get(1), Some(Operand::Word(w)) if !body.types.contains_key(w))
                || matches!(i.operands.get(1), Some(Operand::Sum(..))) && i.name() == "cvta"
            {
                // The address first, then its conversion, both under the same predicate.
                let mut first = made(statement.at, "mov.u64", i.operands.clone());
                if let StatementKind::Instruction(first) = &mut first.kind {
                    first.guard.clone_from(&i.guard);
                }
                i.operands[1] = i.operands[0].clone();
                plain.push(first);
            }
        }
        plain.push(statement);
    }
    temporary.declare(body);
    body.statements = plain;
}

/// True if the instruction changes nothing that a kernel may rely on.
fn advises(i: &Instruction<'_>) -> bool {
    match i.name() {
        "applypriority" | "discard" | "nanosleep" | "prefetchu" | "setmaxnreg" => true,
        "createpolicy" => i.has("fractional"),
        _ => false,
    }
}

/// Drops parts of opcodes that only advise, and their operands; puts types last. A scope of a cluster becomes one that a launch without
/// clusters has.
fn hints(i: &mut Instruction<'_>) {
    let policy = i.has("L2::cache_hint");
    let guarded = i.guard.is_some();
    let name = i.name();
    let part = |part: &str| match (name, part) {
        (_, "L2::cache_hint") | ("ld", "lu") | ("cp", "L2::64B") => None,
        ("bra" | "ret", "uni") if guarded => None,
        ("ld" | "st" | "atom" | "red", "cluster") => Some("gpu".to_owned()),
        ("ld" | "st", "param::entry" | "param::func") => Some("param".to_owned()),
        ("mbarrier", "cluster") => Some("cta".to_owned()),
        ("prefetch", "L2::evict_last" | "L2::evict_normal") => Some("L2".to_owned()),
        _ => Some(part.to_owned()),
    };
    let mut kept: Vec<String> = i.opcode.split('.').filter_map(part).collect();
    if matches!(name, "atom" | "red") {
        // The type stands last, as everywhere else: `red.global.v2.f32.add` is `red.global.add.v2.f32`.
        kept.sort_by_key(|part| {
            u8::from(matches!(part.as_str(), "v2" | "v4" | "v8")) + 2 * u8::from(bytes(part).is_some())
        });
    }
    let kept = kept.join(".");
    let waits = name == "mbarrier" && i.has("try_wait") && i.operands.len() == 4;
    if policy || waits {
        i.operands.pop();
    }
    if kept != i.opcode {
        i.opcode = kept.into();
    }
}

/// Registers that hold special ones; their names contain the prefix.
struct Temporary<'a> {
    prefix: &'a str,
    words: usize,
    doubles: usize,
}

impl Temporary<'_> {
    fn declare(self, body: &mut Body<'_>) {
        for (count, kind, mark) in [(self.words, ".b32", 'w'), (self.doubles, ".b64", 'd')] {
            for n in 0..count {
                body.types.insert(format!("%{}_{mark}{n}", self.prefix).into(), kind);
            }
            if count > 0 {
                body.registers.push((kind, format!("%{}_{mark}", self.prefix).into(), Some(count as u64)));
            }
        }
    }
}

/// Special registers stand in `mov` only.
fn registers<'t>(
    i: &mut Instruction<'t>,
    at: crate::refused::Position,
    temporary: &mut Temporary<'_>,
    into: &mut Vec<Statement<'t>>,
) {
    let moves = i.name() == "mov";
    let (mut words, mut doubles) = (0, 0);
    for (nth, operand) in i.operands.iter_mut().enumerate() {
        let Operand::Word(name) = operand else { continue };
        if !name.starts_with('%') && name != "WARP_SZ" || !special(name) {
            continue;
        }
        match name.as_ref() {
            "%cluster_ctarank" => *operand = number(0),
            "%cluster_nctarank" => *operand = number(1),
            "WARP_SZ" => *operand = number(32),
            _ if moves && nth == 1 => {}
            wide => {
                let double = matches!(wide, "%clock64" | "%globaltimer");
                let (count, mark, opcode) =
                    if double { (&mut doubles, 'd', "mov.u64") } else { (&mut words, 'w', "mov.u32") };
                let new: Word<'t> = format!("%{}_{mark}{count}", temporary.prefix).into();
                *count += 1;
                into.push(made(at, opcode, [word(new.clone()), word(name.clone())]));
                *operand = word(new);
            }
        }
    }
    temporary.words = temporary.words.max(words);
    temporary.doubles = temporary.doubles.max(doubles);
}

/// Branches through a table become a tree of comparisons. An index beyond the table takes the last label.
pub(crate) fn tables<'t>(body: &mut Body<'t>, prefix: &str, reasons: &mut Reasons) {
    let mut tables: HashMap<Word<'t>, Vec<Word<'t>>> = HashMap::new();
    body.statements.retain_mut(|statement| match &mut statement.kind {
        StatementKind::Table(name, targets) => {
            tables.insert(name.clone(), std::mem::take(targets));
            false
        }
        _ => true,
    });
    if tables.is_empty() {
        return;
    }
    let case: Word<'t> = format!("%{}_case", prefix).into();
    body.registers.push((".pred", case.clone(), None));
    body.types.insert(case.clone(), ".pred");
    let statements = std::mem::take(&mut body.statements);
    let mut labels = 0;
    for statement in statements {
        let at = statement.at;
        let branch = match &statement.kind {
            StatementKind::Instruction(i) if i.name() == "brx" => match i.operands.as_slice() {
                [Operand::Word(index), Operand::Word(table)] => {
                    let targets = tables.remove(table);
                    if targets.is_none() {
                        let why =
                            "each `brx.idx` needs a table of its own, which stands in the same function";
                        reasons.push(Refused::at(at, write::instruction(i), why).of(&body.function.name));
                    }
                    targets.map(|t| (i.guard.clone(), index.clone(), t))
                }
                _ => None,
            },
            _ => None,
        };
        let Some((guard, index, targets)) = branch else {
            body.statements.push(statement);
            continue;
        };
        let mut label = || {
            labels += 1;
            Word::from(format!("${}_case{labels}", prefix))
        };
        let guarded = |negated, name: &Word<'t>, target: &Word<'t>| {
            let mut branch = made(at, "bra", [word(target.clone())]);
            if let StatementKind::Instruction(i) = &mut branch.kind {
                i.guard = Some((negated, name.clone()));
            }
            branch
        };
        let over = guard.as_ref().map(|_| label());
        if let (Some((negated, name)), Some(over)) = (&guard, &over) {
            body.statements.push(guarded(!negated, name, over));
        }
        // Ranges of targets that are left, each with the label where its comparison begins.
        let mut ranges = vec![(0, targets.len(), None)];
        while let Some((from, to, begin)) = ranges.pop() {
            if let Some(begin) = begin {
                body.statements.push(Statement { at, kind: StatementKind::Label(begin) });
            }
            if to - from <= 1 {
                let target = targets.get(from).cloned().unwrap_or_default();
                body.statements.push(made(at, "bra", [word(target)]));
                continue;
            }
            let middle = from + (to - from) / 2;
            let left = label();
            body.statements.push(made(
                at,
                "setp.lt.u32",
                [word(case.clone()), word(index.clone()), number(middle)],
            ));
            body.statements.push(guarded(false, &case, &left));
            ranges.push((from, middle, Some(left)));
            ranges.push((middle, to, None));
        }
        if let Some(over) = over {
            body.statements.push(Statement { at, kind: StatementKind::Label(over) });
        }
    }
}
