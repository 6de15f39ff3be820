//! Functions over the GPU probes (`worker/tests/probes`) and the kernel library, on a GPU.

use std::collections::BTreeSet;

use pappus_client::{Blob, Client, Invocation, v1};
use serde_json::{Value, json};

use crate::fixture::Supervisor;
use crate::gpu::Gpu;
use crate::kit::{absolute, ptr};

/// The probes for each kind of device: format, architecture, file.
const PROBES: [(&str, &str, &[u8]); 3] = [
    ("ptx", "", include_bytes!("../../worker/tests/probes/probes.ptx")),
    ("hsaco", "gfx90a", include_bytes!("../../worker/tests/probes/probes.gfx90a.hsaco")),
    ("hsaco", "gfx942", include_bytes!("../../worker/tests/probes/probes.gfx942.hsaco")),
];

/// A supervisor with the GPU under test and these settings, and with stacks for the probes of local memory.
pub(crate) fn on_gpu(gpu: &Gpu, settings: &str) -> Supervisor {
    // One caller faults more often than it may elsewhere.
    let flags = ["--fault-budget", "0", "--quarantine-after", "0"];
    gpu.supervisor(gpu.name(), &format!("{settings},stack=2GiB"), &flags)
}

/// A blueprint over the probes.
#[derive(Default)]
pub(crate) struct Function<'a> {
    pub(crate) inputs: &'a [&'a str],
    pub(crate) buffers: &'a [(&'a str, Value)],
    pub(crate) outputs: &'a [&'a str],
    pub(crate) steps: &'a [Value],
}

impl Function<'_> {
    pub(crate) fn add(&self, client: &mut Client, name: &str) {
        let mut kernels = BTreeSet::new();
        self.steps.iter().for_each(|step| launched(step, &mut kernels));
        let kernels: Vec<_> =
            kernels.iter().map(|kernel| json!({"module_name": "probes", "kernel_name": kernel})).collect();
        let buffers: serde_json::Map<_, _> =
            self.buffers.iter().map(|(name, size)| ((*name).to_owned(), size.clone())).collect();
        let config = json!({
            "modules": [{"module_name": "probes", "path": "probes.ptx"}],
            "kernels": kernels,
            "blueprint": {
                "inputs": self.inputs, "weights": [], "buffers": buffers,
                "outputs": self.outputs, "control_flow": self.steps,
            }
        });
        // A function must have its kernels in every form; some are for one kind of device only.
        let has = |code: &[u8], kernel: &str| code.windows(kernel.len()).any(|w| w == kernel.as_bytes());
        let names: Vec<_> = kernels.iter().filter_map(|kernel| kernel["kernel_name"].as_str()).collect();
        let forms = PROBES.into_iter().filter(|(_, _, code)| names.iter().all(|kernel| has(code, kernel)));
        let forms: Vec<_> = forms.collect();
        register(client, name, &config.to_string(), "probes", &forms, &[]);
    }
}

/// The kernels that a step launches.
fn launched<'a>(step: &'a Value, kernels: &mut BTreeSet<&'a str>) {
    if let Some(kernel) = step["ExecKernel"][0].as_str() {
        kernels.insert(kernel);
    }
    if let Some(steps) = step["Repeat"][1].as_array() {
        steps.iter().for_each(|step| launched(step, kernels));
    }
}

fn register(
    client: &mut Client,
    name: &str,
    config: &str,
    module: &str,
    forms: &[(&str, &str, &[u8])],
    weights: &[(&str, &[u8])],
) {
    let mut put = |bytes: &[u8]| client.put_blob(Blob::Bytes(bytes)).unwrap().sha256;
    let config_sha256 = put(config.as_bytes());
    let variants = forms.iter().map(|(format, arch, bytes)| v1::Variant {
        format: (*format).into(),
        arch: (*arch).into(),
        sha256: put(bytes),
    });
    let variants = variants.collect();
    let weights = weights.iter().map(|(name, bytes)| v1::Weight { name: (*name).into(), sha256: put(bytes) });
    let weights = weights.collect();
    let modules = vec![v1::FunctionModule { name: module.into(), variants, registered: String::new() }];
    client
        .add_function(v1::AddFunction { name: name.into(), config_sha256, modules, weights, replace: false })
        .unwrap();
}

/// One of the functions that come with Pappus.
pub(crate) fn add_library(client: &mut Client, name: &str, weights: &[(&str, &[u8])]) {
    let config = pappus_kernels::config(name).unwrap();
    let parsed: Value = serde_json::from_str(config).unwrap();
    // In the older spelling a module is known by its file.
    let module = &parsed["modules"][0];
    let path = parsed["module_path"].as_str().or(module["path"].as_str()).unwrap();
    let file = path.rsplit('/').next().unwrap();
    let form = |format, arch, ending| {
        (format, arch, pappus_kernels::artefact(&file.replace(".wasm", ending)).unwrap())
    };
    let forms = [
        form("ptx", "", ".ptx"),
        form("hsaco", "gfx90a", ".hsaco"),
        form("hsaco", "gfx942", ".gfx942.hsaco"),
    ];
    register(client, name, config, module["module_name"].as_str().unwrap_or(file), &forms, weights);
}

/// A launch of blocks with some threads and bytes of shared memory.
pub(crate) fn launch(kernel: &str, args: &[Value], blocks: u64, threads: u64, shared: u64) -> Value {
    let one = absolute(1);
    json!({"ExecKernel": [kernel, args, {
        "grid_dim_x": absolute(blocks), "grid_dim_y": one, "grid_dim_z": one,
        "block_dim_x": absolute(threads), "block_dim_y": one, "block_dim_z": one,
        "shared_mem_bytes": absolute(shared),
    }]})
}

/// One thread.
pub(crate) fn once(kernel: &str, args: &[Value]) -> Value {
    launch(kernel, args, 1, 1, 0)
}

pub(crate) fn long(value: u64) -> Value {
    json!({"U64": absolute(value)})
}

pub(crate) fn word(value: u32) -> Value {
    json!({"U32": absolute(value.into())})
}

/// `in` → `out`: a copy of 64 bytes that takes so long.
pub(crate) fn add_copy(client: &mut Client, name: &str, ns: u64) {
    let function = Function {
        inputs: &["in"],
        buffers: &[("out", absolute(64))],
        outputs: &["out"],
        steps: &[once("occupy", &[long(ns)]), once("copy", &[ptr("in"), ptr("out"), long(64)])],
    };
    function.add(client, name);
}

/// Nothing → `out`: 64 bytes of value 7, the end of weights of so many bytes.
pub(crate) fn add_heavy(client: &mut Client, name: &str, bytes: u64) {
    let weights = vec![7; bytes as usize];
    let end = json!({"Ptr": {"buffer": "w", "offset": absolute(bytes - 64)}});
    let step = once("copy", &[end, ptr("out"), long(64)]);
    let config = json!({
        "modules": [{"module_name": "probes", "path": "probes.ptx"}],
        "kernels": [{"module_name": "probes", "kernel_name": "copy"}],
        "blueprint": {
            "inputs": [], "weights": ["w"], "buffers": {"out": absolute(64)},
            "outputs": ["out"], "control_flow": [step],
        }
    });
    register(client, name, &config.to_string(), "probes", &PROBES, &[("w", &weights)]);
}

/// A call of such a copy, with 64 times `byte`.
pub(crate) fn copy_of(name: &str, byte: u8) -> Invocation {
    Invocation::new(name).input("in", vec![byte; 64]).output("out")
}

/// It was answered rightly.
pub(crate) fn copied(client: &mut Client, id: u64, byte: u8) {
    assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], [byte; 64]);
}
