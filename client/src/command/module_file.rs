//! `pappus module show FILE`: what is in a compiled module, without a supervisor.

use std::io::Write;
use std::path::Path;

use pappus_blueprint::code::{Figures, Kernel, Part};
use pappus_blueprint::kernel_info::ParamInfo;
use pappus_client::kernels;
use pappus_client::variants;
use serde_json::{Map, Value, json};

use crate::failure::Result;

/// True if `name` means a file and no registered module: it looks like a path, or there is a module file of that
/// name.
pub(crate) fn is_meant(name: &str) -> bool {
    name.contains('/') || variants::of_file(Path::new(name)).is_ok() && Path::new(name).is_file()
}

/// Prints what the file tells.
pub(crate) fn show(path: &Path, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let file = variants::of_file(path)?;
    let parts = kernels::of_file(&file)?;
    if as_json {
        let parts: Vec<Value> = parts.iter().map(part).collect();
        return Ok(writeln!(out, "{}", json!({"file": path, "format": file.format.name(), "parts": parts}))?);
    }
    for part in &parts {
        let target = if part.target.is_empty() { "" } else { " for " };
        let head = format!(
            "{}: {}{target}{}{}",
            path.display(),
            file.format.name(),
            part.target,
            words(&part.figures)
        );
        let Some(kernels) = &part.kernels else {
            writeln!(out, "{head}: only a driver can tell its kernels")?;
            continue;
        };
        writeln!(out, "{head}")?;
        for kernel in kernels {
            let params = match &kernel.info.params {
                None => "not told".to_owned(),
                Some(params) => params.iter().map(param).collect::<Vec<_>>().join(", "),
            };
            writeln!(out, "  {}({params}){}", kernel.info.name, words(&kernel.figures))?;
        }
    }
    Ok(())
}

/// `8 pointer x`.
fn param(param: &ParamInfo) -> String {
    shown_param(param.bytes, param.class.name(), &param.name)
}

/// Bytes of a parameter, and its type and name where they are known.
pub(super) fn shown_param(bytes: u32, class: &str, name: &str) -> String {
    let known = [class, name].into_iter().filter(|word| !word.is_empty());
    known.fold(bytes.to_string(), |shown, word| shown + " " + word)
}

/// What each figure is called for people: in front of the number, and behind it.
const WORDS: [(&str, &str, &str); 10] = [
    ("max_threads", "at most", "threads per block"),
    ("shared_bytes", "shared", "bytes"),
    ("local_bytes", "stack", "bytes per thread"),
    ("wave", "waves of", "threads"),
    ("vector_registers", "", "vector registers"),
    ("accumulation_registers", "", "accumulation registers"),
    ("scalar_registers", "", "scalar registers"),
    ("memory_bytes", "stack and data", "bytes"),
    ("variable_bytes", "variables", "bytes"),
    ("code_object_version", "code object version", ""),
];

/// Singular forms of the units in [`WORDS`].
const UNITS: [&str; 3] = ["byte", "thread", "register"];

/// Figures that are something, each after a comma.
fn words(figures: &Figures) -> String {
    let mut words = String::new();
    for (name, figure) in figures.iter().filter(|(_, figure)| *figure > 0) {
        let known = WORDS.iter().find(|(known, ..)| known == name);
        let (before, behind) = known.map_or((*name, ""), |(_, before, behind)| (*before, *behind));
        let mut text = format!("{before} {figure} {behind}");
        if *figure == 1 {
            text = UNITS.iter().fold(text, |text, unit| text.replace(&format!("{unit}s"), unit));
        }
        words += ", ";
        words += text.trim();
    }
    words
}

fn part(part: &Part) -> Value {
    let mut value = with(Map::new(), &part.figures);
    value.insert("target".into(), part.target.clone().into());
    let kernels = part.kernels.as_ref().map(|kernels| kernels.iter().map(kernel).collect::<Vec<_>>());
    value.insert("kernels".into(), kernels.into());
    value.into()
}

fn kernel(kernel: &Kernel) -> Value {
    let param = |param: &ParamInfo| {
        let class = param.class.name();
        json!({"name": param.name, "offset": param.offset, "bytes": param.bytes, "type": class})
    };
    let params = kernel.info.params.as_ref().map(|params| params.iter().map(param).collect::<Vec<_>>());
    let mut value = with(Map::new(), &kernel.figures);
    value.insert("name".into(), kernel.info.name.clone().into());
    value.insert("params".into(), params.into());
    value.into()
}

fn with(mut map: Map<String, Value>, figures: &Figures) -> Map<String, Value> {
    map.extend(figures.iter().map(|(name, figure)| ((*name).to_owned(), (*figure).into())));
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, content: &[u8], as_json: bool) -> Result<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let mut out = Vec::new();
        show(&path, as_json, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn one_of_something_is_said_so() {
        let figures = |figure| vec![("variable_bytes", figure), ("scalar_registers", figure)];
        assert_eq!(words(&figures(1)), ", variables 1 byte, 1 scalar register");
        assert_eq!(words(&figures(2)), ", variables 2 bytes, 2 scalar registers");
    }

    #[test]
    fn every_kind_of_module_shows_what_it_tells() {
        for (name, expected) in [
            (
                "linalg.gfx942.hsaco",
                &[
                    "hsaco for gfx942, code object version 5\n",
                    "  vec_add_f(8 pointer, 8 pointer, 8 pointer, 8 value), at most 1024 threads per block, waves of 64",
                    " vector registers, ",
                ][..],
            ),
            ("linalg.ptx", &["ptx for sm_70\n", "  vec_add_f(8 integer, 8 integer, 8 integer, 8 integer)"]),
            (
                "linalg.wasm",
                &[
                    "wasm, stack and data ",
                    "  vec_add_f(8 pointer A, 8 pointer B, 8 pointer C, 8 integer n)\n",
                    "  axpy_f(32 struct parameters)\n",
                ],
            ),
        ] {
            let text = shown(name, pappus_kernels::artefact(name).unwrap(), false).unwrap();
            for words in expected {
                assert!(text.contains(words), "{text}");
            }
        }
        assert!(shown("x.fatbin", b"", false).unwrap().contains("fatbin: only a driver can tell"));
        let why = shown("x.hsaco", b"CCOB", false).unwrap_err().to_string();
        assert!(why.contains("x.hsaco: a compressed bundle"), "{why}");
        assert!(shown("x.txt", b"", false).is_err());
    }

    #[test]
    fn json_has_the_same() {
        let content = pappus_kernels::artefact("module.hsaco").unwrap();
        let value: Value = serde_json::from_str(&shown("module.hsaco", content, true).unwrap()).unwrap();
        let part = &value["parts"][0];
        assert_eq!((&value["format"], &part["target"]), (&"hsaco".into(), &"gfx90a".into()));
        assert_eq!(
            (&part["code_object_version"], &part["kernels"][0]["name"]),
            (&5.into(), &"hello_world".into())
        );
        let expected = json!([{"name": "", "offset": 0, "bytes": 8, "type": "pointer"}]);
        assert_eq!((&part["kernels"][1]["params"], &part["kernels"][1]["wave"]), (&expected, &64.into()));
    }

    #[test]
    fn a_file_is_told_from_a_name() {
        assert!(is_meant("./mlops") && is_meant("built/mlops.hsaco"));
        assert!(!is_meant("mlops") && !is_meant("absent.hsaco"));
    }
}
