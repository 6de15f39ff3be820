//! `pappus function`: blueprints with their modules and weights.

use std::io::Write;
use std::path::{Path, PathBuf};

use pappus_client::{Client, v1};
use serde_json::{Value, json};

use super::module::{layouts, variant};
use super::registrable::Registrable;
use crate::arguments::{Assignment, FunctionCommand};
use crate::failure::Result;
use crate::json;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::units;

/// Adds, lists, shows, removes or checks; only checking needs no connection.
pub(crate) fn run(
    connect: impl FnOnce() -> Result<Client>,
    command: FunctionCommand,
    out: &mut dyn Write,
) -> Result<()> {
    match command {
        FunctionCommand::Check(arguments) => super::check::run(arguments, out),
        FunctionCommand::Add { name, config, weights, replace, json } => {
            let function = add(&mut connect()?, &name, &config, weights, replace)?;
            match json.json {
                true => writeln!(out, "{}", json::function(&function))?,
                false => {
                    // An older supervisor does not say.
                    let done = json::registration(function.registration()).unwrap_or("added");
                    let version = match function.number {
                        0 | 1 => String::new(),
                        number => format!(" (version {number})"),
                    };
                    writeln!(out, "{done} function {name}{version}: {}", signature(&function))?;
                }
            }
            Ok(())
        }
        FunctionCommand::List { granted: only_granted, json } => {
            let mut client = connect()?;
            let functions =
                if only_granted { client.list_granted_functions() } else { client.list_functions() }?;
            if json.json {
                let functions: Vec<Value> = functions.iter().map(json::function).collect();
                return Ok(writeln!(out, "{}", json!({"functions": functions}))?);
            }
            let mut table = Table::new(&[
                ("FUNCTION", Align::Left),
                ("VERSION", Align::Left),
                ("SIGNATURE", Align::Left),
                ("MODULES", Align::Left),
            ]);
            for function in &functions {
                let modules: Vec<&str> = function.modules.iter().map(|module| module.name.as_str()).collect();
                let modules = if function.granted { "(granted)".to_owned() } else { modules.join(" ") };
                let mut signature = signature(function);
                if !function.quarantine.is_empty() {
                    signature += " (in quarantine)";
                }
                table.row([function.name.clone(), versions(function), signature, modules]);
            }
            Ok(table.print(out)?)
        }
        FunctionCommand::Show(named) => {
            let function = connect()?.show_function(&named.name)?;
            match named.json.json {
                true => Ok(writeln!(out, "{}", json::function(&function))?),
                false => show(&function, out),
            }
        }
        FunctionCommand::Use { name, json } => {
            let function = connect()?.use_version(&name)?;
            match json.json {
                true => writeln!(out, "{}", json::function(&function))?,
                false => {
                    let was = json::registration(function.registration()) == Some("unchanged");
                    let done = if was { "is already" } else { "is now" };
                    let (name, number) = (&function.name, function.number);
                    writeln!(out, "the current version of {name} {done} {number}")?;
                }
            }
            Ok(())
        }
        FunctionCommand::Alias { alias: (name, alias), number, .. } => match number {
            Some(number) => {
                connect()?.set_alias(&name, &alias, number)?;
                Ok(writeln!(out, "{name}:{alias} is {name}@{number}")?)
            }
            None => {
                connect()?.remove_alias(&name, &alias)?;
                Ok(writeln!(out, "removed alias {name}:{alias}")?)
            }
        },
        FunctionCommand::Remove { name } => {
            connect()?.remove_function(&name)?;
            Ok(writeln!(out, "removed function {name}")?)
        }
        FunctionCommand::Grant { name, tenant } => {
            connect()?.grant(&name, &tenant)?;
            Ok(writeln!(
                out,
                "granted function {name} to {tenant} (whether there is such a tenant is not checked)"
            )?)
        }
        FunctionCommand::Revoke { name, tenant } => {
            connect()?.revoke(&name, &tenant)?;
            Ok(writeln!(out, "revoked function {name} from {tenant}")?)
        }
        FunctionCommand::Decline { owner, undo } => {
            connect()?.decline(&owner, undo)?;
            let done = if undo { "lists again" } else { "lists no longer" };
            let unknown = if undo { "" } else { " (whether there is such a tenant is not checked)" };
            Ok(writeln!(out, "`function list` {done} what {owner} grants to you{unknown}")?)
        }
        FunctionCommand::Grants(named) => {
            let tenants = connect()?.list_grants(&named.name)?;
            if named.json.json {
                return Ok(writeln!(out, "{}", json!({"function": named.name, "tenants": tenants}))?);
            }
            Ok(tenants.iter().try_for_each(|tenant| writeln!(out, "{tenant}"))?)
        }
    }
}

fn add(
    client: &mut Client,
    name: &str,
    config: &Path,
    weights: Vec<Assignment<PathBuf>>,
    replace: bool,
) -> Result<v1::FunctionInfo> {
    let weights: Vec<_> = weights.into_iter().map(|weight| (weight.name, weight.value)).collect();
    let mut progress = Progress::spinner("reading");
    let registrable = Registrable::read(config, &weights)?;
    Ok(registrable.add(client, name, replace, &mut progress)?)
}

fn show(function: &v1::FunctionInfo, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "function {}: {}", function.name, signature(function))?;
    if function.number > 0 {
        writeln!(out, "version {}", versions(function))?;
    }
    if function.granted {
        // All that a grantee is told.
        return Ok(());
    }
    writeln!(out, "config sha-256: {}", units::hex(&function.config_sha256))?;
    for module in &function.modules {
        let variants: Vec<String> = module.variants.iter().map(variant).collect();
        let registered = match module.registered.as_str() {
            "" => String::new(),
            name => format!(" (registered as {name})"),
        };
        writeln!(out, "module {}{registered}: {}", module.name, variants.join(" "))?;
    }
    for weight in &function.weights {
        writeln!(out, "weights {}: {}", weight.name, units::size(weight.bytes))?;
    }
    for one in &function.quarantine {
        let again = match one.retry_after_ms {
            0 => "the next call runs alone and decides".to_owned(),
            ms => format!("for {} more", units::nanoseconds(ms * 1_000_000)),
        };
        writeln!(out, "in quarantine on {}: failed {} times in a row, {again}", one.device, one.failures)?;
    }
    for module in &function.found {
        layouts(module, out)?;
    }
    match function.config.trim_end() {
        "" => writeln!(out, "a composition whose steps run as consecutive calls")?,
        config => writeln!(out, "\n{config}")?,
    }
    Ok(())
}

/// `3, kept 1 2, live=2`.
fn versions(function: &v1::FunctionInfo) -> String {
    if function.number == 0 {
        return String::new();
    }
    let mut parts = vec![function.number.to_string()];
    if function.number != function.current {
        parts.push(format!("current {}", function.current));
    }
    let kept = function.kept.iter().filter(|kept| **kept != function.number).map(ToString::to_string);
    let kept: Vec<String> = kept.collect();
    if !kept.is_empty() {
        parts.push(format!("kept {}", kept.join(" ")));
    }
    parts.extend(function.aliases.iter().map(|alias| format!("{}={}", alias.name, alias.number)));
    parts.join(", ")
}

/// `cfg, A: f32[n, 3] → B: f32[n]`.
fn signature(function: &v1::FunctionInfo) -> String {
    let typed = |name: &str, dtype: &str, shape: &Option<v1::DeclaredShape>| match dtype {
        "" => name.to_owned(),
        dtype => format!("{name}: {dtype}{}", dimensions(shape)),
    };
    let inputs = function.inputs.iter().enumerate().map(|(at, name)| match function.input_types.get(at) {
        Some(declared) => typed(name, &declared.dtype, &declared.shape),
        None => name.clone(),
    });
    let outputs = function.outputs.iter().map(|output| typed(&output.name, &output.dtype, &output.shape));
    let side = |names: Vec<String>| {
        if names.is_empty() { "()".to_owned() } else { names.join(", ") }
    };
    format!("{} → {}", side(inputs.collect()), side(outputs.collect()))
}

/// `[n, 3]`; nothing where no shape is declared.
fn dimensions(declared: &Option<v1::DeclaredShape>) -> String {
    use v1::dimension::Elements;
    let Some(shape) = declared else { return String::new() };
    let dimensions = shape.dimensions.iter().map(|dimension| match &dimension.elements {
        Some(Elements::Fixed(value)) => value.to_string(),
        Some(Elements::Free(name)) => name.clone(),
        Some(Elements::Computed(formula)) if !formula.is_empty() => formula.clone(),
        Some(Elements::Computed(_)) | None => "…".to_owned(),
    });
    format!("[{}]", dimensions.collect::<Vec<_>>().join(", "))
}
