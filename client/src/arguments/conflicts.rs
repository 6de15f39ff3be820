//! Options that contradict each other: names that come twice, streams that are used twice.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::{Assignment, CheckArguments, Destination, InvokeArguments, SizeOrSpec};
use crate::input::{Source, Spec};

/// The first name that is assigned to a second time.
fn repeated<T>(assignments: &[Assignment<T>]) -> Option<&str> {
    let names = assignments.iter().enumerate();
    let mut again = names.filter(|(at, one)| assignments[..*at].iter().any(|other| other.name == one.name));
    again.next().map(|(_, one)| one.name.as_str())
}

/// Options that contradict each other, which the parser of single options cannot see.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Conflict {
    /// An input that is given twice.
    #[error("input {0:?} is named twice: separate its files by commas")]
    Input(String),
    /// An output that is given twice.
    #[error("output {0:?} is named twice")]
    Output(String),
    /// Stdin can be read once.
    #[error("stdin (-) is named twice: it can be read once")]
    Stdin,
    /// Two outputs in one stream could not be told apart.
    #[error("stdout (-) is named twice: write one of the outputs to a file")]
    Stdout,
    /// The second would take the place of the first.
    #[error("{} is named twice: give each output a file of its own", .0.display())]
    File(PathBuf),
}

/// Every input may be named once, and so may stdin.
fn check_inputs<'a, T>(
    inputs: &'a [Assignment<T>],
    spec: impl Fn(&'a T) -> Option<&'a Spec>,
) -> Result<(), Conflict> {
    if let Some(name) = repeated(inputs) {
        return Err(Conflict::Input(name.to_owned()));
    }
    let specs = inputs.iter().filter_map(|input| spec(&input.value));
    match specs.flat_map(|spec| &spec.sources).filter(|source| **source == Source::Stdin).count() {
        0 | 1 => Ok(()),
        _ => Err(Conflict::Stdin),
    }
}

impl CheckArguments {
    /// Refuses names that come twice.
    pub(crate) fn check(&self) -> Result<(), Conflict> {
        check_inputs(&self.inputs, |input| match input {
            SizeOrSpec::Size(_) | SizeOrSpec::Array(_) => None,
            SizeOrSpec::Spec(spec) => Some(spec),
        })
    }
}

impl InvokeArguments {
    /// True if the call is to be checked.
    pub(crate) fn is_checked(&self) -> bool {
        self.checked || !self.dumps.is_empty()
    }

    /// What is written, and where to: outputs, and buffers.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Assignment<Destination>> {
        self.outputs.iter().chain(&self.dumps)
    }

    /// Refuses names that come twice.
    pub(crate) fn check(&self) -> Result<(), Conflict> {
        check_inputs(&self.inputs, Some)?;
        let written: Vec<_> = self.written().cloned().collect();
        if let Some(name) = repeated(&written) {
            return Err(Conflict::Output(name.to_owned()));
        }
        let stdout = written.iter().filter(|output| output.value == Destination::Stdout);
        if stdout.count() > 1 {
            return Err(Conflict::Stdout);
        }
        let mut files = std::collections::HashSet::new();
        // Links lead to one file, too.
        let file = |path: &PathBuf| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let twice = written.iter().find_map(|output| match &output.value {
            // Devices such as /dev/null take everything.
            Destination::File(path) if !path.starts_with("/dev") && !files.insert(file(path).ok_or(path)) => {
                Some(path)
            }
            _ => None,
        });
        twice.map_or(Ok(()), |path| Err(Conflict::File(path.clone())))
    }
}
