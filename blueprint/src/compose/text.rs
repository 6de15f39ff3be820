//! The linked function as JSON: the runs of all steps, one after the other (`runs`), over buffers of their own. What a run gets
//! is copied for it where it may change what others need; buffers share memory later, by the rule for all plans.

use std::collections::{HashMap, HashSet};

use super::dimensions::{Dim, Fit, Text};
use super::function::Function;
use super::names::Distinct;
use super::rename::{Renaming, dimension};
use super::wiring::{From, Run, Wiring};
use super::{LinkedModule, LinkedWeight};
use crate::blueprint::Role;
use crate::format::{Action, Copy, Sizing, Type};
use crate::limits;
use crate::read::List;
use crate::types::{DType, Isolation};
use crate::write::{Write, field, quoted};

/// The linked function, and where its parts come from.
pub(super) struct Linked {
    pub(super) config: String,
    pub(super) modules: Vec<LinkedModule>,
    pub(super) weights: Vec<LinkedWeight>,
    /// All constants that reach the device, each at a multiple of the alignment of buffers.
    pub(super) constants: Vec<u8>,
    /// Of each step: where its actions begin.
    pub(super) begins: Vec<usize>,
}

/// Why there is no linked function: the step that it got too much with, and why.
pub(super) struct TooMuch {
    pub(super) step: usize,
    pub(super) why: String,
}

pub(super) fn write(wiring: &Wiring, fit: &Fit) -> Result<Linked, TooMuch> {
    let mut writer = Writer::new(wiring, fit);
    for (at, step) in wiring.steps.iter().enumerate() {
        writer.begins.push(writer.actions);
        writer.step(at, step).map_err(|why| TooMuch { step: at, why })?;
    }
    let last = wiring.steps.len().saturating_sub(1);
    writer.outputs().map_err(|why| TooMuch { step: last, why })?;
    Ok(writer.finish())
}

pub(super) struct Writer<'a> {
    pub(super) wiring: &'a Wiring,
    pub(super) fit: &'a Fit,
    pub(super) names: Distinct,
    pub(super) size_names: Distinct,
    /// Where the bytes of an edge are.
    pub(super) places: HashMap<From, String>,
    /// How many uses of an edge's bytes are still to come.
    pub(super) uses: HashMap<From, usize>,
    /// Edges whose buffer is an output of the composition, and its name.
    pub(super) claimed: HashMap<From, String>,
    pub(super) modules: HashMap<&'a str, String>,
    pub(super) weights: HashMap<String, String>,
    /// Of each weight of a step's function: what it is called.
    weights_of: HashMap<(usize, usize), String>,
    /// Weights whose types are written.
    weights_typed: HashSet<String>,
    /// Of each constant that reaches the device: where it is.
    pub(super) offsets: HashMap<usize, u64>,
    pub(super) module_list: Vec<LinkedModule>,
    pub(super) weight_list: Vec<LinkedWeight>,
    pub(super) constants: Vec<u8>,
    pub(super) constants_name: String,
    pub(super) outputs: Vec<String>,
    pub(super) module_text: String,
    pub(super) kernel_text: String,
    pub(super) kernel_count: usize,
    pub(super) weight_text: String,
    pub(super) buffer_text: String,
    pub(super) buffer_count: usize,
    pub(super) type_text: String,
    pub(super) size_text: String,
    pub(super) flow: String,
    pub(super) actions: usize,
    pub(super) begins: Vec<usize>,
}

impl<'a> Writer<'a> {
    fn new(wiring: &'a Wiring, fit: &'a Fit) -> Self {
        let open = || "{".to_owned();
        let list = || "[".to_owned();
        let mut writer = Self {
            wiring,
            fit,
            names: Distinct::default(),
            size_names: Distinct::default(),
            places: HashMap::new(),
            uses: HashMap::new(),
            claimed: HashMap::new(),
            modules: HashMap::new(),
            weights: HashMap::new(),
            weights_of: HashMap::new(),
            weights_typed: HashSet::new(),
            offsets: HashMap::new(),
            module_list: Vec::new(),
            weight_list: Vec::new(),
            constants: Vec::new(),
            constants_name: String::new(),
            outputs: Vec::new(),
            module_text: list(),
            kernel_text: list(),
            kernel_count: 0,
            weight_text: list(),
            buffer_text: open(),
            buffer_count: wiring.inputs.len(),
            type_text: open(),
            size_text: open(),
            flow: list(),
            actions: 0,
            begins: Vec::new(),
        };
        // Names that callers know stay as they are.
        for (at, name) in wiring.inputs.iter().enumerate() {
            writer.places.insert(From::Input(at), writer.names.name(name));
        }
        for (name, from) in &wiring.outputs {
            let Some(from) = from else { continue };
            writer.names.name(name);
            *writer.uses.entry(*from).or_default() += 1;
            if let From::Output { step, output } = *from
                && writer.is_made_here(step, output)
            {
                writer.claimed.entry(*from).or_insert_with(|| name.clone());
            }
        }
        for step in &wiring.steps {
            for (input, from) in step.inputs.iter().enumerate() {
                if let (Some(from), true) = (from, writer.reaches(step, input)) {
                    *writer.uses.entry(*from).or_default() += 1;
                }
            }
        }
        writer.constants_name = writer.names.name("constants");
        writer.input_types();
        writer
    }

    pub(super) fn function(&self, step: &Run) -> Option<&'a Function> {
        step.function.map(|function| &self.wiring.functions[function])
    }

    /// True if an output is a buffer of the step's own, and not an input that the function changes.
    fn is_made_here(&self, step: usize, output: usize) -> bool {
        let step = &self.wiring.steps[step];
        self.function(step).is_some_and(|function| {
            let id = function.blueprint.outputs[output];
            step.items.is_some() || function.blueprint.buffers[id.index()].role == Role::Buffer
        })
    }

    /// True if the device needs the bytes of an input.
    pub(super) fn reaches(&self, step: &Run, input: usize) -> bool {
        self.function(step).is_some_and(|function| function.blueprint.buffers[input].reached)
    }

    fn input_types(&mut self) {
        for (name, (dtype, shape)) in self.wiring.inputs.iter().zip(&self.fit.inputs) {
            let Some(dtype) = *dtype else { continue };
            let shape = shape.as_ref().map(|shape| self.shape(shape));
            field(name, &Type { dtype, shape }, &mut self.type_text);
        }
    }

    pub(super) fn shape(&self, shape: &[Dim]) -> List<Sizing> {
        List(shape.iter().map(|dim| Some(dimension(self.fit, dim.text))).collect())
    }

    /// Copies to outputs of the composition that are no buffers of a step's own.
    fn outputs(&mut self) -> Result<(), String> {
        for (name, from) in &self.wiring.outputs {
            let Some(from) = *from else { continue };
            self.outputs.push(name.clone());
            if self.claimed.get(&from) == Some(name) {
                continue;
            }
            match from {
                From::Constant(constant) => {
                    let Some(array) = &self.wiring.constants[constant] else { continue };
                    let bytes = array.bytes.len() as u64;
                    self.buffer(name, &Sizing::Absolute(bytes))?;
                    let dims = array.shape.iter().map(|dim| Some(Sizing::Absolute(*dim)));
                    let shape = Some(List(dims.collect()));
                    field(name, &Type { dtype: array.dtype, shape }, &mut self.type_text);
                    let start = self.constant_at(constant, &array.bytes);
                    let mut action = copy(&self.constants_name, Some(Sizing::Absolute(start)), name, None);
                    if let Action::Copy(copy) = &mut action {
                        copy.bytes = Some(Sizing::Absolute(bytes));
                    }
                    self.action(&action)?;
                }
                _ => {
                    let Some(place) = self.places.get(&from).cloned() else { continue };
                    self.buffer(name, &Sizing::Sizeof((&place).into()))?;
                    let declared = self.type_of(from);
                    declared.into_iter().for_each(|declared| field(name, &declared, &mut self.type_text));
                    self.action(&copy(&place, None, name, None))?;
                }
            }
        }
        Ok(())
    }

    /// Where a constant is among all that reach the device: each is there once.
    pub(super) fn constant_at(&mut self, constant: usize, bytes: &[u8]) -> u64 {
        *self.offsets.entry(constant).or_insert_with(|| {
            let start = self.constants.len().next_multiple_of(limits::BUFFER_ALIGN as usize);
            self.constants.resize(start, 0);
            self.constants.extend(bytes);
            start as u64
        })
    }

    /// What is declared of the bytes of an edge.
    fn type_of(&self, from: From) -> Option<Type> {
        let typed = |dtype: DType, shape: Option<Vec<Text>>| {
            let shape = shape
                .map(|shape| List(shape.into_iter().map(|text| Some(dimension(self.fit, text))).collect()));
            Type { dtype, shape }
        };
        match from {
            From::Input(own) => {
                let (dtype, shape) = &self.fit.inputs[own];
                let shape = shape.as_ref().map(|shape| shape.iter().map(|dim| dim.text).collect());
                Some(typed((*dtype)?, shape))
            }
            From::Output { step, output } => {
                let run = &self.wiring.steps[step];
                let function = self.function(run)?;
                let id = function.blueprint.outputs[output];
                let buffer = &function.blueprint.buffers[id.index()];
                let first = run.items.as_ref().map(|items| Text::Number(items.count));
                let shape = buffer.shape.as_ref().map(|shape| {
                    let dims = (0..shape.len()).map(|dim| self.declared_text(step, function, id, dim));
                    first.into_iter().chain(dims).collect()
                });
                Some(typed(buffer.dtype?, shape))
            }
            From::Constant(_) => None,
        }
    }

    /// Lists the modules of a function and the kernels that it launches, as errors shall call them: with their step.
    pub(super) fn kernels(
        &mut self,
        step: &Run,
        function: &'a Function,
    ) -> Result<HashMap<&'a str, String>, String> {
        let mut names = HashMap::new();
        for (at, module) in function.blueprint.modules.iter().enumerate() {
            let Some(content) = function.part.modules.get(at) else { continue };
            if self.modules.contains_key(content.as_str()) {
                continue;
            }
            let names: Vec<&String> = self.modules.values().collect();
            let mut name = module.name.clone();
            if names.contains(&&name) {
                name = self.names.name(&format!("{}: {name}", function.name));
            }
            comma(&mut self.module_text);
            self.module_text.push('{');
            field("module_name", &name, &mut self.module_text);
            field("path", &module.path, &mut self.module_text);
            self.module_text.push('}');
            let function = step.function.unwrap_or_default();
            self.module_list.push(LinkedModule { name: name.clone(), function, module: at });
            self.modules.insert(content, name);
        }
        for (kernel, launched) in function.blueprint.kernels.iter().zip(&function.launches) {
            let module =
                function.part.modules.get(kernel.module).and_then(|content| self.modules.get(&**content));
            let (Some(module), true) = (module, launched) else { continue };
            let called = match kernel.name.starts_with("step ") {
                true => format!("step {}, {}", step.name, kernel.name),
                false => format!("step {}, kernel {}", step.name, kernel.name),
            };
            let called = self.names.name(&called);
            comma(&mut self.kernel_text);
            self.kernel_text.push('{');
            field("module_name", module, &mut self.kernel_text);
            field("kernel_name", &kernel.symbol, &mut self.kernel_text);
            field("alias", &called, &mut self.kernel_text);
            self.kernel_text.push('}');
            self.kernel_count += 1;
            names.insert(kernel.name.as_str(), called);
        }
        if self.kernel_count > limits::KERNELS {
            let (count, most) = (self.kernel_count, limits::KERNELS);
            return Err(format!("{count} kernels with those of the steps before, expected at most {most}"));
        }
        if self.module_list.len() > limits::MODULES {
            let (count, most) = (self.module_list.len(), limits::MODULES);
            return Err(format!("{count} modules with those of the steps before, expected at most {most}"));
        }
        Ok(names)
    }

    /// The weights of a step's function: those of equal content and type are one, for all runs of the step, and for all steps where
    /// the type is one of numbers.
    pub(super) fn weights<'r>(
        &mut self,
        step: usize,
        function: &'r Function,
        renaming: &mut Renaming<'r>,
    ) -> Result<(), String> {
        let of = self.function_at(function);
        let mut fresh = Vec::new();
        for (at, id) in function.blueprint.weights.iter().enumerate() {
            let name = &function.blueprint.buffers[id.index()].name;
            let Some((content, _)) = function.part.weights.get(at) else { continue };
            let linked = match self.weights_of.get(&(step, at)) {
                Some(linked) => linked.clone(),
                None => {
                    let linked = self.weights_like(step, function, (of, at), name, content)?;
                    fresh.extend(function.declared(name).map(|declared| (linked.clone(), declared)));
                    self.weights_of.insert((step, at), linked.clone());
                    linked
                }
            };
            renaming.buffers.insert(name, linked);
        }
        // A type may speak of any weights of its function.
        for (linked, declared) in fresh {
            if self.weights_typed.insert(linked.clone()) {
                field(&linked, &renaming.declared(declared), &mut self.type_text);
            }
        }
        Ok(())
    }

    /// What weights of a function are called: as others of the same content and type, where the type is one of numbers.
    fn weights_like(
        &mut self,
        step: usize,
        function: &Function,
        (of, at): (usize, usize),
        name: &str,
        content: &str,
    ) -> Result<String, String> {
        let mut key = format!("{content} ");
        let declared = function.declared(name);
        declared.iter().for_each(|declared| declared.write(&mut key));
        let shape = declared.and_then(|declared| declared.shape.as_ref());
        let is_number = |dim: &Option<Sizing>| matches!(dim, Some(Sizing::Absolute(_)));
        if shape.is_some_and(|shape| !shape.0.iter().all(is_number)) {
            key = format!("{step} {at}");
        }
        if let Some(linked) = self.weights.get(&key) {
            return Ok(linked.clone());
        }
        let linked = self.names.name(&format!("{}.{name}", function.name));
        self.count_buffer()?;
        comma(&mut self.weight_text);
        quoted(&linked, &mut self.weight_text);
        self.weight_list.push(LinkedWeight { name: linked.clone(), of: Some((of, at)) });
        self.weights.insert(key, linked.clone());
        Ok(linked)
    }

    fn function_at(&self, function: &Function) -> usize {
        let is_it = |other: &Function| std::ptr::eq(other, function);
        self.wiring.functions.iter().position(is_it).unwrap_or_default()
    }

    pub(super) fn buffer(&mut self, name: &str, size: &Sizing) -> Result<(), String> {
        self.count_buffer()?;
        field(name, size, &mut self.buffer_text);
        Ok(())
    }

    fn count_buffer(&mut self) -> Result<(), String> {
        self.buffer_count += 1;
        match self.buffer_count > limits::BUFFERS {
            true => {
                let most = limits::BUFFERS;
                Err(format!(
                    "one more buffer than the {most} that a function has at most, with those of the steps before"
                ))
            }
            false => Ok(()),
        }
    }

    pub(super) fn action(&mut self, action: &Action) -> Result<(), String> {
        comma(&mut self.flow);
        action.write(&mut self.flow);
        self.actions += 1;
        self.check_length()
    }

    pub(super) fn check_length(&self) -> Result<(), String> {
        let texts = [&self.flow, &self.buffer_text, &self.type_text, &self.size_text, &self.kernel_text];
        let bytes: usize = texts.into_iter().map(String::len).sum();
        match bytes > limits::JSON_BYTES {
            true => {
                let most = limits::JSON_BYTES;
                Err(format!(
                    "the linked function is longer than the {most} bytes of JSON that a function has at most"
                ))
            }
            false => Ok(()),
        }
    }

    fn finish(mut self) -> Linked {
        if !self.constants.is_empty() {
            comma(&mut self.weight_text);
            quoted(&self.constants_name, &mut self.weight_text);
            self.weight_list.push(LinkedWeight { name: self.constants_name.clone(), of: None });
        }
        let closed = |mut text: String, end: char| {
            text.push(end);
            text
        };
        let mut config = String::from("{");
        let raw = |key: &str, text: &str, config: &mut String| {
            comma(config);
            quoted(key, config);
            config.push(':');
            config.push_str(text);
        };
        // One function that keeps out of shared workers keeps the whole out; else one that runs nowhere else keeps the whole there.
        let said = |isolation: &Isolation| {
            self.wiring.functions.iter().any(|function| function.blueprint.isolation() == *isolation)
        };
        if let Some(isolation) =
            [Isolation::Process, Isolation::Shared].iter().find(|isolation| said(isolation))
        {
            field("isolation", isolation, &mut config);
        }
        raw("modules", &closed(self.module_text, ']'), &mut config);
        raw("kernels", &closed(self.kernel_text, ']'), &mut config);
        let mut flow = String::from("{");
        field("inputs", &self.wiring.inputs, &mut flow);
        raw("weights", &closed(self.weight_text, ']'), &mut flow);
        raw("buffers", &closed(self.buffer_text, '}'), &mut flow);
        field("outputs", &self.outputs, &mut flow);
        raw("types", &closed(self.type_text, '}'), &mut flow);
        raw("sizes", &closed(self.size_text, '}'), &mut flow);
        raw("control_flow", &closed(self.flow, ']'), &mut flow);
        raw("blueprint", &closed(flow, '}'), &mut config);
        Linked {
            config: closed(config, '}'),
            modules: self.module_list,
            weights: self.weight_list,
            constants: self.constants,
            begins: self.begins,
        }
    }
}

/// A comma, unless the object or list was opened just before.
fn comma(text: &mut String) {
    if !text.ends_with(['[', '{']) {
        text.push(',');
    }
}

pub(super) fn copy(from: &str, from_offset: Option<Sizing>, to: &str, to_offset: Option<Sizing>) -> Action {
    Action::Copy(Copy { from: from.into(), from_offset, to: to.into(), to_offset, bytes: None })
}
