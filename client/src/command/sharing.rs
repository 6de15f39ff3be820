//! What `function check` and `kernel build` say of sharing: whether a module's kernels can run in a worker that tenants share, and
//! if not, which instruction of which kernel stands in the way.

use std::io::Write;
use std::path::Path;

use pappus_client::sharing::Sharing;
use serde_json::{Value, json};

use crate::failure::Result;

/// Reasons that are told of one file.
const MOST_TOLD: usize = 10;

/// What the author of machine code can do; nothing where PTX of the same module lies beside.
pub(super) fn machine_code(format: &str, has_ptx: bool) -> &'static str {
    match format {
        "cubin" | "fatbin" if has_ptx => "machine code: cannot be shared, the PTX beside it is taken",
        "cubin" | "fatbin" => "machine code: cannot be shared; package PTX beside it",
        _ => "machine code: cannot be shared",
    }
}

/// Lines of one file.
pub(super) fn print(path: &Path, sharing: &Sharing, machine_code: &str, out: &mut dyn Write) -> Result<()> {
    let path = path.display();
    let reasons = match sharing {
        Sharing::Shared => return Ok(writeln!(out, "sharing: {path}: can run in a shared worker")?),
        Sharing::MachineCode => return Ok(writeln!(out, "sharing: {path}: {machine_code}")?),
        Sharing::InTheWay(reasons) => reasons,
    };
    writeln!(out, "sharing: {path}: cannot run in a shared worker:")?;
    for reason in reasons.iter().take(MOST_TOLD) {
        writeln!(out, "  {reason}")?;
    }
    match reasons.len().saturating_sub(MOST_TOLD) {
        0 => Ok(()),
        more => Ok(writeln!(out, "  and {more} more")?),
    }
}

/// The same for `--json`.
pub(super) fn to_json(sharing: &Sharing, machine_code: &str) -> Value {
    let (reasons, why) = match sharing {
        Sharing::Shared => (&[][..], Vec::new()),
        Sharing::MachineCode => (&[][..], vec![json!({"why": machine_code})]),
        Sharing::InTheWay(reasons) => (reasons.as_slice(), Vec::new()),
    };
    let told = reasons.iter().take(MOST_TOLD).map(|reason| {
        json!({
            "line": reason.line,
            "column": reason.column,
            "kernel": reason.kernel,
            "what": reason.what,
            "why": reason.why,
        })
    });
    json!({
        "shared": *sharing == Sharing::Shared,
        "in_the_way": told.chain(why).collect::<Vec<_>>(),
        "more": reasons.len().saturating_sub(MOST_TOLD),
    })
}
