//! Scopes to one flat list of statements: names that are declared twice, or look like something else, are made unique, every name
//! is looked up, labels that nothing branches to are dropped, declarations are moved out of the statements.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::body::{Body, Name, Reasons, Symbols};
use super::write;
use crate::read::tree::{Function, Operand, Space, Statement, StatementKind, Word};
use crate::refused::{Position, Refused};

/// Registers of one declaration: what the name begins with, the type, how many there are if they are numbered.
struct Registers<'t> {
    stem: Word<'t>,
    kind: &'t str,
    count: Option<u64>,
}

/// What one scope declares, by the name in the source.
#[derive(Default)]
struct Scope<'t> {
    number: usize,
    registers: HashMap<Word<'t>, Registers<'t>>,
    others: HashMap<Word<'t>, (Word<'t>, Name)>,
}

/// What a name is.
enum Found<'t> {
    Register(Word<'t>, &'t str),
    Other(Word<'t>, Name),
    Module(Word<'t>),
    Special,
    Nothing,
}

/// Names that functions share while they are flattened.
pub(crate) struct Names<'a, 't> {
    /// Names outside of functions.
    pub(crate) symbols: &'a Symbols<'t>,
    /// What no name of the text contains.
    pub(crate) prefix: &'a str,
    /// Names outside of functions that functions moved there.
    pub(crate) moved: HashSet<Word<'t>>,
}

struct Flatten<'a, 'b, 't> {
    names: &'a mut Names<'b, 't>,
    body: Body<'t>,
    scopes: Vec<Scope<'t>>,
    used_labels: HashSet<Word<'t>>,
    reasons: &'a mut Reasons,
    unknown: Option<Word<'t>>,
}

/// Flattens a function.
pub(crate) fn flatten<'t>(
    mut function: Function<'t>,
    names: &mut Names<'_, 't>,
    reasons: &mut Reasons,
) -> Body<'t> {
    let statements = std::mem::take(&mut function.body);
    let body = Body {
        function,
        registers: Vec::new(),
        types: HashMap::new(),
        names: HashMap::new(),
        locals: Vec::new(),
        shared: Vec::new(),
        arguments: Vec::new(),
        statements: Vec::new(),
        calls: Vec::new(),
        touches_shared: false,
        loops: false,
    };
    let mut pass =
        Flatten { names, body, scopes: Vec::new(), used_labels: HashSet::new(), reasons, unknown: None };
    let scopes = pass.declared(&statements);
    let mut rest = scopes.into_iter();
    pass.scopes.extend(rest.next());
    let mut flat = Vec::with_capacity(statements.len());
    for statement in statements {
        flat.extend(pass.statement(statement, &mut rest));
    }
    let Flatten { mut body, used_labels, .. } = pass;
    flat.retain(|s| !matches!(&s.kind, StatementKind::Label(name) if !used_labels.contains(name)));
    body.statements = flat;
    body
}

impl<'t> Flatten<'_, '_, 't> {
    fn refuse(&mut self, at: Position, what: impl Into<String>, why: impl Into<String>) {
        let refused = Refused::at(at, what, why).of(&self.body.function.name);
        self.reasons.push(refused);
    }

    /// What each scope declares, in the order in which scopes are opened; parameters belong to the first.
    fn declared(&mut self, statements: &[Statement<'t>]) -> Vec<Scope<'t>> {
        let mut scopes = vec![Scope::default()];
        let mut open = vec![0];
        let mut function = std::mem::take(&mut self.body.function.parameters);
        for parameter in &mut function {
            parameter.name =
                self.declare(&mut scopes[0], parameter.at, &parameter.name, Name::Parameter(parameter.size));
        }
        self.body.function.parameters = function;
        let mut returns = std::mem::take(&mut self.body.function.returns);
        for parameter in &mut returns {
            parameter.name =
                self.declare(&mut scopes[0], parameter.at, &parameter.name, Name::Return(parameter.size));
        }
        self.body.function.returns = returns;
        let mut locals = 0;
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
                    self.declare(scope, statement.at, name, Name::Label);
                }
                StatementKind::Table(name, targets) => {
                    self.declare(scope, statement.at, name, Name::Table(targets.len()));
                }
                StatementKind::Registers(kind, names) => {
                    for (name, count) in names {
                        self.register(scope, statement.at, name, kind, *count);
                    }
                }
                StatementKind::Variable(found) => {
                    let kind = match found.space {
                        Space::Param => Name::Argument(found.size),
                        Space::Local => Name::Local(locals),
                        _ => Name::Shared,
                    };
                    locals += usize::from(found.space == Space::Local);
                    self.declare(scope, found.at, &found.name, kind);
                }
                StatementKind::Instruction(_) => {}
            }
        }
        scopes
    }

    /// Gives a name that is no register its place in a scope, and the name that it has from now on.
    fn declare(&mut self, scope: &mut Scope<'t>, at: Position, name: &Word<'t>, kind: Name) -> Word<'t> {
        let label = matches!(kind, Name::Label | Name::Table(_));
        let (fits, mark) = if label {
            (name.starts_with('$'), "$")
        } else {
            (!name.starts_with(['$', '%']) && !special(name), "v")
        };
        let mut new = name.clone();
        let known = self.names.symbols.names.contains_key(name) || self.names.moved.contains(name);
        if !fits || scope.number != 0 || self.body.names.contains_key(name) || (!label && known) {
            new = self.renamed(mark, scope.number, name);
            if kind == Name::Shared && self.names.moved.contains(&new) {
                new = Cow::Owned(format!("{new}_{}", self.names.moved.len()));
            }
        }
        if kind == Name::Shared {
            self.names.moved.insert(new.clone());
        }
        if scope.others.insert(name.clone(), (new.clone(), kind)).is_some() {
            self.refuse(at, name.to_string(), "this name is declared twice");
        }
        self.body.names.insert(new.clone(), kind);
        new
    }

    fn register(
        &mut self,
        scope: &mut Scope<'t>,
        at: Position,
        name: &Word<'t>,
        kind: &'t str,
        count: Option<u64>,
    ) {
        if special(name) || special(&format!("{name}.x")) {
            self.refuse(at, name.to_string(), "a special register is called so: choose another name");
        }
        if count.is_some() && name.ends_with(|c: char| c.is_ascii_digit()) {
            self.refuse(at, name.to_string(), "the name of numbered registers cannot end in a digit");
        }
        let fits = name.starts_with('%') && scope.number == 0;
        let stem = if fits { name.clone() } else { self.renamed("%", scope.number, name) };
        self.body.registers.push((kind, stem.clone(), count));
        if scope.registers.insert(name.clone(), Registers { stem, kind, count }).is_some() {
            self.refuse(at, name.to_string(), "this name is declared twice");
        }
    }

    fn renamed(&self, mark: &str, scope: usize, name: &str) -> Word<'t> {
        let rest = name.trim_start_matches(['%', '$']);
        Cow::Owned(format!("{mark}{}{scope}_{rest}", self.names.prefix))
    }

    /// The statement as it goes on; none for declarations and scopes, which vanish.
    fn statement(
        &mut self,
        mut statement: Statement<'t>,
        scopes: &mut impl Iterator<Item = Scope<'t>>,
    ) -> Option<Statement<'t>> {
        let at = statement.at;
        match &mut statement.kind {
            StatementKind::Open => {
                self.scopes.extend(scopes.next());
                return None;
            }
            StatementKind::Close => {
                self.scopes.pop();
                return None;
            }
            StatementKind::Registers(..) => return None,
            StatementKind::Label(name) => {
                if let Found::Other(new, _) = self.find(name) {
                    *name = new;
                }
            }
            StatementKind::Table(name, targets) => {
                if let Found::Other(new, _) = self.find(name) {
                    *name = new;
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
            StatementKind::Variable(found) => {
                if let Found::Other(new, _) = self.find(&found.name) {
                    found.name = new;
                }
                if found.initialised || found.size == 0 {
                    self.refuse(
                        at,
                        found.name.to_string(),
                        "such variables have a size and no initial values",
                    );
                }
                let list = match found.space {
                    Space::Param => &mut self.body.arguments,
                    Space::Local => &mut self.body.locals,
                    _ => &mut self.body.shared,
                };
                list.push((**found).clone());
                return None;
            }
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
            Found::Module(new) => *name = new,
            Found::Special => {}
            Found::Nothing => self.unknown = Some(name.clone()),
        }
    }

    fn find(&self, name: &Word<'t>) -> Found<'t> {
        for scope in self.scopes.iter().rev() {
            if let Some(Registers { stem, kind, count: None }) = scope.registers.get(name) {
                return Found::Register(stem.clone(), kind);
            }
            if let Some((new, kind)) = scope.others.get(name) {
                return Found::Other(new.clone(), *kind);
            }
            if let Some((new, kind)) = in_range(scope, name) {
                return Found::Register(new, kind);
            }
        }
        match self.names.symbols.new.get(name) {
            Some(new) => Found::Module(new.clone()),
            None if special(name) => Found::Special,
            None => Found::Nothing,
        }
    }
}

/// The new name and the type of `%r7` where the scope declares `%r<9>`.
fn in_range<'t>(scope: &Scope<'t>, name: &Word<'t>) -> Option<(Word<'t>, &'t str)> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    if digits == 0 {
        return None;
    }
    // The stem does not end in a digit, or its declaration was refused.
    let (stem, number) = name.split_at(name.len() - digits);
    let Registers { stem: new, kind, count: Some(count) } = scope.registers.get(stem)? else { return None };
    let plain = number.len() == 1 || !number.starts_with('0');
    if !plain || number.parse::<u64>().is_ok_and(|n| n >= *count) || number.len() > 9 {
        return None;
    }
    Some((if new == stem { name.clone() } else { Cow::Owned(format!("{new}{number}")) }, kind))
}

/// True if the word is a special register, or another word of PTX, that tells a kernel nothing of others' memory.
pub(crate) fn special(name: &str) -> bool {
    let (stem, part) = name.split_once('.').unwrap_or((name, ""));
    match stem {
        "%tid" | "%ntid" | "%ctaid" | "%nctaid" => matches!(part, "x" | "y" | "z"),
        "%laneid" | "%warpid" | "%nwarpid" | "%smid" | "%nsmid" | "%cluster_ctarank"
        | "%cluster_nctarank" | "%lanemask_eq" | "%lanemask_le" | "%lanemask_lt" | "%lanemask_ge"
        | "%lanemask_gt" | "%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo"
        | "%globaltimer_hi" | "%total_smem_size" | "%aggr_smem_size" | "%dynamic_smem_size" | "WARP_SZ"
        | "_" => part.is_empty(),
        _ => false,
    }
}
