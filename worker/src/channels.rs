//! The three channels between a worker and its supervisor.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use pappus_protocol::from_worker::Hello;
use pappus_protocol::pipe::{Inbox, Outbox};
use pappus_protocol::{FromWorker, Layers};

/// A worker's end of its channels.
#[derive(Debug)]
pub struct Channels {
    /// Commands.
    pub inbox: Inbox,
    /// Answers.
    pub outbox: Outbox,
    /// Descriptors that belong to commands and answers; blocking on this side.
    pub control: OwnedFd,
    /// Layers of the sandbox in force, which the greeting tells.
    pub layers: Layers,
}

impl Channels {
    /// Connects over the reading end of a pipe, the writing end of another (both non-blocking), and the
    /// control socket.
    pub fn new(commands: OwnedFd, answers: OwnedFd, control: OwnedFd) -> Self {
        let (inbox, outbox) = (Inbox::new(commands), Outbox::new(answers));
        Self { inbox, outbox, control, layers: Layers::default() }
    }

    /// A device's greeting, completed.
    pub fn greeting(&self, hello: Hello) -> FromWorker<'static> {
        FromWorker::Hello(Hello { layers: self.layers, ..hello })
    }

    /// Sends one message now. A supervisor that does not read stops only its worker.
    pub fn send(&mut self, message: &FromWorker<'_>) -> std::io::Result<()> {
        self.outbox.push_from_worker(message);
        self.outbox.flush_blocking()
    }
}

/// Reads all of a file that came over the control socket. Its offset is shared with the sender, so it is
/// neither used nor moved.
pub fn read_whole(file: OwnedFd, limit: u64) -> std::io::Result<Vec<u8>> {
    let file = File::from(file);
    let bytes = file.metadata()?.len();
    if bytes > limit {
        return Err(std::io::Error::other(format!("{bytes} bytes, allowed are {limit}")));
    }
    let mut content = vec![0; bytes as usize];
    pappus_shmem::memfd::read_exact_at(file.as_fd(), 0, &mut content)?;
    Ok(content)
}
