//! `pappus man`: manual pages, made from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;
use pappus_client::Error;

use crate::arguments::Arguments;
use crate::failure::Result;

/// Writes the page of the program and one for each of its commands.
pub(crate) fn run(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
    Ok(clap_mangen::generate_to(Arguments::command(), folder).map_err(Error::file(folder))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(page("pappus.1").contains("pappus\\-invoke(1)"), "{}", page("pappus.1"));
        let invoke = page("pappus-invoke.1");
        for words in [".TH pappus-invoke 1", "\\-\\-deadline", "Exit codes:"] {
            assert!(invoke.contains(words), "{words}: {invoke}");
        }
        assert!(folder.path().join("pappus-function-add.1").is_file());
    }
}
