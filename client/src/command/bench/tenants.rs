//! Who calls: the user, or the tenants of a file.

use std::path::Path;

use pappus_client::Error;

use crate::failure::{Failure, Result};

/// One who calls.
#[derive(Debug, PartialEq)]
pub(super) struct Tenant {
    pub(super) name: String,
    /// What it says of itself; the user says nothing.
    pub(super) token: Option<String>,
    /// A rate of its own.
    pub(super) rate: Option<f64>,
}

impl Tenant {
    /// The tenants of the file; without one the user, who may act for the tenant of a token.
    pub(super) fn all(file: Option<&Path>, token_file: Option<&Path>) -> Result<Vec<Self>> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::file(path));
        let Some(path) = file else {
            let token = token_file.map(read).transpose()?.map(|token| token.trim().to_owned());
            return Ok(vec![Self { name: "own".into(), token, rate: None }]);
        };
        parse(&read(path)?).map_err(|why| Failure::Refused(format!("{}: {why}", path.display())))
    }
}

/// Lines of `NAME RATE|- TOKEN`; empty ones, and those that begin with a `#`, count for nothing. No message holds a token.
fn parse(text: &str) -> std::result::Result<Vec<Tenant>, String> {
    let mut all: Vec<Tenant> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let word = |text: &str| {
            text.split_once(char::is_whitespace).map(|(word, rest)| (word.to_owned(), rest.trim().to_owned()))
        };
        let words = word(line).and_then(|(name, rest)| word(&rest).map(|(rate, token)| (name, rate, token)));
        let (name, rate, token) = words.ok_or_else(|| {
            format!("line {number}: expected NAME RATE TOKEN, with - for no rate of its own")
        })?;
        if all.iter().any(|tenant| tenant.name == name) {
            return Err(format!("line {number}: {name:?} stands there twice"));
        }
        let rate = match (&rate[..], rate.parse::<f64>()) {
            ("-", _) => None,
            (_, Ok(rate)) if rate > 0.0 && rate.is_finite() => Some(rate),
            _ => return Err(format!("line {number}: expected calls a second, or -, behind the name")),
        };
        all.push(Tenant { name, token: Some(token), rate });
    }
    match all.is_empty() {
        true => Err("there is no tenant in it".into()),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_tenant_maybe_its_rate_and_its_token() {
        let tenants = parse("# who calls\na - secret\n\nb  2.5 a token with words \n").unwrap();
        let expected = [("a", "secret", None), ("b", "a token with words", Some(2.5))];
        let expected =
            expected.map(|(name, token, rate)| Tenant { name: name.into(), token: Some(token.into()), rate });
        assert_eq!(tenants, expected);
        let cases = [
            ("", "no tenant"),
            ("a secret", "line 1: expected NAME"),
            ("a - t\na - t", "\"a\" stands there twice"),
            ("a -1 secret", "line 1: expected calls"),
            ("a secret x", "line 1: expected calls"),
        ];
        for (text, words) in cases {
            let why = parse(text).unwrap_err();
            assert!(why.contains(words) && !why.contains("secret"), "{why}");
        }
    }
}
