//! Names of a composition, resolved: which function each step runs, and where each input comes from. Every mistake is noted,
//! and what it concerns is left out.

use std::collections::{HashMap, HashSet};

use super::constants::Array;
use super::function::{Function, Names, Part};
use super::written::{Composition, Each, Source, Step};
use crate::error::{Notes, Path};
use crate::format::NameOr;
use crate::hints::{listed, nearest};
use crate::limits;
use crate::place::is_plain;
use crate::read::Map;

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum From {
    /// An input of the composition.
    Input(usize),
    /// A constant.
    Constant(usize),
    /// An output of a step.
    Output { step: usize, output: usize },
}

/// A step; what could not be resolved of it is missing.
pub(super) struct Run {
    pub(super) name: String,
    pub(super) function: Option<usize>,
    /// By the function's inputs.
    pub(super) inputs: Vec<Option<From>>,
    pub(super) items: Option<Items>,
    pub(super) times: u64,
    /// Outputs, and the inputs that they are next time.
    pub(super) feed: Vec<(usize, usize)>,
}

/// The items that a step is run for.
pub(super) struct Items {
    pub(super) count: u64,
    /// By the function's inputs: true if the input consists of items.
    pub(super) inputs: Vec<bool>,
}

impl Run {
    /// True if this input consists of items.
    pub(super) fn is_item(&self, input: usize) -> bool {
        self.items.as_ref().is_some_and(|items| items.inputs[input])
    }

    /// How many runs of its function the step is, but for repetitions.
    pub(super) fn runs(&self) -> u64 {
        self.items.as_ref().map_or(1, |items| items.count)
    }
}

/// A composition whose names are resolved.
#[derive(Default)]
pub(super) struct Wiring {
    pub(super) inputs: Vec<String>,
    pub(super) constants: Vec<Option<Array>>,
    /// Those that steps run, each once.
    pub(super) functions: Vec<Function>,
    pub(super) steps: Vec<Run>,
    pub(super) outputs: Vec<(String, Option<From>)>,
    /// True if the steps are beyond a limit, which was noted.
    pub(super) is_too_much: bool,
}

/// Resolves the names of a composition; `part` finds a function.
pub(super) fn resolve(
    written: &Composition,
    notes: &mut Notes<'_>,
    part: &mut dyn FnMut(&str) -> Option<Part>,
) -> Wiring {
    let unsure = written.inputs.as_ref().is_none_or(|inputs| inputs.0.iter().any(Option::is_none))
        || written.steps.as_ref().is_none_or(|steps| steps.0.iter().any(Option::is_none));
    let mut resolver =
        Resolver { wiring: Wiring::default(), notes, names: HashMap::new(), steps: HashMap::new(), unsure };
    resolver.inputs(written);
    resolver.steps(written, part);
    resolver.outputs(written);
    resolver.wiring
}

struct Resolver<'w, 'n, 'j> {
    wiring: Wiring,
    notes: &'n mut Notes<'j>,
    /// Inputs and constants.
    names: HashMap<&'w str, From>,
    /// Places of steps.
    steps: HashMap<&'w str, usize>,
    /// True if some names could not be read: others may be unknown for that reason alone.
    unsure: bool,
}

impl<'w> Resolver<'w, '_, '_> {
    fn inputs(&mut self, written: &'w Composition) {
        let root = Path::Root;
        let list = &root.key("inputs");
        for (at, name) in written.inputs.iter().flat_map(|inputs| inputs.iter()) {
            let from = From::Input(self.wiring.inputs.len());
            self.name(name, from, &list.index(at));
            self.wiring.inputs.push(name.clone());
        }
        let map = &root.key("constants");
        let mut used = 0;
        for (name, constant) in written.constants.iter().flat_map(|constants| &constants.0) {
            let place = &map.key(name);
            let from = From::Constant(self.wiring.constants.len());
            self.name(name, from, place);
            let array =
                constant.as_ref().and_then(|constant| Array::of(constant, &mut used, place, self.notes));
            self.wiring.constants.push(array);
        }
    }

    fn name(&mut self, name: &'w str, from: From, place: &Path<'_>) {
        self.check_name(name, limits::NAME_BYTES, place);
        if self.names.insert(name, from).is_some() {
            self.notes.note(place, format_args!("{name:?} a second time, expected distinct names"));
        }
    }

    fn check_name(&mut self, name: &str, most: usize, place: &Path<'_>) {
        if !is_plain(name) || name.len() > most {
            self.notes
                .note(place, format_args!("{name:?}, expected 1 to {most} letters, digits, `_` and `-`"));
        }
    }

    fn steps(&mut self, written: &'w Composition, part: &mut dyn FnMut(&str) -> Option<Part>) {
        let root = Path::Root;
        let list = &root.key("steps");
        let all = written.steps.as_ref().map_or(&[][..], |steps| &steps.0);
        if all.is_empty() && written.steps.is_some() {
            self.notes.note(list, "no step, expected at least one");
        }
        for (at, step) in all.iter().enumerate() {
            let Some(step) = step else { continue };
            let place = &list.index(at);
            let place = &place.key("name");
            self.check_name(&step.name, limits::STEP_NAME_BYTES, place);
            if self.steps.insert(&step.name, at).is_some() {
                self.notes
                    .note(place, format_args!("a second step {:?}, expected distinct names", step.name));
            }
        }
        let mut functions = HashMap::new();
        let mut json_bytes = 0;
        for (at, step) in all.iter().enumerate() {
            let place = &list.index(at);
            let Some(step) = step else {
                // It has its place still: steps are called by it.
                self.wiring.steps.push(Run {
                    name: String::new(),
                    function: None,
                    inputs: Vec::new(),
                    items: None,
                    times: 1,
                    feed: Vec::new(),
                });
                continue;
            };
            let function = match functions.get(step.function.as_str()) {
                Some(known) => *known,
                None => {
                    let found = self.function(&step.function, part, &mut json_bytes, &place.key("function"));
                    functions.insert(step.function.as_str(), found);
                    found
                }
            };
            let run = self.step(at, step, function, place);
            self.wiring.steps.push(run);
        }
        let runs = self.wiring.steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.runs()));
        if runs > limits::RUNS {
            self.wiring.is_too_much = true;
            let most = limits::RUNS;
            self.notes.note(list, format_args!("{runs} runs of functions in all, expected at most {most}"));
        }
        let sizes: usize = (self.wiring.steps.iter().filter_map(|step| step.function))
            .map(|function| self.wiring.functions[function].blueprint.sizes.nodes().len())
            .sum();
        let buffers = self.wiring.steps.iter().filter_map(|step| Some((step.runs(), step.function?)));
        let buffers = buffers.fold(0u64, |sum, (runs, function)| {
            let each = self.wiring.functions[function].blueprint.buffers.len() as u64;
            sum.saturating_add(runs.saturating_mul(each))
        });
        if buffers > limits::LINKED_BUFFERS {
            self.wiring.is_too_much = true;
            let most = limits::LINKED_BUFFERS;
            self.notes.note(
                list,
                format_args!("all runs have {buffers} inputs, weights and buffers, expected at most {most}"),
            );
        }
        if sizes > limits::LINKED_SIZES {
            self.wiring.is_too_much = true;
            let most = limits::LINKED_SIZES;
            self.notes.note(
                list,
                format_args!("the functions of all steps have {sizes} sizes, expected at most {most}"),
            );
        }
    }

    /// Finds the function of this name and reads it.
    fn function(
        &mut self,
        name: &str,
        part: &mut dyn FnMut(&str) -> Option<Part>,
        json_bytes: &mut usize,
        place: &Path<'_>,
    ) -> Option<usize> {
        let Some(part) = part(name) else {
            self.notes.note(place, format_args!("there is no function {name:?}"));
            return None;
        };
        *json_bytes += part.config.len();
        if *json_bytes > limits::JSON_BYTES {
            let (bytes, most) = (*json_bytes, limits::JSON_BYTES);
            let message = "bytes of JSON with the functions before, expected at most";
            self.notes.note(place, format_args!("{bytes} {message} {most}"));
            return None;
        }
        match Function::read(name, part) {
            Ok(function) if !function.blueprint.state().is_empty() => {
                let message = "has state, which calls of its own session keep; expected a function without";
                self.notes.note(place, format_args!("function {name:?} {message}"));
                None
            }
            Ok(function) => {
                self.wiring.functions.push(function);
                Some(self.wiring.functions.len() - 1)
            }
            Err(why) => {
                let first = why.first();
                self.notes.note(place, format_args!("function {name:?} is not valid: {first}"));
                None
            }
        }
    }

    fn step(&mut self, at: usize, step: &'w Step, function: Option<usize>, place: &Path<'_>) -> Run {
        let names = function.map(|function| {
            let function = &self.wiring.functions[function];
            (function.inputs.clone(), function.outputs.clone())
        });
        let (ins, outs) = names.unwrap_or_default();
        let mut inputs: Vec<Option<From>> = vec![None; ins.list.len()];
        let mut given = vec![false; ins.list.len()];
        let map = &place.key("inputs");
        for (name, source) in step.inputs.iter().flat_map(|inputs| &inputs.0) {
            let place = &map.key(name);
            let from = source.as_ref().and_then(|source| self.source(source, at, place));
            let Some(input) = self.position("input", name, &ins, place) else { continue };
            if std::mem::replace(&mut given[input], true) {
                self.notes.note(place, format_args!("{name:?} a second time, expected distinct names"));
            }
            inputs[input] = from;
        }
        if step.inputs.is_some() {
            let missing =
                ins.list.iter().zip(&given).filter(|(_, given)| !**given).map(|(name, _)| name.as_str());
            if missing.clone().next().is_some() {
                let missing = listed(missing);
                self.notes.note(map, format_args!("nothing comes to input {missing} of {:?}", step.function));
            }
        }
        let items = step.each.as_ref().and_then(|each| self.items(each, &ins, &place.key("each")));
        let times = step.times.unwrap_or(1);
        let feed = step.feed.as_ref().map(|feed| self.feed(feed, &ins, &outs, &place.key("feed")));
        let place = &place.key("times");
        match (&step.times, &step.feed) {
            (Some(times), _) if *times == 0 || *times > limits::EXPANDED_STEPS => {
                let most = limits::EXPANDED_STEPS;
                self.notes.note(place, format_args!("the value is {times}, expected 1 to {most}"));
            }
            (Some(2..), None) => {
                let message =
                    "every time would be the same: `feed` says which output is which input of the next time";
                self.notes.note(place, message);
            }
            (None, Some(_)) => {
                self.notes.note(place, "`feed` without `times`, which says how often the step runs")
            }
            _ => {}
        }
        Run { name: step.name.clone(), function, inputs, items, times, feed: feed.unwrap_or_default() }
    }

    fn items(&mut self, each: &Each, ins: &Names, place: &Path<'_>) -> Option<Items> {
        if each.items == 0 || each.items > limits::ITEMS {
            let (items, most) = (each.items, limits::ITEMS);
            self.notes.note(&place.key("items"), format_args!("the value is {items}, expected 1 to {most}"));
            return None;
        }
        let list = &place.key("inputs");
        let mut inputs = vec![false; ins.list.len()];
        for (at, name) in each.inputs.iter().enumerate() {
            if let Some(input) = self.position("input", name, ins, &list.index(at)) {
                inputs[input] = true;
            }
        }
        if each.inputs.is_empty() {
            self.notes.note(list, "no input, expected those that consist of items");
        }
        Some(Items { count: each.items, inputs })
    }

    fn feed(
        &mut self,
        feed: &Map<smol_str::SmolStr>,
        ins: &Names,
        outs: &Names,
        map: &Path<'_>,
    ) -> Vec<(usize, usize)> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        let mut fed = vec![false; ins.list.len()];
        for (output, input) in &feed.0 {
            let place = &map.key(output);
            let from = self.position("output", output, outs, place);
            let to = input.as_ref().and_then(|input| self.position("input", input, ins, place));
            let (Some(from), Some(to)) = (from, to) else { continue };
            if std::mem::replace(&mut fed[to], true) {
                self.notes.note(place, format_args!("input {:?} a second time, expected once", ins.list[to]));
            }
            // Such an output is the input's own bytes, which other outputs would overwrite.
            if ins.ids.contains_key(output) && ins.list[to] != *output {
                let message = "is an input that the function changes: it can be fed to itself only";
                self.notes.note(place, format_args!("output {output:?} {message}"));
            }
            pairs.push((from, to));
        }
        pairs
    }

    fn outputs(&mut self, written: &'w Composition) {
        let root = Path::Root;
        let map = &root.key("outputs");
        let all = written.outputs.as_ref().map_or(&[][..], |outputs| &outputs.0);
        if all.len() > limits::OUTPUTS {
            let (count, most) = (all.len(), limits::OUTPUTS);
            self.notes.note(map, format_args!("{count} outputs, expected at most {most}"));
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for (name, source) in all {
            let place = &map.key(name);
            self.check_name(name, limits::NAME_BYTES, place);
            if !seen.insert(name) || matches!(self.names.get(name.as_str()), Some(From::Input(_))) {
                self.notes.note(
                    place,
                    format_args!("{name:?} is an input or another output, expected distinct names"),
                );
            }
            let from = source.as_ref().and_then(|source| self.source(source, self.wiring.steps.len(), place));
            self.wiring.outputs.push((name.clone(), from));
        }
        let mut used = vec![false; self.wiring.inputs.len()];
        let edges = self.wiring.steps.iter().flat_map(|step| step.inputs.iter().flatten());
        for from in edges.chain(self.wiring.outputs.iter().filter_map(|(_, from)| from.as_ref())) {
            if let From::Input(input) = from {
                used[*input] = true;
            }
        }
        let list = &root.key("inputs");
        let unsure = self.unsure || self.wiring.steps.iter().any(|step| step.function.is_none());
        for (at, used) in used.iter().enumerate() {
            if !used && !unsure {
                let name = &self.wiring.inputs[at];
                self.notes.note(&list.index(at), format_args!("no step uses input {name:?}"));
            }
        }
    }

    /// Where an edge comes from, for the step at this place.
    fn source(&mut self, source: &Source, before: usize, place: &Path<'_>) -> Option<From> {
        let written = match source {
            NameOr::Name(name) => {
                let found = self.names.get(name.as_str()).copied();
                if found.is_none() && self.steps.contains_key(name.as_str()) {
                    self.notes
                        .note(place, format_args!("{name:?} is a step, expected {{\"step\": {name:?}}}"));
                } else if found.is_none() && !self.unsure {
                    let known = self.wiring.inputs.iter().map(String::as_str);
                    let (near, known) = (nearest(name, known.clone()), listed(known));
                    let message = "expected an input, a constant, or {\"step\": …}; inputs:";
                    self.notes.note(place, format_args!("unknown {name:?}{near}; {message} {known}"));
                }
                return found;
            }
            NameOr::Object(written) => written,
        };
        let wanted = written.step.as_str();
        let Some(&step) = self.steps.get(wanted) else {
            if !self.unsure {
                let known = self.wiring.steps.iter().map(|step| step.name.as_str());
                let (near, known) = (nearest(wanted, known.clone()), listed(known));
                let message = format_args!("unknown step {wanted:?}{near}; earlier steps: {known}");
                self.notes.note(&place.key("step"), message);
            }
            return None;
        };
        if step >= before {
            let message = "is not an earlier step: steps run in the order in which they are written";
            self.notes.note(&place.key("step"), format_args!("{wanted:?} {message}"));
            return None;
        }
        let outputs = self.wiring.functions[self.wiring.steps[step].function?].outputs.clone();
        let output = match (&written.output, outputs.list.len()) {
            (Some(output), _) => self.position("output", output, &outputs, &place.key("output"))?,
            (None, 1) => 0,
            (None, _) => {
                let all = listed(outputs.list.iter().map(String::as_str));
                self.notes.note(
                    place,
                    format_args!("step {wanted:?} has not one output, expected `output`: {all}"),
                );
                return None;
            }
        };
        Some(From::Output { step, output })
    }

    /// The place of a name among the inputs or outputs of a function.
    fn position(&mut self, what: &str, name: &str, all: &Names, place: &Path<'_>) -> Option<usize> {
        let found = all.ids.get(name).copied();
        if let (None, Some(function)) = (found, &all.function) {
            let known = all.list.iter().map(String::as_str);
            let (near, known) = (nearest(name, known.clone()), listed(known));
            let message = format_args!("{function:?} has no {what} {name:?}{near}; {what}s: {known}");
            self.notes.note(place, message);
        }
        found
    }
}
