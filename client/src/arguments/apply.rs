//! The options of `pappus apply`.

use std::path::PathBuf;

use clap::Args;

use super::Json;

pub(super) const EXAMPLES: &str = "\
A function of DIR is a NAME.json with its modules and weights, a NAME.pappus, or a folder NAME with function.json in
it; a composition is a NAME.json, too. All of them are read before anything changes: what is wrong with them is told
at once, by file and place. Then, a line each:

  added NAME       it was not registered
  replaced NAME    another one was; calls in flight finish with that one, its grants stay
  unchanged NAME   the identical one was, and nothing of it is sent
  removed NAME     DIR has no function of this name; its grants are gone

What fails ends the command; what was done until then stays, and the same command goes on when it is mended. Modules
that are registered under names of their own are not touched.

Examples:
  pappus apply -f functions --dry-run
  pappus apply -f functions --json";

#[derive(Debug, Args)]
pub(crate) struct ApplyArguments {
    /// The folder
    #[arg(short = 'f', long = "folder", value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Remove nothing
    #[arg(long)]
    pub(crate) keep: bool,
    /// Take a folder without any function, which removes all
    #[arg(long, conflicts_with = "keep")]
    pub(crate) empty: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}
