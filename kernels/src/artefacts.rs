//! The compiled modules, as `scripts/kernels build` left them in `built/`.

macro_rules! built {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_bytes!(concat!("../built/", $file)))),*]
    };
}

/// Every compiled module: file name and bytes.
pub const ARTEFACTS: &[(&str, &[u8])] = built![
    "linalg.gfx942.hsaco",
    "linalg.hsaco",
    "linalg.ptx",
    "linalg.wasm",
    "math.gfx942.hsaco",
    "math.hsaco",
    "math.ptx",
    "math.wasm",
    "mlops.gfx942.hsaco",
    "mlops.hsaco",
    "mlops.ptx",
    "mlops.wasm",
    "module.gfx942.hsaco",
    "module.hsaco",
    "module.ptx",
    "module.wasm",
    "vision.gfx942.hsaco",
    "vision.hsaco",
    "vision.ptx",
    "vision.wasm",
];

/// The bytes of a compiled module by its file name, such as `mlops.wasm`.
pub fn artefact(file_name: &str) -> Option<&'static [u8]> {
    ARTEFACTS.iter().find(|(name, _)| *name == file_name).map(|(_, bytes)| *bytes)
}
