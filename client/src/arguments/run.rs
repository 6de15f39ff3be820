//! The options of `pappus run`: those of a call, and what a registration and a supervisor are told.

use std::path::PathBuf;

use clap::Args;

use super::values::assignment;
use super::{Assignment, InvokeArguments};

pub(super) const EXAMPLES: &str = "\
Examples:
  pappus run vec_add.json --input A=f32:1,2,3 --input B=f32:10,20,30 --output C=-
  pappus run resnet18.pappus --input x=pictures.npy --output y=scores.npy --device cuda:0
  pappus run blur.json --input 'image=f32[3,3]:0,0,0,0,9,0,0,0,0' --checked

It starts a supervisor that nobody else reaches, in a folder of its own, adds the function, calls it, and ends the
supervisor: what is to be called again and again has a supervisor that stays. The functions of a composition are
looked for beside it, as NAME.json or NAME.pappus. What may stand behind --input and --output: pappus invoke --help.";

#[derive(Debug, Args)]
#[command(mut_arg("name", |arg| arg
    .value_name("CONFIG.json|PACKAGE")
    .help("The function's configuration, or a package")))]
pub(crate) struct RunArguments {
    // Its name is the path of the configuration.
    #[command(flatten)]
    pub(crate) call: InvokeArguments,
    /// The file of a weights buffer, if not the one that the configuration names
    #[arg(long = "weight", value_name = "W=FILE", value_parser = assignment::<PathBuf>("NAME=FILE", "--weight W="))]
    pub(crate) weights: Vec<Assignment<PathBuf>>,
    /// The device to run on, as for `pappus-supervisor --device`
    #[arg(long, default_value = "cpu:workers=1,memory=4GiB")]
    pub(crate) device: String,
}
