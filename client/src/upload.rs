//! Handing over the files of one registration, with word of how far it is.

use std::path::Path;

use bytes::Bytes;
use pappus_proto::v1;

use crate::blobs::Blob;
use crate::client::Client;
use crate::error::Result;
use crate::source::Source;
use crate::variants::VariantFile;

/// What a registration is about to do.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// Hand over a file.
    Upload {
        /// The file.
        path: &'a Path,
        /// Bytes handed over before it.
        done_bytes: u64,
        /// Bytes of all files.
        total_bytes: u64,
    },
    /// Have the supervisor check and compile what it was given.
    Register,
}

/// Hands over files one by one.
pub(crate) struct Uploads<'a> {
    pub(crate) client: &'a mut Client,
    progress: &'a mut dyn FnMut(Step<'_>),
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> Uploads<'a> {
    pub(crate) fn new(
        client: &'a mut Client,
        total_bytes: u64,
        progress: &'a mut dyn FnMut(Step<'_>),
    ) -> Self {
        Self { client, progress, done_bytes: 0, total_bytes }
    }

    /// Hands over one variant of a module.
    pub(crate) fn variant(&mut self, file: &VariantFile) -> Result<v1::Variant> {
        Ok(v1::Variant {
            format: file.format.name().into(),
            arch: file.arch.clone(),
            sha256: self.file(file.path(), Blob::File(&file.source))?,
        })
    }

    /// Hands over a file of weights.
    pub(crate) fn array(&mut self, source: &Source) -> Result<Bytes> {
        self.file(source.path(), Blob::Array(source))
    }

    /// Says that all files are there.
    pub(crate) fn finish(self) -> &'a mut Client {
        (self.progress)(Step::Register);
        self.client
    }

    fn file(&mut self, path: &Path, blob: Blob<'_>) -> Result<Bytes> {
        (self.progress)(Step::Upload { path, done_bytes: self.done_bytes, total_bytes: self.total_bytes });
        let stored = self.client.put_blob(blob)?;
        self.done_bytes += stored.bytes;
        Ok(stored.sha256)
    }
}

/// Bytes of some module files together.
pub(crate) fn bytes_of<'f>(files: impl IntoIterator<Item = &'f VariantFile>) -> Result<u64> {
    files.into_iter().try_fold(0, |sum, file| Ok(sum + file.source.open()?.bytes()))
}
