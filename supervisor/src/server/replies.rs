//! Answers to one client. Any thread writes straight to the socket; only what a slow client does not
//! take is kept, up to a limit.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

use pappus_proto::limits::MAX_MESSAGE_BYTES;
use pappus_proto::v1::response::Body;
use pappus_proto::{Code, frame, v1};
use prost::Message;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use tokio::net::UnixStream;
use tokio::runtime::Handle;

use crate::call::Call;
use crate::device::Device;
use crate::limits::{MAX_CALLS_PER_CONNECTION, MAX_UNREAD_BYTES};
use crate::schedule::CallId;

/// An invocation of this client without an answer.
#[derive(Debug)]
pub enum Open {
    /// Its function is being loaded.
    Loading,
    /// A device accepted it.
    Accepted {
        /// Which device.
        device: Arc<Device>,
        /// Its name there.
        id: CallId,
        /// The call.
        call: Arc<Call>,
    },
}

#[derive(Debug, Default)]
struct Unread {
    bytes: Vec<u8>,
    sent: usize,
    closed: bool,
}

/// The writing side of a connection.
#[derive(Debug)]
pub struct Replies {
    stream: Arc<UnixStream>,
    runtime: Handle,
    unread: Mutex<Unread>,
    open: Mutex<HashMap<u64, Open>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Replies {
    /// Answers on `stream`.
    pub fn new(stream: Arc<UnixStream>) -> Arc<Self> {
        Arc::new(Self {
            stream,
            runtime: Handle::current(),
            unread: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Sends one answer.
    pub fn send(self: &Arc<Self>, id: u64, body: Body) {
        let mut response = v1::Response { id, body: Some(body) };
        if response.encoded_len() > MAX_MESSAGE_BYTES {
            let why = "the answer is larger than a message may be";
            response.body = Some(Body::Error(v1::Error::new(Code::ResourceExhausted, why)));
        }
        let bytes = frame::encode(&response, 0);
        let mut unread = lock(&self.unread);
        if unread.closed {
            return;
        }
        if !unread.bytes.is_empty() {
            unread.bytes.extend_from_slice(&bytes);
            if unread.bytes.len() - unread.sent > MAX_UNREAD_BYTES {
                tracing::debug!("a client does not read its answers: closing its connection");
                self.close_locked(&mut unread);
            }
            return;
        }
        match self.write(&bytes) {
            Ok(sent) if sent == bytes.len() => {}
            Ok(sent) => {
                unread.bytes = bytes;
                unread.sent = sent;
                self.runtime.spawn(self.clone().write_rest());
            }
            Err(_) => self.close_locked(&mut unread),
        }
    }

    /// Writes what the socket takes now.
    fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match rustix::net::send(
                self.stream.as_fd(),
                &bytes[sent..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    /// Writes what is kept, as the client takes it.
    async fn write_rest(self: Arc<Self>) {
        loop {
            if self.stream.writable().await.is_err() {
                return;
            }
            let mut unread = lock(&self.unread);
            if unread.closed {
                return;
            }
            // `try_io` tells the runtime when the socket was not writable after all.
            let outcome = self.stream.try_io(tokio::io::Interest::WRITABLE, || {
                match self.write(&unread.bytes[unread.sent..])? {
                    0 => Err(std::io::ErrorKind::WouldBlock.into()),
                    sent => Ok(sent),
                }
            });
            match outcome {
                Ok(sent) => unread.sent += sent,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => return self.close_locked(&mut unread),
            }
            if unread.sent == unread.bytes.len() {
                *unread = Unread::default();
                return;
            }
        }
    }

    fn close_locked(&self, unread: &mut Unread) {
        *unread = Unread { closed: true, ..Unread::default() };
        // The reading side sees the end and cleans up.
        let _ = rustix::net::shutdown(self.stream.as_fd(), Shutdown::Both);
    }

    /// A new invocation; refused if the id is taken or there are too many.
    pub fn open(&self, request: u64) -> Result<(), v1::Error> {
        let mut open = lock(&self.open);
        if open.len() >= MAX_CALLS_PER_CONNECTION {
            let why =
                format!("{MAX_CALLS_PER_CONNECTION} invocations of this connection are not answered yet");
            return Err(v1::Error::new(Code::ResourceExhausted, why).retry(10));
        }
        if open.contains_key(&request) {
            let why = "an invocation with this request id is not answered yet: use another id";
            return Err(v1::Error::new(Code::InvalidArgument, why));
        }
        open.insert(request, Open::Loading);
        Ok(())
    }

    /// A device accepted the invocation, which may be answered already.
    pub fn accepted(&self, request: u64, device: &Arc<Device>, id: CallId, call: &Arc<Call>) {
        if let Some(entry) = lock(&self.open).get_mut(&request) {
            *entry = Open::Accepted { device: device.clone(), id, call: call.clone() };
        }
    }

    /// Takes an invocation out, to answer it.
    pub fn take(&self, request: u64) -> Option<Open> {
        lock(&self.open).remove(&request)
    }

    /// Takes all invocations out: the client is gone.
    pub fn take_all(&self) -> Vec<Open> {
        lock(&self.open).drain().map(|(_, open)| open).collect()
    }

    /// Answers an invocation.
    pub fn answer_call(self: &Arc<Self>, request: u64, body: Body) {
        if self.take(request).is_some() {
            self.send(request, body);
        }
    }
}
