//! Packaging: a configuration on disk, the module files beside the ones it names, and its weights → a registered
//! function; all of it may also lie in one folder or one `.pappus` file. Reading a [`Package`] needs no supervisor and reports
//! what is missing without failing; adding it does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pappus_blueprint::compose::Linked;
use pappus_blueprint::limits::JSON_BYTES;
use pappus_blueprint::{Blueprint, Known, Mistakes, describe, parse};
use pappus_proto::Code;
use pappus_proto::limits::is_valid_name;
use pappus_proto::v1;

use crate::array::{Array, Wanted};
use crate::blobs::Blob;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::npy;
use crate::source::{FileRange, Source};
use crate::upload::{Uploads, bytes_of};
use crate::variants::{self, VariantFile};

pub use crate::upload::Step;

/// What some editors begin a text with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A function as found on disk.
#[derive(Debug)]
pub struct Package {
    path: PathBuf,
    config: Vec<u8>,
    blueprint: Blueprint,
    modules: Vec<PackagedModule>,
    weights: Vec<PackagedWeight>,
    /// The constants of a composition, as weights: what they are called, and their bytes.
    constants: Option<(String, u64)>,
    /// True if the configuration was linked: it has no text of its own, in which there are places.
    is_linked: bool,
}

/// A module that the configuration names.
#[derive(Debug, Clone)]
pub struct PackagedModule {
    /// As the configuration calls it.
    pub name: String,
    /// The file the configuration names; it may be absent.
    pub path: PathBuf,
    /// The variants that are there.
    pub files: Vec<VariantFile>,
}

/// A weights buffer of the blueprint.
#[derive(Debug, Clone)]
pub struct PackagedWeight {
    /// The buffer.
    pub name: String,
    /// Its file, where the configuration or the caller names one; it may be absent.
    pub path: Option<PathBuf>,
    /// The file, if it is there.
    pub(crate) source: Option<Source>,
    /// Which part of the file it is; `None` if there is no such file.
    pub data: Option<FileRange>,
    /// The array that a `.npy` file declares.
    pub array: Option<Array>,
}

impl Package {
    /// Reads a configuration and looks for its files, relative to it. `path` is the configuration, a folder with a
    /// `function.json`, or a `.pappus` file. `weights` are files by buffer, which take precedence over what the
    /// configuration names.
    pub fn read(path: &Path, weights: &[(String, PathBuf)]) -> Result<Self> {
        let files = Files::of(path)?;
        let config = files.config_path();
        let mut text = files.config().read(JSON_BYTES as u64, "a configuration")?;
        if text.starts_with(BYTE_ORDER_MARK) {
            // Whoever reads it again need not know of it.
            text.drain(..BYTE_ORDER_MARK.len());
        }
        let blueprint = parse(&text).map_err(|source| Error::Config { path: config.to_owned(), source })?;
        let modules = blueprint.modules().iter().map(|module| {
            let (path, files) = (files.path(&module.path)?, files.variants(&module.path)?);
            Ok(PackagedModule { name: module.name.clone(), files, path })
        });
        Ok(Self {
            modules: modules.collect::<Result<_>>()?,
            weights: find_weights(&files, &blueprint, weights)?,
            path: config.to_owned(),
            config: text,
            blueprint,
            constants: None,
            is_linked: false,
        })
    }

    /// A composition at this path that was linked with these packages, by the names of their functions.
    pub(crate) fn linked(path: &Path, linked: Linked, packages: &HashMap<String, Self>) -> Self {
        let package = |function: usize| linked.functions.get(function).and_then(|name| packages.get(name));
        let modules = linked.modules.iter().filter_map(|module| {
            let found = package(module.function)?.modules.get(module.module)?;
            Some(PackagedModule { name: module.name.clone(), ..found.clone() })
        });
        let weights = linked.weights.iter().filter_map(|weight| {
            let (function, at) = weight.of?;
            let found = package(function)?.weights.get(at)?;
            Some(PackagedWeight { name: weight.name.clone(), ..found.clone() })
        });
        let constants = linked.weights.iter().find(|weight| weight.of.is_none());
        Self {
            path: path.to_owned(),
            modules: modules.collect(),
            weights: weights.collect(),
            constants: constants.map(|weight| (weight.name.clone(), linked.constants.len() as u64)),
            config: linked.config,
            blueprint: linked.blueprint,
            is_linked: true,
        }
    }

    /// The inputs and outputs of a composition at this path that is not linked.
    pub(crate) fn interface(path: &Path, config: Vec<u8>) -> std::result::Result<Self, Mistakes> {
        Ok(Self {
            path: path.to_owned(),
            modules: Vec::new(),
            weights: Vec::new(),
            constants: None,
            blueprint: pappus_blueprint::parse(&config)?,
            config,
            is_linked: true,
        })
    }

    /// True if devices of some kind could run it, as far as its files are there.
    pub(crate) fn has_code_of_one_kind(&self) -> bool {
        [&["wasm"][..], &["ptx", "cubin"], &["hsaco"]].into_iter().any(|formats| {
            let has = |module: &PackagedModule| {
                module.files.is_empty()
                    || module.files.iter().any(|file| formats.contains(&file.format.name()))
            };
            self.modules.iter().all(has)
        })
    }

    /// The configuration's JSON.
    pub(crate) fn config(&self) -> &[u8] {
        &self.config
    }

    /// The constants of a composition, which are weights of the linked function: what they are called, and their bytes.
    pub fn constants(&self) -> Option<(&str, u64)> {
        self.constants.as_ref().map(|(name, bytes)| (&**name, *bytes))
    }

    /// The checked configuration.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Errors of the configuration that show only beside other files or sizes: with the configuration's name, and their places
    /// in it. Nothing where there are none.
    pub fn refuse(&self, errors: impl IntoIterator<Item = pappus_blueprint::Error>) -> Result<()> {
        let text: &[u8] = if self.is_linked { b"" } else { &self.config };
        match Mistakes::found_in(errors, text) {
            Some(source) => Err(Error::Config { path: self.path.clone(), source }),
            None => Ok(()),
        }
    }

    /// What the configuration declares and nothing uses, in the order of its text; nothing of a composition, whose functions
    /// have been told of by themselves.
    pub fn warnings(&self) -> Option<Mistakes> {
        if self.is_linked {
            return None;
        }
        Mistakes::found_in(self.blueprint.warnings(), &self.config)
    }

    /// The modules it names.
    pub fn modules(&self) -> &[PackagedModule] {
        &self.modules
    }

    /// The weights it needs, in the blueprint's order.
    pub fn weights(&self) -> &[PackagedWeight] {
        &self.weights
    }

    /// Registers it as `name`; with `replace`, in the place of another function of that name. A module without files must be registered under its stem. `progress` hears of every
    /// step before it is taken.
    pub fn add(
        &self,
        client: &mut Client,
        name: &str,
        replace: bool,
        progress: &mut dyn FnMut(Step<'_>),
    ) -> Result<v1::FunctionInfo> {
        // Everything that can be missing is, before anything large travels.
        let registered = self.modules.iter().map(|module| match module.files.as_slice() {
            [] => module.registered(client),
            _ => Ok(String::new()),
        });
        let registered: Vec<String> = registered.collect::<Result<_>>()?;
        let weights = self.weights.iter().map(|weight| weight.file(&self.path));
        let weights: Vec<(&Source, u64)> = weights.collect::<Result<_>>()?;

        let weight_bytes: u64 = weights.iter().map(|(_, bytes)| bytes).sum();
        let module_bytes = bytes_of(self.modules.iter().flat_map(|module| &module.files))?;
        let mut function = v1::AddFunction {
            name: name.into(),
            replace,
            config_sha256: client.put_blob(Blob::Bytes(&self.config))?.sha256,
            ..v1::AddFunction::default()
        };
        let mut uploads = Uploads::new(client, weight_bytes + module_bytes, progress);
        for (module, registered) in self.modules.iter().zip(registered) {
            let variants = module.files.iter().map(|file| uploads.variant(file));
            function.modules.push(v1::FunctionModule {
                name: module.name.clone(),
                variants: variants.collect::<Result<_>>()?,
                registered,
            });
        }
        for (weight, (source, _)) in self.weights.iter().zip(weights) {
            function.weights.push(v1::Weight { name: weight.name.clone(), sha256: uploads.array(source)? });
        }
        uploads.finish().add_function(function).map_err(|why| self.placed(why))
    }

    /// A refusal of the supervisor's, with the place in the file where it names a place of the configuration.
    fn placed(&self, why: Error) -> Error {
        let Error::Refused(mut refusal) = why else { return why };
        if !refusal.place.is_empty() {
            let found = pappus_blueprint::Error::new(&refusal.place, &refusal.message).found_in(&self.config);
            if let Some(position) = found.position {
                refusal.message = format!("{}:{position}: {found}", self.path.display());
                refusal.place.clear();
            }
        }
        Error::Refused(refusal)
    }
}

/// Registers files, each holding a variant, as a module.
pub fn add_module(
    client: &mut Client,
    name: &str,
    files: &[VariantFile],
    progress: &mut dyn FnMut(Step<'_>),
) -> Result<v1::ModuleInfo> {
    let mut uploads = Uploads::new(client, bytes_of(files)?, progress);
    let variants = files.iter().map(|file| uploads.variant(file));
    let variants = variants.collect::<Result<_>>()?;
    uploads.finish().add_module(name, variants)
}

impl PackagedModule {
    /// The name it is registered under, where it has no files.
    pub(crate) fn registered(&self, client: &mut Client) -> Result<String> {
        let stem = variants::stem(&self.path);
        if is_valid_name(&stem) {
            match client.show_module(&stem) {
                Ok(_) => return Ok(stem),
                Err(Error::Refused(error)) if error.code() == Code::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Invalid(format!(
            "module {:?} is missing: looked for {}; put a file there, or register one with \
             `pappus module add {stem} FILE...`",
            self.name,
            variants::looked_for(&self.path)
        )))
    }
}

impl PackagedWeight {
    /// The weight's file and bytes; without a file, an error that says how to name one.
    fn file(&self, config: &Path) -> Result<(&Source, u64)> {
        let Self { name, path, source, data, .. } = self;
        match (source, data) {
            (Some(source), Some(data)) => Ok((source, data.bytes)),
            _ => {
                let absent = path.as_ref().map(|path| format!(", {} does not exist", path.display()));
                Err(Error::Invalid(format!(
                    "weights {name:?} have no file{}: name it with --weight {name}=FILE, or with \
                     \"weight_files\": {{\"{name}\": \"FILE\"}} in {}",
                    absent.unwrap_or_default(),
                    config.display()
                )))
            }
        }
    }
}

fn find_weights(
    files: &Files,
    blueprint: &Blueprint,
    given: &[(String, PathBuf)],
) -> Result<Vec<PackagedWeight>> {
    let config = files.config_path();
    let names: Vec<&str> =
        blueprint.weights().iter().map(|id| blueprint.buffers()[id.index()].name.as_str()).collect();
    if let Some((name, _)) = given.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        if names.is_empty() {
            return Err(Error::Invalid(format!("{} has no weights: {name:?} is none", config.display())));
        }
        return Err(Error::Invalid(format!(
            "{name:?} is no weights buffer of {}, expected one of {names:?}",
            config.display()
        )));
    }
    // What is replaced must not lead elsewhere, either.
    for file in blueprint.weight_files() {
        files.path(&file.path)?;
    }
    let weights = blueprint.weights().iter().zip(names).map(|(id, name)| {
        let given = given.iter().find(|(other, _)| other == name).map(|(_, path)| path);
        let declared = blueprint.weight_files().iter().find(|file| file.weight == *id);
        let (path, source) = match (given, declared) {
            (Some(path), _) => (Some(path.clone()), Some(Source::file(path)).filter(|_| path.exists())),
            (None, Some(file)) => (Some(files.path(&file.path)?), files.find(&file.path)?),
            (None, None) => (None, None),
        };
        let (data, header) = source.as_ref().map(npy::look).transpose()?.unzip();
        let array = header.flatten().map(|header| header.array);
        Ok(PackagedWeight { name: name.to_owned(), path, source, data, array })
    });
    let weights = weights.collect::<Result<Vec<_>>>()?;
    check_weights(blueprint, &weights)?;
    Ok(weights)
}

/// Refuses weights of another type or shape than is declared, as far as that does not depend on a call.
fn check_weights(blueprint: &Blueprint, weights: &[PackagedWeight]) -> Result<()> {
    let sizes = weights.iter().filter_map(|weight| Some((weight.name.clone(), weight.data?.bytes)));
    let known = Known { weights: sizes.collect(), ..Known::default() };
    let Ok(description) = describe(blueprint, &known) else { return Ok(()) };
    for (weight, id) in weights.iter().zip(blueprint.weights()) {
        let wanted = Wanted::of(&description.buffers[id.index()]);
        let (Some(wanted), Some(path), Some(data)) = (wanted, &weight.path, weight.data) else { continue };
        let fits = match &weight.array {
            Some(array) => wanted.fits(array),
            None => wanted.fits_bytes(data.bytes),
        };
        fits.map_err(|why| Error::content(path, format!("weights {:?}: {why}", weight.name)))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod npy_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{
        "modules": [{"module_name": "m", "path": "lib/m.hsaco"}],
        "kernels": [{"module_name": "m", "kernel_name": "k"}],
        "weight_files": {"W0": "w0.npy"},
        "blueprint": {"inputs": ["A"], "weights": ["W0", "W1"], "buffers": {"B": {"Sizeof": "A"}},
                      "outputs": ["B"], "control_flow": []}}"#;

    /// A folder with a configuration and files, some with contents.
    fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let config = dir.path().join("f.json");
        std::fs::write(&config, CONFIG).unwrap();
        (dir, config)
    }

    #[test]
    fn a_file_that_is_no_configuration_is_told_from_a_wrong_one() {
        let (dir, _) = folder(&[("README.md", b"# Pappus"), ("wrong.json", b"{}")]);
        let why = |name: &str| Package::read(&dir.path().join(name), &[]).unwrap_err().to_string();
        let text = why("README.md");
        assert!(text.contains("README.md:1:1: it is no JSON: ") && text.contains("vec_add.json"), "{text}");
        assert!(!why("wrong.json").contains("no JSON"), "{}", why("wrong.json"));
    }

    #[test]
    fn weights_of_the_wrong_size_are_refused_with_their_file() {
        let (dir, config) = folder(&[]);
        let types =
            r#""types": {"W0": {"dtype": "f32", "shape": [{"Absolute": 2}, {"Absolute": 3}]}}, "outputs""#;
        std::fs::write(&config, CONFIG.replace(r#""outputs""#, types)).unwrap();
        let path = dir.path().join("w0.bin");
        for (bytes, words) in [(20, "20 bytes came, f32[2,3] is expected"), (23, "a multiple of 4 (f32)")] {
            std::fs::write(&path, vec![0; bytes]).unwrap();
            let why = Package::read(&config, &[("W0".into(), path.clone())]).unwrap_err().to_string();
            assert!(why.contains("w0.bin: weights \"W0\": ") && why.contains(words), "{why}");
        }
        std::fs::write(&path, [0; 24]).unwrap();
        Package::read(&config, &[("W0".into(), path)]).unwrap();
    }

    #[test]
    fn files_are_found_relative_to_the_configuration() {
        let w0 = [npy::header("<f4", &[2]), vec![0; 8]].concat();
        let (dir, config) = folder(&[("lib/m.wasm", b"w"), ("lib/m.sm_90.ptx", b"p"), ("w0.npy", &w0)]);
        let w1 = dir.path().join("w1.bin");
        std::fs::write(&w1, [0; 5]).unwrap();
        let package = Package::read(&config, &[("W1".into(), w1.clone())]).unwrap();
        let formats: Vec<_> =
            package.modules()[0].files.iter().map(|file| (file.format.name(), &*file.arch)).collect();
        assert_eq!(formats, [("ptx", "sm_90"), ("wasm", "")]);
        let bytes: Vec<_> = package.weights().iter().map(|weight| weight.data.unwrap().bytes).collect();
        assert_eq!(bytes, [8, 5]);
        assert_eq!(package.weights()[1].path.as_ref(), Some(&w1));
    }

    #[test]
    fn a_missing_part_is_named_with_both_ways_to_give_it() {
        let (_dir, config) = folder(&[]);
        let package = Package::read(&config, &[]).unwrap();
        assert!(package.modules()[0].files.is_empty());
        let why = package.weights().iter().map(|weight| weight.file(&config).unwrap_err().to_string());
        let why: Vec<_> = why.collect();
        assert!(why[0].contains("w0.npy does not exist"), "{}", why[0]);
        for part in ["\"W1\"", "--weight W1=FILE", "weight_files"] {
            assert!(why[1].contains(part), "{}", why[1]);
        }
    }

    #[test]
    fn a_file_for_weights_that_are_none_is_refused() {
        let (_dir, config) = folder(&[]);
        let why = Package::read(&config, &[("W9".into(), "x".into())]).unwrap_err().to_string();
        assert!(why.contains("\"W9\" is no weights buffer"), "{why}");
        let none = CONFIG.replace(r#""weight_files": {"W0": "w0.npy"},"#, "").replace(r#""W0", "W1""#, "");
        std::fs::write(&config, none).unwrap();
        let why = Package::read(&config, &[("W9".into(), "x".into())]).unwrap_err().to_string();
        assert!(why.contains("f.json has no weights"), "{why}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_with_file_and_place() {
        let (_dir, config) = folder(&[]);
        std::fs::write(&config, CONFIG.replace("Sizeof", "SizeOf")).unwrap();
        let why = Package::read(&config, &[]).unwrap_err().to_string();
        let words =
            "f.json:5:83: at blueprint.buffers.B.SizeOf: unknown size \"SizeOf\", did you mean \"Sizeof\"?";
        assert!(why.contains(words), "{why}");
        let mut marked = BYTE_ORDER_MARK.to_vec();
        marked.extend(CONFIG.as_bytes());
        std::fs::write(&config, marked).unwrap();
        assert_eq!(Package::read(&config, &[]).unwrap().config, CONFIG.as_bytes());
    }
}
