//! `pappus kernel build`: each source of kernels becomes a module file for each target. Nothing is written before all of
//! them were made. The same source gives the same bytes, wherever it lies and whoever builds it with the same compiler.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use pappus_blueprint::code::FORMATS;
use pappus_blueprint::signatures;
use pappus_client::sharing::{self, Sharing};
use pappus_client::source::Source;
use pappus_client::{Error, variants};
use pappus_kernels::authoring::HEADERS;
use serde_json::{Value, json};

use super::super::sharing::{print as print_sharing, to_json as sharing_to_json};
use super::signature;
use super::toolchain::{CLANG, OBJCOPY, Ran, Toolchain, WASM_LD};
use crate::arguments::KernelBuildArguments;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::target::{Code, Target, WASM_LINK};
use crate::units;

/// A module file.
struct Module<'a> {
    source: &'a Path,
    target: &'a Target,
    path: PathBuf,
    content: Vec<u8>,
}

/// Builds all sources for all targets, and tells what was written.
pub(super) fn run(arguments: &KernelBuildArguments, out: &mut dyn Write) -> Result<()> {
    let mut modules = wanted(arguments)?;
    let toolchain = Toolchain::find(&arguments.targets)?;
    let scratch = Scratch::new("pappus-kernel");
    let scratch = scratch.map_err(|error| Failure::Failed(format!("no temporary folder: {error}")))?;
    let mut builder = Builder {
        toolchain,
        scratch: &scratch,
        strict: arguments.strict,
        debug: arguments.debug,
        coloured: std::io::stderr().is_terminal(),
        said: String::new(),
    };
    let built = builder.build_all(&mut modules);
    // A closed stderr hears nothing.
    let _ = write!(anstream::stderr(), "{}", builder.said);
    built?;
    for Module { path, content, .. } in &modules {
        let folder = folder(path);
        std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        std::fs::write(path, content).map_err(Error::file(path))?;
    }
    if arguments.json.json {
        let files: Vec<Value> = modules.iter().map(Module::to_json).collect();
        return Ok(writeln!(out, "{}", json!({"files": files, "compiler": builder.toolchain.name()?}))?);
    }
    for Module { source, target, path, content } in &modules {
        let (source, path) = (source.display(), path.display());
        writeln!(out, "{source} for {}: {path}, {}", target.name, units::size(content.len() as u64))?;
    }
    // Of the others nothing depends on the source: wasm can always be shared, AMD's machine code never.
    for module in &modules {
        if let Some(sharing) = module.sharing() {
            print_sharing(&module.path, &sharing, "", out)?;
        }
    }
    Ok(())
}

impl Module<'_> {
    fn to_json(&self) -> Value {
        let Self { source, target, path, content } = self;
        let mut file = json!({"source": source, "target": target.name, "path": path, "bytes": content.len()});
        if let Some(sharing) = self.sharing() {
            file["sharing"] = sharing_to_json(&sharing, "");
        }
        file
    }

    /// Whether PTX can run in a shared worker.
    fn sharing(&self) -> Option<Sharing> {
        matches!(self.target.code, Code::Ptx(_)).then(|| sharing::of_ptx(&self.content))
    }
}

/// The modules that are asked for, without their content yet.
fn wanted(arguments: &KernelBuildArguments) -> Result<Vec<Module<'_>>> {
    let mut modules: Vec<Module<'_>> = Vec::new();
    for source in &arguments.sources {
        let stem = stem(source)?;
        // A compiler would wait for a pipe, and never end at a device.
        Source::file(source).open()?;
        for target in &arguments.targets {
            let name = target.file_name(&stem);
            let path = match &arguments.output {
                Some(folder) => folder.join(name),
                None => source.with_file_name(name),
            };
            if modules.iter().any(|other| other.path == path) {
                return Err(Failure::Usage(format!("{} would be written twice", path.display())));
            }
            modules.push(Module { source, target, path, content: Vec::new() });
        }
    }
    Ok(modules)
}

/// What the modules of a source are called.
fn stem(source: &Path) -> Result<String> {
    let name = source.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(".c")).filter(|stem| !stem.is_empty());
    // With an architecture at its end it would be another module's.
    let is_whole = |stem: &&str| {
        let ends = FORMATS.iter().map(|format| format.name());
        ends.into_iter().all(|end| variants::stem(format!("{stem}.{end}").as_ref()) == **stem)
    };
    stem.filter(is_whole).map(str::to_owned).ok_or_else(|| {
        let what = match source.extension().is_some_and(|extension| extension == "cu") {
            true => "a kernel of CUDA's: `nvcc -ptx` makes a module of it for NVIDIA GPUs, and kernels/README.md (\"Coming from CUDA\") \
                     says how the same is written in NAME.c for all devices",
            false => "expected a source of kernels, NAME.c, whose name does not end in an architecture",
        };
        Failure::Usage(format!("{}: {what}", source.display()))
    })
}

/// A path that no tool takes for an option, or for the name of a file with options (`@FILE`, which is read also behind `--`).
fn as_operand(path: &Path) -> Cow<'_, Path> {
    match path.as_os_str().as_encoded_bytes().first() {
        Some(b'@' | b'-') => Path::new(".").join(path).into(),
        _ => path.into(),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// One run of the command.
struct Builder<'a> {
    toolchain: Toolchain,
    scratch: &'a Scratch,
    strict: bool,
    debug: bool,
    coloured: bool,
    /// What the tools said so far, once: of five targets, each finds the same to say.
    said: String,
}

impl Builder<'_> {
    /// Fills all modules, one after the other; ends at the first that is refused.
    fn build_all(&mut self, modules: &mut [Module<'_>]) -> Result<()> {
        self.write_headers()?;
        let progress = Progress::spinner("compiling");
        for module in modules {
            let (source, target) = (module.source, module.target);
            progress.says(&format!("compiling {} for {}", source.display(), target.name));
            module.content = self.build(source, target)?;
        }
        Ok(())
    }

    fn headers(&self) -> PathBuf {
        self.scratch.path().join("include")
    }

    fn write_headers(&self) -> Result<()> {
        let folder = self.headers();
        std::fs::create_dir(&folder).map_err(Error::file(&folder))?;
        for (name, text) in HEADERS {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(Error::file(&path))?;
        }
        Ok(())
    }

    /// A module's bytes.
    fn build(&mut self, source: &Path, target: &Target) -> Result<Vec<u8>> {
        // A name of its own, so that nothing of a path is in what comes out.
        let (first, second) = (self.scratch.path().join("first"), self.scratch.path().join("second"));
        let mut options = target.options();
        if self.strict {
            options.push("-Werror".into());
        }
        let keeps_lines = self.debug && target.code == Code::Wasm;
        if keeps_lines {
            // Paths begin at the folder of the source, wherever that and the headers lie.
            options.extend(["-g", "-fdebug-compilation-dir=."].map(str::to_owned));
            options.push(format!("-ffile-prefix-map={}=include", self.headers().display()));
        }
        if self.coloured {
            options.push("-fcolor-diagnostics".into());
        }
        // In `__FILE__` stands the name alone.
        options.push(format!("-ffile-prefix-map={}/=", folder(source).display()));
        options.push(format!("-I{}", self.headers().display()));
        let named = as_operand(source);
        let files = ["-o".as_ref(), first.as_os_str(), "--".as_ref(), named.as_os_str()];
        let arguments: Vec<_> = options.iter().map(AsRef::as_ref).chain(files).collect();
        let compiled = self.toolchain.run(self.scratch, CLANG, &arguments)?;
        self.judge(CLANG, source, target, &compiled)?;
        match target.code {
            Code::Ptx(_) => read(&first),
            Code::Hsaco => {
                let section = "--remove-section=.comment".as_ref();
                let files = [section, first.as_os_str(), second.as_os_str()];
                let stripped = self.toolchain.run(self.scratch, OBJCOPY, &files)?;
                self.judge(OBJCOPY, source, target, &stripped)?;
                read(&second)
            }
            Code::Wasm => {
                let files = [first.as_os_str(), "-o".as_ref(), second.as_os_str()];
                let link = WASM_LINK.iter().filter(|option| !(keeps_lines && **option == "--strip-all"));
                let arguments: Vec<_> = link.map(AsRef::as_ref).chain(files).collect();
                let linked = self.toolchain.run(self.scratch, WASM_LD, &arguments)?;
                self.judge(WASM_LD, source, target, &linked)?;
                with_signatures(source, &read(&first)?, &read(&second)?)
            }
        }
    }

    /// Keeps a tool's messages; fails if the tool did.
    fn judge(&mut self, tool: &str, source: &Path, target: &Target, ran: &Ran) -> Result<()> {
        // Its object has no name that means anything to its author.
        let text = String::from_utf8_lossy(&ran.said);
        let text: String = text.split_inclusive('\n').filter(|line| !is_count(line)).collect();
        let text =
            text.replace(&format!("{}/first", self.scratch.path().display()), &source.display().to_string());
        if !self.said.contains(&text) {
            self.said += &text;
        }
        if ran.status.success() {
            return Ok(());
        }
        let has_header =
            std::fs::read(source).is_ok_and(|text| text.windows(8).any(|word| word == b"pappus.h"));
        let hint = match tool == CLANG && !has_header {
            true => "; it lacks #include \"pappus.h\", which also says what to write for names of CUDA's",
            false => "",
        };
        Err(Failure::Refused(format!(
            "{} for {}: {} refuses it, as it says above{hint}",
            source.display(),
            target.name,
            self.toolchain.tool(tool)
        )))
    }
}

/// True for `1 warning generated when compiling for sm_70.`, the only line that differs between targets.
fn is_count(line: &str) -> bool {
    line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" generated")
}

/// A linked module with the signatures of its kernels, which the object has.
fn with_signatures(source: &Path, object: &[u8], module: &[u8]) -> Result<Vec<u8>> {
    let signatures =
        signature::all(object).map_err(|why| Failure::Refused(format!("{}: {why}", source.display())))?;
    if signatures.is_empty() {
        return Err(Failure::Refused(format!(
            "{}: no kernel in it: one begins with KERNEL(name, …), of pappus.h",
            source.display()
        )));
    }
    signatures::put(module, &signatures)
        .ok_or_else(|| Failure::Failed(format!("{}: the linker made no WebAssembly", source.display())))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(path).map_err(Error::file(path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_known_by_its_name() {
        assert_eq!(stem("a/reverse.c".as_ref()).unwrap(), "reverse");
        assert_eq!(stem("my.kernels.c".as_ref()).unwrap(), "my.kernels");
        for name in ["reverse", "reverse.cu", ".c", "reverse.sm_90.c", "reverse.gfx942.c", ""] {
            assert!(stem(name.as_ref()).unwrap_err().to_string().contains("NAME.c"), "{name}");
        }
    }

    #[test]
    fn a_source_is_no_option_and_no_file_of_options() {
        for (path, expected) in [("@x.c", "./@x.c"), ("-x.c", "./-x.c"), ("x@.c", "x@.c"), ("/@x.c", "/@x.c")]
        {
            assert_eq!(as_operand(path.as_ref()).as_os_str(), expected);
        }
    }

    #[test]
    fn a_path_lies_in_a_folder() {
        assert_eq!((folder("a/b.c".as_ref()), folder("b.c".as_ref())), ("a".as_ref(), ".".as_ref()));
    }
}
