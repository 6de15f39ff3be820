//! JSON → [`Blueprint`]: names become indices, sizes become one table, and everything that can be
//! checked without the sizes of a call is. Declarations are resolved here, sizes and steps in the
//! files beside.
//!
//! A mistake is noted, and what it concerns is left out: where a part is missing for that reason, nothing more is said of it.

mod batch;
mod reached;
mod sizes;
mod steps;
mod tensor_maps;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use crate::blueprint::{
    BatchDimension, Blueprint, Buffer, BufferId, Item, Kernel, Module, Role, Step, TensorMap, WeightFile,
    WordRef,
};
use crate::error::{Mistakes, Notes, Path, is_deceptive, text_of};
use crate::format::{self, NameOr};
use crate::hints::{listed, nearest};
use crate::limits;
use crate::read::{self, List, Map};
use crate::size::{Node, SizeBuilder, SizeId};
use crate::types::Isolation;

/// Reads and checks the JSON of a function. An error is all that is wrong with it.
pub fn parse(json: &[u8]) -> Result<Blueprint, Mistakes> {
    read_and_resolve(json).map(|(_, blueprint)| blueprint)
}

/// The same with the function as written.
pub(crate) fn read_and_resolve(json: &[u8]) -> Result<(format::Config, Blueprint), Mistakes> {
    if json.len() > limits::JSON_BYTES {
        let (bytes, most) = (json.len(), limits::JSON_BYTES);
        return Err(Path::Root.error(format_args!("{bytes} bytes of JSON, expected at most {most}")).into());
    }
    let text = text_of(json)?;
    let (config, notes, is_json) = read::document::<format::Config>(text);
    let mut resolver = Resolver::new(notes);
    if let (Some(config), true) = (&config, is_json) {
        resolver.config(config);
    }
    let blueprint = resolver.finish()?;
    match config {
        Some(config) => Ok((config, blueprint)),
        None => Err(Path::Root.error("no configuration").into()),
    }
}

/// A blueprint in the making. `'a` is the JSON as read.
struct Resolver<'a> {
    notes: Notes<'a>,
    /// Kinds of names of which some could not be read: others of them may be unknown for that reason alone.
    unsure: Unsure,
    modules: Vec<Module>,
    kernels: Vec<Kernel>,
    kernel_ids: HashMap<&'a str, u32>,
    buffers: Vec<Buffer>,
    buffer_ids: HashMap<&'a str, BufferId>,
    inputs: Vec<BufferId>,
    weights: Vec<BufferId>,
    outputs: Vec<BufferId>,
    /// Taken when it is checked.
    state: Vec<BufferId>,
    state_bytes: Vec<u64>,
    weight_files: Vec<WeightFile>,
    isolation: Isolation,
    sizes: SizeBuilder,
    /// Places of the sizes that have names of their own, and what each is.
    size_ids: BTreeMap<&'a str, usize>,
    named_sizes: Vec<Option<SizeId>>,
    words: Vec<WordRef>,
    word_places: Vec<Box<str>>,
    word_ids: HashMap<WordRef, u32>,
    free: Vec<Box<str>>,
    free_ids: HashMap<&'a str, u32>,
    /// Of each free dimension: true if something else than the shapes of inputs uses it.
    free_used: Vec<bool>,
    batch: Option<BatchDimension>,
    steps: Vec<Step>,
    items: Vec<Item>,
    lists: Vec<Range<u32>>,
    list_ids: HashMap<Box<[Item]>, u32>,
    tensor_maps: Vec<TensorMap>,
    tensor_map_ids: HashMap<TensorMap, u32>,
    /// Bytes of the slots of all lists.
    list_bytes: u64,
    /// The list being resolved, kept to reuse its memory.
    scratch: Vec<Item>,
}

/// See [`Resolver::unsure`]: true if some of the names could not be read.
#[derive(Default)]
struct Unsure {
    modules: bool,
    kernels: bool,
    buffers: bool,
    free: bool,
}

impl<'a> Resolver<'a> {
    fn new(notes: Notes<'a>) -> Self {
        Self {
            notes,
            unsure: Unsure::default(),
            modules: Vec::new(),
            kernels: Vec::new(),
            kernel_ids: HashMap::new(),
            buffers: Vec::new(),
            buffer_ids: HashMap::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            outputs: Vec::new(),
            state: Vec::new(),
            state_bytes: Vec::new(),
            weight_files: Vec::new(),
            isolation: Isolation::default(),
            sizes: SizeBuilder::default(),
            size_ids: BTreeMap::new(),
            named_sizes: Vec::new(),
            words: Vec::new(),
            word_places: Vec::new(),
            word_ids: HashMap::new(),
            free: Vec::new(),
            free_ids: HashMap::new(),
            free_used: Vec::new(),
            batch: None,
            steps: Vec::new(),
            items: Vec::new(),
            lists: Vec::new(),
            list_ids: HashMap::new(),
            tensor_maps: Vec::new(),
            tensor_map_ids: HashMap::new(),
            list_bytes: 0,
            scratch: Vec::new(),
        }
    }

    fn config(&mut self, config: &'a format::Config) {
        let root = &Path::Root;
        let blueprint = &root.key("blueprint");
        self.modules(config, root);
        self.isolation = config.isolation.unwrap_or_default();
        match &config.kernels {
            Some(kernels) => self.kernels(&kernels.0, &root.key("kernels")),
            None => self.unsure.kernels = true,
        }
        let Some(flow) = &config.blueprint else { return };
        let types = flow.types.as_ref().map_or(&[][..], |types| &types.0);
        self.declare(flow, blueprint);
        self.free_dimensions(types, &blueprint.key("types"));
        self.declared_sizes(flow, blueprint);
        if let Some(outputs) = &flow.outputs {
            self.outputs(outputs, &blueprint.key("outputs"));
        }
        self.state(&blueprint.key("state"));
        self.types(types, &blueprint.key("types"));
        if let Some(files) = &config.weight_files {
            self.weight_files(files, &root.key("weight_files"));
        }
        if let Some(actions) = &flow.control_flow {
            self.actions(actions, &blueprint.key("control_flow"), 0);
        }
        if let Some(batch) = &flow.batch {
            self.batch = self.batch(batch, &blueprint.key("batch"));
        }
    }

    /// Checks the state, whose buffers go into every run and come out of it again, behind inputs and outputs.
    fn state(&mut self, map: &Path<'_>) {
        // What has no size for another reason has been told.
        if self.notes.concern("blueprint") {
            return;
        }
        let total = self.outputs.len() + self.state.len();
        if total > limits::OUTPUTS {
            let max = limits::OUTPUTS;
            self.notes
                .note(map, format_args!("{total} outputs and buffers of the state, expected at most {max}"));
        }
        for id in std::mem::take(&mut self.state) {
            let buffer = &mut self.buffers[id.index()];
            buffer.output = true;
            let (size, place) = (buffer.size, &map.key(&buffer.name));
            match self.sizes.table().constant(size) {
                Some(bytes) => self.state_bytes.push(bytes),
                None => self.notes.note(
                    place,
                    "its size depends on what a call brings, expected one that is the same for every call",
                ),
            }
            self.inputs.push(id);
            self.outputs.push(id);
        }
    }

    /// Notes a mistake. There is nothing in its place.
    fn wrong<T>(&mut self, place: &Path<'_>, message: impl fmt::Display) -> Option<T> {
        self.notes.note(place, message);
        None
    }

    fn modules(&mut self, config: &'a format::Config, root: &Path<'_>) {
        match (&config.module_path, &config.modules) {
            (Some(path), None) => {
                self.check_path(path, &root.key("module_path"));
                let name = path.rsplit('/').next().unwrap_or(path).to_owned();
                self.modules.push(Module { name, path: path.clone() });
            }
            (None, Some(modules)) => {
                let list = &root.key("modules");
                let few = self.check_len(modules.0.len(), limits::MODULES, list).is_some();
                self.unsure.modules = !few || modules.0.iter().any(Option::is_none);
                for (at, module) in modules.iter().filter(|_| few) {
                    let place = &list.index(at);
                    let name = &place.key("module_name");
                    self.check_name(&module.module_name, name);
                    self.check_path(&module.path, &place.key("path"));
                    if self.modules.iter().any(|other| other.name == module.module_name) {
                        self.twice(&module.module_name, name);
                    }
                    self.modules.push(Module { name: module.module_name.clone(), path: module.path.clone() });
                }
            }
            (Some(_), Some(_)) => {
                self.unsure.modules = true;
                self.notes.note(root, "both `module_path` and `modules`, expected one of them");
            }
            (None, None) => {
                self.unsure.modules = true;
                // What is there and could not be read has been told.
                if !self.notes.concern("module_path") && !self.notes.concern("modules") {
                    self.notes.note(root, "no module, expected `module_path` or `modules`");
                }
            }
        }
    }

    fn kernels(&mut self, kernels: &'a [Option<NameOr<format::Kernel>>], list: &Path<'_>) {
        for (at, kernel) in kernels.iter().enumerate() {
            let place = &list.index(at);
            let named = kernel.as_ref().and_then(|kernel| self.kernel(kernel, place));
            let Some((name, module, symbol)) = named else {
                self.unsure.kernels = true;
                continue;
            };
            if self.kernel_ids.insert(name, self.kernels.len() as u32).is_some() {
                let message = "expected distinct names (an `alias` gives one)";
                self.notes.note(place, format_args!("a second kernel called {name:?}, {message}"));
            }
            self.kernels.push(Kernel { name: name.to_owned(), module, symbol: symbol.to_owned() });
        }
    }

    /// The name of a kernel, its module, its symbol there.
    fn kernel(
        &mut self,
        kernel: &'a NameOr<format::Kernel>,
        place: &Path<'_>,
    ) -> Option<(&'a str, usize, &'a str)> {
        match kernel {
            NameOr::Name(symbol) => {
                self.check_name(symbol, place)?;
                if self.modules.len() != 1 && !self.unsure.modules {
                    return self.wrong(
                        place,
                        "a name alone, expected an object with `module_name` and `kernel_name` where there are several \
                         modules",
                    );
                }
                Some((symbol, 0, symbol))
            }
            NameOr::Object(kernel) => {
                let wanted = &kernel.module_name;
                let module = self.modules.iter().position(|module| module.name == *wanted);
                if module.is_none() && !self.unsure.modules {
                    let known = self.modules.iter().map(|module| module.name.as_str());
                    let (near, known) = (nearest(wanted, known.clone()), listed(known));
                    let message =
                        format_args!("unknown module {wanted:?}{near}; expected one of `modules`: {known}");
                    self.notes.note(&place.key("module_name"), message);
                }
                let symbol = kernel.kernel_name.as_str();
                self.check_name(symbol, &place.key("kernel_name"))?;
                let name = kernel.alias.as_deref().unwrap_or(symbol);
                self.check_name(name, &place.key("alias"))?;
                Some((name, module?, symbol))
            }
        }
    }

    /// Declares inputs, weights and buffers; the sizes of buffers are resolved once all are known.
    fn declare(&mut self, blueprint: &'a format::Blueprint, root: &Path<'_>) {
        let inputs = blueprint.inputs.as_ref().map_or(&[][..], |inputs| &inputs.0);
        let weights = blueprint.weights.as_ref().map_or(&[][..], |weights| &weights.0);
        let state = blueprint.state.as_ref().map_or(&[][..], |state| &state.0);
        let buffers = blueprint.buffers.as_ref().map_or(&[][..], |buffers| &buffers.0);
        self.unsure.buffers = blueprint.inputs.is_none()
            || blueprint.buffers.is_none()
            || inputs.iter().chain(weights).any(Option::is_none);
        let total = inputs.len() + weights.len() + state.len() + buffers.len();
        if total > limits::BUFFERS {
            let max = limits::BUFFERS;
            self.notes.note(
                root,
                format_args!("{total} inputs, weights, state and buffers, expected at most {max}"),
            );
        }
        let list = &root.key("inputs");
        for (at, name) in inputs.iter().enumerate().filter_map(named) {
            let size = self.sizes.leaf(Node::Input(at as u32));
            let id = self.declare_one(name, Role::Input, size, &list.index(at));
            self.inputs.push(id);
        }
        let list = &root.key("weights");
        for (at, name) in weights.iter().enumerate().filter_map(named) {
            let size = self.sizes.leaf(Node::Weight(at as u32));
            let id = self.declare_one(name, Role::Weight, size, &list.index(at));
            self.weights.push(id);
        }
        let unknown = self.constant(0);
        let map = &root.key("state");
        for (name, _) in state {
            let id = self.declare_one(name, Role::State, unknown, &map.key(name));
            self.state.push(id);
        }
        let map = &root.key("buffers");
        for (name, _) in buffers {
            self.declare_one(name, Role::Buffer, unknown, &map.key(name));
        }
    }

    /// Names every free dimension: a dimension of an input that is `Free` and nothing else. Sizes anywhere may use it.
    fn free_dimensions(&mut self, types: &'a [(String, Option<format::Type>)], map: &Path<'_>) {
        for (name, declared) in types {
            let declares = self.buffer_ids.get(name.as_str());
            let is_input = declares.is_some_and(|id| self.buffers[id.index()].role == Role::Input);
            let Some(declared) = declared.as_ref().filter(|_| is_input) else {
                self.unsure.free |= declared.is_none();
                continue;
            };
            let place = &map.key(name);
            let place = &place.key("shape");
            for (at, dim) in declared.shape.iter().flat_map(|shape| shape.0.iter().enumerate()) {
                self.unsure.free |= dim.is_none();
                let Some(format::Sizing::Free(free)) = dim else { continue };
                if self.free_ids.contains_key(free.as_str()) {
                    continue;
                }
                let place = &place.index(at);
                let place = &place.key("Free");
                self.check_free_name(free, place);
                if self.free.len() == limits::FREE_DIMENSIONS {
                    let max = limits::FREE_DIMENSIONS;
                    self.notes
                        .note(place, format_args!("one more free dimension, expected at most {max} names"));
                    self.unsure.free = true;
                    return;
                }
                self.free_ids.insert(free, self.free.len() as u32);
                self.free.push(free.as_str().into());
                self.free_used.push(false);
            }
        }
    }

    fn declare_one(&mut self, name: &'a str, role: Role, size: SizeId, place: &Path<'_>) -> BufferId {
        self.check_name(name, place);
        let id = BufferId(self.buffers.len() as u32);
        if self.buffer_ids.insert(name, id).is_some() {
            self.twice(name, place);
        }
        self.buffers.push(Buffer {
            name: name.to_owned(),
            role,
            output: false,
            reached: false,
            named: false,
            used: false,
            dtype: None,
            size,
            shape: None,
        });
        id
    }

    fn outputs(&mut self, outputs: &List<String, { limits::OUTPUTS }>, list: &Path<'_>) {
        for (at, name) in outputs.iter() {
            let place = &list.index(at);
            let Some(id) = self.writable(name, place) else { continue };
            if self.buffers[id.index()].role == Role::State {
                let message = "which stays where it is; expected a buffer, to which a step copies it";
                self.notes.note(place, format_args!("{name:?} is state, {message}"));
                continue;
            }
            if std::mem::replace(&mut self.buffers[id.index()].output, true) {
                self.twice(name, place);
            }
            self.outputs.push(id);
        }
    }

    fn types(&mut self, types: &[(String, Option<format::Type>)], map: &Path<'_>) {
        for (name, declared) in types {
            let place = &map.key(name);
            let Some(id) = self.declared(name, place) else { continue };
            let Some(declared) = declared else { continue };
            if self.buffers[id.index()].dtype.is_some() {
                self.twice(name, place);
            }
            // What a buffer's own type says of it is no use of it.
            let was_used = self.buffers[id.index()].used;
            let shape = declared.shape.as_ref().and_then(|dims| {
                let place = &place.key("shape");
                self.check_len(dims.0.len(), limits::RANK, place)?;
                let is_input = self.buffers[id.index()].role == Role::Input;
                let dims = dims.iter().map(|(at, dim)| match dim {
                    format::Sizing::Free(name) if is_input => self.free(name, &place.index(at)),
                    dim => self.size(dim, &place.index(at)),
                });
                dims.collect::<Vec<_>>().into_iter().collect()
            });
            let buffer = &mut self.buffers[id.index()];
            buffer.used = was_used;
            buffer.dtype = Some(declared.dtype);
            buffer.shape = shape;
        }
    }

    fn weight_files(&mut self, files: &Map<String>, map: &Path<'_>) {
        let mut seen = HashSet::new();
        for (name, path) in &files.0 {
            let place = &map.key(name);
            let Some(path) = path else { continue };
            self.check_path(path, place);
            let found = self.buffer_ids.get(name.as_str()).copied();
            let Some(weight) = found.filter(|id| self.buffers[id.index()].role == Role::Weight) else {
                if !self.unsure.buffers {
                    let known = self.weights.iter().map(|id| self.buffers[id.index()].name.as_str());
                    let (near, known) = (nearest(name, known.clone()), listed(known));
                    let message = format_args!(
                        "{name:?} is not a weight{near}; expected one of `blueprint.weights`: {known}"
                    );
                    self.notes.note(place, message);
                }
                continue;
            };
            if !seen.insert(weight) {
                self.twice(name, place);
            }
            self.weight_files.push(WeightFile { weight, path: path.clone() });
        }
    }

    fn finish(mut self) -> Result<Blueprint, Mistakes> {
        if let Some(mistakes) = std::mem::replace(&mut self.notes, Notes::new("")).finish() {
            return Err(mistakes);
        }
        // The blueprint will be kept for long.
        self.steps.shrink_to_fit();
        self.items.shrink_to_fit();
        self.lists.shrink_to_fit();
        let mut blueprint = Blueprint {
            modules: self.modules,
            kernels: self.kernels,
            weight_files: self.weight_files,
            isolation: self.isolation,
            buffers: self.buffers,
            inputs: self.inputs,
            weights: self.weights,
            outputs: self.outputs,
            state_bytes: self.state_bytes,
            words: self.words,
            word_places: self.word_places,
            free: self.free,
            batch: self.batch,
            input_types: Vec::new(),
            sizes: self.sizes.finish(),
            steps: self.steps,
            items: self.items,
            lists: self.lists,
            tensor_maps: self.tensor_maps,
            guard_bytes: 0,
        };
        let types = blueprint.inputs.iter().map(|&id| blueprint.declared(id));
        blueprint.input_types = types.collect();
        reached::mark(&mut blueprint, &self.free_used);
        Ok(blueprint)
    }

    /// The buffer of that name, wherever it is declared.
    fn declared(&mut self, name: &str, place: &Path<'_>) -> Option<BufferId> {
        let found = self.buffer_ids.get(name).copied();
        if found.is_none() && !self.unsure.buffers {
            let known = self.buffers.iter().map(|buffer| buffer.name.as_str());
            let (near, known) = (nearest(name, known.clone()), listed(known));
            let message = format_args!(
                "unknown buffer {name:?}{near}; expected an input, a weight or a buffer: {known}"
            );
            self.notes.note(place, message);
        }
        found
    }

    /// The same for something that uses it.
    fn buffer(&mut self, name: &str, place: &Path<'_>) -> Option<BufferId> {
        let id = self.declared(name, place)?;
        self.buffers[id.index()].used = true;
        Some(id)
    }

    /// A buffer that a call may change.
    fn writable(&mut self, name: &str, place: &Path<'_>) -> Option<BufferId> {
        let id = self.buffer(name, place)?;
        if self.buffers[id.index()].role == Role::Weight {
            let message = "which is read-only; expected an input or a buffer";
            return self.wrong(place, format_args!("{name:?} is a weight, {message}"));
        }
        Some(id)
    }

    fn constant(&mut self, value: u64) -> SizeId {
        self.sizes.leaf(Node::Const(value))
    }

    fn twice(&mut self, name: &str, place: &Path<'_>) {
        self.notes.note(place, format_args!("{name:?} a second time, expected distinct names"));
    }

    fn check_name(&mut self, name: &str, place: &Path<'_>) -> Option<()> {
        self.check_text(name, limits::NAME_BYTES, place)
    }

    /// Names of free dimensions stand in formulas.
    fn check_free_name(&mut self, name: &str, place: &Path<'_>) {
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !plain || name.is_empty() || name.len() > limits::NAME_BYTES || name.as_bytes()[0].is_ascii_digit()
        {
            let max = limits::NAME_BYTES;
            let message = "letters, digits and `_`, no digit at the start";
            self.notes.note(place, format_args!("{name:?}, expected 1 to {max} {message}"));
        }
    }

    fn check_path(&mut self, path: &str, place: &Path<'_>) {
        self.check_text(path, limits::PATH_BYTES, place);
    }

    fn check_text(&mut self, text: &str, max: usize, place: &Path<'_>) -> Option<()> {
        if text.is_empty() || text.len() > max || text.contains(is_deceptive) {
            let message = "without control characters, and without characters that cannot be seen";
            return self.wrong(place, format_args!("{text:?}, expected 1 to {max} bytes {message}"));
        }
        Some(())
    }

    fn check_len(&mut self, len: usize, max: usize, place: &Path<'_>) -> Option<()> {
        match len > max {
            true => self.wrong(place, format_args!("{len} entries, expected at most {max}")),
            false => Some(()),
        }
    }
}

/// A name that could be read, and its place in the list.
fn named((at, name): (usize, &Option<String>)) -> Option<(usize, &str)> {
    Some((at, name.as_deref()?))
}
