//! `pappus drain`: lets running calls finish and ends the supervisor.

use std::io::Write;

use pappus_client::{Client, Error};

use crate::failure::Result;
use crate::progress::Progress;

/// Returns once nothing runs any more.
pub(crate) fn run(client: &mut Client, out: &mut dyn Write) -> Result<()> {
    let progress = Progress::spinner("waiting for running calls");
    let answer = client.drain();
    drop(progress);
    match answer {
        // A supervisor that has nothing left to do may be gone before its answer is.
        Ok(()) | Err(Error::Lost) => Ok(writeln!(out, "drained")?),
        Err(error) => Err(error.into()),
    }
}
