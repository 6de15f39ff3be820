//! One function, from its first line to its last. `Ready` is what the line before has prepared; whatever stands in between
//! (a label, another instruction) takes that away again.
//!
//! ```text
//! Nothing ── fence ──▶ Fenced ── access to global memory ──▶ Nothing
//!         ── base, min, add ──▶ Clamped ── access to local memory ──▶ Nothing
//!         ── fuel ──▶ Spent ── branch backward ──▶ Nothing
//!         ── window stored as argument ──▶ Argument ── call ──▶ Nothing
//! ```

use std::collections::{HashMap, HashSet};

use super::lexer::{Line, decimal, inside, is_name, is_number, operands};
use super::rules::{self, Form, Space};
use super::{Names, Shape, Symbol, Unfenced, variable};

type Result<T> = std::result::Result<T, Unfenced>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Input,
    Output,
    /// Of a call: what is passed or comes back.
    Argument,
}

/// A parameter, whose bytes are stored from the first to the last.
#[derive(Clone, Copy)]
struct Parameter {
    role: Role,
    shape: Shape,
    /// Bytes stored so far, in the block with this number.
    until: u64,
    block: u32,
}

/// What the line before has prepared.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Ready {
    #[default]
    Nothing,
    Fenced,
    /// Bytes that an access at `%pappus_at` may have.
    Clamped(u64),
    Spent,
    Argument,
}

/// The body of one function while its lines are read.
#[derive(Default)]
struct Body<'m, 'a> {
    module: Option<&'m Names<'a>>,
    lines: &'m [Line<'a>],
    at: usize,
    ready: Ready,
    parameters: HashMap<&'a str, Parameter>,
    /// Blocks begin at labels: what was written earlier in a block, is written on every way to a line of the block.
    block: u32,
    /// True behind the first label, jump or end of a thread. What was written before that, is written for all lines.
    is_past_entry: bool,
    /// Registers: true if written for all lines, and the last block with a write.
    written: HashMap<&'a str, (bool, u32)>,
    labels: HashSet<&'a str>,
    jumps: Vec<(usize, &'a str)>,
    /// Numbers of fuel units: true if the check of the unit was seen.
    units: HashMap<&'a str, bool>,
    local: Option<(&'a str, u64)>,
    output: Option<&'a str>,
    has_fuel: bool,
    /// True if calls and loops are admitted: of a kernel, or behind a stop check.
    has_stop: bool,
    shares: bool,
}

/// Checks a body from the line behind its `{`. Returns how many lines, and true if the function reaches shared memory.
pub(super) fn check<'a>(
    module: &Names<'a>,
    is_kernel: bool,
    lines: &[Line<'a>],
    results: &[(&'a str, Shape)],
    inputs: &[(&'a str, Shape)],
) -> Result<(usize, bool)> {
    let mut body = Body { module: Some(module), lines, has_stop: is_kernel, ..Body::default() };
    results.iter().try_for_each(|(name, shape)| body.parameter(name, Role::Output, *shape))?;
    inputs.iter().try_for_each(|(name, shape)| body.parameter(name, Role::Input, *shape))?;
    body.output = results.first().map(|(name, _)| *name);
    let zeroes = body.prologue()?;
    let mut last = "";
    loop {
        match body.next()? {
            "}" => break,
            line => body.line(line)?,
        }
        last = body.lines[body.at - 1].text;
    }
    body.require(is_end(last), "the function goes on behind its last line")?;
    body.require(body.units.values().all(|is_checked| *is_checked), "fuel without its check")?;
    body.require(zeroes || !body.shares || !is_kernel, "shared memory is reached and was not zeroed")?;
    match body.jumps.iter().find(|(_, label)| !body.labels.contains(label)) {
        Some((line, label)) => Err(Unfenced::new(*line, format!("no label `{label}`"))),
        None => Ok((body.at, body.shares)),
    }
}

impl<'a> Body<'_, 'a> {
    fn refuse<T>(&self, what: &str) -> Result<T> {
        let line = self.lines.get(self.at.saturating_sub(1)).or(self.lines.last());
        Err(Unfenced::new(line.map_or(0, |line| line.number), what))
    }

    fn require(&self, holds: bool, what: &str) -> Result<()> {
        if holds { Ok(()) } else { self.refuse(what) }
    }

    fn next(&mut self) -> Result<&'a str> {
        self.at += 1;
        self.lines
            .get(self.at - 1)
            .map_or_else(|| self.refuse("the text ends in a function"), |line| Ok(line.text))
    }

    /// True if the next lines are these, which are taken.
    fn take(&mut self, lines: &[&str]) -> bool {
        let rest = self.lines.get(self.at..).unwrap_or_default();
        let is_next =
            rest.len() >= lines.len() && rest.iter().zip(lines).all(|(line, other)| line.text == *other);
        self.at += if is_next { lines.len() } else { 0 };
        is_next
    }

    /// What every body begins with. True if shared memory is zeroed.
    fn prologue(&mut self) -> Result<bool> {
        let is_kernel = self.has_stop;
        let has_registers = self.take(&rules::REGISTERS);
        self.require(has_registers, "the fence's registers are not declared first")?;
        while let Some(line) = self.lines.get(self.at).filter(|line| line.text.starts_with('.')) {
            self.at += 1;
            self.declaration(line.text)?;
        }
        let has_window = self.take(&[rules::WINDOW]);
        self.require(has_window, "the window is not loaded first")?;
        self.has_fuel = self.take(&[rules::REFUEL]);
        self.has_stop |= self.take(&rules::STOP);
        let zeroes = is_kernel && self.take(&rules::ZERO);
        let (name, bytes) = self.local.unwrap_or_default();
        for offset in (0..bytes).step_by(8) {
            let plus = if offset == 0 { String::new() } else { format!("+{offset}") };
            let is_next = self.take(&[&format!("st.local.b64 [{name}{plus}], 0;")]);
            self.require(is_next, "local memory is not zeroed first")?;
        }
        Ok(zeroes)
    }

    /// `.reg`, `.param` or `.local`, all in one scope: the compiler refuses a name that is declared twice there.
    fn declaration(&mut self, line: &'a str) -> Result<()> {
        let (kind, rest) = line.strip_suffix(';').and_then(|line| line.split_once(' ')).unwrap_or_default();
        match (kind, variable(rest)) {
            (".reg", _) => {
                let (kind, list) = rest.split_once(' ').unwrap_or_default();
                let is_type = kind == ".pred" || kind.strip_prefix('.').and_then(rules::bytes).is_some();
                let is_free = |item: &str| {
                    let (name, count) = item.split_once('<').unwrap_or((item, "1>"));
                    let is_count = count.strip_suffix('>').and_then(decimal).is_some();
                    is_count && is_name(name) && name.starts_with('%') && !rules::is_taken(name)
                };
                self.require(is_type && list.split(", ").all(is_free), "registers of an unknown form or name")
            }
            (".param", Some((name, shape, false))) => self.parameter(name, Role::Argument, shape),
            (".local", Some((name, shape, false))) => {
                let is_whole =
                    shape.bytes.is_multiple_of(8) && shape.align.is_multiple_of(8) && shape.align > 0;
                let is_fit = is_whole && shape.bytes <= rules::MOST_LOCAL && self.local.is_none();
                self.local = Some((name, shape.bytes));
                self.require(is_fit && self.is_new(name), "local memory of an unknown form or name")
            }
            _ => self.refuse("an unknown declaration"),
        }
    }

    /// True if nothing else of the function or module has a name, which is no register's.
    fn is_new(&self, name: &str) -> bool {
        let is_known =
            self.parameters.contains_key(name) || self.module.is_some_and(|module| module.contains_key(name));
        is_name(name) && !name.starts_with(['%', '$']) && !rules::is_taken(name) && !is_known
    }

    fn parameter(&mut self, name: &'a str, role: Role, shape: Shape) -> Result<()> {
        let is_window =
            name == "pappus_argument" && role == Role::Argument && shape == (Shape { bytes: 4, align: 4 });
        let is_free = is_window && !self.parameters.contains_key(name) || self.is_new(name);
        let is_local = self.local.is_some_and(|(local, _)| local == name);
        self.require(is_free && !is_local, &format!("`{name}` may not be declared here"))?;
        self.parameters.insert(name, Parameter { role, shape, until: 0, block: 0 });
        Ok(())
    }

    /// One line, or the several of a sequence.
    fn line(&mut self, line: &'a str) -> Result<()> {
        let ready = std::mem::take(&mut self.ready);
        match line {
            rules::FENCE => {
                self.read("%pappus_lo")?;
                self.write("%pappus_at");
                self.ready = Ready::Fenced;
            }
            rules::ARGUMENT => {
                self.store("pappus_argument", 0, 4, true)?;
                self.ready = Ready::Argument;
            }
            rules::SPEND => {
                let is_unit = self.take(&[rules::SPENT]) && self.has_fuel;
                let check = self.next()?.strip_prefix("@%pappus_out bra $pappus_check_");
                let number =
                    check.and_then(|rest| rest.strip_suffix(';')).filter(|_| is_unit).and_then(decimal);
                let on = self.next()?.strip_suffix(':').unwrap_or_default();
                let label = on.strip_prefix("$pappus_on_").unwrap_or_default();
                let is_new = self.units.insert(label, false).is_none();
                let is_whole = number.is_some() && decimal(label) == number && is_new;
                self.require(
                    is_whole,
                    "fuel in an unknown form, of the same number twice, or not filled at the entry",
                )?;
                self.ready = Ready::Spent;
            }
            _ => match (line.strip_suffix(':'), line.strip_suffix(';')) {
                (Some(label), _) => self.label(label)?,
                (_, Some(statement)) if self.clamped(statement) => {
                    self.read("%pappus_at")?;
                    self.write("%pappus_base");
                }
                (_, Some(statement)) => self.statement(statement, ready)?,
                _ => self.refuse("a line that is no statement")?,
            },
        }
        Ok(())
    }

    /// A label, or the whole check behind fuel that is spent.
    fn label(&mut self, label: &'a str) -> Result<()> {
        if let Some(number) = label.strip_prefix("$pappus_check_") {
            // Nothing falls into a check: who comes back is who left.
            let is_apart = self.at.checked_sub(2).is_some_and(|before| is_end(self.lines[before].text));
            let is_owed = self.units.insert(number, true) == Some(false) && is_apart;
            let back = format!("bra.uni $pappus_on_{number};");
            let is_check = is_owed && self.take(&rules::STOP) && self.take(&[rules::REFUEL, &back]);
            self.require(is_check, "not the check of fuel")?;
        } else {
            let is_free = is_name(label) && label.starts_with('$') && !rules::is_taken(label);
            let is_new = self.labels.insert(label);
            self.require(is_free && is_new, "a label of an unknown form, or a second time")?;
        }
        self.begin_block()
    }

    fn begin_block(&mut self) -> Result<()> {
        self.block += 1;
        self.end_entry()
    }

    /// The first line behind which not all others follow: a function's result was stored by now.
    fn end_entry(&mut self) -> Result<()> {
        if let Some(result) =
            self.output.filter(|_| !self.is_past_entry).and_then(|name| self.parameters.get(name))
        {
            self.require(result.until >= result.shape.bytes, "a result that is not stored at the entry")?;
        }
        self.is_past_entry = true;
        Ok(())
    }

    /// True if these lines make an address of an offset. Then an access may have the bytes between highest offset and end.
    fn clamped(&mut self, statement: &str) -> bool {
        let Some((name, bytes)) = self.local else { return false };
        let min = self.lines.get(self.at).map_or("", |line| line.text);
        let limit =
            min.strip_prefix("min.u64 %pappus_at, %pappus_at, ").and_then(|rest| rest.strip_suffix(';'));
        let room = limit.and_then(decimal).and_then(|limit| bytes.checked_sub(limit));
        let is_base = statement.strip_prefix("mov.b64 %pappus_base, ") == Some(name);
        match room.filter(|_| is_base && self.take(&[min, rules::REBASE])) {
            Some(room) => self.ready = Ready::Clamped(room),
            None => return false,
        }
        true
    }

    /// A register that is read: every way to this line has a write of the register.
    fn read(&self, name: &str) -> Result<()> {
        let is_written =
            self.written.get(name).is_some_and(|(always, block)| *always || *block == self.block);
        self.require(is_written, &format!("`{name}` is no register, or may be read before it is written"))
    }

    fn write(&mut self, name: &'a str) {
        let written = self.written.entry(name).or_default();
        *written = (written.0 || !self.is_past_entry, self.block);
    }

    /// A store to bytes of a result or of a call's parameter.
    fn store(&mut self, name: &str, offset: u64, bytes: u64, is_always: bool) -> Result<()> {
        let (block, end) = (self.block, offset.saturating_add(bytes));
        let Some(to) =
            self.parameters.get_mut(name).filter(|to| to.role != Role::Input && end <= to.shape.bytes)
        else {
            return self.refuse("a store outside of a parameter");
        };
        let until = if to.block == block { to.until } else { 0 };
        if is_always && offset <= until {
            (to.until, to.block) = (until.max(end), block);
        }
        Ok(())
    }

    /// The shape of a parameter that may be read: of the function, or of a call and stored before.
    fn stored(&self, name: &str) -> Result<Shape> {
        let is_stored = |from: &&Parameter| match from.role {
            Role::Input => true,
            Role::Output => false,
            Role::Argument => from.block == self.block && from.until >= from.shape.bytes,
        };
        let shape = self.parameters.get(name).filter(is_stored).map(|from| from.shape);
        shape.map_or_else(|| self.refuse(&format!("`{name}` is no parameter, or not stored before")), Ok)
    }

    /// An instruction.
    fn statement(&mut self, text: &'a str, ready: Ready) -> Result<()> {
        let (guard, rest) = match text.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
            Some((guard, rest)) => (Some(guard.strip_prefix('!').unwrap_or(guard)), rest),
            None => (None, text),
        };
        guard.map_or(Ok(()), |guard| self.read(guard))?;
        let (opcode, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let list = operands(rest);
        self.require(guard.is_none() || !opcode.ends_with(".uni"), "`.uni` with a guard")?;
        match (opcode, list.as_slice()) {
            ("bra" | "bra.uni", [label]) => {
                let is_backward = self.labels.contains(label);
                self.jumps.push((self.lines[self.at - 1].number, label));
                self.require(!is_backward || ready == Ready::Spent, "a branch backward without fuel")?;
                self.require(!is_backward || self.has_stop, "a function that loops, without its stop check")?;
                return self.end_entry();
            }
            ("call" | "call.uni", [.., name, passed]) if list.len() <= 3 => {
                let results = if list.len() == 3 { list[0] } else { "()" };
                self.require(guard.is_none() && ready == Ready::Argument, "a call without its window")?;
                return self.call(results, name, passed);
            }
            ("ret" | "ret.uni" | "exit" | "trap", []) => return self.end_entry(),
            _ => {}
        }
        let Some(form) = rules::form(opcode, list.len()) else {
            return self.refuse(&format!("`{opcode}` is not known here"));
        };
        self.shares |= form.shares;
        let mut spaces = form.spaces.iter();
        let mut written = Vec::new();
        for (nth, operand) in list.into_iter().enumerate() {
            let is_moved = nth == 1 && opcode.starts_with("mov.");
            if let Some(address) = inside(operand, '[', ']') {
                let is_placed = nth == usize::from(form.writes) + form.spaces.len() - spaces.len();
                let Some(space) = spaces.next().filter(|_| is_placed) else {
                    return self.refuse("an address without a state space, or at another place");
                };
                self.address(address, *space, &form, ready, guard.is_none())?;
            } else if form.writes && nth == 0 {
                let vector = inside(operand, '{', '}');
                for name in vector.map_or_else(|| operand.split("|"), |vector| vector.split(", ")) {
                    let is_free =
                        name == "_" || name.starts_with('%') && is_name(name) && !rules::is_guarded(name);
                    self.require(is_free, &format!("`{name}` may not be written"))?;
                    written.extend(Some(name).filter(|name| *name != "_"));
                }
            } else if !is_moved || !(rules::is_special(operand) || self.is_variable(operand)) {
                let names = inside(operand, '{', '}').unwrap_or(operand).split(", ");
                let mut registers = names.filter(|name| *name != "_" && !is_number(name));
                registers.try_for_each(|name| self.read(name.strip_prefix('!').unwrap_or(name)))?;
            }
        }
        self.require(spaces.next().is_none(), "an access without its address")?;
        // The carry is a register without a name.
        if opcode.starts_with("addc") || opcode.starts_with("subc") || opcode.starts_with("madc") {
            self.read(rules::CARRY)?;
        }
        written.extend(Some(rules::CARRY).filter(|_| opcode.contains(".cc.")));
        written.into_iter().filter(|_| guard.is_none()).for_each(|name| self.write(name));
        Ok(())
    }

    /// True if an operand is the address of a variable, or an address a plain offset behind.
    fn is_variable(&self, operand: &str) -> bool {
        let (name, offset) = operand.split_once('+').unwrap_or((operand, "0"));
        let symbol = self.module.and_then(|module| module.get(name));
        let is_local = self.local.is_some_and(|(local, _)| local == name);
        decimal(offset).is_some() && (is_local || matches!(symbol, Some(Symbol::Variable)))
    }

    /// An operand in brackets.
    fn address(
        &mut self,
        text: &'a str,
        space: Space,
        form: &Form,
        ready: Ready,
        is_always: bool,
    ) -> Result<()> {
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        let size =
            decimal(offset.strip_prefix('-').unwrap_or(offset)).filter(|size| *size <= rules::MOST_OFFSET);
        let Some(size) = size else { return self.refuse("an offset that is too far, or of an unknown form") };
        let from = if offset.starts_with('-') { u64::MAX } else { size };
        let end = from.saturating_add(form.bytes);
        match (space, self.local) {
            (Space::Global, _) => {
                let is_fenced = ready == Ready::Fenced && base == "%pappus_at";
                self.require(is_fenced, "an access without its fence")
            }
            (Space::Local, Some((name, bytes))) => {
                let is_fit =
                    matches!(ready, Ready::Clamped(room) if form.bytes <= room) && text == "%pappus_at";
                self.require(is_fit || (base == name && end <= bytes), "local memory out of its array")
            }
            (Space::Local, None) => self.refuse("local memory that is not declared"),
            (Space::Parameter, _) if form.writes => {
                let shape = self.stored(base)?;
                self.require(end <= shape.bytes, "a load outside of a parameter")
            }
            (Space::Parameter, _) => {
                self.require(base != "pappus_argument", "the window of a callee, in another form")?;
                self.store(base, from, form.bytes, is_always)
            }
            // The hardware bounds both.
            (Space::Shared | Space::Constant, _) if self.is_variable(base) => Ok(()),
            (Space::Shared | Space::Constant, _) => self.read(base),
        }
    }

    /// A call of a function that stands before this one, so that none calls itself.
    fn call(&mut self, results: &str, name: &str, passed: &'a str) -> Result<()> {
        let Some(Symbol::Function { results: given, inputs: taken, shares }) =
            self.module.and_then(|all| all.get(name))
        else {
            return self.refuse("a call of what is no function before");
        };
        let passed = inside(passed, '(', ')').map(operands).unwrap_or_default();
        let Some(("pappus_argument", passed)) = passed.split_last().map(|(last, rest)| (*last, rest)) else {
            return self.refuse("a call without its window");
        };
        let shapes: Result<Vec<Shape>> = passed.iter().map(|name| self.stored(name)).collect();
        let is_argument = |name: &&str| self.parameters.get(name).is_some_and(|of| of.role == Role::Argument);
        let mut is_same = shapes? == *taken && passed.iter().all(is_argument);
        let results = inside(results, '(', ')').map(operands).unwrap_or_default();
        is_same &= results.len() == given.len();
        for (name, shape) in results.into_iter().zip(given) {
            let result =
                self.parameters.get_mut(name).filter(|of| of.role == Role::Argument && of.shape == *shape);
            is_same &= result.is_some() && name != "pappus_argument";
            let block = self.block;
            result.into_iter().for_each(|result| (result.until, result.block) = (shape.bytes, block));
        }
        self.require(is_same, "a call with other parameters than declared")?;
        self.require(self.has_stop, "a function that calls others, without its stop check")?;
        self.shares |= shares;
        Ok(())
    }
}

/// True if no line follows the one that says this.
fn is_end(text: &str) -> bool {
    ["ret;", "ret.uni;", "exit;", "trap;"].contains(&text)
        || text.starts_with("bra ")
        || text.starts_with("bra.uni ")
}
