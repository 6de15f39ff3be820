//! Types and shapes across the edges of a composition: what each free dimension of each step is, and what is declared of the
//! composition's own inputs.
//!
//! Sizes are compared as sums of products (`expression`): equal sums are equal for all calls. A free dimension of an input of
//! the composition may turn out to be a number, or another one; then all is compared anew, so that everyone knows it.

use std::collections::HashMap;

use super::dimensions::{Declared, Dim, Fit, Free, Known, Text};
use super::wiring::{From, Run, Wiring};
use crate::blueprint::{BufferId, Role};
use crate::describe::{Leaf, evaluate};
use crate::error::{Notes, Path};
use crate::expression::{Atom, Atoms, Sum};
use crate::limits;
use crate::size::SizeId;
use crate::types::DType;

/// What is known of the bytes of an edge.
#[derive(Debug, Clone)]
struct Typed {
    dtype: Option<DType>,
    shape: Option<Vec<Dim>>,
    bytes: Sum,
}

/// Compares all shapes, and notes what does not fit.
pub(super) fn fit(wiring: &Wiring, notes: &mut Notes<'_>) -> Fit {
    let mut fitter = Fitter {
        wiring,
        atoms: Atoms::default(),
        fit: Fit::default(),
        frees: HashMap::new(),
        free_atoms: HashMap::new(),
        names: HashMap::new(),
        values: Vec::new(),
        learnt: false,
        mistakes: Vec::new(),
    };
    for _ in 0..limits::LINKING_PASSES {
        fitter.pass();
        if !fitter.learnt {
            break;
        }
    }
    let root = Path::Root;
    let steps = &root.key("steps");
    if fitter.learnt {
        notes.note(steps, "dimensions depend on each other through too many steps, expected shapes in `types` of more functions");
    }
    for Mistake { step, key, message } in fitter.mistakes {
        let step = steps.index(step);
        match key {
            Some((key, name)) => notes.note(&step.key(key).key(&name), message),
            None => notes.note(&step, message),
        }
    }
    // A step of which nothing is known has a mistake, or needs one that has: no other step is checked against it.
    let unknown = fitter.values.iter().position(Option::is_none);
    if let Some(step) =
        unknown.filter(|_| !["inputs", "constants", "steps", "outputs"].iter().any(|key| notes.concern(key)))
    {
        notes.note(&steps.index(step), "its sizes cannot be told");
    }
    fitter.fit
}

struct Mistake {
    step: usize,
    /// A key of the step, and a name in it.
    key: Option<(&'static str, String)>,
    message: String,
}

struct Fitter<'w> {
    wiring: &'w Wiring,
    atoms: Atoms,
    fit: Fit,
    /// Free dimensions, by the input of the composition and its dimension.
    frees: HashMap<(usize, usize), usize>,
    free_atoms: HashMap<Atom, usize>,
    /// How many free dimensions there are of a name.
    names: HashMap<String, usize>,
    /// By step and size of its function; none where the step has mistakes.
    values: Vec<Option<Vec<Sum>>>,
    /// True if this pass told what a free dimension is.
    learnt: bool,
    /// Of this pass: some of an earlier one are none any more.
    mistakes: Vec<Mistake>,
}

/// Something that does not fit was noted, and more cannot be said.
struct Wrong;

impl Fitter<'_> {
    fn pass(&mut self) {
        self.learnt = false;
        self.mistakes.clear();
        self.values.clear();
        self.fit.adopted.clear();
        self.fit.steps.clear();
        self.fit.inputs = vec![(None, None); self.wiring.inputs.len()];
        for (at, step) in self.wiring.steps.iter().enumerate() {
            let known = self.step(at, step).ok();
            let (free, values) = known.unzip();
            self.fit.steps.push(free.unwrap_or_default());
            self.values.push(values);
        }
    }

    fn wrong<T>(
        &mut self,
        step: usize,
        key: Option<(&'static str, &str)>,
        message: String,
    ) -> Result<T, Wrong> {
        // More are not told.
        if self.mistakes.len() <= limits::MISTAKES {
            let key = key.map(|(key, name)| (key, name.to_owned()));
            self.mistakes.push(Mistake { step, key, message });
        }
        Err(Wrong)
    }

    /// The free dimensions and the sizes of a step.
    fn step(&mut self, at: usize, step: &Run) -> Result<(Vec<Dim>, Vec<Sum>), Wrong> {
        let wiring = self.wiring;
        let function = &wiring.functions[step.function.ok_or(Wrong)?];
        let blueprint = &function.blueprint;
        let froms: Option<Vec<From>> = step.inputs.iter().copied().collect();
        let froms = froms.ok_or(Wrong)?;
        let mut given = Vec::with_capacity(froms.len());
        for (input, from) in froms.iter().enumerate() {
            given.push(self.given(at, step, input, *from, &function.inputs.list[input])?);
        }
        // Free dimensions first: others may be computed from them.
        let mut free: Vec<Option<Dim>> = vec![None; blueprint.free.len()];
        for (input, typed) in given.iter().enumerate() {
            let Some(wanted) = &blueprint.buffers[input].shape else { continue };
            let name = ("inputs", &*function.inputs.list[input]);
            if let Some(shape) = &typed.shape
                && shape.len() != wanted.len()
            {
                let message = self.misfit(function, input, typed);
                return self.wrong(at, Some(name), message);
            }
            for (dim, size) in wanted.iter().enumerate() {
                let Some(nth) = blueprint.sizes.free(*size).map(|nth| nth as usize) else { continue };
                if free[nth].is_some() {
                    continue;
                }
                free[nth] = match (&typed.shape, froms[input]) {
                    (Some(shape), _) => Some(shape[dim].clone()),
                    (None, From::Input(own)) => {
                        let dim = dim + usize::from(step.is_item(input));
                        Some(self.new_free(at, own, dim, &blueprint.free[nth])?)
                    }
                    (None, _) => None,
                };
            }
        }
        let mut dims = Vec::with_capacity(free.len());
        for (nth, dim) in free.into_iter().enumerate() {
            let Some(dim) = dim else {
                let name = &blueprint.free[nth];
                let message = format!(
                    "the dimension `{name}` of {:?} is not known: what comes to it has no shape, expected one in its \
                     function's `types`",
                    function.name
                );
                return self.wrong(at, None, message);
            };
            dims.push(dim);
        }
        self.adopt(step, &froms, &dims);
        for (input, from) in froms.iter().enumerate() {
            given[input] = self.given(at, step, input, *from, &function.inputs.list[input])?;
        }
        let values = self.sizes(at, step, &froms, &given, &dims)?;
        let mut told = Vec::new();
        for (input, from) in froms.iter().enumerate() {
            // Another input of the step may have told its type meanwhile.
            let typed = self.given(at, step, input, *from, &function.inputs.list[input])?;
            self.compare(at, step, (input, *from), &typed, &values, &dims)?;
            if typed.shape.is_none() && blueprint.buffers[input].dtype.is_some() {
                told.push((*from, input));
            }
        }
        self.compare_fed(at, step, &given, &values)?;
        // Not before: what this step says of them is known once its sizes are.
        for (from, input) in told.into_iter().filter(|(from, _)| matches!(from, From::Output { .. })) {
            self.fit.adopted.entry(from).or_insert((at, input));
        }
        Ok((dims, values))
    }

    /// Shapes that a step is the first to declare of inputs of the composition, where no dimension is computed: so that bytes
    /// of those inputs are known by them.
    fn adopt(&mut self, step: &Run, froms: &[From], free: &[Dim]) {
        let wiring = self.wiring;
        let Some(function) = step.function.map(|function| &wiring.functions[function]) else { return };
        for (input, from) in froms.iter().enumerate() {
            let From::Input(own) = *from else { continue };
            let buffer = &function.blueprint.buffers[input];
            let plain = |size: &SizeId| {
                let sizes = &function.blueprint.sizes;
                let number = |value| Dim { sum: Sum::constant(value), text: Text::Number(value) };
                let free = || sizes.free(*size).map(|nth| free[nth as usize].clone());
                sizes.constant(*size).map(number).or_else(free)
            };
            let shape =
                buffer.shape.as_ref().map(|shape| shape.iter().map(plain).collect::<Option<Vec<_>>>());
            if let Some(Some(shape)) = shape {
                self.tell(own, step, input, buffer.dtype, Some(shape));
            }
        }
    }

    /// What an input of the composition is, unless an earlier step has told that.
    fn tell(&mut self, own: usize, step: &Run, input: usize, dtype: Option<DType>, shape: Option<Vec<Dim>>) {
        let known = &mut self.fit.inputs[own];
        known.0 = known.0.or(dtype);
        if known.1.is_none() {
            let items = step.items.as_ref().filter(|_| step.is_item(input));
            let first =
                items.map(|items| Dim { sum: Sum::constant(items.count), text: Text::Number(items.count) });
            known.1 = shape.map(|shape| first.into_iter().chain(shape).collect());
        }
    }

    /// What comes to an input: an item of it, if it consists of items.
    fn given(&mut self, at: usize, step: &Run, input: usize, from: From, name: &str) -> Result<Typed, Wrong> {
        let typed = self.typed(from)?;
        let Some(items) = step.items.as_ref().filter(|_| step.is_item(input)) else { return Ok(typed) };
        let count = Sum::constant(items.count);
        let Typed { dtype, shape, bytes } = typed;
        if let Some(shape) = &shape
            && !shape.first().is_some_and(|first| self.equal(&first.sum, &count))
        {
            let given = self.text(dtype, Some(shape));
            let message = format!("{} items are wanted along the first dimension, {given} came", items.count);
            return self.wrong(at, Some(("inputs", name)), message);
        }
        let shape = shape.map(|shape| shape[1..].to_vec());
        let bytes = match (dtype, &shape) {
            (Some(dtype), Some(shape)) => self.bytes(dtype, shape),
            _ => self.atoms.floor_div(&bytes, &count),
        };
        let bytes = bytes.unwrap_or_else(|| self.atoms.unreadable());
        Ok(Typed { dtype, shape, bytes })
    }

    fn bytes(&mut self, dtype: DType, shape: &[Dim]) -> Option<Sum> {
        let mut bytes = Sum::constant(dtype.bytes());
        for dim in shape {
            bytes = self.atoms.mul(&bytes, &dim.sum)?;
        }
        Some(bytes)
    }

    /// What an edge brings.
    fn typed(&mut self, from: From) -> Result<Typed, Wrong> {
        match from {
            From::Input(own) => {
                let (dtype, shape) = self.fit.inputs[own].clone();
                let told = match (dtype, &shape) {
                    // Dimensions that are computed from its own bytes do not tell them.
                    (Some(dtype), Some(shape))
                        if shape.iter().all(|dim| !matches!(dim.text, Text::Declared(_))) =>
                    {
                        self.bytes(dtype, shape)
                    }
                    _ => None,
                };
                let name = &self.wiring.inputs[own];
                let bytes = told.unwrap_or_else(|| self.atoms.named(format!("sizeof({name})")));
                Ok(Typed { dtype, shape, bytes })
            }
            From::Constant(constant) => {
                let array = self.wiring.constants[constant].as_ref().ok_or(Wrong)?;
                let dim = |value: &u64| Dim { sum: Sum::constant(*value), text: Text::Number(*value) };
                let shape = array.shape.iter().map(dim).collect();
                let bytes = Sum::constant(array.bytes.len() as u64);
                Ok(Typed { dtype: Some(array.dtype), shape: Some(shape), bytes })
            }
            From::Output { step, output } => self.output(step, output, from),
        }
    }

    fn output(&mut self, at: usize, output: usize, from: From) -> Result<Typed, Wrong> {
        let wiring = self.wiring;
        let step = &wiring.steps[at];
        let function = &wiring.functions[step.function.ok_or(Wrong)?];
        let id = function.blueprint.outputs[output];
        let buffer = &function.blueprint.buffers[id.index()];
        let mut typed =
            Typed { dtype: buffer.dtype, shape: self.dims(at, id)?, bytes: self.value(at, buffer.size)? };
        if let (None, Some(&(user, input))) = (&typed.shape, self.fit.adopted.get(&from)) {
            let run = &wiring.steps[user];
            let function = &wiring.functions[run.function.ok_or(Wrong)?];
            typed.dtype = typed.dtype.or(function.blueprint.buffers[input].dtype);
            typed.shape = self.dims(user, function.blueprint.inputs[input])?;
            // What the user declares is of an item, where it takes items.
            if run.is_item(input) {
                typed.shape = None;
            }
        }
        if let Some(items) = &step.items {
            let count = Sum::constant(items.count);
            let first = Dim { sum: count.clone(), text: Text::Number(items.count) };
            typed.shape = typed.shape.map(|shape| [vec![first], shape].concat());
            typed.bytes = self.atoms.mul(&count, &typed.bytes).unwrap_or_else(|| self.atoms.unreadable());
        }
        Ok(typed)
    }

    fn value(&self, step: usize, size: SizeId) -> Result<Sum, Wrong> {
        let values = self.values.get(step).and_then(Option::as_ref).ok_or(Wrong)?;
        Ok(values[size.index()].clone())
    }

    /// The dimensions that a step's function declares of a buffer.
    fn dims(&self, step: usize, id: BufferId) -> Result<Option<Vec<Dim>>, Wrong> {
        let run = &self.wiring.steps[step];
        let function = &self.wiring.functions[run.function.ok_or(Wrong)?];
        let Some(shape) = &function.blueprint.buffers[id.index()].shape else { return Ok(None) };
        let values = self.values.get(step).and_then(Option::as_ref).ok_or(Wrong)?;
        let dims = shape.iter().enumerate().map(|(dim, size)| {
            self.dim(values, &self.fit.steps[step], function, *size, Declared { step, buffer: id, dim })
        });
        Ok(Some(dims.collect()))
    }

    fn dim(
        &self,
        values: &[Sum],
        free: &[Dim],
        function: &super::function::Function,
        size: SizeId,
        declared: Declared,
    ) -> Dim {
        let sum = values[size.index()].clone();
        let text = match (sum.value(), function.blueprint.sizes.free(size)) {
            (Some(value), _) => Text::Number(value),
            (None, Some(nth)) => free[nth as usize].text,
            (None, None) => Text::Declared(declared),
        };
        Dim { sum, text }
    }

    /// A dimension of an input of the composition that is left to the call.
    fn new_free(&mut self, step: usize, own: usize, dim: usize, name: &str) -> Result<Dim, Wrong> {
        let next = self.fit.free.len();
        let free = match self.frees.get(&(own, dim)) {
            Some(known) => *known,
            None if next == 4 * limits::FREE_DIMENSIONS => {
                let most = limits::FREE_DIMENSIONS;
                let message = format!("too many free dimensions of inputs, expected at most {most}");
                return self.wrong(step, None, message);
            }
            None => {
                let count = self.names.entry(name.to_owned()).or_default();
                *count += 1;
                let count = *count;
                let mut unique = if count == 1 { name.to_owned() } else { format!("{name}_{count}") };
                while count > 1 && self.names.contains_key(&unique) {
                    unique.push('_');
                }
                self.names.insert(unique.clone(), count);
                self.fit.free.push(Free { name: unique, known: None });
                self.frees.insert((own, dim), next);
                next
            }
        };
        Ok(match self.fit.resolved(free) {
            Text::Free(free) => {
                let sum = self.atoms.named(self.fit.free[free].name.clone());
                if let Some(atom) = sum.only_atom() {
                    self.free_atoms.insert(atom, free);
                }
                Dim { sum, text: Text::Free(free) }
            }
            Text::Number(value) => Dim { sum: Sum::constant(value), text: Text::Number(value) },
            text @ Text::Declared(_) => Dim { sum: self.atoms.unreadable(), text },
        })
    }

    /// True if two sizes are equal for all calls, or are from now on, since a free dimension is what the other one is.
    fn equal(&mut self, a: &Sum, b: &Sum) -> bool {
        if a == b {
            return true;
        }
        let free = |sum: &Sum| sum.only_atom().and_then(|atom| self.free_atoms.get(&atom).copied());
        let known = match (free(a), free(b), a.value(), b.value()) {
            (Some(a), Some(b), ..) => (a, Known::Same(b)),
            (Some(a), None, _, Some(value)) => (a, Known::Number(value)),
            (None, Some(b), Some(value), _) => (b, Known::Number(value)),
            _ => return false,
        };
        // In this pass more may have been learnt of either.
        let (Text::Free(free), known) = (self.fit.resolved(known.0), known.1) else { return self.later() };
        let known = match known {
            Known::Same(other) => match self.fit.resolved(other) {
                Text::Free(other) if other == free => return true,
                Text::Free(other) => Known::Same(other),
                Text::Number(value) => Known::Number(value),
                Text::Declared(_) => return false,
            },
            number => number,
        };
        self.fit.free[free].known = Some(known);
        self.later()
    }

    /// True if two sizes may be equal: the next pass decides.
    fn later(&mut self) -> bool {
        self.learnt = true;
        true
    }

    /// What every size of a step's function is.
    fn sizes(
        &mut self,
        at: usize,
        step: &Run,
        froms: &[From],
        given: &[Typed],
        free: &[Dim],
    ) -> Result<Vec<Sum>, Wrong> {
        let wiring = self.wiring;
        let function = &wiring.functions[step.function.ok_or(Wrong)?];
        let mut unread = None;
        let values = evaluate(&function.blueprint, &mut self.atoms, |atoms, leaf| match leaf {
            Leaf::Input(input) => given[input].bytes.clone(),
            Leaf::Weight(weight) => match function.part.weights.get(weight) {
                Some((_, Some(bytes))) => Sum::constant(*bytes),
                _ => atoms.named(format!("weights({}, {weight})", function.name)),
            },
            Leaf::Free(nth) => free[nth].sum.clone(),
            Leaf::TooLong(_) => atoms.unreadable(),
            Leaf::Word(word) => {
                let input = word.input as usize;
                let read = match froms[input] {
                    _ if step.is_item(input) => Err("the step runs for each item of it"),
                    _ if step.feed.iter().any(|(_, fed)| *fed == input) => Err("each time brings another"),
                    From::Output { .. } => Err("another step computes it"),
                    From::Input(own) => Ok(atoms.named(format!("{}[{}]", wiring.inputs[own], word.index))),
                    From::Constant(constant) => {
                        let array = wiring.constants[constant].as_ref();
                        let word = array.and_then(|array| array.word(word.index)).map(Sum::constant);
                        word.ok_or("the constant is shorter")
                    }
                };
                read.unwrap_or_else(|why| {
                    unread = Some((input, word.index, why));
                    atoms.unreadable()
                })
            }
        });
        match unread {
            None => Ok(values),
            Some((input, index, why)) => {
                let name = &function.inputs.list[input];
                let message = format!(
                    "sizes of {:?} read word {index} of it, and {why}: expected an input or a constant of the composition",
                    function.name
                );
                self.wrong(at, Some(("inputs", name)), message)
            }
        }
    }

    /// Compares what comes to an input with what its function declares.
    fn compare(
        &mut self,
        at: usize,
        step: &Run,
        (input, from): (usize, From),
        typed: &Typed,
        values: &[Sum],
        free: &[Dim],
    ) -> Result<(), Wrong> {
        let wiring = self.wiring;
        let function = &wiring.functions[step.function.ok_or(Wrong)?];
        let id = function.blueprint.inputs[input];
        let buffer = &function.blueprint.buffers[id.index()];
        let fits = match (typed.dtype, buffer.dtype) {
            (Some(given), Some(wanted)) => given == wanted,
            _ => true,
        };
        let wanted = buffer.shape.as_ref().map(|shape| {
            let dims = shape.iter().enumerate().map(|(dim, size)| {
                self.dim(values, free, function, *size, Declared { step: at, buffer: id, dim })
            });
            dims.collect::<Vec<_>>()
        });
        let fits = match (&wanted, &typed.shape) {
            (Some(wanted), Some(given)) => {
                fits && wanted.iter().zip(given).all(|(wanted, given)| self.equal(&wanted.sum, &given.sum))
            }
            // What comes is declared as the input is, so that each call is checked; where it cannot be, its bytes must be equal.
            (Some(_), None) if !step.is_item(input) && self.can_be_declared(from) => fits,
            (Some(wanted), None) => {
                let bytes = buffer.dtype.and_then(|dtype| self.bytes(dtype, wanted));
                fits && bytes.is_some_and(|bytes| self.equal(&bytes, &typed.bytes))
            }
            (None, _) => fits,
        };
        if !fits {
            let message = self.misfit_of(buffer.dtype, wanted.as_deref(), typed);
            return self.wrong(at, Some(("inputs", &function.inputs.list[input])), message);
        }
        if let From::Input(own) = from {
            self.tell(own, step, input, buffer.dtype, wanted);
        }
        Ok(())
    }

    /// True if the linked function says of an edge what its first user declares: of its own inputs, and of buffers that one run makes.
    fn can_be_declared(&self, from: From) -> bool {
        let From::Output { step, output } = from else { return true };
        let run = &self.wiring.steps[step];
        let function = run.function.map(|function| &self.wiring.functions[function]);
        run.items.is_none()
            && function.is_some_and(|function| {
                let id = function.blueprint.outputs[output];
                function.blueprint.buffers[id.index()].role == Role::Buffer
            })
    }

    /// Compares outputs that are fed to inputs with what came to those the first time.
    fn compare_fed(&mut self, at: usize, step: &Run, given: &[Typed], values: &[Sum]) -> Result<(), Wrong> {
        let wiring = self.wiring;
        let function = &wiring.functions[step.function.ok_or(Wrong)?];
        for &(output, input) in &step.feed {
            let from = &function.blueprint.buffers[function.blueprint.outputs[output].index()];
            let to = &function.blueprint.buffers[input];
            let is_type = from.dtype.is_none() || to.dtype.is_none() || from.dtype == to.dtype;
            let is_size = self.equal(&values[from.size.index()], &given[input].bytes);
            let is_shape = match (&from.shape, &to.shape) {
                (Some(from), Some(to)) => {
                    let mut pairs = from.iter().zip(to);
                    let equal =
                        |(a, b): (&SizeId, &SizeId)| self.equal(&values[a.index()], &values[b.index()]);
                    from.len() == to.len() && pairs.all(equal)
                }
                _ => true,
            };
            if !is_type || !is_size || !is_shape {
                let (name, to) = (&function.outputs.list[output], &function.inputs.list[input]);
                let bytes = |sum: &Sum| self.atoms.amount(sum).to_string();
                let (from, to_bytes) = (bytes(&values[from.size.index()]), bytes(&given[input].bytes));
                let message = format!(
                    "output {name:?} cannot be input {to:?} of the next time: another type or shape ({from} bytes, {to_bytes} \
                     are wanted)"
                );
                return self.wrong(at, Some(("feed", name)), message);
            }
        }
        Ok(())
    }

    /// As an input is declared, and what came.
    fn misfit(&self, function: &super::function::Function, input: usize, typed: &Typed) -> String {
        let declared = function.blueprint.input_types[input].as_ref();
        let wanted = declared.map_or_else(String::new, |declared| declared.text(&function.blueprint.free));
        format!("{wanted} is wanted, {} came", self.text(typed.dtype, typed.shape.as_deref()))
    }

    fn misfit_of(&self, dtype: Option<DType>, wanted: Option<&[Dim]>, typed: &Typed) -> String {
        let (wanted, given) = (self.text(dtype, wanted), self.text(typed.dtype, typed.shape.as_deref()));
        format!("{wanted} is wanted, {given} came; sizes must be equal for every call")
    }

    /// `f32[n, 3]`.
    fn text(&self, dtype: Option<DType>, shape: Option<&[Dim]>) -> String {
        let dtype = dtype.map_or("bytes", DType::name);
        let Some(shape) = shape else { return dtype.to_owned() };
        let dims: Vec<String> = shape.iter().map(|dim| self.atoms.amount(&dim.sum).to_string()).collect();
        format!("{dtype}[{}]", dims.join(", "))
    }
}
