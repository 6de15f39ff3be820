//! `pappus tenants`: every tenant with its usage and its quotas.

use std::io::Write;

use pappus_client::Client;
use serde_json::json;

use super::quota::{limit, used};
use crate::arguments::Json;
use crate::failure::Result;
use crate::table::{Align, Table};

/// The limits in their columns.
const COLUMNS: [(&str, &str); 7] = [
    ("functions", "FUNCTIONS"),
    ("module-bytes", "MODULES"),
    ("blob-bytes", "BLOBS"),
    ("arena-bytes", "ARENAS"),
    ("pinned-bytes", "PINNED"),
    ("calls", "CALLS"),
    ("device-memory", "DEVICE MEMORY"),
];

/// Asks once and prints.
pub(crate) fn run(client: &mut Client, json: Json, out: &mut dyn Write) -> Result<()> {
    let tenants = client.list_tenants()?;
    if json.json {
        let tenants: Vec<_> = tenants.iter().map(crate::json::tenant).collect();
        return Ok(writeln!(out, "{}", json!({"tenants": tenants}))?);
    }
    let mut columns = vec![("TENANT", Align::Left), ("UIDS", Align::Left), ("CONNECTIONS", Align::Right)];
    columns.extend(COLUMNS.map(|(_, heading)| (heading, Align::Right)));
    let mut table = Table::new(&columns);
    for tenant in &tenants {
        let uids: Vec<String> = tenant.uids.iter().map(u32::to_string).collect();
        let cell = |at: usize| {
            let quota = tenant.quotas.iter().find(|quota| quota.name == COLUMNS[at].0);
            quota.map_or_else(String::new, |quota| format!("{} of {}", used(quota), limit(quota)))
        };
        table.row([
            tenant.name.clone(),
            if uids.is_empty() { "-".to_owned() } else { uids.join(",") },
            tenant.connections.to_string(),
            cell(0),
            cell(1),
            cell(2),
            cell(3),
            cell(4),
            cell(5),
            cell(6),
        ]);
    }
    Ok(table.print(out)?)
}
