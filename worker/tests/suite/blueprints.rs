//! Blueprints over the probe kernels.

use std::collections::BTreeSet;

/// How a launch begins, up to the kernel's name.
const LAUNCH: &str = r#"{"ExecKernel": [""#;

/// Inputs, weights and outputs by name, buffers with their sizes, and the steps.
pub struct Blueprint<'a> {
    pub inputs: &'a [&'a str],
    pub weights: &'a [&'a str],
    pub buffers: &'a [(&'a str, u64)],
    pub outputs: &'a [&'a str],
    pub steps: &'a [String],
}

impl Blueprint<'_> {
    pub fn json(&self) -> String {
        let buffers: Vec<_> = self
            .buffers
            .iter()
            .map(|(name, bytes)| format!(r#""{name}": {{"Absolute": {bytes}}}"#))
            .collect();
        format!(
            r#"{{"module_path": "probes", "kernels": {:?}, "blueprint": {{
                "inputs": {:?}, "weights": {:?}, "buffers": {{{}}}, "outputs": {:?}, "control_flow": [{}]}}}}"#,
            kernels(self.steps),
            self.inputs,
            self.weights,
            buffers.join(", "),
            self.outputs,
            self.steps.join(", ")
        )
    }
}

/// The kernels that steps launch, each once.
fn kernels(steps: &[String]) -> Vec<&str> {
    let launches = steps.iter().flat_map(|step| step.split(LAUNCH).skip(1));
    let names: BTreeSet<_> = launches.map(|rest| rest.split('"').next().unwrap()).collect();
    names.into_iter().collect()
}

/// A function of one buffer `out` of `bytes`, its output, and these steps.
pub fn filling(bytes: u64, steps: &[String]) -> String {
    Blueprint { inputs: &[], weights: &[], buffers: &[("out", bytes)], outputs: &["out"], steps }.json()
}

/// A launch of one block.
pub fn launch(kernel: &str, params: &str) -> String {
    launch_on(kernel, params, [1, 1, 1], 0)
}

/// A launch on a grid with shared memory.
pub fn launch_on(kernel: &str, params: &str, grid: [u64; 3], shared_bytes: u64) -> String {
    launch_wide(kernel, params, grid, 1, shared_bytes)
}

/// A launch on a grid of blocks with several threads.
pub fn launch_wide(kernel: &str, params: &str, grid: [u64; 3], threads: u64, shared_bytes: u64) -> String {
    let [x, y, z] = grid;
    format!(
        r#"{LAUNCH}{kernel}", [{params}], {{
            "grid_dim_x": {{"Absolute": {x}}}, "grid_dim_y": {{"Absolute": {y}}}, "grid_dim_z": {{"Absolute": {z}}},
            "block_dim_x": {{"Absolute": {threads}}}, "block_dim_y": {{"Absolute": 1}}, "block_dim_z": {{"Absolute": 1}},
            "shared_mem_bytes": {{"Absolute": {shared_bytes}}}}}]}}"#
    )
}

/// A parameter: a buffer's address.
pub fn ptr(buffer: &str) -> String {
    format!(r#"{{"Ptr": "{buffer}"}}"#)
}

/// A parameter: a constant.
pub fn i64(value: u64) -> String {
    format!(r#"{{"I64": {{"Absolute": {value}}}}}"#)
}

/// A parameter: a constant of 32 bits.
pub fn u32(value: u32) -> String {
    format!(r#"{{"U32": {{"Absolute": {value}}}}}"#)
}

/// A parameter: an address inside a buffer.
pub fn offset(buffer: &str, offset: u64) -> String {
    format!(r#"{{"Ptr": {{"buffer": "{buffer}", "offset": {{"Absolute": {offset}}}}}}}"#)
}
