//! A round trip through two pipes to another process that does nothing: the floor of every call.
//! Neither process pins itself to a processor, since none in Pappus does.

use std::io::ErrorKind;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;

/// Bytes each way.
const BYTES: usize = 8;

/// How both sides wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Waiting {
    /// In the kernel.
    Blocking,
    /// Asking again and again.
    Polling,
}

impl Waiting {
    fn flag(self) -> &'static str {
        match self {
            Self::Blocking => "--echo=blocking",
            Self::Polling => "--echo=polling",
        }
    }
}

/// A process that echoes its input, and ends when the value is dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Peer {
    /// Starts it: this same program.
    pub fn start(waiting: Waiting) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(waiting.flag())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).ok_or("a child without its pipes")?;
        if waiting == Waiting::Polling {
            rustix::io::ioctl_fionbio(&from, true)?;
        }
        Ok(Self { child, to, from })
    }

    /// There and back.
    pub fn round_trip(&mut self) -> Result<()> {
        self.to.write_all(&[7; BYTES])?;
        match receive(|bytes| self.from.read(bytes))? {
            true => Ok(()),
            false => Err("the other end of the pipe is gone".into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends standard input back through standard output until it ends.
pub fn echo(waiting: Waiting) -> Result<()> {
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    if waiting == Waiting::Polling {
        rustix::io::ioctl_fionbio(input, true)?;
    }
    while receive(|bytes| Ok(rustix::io::read(input, bytes)?))? {
        // Eight bytes fit into a pipe that was just emptied.
        rustix::io::write(output, &[7; BYTES])?;
    }
    Ok(())
}

/// Reads one message, however `read` waits; false at the end.
fn receive(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Result<bool> {
    loop {
        match read(&mut [0; BYTES]) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                std::hint::spin_loop();
            }
            Err(e) => return Err(e.into()),
        }
    }
}
