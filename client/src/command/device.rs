//! `pappus device`: lists devices and their work, and changes settings while they serve.

use std::collections::BTreeMap;
use std::io::Write;

use pappus_client::{Client, v1};
use serde_json::{Value, json};

use super::status;
use crate::arguments::DeviceCommand;
use crate::failure::{Failure, Result};
use crate::json;
use crate::table::{Align, Table};

/// Lists, shows, or changes what is to be changed and shows what is in force.
pub(crate) fn run(client: &mut Client, command: DeviceCommand, out: &mut dyn Write) -> Result<()> {
    let (device, change, json) = match command {
        DeviceCommand::List(json) => return list(&client.status()?, json.json, out),
        DeviceCommand::Show(named) => return show(client.status()?, &named.name, named.json.json, out),
        DeviceCommand::Set { device, change, json } => (device, change, json),
    };
    let change = change.into_iter().map(|setting| (setting.name, setting.value));
    let settings = client.set_device(&device, change.collect())?;
    if json.json {
        return Ok(writeln!(out, "{}", of_device(&settings))?);
    }
    changes(settings.changes.iter().map(|change| (settings.device.as_str(), change)), out)?;
    let values: BTreeMap<_, _> = settings.values.into_iter().collect();
    let mut table = Table::new(&[("SETTING", Align::Left), ("VALUE", Align::Left)]);
    for (key, value) in values {
        table.row([key, value]);
    }
    Ok(table.print(out)?)
}

fn list(status: &v1::Status, as_json: bool, out: &mut dyn Write) -> Result<()> {
    match as_json {
        true => {
            let devices: Vec<Value> = status.devices.iter().map(json::device).collect();
            Ok(writeln!(out, "{}", json!({"devices": devices}))?)
        }
        false => status::devices(status, out),
    }
}

/// What `status` says of one device.
fn show(mut status: v1::Status, name: &str, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let names: Vec<String> = status.devices.iter().map(|device| device.name.clone()).collect();
    status.devices.retain(|device| device.name == name);
    match status.devices.as_slice() {
        [] => Err(Failure::Refused(format!("there is no device {name:?}, expected one of {names:?}"))),
        [device, ..] if as_json => Ok(writeln!(out, "{}", json::device(device))?),
        _ => status::all_of_devices(&status, out),
    }
}

/// What changed, and what takes effect when; nothing where nothing did.
pub(super) fn changes<'a>(
    changes: impl Iterator<Item = (&'a str, &'a v1::SettingChange)>,
    out: &mut dyn Write,
) -> Result<()> {
    for (device, v1::SettingChange { name, before, after, effect }) in changes {
        let of = if device.is_empty() { String::new() } else { format!(" of {device}") };
        let effect = if effect.is_empty() { String::new() } else { format!(": {effect}") };
        writeln!(out, "{name}{of}: {before} -> {after}{effect}")?;
    }
    Ok(())
}

/// A device's settings.
pub(super) fn of_device(settings: &v1::DeviceSettings) -> Value {
    json!({
        "device": settings.device,
        "settings": settings.values,
        "changes": settings.changes.iter().map(change).collect::<Vec<_>>(),
    })
}

/// A setting that changed.
pub(super) fn change(change: &v1::SettingChange) -> Value {
    json!({"name": change.name, "before": change.before, "after": change.after, "effect": change.effect})
}
