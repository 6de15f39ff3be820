//! One kernel, from its first line to its last. `Ready` is what the line before has prepared; whatever stands in between (a
//! label, another instruction) takes that away again.
//!
//! ```text
//! Nothing ── fence ──▶ Fenced ── access to global memory ──▶ Nothing
//!         ── base, min, add ──▶ Clamped ── access to local memory ──▶ Nothing
//!         ── fuel ──▶ Spent ── branch backward ──▶ Nothing
//! ```

use std::collections::{HashMap, HashSet};

use super::lexer::{Line, decimal, inside, is_name, is_number, operands};
use super::rules::{self, Form, Space};
use super::{Names, Unfenced, is_free, variable};

type Result<T> = std::result::Result<T, Unfenced>;

/// What the line before has prepared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Nothing,
    Fenced,
    /// Bytes that an access at `%pappus_at` may have.
    Clamped(u64),
    Spent,
}

/// The body of one kernel while its lines are read.
struct Body<'m, 'a> {
    names: &'m Names<'a>,
    /// Parameters and their bytes.
    inputs: &'m HashMap<&'a str, u64>,
    lines: &'m [Line<'a>],
    at: usize,
    ready: Ready,
    /// Blocks begin at labels: what was written earlier in a block, is written on every way to a line of the block.
    block: usize,
    /// True up to the first label, branch or end of a thread: what was written there, is written for all lines.
    is_entry: bool,
    /// True if all lanes of the warp run here.
    is_whole: bool,
    /// Registers: true if written for all lines, and the last block with a write.
    written: HashMap<&'a str, (bool, usize)>,
    labels: HashSet<&'a str>,
    jumps: Vec<(usize, &'a str)>,
    /// Numbers of fuel units: true if the check of the unit was seen.
    units: HashMap<&'a str, bool>,
    /// The array in local memory, and its bytes.
    local: Option<(&'a str, u64)>,
    has_fuel: bool,
    shares: bool,
}

/// Checks a body from the line behind its `{`. Returns how many lines.
pub(super) fn check<'a>(
    names: &Names<'a>,
    inputs: &HashMap<&'a str, u64>,
    lines: &[Line<'a>],
) -> Result<usize> {
    let (at, ready, block, is_entry, written) = (0, Ready::Nothing, 0, true, HashMap::new());
    let (labels, jumps, units, local) = (HashSet::new(), Vec::new(), HashMap::new(), None);
    let (has_fuel, shares, is_whole) = (false, false, false);
    #[rustfmt::skip]
    let mut body = Body {
        names, inputs, lines, at, ready, block, is_entry, written, labels, jumps, units, local, has_fuel, shares, is_whole,
    };
    let zeroes = body.prologue()?;
    while !body.take(&["}"]) {
        let line = body.next()?;
        body.line(line)?;
    }
    body.require(is_end(lines[body.at - 2].text), "the kernel goes on behind its last line")?;
    body.require(body.units.values().all(|is_checked| *is_checked), "fuel without its check")?;
    body.require(zeroes || !body.shares, "shared memory is reached and was not zeroed")?;
    match body.jumps.iter().find(|(_, label)| !body.labels.contains(label)) {
        Some((line, label)) => Err(Unfenced::new(*line, format!("no label `{label}`"))),
        None => Ok(body.at),
    }
}

impl<'a> Body<'_, 'a> {
    fn refuse<T>(&self, what: &str) -> Result<T> {
        let line = self.lines.get(self.at.saturating_sub(1)).or(self.lines.last());
        Err(Unfenced::new(line.map_or(1, |line| line.number), what))
    }

    fn require(&self, holds: bool, what: &str) -> Result<()> {
        if holds { Ok(()) } else { self.refuse(what) }
    }

    fn next(&mut self) -> Result<&'a str> {
        self.at += 1;
        let line = self.lines.get(self.at - 1);
        line.map_or_else(|| self.refuse("the text ends in a kernel"), |line| Ok(line.text))
    }

    /// True if the next lines are these, which are taken.
    fn take(&mut self, lines: &[&str]) -> bool {
        let rest = self.lines.get(self.at..).unwrap_or_default();
        let is_next = lines.len() <= rest.len() && lines.iter().zip(rest).all(|(line, at)| *line == at.text);
        self.at += if is_next { lines.len() } else { 0 };
        is_next
    }

    /// What every body begins with. True if shared memory is zeroed.
    fn prologue(&mut self) -> Result<bool> {
        let has_registers = self.take(&rules::REGISTERS);
        self.require(has_registers, "the fence's registers are not declared first")?;
        while let Some(line) = self.lines.get(self.at).filter(|line| line.text.starts_with('.')) {
            self.at += 1;
            self.declaration(line.text.strip_suffix(';').unwrap_or_default())?;
        }
        let has_window = self.take(&[rules::WINDOW]);
        self.require(has_window, "the window is not loaded first")?;
        self.has_fuel = self.take(&[rules::REFUEL]);
        let zeroes = self.take(&rules::ZERO);
        let (name, bytes) = self.local.unwrap_or_default();
        for offset in (0..bytes).step_by(8) {
            let plus = if offset == 0 { String::new() } else { format!("+{offset}") };
            let is_next = self.take(&[&format!("st.local.b64 [{name}{plus}], 0;")]);
            self.require(is_next, "local memory is not zeroed first")?;
        }
        Ok(zeroes)
    }

    /// `.reg` or `.local`, all in a single scope, where the compiler refuses a name declared twice.
    fn declaration(&mut self, line: &'a str) -> Result<()> {
        if let Some((name, bytes, align)) = line.strip_prefix(".local ").and_then(variable) {
            let is_whole = bytes > 0 && bytes.is_multiple_of(8) && align > 0 && align.is_multiple_of(8);
            let is_new = is_free(name) && !self.names.contains_key(name) && !self.inputs.contains_key(name);
            let is_fit = is_whole && is_new && bytes <= rules::MOST_LOCAL && self.local.is_none();
            self.local = Some((name, bytes));
            return self.require(is_fit, "local memory of an unknown form or name");
        }
        let (kind, list) =
            line.strip_prefix(".reg .").and_then(|rest| rest.split_once(' ')).unwrap_or_default();
        let is_register = |item: &str| {
            let (name, count) = item.split_once('<').unwrap_or((item, "1>"));
            let is_count = count.strip_suffix('>').and_then(decimal).is_some();
            is_count && is_name(name) && name.starts_with('%') && !rules::is_taken(name)
        };
        let is_known = (kind == "pred" || rules::bytes(kind).is_some()) && list.split(", ").all(is_register);
        self.require(is_known, "a declaration of an unknown form or name")
    }

    /// One line, or the several of a sequence.
    fn line(&mut self, line: &'a str) -> Result<()> {
        let ready = std::mem::replace(&mut self.ready, Ready::Nothing);
        if line == rules::FENCE {
            self.read("%pappus_lo")?;
            self.write("%pappus_at");
            self.ready = Ready::Fenced;
        } else if line == rules::WHOLE[0] && self.take(&rules::WHOLE[1..]) {
            self.write("%pappus_lo");
            self.is_whole = true;
        } else if line == rules::SPEND {
            self.spend()?;
        } else if let Some(label) = line.strip_suffix(':') {
            self.label(label)?;
        } else if let Some(room) = self.clamped(line) {
            self.read("%pappus_at")?;
            self.write("%pappus_base");
            self.ready = Ready::Clamped(room);
        } else {
            let Some(text) = line.strip_suffix(';') else {
                return self.refuse("a line that is no statement");
            };
            self.statement(text, ready)?;
        }
        Ok(())
    }

    /// A unit of fuel, up to the label behind. The block goes on: who comes back from the check is who left.
    fn spend(&mut self) -> Result<()> {
        let is_unit = self.take(&[rules::SPENT]) && self.has_fuel;
        let check = self.next()?.strip_prefix(rules::CHECK).and_then(|rest| rest.strip_suffix(';'));
        let on = self.next()?.strip_prefix("$pappus_on_").and_then(|rest| rest.strip_suffix(':'));
        let number = on.filter(|on| is_unit && check == Some(on) && decimal(on).is_some());
        let is_new = number.is_some_and(|number| self.units.insert(number, false).is_none());
        (self.ready, self.is_whole) = (Ready::Spent, false);
        self.require(is_new, "fuel in an unknown form, of the same number twice, or not filled at the entry")
    }

    /// A label, or the whole check behind fuel that is spent.
    fn label(&mut self, label: &'a str) -> Result<()> {
        if let Some(number) = label.strip_prefix("$pappus_check_") {
            let is_apart = self.at.checked_sub(2).is_some_and(|before| is_end(self.lines[before].text));
            let is_owed = is_apart && self.units.insert(number, true) == Some(false);
            let back = format!("bra.uni $pappus_on_{number};");
            let is_check = is_owed && self.take(&rules::STOP) && self.take(&[rules::REFUEL, &back]);
            self.require(is_check, "not the check of fuel, or behind a line that goes on")?;
        } else {
            let is_plain = is_name(label) && label.starts_with('$') && !rules::is_taken(label);
            let is_new = self.labels.insert(label);
            self.require(is_plain && is_new, "a label of an unknown form, or a second time")?;
        }
        (self.block, self.is_entry, self.is_whole) = (self.block + 1, false, false);
        Ok(())
    }

    /// The bytes from the highest offset to the array's end, if these lines make an address of an offset.
    fn clamped(&mut self, line: &str) -> Option<u64> {
        let base = line.strip_prefix(rules::BASE)?.strip_suffix(';')?;
        let (_, bytes) = self.local.filter(|(name, _)| *name == base)?;
        let min = self.lines.get(self.at)?.text;
        let limit = min.strip_prefix(rules::LEAST)?.strip_suffix(';').and_then(decimal)?;
        let room = bytes.checked_sub(limit)?;
        self.take(&[min, rules::REBASE]).then_some(room)
    }

    /// A register that is read: every way to this line has a write of the register.
    fn read(&self, name: &str) -> Result<()> {
        let is_written = self.written.get(name).is_some_and(|write| write.0 || write.1 == self.block);
        self.require(is_written, &format!("`{name}` is no register, or may be read before it is written"))
    }

    fn write(&mut self, name: &'a str) {
        let written = self.written.entry(name).or_default();
        *written = (written.0 || self.is_entry, self.block);
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
        let is_parting = ["bra", "bra.uni", "ret", "ret.uni", "exit", "trap"].contains(&opcode);
        (self.is_entry, self.is_whole) = (self.is_entry && !is_parting, self.is_whole && !is_parting);
        if let ("bra" | "bra.uni", [label]) = (opcode, list.as_slice()) {
            self.jumps.push((self.lines[self.at - 1].number, label));
            let is_backward = self.labels.contains(label);
            return self.require(!is_backward || ready == Ready::Spent, "a branch backward without fuel");
        }
        let Some(form) = rules::form(opcode, list.len()) else {
            return self.refuse(&format!("`{opcode}` is not known here"));
        };
        let is_gathering = rules::gathers(opcode, &list);
        let is_held = !is_gathering || (self.is_whole && guard.is_none());
        self.require(is_held, "registers of lanes that may not run")?;
        self.shares |= form.shares;
        let (mut spaces, mut written) = (form.spaces.iter(), Vec::new());
        for (nth, operand) in list.into_iter().enumerate() {
            let vector = inside(operand, '{', '}');
            if let Some(address) = inside(operand, '[', ']') {
                let is_placed = nth == usize::from(form.writes) + form.spaces.len() - spaces.len();
                let Some(space) = spaces.next().filter(|_| is_placed) else {
                    return self.refuse("an address without a state space, or at another place");
                };
                self.address(address, *space, &form, ready)?;
            } else if form.writes && nth == 0 {
                for name in vector.map_or_else(|| operand.split("|"), |vector| vector.split(", ")) {
                    let is_register = name.starts_with('%') && is_name(name) && !rules::is_guarded(name);
                    self.require(is_register || name == "_", &format!("`{name}` may not be written"))?;
                    written.push(name);
                }
            } else if !(nth == 1
                && opcode.starts_with("mov.")
                && (rules::is_special(operand) || self.is_variable(operand)))
            {
                let names = vector.unwrap_or(operand).split(", ");
                let mut names = names.filter(|name| *name != "_" && !is_number(name));
                names.try_for_each(|name| self.read(name.strip_prefix('!').unwrap_or(name)))?;
            }
        }
        self.require(spaces.next().is_none(), "an access without its address")?;
        if ["addc", "subc", "madc"].iter().any(|root| opcode.starts_with(root)) {
            self.read(rules::CARRY)?;
        }
        written.extend(opcode.contains(".cc.").then_some(rules::CARRY));
        written.into_iter().filter(|_| guard.is_none()).for_each(|name| self.write(name));
        Ok(())
    }

    /// True if an operand is the address of a variable, or an address a plain offset behind.
    fn is_variable(&self, operand: &str) -> bool {
        let (name, offset) = operand.split_once('+').unwrap_or((operand, "0"));
        let is_local = self.local.is_some_and(|(local, _)| local == name);
        decimal(offset).is_some() && (is_local || self.names.get(name) == Some(&true))
    }

    /// An operand in brackets.
    fn address(&self, text: &str, space: Space, form: &Form, ready: Ready) -> Result<()> {
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        let size = decimal(offset.strip_prefix('-').unwrap_or(offset)).filter(|it| *it <= rules::MOST_OFFSET);
        let Some(size) = size else { return self.refuse("an offset that is too far, or of an unknown form") };
        let from = if offset.starts_with('-') { u64::MAX } else { size };
        let is_inside = |bytes: u64| from.checked_add(form.bytes).is_some_and(|end| end <= bytes);
        match space {
            Space::Global => {
                self.require(ready == Ready::Fenced && base == "%pappus_at", "an access without its fence")
            }
            Space::Local => {
                let is_named = self.local.is_some_and(|(name, bytes)| name == base && is_inside(bytes));
                let is_fit = matches!(ready, Ready::Clamped(room) if form.bytes <= room);
                let is_clamped = is_fit && text == "%pappus_at";
                self.require(is_named || is_clamped, "local memory out of its array")
            }
            Space::Parameter => {
                let is_input = self.inputs.get(base).is_some_and(|bytes| is_inside(*bytes));
                self.require(is_input, "out of a parameter")
            }
            // The hardware bounds both.
            Space::Shared | Space::Constant if self.is_variable(base) => Ok(()),
            Space::Shared | Space::Constant => self.read(base),
        }
    }
}

/// True if a line ends the way of every thread: no thread goes on behind the line.
fn is_end(text: &str) -> bool {
    ["ret;", "ret.uni;", "exit;", "trap;"].contains(&text) || text.starts_with("bra")
}
