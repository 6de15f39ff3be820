//! `pappus device`: settings of a device, which change while it serves.

use std::collections::BTreeMap;
use std::io::Write;

use pappus_client::{Client, v1};
use serde_json::{Value, json};

use crate::arguments::DeviceCommand;
use crate::failure::Result;
use crate::table::{Align, Table};

/// Changes what is to be changed, and shows what is in force.
pub(crate) fn run(client: &mut Client, command: DeviceCommand, out: &mut dyn Write) -> Result<()> {
    let DeviceCommand::Set { device, change, json } = command;
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
