//! Values of options that have a form of their own: assignments, and what stands behind their `=`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::input::{Expected, Spec, SpecError};

/// `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment<T> {
    pub(crate) name: String,
    pub(crate) value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> Assignment<T> {
    fn read(text: &str, expected: impl FnOnce() -> String) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.parse().map_err(|error: T::Err| error.to_string())?,
            }),
            _ => Err(expected()),
        }
    }
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Assignment<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, || "expected KEY=VALUE".into())
    }
}

/// Reads an option's assignment; what is none is answered with its form and an example made of it.
pub(super) fn assignment<T: FromStr<Err: std::fmt::Display>>(
    form: &'static str,
    option: &'static str,
) -> impl Fn(&str) -> Result<Assignment<T>, String> + Clone {
    move |text| {
        Assignment::read(text, || {
            let file = if text.is_empty() || text.contains('=') { "a.bin" } else { text };
            format!("expected {form}, e.g. {option}{file}")
        })
    }
}

/// An input of `function check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SizeOrSpec {
    /// Only its number of bytes.
    Size(u64),
    /// Only its type and shape.
    Array(Expected),
    /// Its contents.
    Spec(Spec),
}

impl FromStr for SizeOrSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match (text.parse::<ByteSize>(), Expected::announced(text)) {
            (Ok(size), _) => Ok(Self::Size(size.as_u64())),
            (_, Some(array)) => Ok(Self::Array(array)),
            _ => Ok(Self::Spec(text.parse()?)),
        }
    }
}

/// A time such as `500ms`; none at all is refused.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("nothing can be done in no time: expected a time such as 500ms".into()),
        Ok(time) => Ok(time),
        Err(why) => Err(why.to_string()),
    }
}

/// A function and an alias of one of its versions.
pub(super) fn alias(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, alias)) if !name.is_empty() && !alias.is_empty() => {
            Ok((name.to_owned(), alias.to_owned()))
        }
        _ => Err("expected NAME:ALIAS, such as resnet:live".into()),
    }
}

/// Where an output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// `-`.
    Stdout,
    /// A file, or a pipe that has a name.
    File(PathBuf),
}

impl FromStr for Destination {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}
