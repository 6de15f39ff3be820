//! Where the files of a configuration are: beside it, or in its package. Whoever writes a configuration may name any file of the
//! machine in it; a package may come from a stranger, so what it names are files of the package and nothing else.

use std::path::{Path, PathBuf};

use crate::archive::{self, Archive, CONFIG};
use crate::error::{Error, Result};
use crate::source::Source;
use crate::variants::{self, VariantFile};

/// A configuration, and where the files that it names are.
#[derive(Debug)]
pub(crate) struct Files {
    config: PathBuf,
    package: Option<Archive>,
}

impl Files {
    /// Of a configuration, a folder with a `function.json`, or a `.pappus` file.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        if archive::is_package(path) && !path.is_dir() {
            return Ok(Self { config: path.join(CONFIG), package: Some(Archive::open(path)?) });
        }
        let config = if path.is_dir() { path.join(CONFIG) } else { path.to_owned() };
        Ok(Self { config, package: None })
    }

    /// The configuration, as errors call it.
    pub(crate) fn config_path(&self) -> &Path {
        &self.config
    }

    /// The configuration.
    pub(crate) fn config(&self) -> Source {
        let found = self.package.as_ref().and_then(|package| package.find(CONFIG));
        found.unwrap_or_else(|| Source::file(&self.config))
    }

    /// The path of a file that the configuration names, whether or not it is there. A package that names a file
    /// outside itself is refused.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.inside(name).map(|name| self.config.with_file_name(name))
    }

    /// A file that the configuration names, if present.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Source>> {
        let name = self.inside(name)?;
        Ok(match &self.package {
            Some(package) => package.find(name),
            None => Some(self.config.with_file_name(name)).filter(|path| path.exists()).map(Source::file),
        })
    }

    /// The module files beside the one that the configuration names, and itself.
    pub(crate) fn variants(&self, name: &str) -> Result<Vec<VariantFile>> {
        let path = self.path(name)?;
        match &self.package {
            Some(package) => {
                let files = package.names().filter_map(|name| package.find(name));
                Ok(variants::among(&path, files.filter(|file| file.path().parent() == path.parent())))
            }
            None => variants::beside(&path),
        }
    }

    fn inside<'n>(&self, name: &'n str) -> Result<&'n str> {
        match &self.package {
            None => Ok(name),
            Some(_) => Archive::inside(name).ok_or_else(|| {
                let why = format!("it names {name:?}, and a package may name only files that are in it");
                Error::content(&self.config, why)
            }),
        }
    }
}
