//! How tenants are written: names of the configuration, or uids.

use pappus_proto::limits::is_valid_name;

/// Numbers from here on stand for names of the configuration. No such uid is ever served: the highest ones are
/// in use nowhere.
pub const FIRST_NAMED: u32 = 0xffff_0000;

/// True if the text can stand for a tenant, as a name or as a uid.
pub fn is_tenant(text: &str) -> bool {
    match is_number(text) {
        true => uid(text).is_some(),
        false => is_valid_name(text),
    }
}

/// True if the configuration can give this name to a tenant: a number would be a uid.
pub fn is_tenant_name(text: &str) -> bool {
    is_valid_name(text) && !is_number(text)
}

pub(crate) fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// The uid in the only form in which it is written.
pub(crate) fn uid(text: &str) -> Option<u32> {
    let canonical = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|uid| canonical && *uid < FIRST_NAMED)
}
