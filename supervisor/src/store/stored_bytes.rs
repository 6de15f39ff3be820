//! Blobs and machine code as they are read back: compared with the hash that they were stored with each time they are loaded,
//! so that no damaged byte is served or run. What is damaged is said in the log.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pappus_blueprint::kernel_info::CodeInfo;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::error::{StateError, failed};
use super::record_files;
use super::records::{CodeRecord, Hash};
use super::staged::Staged;
use super::state_dir::{StateDir, with_json};
use crate::ids::TenantId;
use crate::refusal::Lack;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

impl StateDir {
    /// Reads a blob of at most so many bytes.
    pub fn read_blob(&self, tenant: TenantId, hash: Hash, most: u64) -> Result<Vec<u8>, StateError> {
        let path = self.blob_path(tenant, hash);
        let file = File::open(&path).map_err(failed("open", &path))?;
        let known = file.metadata().map_err(failed("look at", &path))?.len();
        let mut bytes = Vec::with_capacity(known.min(most) as usize + 1);
        file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed("read", &path))?;
        match Hash(Sha256::digest(&bytes).into()) == hash {
            true => Ok(bytes),
            false => Err(damaged(&path)),
        }
    }

    /// Copies a blob of so many bytes. What was written is of no use unless this succeeds.
    pub fn copy_blob(
        &self,
        tenant: TenantId,
        hash: Hash,
        bytes: u64,
        to: &mut impl Write,
    ) -> Result<(), StateError> {
        let path = self.blob_path(tenant, hash);
        let mut file = File::open(&path).map_err(failed("open", &path))?;
        if file.metadata().map_err(failed("look at", &path))?.len() != bytes {
            return Err(damaged(&path));
        }
        let (mut hasher, mut left, mut buffer) = (Sha256::new(), bytes, vec![0; READ_BYTES]);
        while left > 0 {
            let most = left.min(READ_BYTES as u64) as usize;
            // It may have been cut meanwhile.
            let read = match file.read(&mut buffer[..most]) {
                Ok(0) => return Err(damaged(&path)),
                Ok(read) => &buffer[..read],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed("read", &path)(error)),
            };
            hasher.update(read);
            to.write_all(read).map_err(failed("copy", &path))?;
            left -= read.len() as u64;
        }
        match Hash(hasher.finalize().into()) == hash {
            true => Ok(()),
            false => Err(damaged(&path)),
        }
    }

    /// Writes machine code and what is known about it; nothing finds them before they are published.
    pub fn stage_code(
        &self,
        tenant: TenantId,
        hash: Hash,
        fingerprint: &str,
        code: impl Read,
        info: &CodeInfo,
    ) -> Result<StagedCode, StateError> {
        let path = self.code_path(tenant, hash, fingerprint);
        let about = with_json(&path);
        let mut hasher = Sha256::new();
        let code = Staged::write(&path, code, |chunk| hasher.update(chunk))?;
        let code_sha256 = Hash(hasher.finalize().into());
        let CodeInfo { kernels, targets: _, fenced, window_variables } = info.clone();
        let record = CodeRecord { kernels, fenced, window_variables, code_bytes: code.bytes, code_sha256 };
        let text = record_files::encode(&record).map_err(|e| failed("encode", &about)(e.into()))?;
        Ok(StagedCode { code, about: Staged::write(&about, &text[..], |_| {})? })
    }

    /// From now on the machine code is found; what is known about it last, as the sign that both are there.
    pub fn publish_code(
        &self,
        tenant: TenantId,
        hash: Hash,
        fingerprint: &str,
        staged: StagedCode,
    ) -> Result<(), StateError> {
        let path = self.code_path(tenant, hash, fingerprint);
        staged.code.publish(&self.keeper, &path)?;
        staged.about.publish(&self.keeper, &with_json(&path))
    }

    /// What is known about machine code, if it is there and not damaged.
    pub fn code_info(
        &self,
        tenant: TenantId,
        hash: Hash,
        fingerprint: &str,
    ) -> Result<Option<CodeInfo>, StateError> {
        let whole = self.whole_code(tenant, hash, fingerprint)?;
        Ok(whole.map(|(_, CodeRecord { kernels, fenced, window_variables, .. })| CodeInfo {
            kernels,
            targets: Vec::new(),
            fenced,
            window_variables,
        }))
    }

    /// Opens machine code; none if it is not there, or damaged: then it has to be made again.
    pub fn open_code(
        &self,
        tenant: TenantId,
        hash: Hash,
        fingerprint: &str,
    ) -> Result<Option<File>, StateError> {
        Ok(self.whole_code(tenant, hash, fingerprint)?.map(|(file, _)| file))
    }

    /// Machine code and its record. What is damaged is removed: it can be made from the module. Where descriptors or memory are
    /// short nothing is known of it, and it stays.
    fn whole_code(
        &self,
        tenant: TenantId,
        hash: Hash,
        fingerprint: &str,
    ) -> Result<Option<(File, CodeRecord)>, StateError> {
        let path = self.code_path(tenant, hash, fingerprint);
        let about = with_json(&path);
        let text = match fs::read(&about) {
            Err(error) if is_scarcity(&error) => return Err(failed("read", &about)(error)),
            Err(_) => return Ok(None),
            Ok(text) => text,
        };
        let whole = match record_files::decode::<CodeRecord>(&text) {
            Err(why) => Err(why),
            Ok(record) => match File::open(&path) {
                Err(error) if is_scarcity(&error) => return Err(failed("open", &path)(error)),
                Err(error) => Err(error.to_string()),
                Ok(file) if is_whole(&file, &record).unwrap_or(false) => Ok((file, record)),
                Ok(_) => Err("its bytes are not those that were stored".to_owned()),
            },
        };
        Ok(whole
            .inspect_err(|why| {
                tracing::warn!(
                    "{}: {why}: the machine code is removed, and made again from its module",
                    path.display()
                );
                self.keeper.remove(vec![with_json(&path), path.clone()]);
            })
            .ok())
    }
}

/// True if a file could not be opened or read because the machine has too little of something.
fn is_scarcity(error: &io::Error) -> bool {
    Errno::from_io_error(error).and_then(Lack::told_by).is_some()
}

/// True if a file has the length and the hash of its record. The file's position stays.
fn is_whole(file: &File, record: &CodeRecord) -> io::Result<bool> {
    if file.metadata()?.len() != record.code_bytes {
        return Ok(false);
    }
    let (mut hasher, mut at, mut buffer) =
        (Sha256::new(), 0, vec![0; READ_BYTES.min(record.code_bytes as usize + 1)]);
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(Hash(hasher.finalize().into()) == record.code_sha256),
            read => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
        }
    }
}

fn damaged(path: &Path) -> StateError {
    StateError::Damaged(path.to_owned())
}

/// Machine code and what is known about it, on their way.
#[derive(Debug)]
pub struct StagedCode {
    code: Staged,
    about: Staged,
}

impl StagedCode {
    /// Files that it is in.
    pub const FILES: u64 = 2;

    /// What both take on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.code.disk_bytes + self.about.disk_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId::new(1);

    /// Changes each byte of a file, one at a time, and cuts it to each length; how often `is_refused` did not hold.
    fn damage(path: &Path, is_refused: impl Fn() -> bool) -> usize {
        let whole = fs::read(path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        };
        let all = (0..whole.len()).flat_map(|at| [flipped(at), whole[..at].to_vec()]);
        all.chain([[&whole[..], b"x"].concat()])
            .filter(|bytes| {
                fs::write(path, bytes).unwrap();
                !is_refused()
            })
            .count()
    }

    #[test]
    fn no_damaged_blob_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let content = b"some weights";
        let (hash, staged) = state.stage_blob(TENANT, &content[..]).unwrap();
        state.publish_blob(TENANT, hash, staged).unwrap();
        let copy = || {
            let mut copied = Vec::new();
            state.copy_blob(TENANT, hash, content.len() as u64, &mut copied).map(|()| copied)
        };
        assert_eq!(
            (state.read_blob(TENANT, hash, 12).unwrap(), copy().unwrap()),
            (content.to_vec(), content.to_vec())
        );
        let refused = |error: Option<StateError>| matches!(error, Some(StateError::Damaged(_)));
        let path = state.blob_path(TENANT, hash);
        assert_eq!(
            damage(&path, || refused(state.read_blob(TENANT, hash, 99).err()) && refused(copy().err())),
            0
        );
    }

    #[test]
    fn no_damaged_machine_code_is_found_and_it_can_be_stored_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let hash = Hash([7; 32]);
        let info = CodeInfo { fenced: true, window_variables: 8, ..CodeInfo::default() };
        let store = || {
            let staged = state.stage_code(TENANT, hash, "print", &b"machine code"[..], &info).unwrap();
            state.publish_code(TENANT, hash, "print", staged).unwrap();
        };
        let is_there = || {
            let found = state.open_code(TENANT, hash, "print").unwrap();
            (state.code_info(TENANT, hash, "print").unwrap(), found.is_some())
        };
        store();
        assert_eq!(is_there(), (Some(info.clone()), true));
        let path = state.code_path(TENANT, hash, "print");
        for path in [with_json(&path), path] {
            let whole = fs::read(&path).unwrap();
            let found = damage(&path, || {
                let is_refused = is_there() == (None, false);
                let is_removed = !path.exists();
                store();
                is_refused && is_removed
            });
            assert_eq!(found, 0);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        assert_eq!(is_there(), (Some(info.clone()), true), "the control");
    }
}
