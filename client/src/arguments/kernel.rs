//! The options of `pappus kernel`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use pappus_kernels::authoring::TEMPLATES;

use super::Json;
use crate::target::{DEFAULTS, Target};

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Write a function to begin with: NAME.c with its kernels and NAME.json with its blueprint
    #[command(
        after_help = "Templates:\n  elementwise  each element by itself\n  reduction    all elements to one, by blocks\n  \
tiles        a matrix product by tiles in shared memory\n  stencil      each element from its neighbours, in two steps\n\n\
Example:\n  pappus kernel new blur --template stencil"
    )]
    New(KernelNewArguments),
    /// Compile kernels for the CPU device and GPUs: NAME.c becomes NAME.wasm, NAME.ptx, NAME.hsaco, …
    #[command(
        after_help = "Needs clang, lld and llvm of version 19 or later (apt-get install -y clang-19 lld-19 llvm-19), and \
no SDK.\nThe kernels include \"pappus.h\", which this program has in itself.\n\nExamples:\n  pappus kernel build blur.c\n  \
pappus kernel build --target cpu,sm_90 --output built *.c"
    )]
    Build(KernelBuildArguments),
}

#[derive(Debug, Args)]
pub(crate) struct KernelNewArguments {
    /// What to call the files, and the function
    pub(crate) name: String,
    /// What it does to begin with
    #[arg(long, default_value = "elementwise", value_parser = PossibleValuesParser::new(TEMPLATES.iter().map(|one| one.name)))]
    pub(crate) template: String,
    /// Where to write them [default: this folder]
    #[arg(short = 'o', long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Replace files of these names
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct KernelBuildArguments {
    /// Sources of kernels
    #[arg(required = true, value_name = "FILE.c")]
    pub(crate) sources: Vec<PathBuf>,
    /// Where to write the modules [default: beside each source]
    #[arg(short = 'o', long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// What to compile for: cpu, an architecture of NVIDIA's (sm_70 …) or AMD's (gfx90a …)
    #[arg(long = "target", value_name = "TARGET,…", value_delimiter = ',', default_value = DEFAULTS)]
    pub(crate) targets: Vec<Target>,
    /// Let no warning pass
    #[arg(long)]
    pub(crate) strict: bool,
    /// Keep debug information in modules for the CPU device: `pappus invoke --checked` tells lines then
    #[arg(long)]
    pub(crate) debug: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}
