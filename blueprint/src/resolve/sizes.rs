//! Sizes of a blueprint, resolved: buffers in the order their sizes depend on each other, then each
//! expression into the shared table.

use super::Resolver;
use crate::blueprint::{BufferId, Role, WordRef};
use crate::error::{Error, Path};
use crate::format::{Map, Sizing, Word};
use crate::limits;
use crate::size::{Node, Op, SizeId};

impl<'a> Resolver<'a> {
    pub(super) fn buffer_sizes(&mut self, buffers: &'a Map<Sizing>, map: &Path<'_>) -> Result<(), Error> {
        let first = self.buffers.len() - buffers.0.len();
        for at in self.size_order(buffers, first, map)? {
            let (name, sizing) = &buffers.0[at];
            let place = &map.key(name);
            let size = self.size(sizing, place)?;
            match self.sizes.table().constant(size) {
                Some(bytes) if bytes > limits::MEMORY_BYTES => {
                    let max = limits::MEMORY_BYTES;
                    return Err(place.error(format_args!("{bytes} bytes, expected at most {max}")));
                }
                _ => self.buffers[first + at].size = size,
            }
        }
        Ok(())
    }

    /// Positions in `buffers`, each after those whose `Sizeof` it uses. Does not recurse from buffer
    /// to buffer: a chain of them may be as long as there are buffers.
    fn size_order(&self, buffers: &Map<Sizing>, first: usize, map: &Path<'_>) -> Result<Vec<usize>, Error> {
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
                    self.sizeof_uses(&buffers.0[at].1, first, &mut uses);
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
                        return Err(map.key(names[0]).error(format_args!(
                            "its size depends on itself ({}), expected no cycle of `Sizeof`",
                            names.join(" → ")
                        )));
                    }
                }
            }
        }
        Ok(order)
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
    pub(super) fn size(&mut self, sizing: &Sizing, place: &Path<'_>) -> Result<SizeId, Error> {
        self.size_within(sizing, place, 1)
    }

    /// Resolves an expression, 0 where there is none.
    pub(super) fn size_or_zero(
        &mut self,
        sizing: &Option<Sizing>,
        place: &Path<'_>,
    ) -> Result<SizeId, Error> {
        match sizing {
            Some(sizing) => self.size(sizing, place),
            None => Ok(self.zero()),
        }
    }

    fn size_within(&mut self, sizing: &Sizing, place: &Path<'_>, depth: usize) -> Result<SizeId, Error> {
        if depth > limits::SIZING_DEPTH {
            return Err(place
                .error(format_args!("one more level of sizes, expected at most {}", limits::SIZING_DEPTH)));
        }
        match sizing {
            Sizing::Sizeof(name) => Ok(self.sizeof(self.buffer(name, &place.key("Sizeof"))?)),
            Sizing::Free(name) => match self.free_ids.get(name.as_str()) {
                Some(&free) => Ok(self.sizes.leaf(Node::Free(free))),
                None => Err(place.key("Free").error(format_args!(
                    "unknown free dimension {name:?}, expected one that is a dimension of an input in \
                     `blueprint.types`"
                ))),
            },
            Sizing::Absolute(value) => Ok(self.sizes.leaf(Node::Const(*value))),
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

    fn pair(
        &mut self,
        op: Op,
        (a, b): &(Sizing, Sizing),
        place: &Path<'_>,
        depth: usize,
    ) -> Result<SizeId, Error> {
        let a = self.size_within(a, &place.index(0), depth + 1)?;
        let b = self.size_within(b, &place.index(1), depth + 1)?;
        self.sizes.binary(op, a, b, place)
    }

    fn fold(&mut self, op: Op, operands: &[Sizing], place: &Path<'_>, depth: usize) -> Result<SizeId, Error> {
        let Some((first, rest)) = operands.split_first() else {
            return Err(place.error("an empty list, expected at least one size"));
        };
        let mut result = self.size_within(first, &place.index(0), depth + 1)?;
        for (at, operand) in rest.iter().enumerate() {
            let operand = self.size_within(operand, &place.index(at + 1), depth + 1)?;
            result = self.sizes.binary(op, result, operand, place)?;
        }
        Ok(result)
    }

    pub(super) fn sizeof(&self, id: BufferId) -> SizeId {
        self.buffers[id.index()].size
    }

    fn word(&mut self, word: &Word, place: &Path<'_>) -> Result<SizeId, Error> {
        let id = self.buffer(&word.bufname, &place.key("bufname"))?;
        if self.buffers[id.index()].role != Role::Input {
            return Err(place
                .key("bufname")
                .error(format_args!("{:?} is not an input, expected one", word.bufname)));
        }
        let last = limits::MEMORY_BYTES / 8 - 1;
        if word.idx > last {
            return Err(place.key("idx").error(format_args!("word {}, expected at most {last}", word.idx)));
        }
        // Inputs come first among the buffers.
        let word = WordRef { input: id.0, index: word.idx };
        let at = match self.word_ids.get(&word) {
            Some(&at) => at,
            None => {
                if self.words.len() == limits::WORDS {
                    let max = limits::WORDS;
                    return Err(place.error(format_args!("one more distinct word, expected at most {max}")));
                }
                let at = self.words.len() as u32;
                self.words.push(word);
                self.word_places.push(place.to_string().into());
                self.word_ids.insert(word, at);
                at
            }
        };
        Ok(self.sizes.leaf(Node::Word(at)))
    }
}
