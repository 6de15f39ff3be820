//! `pappus function check`: everything that can be said about a configuration, and about the module files beside it,
//! without a supervisor.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use pappus_blueprint::{Amount, Blueprint, BufferDescription, Description, Known, Role, describe};
use pappus_client::functions::Package;
use pappus_client::kernels as module_kernels;
use pappus_client::variants;
use pappus_client::{Error, archive};
use serde_json::{Value, json};

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
    let found = examine(&arguments.config, &weights.collect::<Vec<_>>(), &arguments.inputs)?;
    match arguments.json.json {
        true => Ok(writeln!(out, "{}", found.to_json())?),
        false => found.print(&arguments.config, out),
    }
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
        let examined = examine(config, &[], &[]);
        wrong += usize::from(examined.is_err());
        if arguments.json.json {
            let mut value = match &examined {
                Ok(found) => found.to_json(),
                Err(why) => json!({"valid": false, "error": why.to_string()}),
            };
            value["config"] = json!(config);
            all.push(value);
            continue;
        }
        match examined {
            Ok(found) => {
                writeln!(out, "{}: a valid function", config.display())?;
                found.missing.print(out)?;
            }
            Err(why) => writeln!(out, "{}: not valid: {why}", config.display())?,
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

/// Checks a configuration as far as its inputs are known, and the module files beside it.
fn examine(
    config: &Path,
    weights: &[(String, PathBuf)],
    inputs: &[Assignment<SizeOrSpec>],
) -> Result<Findings> {
    let package = Package::read(config, weights)?;
    let known = known(&package, inputs)?;
    let description = describe(package.blueprint(), &known)?;
    // Errors that only some sizes have show in a plan.
    input::plan(package.blueprint(), &known)?;
    let free = package.blueprint().free_dimensions().iter();
    let unknown = free.filter(|name| !inputs.is_empty() && !known.free.contains_key(&***name));
    Ok(Findings {
        unknown: unknown.map(ToString::to_string).collect(),
        description,
        opened: open_modules(&package)?,
        kernels: kernels(package.blueprint()),
        missing: Missing::of(&package),
    })
}

/// Everything that is told.
struct Findings {
    /// Free dimensions that the inputs do not tell, where some are given.
    unknown: Vec<String>,
    description: Description,
    opened: Vec<Opened>,
    kernels: Vec<(String, Vec<String>)>,
    missing: Missing,
}

/// A module file that was opened and fits.
struct Opened {
    module: String,
    path: PathBuf,
    tells: Tells,
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

/// Opens every module file that is there. One that does not fit the blueprint is an error.
fn open_modules(package: &Package) -> Result<Vec<Opened>> {
    let mut opened = Vec::new();
    for (at, module) in package.modules().iter().enumerate() {
        // What is wrong is told of the file that the configuration names, if that is one.
        let mut files: Vec<_> = module.files.iter().collect();
        files.sort_by_key(|file| file.path().file_name() != module.path.file_name());
        for file in files {
            let mut tells = Tells::Nothing;
            for part in module_kernels::of_file(file)? {
                let Some(kernels) = part.kernels else { continue };
                module_kernels::check(package.blueprint(), at, file.path(), &kernels)?;
                let told = kernels.iter().any(|kernel| kernel.params.is_some());
                tells = if told { Tells::Parameters } else { Tells::Names };
            }
            opened.push(Opened { module: module.name.clone(), path: file.path().to_owned(), tells });
        }
    }
    opened.sort_by(|one, other| (&one.module, &one.path).cmp(&(&other.module, &other.path)));
    Ok(opened)
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
    let mut opened = Vec::new();
    let blueprint = package.blueprint();
    let names = blueprint.inputs().iter().map(|id| &*blueprint.buffers()[id.index()].name);
    let names: Vec<&str> = names.collect();
    for Assignment { name, value } in inputs {
        if !names.contains(&name.as_str()) {
            return Err(Failure::Refused(format!("there is no input {name:?}, expected {names:?}")));
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
    fn to_json(&self) -> Value {
        let Self { unknown, description, opened, kernels, missing } = self;
        let kernels = kernels.iter().map(|(name, params)| json!({"name": name, "arguments": params}));
        let opened = opened
            .iter()
            .map(|file| json!({"name": file.module, "file": file.path, "checked": file.tells.name()}));
        let modules =
            missing.modules.iter().map(|(name, looked)| json!({"name": name, "looked_for": looked}));
        let weights = missing.weights.iter().map(|(name, path)| json!({"name": name, "looked_for": path}));
        json!({
            "valid": true,
            "unknown_dimensions": unknown,
            "buffers": description.buffers,
            "pool_bytes": description.pool_bytes,
            "unshared_pool_bytes": description.unshared_pool_bytes,
            "weight_bytes": description.weight_bytes,
            "launches": description.launches,
            "kernels": kernels.collect::<Vec<_>>(),
            "modules": opened.collect::<Vec<_>>(),
            "missing_modules": modules.collect::<Vec<_>>(),
            "missing_weights": weights.collect::<Vec<_>>(),
        })
    }

    fn print(&self, config: &Path, out: &mut dyn Write) -> Result<()> {
        let Self { unknown, description, opened, kernels, missing } = self;
        writeln!(out, "{}: a valid function\n", config.display())?;
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
        missing.print(out)
    }
}

fn role(buffer: &BufferDescription) -> String {
    let role = match buffer.role {
        Role::Input => "input",
        Role::Weight => "weights",
        Role::Buffer => "buffer",
    };
    match (buffer.role, buffer.output) {
        (Role::Buffer, true) => "output".into(),
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
mod tests {
    use super::*;

    /// Writes matmul's configuration, checks it with these inputs, and returns what is printed.
    fn check(inputs: &[&str], json: bool) -> Result<String> {
        check_of("matmul", inputs, json)
    }

    /// The same of another function.
    fn check_of(function: &str, inputs: &[&str], json: bool) -> Result<String> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join(format!("{function}.json"));
        std::fs::write(&config, pappus_kernels::config(function).unwrap()).unwrap();
        let matrix: Vec<u8> = [2i64, 1, 2, 3, 4].into_iter().flat_map(i64::to_le_bytes).collect();
        std::fs::write(dir.path().join("a.bin"), matrix).unwrap();
        let inputs = inputs.iter().map(|input| input.replace("DIR", dir.path().to_str().unwrap()));
        let arguments = CheckArguments {
            config,
            inputs: inputs.map(|input| input.parse().unwrap()).collect(),
            weights: Vec::new(),
            json: crate::arguments::Json { json },
        };
        let mut out = anstream::StripStream::new(Vec::new());
        run(arguments, &mut out)?;
        Ok(String::from_utf8(out.into_inner()).unwrap())
    }

    #[test]
    fn module_files_that_are_there_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            path
        };
        let config = write("configs/matmul.json", pappus_kernels::config("matmul").unwrap().as_bytes());
        write("built/mlops.wasm", pappus_kernels::artefact("mlops.wasm").unwrap());
        write("built/mlops.ptx", pappus_kernels::artefact("mlops.ptx").unwrap());
        let check = || {
            let arguments = CheckArguments {
                config: config.clone(),
                inputs: Vec::new(),
                weights: Vec::new(),
                json: crate::arguments::Json { json: false },
            };
            let mut out = anstream::StripStream::new(Vec::new());
            run(arguments, &mut out).map(|()| String::from_utf8(out.into_inner()).unwrap())
        };
        let text = check().unwrap();
        assert!(text.contains("mlops.wasm: kernels and parameters fit"), "{text}");
        assert!(text.contains("mlops.ptx: kernels and parameters fit"), "{text}");
        assert!(!text.contains("missing"), "{text}");
        // Another module under the name, and a kernel that takes something else.
        write("built/mlops.wasm", pappus_kernels::artefact("vision.wasm").unwrap());
        let why = check().unwrap_err().to_string();
        assert!(why.contains("mlops.wasm: module") && why.contains("no kernel \"matmul_para\""), "{why}");
        write("built/mlops.wasm", pappus_kernels::artefact("mlops.wasm").unwrap());
        write("built/mlops.ptx", b".entry matmul_para(.param .u64 a, .param .u64 b) {}");
        let why = check().unwrap_err().to_string();
        assert!(why.contains("mlops.ptx: kernel \"matmul_para\" takes 2 arguments"), "{why}");
    }

    #[test]
    fn a_folder_is_checked_file_by_file() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| std::fs::write(dir.path().join(name), content).unwrap();
        let check = |json| {
            let arguments = CheckArguments {
                config: dir.path().to_owned(),
                inputs: Vec::new(),
                weights: Vec::new(),
                json: crate::arguments::Json { json },
            };
            let mut out = anstream::StripStream::new(Vec::new());
            let outcome = run(arguments, &mut out);
            (String::from_utf8(out.into_inner()).unwrap(), outcome.map_err(|why| why.to_string()))
        };
        assert!(check(false).1.unwrap_err().contains("no .json file"));
        write("matmul.json", pappus_kernels::config("matmul").unwrap());
        write("notes.txt", "no configuration");
        assert_eq!(check(false).1, Ok(()));
        write("broken.json", "{}");
        let (text, outcome) = check(false);
        assert!(
            text.contains("matmul.json: a valid function") && text.contains("broken.json: not valid"),
            "{text}"
        );
        assert!(outcome.unwrap_err().starts_with("1 of 2 configurations in "));
        let value: Value = serde_json::from_str(&check(true).0).unwrap();
        assert_eq!((&value["valid"], &value["functions"][1]["valid"]), (&false.into(), &true.into()));
    }

    #[test]
    fn unknown_sizes_are_expressions() {
        let text = check(&[], false).unwrap();
        for line in [
            "B       output  i64[A[0] × A[0] + 1]  sizeof(A)",
            "launches: 1",
            "kernel: matmul_para(",
            "missing: module mlops.wasm",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn known_sizes_are_numbers() {
        let text = check(&["A=128KiB"], false).unwrap();
        for line in ["131072 (128.0 KiB)", "memory: 262144 bytes (256.0 KiB)"] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn json_is_one_object() {
        let value: Value = serde_json::from_str(&check(&["A=DIR/a.bin"], true).unwrap()).unwrap();
        assert_eq!(value["launches"], 1);
        assert_eq!((&value["pool_bytes"], &value["unshared_pool_bytes"]), (&512.into(), &512.into()));
        assert_eq!(value["buffers"][1]["bytes"], 40);
        assert_eq!(value["missing_modules"][0]["name"], "mlops.wasm");
    }

    #[test]
    fn memory_is_told_with_and_without_sharing() {
        let text = check(&["A=4MiB"], false).unwrap();
        assert!(text.contains("memory: 8388608 bytes (8.0 MiB)\n"), "one launch uses both: {text}");
        let text = check(&[], false).unwrap();
        assert!(text.contains("memory: at most 512 × ceil(sizeof(A) / 256) bytes"), "{text}");
        // Three of 4 MiB, of which the first and the last are not live together.
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("chain.json");
        let launch = |from: &str, to: &str| {
            let key = |key: &str| format!(r#""{key}_dim_x": 1, "{key}_dim_y": 1, "{key}_dim_z": 1"#);
            let dims = format!(r#"{}, {}, "shared_mem_bytes": 1"#, key("grid"), key("block"));
            let dims = dims.replace(": 1", r#": {"Absolute": 1}"#);
            format!(r#"{{"ExecKernel": ["k", [{{"Ptr": "{from}"}}, {{"Ptr": "{to}"}}], {{{dims}}}]}}"#)
        };
        let buffers = ["b", "c", "d"].map(|name| format!(r#""{name}": {{"Absolute": 4194304}}"#)).join(",");
        let flow = [launch("b", "c"), launch("c", "d")].join(",");
        let text = format!(
            r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": [], "buffers": {{{buffers}}},
                "outputs": ["d"], "control_flow": [{flow}]}}}}"#
        );
        std::fs::write(&config, text).unwrap();
        let print = |json| {
            let json = crate::arguments::Json { json };
            let arguments =
                CheckArguments { config: config.clone(), inputs: Vec::new(), weights: Vec::new(), json };
            let mut out = anstream::StripStream::new(Vec::new());
            run(arguments, &mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap()
        };
        let line = "memory: 8388608 bytes (8.0 MiB); without sharing 12582912 bytes (12.0 MiB)\n";
        assert!(print(false).contains(line), "{}", print(false));
        let value: Value = serde_json::from_str(&print(true)).unwrap();
        assert_eq!(
            (&value["pool_bytes"], &value["unshared_pool_bytes"]),
            (&(8 << 20).into(), &(12 << 20).into())
        );
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_with_their_place() {
        let why = check(&["nobody=8"], false).unwrap_err().to_string();
        assert!(why.contains("nobody"), "{why}");
        // Numbers that are not as many as the first of them says.
        let why = check(&["A=DIR/a.bin,DIR/a.bin"], false).unwrap_err().to_string();
        assert!(
            why.contains(
                "\"A\" has 80 bytes, expected 40 (i64[5]) with these inputs, computed from A[0] = 2"
            ),
            "{why}"
        );
        let why = check(&["A=i64:0"], false).unwrap_err().to_string();
        assert!(why.contains("grid_dim_x"), "{why}");
    }

    #[test]
    fn a_shape_is_enough_to_check_everything() {
        let by_size = check_of("softmax", &["A=24"], false).unwrap();
        assert!(by_size.contains("not checked: what follows from rows, cols: shapes say that"), "{by_size}");
        let by_shape = check_of("softmax", &["A=f32[2,3]"], false).unwrap();
        assert!(by_shape.contains("f32[2, 3]") && !by_shape.contains("not checked"), "{by_shape}");
        let too_few = check_of("softmax", &["A=f32[2]"], false).unwrap_err().to_string();
        assert!(too_few.contains("input \"A\""), "{too_few}");
        // Words that sizes are computed from are not known then, and not asked for.
        let words = check(&["A=i64[5]"], false).unwrap();
        assert!(words.contains("i64[A[0] × A[0] + 1]"), "{words}");
        // Nothing is asked of who says nothing.
        assert!(!check_of("softmax", &[], false).unwrap().contains("not checked"));
    }

    #[test]
    fn what_does_not_fit_is_told_of_the_file_that_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["linalg.gfx942.hsaco", "linalg.wasm"] {
            std::fs::write(dir.path().join(name), pappus_kernels::artefact(name).unwrap()).unwrap();
        }
        let config = pappus_kernels::config("vec_add").unwrap().replace("vec_add_f", "no_such_kernel");
        for named in ["linalg.gfx942.hsaco", "linalg.wasm"] {
            let path = dir.path().join("config.json");
            std::fs::write(&path, config.replace("../built/linalg.wasm", named)).unwrap();
            let why = examine(&path, &[], &[]).err().unwrap().to_string();
            assert!(why.contains(&format!("{named}: ")), "{why}");
        }
    }
}
