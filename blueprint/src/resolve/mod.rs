//! JSON → [`Blueprint`]: names become indices, sizes become one table, and everything that can be
//! checked without the sizes of a call is. Declarations are resolved here, sizes and steps in the
//! files beside.

mod reached;
mod sizes;
mod steps;
mod tensor_maps;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::blueprint::{
    Blueprint, Buffer, BufferId, Item, Kernel, Module, Role, Step, TensorMap, WeightFile, WordRef,
};
use crate::error::{Error, Path, serde_place};
use crate::format::{self, NameOr, Object};
use crate::limits;
use crate::size::{Node, SizeBuilder, SizeId};

/// Reads and checks the JSON of a function.
pub fn parse(json: &[u8]) -> Result<Blueprint, Error> {
    if json.len() > limits::JSON_BYTES {
        return Err(Path::Root.error(format_args!(
            "{} bytes of JSON, expected at most {}",
            json.len(),
            limits::JSON_BYTES
        )));
    }
    resolve(&read(json)?)
}

/// Keeping track of the place while reading costs as much as reading does: only what is refused is read again for it.
fn read(json: &[u8]) -> Result<format::Config, Error> {
    match serde_json::from_slice::<Object<format::Config>>(json) {
        Ok(config) => Ok(config.0),
        Err(_) => read_noting_places(json),
    }
}

/// The same, slower, with the place of what is wrong in the error.
fn read_noting_places(json: &[u8]) -> Result<format::Config, Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let config: Object<format::Config> = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| Error::new(serde_place(error.path()), error.inner()))?;
    deserializer.end().map_err(|error| Path::Root.error(error))?;
    Ok(config.0)
}

fn resolve(config: &format::Config) -> Result<Blueprint, Error> {
    let root = &Path::Root;
    let blueprint = &root.key("blueprint");
    let mut resolver = Resolver::default();
    resolver.modules(config, root)?;
    resolver.kernels(&config.kernels, &root.key("kernels"))?;
    resolver.declare(&config.blueprint, blueprint)?;
    resolver.free_dimensions(&config.blueprint.types, &blueprint.key("types"))?;
    resolver.buffer_sizes(&config.blueprint.buffers, &blueprint.key("buffers"))?;
    resolver.outputs(&config.blueprint.outputs, &blueprint.key("outputs"))?;
    resolver.types(&config.blueprint.types, &blueprint.key("types"))?;
    resolver.weight_files(&config.weight_files, &root.key("weight_files"))?;
    resolver.actions(&config.blueprint.control_flow, &blueprint.key("control_flow"), 0)?;
    Ok(resolver.finish())
}

/// A blueprint in the making. `'a` is the JSON as read.
#[derive(Default)]
struct Resolver<'a> {
    modules: Vec<Module>,
    kernels: Vec<Kernel>,
    kernel_ids: HashMap<&'a str, u32>,
    buffers: Vec<Buffer>,
    buffer_ids: HashMap<&'a str, BufferId>,
    inputs: Vec<BufferId>,
    weights: Vec<BufferId>,
    outputs: Vec<BufferId>,
    weight_files: Vec<WeightFile>,
    sizes: SizeBuilder,
    words: Vec<WordRef>,
    word_places: Vec<Box<str>>,
    word_ids: HashMap<WordRef, u32>,
    free: Vec<Box<str>>,
    free_ids: HashMap<&'a str, u32>,
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

impl<'a> Resolver<'a> {
    fn modules(&mut self, config: &'a format::Config, root: &Path<'_>) -> Result<(), Error> {
        match (&config.module_path, &config.modules) {
            (Some(path), None) => {
                check_path(path, &root.key("module_path"))?;
                let name = path.rsplit('/').next().unwrap_or(path).to_owned();
                self.modules.push(Module { name, path: path.clone() });
            }
            (None, Some(modules)) => {
                let list = &root.key("modules");
                check_len(modules.len(), limits::MODULES, list)?;
                for (at, module) in modules.iter().enumerate() {
                    let place = &list.index(at);
                    let name = &place.key("module_name");
                    check_name(&module.module_name, name)?;
                    check_path(&module.path, &place.key("path"))?;
                    if self.modules.iter().any(|other| other.name == module.module_name) {
                        return Err(twice(&module.module_name, name));
                    }
                    self.modules.push(Module { name: module.module_name.clone(), path: module.path.clone() });
                }
            }
            (Some(_), Some(_)) => {
                return Err(root.error("both `module_path` and `modules`, expected one of them"));
            }
            (None, None) => return Err(root.error("no module, expected `module_path` or `modules`")),
        }
        Ok(())
    }

    fn kernels(&mut self, kernels: &'a [NameOr<format::Kernel>], list: &Path<'_>) -> Result<(), Error> {
        for (at, kernel) in kernels.iter().enumerate() {
            let place = &list.index(at);
            let (name, module, symbol) = match kernel {
                NameOr::Name(symbol) => {
                    if self.modules.len() != 1 {
                        return Err(place.error(
                            "a name alone, expected an object with `module_name` and `kernel_name` where \
                             there are several modules",
                        ));
                    }
                    (symbol.as_str(), 0, symbol.as_str())
                }
                NameOr::Object(kernel) => {
                    let found = self.modules.iter().position(|module| module.name == kernel.module_name);
                    let Some(module) = found else {
                        return Err(place.key("module_name").error(format_args!(
                            "unknown module {:?}, expected one of `modules`",
                            kernel.module_name
                        )));
                    };
                    check_name(&kernel.kernel_name, &place.key("kernel_name"))?;
                    let symbol = kernel.kernel_name.as_str();
                    (kernel.alias.as_deref().unwrap_or(symbol), module, symbol)
                }
            };
            check_name(name, place)?;
            if self.kernel_ids.insert(name, at as u32).is_some() {
                return Err(place.error(format_args!(
                    "a second kernel called {name:?}, expected distinct names (an `alias` gives one)"
                )));
            }
            self.kernels.push(Kernel { name: name.to_owned(), module, symbol: symbol.to_owned() });
        }
        Ok(())
    }

    /// Declares inputs, weights and buffers; the sizes of buffers are resolved once all are known.
    fn declare(&mut self, blueprint: &'a format::Blueprint, root: &Path<'_>) -> Result<(), Error> {
        let inputs = &root.key("inputs");
        let total = blueprint.inputs.len() + blueprint.weights.len() + blueprint.buffers.0.len();
        if total > limits::BUFFERS {
            return Err(root.error(format_args!(
                "{total} inputs, weights and buffers, expected at most {}",
                limits::BUFFERS
            )));
        }
        for (at, name) in blueprint.inputs.iter().enumerate() {
            let size = self.sizes.leaf(Node::Input(at as u32));
            let id = self.declare_one(name, Role::Input, size, &inputs.index(at))?;
            self.inputs.push(id);
        }
        let weights = &root.key("weights");
        for (at, name) in blueprint.weights.iter().enumerate() {
            let size = self.sizes.leaf(Node::Weight(at as u32));
            let id = self.declare_one(name, Role::Weight, size, &weights.index(at))?;
            self.weights.push(id);
        }
        let buffers = &root.key("buffers");
        let unknown = self.zero();
        for (name, _) in &blueprint.buffers.0 {
            self.declare_one(name, Role::Buffer, unknown, &buffers.key(name))?;
        }
        Ok(())
    }

    /// Names every free dimension: a dimension of an input that is `Free` and nothing else. Sizes anywhere may use it.
    fn free_dimensions(
        &mut self,
        types: &'a format::Map<Object<format::Type>>,
        map: &Path<'_>,
    ) -> Result<(), Error> {
        let is_input =
            |name: &str| self.buffer_ids.get(name).is_some_and(|id| id.index() < self.inputs.len());
        for (name, declared) in types.0.iter().filter(|(name, _)| is_input(name)) {
            let place = &map.key(name);
            let place = &place.key("shape");
            for (at, dim) in declared.shape.iter().flatten().enumerate() {
                let format::Sizing::Free(free) = dim else { continue };
                if self.free_ids.contains_key(free.as_str()) {
                    continue;
                }
                let place = &place.index(at);
                let place = &place.key("Free");
                check_free_name(free, place)?;
                if self.free.len() == limits::FREE_DIMENSIONS {
                    let max = limits::FREE_DIMENSIONS;
                    return Err(
                        place.error(format_args!("one more free dimension, expected at most {max} names"))
                    );
                }
                self.free_ids.insert(free, self.free.len() as u32);
                self.free.push(free.as_str().into());
            }
        }
        Ok(())
    }

    fn declare_one(
        &mut self,
        name: &'a str,
        role: Role,
        size: SizeId,
        place: &Path<'_>,
    ) -> Result<BufferId, Error> {
        check_name(name, place)?;
        let id = BufferId(self.buffers.len() as u32);
        if self.buffer_ids.insert(name, id).is_some() {
            return Err(twice(name, place));
        }
        self.buffers.push(Buffer {
            name: name.to_owned(),
            role,
            output: false,
            reached: false,
            dtype: None,
            size,
            shape: None,
        });
        Ok(id)
    }

    fn outputs(&mut self, outputs: &[String], list: &Path<'_>) -> Result<(), Error> {
        for (at, name) in outputs.iter().enumerate() {
            let place = &list.index(at);
            let id = self.writable(name, place)?;
            if std::mem::replace(&mut self.buffers[id.index()].output, true) {
                return Err(twice(name, place));
            }
            self.outputs.push(id);
        }
        Ok(())
    }

    fn types(&mut self, types: &format::Map<Object<format::Type>>, map: &Path<'_>) -> Result<(), Error> {
        for (name, declared) in &types.0 {
            let place = &map.key(name);
            let id = self.buffer(name, place)?;
            if self.buffers[id.index()].dtype.is_some() {
                return Err(twice(name, place));
            }
            let shape = match &declared.shape {
                None => None,
                Some(dims) => {
                    let place = &place.key("shape");
                    check_len(dims.len(), limits::RANK, place)?;
                    let dims = dims.iter().enumerate();
                    Some(dims.map(|(at, dim)| self.size(dim, &place.index(at))).collect::<Result<_, _>>()?)
                }
            };
            let buffer = &mut self.buffers[id.index()];
            buffer.dtype = Some(declared.dtype);
            buffer.shape = shape;
        }
        Ok(())
    }

    fn weight_files(&mut self, files: &format::Map<String>, map: &Path<'_>) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for (name, path) in &files.0 {
            let place = &map.key(name);
            check_path(path, place)?;
            let weight = match self.buffer_ids.get(name.as_str()) {
                Some(&id) if self.buffers[id.index()].role == Role::Weight => id,
                _ => return Err(place.error("not a weight, expected one of `blueprint.weights`")),
            };
            if !seen.insert(weight) {
                return Err(twice(name, place));
            }
            self.weight_files.push(WeightFile { weight, path: path.clone() });
        }
        Ok(())
    }

    fn finish(mut self) -> Blueprint {
        // The blueprint will be kept for long.
        self.steps.shrink_to_fit();
        self.items.shrink_to_fit();
        self.lists.shrink_to_fit();
        let mut blueprint = Blueprint {
            modules: self.modules,
            kernels: self.kernels,
            weight_files: self.weight_files,
            buffers: self.buffers,
            inputs: self.inputs,
            weights: self.weights,
            outputs: self.outputs,
            words: self.words,
            word_places: self.word_places,
            free: self.free,
            input_types: Vec::new(),
            sizes: self.sizes.finish(),
            steps: self.steps,
            items: self.items,
            lists: self.lists,
            tensor_maps: self.tensor_maps,
        };
        let types = blueprint.inputs.iter().map(|&id| blueprint.declared(id));
        blueprint.input_types = types.collect();
        reached::mark(&mut blueprint);
        blueprint
    }

    fn buffer(&self, name: &str, place: &Path<'_>) -> Result<BufferId, Error> {
        self.buffer_ids.get(name).copied().ok_or_else(|| {
            place.error(format_args!("unknown buffer {name:?}, expected an input, a weight or a buffer"))
        })
    }

    /// A buffer that a call may change.
    fn writable(&self, name: &str, place: &Path<'_>) -> Result<BufferId, Error> {
        let id = self.buffer(name, place)?;
        if self.buffers[id.index()].role == Role::Weight {
            return Err(place.error(format_args!(
                "{name:?} is a weight, which is read-only; expected an input or a buffer"
            )));
        }
        Ok(id)
    }

    fn zero(&mut self) -> SizeId {
        self.sizes.leaf(Node::Const(0))
    }

    fn one(&mut self) -> SizeId {
        self.sizes.leaf(Node::Const(1))
    }
}

fn twice(name: &str, place: &Path<'_>) -> Error {
    place.error(format_args!("{name:?} a second time, expected distinct names"))
}

fn check_name(name: &str, place: &Path<'_>) -> Result<(), Error> {
    check_text(name, limits::NAME_BYTES, place)
}

/// Names of free dimensions stand in formulas.
fn check_free_name(name: &str, place: &Path<'_>) -> Result<(), Error> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !plain || name.is_empty() || name.len() > limits::NAME_BYTES || name.as_bytes()[0].is_ascii_digit() {
        let max = limits::NAME_BYTES;
        return Err(place.error(format_args!(
            "{name:?}, expected 1 to {max} letters, digits and `_`, no digit at the start"
        )));
    }
    Ok(())
}

fn check_path(path: &str, place: &Path<'_>) -> Result<(), Error> {
    check_text(path, limits::PATH_BYTES, place)
}

fn check_text(text: &str, max: usize, place: &Path<'_>) -> Result<(), Error> {
    if text.is_empty() || text.len() > max || text.contains(char::is_control) {
        return Err(
            place.error(format_args!("{text:?}, expected 1 to {max} bytes without control characters"))
        );
    }
    Ok(())
}

fn check_len(len: usize, max: usize, place: &Path<'_>) -> Result<(), Error> {
    if len > max {
        return Err(place.error(format_args!("{len} entries, expected at most {max}")));
    }
    Ok(())
}
