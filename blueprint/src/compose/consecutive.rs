//! A composition that is not linked, and runs as consecutive calls: one of its functions is another owner's, or no device has code
//! of all of them. Names and element types are checked when it is registered; shapes and sizes show in its calls.

use std::collections::{HashMap, HashSet};

use super::constants::Array;
use super::function::Part;
use super::read_composition;
use super::wiring::{self, From, Run, Wiring};
use super::written::{Composition, Source as Written};
use crate::arrays::{Declared, Dimension};
use crate::error::{Mistakes, Notes, Path, text_of};
use crate::format::{NameOr, Sizing, Type};
use crate::read::{self, List};
use crate::types::DType;
use crate::write::{field, list};

/// Roughly the memory of names for each byte of their JSON.
const MEMORY_OF_TEXT: usize = 6;

/// What is registered for such a composition.
#[derive(Debug)]
pub struct Consecutive {
    /// A configuration without kernels: its inputs and outputs, with types where those are always the same.
    pub interface: Vec<u8>,
    /// Names of the functions that steps run, each once.
    pub functions: Vec<String>,
}

/// What its calls run.
#[derive(Debug)]
pub struct Steps {
    /// Names of what a call brings.
    pub inputs: Vec<String>,
    /// Arrays that are always the same.
    pub constants: Vec<Constant>,
    /// In the order in which they run.
    pub steps: Vec<Step>,
    /// The results, in their order.
    pub outputs: Vec<(String, Source)>,
    /// Roughly what all this takes in memory.
    pub approx_bytes: usize,
}

/// An array that is always the same.
#[derive(Debug)]
pub struct Constant {
    /// The type of an element.
    pub dtype: DType,
    /// Elements along each dimension, outermost first.
    pub shape: Vec<u64>,
    /// The elements.
    pub bytes: Vec<u8>,
}

/// Calls of one function.
#[derive(Debug)]
pub struct Step {
    /// What errors call it.
    pub name: String,
    /// The function: NAME of the composition's owner, OWNER/NAME of another.
    pub function: String,
    /// Where each of the function's inputs comes from.
    pub inputs: Vec<(String, Source)>,
    /// The items that the function is called for, one after the other.
    pub each: Option<Items>,
    /// How often the function is called, each time with outputs of the time before.
    pub times: u64,
    /// Outputs, and the inputs that they are next time.
    pub feed: Vec<(String, String)>,
}

/// Items of a step.
#[derive(Debug)]
pub struct Items {
    /// How many.
    pub count: u64,
    /// The inputs that consist of items.
    pub inputs: Vec<String>,
}

/// Where bytes come from.
#[derive(Debug)]
pub enum Source {
    /// An input of the composition.
    Input(usize),
    /// A constant.
    Constant(usize),
    /// An output of an earlier step: without a name, the only one.
    Output {
        /// The step.
        step: usize,
        /// The output.
        output: Option<String>,
    },
}

/// True if a step of a composition runs another owner's function.
pub fn names_others(json: &[u8]) -> bool {
    let Ok(text) = text_of(json) else { return false };
    let (written, ..) = read::document::<Composition>(text);
    let steps = written.and_then(|written| written.steps);
    steps.is_some_and(|steps| steps.iter().any(|(_, step)| step.function.contains('/')))
}

/// Checks a composition as far as that is possible before a call. `part` finds the function of a name; of another owner's,
/// [its interface](interface).
pub fn consecutive(json: &[u8], mut part: impl FnMut(&str) -> Option<Part>) -> Result<Consecutive, Mistakes> {
    let (written, mut notes) = read_composition(json)?;
    let wiring = wiring::resolve(&written, &mut notes, &mut part);
    compare_types(&wiring, &mut notes);
    if let Some(mistakes) = notes.finish() {
        return Err(mistakes);
    }
    let of = |from: &Option<From>| from.and_then(|from| declared(&wiring, from));
    let inputs = wiring.inputs.iter().enumerate().map(|(at, name)| {
        let used = |step: &Run| {
            let at = step.inputs.iter().position(|from| *from == Some(From::Input(at)))?;
            let function = &wiring.functions[step.function?];
            let declared = function.blueprint.declared(function.blueprint.inputs()[at])?;
            Some(if step.is_item(at) { with_items(declared, step.runs()) } else { declared })
        };
        (&**name, wiring.steps.iter().find_map(used))
    });
    let outputs = wiring.outputs.iter().map(|(name, from)| (&**name, of(from)));
    let interface = interface(&inputs.collect::<Vec<_>>(), &outputs.collect::<Vec<_>>());
    let functions = wiring.functions.iter().map(|function| function.name.clone()).collect();
    Ok(Consecutive { interface, functions })
}

/// What a composition's own text says of a function: the inputs that its steps give it, and the outputs that others take. For a
/// look at the composition where the function is not.
pub fn as_used(json: &[u8], function: &str) -> Option<Part> {
    let steps = steps(json).ok()?;
    let (mut inputs, mut outputs): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let runs = |step: &Step| step.function == function;
    for step in steps.steps.iter().filter(|step| runs(step)) {
        inputs.extend(step.inputs.iter().map(|(name, _)| name.as_str()));
        outputs.extend(step.feed.iter().map(|(output, _)| output.as_str()));
    }
    let taken = steps.steps.iter().flat_map(|step| &step.inputs).chain(&steps.outputs);
    for (_, source) in taken {
        if let Source::Output { step, output } = source
            && runs(&steps.steps[*step])
        {
            outputs.extend(output.as_deref());
        }
    }
    if outputs.is_empty() {
        outputs.push("output");
    }
    [&mut inputs, &mut outputs].into_iter().for_each(once_each);
    let untyped = |names: Vec<_>| names.into_iter().map(|name: &str| (name, None)).collect::<Vec<_>>();
    Some(Part { config: interface(&untyped(inputs), &untyped(outputs)), ..Part::default() })
}

/// Keeps the first of each name.
fn once_each(names: &mut Vec<&str>) {
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
}

/// A configuration without kernels, of these inputs and outputs. An input with free dimensions has them, as calls bring its shape then;
/// others, and outputs, have no shape where a dimension is not always the same. Outputs then have no size that could be told.
pub fn interface(inputs: &[(&str, Option<Declared>)], outputs: &[(&str, Option<Declared>)]) -> Vec<u8> {
    let (mut types, mut buffers) = ("{".to_owned(), "{".to_owned());
    for (name, declared) in inputs {
        let Some(Declared { dtype, shape }) = declared else { continue };
        let dimension = |(at, dim): (usize, &Dimension)| match dim {
            Dimension::Fixed(value) => Some(Sizing::Absolute(*value)),
            Dimension::Free(_) | Dimension::Computed => Some(Sizing::Free(format!("{name}_{at}").into())),
        };
        // Computed dimensions alone are those of the bytes that come.
        let is_brought = |dims: &&Vec<Dimension>| {
            dims.iter().any(|dim| matches!(dim, Dimension::Free(_))) || !dims.contains(&Dimension::Computed)
        };
        let shape = shape.as_ref().filter(is_brought);
        let shape = shape.map(|dims| List(dims.iter().enumerate().map(dimension).collect()));
        field(name, &Type { dtype: *dtype, shape }, &mut types);
    }
    // An input that a function changes is an output of the same name.
    for (name, declared) in outputs.iter().filter(|(name, _)| inputs.iter().all(|(input, _)| input != name)) {
        let fixed = |dim: &Dimension| match dim {
            Dimension::Fixed(value) => Some(*value),
            Dimension::Free(_) | Dimension::Computed => None,
        };
        let shape = declared.as_ref().and_then(|of| of.shape.as_ref()?.iter().map(fixed).collect());
        let shape: Option<Vec<u64>> = shape;
        let mut bytes = 0;
        if let Some(of) = declared {
            let elements =
                shape.as_ref().map(|dims| dims.iter().fold(1u64, |all, dim| all.saturating_mul(*dim)));
            bytes = elements.map_or(0, |elements| elements.saturating_mul(of.dtype.bytes()));
            let shape =
                shape.map(|dims| List(dims.into_iter().map(|dim| Some(Sizing::Absolute(dim))).collect()));
            field(name, &Type { dtype: of.dtype, shape }, &mut types);
        }
        field(name, &Sizing::Absolute(bytes), &mut buffers);
    }
    let names = |of: &[(&str, Option<Declared>)]| {
        let mut text = String::new();
        list(&of.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>(), &mut text);
        text
    };
    let (inputs, outputs) = (names(inputs), names(outputs));
    let config = format!(
        r#"{{"modules":[],"kernels":[],"blueprint":{{"inputs":{inputs},"buffers":{buffers}}},"outputs":{outputs},"types":{types}}},"control_flow":[]}}}}"#
    );
    config.into_bytes()
}

/// Reads what calls of a composition run, which was checked when it was registered.
pub fn steps(json: &[u8]) -> Result<Steps, Mistakes> {
    let (written, mut notes) = read_composition(json)?;
    let inputs: Vec<String> =
        written.inputs.iter().flat_map(|list| list.iter()).map(|(_, name)| name.clone()).collect();
    let mut names: HashMap<&str, Source> = HashMap::new();
    for (at, name) in inputs.iter().enumerate() {
        names.insert(name, Source::Input(at));
    }
    let (mut constants, mut used) = (Vec::new(), 0);
    for (name, constant) in written.constants.iter().flat_map(|map| &map.0) {
        let array =
            constant.as_ref().and_then(|one| Array::of(one, &mut used, &Path::Root.key(name), &mut notes));
        let Some(Array { dtype, shape, bytes }) = array else { continue };
        names.insert(name, Source::Constant(constants.len()));
        constants.push(Constant { dtype, shape, bytes });
    }
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut all = Vec::new();
    for (at, step) in written.steps.iter().flat_map(|list| list.iter()) {
        let source = |source: &Option<Written>| find(source.as_ref()?, &names, &places);
        let inputs = step.inputs.iter().flat_map(|map| &map.0);
        let items = |each: &super::written::Each| Items {
            count: each.items,
            inputs: each.inputs.iter().map(ToString::to_string).collect(),
        };
        let feed = step.feed.iter().flat_map(|map| &map.0);
        all.push(Step {
            name: step.name.clone(),
            function: step.function.clone(),
            inputs: inputs.filter_map(|(name, from)| Some((name.clone(), source(from)?))).collect(),
            each: step.each.as_ref().map(items),
            times: step.times.unwrap_or(1),
            feed: feed.filter_map(|(from, to)| Some((from.clone(), to.as_ref()?.to_string()))).collect(),
        });
        places.insert(&step.name, at);
    }
    let outputs = written.outputs.iter().flat_map(|map| &map.0);
    let outputs =
        outputs.filter_map(|(name, from)| Some((name.clone(), find(from.as_ref()?, &names, &places)?)));
    let outputs = outputs.collect();
    match notes.finish() {
        Some(mistakes) => Err(mistakes),
        None => {
            let constant_bytes =
                constants.iter().map(|constant: &Constant| constant.bytes.len()).sum::<usize>();
            let approx_bytes = constant_bytes + MEMORY_OF_TEXT * json.len();
            Ok(Steps { inputs, constants, steps: all, outputs, approx_bytes })
        }
    }
}

fn find(written: &Written, names: &HashMap<&str, Source>, places: &HashMap<&str, usize>) -> Option<Source> {
    Some(match written {
        NameOr::Name(name) => match names.get(name.as_str())? {
            Source::Constant(at) => Source::Constant(*at),
            Source::Input(at) => Source::Input(*at),
            Source::Output { .. } => return None,
        },
        NameOr::Object(of) => {
            let output = of.output.as_ref().map(ToString::to_string);
            Source::Output { step: *places.get(of.step.as_str())?, output }
        }
    })
}

/// What is declared of the bytes of an edge.
fn declared(wiring: &Wiring, from: From) -> Option<Declared> {
    match from {
        From::Input(_) => None,
        From::Constant(at) => {
            let array = wiring.constants[at].as_ref()?;
            let shape = array.shape.iter().map(|dim| Dimension::Fixed(*dim)).collect();
            Some(Declared { dtype: array.dtype, shape: Some(shape) })
        }
        From::Output { step, output } => {
            let step = &wiring.steps[step];
            let blueprint = &wiring.functions[step.function?].blueprint;
            let declared = blueprint.declared(blueprint.outputs()[output])?;
            Some(if step.items.is_some() { with_items(declared, step.runs()) } else { declared })
        }
    }
}

/// An array of so many items like this.
fn with_items(mut item: Declared, count: u64) -> Declared {
    if let Some(shape) = &mut item.shape {
        shape.insert(0, Dimension::Fixed(count));
    }
    item
}

/// Notes edges between different element types.
fn compare_types(wiring: &Wiring, notes: &mut Notes<'_>) {
    let root = Path::Root;
    let steps = &root.key("steps");
    for (at, step) in wiring.steps.iter().enumerate() {
        let Some(function) = step.function.map(|function| &wiring.functions[function]) else { continue };
        for (input, from) in step.inputs.iter().enumerate() {
            let came = from.and_then(|from| declared(wiring, from));
            let wanted = function.blueprint.declared(function.blueprint.inputs()[input]);
            let (Some(came), Some(wanted)) = (came, wanted) else { continue };
            if came.dtype != wanted.dtype {
                let (wanted, came) = (wanted.dtype.name(), came.dtype.name());
                let (step, name) = (steps.index(at), &function.inputs.list[input]);
                notes.note(&step.key("inputs").key(name), format_args!("{wanted} is wanted, {came} came"));
            }
        }
    }
}
