//! The functions, as JSON configurations. They name their modules as `../built/STEM.wasm`; the
//! variants for other devices lie beside it.

macro_rules! configs {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../configs/", $name, ".json")))),*]
    };
}

/// Every function: name and configuration.
pub const CONFIGS: &[(&str, &str)] = configs![
    "axpy",
    "check_then_write",
    "hello",
    "inference",
    "inference_batched",
    "jacobi",
    "matmul",
    "matmul_loop",
    "matmul_tiled",
    "picture",
    "sgemm",
    "softmax",
    "vec_add",
    "vec_add_constant",
];

/// The configuration of a function by its name, such as `inference`.
pub fn config(name: &str) -> Option<&'static str> {
    CONFIGS.iter().find(|(known, _)| *known == name).map(|(_, json)| *json)
}
