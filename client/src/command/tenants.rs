//! `pappus tenants`: every tenant with its usage and its quotas; or one with all of them.

use std::io::Write;

use pappus_client::{Client, v1};
use serde_json::json;

use super::quota::{self, limit, used};
use crate::arguments::TenantsArguments;
use crate::failure::{Failure, Result};
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
pub(crate) fn run(client: &mut Client, arguments: TenantsArguments, out: &mut dyn Write) -> Result<()> {
    let TenantsArguments { tenant: name, json } = arguments;
    let mut tenants = client.list_tenants()?;
    if let Some(name) = name {
        tenants.retain(|tenant| tenant.name == name);
        let Some(tenant) = tenants.first() else {
            return Err(Failure::Refused(format!("there is no tenant {name}: `pappus tenants` shows all")));
        };
        if !json.json {
            return quota::print(tenant, out);
        }
    }
    if json.json {
        let tenants: Vec<_> = tenants.iter().map(crate::json::tenant).collect();
        return Ok(writeln!(out, "{}", json!({"tenants": tenants}))?);
    }
    let mut columns = vec![("TENANT", Align::Left), ("UIDS", Align::Left), ("CONNECTIONS", Align::Right)];
    columns.extend(COLUMNS.map(|(_, heading)| (heading, Align::Right)));
    columns.push(("FULLEST", Align::Left));
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
            fullest(&tenant.quotas),
        ]);
    }
    Ok(table.print(out)?)
}

/// The quota of which most is used; empty where nothing is.
fn fullest(quotas: &[v1::Quota]) -> String {
    let percent = |quota: &v1::Quota| match quota.limit {
        // More than nothing, where nothing is allowed: it was lowered.
        Some(0) if quota.used > 0 => u128::MAX,
        Some(limit) => u128::from(quota.used) * 100 / u128::from(limit.max(1)),
        None => 0,
    };
    let fullest = quotas.iter().map(|quota| (percent(quota), quota)).max_by_key(|(percent, _)| *percent);
    match fullest {
        None | Some((0, _)) => String::new(),
        Some((u128::MAX, quota)) => format!("{} {} of 0", quota.name, used(quota)),
        Some((percent, quota)) => format!("{} {percent} %", quota.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_that_is_reached_first_is_named() {
        let quota = |name: &str, used, limit| v1::Quota { name: name.into(), used, limit };
        let mut quotas = vec![quota("calls", 1, Some(200)), quota("device-memory", 1 << 40, None)];
        assert_eq!(fullest(&quotas), "");
        quotas.push(quota("plan-bytes", 97, Some(100)));
        quotas.push(quota("functions", u64::MAX / 2, Some(u64::MAX)));
        assert_eq!(fullest(&quotas), "plan-bytes 97 %");
        quotas.push(quota("arena-bytes", 2048, Some(0)));
        assert_eq!(fullest(&quotas), "arena-bytes 2.0 KiB of 0");
    }
}
