//! `pappus reload`: the configuration file, read again.

use std::io::Write;

use pappus_client::{Client, v1};
use serde_json::{Value, json};

use super::device;
use crate::arguments::Json;
use crate::failure::Result;

/// Asks for it, and says what changed.
pub(crate) fn run(client: &mut Client, json: Json, out: &mut dyn Write) -> Result<()> {
    let reloaded = client.reload()?;
    if json.json {
        let settings: Vec<_> = reloaded.settings.iter().map(device::change).collect();
        let devices: Vec<_> = reloaded.devices.iter().map(device::of_device).collect();
        let tenants: Vec<_> = reloaded.tenants.iter().map(of_tenant).collect();
        let whole = json!({
            "settings": settings,
            "devices": devices,
            "tenants": tenants,
            "more_tenants": reloaded.more_tenants,
            "restart": reloaded.restart,
        });
        return Ok(writeln!(out, "{whole}")?);
    }
    let changed = reloaded.settings.len()
        + reloaded.devices.iter().map(|device| device.changes.len()).sum::<usize>()
        + reloaded.tenants.len()
        + reloaded.restart.len();
    let none = if changed == 0 { ": nothing changed" } else { "" };
    writeln!(out, "configuration read again{none}")?;
    device::changes(reloaded.settings.iter().map(|change| ("", change)), out)?;
    for settings in &reloaded.devices {
        device::changes(settings.changes.iter().map(|change| (settings.device.as_str(), change)), out)?;
    }
    for tenant in &reloaded.tenants {
        device::changes(tenant.changes.iter().map(|change| (name(tenant), change)), out)?;
    }
    if reloaded.more_tenants {
        writeln!(out, "and of more tenants: `pappus tenants --json` shows what each has")?;
    }
    for one in &reloaded.restart {
        writeln!(out, "takes another start: {one}")?;
    }
    Ok(())
}

/// As the configuration calls it.
fn name(tenant: &v1::TenantChanges) -> &str {
    if tenant.tenant.is_empty() { "tenant-defaults" } else { &tenant.tenant }
}

fn of_tenant(tenant: &v1::TenantChanges) -> Value {
    let changes: Vec<_> = tenant.changes.iter().map(device::change).collect();
    json!({"tenant": name(tenant), "changes": changes})
}
