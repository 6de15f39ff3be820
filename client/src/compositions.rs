//! Compositions on disk: registered by name with functions that are registered already, and linked here, for a look at what
//! comes of it, with the packages of their functions that lie in a folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pappus_blueprint::compose::{self, Part, Source};
use pappus_blueprint::limits::JSON_BYTES;
use pappus_proto::limits::is_valid_name;
use pappus_proto::v1;

use crate::blobs::Blob;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::functions::{Package, Step};

/// A composition as found on disk.
#[derive(Debug)]
pub struct Composition {
    path: PathBuf,
    text: Vec<u8>,
}

impl Composition {
    /// Reads a file that may be a composition; none if it is another configuration.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let files = Files::of(path)?;
        let text = files.config().read(JSON_BYTES as u64, "a configuration")?;
        let path = files.config_path().to_owned();
        Ok(compose::is_composition(&text).then_some(Self { path, text }))
    }

    /// Registers it as `name`; with `replace`, in the place of another function of that name. The supervisor has its functions.
    pub fn add(
        &self,
        client: &mut Client,
        name: &str,
        replace: bool,
        progress: &mut dyn FnMut(Step<'_>),
    ) -> Result<v1::FunctionInfo> {
        let config_sha256 = client.put_blob(Blob::Bytes(&self.text))?.sha256;
        progress(Step::Register);
        let function =
            v1::AddFunction { name: name.into(), replace, config_sha256, ..v1::AddFunction::default() };
        client.add_function(function).map_err(|why| self.placed(why))
    }

    /// The names of the functions that its steps run, each once; as far as it can be read.
    pub fn functions(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let _ = compose::link(&self.text, |function| {
            if !names.iter().any(|name| name == function) {
                names.push(function.to_owned());
            }
            None
        });
        names
    }

    /// The file of a function beside the composition: a `NAME.json` or `NAME.pappus`.
    pub fn beside(&self, function: &str) -> Option<PathBuf> {
        file_of(self.path.parent().unwrap_or(Path::new("")), function)
    }

    /// The composition's JSON.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Links it with the functions in `folder`, each a `NAME.json` or `NAME.pappus`; beside the composition by default. Where a
    /// function is another owner's, nothing is linked: what comes back has the composition's inputs and outputs alone.
    pub fn link(&self, folder: Option<&Path>) -> Result<Package> {
        let folder = folder.unwrap_or_else(|| self.path.parent().unwrap_or(Path::new("")));
        let mut packages: HashMap<String, Package> = HashMap::new();
        let mut failed = None;
        let mut read = |function: &str| {
            let path = file_of(folder, function)?;
            let package = match Package::read(&path, &[]) {
                Ok(package) => package,
                Err(why) => {
                    failed.get_or_insert(why);
                    return None;
                }
            };
            let part = part(function, &package);
            packages.insert(function.to_owned(), package);
            Some(part)
        };
        let checked = match compose::names_others(&self.text) {
            false => {
                compose::link(&self.text, read).map(|linked| Package::linked(&self.path, linked, &packages))
            }
            true => {
                let checked = compose::consecutive(&self.text, |function| match function.contains('/') {
                    true => compose::as_used(&self.text, function),
                    false => read(function),
                });
                checked.and_then(|checked| Package::interface(&self.path, checked.interface))
            }
        };
        match failed {
            Some(why) => Err(why),
            None => checked.map_err(|source| Error::Config { path: self.path.clone(), source }),
        }
    }

    /// What steps pass on to each other, and how: `package` is what [`link`](Self::link) gave.
    pub fn edges(&self, package: &Package) -> Edges {
        let steps = compose::steps(&self.text).map(|steps| steps.steps).unwrap_or_default();
        let mut all = Vec::new();
        for step in &steps {
            for (input, source) in &step.inputs {
                let Source::Output { step: from, output } = source else { continue };
                let output = output.iter().map(|output| format!(".{output}")).collect::<String>();
                all.push((format!("{}{output}", steps[*from].name), format!("{}.{input}", step.name)));
            }
        }
        let foreign = steps.iter().map(|step| &step.function).find(|function| function.contains('/'));
        let carried = match foreign {
            Some(function) => Some(format!("{function} is another owner's function")),
            None if !package.has_code_of_one_kind() => {
                Some("no kind of device has code of all functions".to_owned())
            }
            None => None,
        };
        Edges { all, carried }
    }

    /// A refusal of the supervisor's: mistakes of the composition with its name in front.
    fn placed(&self, why: Error) -> Error {
        let Error::Refused(mut refusal) = why else { return why };
        let mut lines = refusal.message.lines();
        let is_placed = |line: &str| {
            let (line, column) = line.split_once(": ").and_then(|(at, _)| at.split_once(':'))?;
            Some(line.parse::<u32>().is_ok() && column.parse::<u32>().is_ok())
        };
        if lines.clone().next().and_then(is_placed) != Some(true) {
            return Error::Refused(refusal);
        }
        let mut place = match &*std::mem::take(&mut refusal.place) {
            "" => String::new(),
            place => format!("at {place}: "),
        };
        let path = self.path.display();
        let told = lines.by_ref().map(|line| match (is_placed(line), line.split_once(": ")) {
            (Some(true), Some((at, words))) => format!("{path}:{at}: {}{words}", std::mem::take(&mut place)),
            _ => line.to_owned(),
        });
        refusal.message = told.collect::<Vec<_>>().join("\n");
        Error::Refused(refusal)
    }
}

/// What steps of a composition pass on to each other.
#[derive(Debug)]
pub struct Edges {
    /// Outputs, and the inputs that they become: `step.output` and `step.input`.
    pub all: Vec<(String, String)>,
    /// Why all of them go through the host: the steps run as consecutive calls. None if they are linked.
    pub carried: Option<String>,
}

/// The file of a function in a folder; of a version that a step names by its number, NAME@NUMBER.json.
fn file_of(folder: &Path, function: &str) -> Option<PathBuf> {
    let paths = [format!("{function}.json"), format!("{function}.pappus")].map(|name| folder.join(name));
    let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let name =
        function.split_once('@').filter(|(_, number)| is_number(number)).map_or(function, |(name, _)| name);
    paths.into_iter().find(|path| is_valid_name(name) && path.exists())
}

/// What the linker is told of a package: its modules and weights are told from others by their files.
fn part(function: &str, package: &Package) -> Part {
    let file = |path: Option<&PathBuf>, name: &str| match path {
        Some(path) => path.display().to_string(),
        None => format!("{function} {name}"),
    };
    let weights = package.weights().iter();
    Part {
        config: package.config().to_vec(),
        modules: package.modules().iter().map(|module| file(Some(&module.path), &module.name)).collect(),
        weights: weights
            .map(|weight| (file(weight.path.as_ref(), &weight.name), weight.data.map(|data| data.bytes)))
            .collect(),
    }
}
