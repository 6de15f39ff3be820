//! Sizes of a blueprint, resolved: buffers in the order their sizes depend on each other, then each
//! expression into the shared table.

use super::Resolver;
use crate::blueprint::{BufferId, Role, WordRef};
use crate::error::Path;
use crate::format::{Sizing, Word};
use crate::hints::{listed, nearest};
use crate::limits;
use crate::read::Map;
use crate::size::{Node, Op, SizeId};

impl<'a> Resolver<'a> {
    pub(super) fn buffer_sizes(&mut self, buffers: &'a Map<Sizing>, map: &Path<'_>) {
        let first = self.buffers.len() - buffers.0.len();
        for at in self.size_order(buffers, first, map) {
            let (name, sizing) = &buffers.0[at];
            let place = &map.key(name);
            let size = sizing.as_ref().and_then(|sizing| self.size(sizing, place));
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

    /// Positions in `buffers`, sorted so that a buffer follows the buffers whose `Sizeof` it uses. Does not
    /// recurse from buffer to buffer: a chain of them may be as long as there are buffers.
    fn size_order(&mut self, buffers: &Map<Sizing>, first: usize, map: &Path<'_>) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; buffers.0.len()];
        let mut order = Vec::with_capacity(buffers.0.len());
        // The buffers being visited, each with the buffers that it still has to visit.
        let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
        for root in 0..buffers.0.len() {
            let mut enter = (states[root] == State::New).then_some(root);
            loop {
                if let Some(at) = enter.take() {
                    states[at] = State::Open;
                    let mut uses = Vec::new();
                    if let Some(sizing) = &buffers.0[at].1 {
                        self.sizeof_uses(sizing, first, &mut uses);
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
                        let names = cycle.chain([used]).map(|at| buffers.0[at].0.as_str());
                        let names: Vec<&str> = names.collect();
                        self.notes.note(
                            &map.key(names[0]),
                            format_args!(
                                "its size depends on itself ({}), expected no cycle of `Sizeof`",
                                names.join(" → ")
                            ),
                        );
                        // Of its size nothing is known while the others' are resolved.
                        self.buffers[first + used].size = self.no_size();
                    }
                }
            }
        }
        order
    }

    /// The declared buffers whose `Sizeof` an expression uses.
    fn sizeof_uses(&self, sizing: &Sizing, first: usize, uses: &mut Vec<usize>) {
        match sizing {
            Sizing::Sizeof(name) => {
                let used = self.buffer_ids.get(name.as_str());
                uses.extend(used.and_then(|id| id.index().checked_sub(first)));
            }
            Sizing::Absolute(_) | Sizing::FromInput(_) | Sizing::Free(_) => {}
            Sizing::Sub(pair) | Sizing::CeilDiv(pair) | Sizing::FloorDiv(pair) | Sizing::Mod(pair) => {
                self.sizeof_uses(&pair.0, first, uses);
                self.sizeof_uses(&pair.1, first, uses);
            }
            Sizing::Sum(operands)
            | Sizing::Product(operands)
            | Sizing::Min(operands)
            | Sizing::Max(operands) => {
                for operand in operands {
                    self.sizeof_uses(operand, first, uses);
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
