//! Who the tenants are, and what each may have: a part of the configuration that can be read again.
//!
//! ```toml
//! unknown-tenants = "accept"       # or "refuse": only uids that are named below
//! gateways = [33]                  # uids that may act for the tenants whose tokens they have
//!
//! [tenant-defaults]
//! arena-bytes = "1GiB"
//!
//! [tenants.acme]
//! uid = 1000                       # or several
//! token-sha256 = "9f86…"           # or several
//! functions = 100
//! weight = 4                       # its part of device time where others want it, too: 1 to 1000
//! class = "latency"                # before "normal" and "batch"
//! overrun-limit = "500ms"          # instead of the setting of that name
//! isolation = "process"            # neither its calls nor its functions are in a worker that others share; "shared": only there
//! ```

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use toml::{Table, Value};

use super::file::File;
use super::settings::overrun_limit;
use super::words::did_you_mean;
use super::{ConfigError, bad, kept, size};
use crate::limits::{MAX_CONFIGURED_TENANTS, MAX_TOKENS, MAX_WEIGHT};
use crate::quota::{Limit, Quota};
use crate::schedule::{Class, TenantShare};
use crate::sha256::{Hash, NoHash};
use crate::tenant_name::{self, FIRST_NAMED};

/// What examples have where a token belongs.
const PLACEHOLDERS: [&str; 5] = ["", "example", "CHANGE-ME", "change-me", "changeme"];

/// Who may be a tenant, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRules {
    /// True if a uid that no tenant has is a tenant of its own.
    pub accept_unknown: bool,
    /// Uids that may act for tenants.
    pub gateways: Vec<u32>,
    /// For tenants without quotas of their own.
    pub defaults: Quota,
    /// For tenants without a share of their own.
    pub default_share: TenantShare,
    /// By name.
    pub tenants: BTreeMap<String, TenantRule>,
    /// Their uids.
    uids: HashMap<u32, String>,
    /// Hashes of their tokens.
    tokens: HashMap<Hash, String>,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRule {
    /// Peers with these uids are this tenant.
    pub uids: Vec<u32>,
    /// Hashes of tokens: a gateway that has a token may act for the tenant.
    pub tokens: Vec<Hash>,
    /// What it may have.
    pub quota: Quota,
    /// The tenant's part of devices that other tenants want, too.
    pub share: TenantShare,
}

impl Default for TenantRules {
    fn default() -> Self {
        Self {
            accept_unknown: true,
            gateways: Vec::new(),
            defaults: Quota::default(),
            default_share: TenantShare::default(),
            tenants: BTreeMap::new(),
            uids: HashMap::new(),
            tokens: HashMap::new(),
        }
    }
}

impl TenantRules {
    /// What a file says of tenants, and everything that is wrong there.
    pub(super) fn resolve(file: &File, wrong: &mut Vec<ConfigError>) -> Self {
        let accept_unknown = match file.unknown_tenants.as_deref() {
            None | Some("accept") => true,
            Some("refuse") => false,
            Some(other) => {
                wrong.push(bad("unknown-tenants", other, "expected \"accept\" or \"refuse\""));
                false
            }
        };
        if file.tenants.len() > MAX_CONFIGURED_TENANTS {
            let why = format!("at most {MAX_CONFIGURED_TENANTS} tenants can be named");
            wrong.push(bad("tenants", &file.tenants.len().to_string(), why));
            return Self::default();
        }
        let mut defaults = Quota::default();
        let mut default_share = TenantShare::default();
        for (key, value) in &file.tenant_defaults {
            let is_share = set_share(&mut default_share, "tenant-defaults", key, value);
            let set = is_share.and_then(|is_share| match is_share {
                true => Ok(()),
                false => set_quota(&mut defaults, "tenant-defaults", key, value),
            });
            kept(wrong, set);
        }
        let gateways = file.gateways.clone();
        for uid in &gateways {
            kept(wrong, check_uid("gateways", *uid));
        }
        let mut rules = Self { accept_unknown, gateways, defaults, default_share, ..Self::default() };
        for (name, settings) in &file.tenants {
            let rule = rule(name, settings, (defaults, default_share), wrong);
            let place = |key| format!("tenants.{name}.{key}");
            // A uid or a token stands for one tenant.
            for uid in &rule.uids {
                if let Some(other) = rules.uids.insert(*uid, name.clone()) {
                    wrong.push(bad(&place("uid"), &uid.to_string(), format!("it is tenant {other} already")));
                }
            }
            for token in &rule.tokens {
                if let Some(other) = rules.tokens.insert(*token, name.clone()) {
                    let why = format!("tenant {other} has the same token: give each its own");
                    wrong.push(bad(&place("token-sha256"), &token.to_string(), why));
                }
            }
            rules.tenants.insert(name.clone(), rule);
        }
        rules
    }

    /// The rule of a tenant by its name, if it is configured.
    pub fn find(&self, name: &str) -> Option<&TenantRule> {
        self.tenants.get(name)
    }

    /// What the tenant of this name may have.
    pub fn quota(&self, name: &str) -> Quota {
        self.find(name).map_or(self.defaults, |rule| rule.quota)
    }

    /// What the tenant of this name is given of devices.
    pub fn share(&self, name: &str) -> TenantShare {
        self.find(name).map_or(self.default_share, |rule| rule.share)
    }

    /// The tenant whose token has this hash. How long the look takes tells at most which hashes are near in the table: whoever
    /// guesses tokens cannot choose hashes, and the table's own hashing has a key of its own. What is found is compared once more
    /// without a branch.
    pub fn of_token(&self, sha256: &[u8; 32]) -> Option<&str> {
        let (hash, name) = self.tokens.get_key_value(&Hash(*sha256))?;
        bool::from(hash.0.ct_eq(sha256)).then_some(name.as_str())
    }

    /// The tenant that a uid is by the configuration.
    pub fn of_uid(&self, uid: u32) -> Option<&str> {
        self.uids.get(&uid).map(String::as_str)
    }
}

fn rule(
    name: &str,
    settings: &Table,
    (quota, share): (Quota, TenantShare),
    wrong: &mut Vec<ConfigError>,
) -> TenantRule {
    if !tenant_name::is_tenant_name(name) {
        let why =
            "a tenant's name has 1 to 128 letters, digits, '.', '_' or '-', no leading dot, and is no number";
        wrong.push(bad(&format!("tenants.{name}"), name, why));
    }
    let mut rule = TenantRule { uids: Vec::new(), tokens: Vec::new(), quota, share };
    for (key, value) in settings {
        kept(wrong, rule.set(name, key, value));
    }
    if !["uid", "token-sha256"].iter().any(|key| settings.contains_key(*key)) {
        let why = "no client could be this tenant: give it a uid or a token-sha256";
        wrong.push(bad(&format!("tenants.{name}"), name, why));
    }
    rule
}

impl TenantRule {
    fn set(&mut self, name: &str, key: &str, value: &Value) -> Result<(), ConfigError> {
        let place = format!("tenants.{name}");
        let wrong = |why: &str| bad(&format!("{place}.{key}"), &shown(value), why);
        match key {
            "uid" => {
                for uid in one_or_more(value) {
                    let uid = uid.as_integer().and_then(|uid| u32::try_from(uid).ok());
                    let uid = uid.ok_or_else(|| wrong("expected a uid such as 1000, or a list of them"))?;
                    check_uid(&format!("{place}.uid"), uid)?;
                    self.uids.push(uid);
                }
            }
            "token-sha256" => {
                for token in one_or_more(value) {
                    self.tokens.push(token_hash(token).map_err(wrong)?);
                }
                if self.tokens.len() > MAX_TOKENS {
                    return Err(wrong(&format!("a tenant has at most {MAX_TOKENS} tokens")));
                }
            }
            _ if set_share(&mut self.share, &place, key, value)? => {}
            _ if key.parse::<Limit>().is_err() => {
                let known =
                    ["uid", "token-sha256", "weight", "class", "overrun-limit", "isolation"].into_iter();
                let meant = did_you_mean(key, known.chain(Limit::ALL.iter().map(|limit| limit.name())));
                return Err(ConfigError::Unknown { name: format!("{place}.{key}"), meant });
            }
            _ => set_quota(&mut self.quota, &place, key, value)?,
        }
        Ok(())
    }
}

/// The hash of a token, which must not be one that anybody can read in an example.
fn token_hash(value: &Value) -> Result<Hash, &'static str> {
    const PLACEHOLDER: &str = "a placeholder, whose token everybody knows: make a token with `pappus token`, and put the hash here \
                               that it prints";
    let is_public =
        |hash: &Hash| hash.0 == [0; 32] || PLACEHOLDERS.iter().any(|word| Sha256::digest(word)[..] == hash.0);
    let text = value.as_str().unwrap_or("no text");
    match text.parse() {
        Ok(hash) if is_public(&hash) => Err(PLACEHOLDER),
        Ok(hash) => Ok(hash),
        Err(NoHash) if PLACEHOLDERS.contains(&text) => Err(PLACEHOLDER),
        Err(NoHash) => {
            Err("expected the 64 hexadecimal digits that `pappus token` prints, or a list of such")
        }
    }
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => other.type_str().to_owned(),
    }
}

fn one_or_more(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn check_uid(place: &str, uid: u32) -> Result<(), ConfigError> {
    match uid {
        0..FIRST_NAMED => Ok(()),
        _ => Err(bad(place, &uid.to_string(), format!("uids from {FIRST_NAMED} on are never served"))),
    }
}

/// Sets a part of a tenant's share; false if the key is none.
fn set_share(share: &mut TenantShare, place: &str, key: &str, value: &Value) -> Result<bool, ConfigError> {
    let place = format!("{place}.{key}");
    let wrong = |why: &str| bad(&place, &shown(value), why);
    match key {
        "weight" => {
            let weight = value.as_integer().and_then(|weight| u32::try_from(weight).ok());
            let weight = weight.filter(|weight| (1..=MAX_WEIGHT).contains(weight));
            share.weight = weight.ok_or_else(|| wrong("expected a weight from 1 to 1000"))?;
        }
        "class" => {
            let class = Class::ALL.into_iter().find(|class| value.as_str() == Some(class.name()));
            share.class = class.ok_or_else(|| wrong("expected \"latency\", \"normal\" or \"batch\""))?;
        }
        "overrun-limit" => {
            let limit = overrun_limit(&place, &shown(value))?;
            share.overrun_ns = Some(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        }
        "isolation" => {
            let isolation = value.as_str().and_then(|name| name.parse().ok());
            share.isolation =
                isolation.ok_or_else(|| wrong("expected \"auto\", \"process\" or \"shared\""))?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn set_quota(quota: &mut Quota, place: &str, key: &str, value: &Value) -> Result<(), ConfigError> {
    let place = format!("{place}.{key}");
    let limit: Limit = key.parse().map_err(|why| bad(&place, &shown(value), why))?;
    let most = match value {
        Value::String(text) if text == "unlimited" => Some(u64::MAX),
        Value::String(text) if limit.is_bytes() => Some(size(&place, text)?),
        Value::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let expected = match limit.is_bytes() {
        true => "expected a size such as \"1GiB\", a number of bytes, or \"unlimited\"",
        false => "expected a number such as 100, or \"unlimited\"",
    };
    quota.set(limit, most.ok_or_else(|| bad(&place, &shown(value), expected))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use pappus_blueprint::Isolation;

    use super::*;

    fn rules(text: &str) -> Result<TenantRules, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut wrong = Vec::new();
        let rules = TenantRules::resolve(&file, &mut wrong);
        let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        if wrong.is_empty() { Ok(rules) } else { Err(wrong.join("\n")) }
    }

    const TOKEN: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn every_tenant_setting_is_read() {
        let text = format!(
            "unknown-tenants = 'refuse'\ngateways = [33]\n[tenant-defaults]\ncalls = 9\narena-bytes = '2KiB'\n\
             [tenants.acme]\nuid = [1000, 1001]\ntoken-sha256 = '{TOKEN}'\ncalls = 'unlimited'\nblob-bytes = 77\n\
             [tenants.b]\nuid = 0"
        );
        let rules = rules(&text).unwrap();
        assert!(!rules.accept_unknown);
        assert_eq!((rules.of_uid(1001), rules.of_uid(0), rules.of_uid(2)), (Some("acme"), Some("b"), None));
        let acme = rules.find("acme").unwrap();
        assert_eq!(acme.tokens, [TOKEN.parse().unwrap()]);
        let amounts = [Limit::Calls, Limit::ArenaBytes, Limit::BlobBytes].map(|limit| acme.quota.get(limit));
        assert_eq!(amounts, [u64::MAX, 2048, 77]);
        assert_eq!((rules.quota("b").get(Limit::Calls), rules.quota("7").get(Limit::ArenaBytes)), (9, 2048));
    }

    #[test]
    fn shares_are_read_and_have_defaults() {
        let text = "[tenant-defaults]\nclass = 'batch'\n[tenants.a]\nuid = 1\nweight = 4\nclass = 'latency'\n\
                    overrun-limit = '500ms'\n[tenants.b]\nuid = 2\noverrun-limit = 0";
        let rules = rules(text).unwrap();
        let share =
            |weight, class, overrun_ns| TenantShare { weight, class, overrun_ns, isolation: Isolation::Auto };
        assert_eq!(rules.share("a"), share(4, Class::Latency, Some(500_000_000)));
        assert_eq!(rules.share("b"), share(1, Class::Batch, Some(0)));
        assert_eq!(rules.share("7"), share(1, Class::Batch, None));
    }

    #[test]
    fn each_mistake_is_named() {
        let twice = format!("[tenants.a]\ntoken-sha256 = '{TOKEN}'\n[tenants.b]\ntoken-sha256 = '{TOKEN}'");
        for (text, words) in [
            ("unknown-tenants = 'maybe'", "expected \"accept\" or \"refuse\""),
            ("[tenants.7]\nuid = 7", "is no number"),
            ("[tenants.'a/b']\nuid = 7", "a tenant's name"),
            ("[tenants.a]\ncalls = 7", "no client could be this tenant"),
            ("[tenants.a]\nuid = -1", "expected a uid such as 1000"),
            ("[tenants.a]\nuid = '7'", "expected a uid such as 1000"),
            ("[tenants.a]\nuid = 4294967295", "never served"),
            ("gateways = [4294967295]", "never served"),
            ("[tenants.a]\ntoken-sha256 = 'secret'", "`pappus token` prints"),
            ("[tenants.a]\ntoken-sha256 = 'CHANGE-ME'", "a placeholder, whose token everybody knows"),
            ("[tenants.a]\ntoken-sha256 = ''", "a placeholder, whose token everybody knows"),
            // Of the token "example".
            (
                "[tenants.a]\ntoken-sha256 = '50d858e0985ecc7f60418aaf0cc5ab587f42c2570a884095a9e8ccacd0f6545c'",
                "a placeholder, whose token everybody knows",
            ),
            (
                "[tenants.a]\ntoken-sha256 = '0000000000000000000000000000000000000000000000000000000000000000'",
                "a placeholder, whose token everybody knows",
            ),
            ("[tenants.a]\nuid = 1\n[tenants.b]\nuid = [2, 1]", "it is tenant a already"),
            (&twice, "tenant a has the same token"),
            ("[tenants.a]\nuid = 1\ncals = 7", "tenants.a.cals: no such setting; did you mean calls?"),
            ("[tenants.a]\nuid = 1\nweight = 0", "expected a weight from 1 to 1000"),
            ("[tenants.a]\nuid = 1\nweight = 1001", "expected a weight from 1 to 1000"),
            ("[tenants.a]\nuid = 1\nclass = 'best'", "expected \"latency\", \"normal\" or \"batch\""),
            ("[tenants.a]\nuid = 1\noverrun-limit = '1ms'", "expected 100ms to 1h such as 2s, or 0"),
            ("[tenants.a]\nuids = [1001]", "tenants.a.uids: no such setting; did you mean uid?"),
            (
                "[tenants.a]\nuid = 1\ncolour = 7",
                "tenants.a.colour: no such setting; there are uid, token-sha256, weight, ",
            ),
            ("[tenant-defaults]\nuid = 7", "tenant-defaults.uid = \"7\": no such quota; there are functions"),
            ("[tenants.a]\nuid = 1\ncalls = '7'", "expected a number such as 100"),
            ("[tenants.a]\nuid = 1\ncalls = -7", "expected a number such as 100"),
            ("[tenant-defaults]\narena-bytes = 'lots'", "such as 256MiB"),
            ("[tenant-defaults]\narena-bytes = 1.5", "arena-bytes = \"1.5\": expected a size such as"),
            ("[tenant-defaults]\narena-bytes = '99999EiB'", "or for a quota \"unlimited\""),
        ] {
            let why = rules(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
