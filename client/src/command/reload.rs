//! `pappus reload`: the configuration file, read again.

use std::io::Write;

use pappus_client::Client;
use serde_json::json;

use super::device;
use crate::arguments::Json;
use crate::failure::Result;

/// Asks for it, and says what changed.
pub(crate) fn run(client: &mut Client, json: Json, out: &mut dyn Write) -> Result<()> {
    let reloaded = client.reload()?;
    if json.json {
        let settings: Vec<_> = reloaded.settings.iter().map(device::change).collect();
        let devices: Vec<_> = reloaded.devices.iter().map(device::of_device).collect();
        let whole = json!({"settings": settings, "devices": devices, "restart": reloaded.restart});
        return Ok(writeln!(out, "{whole}")?);
    }
    writeln!(out, "configuration read again")?;
    device::changes(reloaded.settings.iter().map(|change| ("", change)), out)?;
    for settings in &reloaded.devices {
        device::changes(settings.changes.iter().map(|change| (settings.device.as_str(), change)), out)?;
    }
    for one in &reloaded.restart {
        writeln!(out, "takes another start: {one}")?;
    }
    Ok(())
}
