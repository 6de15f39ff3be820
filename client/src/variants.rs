//! Which file holds which compiled form of a module: `STEM.FORMAT` for the format's default architecture,
//! `STEM.ARCH.FORMAT` for a particular one, such as `mlops.sm_90.ptx`.

use std::path::Path;

use pappus_blueprint::code::{self, CodeFormat, FORMATS};

use crate::error::{Error, Result};
use crate::source::Source;

/// A file with one compiled form of a module.
#[derive(Debug, Clone)]
pub struct VariantFile {
    /// The file.
    pub source: Source,
    /// What kind of code it is.
    pub format: &'static dyn CodeFormat,
    /// The architecture it is for; empty for the format's default.
    pub arch: String,
}

/// Reads a file name as `(stem, format, arch)`; `None` where it names no module.
fn split(name: &str) -> Option<(&str, &'static dyn CodeFormat, &str)> {
    let (rest, extension) = name.rsplit_once('.')?;
    let format = code::of_name(extension)?;
    match rest.rsplit_once('.') {
        Some((stem, arch)) if is_arch(arch, format.arch_prefix()) => Some((stem, format, arch)),
        _ => Some((rest, format, "")),
    }
    .filter(|(stem, ..)| !stem.is_empty())
}

fn is_arch(text: &str, prefix: &str) -> bool {
    let rest = text.strip_prefix(prefix).filter(|_| !prefix.is_empty());
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

/// The variant that a file holds, by its name.
pub fn of_file(path: &Path) -> Result<VariantFile> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((_, format, arch)) = name.and_then(split) else {
        let message = format!(
            "its name does not say what it holds, expected it to end in one of .{}",
            names(FORMATS).join(", .")
        );
        return Err(Error::content(path, message));
    };
    Ok(VariantFile { source: Source::file(path), format, arch: arch.to_owned() })
}

impl VariantFile {
    /// Its path, as errors call it.
    pub fn path(&self) -> &Path {
        self.source.path()
    }
}

/// What variants of one module have in common: the name without architecture and format.
pub fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    split(&name).map_or(name.as_ref(), |(stem, ..)| stem).to_owned()
}

/// All variants of the module at `path`, sorted by file name: itself, if it exists, and its siblings.
pub fn beside(path: &Path) -> Result<Vec<VariantFile>> {
    let folder = folder(path);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file(folder)(error)),
    };
    let entries: std::io::Result<Vec<_>> = entries.collect();
    let entries = entries.map_err(Error::file(folder))?;
    let files = entries.iter().map(|entry| path.with_file_name(entry.file_name()));
    Ok(among(path, files.filter(|path| path.is_file()).map(Source::file)))
}

/// The same, of these files of its folder.
pub(crate) fn among(path: &Path, files: impl Iterator<Item = Source>) -> Vec<VariantFile> {
    let stem = stem(path);
    let variant = |source: Source| match split(source.path().file_name()?.to_str()?) {
        Some((other, format, arch)) if other == stem => {
            Some(VariantFile { format, arch: arch.to_owned(), source })
        }
        _ => None,
    };
    let mut found: Vec<_> = files.filter_map(variant).collect();
    found.sort_unstable_by(|a, b| a.path().cmp(b.path()));
    found
}

/// What [`beside`] looks for, as a shell would write it.
pub fn looked_for(path: &Path) -> String {
    let stem = path.with_file_name(stem(path));
    let stem = stem.display();
    let all = names(FORMATS).join(",");
    let with_archs = FORMATS.into_iter().filter(|format| !format.arch_prefix().is_empty());
    format!("{stem}.{{{all}}} and {stem}.ARCH.{{{}}}", names(with_archs).join(","))
}

fn names(formats: impl IntoIterator<Item = &'static dyn CodeFormat>) -> Vec<&'static str> {
    formats.into_iter().map(CodeFormat::name).collect()
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_stem_format_and_architecture() {
        let cases = [
            ("mlops.wasm", Some(("mlops", "wasm", ""))),
            ("mlops.sm_90.ptx", Some(("mlops", "ptx", "sm_90"))),
            ("mlops.sm_90a.cubin", Some(("mlops", "cubin", "sm_90a"))),
            ("mlops.gfx942.hsaco", Some(("mlops", "hsaco", "gfx942"))),
            ("mlops.v2.ptx", Some(("mlops.v2", "ptx", ""))),
            ("mlops.sm_90.wasm", Some(("mlops.sm_90", "wasm", ""))),
            ("mlops.gfx942.ptx", Some(("mlops.gfx942", "ptx", ""))),
            ("mlops.so", None),
            (".wasm", None),
            ("mlops", None),
        ];
        for (name, expect) in cases {
            let found = split(name).map(|(stem, format, arch)| (stem, format.name(), arch));
            assert_eq!(found, expect, "{name}");
        }
    }

    #[test]
    fn siblings_of_the_same_stem_are_found_whether_or_not_the_named_file_is_there() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["m.wasm", "m.sm_90.ptx", "m.fatbin", "m.txt", "mm.wasm", "m.v2.wasm"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("m.cubin")).unwrap();
        for named in ["m.hsaco", "m.wasm", "m.sm_80.ptx", "m"] {
            let found = beside(&dir.path().join(named)).unwrap();
            let names: Vec<_> = found.iter().map(|file| file.path().file_name().unwrap()).collect();
            assert_eq!(names, ["m.fatbin", "m.sm_90.ptx", "m.wasm"], "{named}");
        }
        assert_eq!(
            looked_for(Path::new("lib/m.sm_80.ptx")),
            "lib/m.{wasm,ptx,cubin,fatbin,hsaco} and lib/m.ARCH.{ptx,cubin,fatbin,hsaco}"
        );
        assert!(beside(&dir.path().join("absent/m.wasm")).unwrap().is_empty());
    }
}
