//! What is registered under a name: a function or a composition, read from its file.

use std::path::{Path, PathBuf};

use pappus_client::compositions::Composition;
use pappus_client::functions::{Package, Step};
use pappus_client::{Client, v1};

use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// One of the two, as it lies on disk.
pub(super) enum Registrable {
    Function(Box<Package>),
    Composition(Composition),
}

impl Registrable {
    /// Reads it; `weights` has names and files of weights, in place of the files that the configuration names.
    pub(super) fn read(path: &Path, weights: &[(String, PathBuf)]) -> Result<Self> {
        match Composition::read(path)? {
            None => Ok(Self::Function(Box::new(Package::read(path, weights)?))),
            Some(composition) if weights.is_empty() => Ok(Self::Composition(composition)),
            Some(_) => {
                let message = "--weight belongs to a function: a composition has those of its functions";
                Err(Failure::Usage(message.into()))
            }
        }
    }

    /// Registers it.
    pub(super) fn add(
        &self,
        client: &mut Client,
        name: &str,
        replace: bool,
        progress: &mut Progress,
    ) -> pappus_client::Result<v1::FunctionInfo> {
        let step = &mut |step: Step<'_>| progress.step(step);
        match self {
            Self::Function(package) => package.add(client, name, replace, step),
            Self::Composition(composition) => composition.add(client, name, replace, step),
        }
    }
}
