//! The options of `pappus top`.

use std::time::Duration;

use clap::Args;

use super::{Json, values};

pub(super) const EXAMPLES: &str = "\
Four tables, one at a time: devices (calls that wait, run, were completed and failed; memory), workers, tenants
(device time and its share of the time since the last look) and functions that were called since they came into
memory.

Keys:
  Tab, 1 to 4     another table              / TEXT Enter   only rows with this text; Esc: all
  Left, Right     sort by another column     Up, Down       scroll
  r               the other way round        p              stand still, or go on
  q, Ctrl-C       end

Examples:
  pappus --socket /run/pappus/pappus.sock.admin top
  pappus --socket /run/pappus/pappus.sock.admin top --once | less
  pappus --socket /run/pappus/pappus.sock.admin top --json | jq '.status.uses[] | select(.failed > 0)'

On the clients' socket you see the devices, and of the rest what is yours.";

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Print all tables once, with totals in place of rates
    #[arg(long)]
    pub(crate) once: bool,
    /// How often to look, such as 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::some_time, conflicts_with_all = ["once", "json"])]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) json: Json,
}
