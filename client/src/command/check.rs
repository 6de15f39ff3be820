//! `pappus function check`: everything that can be said about a configuration, and about the module files beside it,
//! without a supervisor.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use pappus_blueprint::{
    Amount, Blueprint, BufferDescription, Description, Isolation, Known, Mistakes, Role, describe, hints,
};
use pappus_client::compositions::{Composition, Edges};
use pappus_client::functions::Package;
use pappus_client::kernels as module_kernels;
use pappus_client::sharing::{self, Sharing};
use pappus_client::variants;
use pappus_client::{Error, archive};
use serde_json::{Value, json};

use super::sharing::{machine_code, print as print_sharing, to_json as sharing_to_json};
use crate::arguments::{Assignment, CheckArguments, SizeOrSpec};
use crate::failure::{Failure, Result};
use crate::input::{self, Input};
use crate::table::{Align, Table};
use crate::units;

/// Checks and describes one configuration, or checks all in a folder.
pub(crate) fn run(arguments: CheckArguments, out: &mut dyn Write) -> Result<()> {
    arguments.check().map_err(|why| Failure::Usage(why.to_string()))?;
    // A folder that is a package is one function.
    if arguments.config.is_dir() && !arguments.config.join(archive::CONFIG).is_file() {
        return check_folder(&arguments, out);
    }
    let weights = arguments.weights.into_iter().map(|weight| (weight.name, weight.value));
    let weights: Vec<_> = weights.collect();
    let examined = examine(&arguments.config, &weights, &arguments.inputs, arguments.functions.as_deref());
    if arguments.json.json {
        writeln!(out, "{}", as_json(&examined, arguments.strict))?;
    } else if let Ok(found) = &examined {
        found.print(&arguments.config, out)?;
    }
    let warned = examined?.warned();
    match warned > 0 && arguments.strict {
        true => Err(Failure::Refused(format!("{warned} warnings, none is allowed by --strict"))),
        false => Ok(()),
    }
}

/// What is found, or why nothing is.
fn as_json(examined: &Result<Findings>, strict: bool) -> Value {
    match examined {
        Ok(found) => {
            let mut value = found.to_json();
            value["valid"] = (!strict || found.warned() == 0).into();
            value
        }
        Err(Failure::Library(Error::Config { source, .. })) => {
            json!({"valid": false, "errors": places(source), "more_errors": source.more()})
        }
        Err(why) => json!({"valid": false, "errors": [{"message": why.to_string()}], "more_errors": 0}),
    }
}

/// Mistakes or warnings, each with its place.
fn places(all: &Mistakes) -> Value {
    let place = |one: &pappus_blueprint::Error| {
        let position = one.position;
        json!({
            "place": one.path,
            "line": position.map(|at| at.line),
            "column": position.map(|at| at.column),
            "message": one.message,
        })
    };
    all.iter().map(place).collect()
}

/// Checks every `.json` file of a folder; fails at the end if any is wrong.
fn check_folder(arguments: &CheckArguments, out: &mut dyn Write) -> Result<()> {
    let folder = &arguments.config;
    if !arguments.inputs.is_empty() || !arguments.weights.is_empty() {
        let message = "--input and --weight belong to one configuration: name its file instead of its folder";
        return Err(Failure::Usage(message.into()));
    }
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.map_err(Error::file(folder))?;
    let mut configs: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    configs.retain(|path| path.extension().is_some_and(|extension| extension == "json") && path.is_file());
    configs.sort_unstable();
    if configs.is_empty() {
        return Err(Failure::Refused(format!("{}: no .json file in this folder", folder.display())));
    }
    let mut wrong = 0;
    let mut all = Vec::new();
    for config in &configs {
        let examined = examine(config, &[], &[], arguments.functions.as_deref());
        let strictly = |found: &Findings| !arguments.strict || found.warned() == 0;
        wrong += usize::from(!examined.as_ref().is_ok_and(strictly));
        if arguments.json.json {
            let mut value = as_json(&examined, arguments.strict);
            value["config"] = json!(config);
            all.push(value);
            continue;
        }
        match examined {
            Ok(found) => {
                writeln!(out, "{}: a valid function", config.display())?;
                found.print_warnings(config, out)?;
                found.missing.print(out)?;
            }
            Err(why) => writeln!(out, "{}: not valid:\n{why}", config.display())?,
        }
    }
    if arguments.json.json {
        writeln!(out, "{}", json!({"valid": wrong == 0, "functions": all}))?;
    }
    match wrong {
        0 => Ok(()),
        wrong => {
            let (all, folder) = (configs.len(), folder.display());
            Err(Failure::Refused(format!("{wrong} of {all} configurations in {folder} are not valid")))
        }
    }
}

/// Checks a configuration as far as its inputs are known, and the module files beside it. A composition is linked with the
/// functions in a folder, beside it by default.
fn examine(
    config: &Path,
    weights: &[(String, PathBuf)],
    inputs: &[Assignment<SizeOrSpec>],
    functions: Option<&Path>,
) -> Result<Findings> {
    let composition = Composition::read(config)?;
    let package = match &composition {
        Some(_) if !weights.is_empty() => {
            return Err(Failure::Usage(
                "--weight belongs to a function: a composition has those of its functions".into(),
            ));
        }
        Some(composition) => composition.link(functions)?,
        None => Package::read(config, weights)?,
    };
    let opened = open_modules(&package)?;
    let known = known(&package, inputs)?;
    let description = describe(package.blueprint(), &known)?;
    // Errors that only some sizes have show in a plan.
    match input::plan(package.blueprint(), &known) {
        Err(Failure::Blueprint(error)) => package.refuse([error])?,
        other => drop(other?),
    }
    let free = package.blueprint().free_dimensions().iter();
    let unknown = free.filter(|name| !inputs.is_empty() && !known.free.contains_key(&***name));
    Ok(Findings {
        unknown: unknown.map(ToString::to_string).collect(),
        description,
        opened,
        isolation: package.blueprint().isolation(),
        kernels: kernels(package.blueprint()),
        batch: batch(package.blueprint()),
        missing: Missing::of(&package),
        warnings: package.warnings(),
        edges: composition.map(|composition| composition.edges(&package)),
    })
}

/// Everything that is told.
struct Findings {
    /// Free dimensions that the inputs do not tell, where some are given.
    unknown: Vec<String>,
    description: Description,
    opened: Vec<Opened>,
    isolation: Isolation,
    kernels: Vec<(String, Vec<String>)>,
    /// Along which dimension calls may run side by side, and how many items at once.
    batch: Option<(String, u64)>,
    missing: Missing,
    /// What is declared and nothing uses.
    warnings: Option<Mistakes>,
    /// Of a composition.
    edges: Option<Edges>,
}

/// A module file that was opened and fits.
struct Opened {
    module: String,
    path: PathBuf,
    tells: Tells,
    sharing: Sharing,
    /// What is told of sharing if the file is machine code.
    machine_code: &'static str,
}

/// How much a module file tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Parameters,
    Names,
    Nothing,
}

impl Tells {
    fn name(self) -> &'static str {
        match self {
            Self::Parameters => "kernels and parameters",
            Self::Names => "kernels",
            Self::Nothing => "nothing",
        }
    }
}

/// Opens every module file that is there. That some do not fit the blueprint is an error, which names all places.
fn open_modules(package: &Package) -> Result<Vec<Opened>> {
    let mut opened = Vec::new();
    let mut misfits: Vec<pappus_blueprint::Error> = Vec::new();
    for (at, module) in package.modules().iter().enumerate() {
        // What is wrong is told of the file that the configuration names, if that is one.
        let mut files: Vec<_> = module.files.iter().collect();
        files.sort_by_key(|file| file.path().file_name() != module.path.file_name());
        let has_ptx = files.iter().any(|file| file.format.name() == "ptx");
        for file in files {
            let mut tells = Tells::Nothing;
            for part in module_kernels::of_file(file)? {
                let Some(kernels) = part.kernels else { continue };
                // What does not fit one file does not fit its other forms either: each place is told once.
                for misfit in module_kernels::check(package.blueprint(), at, file.path(), &kernels) {
                    if misfits.iter().all(|other| other.path != misfit.path) {
                        misfits.push(misfit);
                    }
                }
                let told = kernels.iter().any(|kernel| kernel.info.params.is_some());
                tells = if told { Tells::Parameters } else { Tells::Names };
            }
            opened.push(Opened {
                module: module.name.clone(),
                path: file.path().to_owned(),
                tells,
                sharing: sharing::of_file(file)?,
                machine_code: machine_code(file.format.name(), has_ptx),
            });
        }
    }
    package.refuse(misfits)?;
    opened.sort_by(|one, other| (&one.module, &one.path).cmp(&(&other.module, &other.path)));
    Ok(opened)
}

fn batch(blueprint: &Blueprint) -> Option<(String, u64)> {
    let batch = blueprint.batch()?;
    Some((blueprint.free_dimensions()[batch.free].to_string(), batch.most))
}

/// What each kernel is launched with; one that is launched with different kinds of arguments is there for each.
fn kernels(blueprint: &Blueprint) -> Vec<(String, Vec<String>)> {
    let mut kernels: BTreeSet<(usize, Vec<String>)> = BTreeSet::new();
    for launch in blueprint.launches() {
        kernels.insert((launch.kernel, launch.params().map(|param| param.to_string()).collect()));
    }
    let named = |(kernel, params): (usize, Vec<String>)| (blueprint.kernels()[kernel].name.clone(), params);
    kernels.into_iter().map(named).collect()
}

/// What the arguments and the weights' files say.
fn known(package: &Package, inputs: &[Assignment<SizeOrSpec>]) -> Result<Known> {
    let mut known = Known::default();
    for weight in package.weights() {
        if let Some(data) = weight.data {
            known.weights.insert(weight.name.clone(), data.bytes);
        }
    }
    known.weights.extend(package.constants().map(|(name, bytes)| (name.to_owned(), bytes)));
    let mut opened = Vec::new();
    let blueprint = package.blueprint();
    let names = blueprint.brought().iter().map(|id| &*blueprint.buffers()[id.index()].name);
    let names: Vec<&str> = names.collect();
    for Assignment { name, value } in inputs {
        if !names.contains(&name.as_str()) {
            let known = || names.iter().copied();
            let (near, known) = (hints::nearest(name, known()), hints::listed(known()));
            return Err(Failure::Refused(format!("there is no input {name:?}{near}; inputs: {known}")));
        }
        match value {
            SizeOrSpec::Size(bytes) => {
                known.inputs.insert(name.clone(), *bytes);
            }
            SizeOrSpec::Array(array) => opened.push(Input::announced(name, array)),
            SizeOrSpec::Spec(spec) => opened.push(Input::open(name, spec, blueprint.input_type(name))?),
        }
    }
    input::learn(&mut known, package.blueprint(), &opened)?;
    Ok(known)
}

/// Files that are missing, by the module or weights buffer that they would hold. Missing files are no error.
struct Missing {
    /// With the files looked for.
    modules: Vec<(String, String)>,
    /// With the file that the configuration or an argument names, if any.
    weights: Vec<(String, Option<PathBuf>)>,
}

impl Missing {
    fn of(package: &Package) -> Self {
        let modules = package.modules().iter().filter(|module| module.files.is_empty());
        let weights = package.weights().iter().filter(|weight| weight.data.is_none());
        Self {
            modules: modules
                .map(|module| (module.name.clone(), variants::looked_for(&module.path)))
                .collect(),
            weights: weights.map(|weight| (weight.name.clone(), weight.path.clone())).collect(),
        }
    }

    fn print(&self, out: &mut dyn Write) -> Result<()> {
        for (name, looked) in &self.modules {
            writeln!(out, "missing: module {name}: looked for {looked}")?;
        }
        for (name, path) in &self.weights {
            match path {
                Some(path) => writeln!(out, "missing: weights {name}: looked for {}", path.display())?,
                None => writeln!(out, "missing: weights {name}: name a file with --weight {name}=FILE")?,
            }
        }
        Ok(())
    }
}

impl Findings {
    /// How many warnings there are.
    fn warned(&self) -> usize {
        self.warnings.as_ref().map_or(0, |all| all.iter().count() + all.more())
    }

    fn print_warnings(&self, config: &Path, out: &mut dyn Write) -> Result<()> {
        let Some(all) = &self.warnings else { return Ok(()) };
        let lines = all.lines(format_args!("{}:", config.display()));
        Ok(lines.lines().try_for_each(|line| writeln!(out, "warning: {line}"))?)
    }

    fn to_json(&self) -> Value {
        let Self { unknown, description, opened, isolation, kernels, batch, missing, warnings, edges } = self;
        let kernels = kernels.iter().map(|(name, params)| json!({"name": name, "arguments": params}));
        let opened = opened.iter().map(|file| {
            json!({
                "name": file.module,
                "file": file.path,
                "checked": file.tells.name(),
                "sharing": sharing_to_json(&file.sharing, file.machine_code),
            })
        });
        let modules =
            missing.modules.iter().map(|(name, looked)| json!({"name": name, "looked_for": looked}));
        let weights = missing.weights.iter().map(|(name, path)| json!({"name": name, "looked_for": path}));
        json!({
            "valid": true,
            "warnings": warnings.as_ref().map_or_else(|| json!([]), places),
            "unknown_dimensions": unknown,
            "buffers": description.buffers,
            "pool_bytes": description.pool_bytes,
            "unshared_pool_bytes": description.unshared_pool_bytes,
            "weight_bytes": description.weight_bytes,
            "launches": description.launches,
            "batch": batch.as_ref().map(|(dimension, most)| json!({"dimension": dimension, "most": most})),
            "isolation": isolation,
            "kernels": kernels.collect::<Vec<_>>(),
            "modules": opened.collect::<Vec<_>>(),
            "missing_modules": modules.collect::<Vec<_>>(),
            "missing_weights": weights.collect::<Vec<_>>(),
            "edges": edges.as_ref().map(|edges| {
                let linked = edges.carried.is_none();
                let one = |(from, to): &(String, String)| json!({"from": from, "to": to, "linked": linked});
                edges.all.iter().map(one).collect::<Vec<_>>()
            }),
        })
    }

    fn print_edges(&self, out: &mut dyn Write) -> Result<()> {
        let Some(Edges { all, carried }) = &self.edges else { return Ok(()) };
        let how = match carried {
            None => "linked",
            Some(why) => {
                writeln!(out, "steps: consecutive calls, since {why}")?;
                "through the host"
            }
        };
        for (from, to) in all {
            writeln!(out, "edge: {from} → {to}: {how}")?;
        }
        if carried.is_some() || !all.is_empty() {
            writeln!(out)?;
        }
        Ok(())
    }

    fn print(&self, config: &Path, out: &mut dyn Write) -> Result<()> {
        let Self { unknown, description, opened, isolation, kernels, batch, missing, .. } = self;
        writeln!(out, "{}: a valid function\n", config.display())?;
        self.print_edges(out)?;
        let mut table = Table::new(&[
            ("BUFFER", Align::Left),
            ("ROLE", Align::Left),
            ("TYPE", Align::Left),
            ("BYTES", Align::Left),
        ]);
        for buffer in &description.buffers {
            table.row([buffer.name.clone(), role(buffer), element_type(buffer), amount(&buffer.bytes)]);
        }
        table.print(out)?;
        writeln!(out, "\nmemory: {}", memory(description))?;
        if description.weight_bytes.value() != Some(0) {
            writeln!(out, "weights: {}", size(&description.weight_bytes))?;
        }
        writeln!(out, "launches: {}", description.launches)?;
        if let Some((dimension, most)) = batch {
            writeln!(out, "batch: calls run side by side along {dimension}, up to {most} of it")?;
        }
        if !unknown.is_empty() {
            let names = unknown.join(", ");
            writeln!(
                out,
                "not checked: what follows from {names}: shapes say that, as in --input 'A=f32[2,3]'"
            )?;
        }
        for (name, params) in kernels {
            writeln!(out, "kernel: {name}({})", params.join(", "))?;
        }
        for Opened { path, tells, .. } in opened {
            match tells {
                Tells::Nothing => writeln!(out, "module: {}: not readable without a driver", path.display())?,
                tells => writeln!(out, "module: {}: {} fit", path.display(), tells.name())?,
            }
        }
        match isolation {
            Isolation::Auto => {}
            Isolation::Process => {
                writeln!(out, "sharing: isolation is \"process\": no call runs in a shared worker")?;
            }
            Isolation::Shared => {
                writeln!(
                    out,
                    "sharing: isolation is \"shared\": what cannot be in a shared worker is refused"
                )?;
            }
        }
        for Opened { path, sharing, machine_code, .. } in opened {
            print_sharing(path, sharing, machine_code, out)?;
        }
        missing.print(out)?;
        self.print_warnings(config, out)
    }
}

fn role(buffer: &BufferDescription) -> String {
    let role = match buffer.role {
        Role::Input => "input",
        Role::Weight => "weights",
        Role::State => "state",
        Role::Buffer => "buffer",
    };
    match (buffer.role, buffer.output) {
        (Role::Buffer, true) => "output".into(),
        (Role::State, _) => role.into(),
        (_, true) => format!("{role}, output"),
        _ => role.into(),
    }
}

/// `f32[n, 3]`.
fn element_type(buffer: &BufferDescription) -> String {
    let Some(dtype) = buffer.dtype else {
        return String::new();
    };
    let dims: Vec<String> = buffer.shape.iter().flatten().map(Amount::to_string).collect();
    match dims.as_slice() {
        [] => dtype.name().to_owned(),
        dims => format!("{}[{}]", dtype.name(), dims.join(", ")),
    }
}

fn amount(amount: &Amount) -> String {
    amount.value().map_or_else(|| amount.to_string(), units::bytes)
}

/// The memory of a call, and what it would be if no buffers shared it.
fn memory(description: &Description) -> String {
    let with = size(&description.pool_bytes);
    match (description.pool_bytes.value(), description.unshared_pool_bytes.value()) {
        (Some(bytes), Some(unshared)) if bytes < unshared => {
            format!("{with}; without sharing {}", units::size(unshared))
        }
        _ => with,
    }
}

fn size(amount: &Amount) -> String {
    amount.value().map_or_else(|| format!("{amount} bytes"), units::size)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
