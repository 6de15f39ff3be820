//! `pappus token`: a new token for a tenant. The token goes to stdout, to be kept by the gateway; its hash to stderr,
//! for the configuration. 256 random bits, so a plain hash of it tells nobody anything.

use std::io::Write;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Result};
use crate::units::hex;

/// Prints a token and its hash.
pub(crate) fn run(out: &mut dyn Write) -> Result<()> {
    let token = new().map_err(|error| Failure::Failed(format!("no random bytes: {error}")))?;
    writeln!(out, "{token}")?;
    anstream::eprintln!("token-sha256 = \"{}\"", hash(&token));
    Ok(())
}

fn new() -> std::result::Result<String, Errno> {
    let mut random = [0; 32];
    let mut filled = 0;
    while filled < random.len() {
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty())?;
    }
    Ok(format!("pappus-{}", hex(&random)))
}

fn hash(token: &str) -> String {
    hex(&Sha256::digest(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_tokens_are_the_same_and_the_hash_is_of_the_text() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert!(one != other && one.len() == "pappus-".len() + 64, "{one}");
        assert_eq!(hash("token"), "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0");
    }
}
