//! The HIP device, in its sandbox, on a library that looks like HIP's and runs kernels on the processor (`tests/amd`).

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::folder::look_like_a_gpu;
use crate::programs::program;

/// A folder that looks like a GPU of this architecture.
fn gpu(arch: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    look_like_a_gpu(folder.path(), &format!("arch={arch}"));
    folder
}

fn run(program: &str, gpu: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(self::program(program));
    command.args(arguments).env("LD_LIBRARY_PATH", gpu.path()).env_remove("PAPPUS_SOCKET");
    command.output().unwrap()
}

fn demo(gpu: &TempDir, device: &str, pictures: &Path) {
    let output = run("pappus", gpu, &["demo", "--device", device, "--out", pictures.to_str().unwrap()]);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && out.contains("All results are right."), "{device}: {out}\n{err}");
}

#[test]
fn the_demo_draws_the_same_pictures_on_both_architectures() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = |name: &str| folder.path().join(name);
    demo(&gpu("gfx90a"), "cpu:workers=2,memory=256MiB", &pictures("cpu"));
    for arch in ["gfx90a", "gfx942"] {
        demo(&gpu(arch), "hip:0", &pictures(arch));
        for picture in ["photo.png", "drawing.png", "edges.png"] {
            let [cpu, amd] = ["cpu", arch].map(|name| fs::read(pictures(name).join(picture)).unwrap());
            assert!(cpu == amd, "{picture} on {arch}");
        }
    }
}

#[test]
fn the_devices_are_listed_with_their_architecture_and_memory() {
    let output = run("pappus-supervisor", &gpu("gfx942"), &["--list-devices"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("hip:0  Look-alike gfx942, gfx942:sramecc+:xnack-, 8.0 GiB of 8.0 GiB free"),
        "{out}"
    );
    assert!(out.contains("driver of AMD GPUs: HIP 7.1.52802"), "{out}");
}
