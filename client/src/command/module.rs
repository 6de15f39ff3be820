//! `pappus module`: compiled kernels under a name.

use std::io::Write;
use std::path::Path;

use pappus_client::functions::add_module;
use pappus_client::variants;
use pappus_client::{Client, v1};
use serde_json::{Value, json};

use super::module_file::{self, shown_param};
use crate::arguments::ModuleCommand;
use crate::failure::Result;
use crate::json;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::units;

/// Adds, lists, shows or removes; showing a file needs no connection.
pub(crate) fn run(
    connect: impl FnOnce() -> Result<Client>,
    command: ModuleCommand,
    out: &mut dyn Write,
) -> Result<()> {
    if let ModuleCommand::Show(named) = &command
        && module_file::is_meant(&named.name)
    {
        return module_file::show(Path::new(&named.name), named.json.json, out);
    }
    let client = &mut connect()?;
    match command {
        ModuleCommand::Add { name, files, json } => {
            let files = files
                .iter()
                .map(|path| variants::of_file(path))
                .collect::<pappus_client::Result<Vec<_>>>()?;
            let mut progress = Progress::spinner("reading");
            let module = add_module(client, &name, &files, &mut |step| progress.step(step))?;
            drop(progress);
            match json.json {
                true => writeln!(out, "{}", json::module(&module))?,
                false => {
                    let done = json::registration(module.registration()).unwrap_or("added");
                    writeln!(out, "{done} module {name}: {}", summary(&module))?;
                }
            }
        }
        ModuleCommand::List(json) => {
            let modules = client.list_modules()?;
            if json.json {
                let modules: Vec<Value> = modules.iter().map(json::module).collect();
                return Ok(writeln!(out, "{}", json!({"modules": modules}))?);
            }
            let mut table = Table::new(&[("MODULE", Align::Left), ("VARIANTS", Align::Left)]);
            for module in &modules {
                table.row([module.name.clone(), summary(module)]);
            }
            table.print(out)?;
        }
        ModuleCommand::Show(named) => {
            let module = client.show_module(&named.name)?;
            match named.json.json {
                true => writeln!(out, "{}", json::module(&module))?,
                false => show(&module, out)?,
            }
        }
        ModuleCommand::Remove { name } => {
            client.remove_module(&name)?;
            writeln!(out, "removed module {name}")?;
        }
    }
    Ok(())
}

fn show(module: &v1::ModuleInfo, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "module {}\n", module.name)?;
    let mut table = Table::new(&[
        ("VARIANT", Align::Left),
        ("BYTES", Align::Right),
        ("SHA-256", Align::Left),
        ("KERNELS", Align::Left),
    ]);
    for info in &module.variants {
        let sha256 = info.variant.as_ref().map(|variant| units::hex(&variant.sha256));
        table.row([
            info.variant.as_ref().map(variant).unwrap_or_default(),
            info.bytes.to_string(),
            sha256.unwrap_or_default(),
            info.kernels.join(" "),
        ]);
    }
    table.print(out)?;
    layouts(module, out)
}

/// Kernels with their parameters, of the variants whose machine code tells them.
pub(crate) fn layouts(module: &v1::ModuleInfo, out: &mut dyn Write) -> Result<()> {
    for info in &module.variants {
        if !info.details.iter().any(|kernel| kernel.has_params) {
            continue;
        }
        let named = info.variant.as_ref().map(variant).unwrap_or_default();
        writeln!(out, "\n{} {named}:", module.name)?;
        for kernel in &info.details {
            writeln!(out, "  {}({}){}", kernel.name, params(kernel), needs(kernel))?;
        }
    }
    Ok(())
}

/// `8 pointer x, 4 float`: bytes, and what is known of type and name.
fn params(kernel: &v1::Kernel) -> String {
    if !kernel.has_params {
        return "unknown".to_owned();
    }
    let param = |param: &v1::KernelParam| shown_param(param.bytes, &param.r#type, &param.name);
    kernel.params.iter().map(param).collect::<Vec<_>>().join(", ")
}

fn needs(kernel: &v1::Kernel) -> String {
    let figures = [
        ("at most", u64::from(kernel.max_threads), "threads per block"),
        ("shared", kernel.shared_bytes.into(), "bytes"),
        ("stack", kernel.local_bytes.into(), "bytes per thread"),
    ];
    let known = figures.into_iter().filter(|(_, figure, _)| *figure > 0);
    known.map(|(what, figure, unit)| format!("  {what} {figure} {unit}")).collect()
}

fn summary(module: &v1::ModuleInfo) -> String {
    let variants = module.variants.iter().filter_map(|info| info.variant.as_ref()).map(variant);
    variants.collect::<Vec<_>>().join(" ")
}

/// A variant as its file would end: `sm_90.ptx`.
pub(crate) fn variant(variant: &v1::Variant) -> String {
    match variant.arch.as_str() {
        "" => variant.format.clone(),
        arch => format!("{arch}.{}", variant.format),
    }
}
