//! Blueprints over the probe kernels.

const KERNELS: &str = r#"["copy", "fill", "module_global", "local_memory", "stack_pointer", "shared_memory",
    "arguments", "count_blocks", "work", "trap", "divide", "recurse"]"#;

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
            r#"{{"module_path": "probes", "kernels": {KERNELS}, "blueprint": {{
                "inputs": {:?}, "weights": {:?}, "buffers": {{{}}}, "outputs": {:?}, "control_flow": [{}]}}}}"#,
            self.inputs,
            self.weights,
            buffers.join(", "),
            self.outputs,
            self.steps.join(", ")
        )
    }
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
    let [x, y, z] = grid;
    format!(
        r#"{{"ExecKernel": ["{kernel}", [{params}], {{
            "grid_dim_x": {{"Absolute": {x}}}, "grid_dim_y": {{"Absolute": {y}}}, "grid_dim_z": {{"Absolute": {z}}},
            "block_dim_x": {{"Absolute": 1}}, "block_dim_y": {{"Absolute": 1}}, "block_dim_z": {{"Absolute": 1}},
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
