//! AMD GPUs: HIP's library and those below it reach the GPU through the kernel's compute driver (`/dev/kfd`) and the GPU's
//! render nodes, and read much about the host. What they open was read in their sources (docs/sandbox.md): nobody has
//! run this on such a GPU yet.

use std::path::{Path, PathBuf};

use crate::Role;
use crate::device::gpu::policy as gpu;
use crate::sandbox::policy::{Files, Policy, Rule, allow};

pub(super) const POLICY: Policy = Policy { files, rules, absent: gpu::ABSENT, compiling: gpu::COMPILING };

/// Where else libraries may lie, and the names of GPUs.
const OWN: [&str; 3] = ["/opt/rocm", "/opt/amdgpu", "/usr/share/libdrm"];
/// The compute driver, one file for all GPUs and partitions.
const COMPUTE: &str = "/dev/kfd";

fn files() -> Files {
    let mut files = gpu::files();
    files.read.extend(OWN.map(PathBuf::from));
    // A link to a folder that has a version in its name.
    files.read.extend(Path::new(OWN[0]).canonicalize().ok());
    files.write.push(COMPUTE.into());
    files.write.extend(render_nodes());
    files
}

/// `/dev/dri/renderD128` …: never the card nodes, which show pictures.
fn render_nodes() -> Vec<PathBuf> {
    let all = Path::new("/dev/dri").read_dir().into_iter().flatten().flatten();
    let named = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"renderD"));
    named.map(|entry| entry.path()).collect()
}

fn rules(_: Role) -> Vec<Rule> {
    let mut rules = gpu::rules();
    rules.extend([
        allow("mbind", libc::SYS_mbind, "the library below HIP puts its memory near the GPU"),
        allow("get_mempolicy", libc::SYS_get_mempolicy, "the same"),
    ]);
    rules
}
