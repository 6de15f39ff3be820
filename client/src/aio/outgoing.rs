//! Frames that the socket did not take yet, in order. Pure but for the one attempt to send: no task, no lock.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use pappus_shmem::{ValidatedMemfd, fds};
use rustix::io::Errno;

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Frame {
    /// With its header.
    pub bytes: Vec<u8>,
    /// Attached to its first byte.
    pub memfds: Vec<Arc<ValidatedMemfd>>,
}

/// Frames in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that the socket took.
    sent: usize,
    /// Bytes of all frames.
    bytes: usize,
    /// Bytes of frames that are being made.
    reserved: usize,
}

impl Outgoing {
    /// True if so many bytes may come; false while others wait and there would be more than `most`.
    pub(super) fn reserve(&mut self, bytes: usize, most: usize) -> bool {
        let waiting = self.bytes - self.sent + self.reserved;
        let fits = waiting == 0 || waiting + bytes <= most;
        if fits {
            self.reserved += bytes;
        }
        fits
    }

    /// What was reserved will not come.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// True if nothing waits to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Nothing will be sent any more.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        (self.sent, self.bytes) = (0, 0);
    }

    /// A frame comes, for which there is a reservation.
    pub(super) fn push(&mut self, frame: Frame) {
        self.reserved -= frame.bytes.len();
        self.bytes += frame.bytes.len();
        self.frames.push_back(frame);
    }

    /// Sends what the socket takes now; true if nothing is left.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
        while let Some(frame) = self.frames.front() {
            let descriptors: Vec<_> = match self.sent {
                0 => frame.memfds.iter().map(|memfd| memfd.as_fd()).collect(),
                _ => Vec::new(),
            };
            match fds::send(socket, &frame.bytes[self.sent..], &descriptors) {
                Ok(taken) => self.sent += taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.sent == frame.bytes.len() {
                self.bytes -= self.sent;
                self.sent = 0;
                self.frames.pop_front();
            }
        }
        Ok(true)
    }
}
