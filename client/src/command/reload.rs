//! `pappus reload`: the tenants of the configuration file, read again.

use std::io::Write;

use pappus_client::Client;

use crate::failure::Result;

/// Asks for it, and says that it is done.
pub(crate) fn run(client: &mut Client, out: &mut dyn Write) -> Result<()> {
    client.reload()?;
    Ok(writeln!(out, "tenants read again")?)
}
