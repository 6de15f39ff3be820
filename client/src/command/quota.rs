//! `pappus quota`: one tenant's usage and quotas, as `pappus tenants NAME` shows them, too.

use std::io::Write;

use pappus_client::{Client, v1};
use serde_json::json;

use crate::arguments::Json;
use crate::failure::Result;
use crate::table::{Align, Table};
use crate::units::{nanoseconds, rough_bytes};

/// Asks once and prints.
pub(crate) fn run(client: &mut Client, json: Json, out: &mut dyn Write) -> Result<()> {
    let tenant = client.quota()?;
    if json.json {
        let whole = crate::json::tenant(&tenant);
        let keys = ["name", "quotas", "device_ns", "weight", "class", "declined"];
        let shown = keys.map(|key| (key.to_owned(), whole[key].clone()));
        return Ok(writeln!(out, "{}", json!(serde_json::Map::from_iter(shown)))?);
    }
    print(&tenant, out)?;
    if !tenant.declined.is_empty() {
        writeln!(out, "\ndeclined: {}", tenant.declined.join(" "))?;
    }
    Ok(())
}

/// A tenant with all its quotas.
pub(super) fn print(tenant: &v1::TenantInfo, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "tenant {}\ndevice time {}, weight {}, class {}\n",
        tenant.name,
        nanoseconds(tenant.device_ns),
        tenant.weight,
        tenant.class
    )?;
    let mut table = Table::new(&[("QUOTA", Align::Left), ("USED", Align::Right), ("LIMIT", Align::Right)]);
    for quota in &tenant.quotas {
        table.row([quota.name.clone(), used(quota), limit(quota)]);
    }
    Ok(table.print(out)?)
}

/// How much of it is taken.
pub(super) fn used(quota: &v1::Quota) -> String {
    amount(quota, quota.used)
}

/// How much there may be.
pub(super) fn limit(quota: &v1::Quota) -> String {
    quota.limit.map_or_else(|| "unlimited".to_owned(), |limit| amount(quota, limit))
}

fn amount(quota: &v1::Quota, amount: u64) -> String {
    match quota.name.ends_with("-bytes") || quota.name.ends_with("-memory") {
        true => rough_bytes(amount),
        false => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_in_their_unit() {
        let quota = |name: &str, used, limit| v1::Quota { name: name.into(), used, limit };
        let bytes = quota("arena-bytes", 2048, Some(4096));
        assert_eq!((used(&bytes), limit(&bytes)), ("2.0 KiB".into(), "4.0 KiB".into()));
        let calls = quota("calls", 2048, None);
        assert_eq!((used(&calls), limit(&calls)), ("2048".into(), "unlimited".into()));
    }
}
