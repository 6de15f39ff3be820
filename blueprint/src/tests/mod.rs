//! Tests of the crate as a whole; what they share.

mod checked;
mod describe;
mod docs;
mod free;
pub(crate) mod interpreter;
mod launches;
mod named_sizes;
mod parse;
mod plan;
mod properties;
mod scale;
mod schema;
mod seeds;
mod sharing;
mod state;
mod tensor_maps;

use crate::{Blueprint, Error, Mistakes, Plan, Sizes, parse};

/// A function with inputs `cfg` and `A`, weight `W`, buffer `B` (as large as `A`), output `B`, kernel
/// `k`, and this control flow.
fn with_steps(control_flow: &str) -> String {
    with(r#""B": {"Sizeof": "A"}"#, control_flow)
}

/// The same with these buffers, `B` among them.
fn with(buffers: &str, control_flow: &str) -> String {
    format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{
            "inputs": ["cfg", "A"], "weights": ["W"], "buffers": {{{buffers}}}, "outputs": ["B"],
            "control_flow": [{control_flow}]}}}}"#
    )
}

/// A launch of `k` with these arguments, one thread.
fn launch(arguments: &str) -> String {
    launch_as(arguments, r#"{"Absolute": 1}"#)
}

/// The same with this many blocks along x.
fn launch_as(arguments: &str, grid_x: &str) -> String {
    format!(
        r#"{{"ExecKernel": ["k", [{arguments}], {{"grid_dim_x": {grid_x},
            "grid_dim_y": {{"Absolute": 1}}, "grid_dim_z": {{"Absolute": 1}},
            "block_dim_x": {{"Absolute": 1}}, "block_dim_y": {{"Absolute": 1}},
            "block_dim_z": {{"Absolute": 1}}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}"#
    )
}

/// Plans a blueprint of [`with`]: `cfg` has 32 bytes, `A` has 100, `W` has 10; `words` are what
/// `FromInput` reads.
fn plan(json: &str, words: &[u64]) -> Result<Plan, Error> {
    let blueprint: Blueprint = parse(json.as_bytes()).unwrap();
    blueprint.plan(&Sizes { inputs: &[32, 100], weights: &[10], words, free: &[] })
}

/// All that is wrong with a document.
fn mistakes(json: &str) -> Mistakes {
    parse(json.as_bytes()).map(|_| ()).unwrap_err()
}

/// The only thing that is wrong with a document: no other mistake follows from it.
fn mistake(json: &str) -> Error {
    let mistakes = mistakes(json);
    assert_eq!((mistakes.iter().count(), mistakes.more()), (1, 0), "{mistakes}");
    mistakes.first().clone()
}

/// Processor time of this thread: other work of the machine does not count.
pub(crate) fn processor_time() -> std::time::Duration {
    let taken = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    taken.try_into().unwrap()
}
