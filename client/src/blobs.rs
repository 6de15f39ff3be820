//! Blobs: the bytes of modules, configurations and weights on their way to the supervisor.

use std::io::Read;
use std::os::fd::AsFd;

use bytes::Bytes;
use pappus_proto::limits::MAX_INLINE_BYTES;
use pappus_proto::v1::{self, request, response};
use pappus_shmem::memfd;
use sha2::{Digest, Sha256};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::npy::{self, Contents};
use crate::requests::{answer, unexpected};
use crate::source::{FileRange, Source};

/// Bytes of a file that are hashed at once.
const PIECE_BYTES: usize = 1 << 20;

/// Where the bytes come from.
#[derive(Debug, Clone, Copy)]
pub enum Blob<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// All bytes of a file.
    File(&'a Source),
    /// The array of a `.npy` file as devices take it, or all bytes of any other.
    Array(&'a Source),
}

impl Blob<'_> {
    /// The hash by which a supervisor knows these bytes.
    pub fn sha256(self) -> Result<[u8; 32]> {
        let (source, array) = match self {
            Blob::Bytes(bytes) => return Ok(Sha256::digest(bytes).into()),
            Blob::File(source) => (source, None),
            Blob::Array(source) => match npy::read(source)?.0 {
                Contents::Range(range) => (source, Some(range)),
                Contents::Converted(bytes) => return Ok(Sha256::digest(&bytes).into()),
            },
        };
        let opened = source.open()?;
        let part = array.map_or_else(|| opened.clone(), |range| opened.part(range));
        let mut hash = Sha256::new();
        let (mut reader, mut piece) = (part.reader(), vec![0; PIECE_BYTES]);
        loop {
            match reader.read(&mut piece).map_err(Error::file(source.path()))? {
                0 => return Ok(hash.finalize().into()),
                bytes => hash.update(&piece[..bytes]),
            }
        }
    }
}

impl Client {
    /// Hands bytes over for a later registration; returns their hash.
    pub fn put_blob(&mut self, blob: Blob<'_>) -> Result<v1::BlobStored> {
        let (source, array) = match blob {
            Blob::Bytes(bytes) => return self.put_bytes(bytes),
            Blob::File(source) => (source, None),
            Blob::Array(source) => match npy::read(source)?.0 {
                Contents::Range(range) => (source, Some(range)),
                Contents::Converted(bytes) => return self.put_bytes(&bytes),
            },
        };
        let opened = source.open()?;
        let range = array.unwrap_or(FileRange { offset: 0, bytes: opened.bytes() });
        if range.bytes == 0 {
            // A memfd of no bytes cannot be mapped.
            return self.put_bytes(&[]);
        }
        let memfd = memfd::sealed_from("pappus-blob", range.bytes, |memfd| {
            match std::io::copy(&mut opened.part(range).reader(), memfd)? {
                copied if copied == range.bytes => Ok(()),
                // It shrank since it was looked at.
                _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
            }
        });
        self.put_memfd(&memfd?)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<v1::BlobStored> {
        if bytes.len() as u64 > MAX_INLINE_BYTES {
            return self.put_memfd(&memfd::sealed("pappus-blob", bytes)?);
        }
        let body = v1::PutBlob { inline: Bytes::copy_from_slice(bytes) };
        answer!(self.call(request::Body::PutBlob(body), &[])?, Blob)
    }

    fn put_memfd(&mut self, memfd: &pappus_shmem::ValidatedMemfd) -> Result<v1::BlobStored> {
        let body = request::Body::PutBlob(v1::PutBlob::default());
        answer!(self.call(body, &[memfd.as_fd()])?, Blob)
    }
}
