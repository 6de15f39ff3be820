//! The state directory.
//!
//! ```text
//! VERSION                         "pappus-state 1"
//! lock                            held while a supervisor runs (`keeper`); what it listens on (`sockets`)
//! tenants/NAME/blobs/SHA256       modules, configurations, weights, as they came
//! tenants/NAME/code/SHA256.PRINT  machine code of a module, and SHA256.PRINT.json about it
//! tenants/NAME/modules/NAME.json  records
//! tenants/NAME/functions/NAME.json
//! tenants/NAME/grants/NAME.json   who may call that function
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
use super::records::{CodeInfo, FunctionRecord, GrantRecord, Hash, ModuleRecord};
use super::sockets::Bound;
use super::staged::{BLOCK_BYTES, Staged, disk_bytes_of};
use super::state_root;
use crate::ids::TenantId;
use crate::tenants::Names;

/// The end of the name of a record that was set aside.
const CORRUPT: &str = ".corrupt";

/// The open, locked state directory.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    names: Arc<Names>,
    keeper: Keeper,
    bound: Bound,
}

/// Which kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `functions/`
    Function,
    /// `modules/`
    Module,
    /// `grants/`
    Grant,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Self::Function => "functions",
            Self::Module => "modules",
            Self::Grant => "grants",
        }
    }
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
            if name.ends_with(".tmp") {
                let _ = fs::remove_file(path);
            }
        }
        let bound = Bound::read(lock_path);
        let state = Self { root: root.to_owned(), names: Arc::default(), keeper, bound };
        let version = root.join("VERSION");
        match fs::read_to_string(&version) {
            Ok(found) if found == VERSION => {}
            Ok(found) => {
                return Err(StateError::Version { path: root.to_owned(), found });
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

    fn tenant(&self, tenant: TenantId) -> PathBuf {
        self.root.join("tenants").join(&*self.names.name(tenant))
    }

    /// Where a blob is.
    pub fn blob_path(&self, tenant: TenantId, hash: Hash) -> PathBuf {
        self.tenant(tenant).join("blobs").join(hash.to_string())
    }

    fn code_path(&self, tenant: TenantId, hash: Hash, fingerprint: &str) -> PathBuf {
        self.tenant(tenant).join("code").join(format!("{hash}.{fingerprint}"))
    }

    fn record_path(&self, tenant: TenantId, kind: Kind, name: &str) -> PathBuf {
        self.tenant(tenant).join(kind.folder()).join(format!("{name}.json"))
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

    /// Reads a blob that is known to be small.
    pub fn read_blob(&self, tenant: TenantId, hash: Hash) -> Result<Vec<u8>, StateError> {
        let path = self.blob_path(tenant, hash);
        fs::read(&path).map_err(failed("read", &path))
    }

    /// Removes a blob, and the machine code that was made from it for devices with these fingerprints.
    pub fn remove_blob<'f>(&self, tenant: TenantId, hash: Hash, code: impl Iterator<Item = &'f str>) {
        let mut files = vec![self.blob_path(tenant, hash)];
        for fingerprint in code {
            let path = self.code_path(tenant, hash, fingerprint);
            // First what says that both are there.
            files.extend([with_json(&path), path]);
        }
        self.keeper.remove(files);
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
        let text = serde_json::to_vec(info).map_err(|e| failed("encode", &about)(e.into()))?;
        Ok(StagedCode {
            code: Staged::write(&path, code, |_| {})?,
            about: Staged::write(&about, &text[..], |_| {})?,
        })
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

    /// What is known about machine code, if it is there.
    pub fn code_info(&self, tenant: TenantId, hash: Hash, fingerprint: &str) -> Option<CodeInfo> {
        let text = fs::read(with_json(&self.code_path(tenant, hash, fingerprint))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Opens machine code.
    pub fn open_code(&self, tenant: TenantId, hash: Hash, fingerprint: &str) -> Result<File, StateError> {
        let path = self.code_path(tenant, hash, fingerprint);
        File::open(&path).map_err(failed("open", &path))
    }

    /// Stores a function's record; what it takes on disk.
    pub fn put_function(&self, tenant: TenantId, record: &FunctionRecord) -> Result<u64, StateError> {
        self.write_json(&self.record_path(tenant, Kind::Function, &record.name), record)
    }

    /// Stores a module's record; what it takes on disk.
    pub fn put_module(&self, tenant: TenantId, record: &ModuleRecord) -> Result<u64, StateError> {
        self.write_json(&self.record_path(tenant, Kind::Module, &record.name), record)
    }

    /// Stores who may call a function; what that takes on disk.
    pub fn put_grants(&self, tenant: TenantId, record: &GrantRecord) -> Result<u64, StateError> {
        self.write_json(&self.record_path(tenant, Kind::Grant, &record.name), record)
    }

    fn write_json(&self, path: &Path, value: &impl serde::Serialize) -> Result<u64, StateError> {
        let text = serde_json::to_vec(value).map_err(|e| failed("encode", path)(e.into()))?;
        self.write(path, &text)
    }

    /// Removes a record for good.
    pub fn remove_record(&self, tenant: TenantId, kind: Kind, name: &str) -> Result<(), StateError> {
        let path = self.record_path(tenant, kind, name);
        let file = path.clone();
        self.keeper.change(move || fs::remove_file(file)).map_err(failed("remove", &path))?;
        let folder = self.tenant(tenant).join(kind.folder());
        File::open(&folder).and_then(|dir| dir.sync_all()).map_err(failed("sync", &folder))
    }

    /// Tenants that have anything here.
    pub fn tenants(&self) -> Result<Vec<TenantId>, StateError> {
        let folder = self.root.join("tenants");
        let names = list(&folder).map_err(failed("list", &folder))?;
        Ok(names.into_iter().filter_map(|(name, _)| self.names.number(&name)).collect())
    }

    /// All records of one kind, and what each takes on disk. One that is no record is set aside as `*.corrupt` and logged: what is there
    /// for others must not be lost with it. What cannot be read at all fails the start.
    pub fn records<T: serde::de::DeserializeOwned>(
        &self,
        tenant: TenantId,
        kind: Kind,
    ) -> Result<Vec<(T, u64)>, StateError> {
        let folder = self.tenant(tenant).join(kind.folder());
        let mut records = Vec::new();
        for (name, path) in list(&folder).map_err(failed("list", &folder))? {
            if !name.ends_with(".json") {
                continue;
            }
            let text = fs::read(&path).map_err(failed("read", &path))?;
            let disk_bytes = on_disk(&path).map_err(failed("look at", &path))?;
            match serde_json::from_slice(&text) {
                Ok(record) => records.push((record, disk_bytes)),
                Err(why) => {
                    tracing::error!("{} is no record ({why}): set aside as .corrupt", path.display());
                    let mut aside = path.clone().into_os_string();
                    aside.push(CORRUPT);
                    fs::rename(&path, aside).map_err(failed("rename", &path))?;
                }
            }
        }
        Ok(records)
    }

    /// Removes temporary files, and blobs and machine code that `needed` does not want; what stays of these. While a
    /// record is set aside it is not known what it needs, so its tenant's bytes stay.
    pub fn collect_garbage(
        &self,
        tenant: TenantId,
        needed: impl Fn(Hash) -> bool,
    ) -> Result<Vec<Kept>, StateError> {
        let folder = self.tenant(tenant);
        let mut found = Vec::new();
        for sub in ["functions", "modules", "grants", "blobs", "code"] {
            let folder = folder.join(sub);
            let files = list(&folder).map_err(failed("list", &folder))?;
            found.extend(files.into_iter().map(|(name, path)| (sub, name, path)));
        }
        let set_aside = found.iter().any(|(sub, name, _)| *sub != "grants" && name.ends_with(CORRUPT));
        let mut kept = Vec::new();
        for (sub, name, path) in found {
            let holds_bytes = matches!(sub, "blobs" | "code");
            let hash = name.get(..64).and_then(|hex| hex.parse().ok());
            let unneeded = holds_bytes && !hash.is_some_and(&needed);
            if name.ends_with(".tmp") || unneeded && !set_aside {
                let _ = fs::remove_file(path);
                continue;
            }
            let Some(hash) = hash.filter(|_| holds_bytes) else { continue };
            let metadata = fs::metadata(&path).map_err(failed("look at", &path))?;
            // Of machine code and what is known about it, the latter is the sign that both are there.
            let code =
                name[64..].strip_prefix('.').map(|rest| rest.strip_suffix(".json").unwrap_or(rest).into());
            kept.push(Kept { hash, code, bytes: metadata.len(), disk_bytes: disk_bytes_of(&metadata) });
        }
        Ok(kept)
    }
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

/// A file that stayed when garbage was collected.
#[derive(Debug)]
pub struct Kept {
    /// The blob that it is, or that it was made from.
    pub hash: Hash,
    /// For machine code, and for what is known about it: the fingerprint of the devices it is for.
    pub code: Option<Box<str>>,
    /// Its content.
    pub bytes: u64,
    /// What it takes on disk.
    pub disk_bytes: u64,
}

fn on_disk(path: &Path) -> std::io::Result<u64> {
    fs::metadata(path).map(|found| disk_bytes_of(&found))
}

fn with_json(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
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
    use super::*;

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
        assert_eq!(state.read_blob(TENANT, hash).unwrap(), b"abc");
        assert!(state.open_blob(TenantId::new(2), hash).is_err());
    }

    #[test]
    fn garbage_goes_unless_a_record_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let keep = put(&state, b"keep");
        let lose = put(&state, b"lose");
        let code = state
            .stage_code(TENANT, lose, "f", &b"code"[..], &CodeInfo { kernels: vec![], targets: vec![] })
            .unwrap();
        state.publish_code(TENANT, lose, "f", code).unwrap();
        state.put_module(TENANT, &module("good")).unwrap();
        let folder = dir.path().join("tenants/1/modules");
        fs::write(folder.join("bad.json"), "{").unwrap();
        fs::write(folder.join("good.json.3.tmp"), "half").unwrap();
        let records = state.records::<ModuleRecord>(TENANT, Kind::Module).unwrap();
        assert_eq!(records, [(module("good"), 4096)]);
        let kept = state.collect_garbage(TENANT, |hash| hash == keep).unwrap();
        assert_eq!(kept.len(), 4, "two blobs, machine code and what is known about it");
        assert!(!folder.join("good.json.3.tmp").exists());
        assert!(state.open_blob(TENANT, lose).is_ok(), "the record set aside may need it");
        fs::remove_file(folder.join("bad.json.corrupt")).unwrap();
        state.collect_garbage(TENANT, |hash| hash == keep).unwrap();
        assert!(state.open_blob(TENANT, keep).is_ok() && state.open_blob(TENANT, lose).is_err());
        assert!(state.open_code(TENANT, lose, "f").is_err());
    }

    #[test]
    fn a_start_that_broke_off_does_not_stand_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("VERSION.0.tmp"), "pap").unwrap();
        StateDir::open(dir.path()).unwrap();
        assert!(!dir.path().join("VERSION.0.tmp").exists());
    }
}
