//! What honest tenants and abusers call: small functions over the probe kernels of the integration tests.

use pappus_client::{Blob, Client, v1};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The probe kernels.
const PROBES: &str = include_str!("../../integration/probes.wat");
/// Device memory of one worker.
pub(crate) const WORKER_MIB: u64 = 8;
/// Steps of `hungry` and `failing`: a plan has some fifty bytes for each.
const STEPS: usize = 40_000;
/// Bytes of the blob that `weighted` has.
const WEIGHT_BYTES: usize = 16 << 20;

/// What a function is made of, once it was handed over.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) name: &'static str,
    config: Vec<u8>,
    weights: Option<Vec<u8>>,
}

/// A module's bytes.
pub(crate) fn probes() -> super::Result<Vec<u8>> {
    Ok(wat::parse_str(PROBES)?)
}

/// A module that takes the compiler a while: its functions are as long and as many as is allowed.
pub(crate) fn slow_module() -> super::Result<Vec<u8>> {
    let steps = "(local.set 0 (i64.add (i64.mul (local.get 0) (local.get 1)) (local.get 2)))".repeat(4_000);
    let functions = format!("(func (param i64 i64 i64) (local i64) {steps})").repeat(40);
    let kernel = r#"(func (export "kernel") (param i32 i32 i64 i64))"#;
    Ok(wat::parse_str(format!(r#"(module (import "env" "memory" (memory 1)) {kernel} {functions})"#))?)
}

/// The same module as a content of its own: with a section that means nothing.
pub(crate) fn salted(module: &[u8], salt: u64) -> Vec<u8> {
    const SECTION: [u8; 7] = [0, 13, 4, b's', b'a', b'l', b't'];
    [module, &SECTION[..], &salt.to_le_bytes()[..]].concat()
}

/// The copy that everyone has.
pub(crate) fn copy() -> Parts {
    let steps = [launch("copy", &[ptr("in"), ptr("out"), json!({"I64": {"Sizeof": "in"}})])];
    parts("copy", &["in"], json!({"out": {"Sizeof": "in"}}), &["out"], &steps)
}

/// What abusers call, with so many workers.
pub(crate) fn abused(workers: u64) -> Vec<Parts> {
    let absolute = |n: u64| json!({"Absolute": n});
    let work = |rounds: i64| launch("work", &[json!({"Constant": rounds})]);
    let like_input = json!({"b": {"Sizeof": "in"}});
    let fills = || vec![json!({"Fill": {"buffer": "b", "byte": 0}}); STEPS];
    // It has more bytes than the smallest input.
    let beyond = json!({"Copy": {"from": "in", "from_offset": absolute(1 << 20), "to": "b"}});
    let failing = [fills(), vec![beyond]].concat();
    let all = absolute((WORKER_MIB * workers - 4) << 20);
    let weights = Some(vec![7; WEIGHT_BYTES]);
    vec![
        copy(),
        parts("tiny", &[], json!({}), &[], &[]),
        parts("work", &[], json!({}), &[], &[work(500_000)]),
        parts("work-on", &["in"], json!({}), &[], &[work(500_000)]),
        parts("spin-out", &[], json!({"out": absolute(1 << 16)}), &["out"], &[launch("spin", &[])]),
        parts("large", &[], json!({"all": all}), &[], &[work(1_500_000)]),
        parts("hungry", &["in"], like_input.clone(), &[], &fills()),
        parts("failing", &["in"], like_input, &[], &failing),
        Parts { weights, ..weighted() },
    ]
}

fn weighted() -> Parts {
    let config = config(&["in-weights"], &[], json!({}), &[], &[]);
    Parts { name: "weighted", config, weights: None }
}

fn parts(name: &'static str, inputs: &[&str], buffers: Value, outputs: &[&str], steps: &[Value]) -> Parts {
    Parts { name, config: config(&[], inputs, buffers, outputs, steps), weights: None }
}

fn config(weights: &[&str], inputs: &[&str], buffers: Value, outputs: &[&str], steps: &[Value]) -> Vec<u8> {
    let kernels =
        ["copy", "work", "spin"].map(|kernel| json!({"module_name": "probes", "kernel_name": kernel}));
    let blueprint = json!({
        "inputs": inputs, "weights": weights, "buffers": buffers, "outputs": outputs, "control_flow": steps,
    });
    let modules = json!([{"module_name": "probes", "path": "probes.wasm"}]);
    json!({"modules": modules, "kernels": kernels, "blueprint": blueprint}).to_string().into_bytes()
}

/// A launch by one thread.
fn launch(kernel: &str, args: &[Value]) -> Value {
    let one = json!({"Absolute": 1});
    json!({"ExecKernel": [kernel, args, {
        "grid_dim_x": one, "grid_dim_y": one, "grid_dim_z": one,
        "block_dim_x": one, "block_dim_y": one, "block_dim_z": one, "shared_mem_bytes": {"Absolute": 0},
    }]})
}

fn ptr(buffer: &str) -> Value {
    json!({"Ptr": buffer})
}

impl Parts {
    /// Registers it, under its own name.
    pub(crate) fn add(&self, client: &mut Client, module: &[u8]) -> pappus_client::Result<()> {
        client.put_blob(Blob::Bytes(module))?;
        client.put_blob(Blob::Bytes(&self.config))?;
        if let Some(weights) = &self.weights {
            client.put_blob(Blob::Bytes(weights))?;
        }
        client.add_function(self.named(self.name, module)).map(drop)
    }

    /// What registers it under a name, once its parts were handed over.
    pub(crate) fn named(&self, name: &str, module: &[u8]) -> v1::AddFunction {
        let variant =
            v1::Variant { format: "wasm".into(), arch: String::new(), sha256: sha256(module).into() };
        let module =
            v1::FunctionModule { name: "probes".into(), variants: vec![variant], registered: String::new() };
        let weight =
            |weights: &Vec<u8>| v1::Weight { name: "in-weights".into(), sha256: sha256(weights).into() };
        v1::AddFunction {
            name: name.to_owned(),
            config_sha256: sha256(&self.config).into(),
            modules: vec![module],
            weights: self.weights.iter().map(weight).collect(),
            replace: false,
        }
    }
}

/// The name of bytes that were handed over.
pub(crate) fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}
