//! What is asked of the sandbox of worker processes.

use pappus_protocol::layers::UnknownLayer;
use pappus_protocol::{Layer, Layers};
use serde::Deserialize;

use super::{ConfigError, bad, size};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxSettings {
    /// The user that workers become, where the supervisor may choose; never a tenant.
    pub worker_uid: u32,
    /// Host memory of a worker, beside that of its device.
    pub worker_memory: u64,
    /// Layers that a worker must have.
    pub require: Layers,
    /// True if `require` is all layers: one of `uid` and `userns` is enough then.
    pub require_all: bool,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { worker_uid: 65_533, worker_memory: 16 << 30, require: Layers::default(), require_all: false }
    }
}

/// A list, or one text with commas.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Names {
    /// `["landlock", "pidns"]`
    List(Vec<String>),
    /// `"landlock,pidns"` or `"all"`
    Text(String),
}

impl SandboxSettings {
    /// Those that were given over the defaults.
    pub(super) fn given(
        worker_uid: Option<u32>,
        worker_memory: Option<String>,
        require: Option<Names>,
    ) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if let Some(uid) = worker_uid {
            if uid == 0 || uid == u32::MAX {
                let why = "workers must not be root: give them a user of their own, e.g. 65533";
                return Err(bad("worker-uid", &uid.to_string(), why));
            }
            settings.worker_uid = uid;
        }
        if let Some(text) = worker_memory {
            settings.worker_memory = size("worker-memory", &text)?;
            if settings.worker_memory < 64 << 20 {
                return Err(bad("worker-memory", &text, "a worker does not start with less than 64MiB"));
            }
        }
        let names = match require {
            None => return Ok(settings),
            Some(Names::List(names)) => names.join(","),
            Some(Names::Text(names)) => names,
        };
        (settings.require, settings.require_all) = match names.trim() {
            "all" => (Layer::ALL.into_iter().collect(), true),
            names => (names.parse().map_err(|why: UnknownLayer| bad("sandbox-require", names, why))?, false),
        };
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn require(names: Names) -> Result<SandboxSettings, String> {
        SandboxSettings::given(None, None, Some(names)).map_err(|e| e.to_string())
    }

    #[test]
    fn layers_read_as_a_list_or_a_text() {
        let list = Names::List(vec!["landlock".into(), "pidns".into()]);
        let both = require(list).unwrap();
        assert_eq!(both.require.to_string(), "landlock,pidns");
        assert_eq!(require(Names::Text("pidns, landlock".into())).unwrap(), both);
        assert!(require(Names::Text("all".into())).unwrap().require_all);
        let why = require(Names::Text("landlok".into())).unwrap_err();
        assert!(why.contains("`landlok`") && why.contains("landlock"), "{why}");
    }

    #[test]
    fn workers_are_never_root() {
        let why = SandboxSettings::given(Some(0), None, None).unwrap_err().to_string();
        assert!(why.contains("must not be root"), "{why}");
        assert_eq!(SandboxSettings::given(Some(7), None, None).unwrap().worker_uid, 7);
    }
}
