//! The state directory.
//!
//! ```text
//! VERSION                         "pappus-state 1"
//! lock                            held while a supervisor runs (`keeper`); what it listens on (`sockets`)
//! tenants/NAME/blobs/SHA256       modules, configurations, weights, as they came
//! tenants/NAME/code/SHA256.PRINT  machine code of a module, and SHA256.PRINT.json about it
//! tenants/NAME/modules/NAME.json  records
//! tenants/NAME/functions/NAME.json
//! tenants/NAME/functions/NAME@NUMBER.json a version that was replaced and is kept
//! tenants/NAME/grants/NAME.json   who may call that function
//! tenants/NAME/aliases/NAME.json  names of its versions
//! tenants/NAME/declined/NAME.json an owner whose functions are not listed for the tenant
//! tenants/NAME/change.json        records that are changing together (`record_changes`)
//! ```
//!
//! A tenant that the configuration does not name is called by its uid.
//!
//! Files appear by rename, complete and synced; a crash leaves at most `*.tmp` files, which the next
//! start removes. Every tenant has its own blobs, so that knowing a hash gives no tenant another one's bytes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::{StateError, VERSION, failed};
use super::keeper::Keeper;
use super::record_files::{self, CORRUPT, JSON};
use super::records::Hash;
use super::sockets::Bound;
use super::staged::{BLOCK_BYTES, Staged, disk_bytes_of};
use super::state_root;
use crate::ids::TenantId;
use crate::tenants::Names;

/// The end of the name of a file on its way.
pub(super) const TEMPORARY: &str = ".tmp";
/// Digits of a hash in a file's name.
const HASH_DIGITS: usize = 64;

/// The open, locked state directory.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    names: Arc<Names>,
    pub(super) keeper: Keeper,
    bound: Bound,
}

impl StateDir {
    /// Opens or creates the directory, for this process alone. One that is not a supervisor's is not touched.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        let root = &state_root::claim(root)?;
        let lock_path = root.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed("create", &lock_path))?;
        let keeper = Keeper::lock(lock).map_err(failed("lock", &lock_path))?;
        let keeper = keeper.ok_or_else(|| StateError::Locked(root.to_owned()))?;
        // Left by a start that never finished; the lock says that no process writes them now.
        for (name, path) in list(root).map_err(failed("list", root))? {
            if name.ends_with(TEMPORARY) {
                let _ = fs::remove_file(path);
            }
        }
        let bound = Bound::read(lock_path);
        let state = Self { root: root.to_owned(), names: Arc::default(), keeper, bound };
        let version = root.join("VERSION");
        match fs::read_to_string(&version) {
            Ok(found) if found == VERSION => {}
            Ok(found) => return Err(StateError::Version { path: root.to_owned(), found }),
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                return Err(StateError::Version { path: root.to_owned(), found: "no text".to_owned() });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                state.write(&version, VERSION.as_bytes())?;
            }
            Err(e) => return Err(failed("read", &version)(e)),
        }
        Ok(state)
    }

    /// Sockets of supervisors of this directory.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// What its tenants are called.
    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Writes a block and removes it; how much room is left for this user. A crash in between leaves a file that the next
    /// start removes.
    pub fn try_out(&self) -> Result<u64, StateError> {
        let path = self.root.join("try-out.tmp");
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&[0; BLOCK_BYTES as usize])?;
            file.sync_all()
        });
        let removed = fs::remove_file(&path);
        written.map_err(failed("write", &path))?;
        removed.map_err(failed("remove", &path))?;
        let disk = rustix::fs::statvfs(&self.root).map_err(|e| failed("look at", &self.root)(e.into()))?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    pub(super) fn tenant(&self, tenant: TenantId) -> PathBuf {
        self.root.join("tenants").join(&*self.names.name(tenant))
    }

    /// Where a blob is.
    pub fn blob_path(&self, tenant: TenantId, hash: Hash) -> PathBuf {
        self.tenant(tenant).join("blobs").join(hash.to_string())
    }

    pub(super) fn code_path(&self, tenant: TenantId, hash: Hash, fingerprint: &str) -> PathBuf {
        self.tenant(tenant).join("code").join(format!("{hash}.{fingerprint}"))
    }

    /// Makes `path` hold `content`, all of it or nothing, surviving a crash right after. What that takes on disk.
    fn write(&self, path: &Path, content: &[u8]) -> Result<u64, StateError> {
        let staged = Staged::write(path, content, |_| {})?;
        let disk_bytes = staged.disk_bytes;
        staged.publish(&self.keeper, path)?;
        Ok(disk_bytes)
    }

    /// Writes a blob, and says what it is called; nothing finds it before it is published.
    pub fn stage_blob(&self, tenant: TenantId, content: impl Read) -> Result<(Hash, Staged), StateError> {
        let mut hasher = Sha256::new();
        let incoming = self.tenant(tenant).join("blobs").join("incoming");
        let staged = Staged::write(&incoming, content, |chunk| hasher.update(chunk))?;
        Ok((Hash(hasher.finalize().into()), staged))
    }

    /// From now on the blob is found.
    pub fn publish_blob(&self, tenant: TenantId, hash: Hash, staged: Staged) -> Result<(), StateError> {
        staged.publish(&self.keeper, &self.blob_path(tenant, hash))
    }

    /// Opens a blob.
    pub fn open_blob(&self, tenant: TenantId, hash: Hash) -> Result<File, StateError> {
        let path = self.blob_path(tenant, hash);
        File::open(&path).map_err(failed("open", &path))
    }

    /// Removes a blob, and the machine code that was made from it for devices with these fingerprints.
    pub fn remove_blob(&self, tenant: TenantId, hash: Hash, code: &[Box<str>]) {
        let blob = self.blob_path(tenant, hash);
        self.keeper.remove([blob].into_iter().chain(self.code_files(tenant, hash, code)).collect());
    }

    /// Removes machine code that was made from a blob, for devices with these fingerprints.
    pub fn remove_code(&self, tenant: TenantId, hash: Hash, code: &[Box<str>]) {
        self.keeper.remove(self.code_files(tenant, hash, code).collect());
    }

    /// First what says that both files are there.
    fn code_files(&self, tenant: TenantId, hash: Hash, code: &[Box<str>]) -> impl Iterator<Item = PathBuf> {
        code.iter().flat_map(move |fingerprint| {
            let path = self.code_path(tenant, hash, fingerprint);
            [with_json(&path), path]
        })
    }

    pub(super) fn write_json(&self, path: &Path, value: &impl serde::Serialize) -> Result<u64, StateError> {
        let text = record_files::encode(value).map_err(|e| failed("encode", path)(e.into()))?;
        self.write(path, &text)
    }

    /// Tenants that have anything here.
    pub fn tenants(&self) -> Result<Vec<TenantId>, StateError> {
        let mut tenants = Vec::new();
        for (name, path) in self.list(&self.root.join("tenants"))? {
            match self.names.number(&name) {
                Some(tenant) if path.is_dir() => tenants.push(tenant),
                _ if name.ends_with(CORRUPT) => {}
                _ => record_files::set_aside(&self.keeper, &path, "it is no tenant's folder"),
            }
        }
        Ok(tenants)
    }

    /// A tenant's blobs and machine code. Temporary files of a start that was killed are removed, where that is `tidy`; what has another
    /// kind of name is nothing of ours, and stays.
    pub fn stored(&self, tenant: TenantId, tidy: bool) -> Result<Vec<Stored>, StateError> {
        let (mut stored, mut temporary) = (Vec::new(), Vec::new());
        for sub in [".", "functions", "modules", "grants", "aliases", "declined", "blobs", "code"] {
            for (name, path) in self.list(&self.tenant(tenant).join(sub))? {
                if name.ends_with(TEMPORARY) {
                    temporary.push(path);
                    continue;
                }
                let hash = name.get(..HASH_DIGITS).and_then(|hex| hex.parse().ok());
                let Some(hash) = hash.filter(|_| matches!(sub, "blobs" | "code")) else { continue };
                let code = name[HASH_DIGITS..].strip_prefix('.');
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                let is_whole = name.len() == HASH_DIGITS;
                if !found.is_file() || code.is_some() != (sub == "code") || is_whole != (sub == "blobs") {
                    continue;
                }
                // Of machine code and what is known about it, the latter is the sign that both are there.
                let code = code.map(|rest| rest.strip_suffix(JSON).unwrap_or(rest).into());
                let (bytes, disk_bytes) = (found.len(), disk_bytes_of(&found));
                stored.push(Stored { hash, code, bytes, disk_bytes, path });
            }
        }
        if tidy {
            self.keeper.remove(temporary);
        }
        Ok(stored)
    }

    /// Removes stored files that nothing needs.
    pub fn remove_stored(&self, unneeded: Vec<Stored>) {
        self.keeper.remove(unneeded.into_iter().map(|stored| stored.path).collect());
    }

    /// Names and paths in a folder; an absent folder is empty, and a file in its place is set aside.
    pub(super) fn list(&self, folder: &Path) -> Result<Vec<(String, PathBuf)>, StateError> {
        match list(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                record_files::set_aside(&self.keeper, folder, "it is no folder");
                Ok(Vec::new())
            }
            listed => listed.map_err(failed("list", folder)),
        }
    }
}

/// A file of a tenant's that is no record.
#[derive(Debug)]
pub struct Stored {
    /// The blob that is stored, or that the code was made from.
    pub hash: Hash,
    /// For machine code and its description: the fingerprint of the target devices.
    pub code: Option<Box<str>>,
    /// Its content.
    pub bytes: u64,
    /// What it takes on disk.
    pub disk_bytes: u64,
    path: PathBuf,
}

/// What is known about a file.
pub(super) fn with_json(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(JSON);
    name.into()
}

/// Names and paths in a folder; an absent folder is empty, one that does not read is an error.
fn list(folder: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Files with another kind of name are not ours.
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use pappus_blueprint::kernel_info::CodeInfo;

    use super::*;
    use crate::store::records::ModuleRecord;

    const TENANT: TenantId = TenantId::new(1);

    fn put(state: &StateDir, content: &[u8]) -> Hash {
        let (hash, staged) = state.stage_blob(TENANT, content).unwrap();
        state.publish_blob(TENANT, hash, staged).unwrap();
        hash
    }

    fn module(name: &str) -> ModuleRecord {
        ModuleRecord { name: name.to_owned(), variants: vec![] }
    }

    #[test]
    fn one_supervisor_at_a_time_and_only_its_own_version() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::Locked(_))));
        drop(first);
        drop(StateDir::open(dir.path()).unwrap());
        fs::write(dir.path().join("VERSION"), "pappus-state 9\n").unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::Version { .. })));
    }

    #[test]
    fn blobs_are_found_by_hash_and_only_by_their_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let hash = put(&state, b"abc");
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(state.read_blob(TENANT, hash, 3).unwrap(), b"abc");
        assert!(state.open_blob(TenantId::new(2), hash).is_err());
    }

    #[test]
    fn what_is_no_record_is_set_aside_and_what_is_not_needed_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let keep = put(&state, b"keep");
        let lose = put(&state, b"lose");
        let code = state.stage_code(TENANT, lose, "f", &b"code"[..], &CodeInfo::default()).unwrap();
        state.publish_code(TENANT, lose, "f", code).unwrap();
        state.put(TENANT, &module("good")).unwrap();
        let folder = dir.path().join("tenants/1/modules");
        fs::write(folder.join("bad.json"), "{").unwrap();
        fs::write(folder.join("good.json.3.tmp"), "half").unwrap();
        let records = state.records::<ModuleRecord>(TENANT).unwrap();
        assert_eq!(
            (records.fit, records.corrupt),
            (vec![(module("good"), 4096)], Some(folder.join("bad.json")))
        );
        let mut stored = state.stored(TENANT, true).unwrap();
        assert_eq!(stored.len(), 4, "two blobs, machine code and what is known about it");
        assert!(!folder.join("good.json.3.tmp").exists());
        stored.retain(|stored| stored.hash != keep);
        state.remove_stored(stored);
        assert!(state.open_blob(TENANT, keep).is_ok() && state.open_blob(TENANT, lose).is_err());
        assert!(matches!(state.open_code(TENANT, lose, "f"), Ok(None)));
    }

    #[test]
    fn a_start_that_broke_off_does_not_stand_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("VERSION.0.tmp"), "pap").unwrap();
        StateDir::open(dir.path()).unwrap();
        assert!(!dir.path().join("VERSION.0.tmp").exists());
    }
}
