//! NVIDIA GPUs: the driver's library maps and commands the device through its device files, and opens more of
//! them while it runs. What it opens was found by running it (docs/sandbox.md).

use std::path::{Path, PathBuf};

use crate::Role;
use crate::device::gpu::policy as gpu;
use crate::sandbox::policy::{Files, Policy, Rule, allow};

pub(super) const POLICY: Policy = Policy { files, rules, absent: gpu::ABSENT, compiling: gpu::COMPILING };

/// Where else its libraries may lie, and what the driver reads about itself.
const OWN: [&str; 3] = ["/run/opengl-driver", "/usr/share/nvidia", "/etc/nvidia"];
/// Where the MPS control daemon is found if nothing else says so.
const MPS: &str = "/tmp/nvidia-mps";

fn files() -> Files {
    let mut files = gpu::files();
    files.read.extend(OWN.map(PathBuf::from));
    files.write.extend(device_files());
    let mps = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from(MPS), PathBuf::from);
    if mps.is_dir() {
        files.write.push(mps);
        // What clients and the server of MPS share.
        files.write.push("/dev/shm".into());
    }
    files
}

/// `/dev/nvidia0`, `/dev/nvidiactl`, `/dev/nvidia-uvm`, the folder `/dev/nvidia-caps` …
fn device_files() -> Vec<PathBuf> {
    let all = Path::new("/dev").read_dir().into_iter().flatten().flatten();
    let named = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"nvidia"));
    named.map(|entry| entry.path()).collect()
}

fn rules(role: Role) -> Vec<Rule> {
    let mut rules = gpu::rules();
    if role != Role::Serve {
        rules.push(allow("getcwd", libc::SYS_getcwd, "the loader of the driver's compiler"));
    }
    rules
}
