//! Scopes to one flat list of statements: names of inner scopes are made unique, every name is looked up, labels that nothing
//! branches to are dropped. Scopes that declare arguments of a call stay.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::body::{Body, Name, Reasons, Symbols};
use super::write;
use crate::read::tree::{Function, Operand, Space, Statement, StatementKind, Variable, Word};
use crate::refused::{Position, Refused};

/// What one scope declares, by the name in the source.
#[derive(Default)]
struct Scope<'t> {
    number: usize,
    registers: HashMap<Word<'t>, (&'t str, Option<u64>)>,
    others: HashMap<Word<'t>, Name>,
    kept: bool,
}

/// What a name is.
enum Found<'t> {
    Register(Word<'t>, &'t str),
    Other(Word<'t>, Name),
    Module,
    Special,
    Nothing,
}

struct Flatten<'a, 't> {
    symbols: &'a Symbols<'t>,
    prefix: &'a str,
    body: Body<'t>,
    scopes: Vec<Scope<'t>>,
    used_labels: HashSet<Word<'t>>,
    reasons: &'a mut Reasons,
    unknown: Option<Word<'t>>,
}

/// Flattens a function. No name of the module has `prefix` in it.
pub(crate) fn flatten<'t>(
    mut function: Function<'t>,
    symbols: &Symbols<'t>,
    prefix: &str,
    reasons: &mut Reasons,
) -> Body<'t> {
    let statements = std::mem::take(&mut function.body);
    let mut names = HashMap::new();
    for parameter in &function.parameters {
        names.insert(parameter.name.clone(), Name::Parameter(parameter.size));
    }
    for parameter in &function.returns {
        names.insert(parameter.name.clone(), Name::Return(parameter.size));
    }
    let mut scopes = declared(&statements);
    if let Some(outer) = scopes.first_mut() {
        for (name, kind) in &names {
            outer.others.insert(name.clone(), *kind);
        }
    }
    let body = Body {
        function,
        registers: Vec::new(),
        types: HashMap::new(),
        names,
        locals: Vec::new(),
        shared: Vec::new(),
        statements: Vec::new(),
        calls: Vec::new(),
        touches_shared: false,
        loops: false,
    };
    let mut pass = Flatten {
        symbols,
        prefix,
        body,
        scopes: Vec::new(),
        used_labels: HashSet::new(),
        reasons,
        unknown: None,
    };
    let mut flat = Vec::with_capacity(statements.len());
    let mut rest = scopes.into_iter();
    pass.scopes.extend(rest.next());
    for statement in statements {
        if let Some(statement) = pass.statement(statement, &mut rest) {
            flat.push(statement);
        }
    }
    let Flatten { mut body, used_labels, .. } = pass;
    flat.retain(|s| !matches!(&s.kind, StatementKind::Label(name) if !used_labels.contains(name)));
    body.statements = flat;
    body
}

/// What each scope declares, in the order in which scopes are opened.
fn declared<'t>(statements: &[Statement<'t>]) -> Vec<Scope<'t>> {
    let mut scopes = vec![Scope::default()];
    let mut open = vec![0];
    for statement in statements {
        let current = open.last().copied().unwrap_or(0);
        let count = scopes.len();
        let scope = &mut scopes[current];
        match &statement.kind {
            StatementKind::Open => {
                open.push(count);
                scopes.push(Scope { number: count, ..Scope::default() });
            }
            StatementKind::Close => {
                open.pop();
            }
            StatementKind::Label(name) => {
                scope.others.insert(name.clone(), Name::Label);
            }
            StatementKind::Table(name, targets) => {
                scope.others.insert(name.clone(), Name::Table(targets.len()));
            }
            StatementKind::Registers(kind, names) => {
                scope.registers.extend(names.iter().map(|(name, count)| (name.clone(), (*kind, *count))));
            }
            StatementKind::Variable(found) => {
                let name = match found.space {
                    Space::Param => Name::Argument(found.size),
                    Space::Local => Name::Local(0),
                    _ => Name::Shared,
                };
                scope.kept |= found.space == Space::Param && current != 0;
                scope.others.insert(found.name.clone(), name);
            }
            StatementKind::Instruction(_) => {}
        }
    }
    scopes
}

impl<'t> Flatten<'_, 't> {
    fn refuse(&mut self, at: Position, what: impl Into<String>, why: impl Into<String>) {
        let refused = Refused::at(at, what, why).of(self.body.function.name);
        self.reasons.push(refused);
    }

    /// The statement as it goes on; none for declarations and scopes that vanish.
    fn statement(
        &mut self,
        mut statement: Statement<'t>,
        scopes: &mut impl Iterator<Item = Scope<'t>>,
    ) -> Option<Statement<'t>> {
        let at = statement.at;
        let scope = self.scopes.last().map_or((0, false), |s| (s.number, s.kept));
        match &mut statement.kind {
            StatementKind::Open => {
                let scope = scopes.next()?;
                let kept = scope.kept;
                self.scopes.push(scope);
                return kept.then_some(statement);
            }
            StatementKind::Close => return self.scopes.pop().is_some_and(|s| s.kept).then_some(statement),
            StatementKind::Label(name) => {
                self.label_in_kept(at, name, scope.1);
                *name = self.renamed(name, scope.0, '$');
                if self.body.names.insert(name.clone(), Name::Label).is_some() {
                    self.refuse(at, name.to_string(), "this name is declared twice");
                }
            }
            StatementKind::Table(name, targets) => {
                self.label_in_kept(at, name, scope.1);
                *name = self.renamed(name, scope.0, '$');
                if self.body.names.insert(name.clone(), Name::Table(targets.len())).is_some() {
                    self.refuse(at, name.to_string(), "this name is declared twice");
                }
                for target in targets {
                    match self.find(target) {
                        Found::Other(new, Name::Label) => {
                            self.used_labels.insert(new.clone());
                            *target = new;
                        }
                        _ => self.refuse(at, target.to_string(), "no label is called so"),
                    }
                }
            }
            StatementKind::Registers(kind, names) => {
                for (name, count) in std::mem::take(names) {
                    let name = self.renamed(&name, scope.0, '%');
                    self.body.registers.push((kind, name, count));
                }
                return None;
            }
            StatementKind::Variable(_) => return self.variable(statement, scope.0),
            StatementKind::Instruction(instruction) => {
                self.unknown = None;
                if let Some((_, name)) = &mut instruction.guard {
                    self.resolve(name);
                }
                for operand in &mut instruction.operands {
                    self.operand(operand);
                }
                if let Some(unknown) = self.unknown.take() {
                    let text = write::instruction(instruction);
                    let why = if unknown.starts_with('%') {
                        format!(
                            "`{unknown}` is neither a declared register nor a special register that the fence admits"
                        )
                    } else {
                        format!("`{unknown}` is not declared")
                    };
                    self.refuse(at, text, why);
                    return None;
                }
            }
        }
        Some(statement)
    }

    fn label_in_kept(&mut self, at: Position, name: &str, kept: bool) {
        let used = !name.starts_with("$L__tmp");
        if (kept || self.scopes.iter().any(|s| s.kept)) && used {
            self.refuse(at, name, "a label cannot stand where the arguments of a call are put together");
        }
    }

    /// A variable of the function; only arguments of calls stay where they are.
    fn variable(&mut self, mut statement: Statement<'t>, scope: usize) -> Option<Statement<'t>> {
        let StatementKind::Variable(found) = &mut statement.kind else { return None };
        found.name = self.renamed(&found.name, scope, 'v');
        let (at, name) = (found.at, found.name.clone());
        let kind = match found.space {
            Space::Param => Name::Argument(found.size),
            Space::Local => Name::Local(self.body.locals.len()),
            _ => Name::Shared,
        };
        if found.initialised || (found.size == 0) {
            self.refuse(at, name.to_string(), "such variables have a size and no initial values");
        }
        if self.body.names.insert(name.clone(), kind).is_some() {
            self.refuse(at, name.to_string(), "this name is declared twice");
        }
        let list: &mut Vec<Variable<'t>> = match found.space {
            Space::Param => return Some(statement),
            Space::Local => &mut self.body.locals,
            _ => &mut self.body.shared,
        };
        list.push((**found).clone());
        None
    }

    fn operand(&mut self, operand: &mut Operand<'t>) {
        match operand {
            Operand::Number(_) | Operand::Absolute(_) => {}
            Operand::Word(name)
            | Operand::Sum(name, _)
            | Operand::Not(name)
            | Operand::Minus(name)
            | Operand::Address(name, _) => self.resolve(name),
            Operand::Pair(a, b) => {
                self.resolve(a);
                self.resolve(b);
            }
            // Members are never lists themselves.
            Operand::Vector(members) | Operand::List(members) => {
                for member in members {
                    self.operand(member);
                }
            }
        }
    }

    /// Replaces a name by the unique one; an unknown one is remembered.
    fn resolve(&mut self, name: &mut Word<'t>) {
        match self.find(name) {
            Found::Register(new, kind) => {
                if !self.body.types.contains_key(&new) {
                    self.body.types.insert(new.clone(), kind);
                }
                *name = new;
            }
            Found::Other(new, kind) => {
                if kind == Name::Label {
                    self.used_labels.insert(new.clone());
                }
                *name = new;
            }
            Found::Module | Found::Special => {}
            Found::Nothing => self.unknown = Some(name.clone()),
        }
    }

    fn find(&self, name: &Word<'t>) -> Found<'t> {
        for scope in self.scopes.iter().rev() {
            if let Some((kind, None)) = scope.registers.get(name) {
                return Found::Register(self.renamed(name, scope.number, '%'), kind);
            }
            if let Some(other) = scope.others.get(name) {
                let mark = if matches!(other, Name::Label | Name::Table(_)) { '$' } else { 'v' };
                return Found::Other(self.renamed(name, scope.number, mark), *other);
            }
            if let Some(kind) = in_range(scope, name) {
                return Found::Register(self.renamed(name, scope.number, '%'), kind);
            }
        }
        match self.symbols.names.get(name.as_ref()) {
            Some(_) => Found::Module,
            None if special(name) => Found::Special,
            None => Found::Nothing,
        }
    }

    fn renamed(&self, name: &Word<'t>, scope: usize, mark: char) -> Word<'t> {
        if scope == 0 {
            return name.clone();
        }
        let rest = name.trim_start_matches(['%', '$']);
        Cow::Owned(format!("{mark}{}{scope}_{rest}", self.prefix))
    }
}

/// The type of `%r7` where the scope declares `%r<9>`.
fn in_range<'t>(scope: &Scope<'t>, name: &str) -> Option<&'t str> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    for length in 1..=digits.min(9) {
        let (stem, number) = name.split_at(name.len() - length);
        if number.len() > 1 && number.starts_with('0') {
            continue;
        }
        if let Some((kind, Some(count))) = scope.registers.get(stem)
            && number.parse::<u64>().is_ok_and(|n| n < *count)
        {
            return Some(kind);
        }
    }
    None
}

/// True if the word is a special register, or another word of PTX, that tells a kernel nothing of others' memory.
fn special(name: &str) -> bool {
    let (stem, part) = name.split_once('.').unwrap_or((name, ""));
    match stem {
        "%tid" | "%ntid" | "%ctaid" | "%nctaid" | "%clusterid" | "%nclusterid" | "%cluster_ctaid"
        | "%cluster_nctaid" => matches!(part, "x" | "y" | "z"),
        "%laneid"
        | "%warpid"
        | "%nwarpid"
        | "%smid"
        | "%nsmid"
        | "%gridid"
        | "%cluster_ctarank"
        | "%cluster_nctarank"
        | "%is_explicit_cluster"
        | "%lanemask_eq"
        | "%lanemask_le"
        | "%lanemask_lt"
        | "%lanemask_ge"
        | "%lanemask_gt"
        | "%clock"
        | "%clock_hi"
        | "%clock64"
        | "%globaltimer"
        | "%globaltimer_lo"
        | "%globaltimer_hi"
        | "%total_smem_size"
        | "%aggr_smem_size"
        | "WARP_SZ"
        | "_" => part.is_empty(),
        _ => false,
    }
}
