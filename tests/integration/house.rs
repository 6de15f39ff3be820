//! A supervisor with tenants that one gateway, this user, acts for: a case has as many tenants as it needs, also where
//! it is not run by root.

use pappus_client::Client;
use sha2::{Digest, Sha256};

use crate::fixture::Supervisor;

/// A tenant's token.
pub(crate) fn token(tenant: &str) -> String {
    format!("the token of {tenant}")
}

/// A configuration with these tenants, each followed by its quotas.
pub(crate) fn config(tenants: &[(&str, &str)]) -> String {
    let sections = tenants.iter().map(|(name, quotas)| {
        let hash: String = Sha256::digest(token(name)).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[tenants.{name}]\ntoken-sha256 = \"{hash}\"\n{quotas}\n")
    });
    format!("gateways = [{}]\n{}", own_uid(), sections.collect::<String>())
}

/// This user.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A supervisor with these tenants.
pub(crate) fn house(tenants: &[(&str, &str)]) -> Supervisor {
    Supervisor::configured(&config(tenants), &[])
}

/// A connection of one of them.
pub(crate) fn enter(supervisor: &Supervisor, tenant: &str) -> Client {
    let mut client = supervisor.client();
    client.act_for(token(tenant).as_bytes()).unwrap();
    client
}
