//! The runs of one step: copies of inputs, buffers, and actions.
//!
//! ```text
//! for each run:  what it gets, copied if need be ─► its function's actions ─► with `each`: outputs, put side by side
//!                └── with `times`: again, over what was fed back, copied anew and cleared ──┘
//! ```

use std::collections::{HashMap, HashSet};

use super::dimensions::{Declared, Text};
use super::function::Function;
use super::rename::{Bytes, Renaming, Words, dimension, name_of};
use super::text::{Writer, copy};
use super::wiring::{From, Run};
use crate::blueprint::Role;
use crate::format::{self, Action, Fill, Sizing, Type};
use crate::read::List;
use crate::write::field;

/// An input of a step's function, as its runs have it.
enum Bound {
    /// The bytes where they are.
    Direct(String),
    /// A copy of its own for each run.
    Own,
    /// No bytes: only sizes ask for the input.
    Sizes(Bytes),
}

impl<'a> Writer<'a> {
    pub(super) fn step(&mut self, at: usize, step: &'a Run) -> Result<(), String> {
        let Some(function) = self.function(step) else { return Ok(()) };
        let kernels = self.kernels(step, function)?;
        let bound = self.bind(step, function);
        let mut stacked: Vec<String> = Vec::new();
        for item in 0..step.runs() {
            let prefix = match &step.items {
                Some(_) => format!("{}[{item}]", step.name),
                None => step.name.clone(),
            };
            let mut renaming = self.renaming(at, step, function, &bound, &kernels);
            self.declare(at, item, &prefix, step, function, &mut renaming)?;
            // What is read of this step's buffers by others.
            for (output, id) in function.blueprint.outputs.iter().enumerate() {
                let from = From::Output { step: at, output };
                let own = renaming.buffers[function.blueprint.buffers[id.index()].name.as_str()].clone();
                if step.items.is_none() {
                    self.places.insert(from, own);
                    continue;
                }
                if item == 0 {
                    let size =
                        Sizing::Product(vec![Sizing::Absolute(step.runs()), Sizing::Sizeof((&own).into())]);
                    let name = self.claimed.get(&from).cloned();
                    let name = name.unwrap_or_else(|| {
                        self.names.name(&format!("{}.{}", step.name, function.outputs.list[output]))
                    });
                    self.buffer(&name, &size)?;
                    self.stacked_type(at, step, function, output, &name);
                    self.places.insert(from, name.clone());
                    stacked.push(name);
                }
            }
            self.run(item, step, function, &bound, &renaming)?;
            for (output, id) in function.blueprint.outputs.iter().enumerate() {
                let Some(to) = stacked.get(output) else { continue };
                let own = &renaming.buffers[function.blueprint.buffers[id.index()].name.as_str()];
                let action = copy(own, None, to, Some(part(item, own)));
                self.action(&action)?;
            }
        }
        for (input, from) in step.inputs.iter().enumerate() {
            if let (Some(from), true) = (from, self.reaches(step, input))
                && let Some(uses) = self.uses.get_mut(from)
            {
                *uses = uses.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// How the runs of a step have its inputs.
    fn bind(&self, step: &Run, function: &Function) -> Vec<Bound> {
        let mut bound: Vec<Bound> = Vec::with_capacity(step.inputs.len());
        let mut here: HashMap<From, usize> = HashMap::new();
        for (input, from) in step.inputs.iter().enumerate() {
            if let (Some(from), true) = (from, self.reaches(step, input)) {
                *here.entry(*from).or_default() += 1;
            }
        }
        let all_here = here.clone();
        let mut direct: HashSet<From> = HashSet::new();
        for (input, from) in step.inputs.iter().enumerate() {
            let Some(from) = *from else { continue };
            let of = || self.places.get(&from).cloned().unwrap_or_default();
            let constant = match from {
                From::Constant(constant) => self.wiring.constants[constant].as_ref(),
                _ => None,
            };
            if !self.reaches(step, input) {
                bound.push(Bound::Sizes(match (constant, &step.items) {
                    (Some(array), Some(items)) if step.is_item(input) => {
                        Bytes::Number(array.bytes.len() as u64 / items.count)
                    }
                    (Some(array), _) => Bytes::Number(array.bytes.len() as u64),
                    (None, Some(items)) if step.is_item(input) => Bytes::Part(of(), items.count),
                    (None, _) => Bytes::Of(of()),
                }));
                continue;
            }
            // An input of which one time makes another is changed as well.
            let changes = function.changes[input] || step.feed.iter().any(|(_, fed)| *fed == input);
            let is_last = here.get_mut(&from).is_some_and(|left| {
                *left -= 1;
                *left == 0
            });
            let others = self.uses.get(&from).copied().unwrap_or_default();
            let in_this_step = all_here.get(&from).copied().unwrap_or_default();
            let is_free = is_last && others <= in_this_step && !direct.contains(&from);
            let may_be_direct = !changes || (is_free && step.times == 1 && step.items.is_none());
            bound.push(match may_be_direct && constant.is_none() && !step.is_item(input) {
                true => {
                    direct.insert(from);
                    Bound::Direct(of())
                }
                false => Bound::Own,
            });
        }
        bound
    }

    fn renaming<'r>(
        &self,
        at: usize,
        step: &'r Run,
        function: &'r Function,
        bound: &[Bound],
        kernels: &'r HashMap<&'r str, String>,
    ) -> Renaming<'r>
    where
        'a: 'r,
    {
        let mut renaming = Renaming {
            fit: self.fit,
            sizes: HashMap::new(),
            buffers: HashMap::new(),
            bytes: HashMap::new(),
            words: HashMap::new(),
            kernels,
            free: HashMap::new(),
        };
        for ((name, from), bound) in function.inputs.list.iter().zip(&step.inputs).zip(bound) {
            match bound {
                Bound::Direct(place) => {
                    renaming.buffers.insert(name, place.clone());
                }
                Bound::Sizes(bytes) => {
                    renaming.bytes.insert(name, bytes.clone());
                }
                Bound::Own => {}
            }
            let words = match from {
                Some(From::Input(own)) => Some(Words::Of(&self.wiring.inputs[*own])),
                Some(From::Constant(constant)) => self.wiring.constants[*constant].as_ref().map(Words::Known),
                _ => None,
            };
            if let Some(words) = words {
                renaming.words.insert(name, words);
            }
        }
        let free = function.blueprint.free.iter().zip(&self.fit.steps[at]);
        renaming.free = free.map(|(name, dim)| (&**name, dim.text)).collect();
        renaming
    }

    /// Declares the buffers, weights and sizes of one run.
    fn declare<'r>(
        &mut self,
        at: usize,
        item: u64,
        prefix: &str,
        step: &Run,
        function: &'r Function,
        renaming: &mut Renaming<'r>,
    ) -> Result<(), String> {
        let Some(flow) = &function.written.blueprint else { return Ok(()) };
        let blueprint = &function.blueprint;
        for (name, _) in flow.sizes.iter().flat_map(|sizes| &sizes.0) {
            let linked = self.size_names.name(&format!("{prefix}.{name}"));
            renaming.sizes.insert(name, linked);
        }
        let mut own = Vec::new();
        for (buffer, id) in blueprint.buffers.iter().zip(0..) {
            let name = buffer.name.as_str();
            let has_place = renaming.buffers.contains_key(name) || renaming.bytes.contains_key(name);
            if buffer.role == Role::Weight || has_place {
                continue;
            }
            let output = blueprint.outputs.iter().position(|output| output.index() == id);
            let claimed = output.and_then(|output| self.claimed.get(&From::Output { step: at, output }));
            let linked = match claimed.filter(|_| step.items.is_none()) {
                Some(name) => name.clone(),
                None => self.names.name(&format!("{prefix}.{name}")),
            };
            renaming.buffers.insert(name, linked);
            own.push((id, name));
        }
        self.weights(at, function, renaming)?;
        for (id, name) in own {
            let linked = renaming.buffers[name].clone();
            let size = match blueprint.buffers[id].role {
                Role::Input => self.input_size(step, id),
                _ => {
                    let written =
                        flow.buffers.iter().flat_map(|buffers| &buffers.0).nth(self.nth(function, id));
                    written.and_then(|(_, size)| size.as_ref()).map(|size| renaming.sizing(size))
                }
            };
            self.buffer(&linked, &size.unwrap_or(Sizing::Absolute(0)))?;
            let declared = function.declared(name).map(|declared| renaming.declared(declared));
            let output = blueprint.outputs.iter().position(|output| output.index() == id);
            let adopted = output.and_then(|output| self.adopted(at, output)).filter(|_| step.items.is_none());
            if let Some(declared) = declared
                .filter(|declared| declared.shape.is_some())
                .or(adopted)
                .or_else(|| function.declared(name).map(|declared| renaming.declared(declared)))
            {
                field(&linked, &declared, &mut self.type_text);
            }
        }
        for (name, size) in flow.sizes.iter().flat_map(|sizes| &sizes.0) {
            if let (Some(linked), Some(size)) = (renaming.sizes.get(name.as_str()), size) {
                field(linked, &renaming.sizing(size), &mut self.size_text);
            }
        }
        if item == 0 {
            self.dimensions(at, function, renaming);
        }
        self.check_length()
    }

    /// The place of a buffer in the function's list of buffers.
    fn nth(&self, function: &Function, id: usize) -> usize {
        id - function.blueprint.inputs.len() - function.blueprint.weights.len()
    }

    /// The type that only the first user of an output declares.
    fn adopted(&self, step: usize, output: usize) -> Option<Type> {
        let (user, input) = *self.fit.adopted.get(&From::Output { step, output })?;
        let run = &self.wiring.steps[user];
        let function = self.function(run).filter(|_| !run.is_item(input))?;
        let buffer = &function.blueprint.buffers[input];
        let id = function.blueprint.inputs[input];
        let shape = buffer.shape.as_ref().map(|shape| {
            let dims = (0..shape.len()).map(|dim| {
                let text = self.declared_text(user, function, id, dim);
                Some(dimension(self.fit, text))
            });
            List(dims.collect())
        });
        Some(Type { dtype: buffer.dtype?, shape })
    }

    pub(super) fn declared_text(
        &self,
        step: usize,
        function: &Function,
        buffer: crate::BufferId,
        dim: usize,
    ) -> Text {
        let size = function.blueprint.buffers[buffer.index()].shape.as_ref().map(|shape| shape[dim]);
        let free = size.and_then(|size| function.blueprint.sizes.free(size));
        let constant = size.and_then(|size| function.blueprint.sizes.constant(size));
        match (constant, free) {
            (Some(value), _) => Text::Number(value),
            (None, Some(nth)) => self.fit.steps[step][nth as usize].text,
            (None, None) => Text::Declared(Declared { step, buffer, dim }),
        }
    }

    /// Every dimension that the step's function computes, as a size that others name.
    fn dimensions(&mut self, at: usize, function: &Function, renaming: &Renaming<'_>) {
        let blueprint = &function.blueprint;
        for id in blueprint.inputs.iter().chain(&blueprint.outputs) {
            let buffer = &blueprint.buffers[id.index()];
            let shape = function.declared(&buffer.name).and_then(|declared| declared.shape.as_ref());
            // An input that is changed is among both.
            let is_again = buffer.role == Role::Input && !blueprint.inputs.contains(id);
            for (dim, size) in shape.iter().flat_map(|shape| shape.iter()).filter(|_| !is_again) {
                let text = self.declared_text(at, function, *id, dim);
                if let Text::Declared(declared) = text {
                    let name = self.size_names.name(&name_of(declared));
                    // The second of two that are one and the same has a name that nobody asks for.
                    if name == name_of(declared) {
                        field(&name, &renaming.sizing(size), &mut self.size_text);
                    }
                }
            }
        }
    }

    /// The bytes of a run's own copy of an input.
    fn input_size(&self, step: &Run, input: usize) -> Option<Sizing> {
        let from = step.inputs[input]?;
        let items = step.items.as_ref().filter(|_| step.is_item(input)).map(|items| items.count);
        Some(match from {
            From::Constant(constant) => {
                let bytes = self.wiring.constants[constant].as_ref()?.bytes.len() as u64;
                Sizing::Absolute(bytes / items.unwrap_or(1))
            }
            _ => {
                let place = self.places.get(&from)?.clone();
                match items {
                    Some(items) => Bytes::Part(place, items).sizing(),
                    None => Bytes::Of(place).sizing(),
                }
            }
        })
    }

    fn stacked_type(&mut self, at: usize, step: &Run, function: &Function, output: usize, name: &str) {
        let id = function.blueprint.outputs[output];
        let buffer = &function.blueprint.buffers[id.index()];
        let Some(dtype) = buffer.dtype else { return };
        let shape = buffer.shape.as_ref().map(|shape| {
            let dims = (0..shape.len()).map(|dim| self.declared_text(at, function, id, dim));
            let all = std::iter::once(Text::Number(step.runs())).chain(dims);
            List(all.map(|text| Some(dimension(self.fit, text))).collect())
        });
        field(name, &Type { dtype, shape }, &mut self.type_text);
    }

    /// The actions of one run.
    fn run(
        &mut self,
        item: u64,
        step: &Run,
        function: &'a Function,
        bound: &[Bound],
        renaming: &Renaming<'_>,
    ) -> Result<(), String> {
        let own = bound.iter().enumerate().filter(|(_, bound)| matches!(bound, Bound::Own));
        let own: Vec<usize> = own.map(|(input, _)| input).collect();
        for &input in &own {
            let action = self.brought(item, step, input, &function.inputs.list[input], renaming);
            action.map_or(Ok(()), |action| self.action(&action))?;
        }
        let flow = function.written.blueprint.as_ref().and_then(|flow| flow.control_flow.as_ref());
        for (_, action) in flow.iter().flat_map(|flow| flow.iter()) {
            self.action(&renaming.action(action))?;
        }
        if step.times == 1 {
            return Ok(());
        }
        let mut again: Vec<Action> = Vec::new();
        for &(output, input) in &step.feed {
            let (from, to) = (&function.outputs.list[output], &function.inputs.list[input]);
            let (from, to) = (renaming.buffers.get(from.as_str()), renaming.buffers.get(to.as_str()));
            if let (Some(from), Some(to)) = (from, to)
                && from != to
            {
                again.push(copy(from, None, to, None));
            }
        }
        for &input in &own {
            if step.feed.iter().all(|(_, fed)| *fed != input) {
                again.extend(self.brought(item, step, input, &function.inputs.list[input], renaming));
            }
        }
        for buffer in
            function.blueprint.buffers.iter().filter(|buffer| buffer.role == Role::Buffer && buffer.named)
        {
            let buffer = renaming.buffer(&buffer.name);
            again.push(Action::Fill(Fill { buffer, offset: None, bytes: None, byte: 0 }));
        }
        let body = flow.iter().flat_map(|flow| flow.iter()).map(|(_, action)| renaming.action(action));
        let body = again.into_iter().chain(body).map(Some).collect();
        let count = Some(Sizing::Absolute(step.times - 1));
        self.action(&Action::Repeat(format::Repeat { count, body: Some(List(body)) }))
    }

    /// Copies what comes to an input for a run; nothing where no bytes come.
    fn brought(
        &mut self,
        item: u64,
        step: &Run,
        input: usize,
        name: &str,
        renaming: &Renaming<'_>,
    ) -> Option<Action> {
        let to = renaming.buffers.get(name)?;
        if let Some(From::Constant(constant)) = step.inputs[input] {
            let array = self.wiring.constants[constant].as_ref()?;
            let start = self.constant_at(constant, &array.bytes);
            let items = step.items.as_ref().filter(|_| step.is_item(input));
            let bytes = array.bytes.len() as u64 / items.map_or(1, |items| items.count);
            let offset = Sizing::Absolute(start + if items.is_some() { item * bytes } else { 0 });
            let mut action = copy(&self.constants_name, Some(offset), to, None);
            if let Action::Copy(copy) = &mut action {
                copy.bytes = Some(Sizing::Absolute(bytes));
            }
            return (bytes > 0).then_some(action);
        }
        let from = self.places.get(&step.inputs[input]?)?;
        let Some(items) = step.items.as_ref().filter(|_| step.is_item(input)) else {
            return Some(copy(from, None, to, None));
        };
        let mut action = copy(from, Some(part(item, to)), to, None);
        if let Action::Copy(copy) = &mut action {
            // The last item is all that is left: bytes that make no whole items do not fit.
            copy.bytes = (item + 1 < items.count).then(|| Sizing::Sizeof(to.into()));
        }
        Some(action)
    }
}

/// Where an item begins in what all items are in, if each is as large as this buffer.
fn part(item: u64, buffer: &str) -> Sizing {
    Sizing::Product(vec![Sizing::Absolute(item), Sizing::Sizeof(buffer.into())])
}
