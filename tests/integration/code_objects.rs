//! AMD's code objects at registration, on a host without an AMD GPU: what is wrong with one, or with what a function does
//! with it, shows there and then.

use std::path::Path;

use pappus_client::functions::{Package, add_module};
use pappus_client::{Code, v1};
use pappus_kernels::{CONFIGS, artefact, synthetic};

use crate::fixture::Supervisor;
use crate::kit::{self, Function, launch};

/// A function over the probe kernels that launches `trap`, with this file for AMD GPUs beside the wasm.
fn add(supervisor: &Supervisor, arch: &str, hsaco: &[u8]) -> pappus_client::Result<v1::FunctionInfo> {
    let mut client = supervisor.client();
    let json = Function { steps: &[launch("trap", &[])], ..Function::default() }.json();
    let mut amd = kit::wasm(&mut client, hsaco);
    amd.format = "hsaco".into();
    amd.arch = arch.into();
    let variants = vec![kit::wasm(&mut client, kit::probes()), amd];
    let function = kit::parts(&mut client, "f", &json, kit::module_of("probes", variants))?;
    client.add_function(v1::AddFunction { replace: true, ..function })
}

/// Kernels called like the probes; the last one takes this.
fn probes(trap: &[(u32, u32, &'static str)]) -> synthetic::CodeObject {
    let plain =
        ["copy", "fill", "store", "global", "work", "spin"].map(|name| synthetic::Kernel::new(name, &[]));
    let trap = synthetic::Kernel::new("trap", trap);
    synthetic::CodeObject::new(plain.into_iter().chain([trap]).collect())
}

#[test]
fn what_is_wrong_with_a_code_object_shows_where_no_amd_gpu_is() {
    let supervisor = Supervisor::start();
    let good = probes(&[]).bytes();
    add(&supervisor, "gfx90a", &good).unwrap();
    add(&supervisor, "", &synthetic::bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx90a", &good)])).unwrap();
    let place = "blueprint.control_flow[0].ExecKernel[1]";
    let heap = [(0, 8, "hidden_heap_v1")];
    for (arch, bytes, expected, at) in [
        (
            "gfx90a",
            probes(&[(0, 4, "by_value")]).bytes(),
            "module probes (hsaco gfx90a): kernel `trap` takes 1 arguments, the blueprint passes 0",
            place,
        ),
        ("gfx942", good.clone(), "module probes (hsaco gfx942): it is made for gfx90a", ""),
        ("", b".version 7.0\n.entry trap() {}".to_vec(), "module probes (hsaco): it is PTX", ""),
        ("", good[..good.len() / 2].to_vec(), "module probes (hsaco): truncated: ", ""),
        (
            "",
            probes(&heap).bytes(),
            "module probes (hsaco): kernel `trap` allocates memory: kernels have no heap",
            "",
        ),
        ("", b"CCOB".to_vec(), "module probes (hsaco): a compressed bundle", ""),
        ("", kit::probes().to_vec(), "module probes (hsaco): it is wasm; only PTX", ""),
    ] {
        let error = kit::refused(add(&supervisor, arch, &bytes), Code::InvalidArgument, expected);
        assert_eq!(error.place, at, "{error:?}");
    }
}

#[test]
fn every_function_that_comes_with_pappus_fits_its_code_objects() {
    let supervisor = Supervisor::start();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/configs");
    let mut client = supervisor.client();
    supervisor.write("weights.bin", [0; 4096]);
    for (name, _) in CONFIGS {
        let package = Package::read(&configs.join(format!("{name}.json")), &[]).unwrap();
        let files = package.modules().iter().flat_map(|module| &module.files);
        assert!(files.filter(|file| file.format.name() == "hsaco").count() >= 2, "{name}");
        let weights: Vec<String> =
            package.weights().iter().map(|weight| format!("{}=weights.bin", weight.name)).collect();
        let config = configs.join(format!("{name}.json"));
        let mut add = vec!["function", "add", name, config.to_str().unwrap()];
        weights.iter().for_each(|weight| add.extend(["--weight", weight]));
        supervisor.ok(&add);
    }
    // A module by itself needs no function.
    let file = pappus_client::variants::of_file(&configs.join("../built/linalg.gfx942.hsaco")).unwrap();
    add_module(&mut client, "linalg", &[file], &mut |_| ()).unwrap();
}

#[test]
fn a_module_file_is_shown_without_a_supervisor() {
    let supervisor = Supervisor::start();
    supervisor.write("linalg.gfx942.hsaco", artefact("linalg.gfx942.hsaco").unwrap());
    let show = |args: &[&str]| supervisor.pappus(&[&["--socket", "absent", "module", "show"], args].concat());
    let ran = show(&["linalg.gfx942.hsaco"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("hsaco for gfx942, code object version 5"), "{}", ran.stdout);
    let told: serde_json::Value =
        serde_json::from_str(&show(&["linalg.gfx942.hsaco", "--json"]).stdout).unwrap();
    assert_eq!(told["parts"][0]["target"], "gfx942");
    assert_eq!(show(&["./absent.hsaco"]).code, 3);
    supervisor.write("broken.hsaco", &artefact("linalg.gfx942.hsaco").unwrap()[..1000]);
    let broken = show(&["broken.hsaco"]);
    assert!(broken.code == 3 && broken.stderr.contains("broken.hsaco: truncated"), "{}", broken.stderr);
    // Any other name is a registered module's.
    assert_eq!(show(&["linalg"]).code, 5);
}
