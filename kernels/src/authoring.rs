//! What authors of kernels get from the `pappus` command: the headers, and functions to begin with.

macro_rules! files {
    ($folder:literal: $($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../", $folder, "/", $file)))),*]
    };
}

/// The headers that kernels include: file name and text.
pub const HEADERS: &[(&str, &str)] =
    files!["c": "pappus.h", "pappus_cpu.h", "pappus_cuda_names.h", "pappus_gpu.h", "pappus_math.h"];

/// The JSON Schema of configurations, for editors: the name that configurations give of it, and its text. The name does not end
/// as theirs: every `.json` file of a folder is a configuration.
pub const SCHEMA: (&str, &str) = ("blueprint.schema", include_str!("../../docs/blueprint.schema.json"));

/// A function to begin with.
#[derive(Debug, Clone, Copy)]
pub struct Template {
    /// What it is called.
    pub name: &'static str,
    /// Its kernels.
    pub source: &'static str,
    /// Its configuration, with `NAME` where the name of the source stands, less its end.
    pub config: &'static str,
    /// Arguments of `pappus invoke` for a first call, as one would type them.
    pub example: &'static str,
}

macro_rules! templates {
    ($($name:literal: $example:literal),* $(,)?) => {
        &[$(Template {
            name: $name,
            source: include_str!(concat!("../templates/", $name, ".c")),
            config: include_str!(concat!("../templates/", $name, ".json")),
            example: $example,
        }),*]
    };
}

/// All of them.
pub const TEMPLATES: &[Template] = templates![
    "elementwise": "--input x=f32:1,2,3,4 --output y=-",
    "reduction": "--input x=f32:1,2,3,4 --output sum=-",
    "tiles": "--input 'a=f32[2,3]:1,2,3,4,5,6' --input 'b=f32[3,1]:1,0,2' --output c=-",
    "stencil": "--input 'image=f32[3,3]:0,0,0,0,9,0,0,0,0' --output blurred=-",
];
