//! The inputs and outputs of one call, all in one arena. The plan gives the outputs' sizes: it is made here from
//! the registered configuration, just as the supervisor will make it. Of another tenant's function names and types are
//! known; an output whose size does not follow from them gets room to spare.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use pappus_blueprint::{Blueprint, DType, Known, PRINTED, Plan, Shape, hints, parse};
use pappus_client::arena::{Arena, aligned};
use pappus_client::{Client, Error, Invocation, npy, v1};
use serde_json::{Value, json};

use crate::arguments::{Assignment, Destination, InvokeArguments};
use crate::failure::{Failure, Result};
use crate::input::declared::{self, Signature};
use crate::input::{self, Input, Typed};
use crate::picture::{self, Format};
use crate::units;

/// Room for an output of unknown size of another tenant's function. On the CPU device only what is written takes memory; a GPU pins
/// all of it.
const UNKNOWN_BYTES: u64 = 64 << 20;
/// Numbers of an output that a terminal shows.
const SHOWN_NUMBERS: u64 = 1000;
/// Bytes of an output that may be part of a JSON object.
const JSON_BYTES: u64 = 16 << 20;
/// Bytes copied at once between files and the arena.
const COPY_BYTES: usize = 1 << 20;

/// An arena with the inputs in it and room for the outputs.
pub(in crate::command) struct Data {
    pub(in crate::command) arena: Arena,
    pub(in crate::command) inputs: Vec<Input>,
    pub(in crate::command) outputs: Vec<Output>,
    /// Items by the name of their input, in order.
    items: Vec<(String, v1::Region)>,
    /// What inputs hold, where they say so.
    types: Vec<Typed>,
    /// What the function was when it was asked for.
    version: u64,
    /// True if the function has state: its calls are in a session.
    has_state: bool,
    /// True if an output has room to spare, since nobody told its size.
    guesses_sizes: bool,
    /// The devices that have the function's code and weights before the call; nothing where it is called more than once.
    warm_on: Option<Vec<String>>,
}

/// An output of the function.
pub(in crate::command) struct Output {
    pub(in crate::command) name: String,
    pub(in crate::command) region: v1::Region,
    /// Where to write it, if anywhere.
    pub(in crate::command) to: Option<Destination>,
}

impl Data {
    /// Reads the inputs and makes room for the outputs.
    pub(in crate::command) fn prepare(client: &mut Client, arguments: &InvokeArguments) -> Result<Self> {
        let function = client.show_function(&arguments.name)?;
        // Of others' functions, and of compositions whose steps are calls, sizes are not told.
        if function.config.is_empty() {
            return Self::of_another(client, &function, arguments);
        }
        let mut blueprint = parse(function.config.as_bytes())?;
        let own_outputs = blueprint.returned().len();
        if arguments.is_checked() {
            blueprint = blueprint.checked()?;
        }
        let names = blueprint.brought().iter().map(|id| blueprint.buffers()[id.index()].name.as_str());
        let declared = |name: &str| blueprint.input_type(name);
        let inputs = open_inputs(&names.collect::<Vec<_>>(), declared, arguments)?;
        let (known, types) = known(&blueprint, &inputs, &function)?;
        let plan = input::plan(&blueprint, &known)?.ok_or_else(|| {
            Failure::Refused(format!(
                "the supervisor does not say how large the weights of {} are",
                function.name
            ))
        })?;
        check_outputs(&blueprint, &plan, arguments)?;

        let sizes = inputs.iter().flat_map(|input| input.items.iter().map(input::Item::bytes));
        let output_sizes = blueprint.returned().iter().map(|id| plan.buffers[id.index()].bytes);
        let bytes = sizes.chain(output_sizes).fold(0, |sum: u64, bytes| sum.saturating_add(aligned(bytes)));
        // A function without data still gets an arena that can be mapped.
        let mut arena = client.open_arena(bytes.max(aligned(1)))?;
        Ok(Self {
            items: load(&mut arena, &inputs)?,
            outputs: place_outputs(&mut arena, &blueprint, plan, own_outputs, arguments)?,
            inputs,
            types,
            version: function.version,
            has_state: function.state_bytes > 0,
            guesses_sizes: false,
            arena,
            warm_on: (arguments.repeat == 1).then_some(function.warm_on),
        })
    }

    /// As [`Data::prepare`], for a function whose configuration is not told.
    fn of_another(
        client: &mut Client,
        granted: &v1::FunctionInfo,
        arguments: &InvokeArguments,
    ) -> Result<Self> {
        let signature = Signature::told(granted);
        let inputs = open_inputs(&signature.names(), |_| None, arguments)?;
        let bound = signature.bind(&inputs)?;
        let names: Vec<&str> = granted.outputs.iter().map(|output| output.name.as_str()).collect();
        for Assignment { name, value: to } in &arguments.outputs {
            let at = position(&names, name, arguments)?;
            let dtype = DType::named(&granted.outputs[at].dtype);
            check_stdout(name, to, dtype, arguments)?;
            if let Destination::File(path) = to {
                Format::to_write(path, name)?;
            }
            if let Some(path) = npy_path(to) {
                let dtype = dtype.ok_or_else(|| {
                    Failure::Refused(format!(
                        "{}: only the owner of {} knows what {name:?} holds: write raw bytes to a file that does not end \
                         in .npy",
                        path.display(),
                        arguments.name
                    ))
                })?;
                npy_type(name, path, Some(dtype))?;
            }
        }
        let told = |output: &v1::OutputInfo| declared::output_bytes(output, &bound.free);
        let room = |output: &v1::OutputInfo| told(output).unwrap_or(UNKNOWN_BYTES);
        let guesses_sizes = granted.outputs.iter().any(|output| told(output).is_none());
        let sizes = inputs.iter().flat_map(|input| input.items.iter().map(input::Item::bytes));
        let sizes = sizes.chain(granted.outputs.iter().map(room));
        let bytes = sizes.fold(0, |sum: u64, bytes| sum.saturating_add(aligned(bytes)));
        let mut arena = client.open_arena(bytes.max(aligned(1)))?;
        let items = load(&mut arena, &inputs)?;
        let outputs = granted.outputs.iter().map(|output| {
            let region = arena.alloc(room(output))?;
            Ok(Output { name: output.name.clone(), region, to: destination_of(arguments, &output.name) })
        });
        let outputs = outputs.collect::<Result<_>>()?;
        let warm_on = (arguments.repeat == 1).then(|| granted.warm_on.clone());
        let (version, has_state) = (granted.version, granted.state_bytes > 0);
        let types = bound.arrays;
        Ok(Self { items, inputs, outputs, types, version, has_state, guesses_sizes, arena, warm_on })
    }

    /// True if the function has state.
    pub(super) fn has_state(&self) -> bool {
        self.has_state
    }

    /// True if only an answer tells how large an output is, and a call needs no session.
    pub(in crate::command) fn asks_for_sizes(&self) -> bool {
        self.guesses_sizes && !self.has_state
    }

    /// True if the call waited for code or weights.
    pub(in crate::command) fn has_loaded(&self, answer: &v1::Invoked) -> bool {
        self.warm_on.as_ref().is_some_and(|warm_on| !warm_on.contains(&answer.device))
    }

    /// What kernels of a checked call printed: lines of text, whatever bytes there are.
    pub(in crate::command) fn printed(&self, answer: &v1::Invoked) -> Result<String> {
        let Some(output) = self.outputs.iter().find(|output| output.name == PRINTED) else {
            return Ok(String::new());
        };
        let mut text = vec![0; output.bytes(answer) as usize];
        self.arena.read(output.region, 0, &mut text)?;
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).replace(|c: char| c.is_control() && c != '\n', "?"))
    }

    /// The inputs' bytes, by name.
    pub(in crate::command) fn contents(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let all = self.inputs.iter().map(|input| Ok((input.name.clone(), input.content()?)));
        all.collect()
    }

    /// What inputs hold, where they say so: name, type and shape.
    pub(in crate::command) fn types(&self) -> impl Iterator<Item = (String, &'static str, Vec<u64>)> {
        self.types.iter().map(|typed| (typed.input.clone(), typed.dtype.name(), typed.shape.clone()))
    }

    /// The call.
    pub(in crate::command) fn invocation(&self, function: &str) -> Invocation {
        let mut call = Invocation::new(function).made_for(self.version);
        for (name, region) in &self.items {
            call = call.input(name, *region);
        }
        for typed in &self.types {
            call = call.typed(&typed.input, typed.dtype.name(), &typed.shape);
        }
        for output in &self.outputs {
            call = call.output_to(&output.name, output.region);
        }
        call
    }
}

impl Output {
    /// How large it is; what lies beyond in its region is not the function's.
    pub(in crate::command) fn bytes(&self, answer: &v1::Invoked) -> u64 {
        let value = answer.outputs.iter().find(|value| value.name == self.name);
        value.map_or(0, |value| value.bytes).min(self.region.bytes)
    }

    /// Writes it to where it goes, if anywhere. An error names the output.
    pub(in crate::command) fn save(&self, arena: &Arena, answer: &v1::Invoked) -> Result<()> {
        self.save_to(arena, answer).map_err(|failure| match failure {
            Failure::Library(why @ Error::File { .. }) => {
                Failure::Refused(format!("output {:?} cannot be written: {why}", self.name))
            }
            other => other,
        })
    }

    fn save_to(&self, arena: &Arena, answer: &v1::Invoked) -> Result<()> {
        match &self.to {
            None => Ok(()),
            Some(Destination::Stdout) if std::io::stdout().is_terminal() => self.show(arena, answer),
            // Not through anstream, which takes sequences of bytes out that mean colours.
            Some(Destination::Stdout) => {
                self.write(arena, answer, &mut std::io::stdout().lock(), Path::new("stdout"))
            }
            Some(Destination::File(path)) => {
                let mut file = File::create(path).map_err(Error::file(path))?;
                if Format::to_write(path, &self.name)? == Format::Png {
                    let pixels = self.content(arena, answer)?;
                    return picture::write(path, &self.name, self.shape(answer).as_ref(), &pixels, &mut file);
                }
                file.write_all(&self.npy_header(path, answer)?).map_err(written(path))?;
                self.write(arena, answer, &mut file, path)
            }
        }
    }

    /// Shows its numbers as they are written behind `--input`.
    fn show(&self, arena: &Arena, answer: &v1::Invoked) -> Result<()> {
        let shape = self.shape(answer).ok_or_else(|| not_for_terminals(&self.name))?;
        let width = shape.dtype.bytes();
        let bytes = self.bytes(answer);
        let mut buffer = vec![0; bytes.min(SHOWN_NUMBERS * width) as usize];
        arena.read(self.region, 0, &mut buffer)?;
        let numbers = input::numbers(shape.dtype, &buffer).ok_or_else(|| not_for_terminals(&self.name))?;
        let dims: Vec<String> = shape.dims.iter().map(u64::to_string).collect();
        let (name, dtype, dims) = (&self.name, shape.dtype.name(), dims.join(","));
        let more = if bytes > buffer.len() as u64 { ",…" } else { "" };
        writeln!(std::io::stdout().lock(), "{name}={dtype}[{dims}]:{numbers}{more}").map_err(Failure::Print)
    }

    fn write(&self, arena: &Arena, answer: &v1::Invoked, to: &mut dyn Write, path: &Path) -> Result<()> {
        let bytes = self.bytes(answer);
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < bytes {
            let chunk = &mut buffer[..COPY_BYTES.min((bytes - at) as usize)];
            arena.read(self.region, at, chunk)?;
            to.write_all(chunk).map_err(written(path))?;
            at += chunk.len() as u64;
        }
        to.flush().map_err(written(path))
    }

    /// All its bytes.
    fn content(&self, arena: &Arena, answer: &v1::Invoked) -> Result<Vec<u8>> {
        let mut content = vec![0; self.bytes(answer) as usize];
        arena.read(self.region, 0, &mut content)?;
        Ok(content)
    }

    /// Its numbers, where they go to stdout.
    fn values(&self, arena: &Arena, answer: &v1::Invoked) -> Result<Option<Vec<Value>>> {
        if self.to != Some(Destination::Stdout) {
            return Ok(None);
        }
        check_json_bytes(&self.name, self.bytes(answer))?;
        let content = self.content(arena, answer)?;
        let values = self.shape(answer).and_then(|shape| input::values(shape.dtype, &content));
        values.map(Some).ok_or_else(|| not_for_json(&self.name))
    }

    /// The output's name and type, and its file or numbers.
    pub(in crate::command) fn to_json(&self, arena: &Arena, answer: &v1::Invoked) -> Result<Value> {
        let mut value = json!({
            "name": self.name,
            "bytes": self.bytes(answer),
            "dtype": self.shape(answer).map(|shape| shape.dtype),
            "shape": self.shape(answer).map(|shape| shape.dims),
            "file": self.to.as_ref().map(Destination::to_string),
        });
        if let Some(values) = self.values(arena, answer)? {
            value["values"] = values.into();
        }
        Ok(value)
    }

    /// Its type and dimensions, if the function declares them.
    fn shape(&self, answer: &v1::Invoked) -> Option<Shape> {
        let value = answer.outputs.iter().find(|value| value.name == self.name)?;
        Some(Shape { dtype: DType::named(&value.dtype)?, dims: value.shape.clone() })
    }

    /// What stands in front of the data: nothing in a raw file.
    fn npy_header(&self, path: &Path, answer: &v1::Invoked) -> Result<Vec<u8>> {
        if !npy::is_npy(path) {
            return Ok(Vec::new());
        }
        let shape = self.shape(answer);
        let descr = npy_type(&self.name, path, shape.as_ref().map(|shape| shape.dtype))?;
        Ok(npy::header(descr, shape.as_ref().map_or(&[], |shape| &shape.dims)))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// A pipe whose reader is gone ends the command quietly; anything else is an error of the file.
fn written(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::Print(error),
        _ => Error::file(path)(error).into(),
    }
}

/// Opens everything that every input is made of. Names and number must be the function's, which declares these types.
fn open_inputs(
    names: &[&str],
    declared: impl Fn(&str) -> Option<DType>,
    arguments: &InvokeArguments,
) -> Result<Vec<Input>> {
    if let Some(unknown) = arguments.inputs.iter().find(|input| !names.contains(&input.name.as_str())) {
        let function = &arguments.name;
        return Err(Failure::Refused(format!(
            "{function} has no input {:?}, expected {names:?}",
            unknown.name
        )));
    }
    let inputs = names.iter().map(|&name| {
        let given = arguments.inputs.iter().find(|input| input.name == name);
        let given = given.ok_or_else(|| {
            Failure::Refused(format!(
                "input {name:?} of {} is missing: add --input {name}=FILE",
                arguments.name
            ))
        })?;
        Input::open(name, &given.value, declared(name))
    });
    inputs.collect()
}

fn known(
    blueprint: &Blueprint,
    inputs: &[Input],
    function: &v1::FunctionInfo,
) -> Result<(Known, Vec<Typed>)> {
    let mut known = Known::default();
    let types = input::learn(&mut known, blueprint, inputs)?;
    known.weights.extend(function.weights.iter().map(|weight| (weight.name.clone(), weight.bytes)));
    Ok((known, types))
}

/// Everything about output files that can be wrong is found before the function runs.
fn check_outputs(blueprint: &Blueprint, plan: &Plan, arguments: &InvokeArguments) -> Result<()> {
    let names = blueprint.returned().iter().map(|id| blueprint.buffers()[id.index()].name.as_str());
    let names: Vec<&str> = names.collect();
    for Assignment { name, value: to } in arguments.written() {
        let at = position(&names, name, arguments)?;
        let shape = plan.output_shapes[at].as_ref();
        let dtype = shape.map(|shape| shape.dtype);
        check_stdout(name, to, dtype, arguments)?;
        match to {
            Destination::Stdout if arguments.json.json => {
                check_json_bytes(name, plan.buffers[blueprint.returned()[at].index()].bytes)?;
            }
            Destination::Stdout => {}
            Destination::File(path) if Format::to_write(path, name)? == Format::Png => {
                picture::check(path, name, shape)?
            }
            Destination::File(path) if npy::is_npy(path) => npy_type(name, path, dtype).map(|_| ())?,
            Destination::File(_) => {}
        }
    }
    Ok(())
}

/// Checks that an output of this type can go to its destination, if that is a terminal or a JSON object.
fn check_stdout(
    name: &str,
    to: &Destination,
    dtype: Option<DType>,
    arguments: &InvokeArguments,
) -> Result<()> {
    let is_shown = dtype.is_some_and(|dtype| input::numbers(dtype, &[]).is_some());
    match *to == Destination::Stdout && !is_shown {
        true if arguments.json.json => Err(not_for_json(name)),
        true if std::io::stdout().is_terminal() => Err(not_for_terminals(name)),
        _ => Ok(()),
    }
}

/// An output whose numbers would make the object too large.
fn check_json_bytes(name: &str, bytes: u64) -> Result<()> {
    match bytes > JSON_BYTES {
        true => Err(Failure::Refused(format!(
            "output {name:?} has {}, and at most {} MiB of numbers stand in a JSON object: name a file",
            units::size(bytes),
            JSON_BYTES >> 20
        ))),
        false => Ok(()),
    }
}

/// An output that cannot be part of a JSON object.
fn not_for_json(name: &str) -> Failure {
    Failure::Refused(format!(
        "with --json stdout is one JSON object, and {name:?} has no numbers that could be part of it (its type is not \
         declared, or is a float of 8 or 16 bits): name a file in place of -"
    ))
}

/// An output that cannot be shown on a terminal: its type is not declared, or there are no numbers of it.
fn not_for_terminals(name: &str) -> Failure {
    Failure::Refused(format!("stdout is a terminal: pass {name:?} on with `| …`, or name a file"))
}

/// Where an output stands among all.
fn position(names: &[&str], name: &str, arguments: &InvokeArguments) -> Result<usize> {
    let function = &arguments.name;
    let is_dump = arguments.dumps.iter().any(|dump| dump.name == name);
    let noun = if is_dump { "buffer" } else { "output" };
    let there = || hints::listed(names.iter().copied().filter(|name| *name != PRINTED));
    let near = hints::nearest(name, names.iter().copied());
    let unknown = || Failure::Refused(format!("{function} has no {noun} {name:?}{near}; it has {}", there()));
    names.iter().position(|other| *other == name).ok_or_else(unknown)
}

/// The `.npy` file that an output goes to.
fn npy_path(to: &Destination) -> Option<&Path> {
    match to {
        Destination::File(path) if npy::is_npy(path) => Some(path),
        _ => None,
    }
}

/// Where an output goes, if anywhere.
fn destination_of(arguments: &InvokeArguments, name: &str) -> Option<Destination> {
    arguments.written().find(|output| output.name == name).map(|output| output.value.clone())
}

/// NumPy's name of an output's element type.
fn npy_type(name: &str, path: &Path, dtype: Option<DType>) -> Result<&'static str> {
    let path = path.display();
    let Some(dtype) = dtype else {
        return Err(Failure::Refused(format!(
            "{path}: the blueprint does not say what {name:?} holds: add \"types\": {{\"{name}\": {{\"dtype\": …}}}} \
             to it, or write raw bytes to a file that does not end in .npy"
        )));
    };
    npy::descr(dtype).ok_or_else(|| {
        Failure::Refused(format!(
            "{path}: NumPy has no type for {} elements: write raw bytes to a file that does not end in .npy",
            dtype.name()
        ))
    })
}

/// Copies every item into a region of its own.
fn load(arena: &mut Arena, inputs: &[Input]) -> Result<Vec<(String, v1::Region)>> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut items = Vec::new();
    for input in inputs {
        for item in &input.items {
            let region = arena.alloc(item.bytes())?;
            let mut at = 0;
            while at < region.bytes {
                let chunk = &mut buffer[..COPY_BYTES.min((region.bytes - at) as usize)];
                item.read(at, chunk)?;
                arena.write(region, at, chunk)?;
                at += chunk.len() as u64;
            }
            items.push((input.name.clone(), region));
        }
    }
    Ok(items)
}

/// Room for the function's own outputs, which come first, and for other buffers of a checked call that are wanted.
fn place_outputs(
    arena: &mut Arena,
    blueprint: &Blueprint,
    plan: Plan,
    own_outputs: usize,
    arguments: &InvokeArguments,
) -> Result<Vec<Output>> {
    let mut outputs = Vec::new();
    for (nth, id) in blueprint.returned().iter().enumerate() {
        let name = &blueprint.buffers()[id.index()].name;
        let to = destination_of(arguments, name);
        if nth < own_outputs || to.is_some() || name == PRINTED {
            let region = arena.alloc(plan.buffers[id.index()].bytes)?;
            outputs.push(Output { name: name.clone(), region, to });
        }
    }
    Ok(outputs)
}
