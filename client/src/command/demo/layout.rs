//! The functions that come with Pappus, as files.

use std::fs;
use std::path::{Path, PathBuf};

use pappus_client::Error;

use crate::failure::Result;

/// The configuration of such a function.
pub(super) fn config(folder: &Path, function: &str) -> PathBuf {
    folder.join("configs").join(format!("{function}.json"))
}

/// Writes configurations and modules so that the paths in the configurations hold.
pub(super) fn write(folder: &Path) -> Result<()> {
    let write = |part: &str, name: &str, content: &[u8]| {
        let path = folder.join(part).join(name);
        fs::write(&path, content).map_err(Error::file(&path))
    };
    for part in ["configs", "built"] {
        let path = folder.join(part);
        fs::create_dir(&path).map_err(Error::file(&path))?;
    }
    for (name, config) in pappus_kernels::CONFIGS {
        write("configs", &format!("{name}.json"), config.as_bytes())?;
    }
    for (name, artefact) in pappus_kernels::ARTEFACTS {
        write("built", name, artefact)?;
    }
    Ok(())
}
