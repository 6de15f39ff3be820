//! `pappus settings`: changes the given settings, then shows all of them.

use std::collections::BTreeMap;
use std::io::Write;

use pappus_client::Client;
use serde_json::json;

use crate::arguments::{Assignment, Json};
use crate::failure::Result;
use crate::table::{Align, Table};

/// Changes and shows.
pub(crate) fn run(
    client: &mut Client,
    change: Vec<Assignment<String>>,
    json: Json,
    out: &mut dyn Write,
) -> Result<()> {
    let change = change.into_iter().map(|setting| (setting.name, setting.value));
    let values: BTreeMap<String, String> = client.settings(change.collect())?.into_iter().collect();
    if json.json {
        return Ok(writeln!(out, "{}", json!({"settings": values}))?);
    }
    let mut table = Table::new(&[("SETTING", Align::Left), ("VALUE", Align::Left)]);
    for (key, value) in values {
        table.row([key, value]);
    }
    Ok(table.print(out)?)
}
