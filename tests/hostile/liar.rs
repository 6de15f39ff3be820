//! A worker that lies, by a script: tests put it in the place of `pappus-worker`. The first process of a role that
//! finds its script (`lies.serve`, `lies.compile`, `lies.survey`, `lies.meter`) beside itself takes it and plays it; all others become honest
//! workers.
//!
//! A line of a script is a command:
//! - `hello [VERSION DEVICE FINGERPRINT CONTEXT_BYTES]`: a greeting.
//! - `await KIND`: takes in messages until one of this kind; settings are confirmed on the way, unless `mute` was
//!   said before. What it is about is `it` from now on (`it+1`, `it-1`: its neighbours).
//! - `done ID [NS]`, `failed ID CODE KERNEL WORDS`, `leased BYTES`, `exported FUNCTION BYTES`, `broken WORDS`,
//!   `compiled JOB KERNELS…`, `refused JOB WORDS`, `survey [UUID]`: answers.
//! - `readings [ENERGY POWER BUSY MEMORY_BUSY]…`: four numbers for each device; `-` is a value that it does not know.
//! - `yielding TURN`, `yielded TURN NS ANSWERED`: said on the turn page, and that there is something on it.
//!   `scribble WORD VALUE`: any word of the page, and nothing said. `look`: that there is something on it.
//! - `bytes HEX`: what is no answer. `zeros COUNT`: so many zero bytes.
//! - `descriptors ID COUNT`: that many packets with a descriptor on the control socket, as many as it takes.
//! - `code ID BYTES`: a memfd of zeros on the control socket, sealed; `unsealed ID`: one that is not.
//! - `times COUNT COMMAND`, `forever COMMAND`.
//! - `silence`: nothing more, while it lasts. `exit CODE`. `shell COMMAND`: becomes a shell.
#![forbid(unsafe_code)]

mod script;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

fn main() {
    // No liar outlives its supervisor, whatever its script says.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut args = std::env::args();
    let own = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let role = args.first().map_or("", String::as_str);
    let lies = Path::new(&own).with_file_name(format!("lies.{role}"));
    let taken = lies.with_extension(format!("{role}.{}", std::process::id()));
    // The process that renames the file first plays it.
    if std::fs::rename(&lies, &taken).is_ok() {
        let text = std::fs::read_to_string(&taken).unwrap_or_default();
        match script::play(&text) {
            Ok(()) => exit(0),
            // The supervisor gave up on it, most likely.
            Err(why) => {
                eprintln!("pappus-liar: {why}");
                exit(9)
            }
        }
    }
    let honest = std::env::current_exe().map(|liar| liar.with_file_name("pappus-worker"));
    let error = honest.map(|worker| Command::new(worker).args(&args).exec());
    eprintln!("pappus-liar: no honest worker: {error:?}");
    exit(8)
}
