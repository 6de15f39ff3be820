//! The GPU under test: one of the machine, or a library that looks like HIP's and runs kernels on the processor (`tests/amd`),
//! where everything is smaller.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Supervisor, run};
use crate::folder::look_like_a_gpu;
use crate::programs::program;

/// A GiB of a GPU is so many MiB of what looks like one.
const MIB_PER_GIB: u64 = 16;
/// Memory assumed for the contexts of all processes.
const CONTEXTS_MIB: u64 = 2304;

/// A GPU under test.
pub(crate) struct Gpu {
    /// As `--device` names it.
    name: String,
    /// The GPU that a look-alike stands for.
    looks_like: Option<&'static str>,
}

impl Gpu {
    /// The one that `PAPPUS_TEST_DEVICE` names, or the first of its kind.
    pub(crate) fn of_the_machine(kind: &str) -> Self {
        let name = std::env::var("PAPPUS_TEST_DEVICE").unwrap_or_else(|_| format!("{kind}:0"));
        Self { name, looks_like: None }
    }

    /// What looks like a GPU of this architecture, or like two.
    pub(crate) fn looking_like(arch: &'static str) -> Self {
        Self { name: "hip:0".to_owned(), looks_like: Some(arch) }
    }

    /// As `--device` names it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// `cuda` or `hip`.
    pub(crate) fn kind(&self) -> &str {
        self.name.split(':').next().unwrap()
    }

    pub(crate) fn is_nvidia(&self) -> bool {
        self.kind() == "cuda"
    }

    /// The first on a GPU, the second on what looks like one, which takes far longer for the same.
    pub(crate) fn or<T>(&self, gpu: T, look_alike: T) -> T {
        if self.looks_like.is_some() { look_alike } else { gpu }
    }

    /// A supervisor with these devices, and these flags. Settings in GiB are scaled.
    pub(crate) fn supervisor(&self, devices: &str, settings: &str, flags: &[&str]) -> Supervisor {
        let scaled = settings.split(',').map(|setting| {
            let gib = setting.strip_suffix("GiB").filter(|_| self.looks_like.is_some());
            let Some((name, gib)) = gib.and_then(|setting| setting.split_once('=')) else {
                return setting.to_owned();
            };
            let contexts = if name == "memory" { CONTEXTS_MIB } else { 0 };
            format!("{name}={}MiB", contexts + gib.parse::<u64>().unwrap() * MIB_PER_GIB)
        });
        let device = format!("{devices}:{}", scaled.collect::<Vec<_>>().join(","));
        let flags: Vec<_> =
            ["--device", &device].iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        let dir = tempfile::tempdir().unwrap();
        // Clients and workers of other users reach what is in it.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        self.look_alike(&dir.path().join(crate::fixture::LIBRARIES));
        Supervisor::new(program("pappus-supervisor"), flags, dir)
    }

    /// Puts the look-alike's library into a folder, if this is a look-alike.
    fn look_alike(&self, folder: &Path) {
        if let Some(arch) = self.looks_like {
            std::fs::create_dir(folder).unwrap();
            look_like_a_gpu(folder, &format!("arch={arch}\nunits=2\ndevices=2"));
        }
    }

    /// The machine's device, as a list of devices has it.
    pub(crate) fn listed(&self) -> Value {
        let ran = run(Command::new(program("pappus-supervisor")).args(["--list-devices", "--json"]));
        let listed: Value = serde_json::from_str(&ran.stdout).unwrap();
        let is_it = |device: &&Value| {
            device["name"] == self.name.as_str()
                || device["uuid"].as_str().is_some_and(|uuid| self.name.ends_with(uuid))
        };
        listed["devices"].as_array().unwrap().iter().find(is_it).unwrap().clone()
    }
}
