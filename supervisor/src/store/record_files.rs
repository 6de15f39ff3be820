//! Records as files: each is one JSON object that ends with the digest of its own text, so that no flipped bit makes another
//! record of it. Records of older builds have no digest, and are read as they are.
//!
//! ```text
//! {"name":"f", …}  ──►  {"name":"f", …,"sha256":"DIGEST OF THE TEXT ON THE LEFT"}
//! ```
//!
//! What does not fit (a damaged record, a folder, any other file among records) is renamed to `*.corrupt` and stays.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::keeper::Keeper;
use super::records::{Hash, Record};
use crate::limits::MAX_RECORD_BYTES;

/// The end of the name of what was set aside.
pub(super) const CORRUPT: &str = ".corrupt";
/// The end of the name of a record.
pub(super) const JSON: &str = ".json";

/// What stands before the digest, and behind it.
const DIGEST: [&[u8]; 2] = [br#","sha256":""#, br#""}"#];
const DIGITS: usize = 64;

/// A record's text.
pub(super) fn encode(record: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(record)?;
    let digest = digest(&text).to_string();
    // The brace at its end comes again behind the digest.
    text.pop();
    text.extend([DIGEST[0], digest.as_bytes(), DIGEST[1]].concat());
    Ok(text)
}

/// The record of a text, or what is wrong with it.
pub(super) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    // A record that was written over a longer one ends with spaces.
    let text = text.trim_ascii_end();
    let parts =
        text.strip_suffix(DIGEST[1]).and_then(|rest| rest.split_at_checked(rest.len().checked_sub(DIGITS)?));
    let with_digest = parts.and_then(|(rest, digits)| Some((rest.strip_suffix(DIGEST[0])?, digits)));
    let Some((rest, digits)) = with_digest else {
        return serde_json::from_slice(text).map_err(|why| why.to_string());
    };
    let text = [rest, b"}"].concat();
    if digest(&text).to_string().as_bytes() != digits {
        return Err("its text is not the one that was written".to_owned());
    }
    serde_json::from_slice(&text).map_err(|why| why.to_string())
}

/// The hash of a text.
pub(super) fn digest(text: &[u8]) -> Hash {
    Hash(Sha256::digest(text).into())
}

/// The record in a file and its metadata, or what is wrong with it. An error of the machine, such as too few descriptors, says
/// nothing about the record.
pub(super) fn read<T: Record>(path: &Path) -> io::Result<Result<(T, fs::Metadata), String>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => found,
        Ok(_) => return Ok(Err("it is no file".to_owned())),
        Err(error) => return on_medium(Err(error)),
    };
    let mut text = Vec::new();
    match fs::File::open(path).and_then(|file| file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut text)) {
        Ok(bytes) if bytes as u64 > MAX_RECORD_BYTES => return Ok(Err("it is too large".to_owned())),
        Ok(_) => {}
        Err(error) => return on_medium(Err(error)),
    }
    let record: T = match decode(&text) {
        Ok(record) => record,
        Err(why) => return Ok(Err(why)),
    };
    let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(JSON));
    match name == Some(record.name()) {
        true => Ok(Ok((record, found))),
        false => Ok(Err(format!("it is the record of {:?}", record.name()))),
    }
}

/// What was read. An error of the disk says that this file cannot be read; any other one is the caller's to handle.
pub(super) fn on_medium<T>(read: io::Result<T>) -> io::Result<Result<T, String>> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(error) if error.kind() == ErrorKind::IsADirectory => Ok(Err("it is no file".to_owned())),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Gives what does not fit a name that nothing looks for; it is said in the log, also where that fails.
pub(super) fn set_aside(keeper: &Keeper, path: &Path, why: &str) {
    let (from, to) = (path.to_owned(), free_name(path));
    let renamed = keeper.change(move || fs::rename(from, to));
    let (path, folder) = (path.display(), path.parent().unwrap_or(path).display());
    match renamed {
        Ok(()) => tracing::error!(
            "{path} does not fit ({why}): set aside as {CORRUPT}; nothing is deleted for it. To have it again, bring the file \
             back from a backup; to give it up, remove the {CORRUPT} file; then start again"
        ),
        Err(error) => tracing::error!(
            "{path} does not fit ({why}), and cannot be renamed ({error}): check the disk of {folder}"
        ),
    }
}

/// A name for what is set aside that nothing has: what was set aside earlier stays.
fn free_name(path: &Path) -> PathBuf {
    let named = |nth: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(if nth == 0 { CORRUPT.to_owned() } else { format!(".{nth}{CORRUPT}") });
        PathBuf::from(name)
    };
    let is_free =
        |path: &PathBuf| matches!(fs::symlink_metadata(path), Err(e) if e.kind() == ErrorKind::NotFound);
    (0..u32::MAX).map(named).find(is_free).unwrap_or_else(|| named(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::records::GrantRecord;

    #[test]
    fn no_flipped_bit_makes_another_record() {
        let record = GrantRecord { name: "f".into(), callers: vec!["1000".into(), "acme".into()] };
        let text = encode(&record).unwrap();
        assert_eq!(decode::<GrantRecord>(&text).unwrap(), record);
        let plain = serde_json::to_vec(&record).unwrap();
        assert_eq!(decode::<GrantRecord>(&plain).unwrap(), record, "of an older build");
        let mut unnoticed = 0;
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut flipped = text.clone();
            flipped[at] ^= 1 << bit;
            assert!(decode::<GrantRecord>(&flipped).is_err(), "byte {at}, bit {bit}");
            if let Some(byte) = plain.get(at) {
                let mut flipped = plain.clone();
                flipped[at] = byte ^ 1 << bit;
                unnoticed += usize::from(decode::<GrantRecord>(&flipped).is_ok());
            }
        }
        assert!(unnoticed > 0, "the control: without its digest, some are other records");
        for length in 0..text.len() {
            assert!(decode::<GrantRecord>(&text[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn what_was_set_aside_earlier_stays() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::lock(tempfile::tempfile().unwrap()).unwrap().unwrap();
        for content in ["one", "two", "three"] {
            fs::write(dir.path().join("f.json"), content).unwrap();
            set_aside(&keeper, &dir.path().join("f.json"), "meant to");
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            ["f.json.corrupt", "f.json.1.corrupt", "f.json.2.corrupt"].map(read),
            ["one", "two", "three"]
        );
    }
}
