//! The options of `pappus package`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Json;

#[derive(Debug, Subcommand)]
pub(crate) enum PackageCommand {
    /// Time a package's candidates on a device, and write the table of the fastest ones into the package
    #[command(
        after_help = "A package is a .pappus file or a folder that Python's pappus.package made with candidates=N. The supervisor \
should have\nthis device only, and nothing else to do. Made again with tuning=\"PACKAGE\", the package has the fastest \
ones, and\ncarries the table on.\n\n\
Runs `python3 -m pappus.package tune`: a Python that has the package `pappus`, python3 of PATH, or the one that\n\
PAPPUS_PYTHON names. It needs neither PyTorch nor a GPU of its own.\n\n\
Examples:\n  pappus package tune resnet18.pappus --device cuda:0\n  \
PAPPUS_PYTHON=venv/bin/python pappus package tune resnet18 --device cuda:0 --repeat 100 --json"
    )]
    Tune(PackageTuneArguments),
}

#[derive(Debug, Args)]
pub(crate) struct PackageTuneArguments {
    /// The package
    #[arg(value_name = "PACKAGE")]
    pub(crate) package: PathBuf,
    /// The device to measure on, as the supervisor calls it
    #[arg(long, default_value = "cuda:0")]
    pub(crate) device: String,
    /// Calls of each candidate, whose median counts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeat: u64,
    #[command(flatten)]
    pub(crate) json: Json,
}
