//! `pappus token`: a new token for a tenant. The token goes to a file that only its owner can read, or to stdout, to be
//! kept by the gateway; its hash is for the configuration. The token is 256 random bits, so its plain hash reveals nothing.

use std::io::{ErrorKind, Write};
use std::path::Path;

use pappus_client::Error;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Result};
use crate::units::hex;

/// Writes or prints a token, and prints its hash.
pub(crate) fn run(output: Option<&Path>, replace: bool, out: &mut dyn Write) -> Result<()> {
    let token = new().map_err(|error| Failure::Failed(format!("no random bytes: {error}")))?;
    let hash = format!("token-sha256 = \"{}\"", hash(&token));
    match output {
        Some(path) => {
            save(path, &token, replace)?;
            Ok(writeln!(out, "{hash}")?)
        }
        None => {
            writeln!(out, "{token}")?;
            Ok(writeln!(anstream::stderr(), "{hash}")?)
        }
    }
}

/// Makes a file of mode 0600 with the token, all of it or nothing. A link is replaced, never followed.
fn save(path: &Path, token: &str, replace: bool) -> Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Its mode is 0600 from the start.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::file(folder))?;
    let written = writeln!(file, "{token}").and_then(|()| file.as_file().sync_all());
    written.map_err(Error::file(path))?;
    let kept = match replace {
        true => file.persist(path),
        false => file.persist_noclobber(path),
    };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(Failure::Refused(format!(
            "{} exists: name another file, or replace it with --force",
            path.display()
        ))),
        Err(error) => Err(Error::file(path)(error.error).into()),
    }
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
    fn a_token_file_is_for_its_owner_alone_and_never_overwritten_unasked() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acme.token");
        save(&path, "one", false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let why = save(&path, "two", false).unwrap_err().to_string();
        assert!(why.contains("acme.token exists") && why.contains("--force"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        save(&path, "two", true).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        // A symbolic link is neither followed nor written through.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "kept").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        save(&link, "three", false).unwrap_err();
        save(&link, "three", true).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "three\n");
    }

    #[test]
    fn no_two_tokens_are_the_same_and_the_hash_is_of_the_text() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert!(one != other && one.len() == "pappus-".len() + 64, "{one}");
        assert_eq!(hash("token"), "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0");
    }
}
