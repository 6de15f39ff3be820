//! `pappus kernel new`: a source and a configuration that build, register and run, to be changed into something else.

use std::io::{ErrorKind, Write};
use std::path::Path;

use pappus_client::Error;
use pappus_kernels::authoring::{SCHEMA, TEMPLATES, Template};
use serde_json::json;

use crate::arguments::KernelNewArguments;
use crate::failure::{Failure, Result};

/// Writes both files, or none, with the schema for editors beside them, and prints the commands that follow.
pub(super) fn run(arguments: &KernelNewArguments, out: &mut dyn Write) -> Result<()> {
    let KernelNewArguments { name, template, output, force, json } = arguments;
    check(name)?;
    let folder = output.clone().unwrap_or_default();
    let Some(template) = TEMPLATES.iter().find(|one| one.name == *template) else {
        return Err(Failure::Usage(format!("no template is called {template:?}")));
    };
    let [source, config] = ["c", "json"].map(|end| folder.join(format!("{name}.{end}")));
    let files = [(&source, template.source.to_owned()), (&config, configuration(template, name))];
    std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    if !force && let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(exists(path));
    }
    for (path, text) in &files {
        write(path, text, *force)?;
    }
    // Configurations of one folder have one schema, which is the newest program's.
    let (schema, text) = SCHEMA;
    write(&folder.join(schema), text, true)?;
    let shown = |path: &Path| quoted(&path.display().to_string());
    let commands = [
        format!("pappus kernel build {}", shown(&source)),
        format!("pappus function add {name} {}", shown(&config)),
        format!("pappus invoke {name} {}", template.example),
    ];
    if json.json {
        let value = json!({"source": source, "config": config, "commands": commands});
        return Ok(writeln!(out, "{value}")?);
    }
    writeln!(
        out,
        "wrote {} and {}, and {} for editors; next:",
        source.display(),
        config.display(),
        folder.join(schema).display()
    )?;
    Ok(commands.iter().try_for_each(|command| writeln!(out, "  {command}"))?)
}

/// A name for files and for a function that needs no quotes.
fn check(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let begins = name.bytes().next().is_some_and(|first| first != b'-');
    match begins && name.len() <= 128 && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{name:?} is no name: expected 1 to 128 letters, digits, `_` or `-`, the first of them not `-`"
        ))),
    }
}

fn configuration(template: &Template, name: &str) -> String {
    template.config.replace("NAME", name)
}

fn write(path: &Path, text: &str, replace: bool) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(!replace).create(true).truncate(replace);
    match options.open(path).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => Err(Error::file(path)(error).into()),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::Refused(format!("{} exists: choose another name, or replace it with --force", path.display()))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_quotes_anywhere() {
        for name in ["saxpy", "my-kernel_2", "_"] {
            check(name).unwrap();
        }
        for name in ["", "-x", "a.b", "a/b", "a b", &"x".repeat(129)] {
            assert!(check(name).unwrap_err().to_string().contains("is no name"), "{name}");
        }
        assert_eq!((quoted("a/b.c"), quoted("it's")), ("a/b.c".to_owned(), r"'it'\''s'".to_owned()));
    }

    #[test]
    fn every_template_is_a_function() {
        for template in TEMPLATES {
            let config = configuration(template, "mine");
            let blueprint = pappus_blueprint::parse(config.as_bytes());
            let blueprint = blueprint.unwrap_or_else(|why| panic!("{}: {why}", template.name));
            assert_eq!(blueprint.modules()[0].name, "mine.wasm", "{}", template.name);
            assert_eq!(blueprint.warnings(), [], "{}", template.name);
            let written: serde_json::Value = serde_json::from_str(&config).unwrap();
            assert_eq!(written["$schema"], SCHEMA.0, "{}", template.name);
            for kernel in blueprint.kernels() {
                assert!(template.source.contains(&format!("KERNEL({},", kernel.symbol)), "{}", kernel.symbol);
            }
        }
    }
}
