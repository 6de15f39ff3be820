//! Accesses that name no kind of memory get one, by where their addresses come from. Each register of a kernel, and what the
//! kernel keeps in memory of its own, is a node that gathers origins along moves and sums until nothing changes; the order of
//! statements plays no part, so a register that is used for pointers of two kinds is refused.

use std::collections::HashMap;

use super::access::accesses;
use super::body::{Body, Name, Reasons, Symbol, Symbols, made, word};
use super::write;
use crate::read::tree::{Instruction, Operand, Space, StatementKind, Word};
use crate::read::types::bytes;
use crate::refused::Refused;
use crate::window::AT;

/// Converted from or into global memory, or a variable of the module.
const GLOBAL: u8 = 1;
/// Converted from shared memory.
const SHARED: u8 = 2;
/// Converted from local memory.
const LOCAL: u8 = 4;
/// Converted from constants.
const CONST: u8 = 8;
/// Eight bytes of global memory, of constants or of a kernel's parameters: the host's pointers are global.
const LOADED: u8 = 16;

/// What becomes of origins on the way from one node to another.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// They stay.
    Copy,
    /// Not wide enough for what was only loaded.
    Narrow,
    /// The target is what lies at the address.
    Load,
    /// The target lies at the address from now on.
    Store,
}

/// Nodes and edges of a module.
#[derive(Default)]
struct Graph<'t> {
    nodes: HashMap<Word<'t>, usize>,
    origins: Vec<u8>,
    edges: Vec<Vec<(usize, Way)>>,
}

/// Gives every generic access of a function a space, or a reason why not.
pub(crate) fn origins<'t>(body: &mut Body<'t>, symbols: &Symbols<'t>, reasons: &mut Reasons) {
    let generic = body.statements.iter().any(|s| match &s.kind {
        StatementKind::Instruction(i) => accesses(i).is_ok_and(|a| a.iter().any(|a| a.space.is_none())),
        _ => false,
    });
    if !generic {
        return;
    }
    let mut graph = Graph::default();
    for statement in &body.statements {
        if let StatementKind::Instruction(instruction) = &statement.kind {
            graph.instruction(body, symbols, instruction);
        }
    }
    graph.settle();
    graph.rewrite(body, reasons);
}

impl<'t> Graph<'t> {
    fn node(&mut self, name: &Word<'t>) -> usize {
        let next = self.origins.len();
        let node = *self.nodes.entry(name.clone()).or_insert(next);
        if node == next {
            self.origins.push(0);
            self.edges.push(Vec::new());
        }
        node
    }

    fn seed(&mut self, names: &[Word<'t>], origin: u8) {
        for name in names {
            let node = self.node(name);
            self.origins[node] |= origin;
        }
    }

    /// Edges from all of one side to all of the other, through a node of their own: as many as there are names.
    fn join(&mut self, from: &[Word<'t>], to: &[Word<'t>], way: Way) -> usize {
        let sources: Vec<usize> = from.iter().map(|name| self.node(name)).collect();
        let targets: Vec<usize> = to.iter().map(|name| self.node(name)).collect();
        let middle = self.origins.len();
        self.origins.push(0);
        self.edges.push(targets.into_iter().map(|target| (target, Way::Copy)).collect());
        for source in sources {
            self.edges[source].push((middle, way));
        }
        middle
    }

    fn instruction(&mut self, body: &Body<'t>, symbols: &Symbols<'t>, i: &Instruction<'t>) {
        let name = i.name();
        let Some((first, rest)) = i.operands.split_first() else { return };
        let registers = |operands: &[Operand<'t>]| {
            let mut found = Vec::new();
            operands.iter().for_each(|o| words(o, &mut |w: &Word<'t>| found.push(w.clone())));
            found.retain(|w| body.is_register(w));
            found
        };
        let to = registers(std::slice::from_ref(first));
        let wide = i.modifiers().filter_map(bytes).all(|b| b >= 8);
        match name {
            "cvta" => {
                let into = i.has("to");
                let origin = match () {
                    () if i.has("global") => GLOBAL,
                    () if into => 0,
                    () if i.has("shared") || i.has("shared::cta") => SHARED,
                    () if i.has("local") => LOCAL,
                    () => CONST,
                };
                self.seed(&to, origin);
            }
            "mov" | "add" | "sub" | "and" | "or" | "xor" | "min" | "max" | "selp" | "slct" | "lop3"
            | "prmt" | "shfl" | "bfi" | "abs" | "not" | "cvt" => {
                let from = registers(rest);
                let narrow = matches!(name, "cvt") && !wide;
                self.join(&from, &to, if narrow { Way::Narrow } else { Way::Copy });
                let global = |o: &Operand<'t>| match o {
                    Operand::Word(w) | Operand::Sum(w, _) => {
                        matches!(symbols.names.get(w), Some(Symbol::Global(_))) && !body.names.contains_key(w)
                    }
                    _ => false,
                };
                if rest.iter().any(global) {
                    self.seed(&to, GLOBAL);
                }
            }
            "mad" | "fma" => {
                let from = registers(rest.last().map(std::slice::from_ref).unwrap_or_default());
                self.join(&from, &to, Way::Copy);
            }
            "st" if i.has("param") || i.has("param::func") => {
                if let Operand::Address(parameter, _) = first {
                    self.join(&registers(rest), std::slice::from_ref(parameter), Way::Copy);
                }
            }
            "ld" | "ldu" | "atom" | "st" if wide => self.reaches(body, i, &registers),
            _ => {}
        }
    }

    /// A load, a store or an atomic of eight bytes, which may be pointers.
    fn reaches(
        &mut self,
        body: &Body<'t>,
        i: &Instruction<'t>,
        registers: &dyn Fn(&[Operand<'t>]) -> Vec<Word<'t>>,
    ) {
        let Some(access) = accesses(i).ok().and_then(|a| a.first().copied()) else { return };
        let base = match &i.operands[access.operand] {
            Operand::Address(base, _) => Some(base.clone()),
            _ => None,
        };
        let loaded = registers(&i.operands[..access.operand]);
        let stored = registers(&i.operands[access.operand + 1..]);
        let memory = |space: &'static str| Word::from(space);
        match (access.space, base) {
            (Some(Space::Global | Space::Const), _) | (None, None) => self.seed(&loaded, LOADED),
            (Some(Space::Param), Some(base)) => {
                if body.function.entry && matches!(body.names.get(&base), Some(Name::Parameter(_))) {
                    self.seed(&loaded, LOADED);
                } else {
                    self.join(&[base], &loaded, Way::Copy);
                }
            }
            (Some(space @ (Space::Shared | Space::Local)), _) => {
                let node = self.node(&memory(if space == Space::Shared { "shared" } else { "local" }));
                let out = self.join(&[], &loaded, Way::Copy);
                self.edges[node].push((out, Way::Copy));
                let into = self.join(&stored, &[], Way::Copy);
                self.edges[into].push((node, Way::Copy));
            }
            (None, Some(base)) => {
                self.join(std::slice::from_ref(&base), &loaded, Way::Load);
                let value = self.join(&stored, &[], Way::Copy);
                let base = self.node(&base);
                self.edges[base].push((value, Way::Store));
            }
            _ => {}
        }
    }

    /// Follows edges until nothing changes: each node's set grows at most five times.
    fn settle(&mut self) {
        let memory = [(SHARED, "shared"), (LOCAL, "local")].map(|(bit, name)| (bit, self.node(&name.into())));
        let mut waiting: Vec<usize> = (0..self.origins.len()).filter(|n| self.origins[*n] != 0).collect();
        while let Some(node) = waiting.pop() {
            let origins = self.origins[node];
            for edge in 0..self.edges[node].len() {
                let (target, way) = self.edges[node][edge];
                let arrives = match way {
                    Way::Copy => origins,
                    Way::Narrow => origins & !LOADED,
                    Way::Load if origins & (GLOBAL | CONST | LOADED) != 0 => LOADED,
                    Way::Load | Way::Store => 0,
                };
                if self.origins[target] | arrives != self.origins[target] {
                    self.origins[target] |= arrives;
                    waiting.push(target);
                }
                // What lies in memory of the kernel's own is known by what functions put there.
                for (_, kept) in memory.iter().filter(|(bit, _)| origins & bit != 0) {
                    let (from, to) = match way {
                        Way::Load => (*kept, target),
                        Way::Store => (target, *kept),
                        _ => continue,
                    };
                    self.edges[from].push((to, Way::Copy));
                    if self.origins[to] | self.origins[from] != self.origins[to] {
                        self.origins[to] |= self.origins[from];
                        waiting.push(to);
                    }
                }
            }
        }
    }

    fn rewrite(&self, body: &mut Body<'t>, reasons: &mut Reasons) {
        let statements = std::mem::take(&mut body.statements);
        body.statements.reserve(statements.len());
        for mut statement in statements {
            let at = statement.at;
            if let StatementKind::Instruction(i) = &mut statement.kind
                && let Some(access) =
                    accesses(i).ok().and_then(|a| a.iter().find(|a| a.space.is_none()).copied())
            {
                let base = match &i.operands[access.operand] {
                    Operand::Address(base, _) => Some(base.clone()),
                    _ => None,
                };
                let register = base.filter(|b| body.is_register(b));
                let origins = register.as_ref().map_or(GLOBAL, |r| self.origin(r));
                let reaches = matches!(i.name(), "ld" | "st");
                let mut convert = |i: &mut Instruction<'t>, opcode| {
                    if let (Some(register), Operand::Address(base, _)) =
                        (&register, &mut i.operands[access.operand])
                    {
                        body.statements.push(made(at, opcode, [word(AT), word(register.clone())]));
                        *base = AT.into();
                    }
                };
                match origins {
                    GLOBAL | LOADED | 17 => insert(i, ".global"),
                    SHARED => {
                        convert(i, "cvta.to.shared.u64");
                        insert(i, ".shared");
                    }
                    LOCAL if reaches => {
                        convert(i, "cvta.to.local.u64");
                        unordered(i, ".local");
                    }
                    CONST if i.name() == "ld" => {
                        convert(i, "cvta.to.const.u64");
                        unordered(i, ".const");
                    }
                    other => {
                        let refused = Refused::at(at, write::instruction(i), why(other));
                        reasons.push(refused.of(&body.function.name));
                    }
                }
            }
            body.statements.push(statement);
        }
    }

    fn origin(&self, name: &Word<'t>) -> u8 {
        self.nodes.get(name).map_or(0, |n| self.origins[*n])
    }
}

fn words<'t>(operand: &Operand<'t>, each: &mut impl FnMut(&Word<'t>)) {
    match operand {
        Operand::Word(w) | Operand::Sum(w, _) | Operand::Minus(w) => each(w),
        Operand::Pair(a, _) => each(a),
        Operand::Vector(members) => {
            for member in members {
                if let Operand::Word(w) = member {
                    each(w);
                }
            }
        }
        _ => {}
    }
}

fn why(origins: u8) -> &'static str {
    match origins {
        0 => {
            "the fence cannot tell what memory the address is of: it comes from no pointer. Use `ld.global` or the like"
        }
        CONST => "constants can only be reached by `ld.const`",
        LOCAL => "local memory can only be reached by `ld` and `st`",
        _ => "the address may be of more than one kind of memory: use `ld.global` or the like",
    }
}

/// Puts a space into an opcode, behind the words that stand before it.
fn insert(instruction: &mut Instruction<'_>, space: &str) {
    let place = instruction.name().len() + ordering(&instruction.opcode);
    instruction.opcode.to_mut().insert_str(place, space);
}

/// Puts a space into an opcode in place of the words that order it: nobody else writes that memory, and PTX before 9.1 knows no
/// such accesses to it.
fn unordered(instruction: &mut Instruction<'_>, space: &str) {
    let place = instruction.name().len();
    let words = ordering(&instruction.opcode);
    instruction.opcode.to_mut().replace_range(place..place + words, space);
}

/// Bytes of the words behind an opcode's name that order an access; a space stands behind them.
fn ordering(opcode: &str) -> usize {
    let words =
        ["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys"];
    let modifiers = opcode.split('.').skip(1);
    modifiers.take_while(|modifier| words.contains(modifier)).map(|modifier| 1 + modifier.len()).sum()
}
