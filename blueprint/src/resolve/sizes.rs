//! Sizes of a blueprint, resolved: buffers in the order their sizes depend on each other, then each
//! expression into the shared table.

use super::Resolver;
use crate::blueprint::{BufferId, Role, WordRef};
use crate::error::Path;
use crate::format::{Blueprint, Sizing, Word};
use crate::hints::{listed, nearest};
use crate::limits;
use crate::size::{Node, Op, SizeId};

/// What has a size: the state, behind it the buffers, and behind these the sizes that have names of their own.
struct Declared<'a> {
    entries: Vec<&'a (String, Option<Sizing>)>,
    /// The id of the first one that has an id.
    first: usize,
    /// How many of the entries are state, and how many are state or buffers: these have ids.
    state: usize,
    buffers: usize,
}

/// Where state, buffers and sizes are written.
type Maps<'p> = [&'p Path<'p>; 3];

impl Declared<'_> {
    /// Where an entry is written.
    fn map_of<'p>(&self, at: usize, [state, buffers, sizes]: Maps<'p>) -> &'p Path<'p> {
        match at {
            at if at < self.state => state,
            at if at < self.buffers => buffers,
            _ => sizes,
        }
    }
}

impl<'a> Resolver<'a> {
    /// Resolves the sizes of state and buffers, and those that have names of their own.
    pub(super) fn declared_sizes(&mut self, flow: &'a Blueprint, root: &Path<'_>) {
        let state = flow.state.as_ref().map_or(&[][..], |state| &state.0);
        let buffers = flow.buffers.as_ref().map_or(&[][..], |buffers| &buffers.0);
        let named = flow.sizes.as_ref().map_or(&[][..], |sizes| &sizes.0);
        let first = self.buffers.len() - buffers.len() - state.len();
        let maps = [&root.key("state"), &root.key("buffers"), &root.key("sizes")];
        for (at, (name, _)) in named.iter().enumerate() {
            let place = &maps[2].key(name);
            self.check_name(name, place);
            if self.size_ids.insert(name, at).is_some() {
                self.twice(name, place);
            }
        }
        self.named_sizes = vec![None; named.len()];
        let entries = state.iter().chain(buffers).chain(named).collect();
        let declared = Declared { entries, first, state: state.len(), buffers: state.len() + buffers.len() };
        for at in self.size_order(&declared, maps) {
            let (name, sizing) = declared.entries[at];
            let place = &declared.map_of(at, maps).key(name);
            let size = sizing.as_ref().and_then(|sizing| self.size(sizing, place));
            if at >= declared.buffers {
                self.named_sizes[at - declared.buffers] = size;
                continue;
            }
            if let Some(bytes) = size.and_then(|size| self.sizes.table().constant(size))
                && bytes > limits::MEMORY_BYTES
            {
                let max = limits::MEMORY_BYTES;
                self.notes.note(place, format_args!("{bytes} bytes, expected at most {max}"));
            }
            self.buffers[first + at].size = size.unwrap_or_else(|| self.no_size());
        }
    }

    /// Stands for a size that could not be resolved. No blueprint comes of it.
    fn no_size(&mut self) -> SizeId {
        self.sizes.leaf(Node::Word(u32::MAX))
    }

    /// Positions among the entries, sorted so that an entry follows what its size uses. Does not recurse from one to the
    /// other: a chain of them may be as long as there are entries.
    fn size_order(&mut self, declared: &Declared<'a>, maps: Maps<'_>) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; declared.entries.len()];
        let mut order = Vec::with_capacity(declared.entries.len());
        // The entries being visited, each with the entries that it still has to visit.
        let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
        for root in 0..declared.entries.len() {
            let mut enter = (states[root] == State::New).then_some(root);
            loop {
                if let Some(at) = enter.take() {
                    states[at] = State::Open;
                    let mut uses = Vec::new();
                    if let Some(sizing) = &declared.entries[at].1 {
                        self.uses(sizing, declared, &mut uses);
                    }
                    open.push((at, uses));
                }
                let Some((at, uses)) = open.last_mut() else { break };
                match uses.pop() {
                    None => {
                        states[*at] = State::Done;
                        order.push(*at);
                        open.pop();
                    }
                    Some(used) if states[used] == State::New => enter = Some(used),
                    Some(used) if states[used] == State::Done => {}
                    Some(used) => {
                        let cycle = open.iter().map(|(at, _)| *at).skip_while(|&at| at != used);
                        let names = cycle.chain([used]).map(|at| declared.entries[at].0.as_str());
                        let names: Vec<&str> = names.collect();
                        self.notes.note(
                            &declared.map_of(used, maps).key(names[0]),
                            format_args!(
                                "its size depends on itself ({}), expected no cycle of `Sizeof`",
                                names.join(" → ")
                            ),
                        );
                        // Of its size nothing is known while the others' are resolved.
                        let unknown = self.no_size();
                        match used.checked_sub(declared.buffers) {
                            Some(named) => self.named_sizes[named] = Some(unknown),
                            None => self.buffers[declared.first + used].size = unknown,
                        }
                    }
                }
            }
        }
        order
    }

    /// The declared entries that an expression uses.
    fn uses(&self, sizing: &Sizing, declared: &Declared<'_>, uses: &mut Vec<usize>) {
        match sizing {
            Sizing::Sizeof(name) => {
                let used = self.buffer_ids.get(name.as_str());
                uses.extend(used.and_then(|id| id.index().checked_sub(declared.first)));
            }
            Sizing::Size(name) => {
                uses.extend(self.size_ids.get(name.as_str()).map(|at| declared.buffers + at));
            }
            Sizing::Absolute(_) | Sizing::FromInput(_) | Sizing::Free(_) => {}
            Sizing::Sub(pair) | Sizing::CeilDiv(pair) | Sizing::FloorDiv(pair) | Sizing::Mod(pair) => {
                self.uses(&pair.0, declared, uses);
                self.uses(&pair.1, declared, uses);
            }
            Sizing::Sum(operands)
            | Sizing::Product(operands)
            | Sizing::Min(operands)
            | Sizing::Max(operands) => {
                for operand in operands {
                    self.uses(operand, declared, uses);
                }
            }
        }
    }

    /// Resolves an expression.
    pub(super) fn size(&mut self, sizing: &Sizing, place: &Path<'_>) -> Option<SizeId> {
        self.size_within(sizing, place, 1)
    }

    /// Resolves an expression, a constant where there is none.
    pub(super) fn size_or(
        &mut self,
        default: u64,
        sizing: &Option<Sizing>,
        place: &Path<'_>,
    ) -> Option<SizeId> {
        match sizing {
            Some(sizing) => self.size(sizing, place),
            None => Some(self.constant(default)),
        }
    }

    fn size_within(&mut self, sizing: &Sizing, place: &Path<'_>, depth: usize) -> Option<SizeId> {
        if depth > limits::SIZING_DEPTH {
            let max = limits::SIZING_DEPTH;
            return self.wrong(place, format_args!("one more level of sizes, expected at most {max}"));
        }
        match sizing {
            Sizing::Sizeof(name) => {
                let id = self.buffer(name, &place.key("Sizeof"))?;
                Some(self.sizeof(id))
            }
            Sizing::Size(name) => self.named_size(name, &place.key("Size")),
            Sizing::Free(name) => {
                let size = self.free(name, place)?;
                self.free_used[self.free_ids[name.as_str()] as usize] = true;
                Some(size)
            }
            Sizing::Absolute(value) => Some(self.constant(*value)),
            Sizing::FromInput(word) => self.word(word, &place.key("FromInput")),
            Sizing::Sub(pair) => self.pair(Op::Sub, pair, &place.key("Sub"), depth),
            Sizing::CeilDiv(pair) => self.pair(Op::CeilDiv, pair, &place.key("CeilDiv"), depth),
            Sizing::FloorDiv(pair) => self.pair(Op::FloorDiv, pair, &place.key("FloorDiv"), depth),
            Sizing::Mod(pair) => self.pair(Op::Mod, pair, &place.key("Mod"), depth),
            Sizing::Sum(operands) => self.fold(Op::Add, operands, &place.key("Sum"), depth),
            Sizing::Product(operands) => self.fold(Op::Mul, operands, &place.key("Product"), depth),
            Sizing::Min(operands) => self.fold(Op::Min, operands, &place.key("Min"), depth),
            Sizing::Max(operands) => self.fold(Op::Max, operands, &place.key("Max"), depth),
        }
    }

    /// A free dimension.
    pub(super) fn free(&mut self, name: &str, place: &Path<'_>) -> Option<SizeId> {
        let found = self.free_ids.get(name).copied();
        if found.is_none() && !self.unsure.free {
            let known = self.free.iter().map(|name| &**name);
            let (near, known) = (nearest(name, known.clone()), listed(known));
            let message = format_args!(
                "unknown free dimension {name:?}{near}; expected one that is a dimension of an input in \
                 `blueprint.types`: {known}"
            );
            self.notes.note(&place.key("Free"), message);
        }
        Some(self.sizes.leaf(Node::Free(found?)))
    }

    /// A size that has a name of its own.
    fn named_size(&mut self, name: &str, place: &Path<'_>) -> Option<SizeId> {
        let Some(&at) = self.size_ids.get(name) else {
            let known = self.size_ids.keys().copied();
            let (near, known) = (nearest(name, known.clone()), listed(known));
            let message =
                format_args!("unknown size {name:?}{near}; expected one of `blueprint.sizes`: {known}");
            self.notes.note(place, message);
            return None;
        };
        self.named_sizes[at]
    }

    fn pair(&mut self, op: Op, (a, b): &(Sizing, Sizing), place: &Path<'_>, depth: usize) -> Option<SizeId> {
        let a = self.size_within(a, &place.index(0), depth + 1);
        let b = self.size_within(b, &place.index(1), depth + 1);
        self.binary(op, a?, b?, place)
    }

    fn fold(&mut self, op: Op, operands: &[Sizing], place: &Path<'_>, depth: usize) -> Option<SizeId> {
        let Some((first, rest)) = operands.split_first() else {
            return self.wrong(place, "an empty list, expected at least one size");
        };
        let mut result = self.size_within(first, &place.index(0), depth + 1);
        for (at, operand) in rest.iter().enumerate() {
            let operand = self.size_within(operand, &place.index(at + 1), depth + 1);
            result = match (result, operand) {
                (Some(result), Some(operand)) => self.binary(op, result, operand, place),
                _ => None,
            };
        }
        result
    }

    fn binary(&mut self, op: Op, a: SizeId, b: SizeId, place: &Path<'_>) -> Option<SizeId> {
        match self.sizes.binary(op, a, b, place) {
            Ok(size) => Some(size),
            Err(message) => self.wrong(place, message),
        }
    }

    pub(super) fn sizeof(&self, id: BufferId) -> SizeId {
        self.buffers[id.index()].size
    }

    fn word(&mut self, word: &Word, place: &Path<'_>) -> Option<SizeId> {
        let id = self.buffer(&word.bufname, &place.key("bufname"))?;
        if self.buffers[id.index()].role != Role::Input {
            let message = format_args!("{:?} is not an input, expected one", word.bufname);
            return self.wrong(&place.key("bufname"), message);
        }
        let last = limits::MEMORY_BYTES / 8 - 1;
        if word.idx > last {
            let message = format_args!("word {}, expected at most {last}", word.idx);
            return self.wrong(&place.key("idx"), message);
        }
        // Inputs come first among the buffers.
        let word = WordRef { input: id.0, index: word.idx };
        let at = match self.word_ids.get(&word) {
            Some(&at) => at,
            None => {
                if self.words.len() == limits::WORDS {
                    let max = limits::WORDS;
                    return self.wrong(place, format_args!("one more distinct word, expected at most {max}"));
                }
                let at = self.words.len() as u32;
                self.words.push(word);
                self.word_places.push(place.to_string().into());
                self.word_ids.insert(word, at);
                at
            }
        };
        Some(self.sizes.leaf(Node::Word(at)))
    }
}
