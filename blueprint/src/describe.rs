//! What `pappus function check` shows: buffers, memory and launches, as numbers where the sizes and
//! words they depend on are known and as expressions where they are not.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;

use crate::blueprint::{Blueprint, BufferId, Role, Step, WordRef};
use crate::error::Error;
use crate::expression::{Amount, Atoms, Sum};
use crate::layout;
use crate::size::{Node, Op, SizeId};
use crate::types::DType;

/// What is known before a call; anything may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Bytes of inputs, by name.
    pub inputs: HashMap<String, u64>,
    /// Bytes of weights, by name.
    pub weights: HashMap<String, u64>,
    /// Words of inputs, by the input's name and the word's index.
    pub words: HashMap<(String, u64), u64>,
    /// Free dimensions, by name.
    pub free: HashMap<String, u64>,
}

/// A function in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Inputs, weights and buffers, by [`BufferId`].
    pub buffers: Vec<BufferDescription>,
    /// Bytes of the pool that an invocation uses. As long as it is not known which buffers share memory, an upper limit.
    pub pool_bytes: Amount,
    /// The same if no buffers shared memory.
    pub unshared_pool_bytes: Amount,
    /// Bytes of the block that holds the weights.
    pub weight_bytes: Amount,
    /// Kernels that an invocation launches.
    pub launches: Amount,
}

/// A buffer in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BufferDescription {
    /// Its name.
    pub name: String,
    /// Where its contents come from.
    pub role: Role,
    /// True if the buffer's contents are part of the result.
    pub output: bool,
    /// Its bytes.
    pub bytes: Amount,
    /// The type of its elements, where the blueprint says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// Its dimensions, where the blueprint says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<Amount>>,
}

/// Describes a blueprint as far as it is known. Fails only where `known` names what is not there.
pub fn describe(blueprint: &Blueprint, known: &Known) -> Result<Description, Error> {
    check_names(blueprint, known)?;
    let mut describer = Describer { blueprint, known, atoms: Atoms::default(), values: Vec::new() };
    describer.evaluate();
    let launches = describer.launches(0..blueprint.steps.len());
    let unshared = describer.block(|role| role != Role::Weight);
    let shared = describer.shared(&unshared);
    let weights = describer.block(|role| role == Role::Weight);
    let Describer { atoms, values, .. } = describer;
    let amount = |id: SizeId| atoms.amount(&values[id.index()]);
    let buffers = blueprint.buffers.iter().map(|buffer| BufferDescription {
        name: buffer.name.clone(),
        role: buffer.role,
        output: buffer.output,
        bytes: amount(buffer.size),
        dtype: buffer.dtype,
        shape: buffer.shape.as_ref().map(|dims| dims.iter().map(|&dim| amount(dim)).collect()),
    });
    let unshared_pool_bytes = atoms.amount(&unshared);
    let pool_bytes = match shared {
        Some(bytes) => atoms.amount(&Sum::constant(bytes)),
        None => unshared_pool_bytes.at_most(),
    };
    Ok(Description {
        buffers: buffers.collect(),
        pool_bytes,
        unshared_pool_bytes,
        weight_bytes: atoms.amount(&weights),
        launches: atoms.amount(&launches),
    })
}

struct Describer<'a> {
    blueprint: &'a Blueprint,
    known: &'a Known,
    atoms: Atoms,
    /// By [`SizeId`].
    values: Vec<Sum>,
}

impl Describer<'_> {
    fn evaluate(&mut self) {
        let (blueprint, known) = (self.blueprint, self.known);
        let name = |id: BufferId| &blueprint.buffers[id.index()].name;
        let value = |atoms: &mut Atoms, known: Option<&u64>, text: String| match known {
            Some(&value) => Sum::constant(value),
            None => atoms.named(text),
        };
        self.values = evaluate(blueprint, &mut self.atoms, |atoms, leaf| match leaf {
            Leaf::Input(at) => {
                let name = name(blueprint.inputs[at]);
                value(atoms, known.inputs.get(name), format!("sizeof({name})"))
            }
            Leaf::Weight(at) => {
                let name = name(blueprint.weights[at]);
                value(atoms, known.weights.get(name), format!("sizeof({name})"))
            }
            Leaf::Word(word) => {
                let name = name(blueprint.inputs[word.input as usize]);
                value(atoms, known.words.get(&(name.clone(), word.index)), format!("{name}[{}]", word.index))
            }
            Leaf::Free(at) => {
                let name = &*blueprint.free[at];
                value(atoms, known.free.get(name), name.to_owned())
            }
            Leaf::TooLong(Some(buffer)) => atoms.named(format!("sizeof({})", name(BufferId(buffer as u32)))),
            Leaf::TooLong(None) => atoms.unreadable(),
        });
    }

    /// The bytes of a block that holds all buffers of some roles.
    fn block(&mut self, holds: impl Fn(Role) -> bool) -> Sum {
        let mut parts = Vec::new();
        for buffer in self.blueprint.buffers.iter().filter(|buffer| holds(buffer.role)) {
            let bytes = &self.values[buffer.size.index()];
            let aligned = self.atoms.aligned(bytes);
            parts.push(aligned.unwrap_or_else(|| self.atoms.unreadable()));
        }
        // As long as it gets: a line per buffer has been printed already.
        Sum::total(parts).unwrap_or_else(|| self.atoms.unreadable())
    }

    /// The bytes of a pool whose buffers may share memory, once they are known.
    fn shared(&self, unshared: &Sum) -> Option<u64> {
        let own_bytes = unshared.value()?;
        let value = |id: SizeId| self.values[id.index()].value();
        let shared = layout::share(self.blueprint, &layout::RULE, own_bytes, value).ok()?;
        Some(shared.map_or(own_bytes, |pool| pool.bytes))
    }

    fn launches(&mut self, range: Range<usize>) -> Sum {
        let steps = &self.blueprint.steps;
        let mut once = 0;
        let mut repeated = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let mut next = at + 1;
            match steps[at] {
                Step::Launch { .. } => once += 1,
                Step::Copy { .. } | Step::Fill { .. } => {}
                Step::Repeat { count, body } => {
                    next += body as usize;
                    let body = self.launches(at + 1..next);
                    let all = self.atoms.mul(&self.values[count.index()], &body);
                    repeated.push(all.unwrap_or_else(|| self.atoms.unreadable()));
                }
            }
            at = next;
        }
        repeated.push(Sum::constant(once));
        let sum = self.atoms.add(repeated);
        sum.unwrap_or_else(|| self.atoms.unreadable())
    }
}

/// What a size depends on besides other sizes: places among the blueprint's inputs, weights and free dimensions, and a word.
/// A size that is too long to write stands for itself, a buffer's by the place of that buffer.
pub(crate) enum Leaf {
    Input(usize),
    Weight(usize),
    Word(WordRef),
    Free(usize),
    TooLong(Option<usize>),
}

/// What every size of a blueprint is, by [`SizeId`], if its leaves are what `leaf` says.
pub(crate) fn evaluate(
    blueprint: &Blueprint,
    atoms: &mut Atoms,
    mut leaf: impl FnMut(&mut Atoms, Leaf) -> Sum,
) -> Vec<Sum> {
    // What to call a size that is too long to write.
    let mut names = HashMap::new();
    for (at, buffer) in blueprint.buffers.iter().enumerate() {
        names.entry(buffer.size.index()).or_insert(at);
    }
    let mut values: Vec<Sum> = Vec::with_capacity(blueprint.sizes.nodes().len());
    for (at, node) in blueprint.sizes.nodes().iter().enumerate() {
        let value = match *node {
            Node::Const(value) => Sum::constant(value),
            Node::Input(input) => leaf(atoms, Leaf::Input(input as usize)),
            Node::Weight(weight) => leaf(atoms, Leaf::Weight(weight as usize)),
            Node::Word(word) => leaf(atoms, Leaf::Word(blueprint.words[word as usize])),
            Node::Free(free) => leaf(atoms, Leaf::Free(free as usize)),
            Node::Binary(op, a, b) => match binary(atoms, op, &values[a.index()], &values[b.index()]) {
                Some(value) => value,
                None => leaf(atoms, Leaf::TooLong(names.get(&at).copied())),
            },
        };
        values.push(value);
    }
    values
}

fn binary(atoms: &mut Atoms, op: Op, a: &Sum, b: &Sum) -> Option<Sum> {
    match op {
        Op::Add => atoms.add([a.clone(), b.clone()]),
        Op::Sub => atoms.sub(a, b),
        Op::Mul => atoms.mul(a, b),
        Op::CeilDiv => atoms.ceil_div(a, b),
        Op::FloorDiv => atoms.floor_div(a, b),
        Op::Mod => atoms.modulo(a, b),
        Op::Min => atoms.min(a, b),
        Op::Max => atoms.max(a, b),
    }
}

/// A misspelt name must not pass for a size that is still unknown.
fn check_names(blueprint: &Blueprint, known: &Known) -> Result<(), Error> {
    let has = |ids: &[BufferId], name: &str| ids.iter().any(|id| blueprint.buffers[id.index()].name == name);
    for name in known.inputs.keys() {
        if !has(&blueprint.inputs, name) {
            return Err(Error::new(
                "blueprint.inputs",
                format_args!("a size for {name:?}, expected an input"),
            ));
        }
    }
    for name in known.weights.keys() {
        if !has(&blueprint.weights, name) {
            return Err(Error::new(
                "blueprint.weights",
                format_args!("a size for {name:?}, expected a weight"),
            ));
        }
    }
    for name in known.free.keys() {
        if !blueprint.free.iter().any(|free| **free == **name) {
            let message = format!("a value for {name:?}, expected a free dimension");
            return Err(Error::new("blueprint.types", message));
        }
    }
    for (name, index) in known.words.keys() {
        let is_read = |word: &&crate::WordRef| {
            word.index == *index && blueprint.buffers[word.input as usize].name == *name
        };
        if !blueprint.words.iter().any(|word| is_read(&word)) {
            let message =
                format!("a value for word {index} of {name:?}, expected a word that `FromInput` reads");
            return Err(Error::new("blueprint.inputs", message));
        }
    }
    Ok(())
}
