//! A tenant's records as they are read, written and removed: one, or several that change together.
//!
//! ```text
//! one       its rename, or its removal, is the change
//! several   texts beside their places (*.tmp), synced   what cannot be written leaves everything as it was
//!           tenants/NAME/change.json                    from its rename on, the change is made
//!           renames and removals, in their order        what is left of them after a crash, or an error of the disk, is
//!           change.json goes                            done before the tenant's next change, and by the next start
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{StateError, failed};
use super::record_files::{self, CORRUPT, JSON, digest};
use super::records::{GrantRecord, Hash, Kind, Record};
use super::staged::{Staged, disk_bytes_of, sync};
use super::state_dir::{StateDir, TEMPORARY};
use crate::ids::TenantId;

/// What a tenant's change is to do, while it is on its way.
const CHANGE: &str = "change.json";

/// What was found of one kind of records.
#[derive(Debug)]
pub struct Records<T> {
    /// Records that fit, each with its room on disk.
    pub fit: Vec<(T, u64)>,
    /// A record that does not fit, now or earlier, set aside.
    pub corrupt: Option<PathBuf>,
}

/// A rename or a removal within a tenant's folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// The record's place.
    to: PathBuf,
    /// The text that comes to that place; none where a record is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<Text>,
}

/// A record's text before it is in its place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    from: PathBuf,
    sha256: Hash,
}

impl Step {
    fn make(&self, folder: &Path) -> io::Result<()> {
        let to = folder.join(&self.to);
        match &self.text {
            Some(text) => fs::rename(folder.join(&text.from), to),
            None => match fs::remove_file(to) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        }
    }

    /// True if the step is still to be made; none if that cannot be: its text is neither where it was nor where it should be.
    fn is_left(&self, folder: &Path) -> io::Result<Option<bool>> {
        let is_there = |path: PathBuf| match fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        let Some(Text { from, sha256 }) = &self.text else {
            return is_there(folder.join(&self.to)).map(Some);
        };
        if is_there(folder.join(from))? {
            return Ok(Some(true));
        }
        let is_made =
            is_there(folder.join(&self.to))? && digest(&fs::read(folder.join(&self.to))?) == *sha256;
        Ok(is_made.then_some(false))
    }
}

/// The content of [`CHANGE`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    steps: Vec<Step>,
}

/// Records of one tenant that are to change together. Nothing is changed unless all of it is.
#[derive(Debug)]
pub struct RecordChange<'s> {
    state: &'s StateDir,
    tenant: TenantId,
    steps: Vec<Step>,
    texts: Vec<Staged>,
}

impl RecordChange<'_> {
    /// Writes a record, which comes to its place with all of the change; what it takes on disk.
    pub fn put<T: Record>(&mut self, record: &T) -> Result<u64, StateError> {
        let folder = self.state.tenant(self.tenant);
        let to = place(T::KIND, record.name());
        let path = folder.join(&to);
        let text = record_files::encode(record).map_err(|e| failed("encode", &path)(e.into()))?;
        let staged = Staged::write(&path, &text[..], |_| {})?;
        let from = staged.path().and_then(|path| path.strip_prefix(&folder).ok());
        let from = from.ok_or_else(|| failed("stage", &path)(ErrorKind::NotFound.into()))?.to_owned();
        let disk_bytes = staged.disk_bytes;
        self.steps.push(Step { to, text: Some(Text { from, sha256: digest(&text) }) });
        self.texts.push(staged);
        Ok(disk_bytes)
    }

    /// A record goes.
    pub fn remove(&mut self, kind: Kind, name: &str) {
        self.steps.push(Step { to: place(kind, name), text: None });
    }

    /// Makes the change.
    pub fn commit(self) -> Result<(), StateError> {
        let Self { state, tenant, .. } = self;
        state.finish_change(tenant)?;
        if self.write_down()?
            && let Err(why) = state.finish_change(tenant)
        {
            let path = state.tenant(tenant).join(CHANGE);
            tracing::error!(
                "a tenant's change in {} is not finished; its next change does it, or the next start: {why}",
                path.display()
            );
        }
        Ok(())
    }

    /// Writes down what is to be done, from where on it is sure to be. True if it is still to be done.
    fn write_down(self) -> Result<bool, StateError> {
        let Self { state, tenant, steps, texts } = self;
        let folder = state.tenant(tenant);
        if steps.len() < 2 {
            state.make(&folder, &steps)?;
            texts.into_iter().for_each(Staged::keep);
            return Ok(false);
        }
        // Texts have their names for good before anything says that they are meant.
        sync_folders(&folder, &steps)?;
        let change = folder.join(CHANGE);
        let steps = Steps { steps };
        match state.write_json(&change, &steps) {
            Ok(_) => {
                texts.into_iter().for_each(Staged::keep);
                Ok(true)
            }
            // What makes room needs none.
            Err(StateError::Io { source, .. }) if texts.is_empty() && has_no_room(&source) => {
                state.make(&folder, &steps.steps)?;
                Ok(false)
            }
            Err(why) => {
                let gone = match state.keeper.change(move || fs::remove_file(change)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        // What says that they are meant is still there.
                        texts.into_iter().for_each(Staged::keep);
                        return Ok(true);
                    }
                    _ => sync(&folder),
                };
                if gone.is_err() {
                    // It may be there again after a crash.
                    texts.into_iter().for_each(Staged::keep);
                }
                Err(why)
            }
        }
    }
}

impl StateDir {
    /// Begins to change records of a tenant.
    pub fn change(&self, tenant: TenantId) -> RecordChange<'_> {
        RecordChange { state: self, tenant, steps: Vec::new(), texts: Vec::new() }
    }

    /// Stores one record; what it takes on disk.
    pub fn put<T: Record>(&self, tenant: TenantId, record: &T) -> Result<u64, StateError> {
        let mut change = self.change(tenant);
        let disk_bytes = change.put(record)?;
        change.commit()?;
        Ok(disk_bytes)
    }

    /// The same where fewer may call a function than the record on disk says. On a full disk the shorter text is written over the
    /// one that is there: a right can be taken away without any room. Half of it would be no record, and grant nothing.
    pub fn put_fewer_grants(&self, tenant: TenantId, record: &GrantRecord) -> Result<u64, StateError> {
        let full = match self.put(tenant, record) {
            Err(StateError::Io { source, .. }) if has_no_room(&source) => source,
            stored => return stored,
        };
        let path = self.tenant(tenant).join(place(Kind::Grant, &record.name));
        let mut text = record_files::encode(record).map_err(|e| failed("encode", &path)(e.into()))?;
        let to = path.clone();
        let written = self.keeper.change(move || {
            let file = File::options().write(true).open(to)?;
            let bytes = file.metadata()?.len() as usize;
            if bytes < text.len() {
                return Err(full);
            }
            text.resize(bytes, b' ');
            file.write_all_at(&text, 0)?;
            file.sync_all()?;
            file.metadata()
        });
        written.map(|found| disk_bytes_of(&found)).map_err(failed("write", &path))
    }

    /// Removes one record for good.
    pub fn remove_record(&self, tenant: TenantId, kind: Kind, name: &str) -> Result<(), StateError> {
        let mut change = self.change(tenant);
        change.remove(kind, name);
        change.commit()
    }

    /// Does what is left of a tenant's change. One that does not fit is set aside, and nothing of it is done.
    pub fn finish_change(&self, tenant: TenantId) -> Result<(), StateError> {
        let folder = self.tenant(tenant);
        let change = folder.join(CHANGE);
        let text = match fs::read(&change) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(());
            }
            text => record_files::on_medium(text).map_err(failed("read", &change))?,
        };
        let steps = match text.and_then(|text| record_files::decode::<Steps>(&text)) {
            Ok(Steps { steps }) => {
                left(&folder, steps).map_err(failed("look at what is left of", &change))?
            }
            Err(why) => Err(why),
        };
        match steps {
            Ok(left) => self.make(&folder, &left)?,
            Err(why) => {
                record_files::set_aside(&self.keeper, &change, &why);
                return Ok(());
            }
        }
        let gone = change.clone();
        self.keeper.change(move || fs::remove_file(gone)).map_err(failed("remove", &change))?;
        sync(&folder)
    }

    /// A change of the tenant's that does not fit, set aside now or earlier.
    pub fn damaged_change(&self, tenant: TenantId) -> Result<Option<PathBuf>, StateError> {
        let all = self.list(&self.tenant(tenant))?;
        let is_damaged = |name: &str| name.starts_with(CHANGE) && name.ends_with(CORRUPT);
        Ok(all.into_iter().find(|(name, _)| is_damaged(name)).map(|(_, path)| path))
    }

    fn make(&self, folder: &Path, steps: &[Step]) -> Result<(), StateError> {
        let (within, made) = (folder.to_owned(), steps.to_vec());
        let change = move || made.iter().try_for_each(|step| step.make(&within));
        self.keeper.change(change).map_err(failed("change records of", folder))?;
        sync_folders(folder, steps)
    }

    /// All records of one kind. What does not fit is set aside and logged: what is there for others must not be lost with it.
    /// An error of the machine fails the start.
    pub fn records<T: Record>(&self, tenant: TenantId) -> Result<Records<T>, StateError> {
        let mut records = Records { fit: Vec::new(), corrupt: None };
        for (name, path) in self.list(&self.tenant(tenant).join(T::KIND.folder()))? {
            if name.ends_with(CORRUPT) {
                records.corrupt = Some(path);
                continue;
            }
            // The start that wrote it did not finish it: it goes with the garbage.
            if name.ends_with(TEMPORARY) && path.is_file() {
                continue;
            }
            let read = match name.ends_with(JSON) {
                true => record_files::read(&path).map_err(failed("read", &path))?,
                false => Err("it is no record".to_owned()),
            };
            match read {
                Ok((record, found)) => records.fit.push((record, disk_bytes_of(&found))),
                Err(why) => {
                    record_files::set_aside(&self.keeper, &path, &why);
                    records.corrupt = Some(path);
                }
            }
        }
        Ok(records)
    }

    /// Gives a record a name that nothing looks for, and says why in the log.
    pub fn set_aside(&self, tenant: TenantId, kind: Kind, name: &str, why: &str) {
        record_files::set_aside(&self.keeper, &self.tenant(tenant).join(place(kind, name)), why);
    }
}

/// The steps that are still to be made, or why that cannot be known. An error of the machine says nothing about the steps.
fn left(folder: &Path, steps: Vec<Step>) -> io::Result<Result<Vec<Step>, String>> {
    let mut left = Vec::new();
    for step in steps {
        match record_files::on_medium(step.is_left(folder))? {
            Ok(Some(is_left)) => left.extend(is_left.then_some(step)),
            Ok(None) => return Ok(Err(format!("the text of {} is gone", step.to.display()))),
            Err(why) => return Ok(Err(format!("{}: {why}", step.to.display()))),
        }
    }
    Ok(Ok(left))
}

/// Where a record lies in a tenant's folder.
fn place(kind: Kind, name: &str) -> PathBuf {
    Path::new(kind.folder()).join(format!("{name}{JSON}"))
}

fn sync_folders(folder: &Path, steps: &[Step]) -> Result<(), StateError> {
    let folders: BTreeSet<&Path> = steps.iter().filter_map(|step| step.to.parent()).collect();
    folders.into_iter().try_for_each(|within| sync(&folder.join(within)))
}

/// True if a disk, or what its user may have of it, is full.
fn has_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::records::AliasRecord;

    const TENANT: TenantId = TenantId::new(1);

    fn grant(name: &str, caller: &str) -> GrantRecord {
        GrantRecord { name: name.into(), callers: vec![caller.into()] }
    }

    /// Who was granted `f` and `g`, and whether `g` has aliases.
    fn found(state: &StateDir) -> (Vec<String>, bool) {
        let grants = state.records::<GrantRecord>(TENANT).unwrap().fit;
        let mut callers: Vec<String> =
            grants.into_iter().map(|(record, _)| format!("{} {}", record.name, record.callers[0])).collect();
        callers.sort_unstable();
        (callers, !state.records::<AliasRecord>(TENANT).unwrap().fit.is_empty())
    }

    fn files(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }

    fn before(root: &Path) -> StateDir {
        let state = StateDir::open(root).unwrap();
        state.put(TENANT, &grant("f", "old")).unwrap();
        state.put(TENANT, &grant("g", "old")).unwrap();
        state.put(TENANT, &AliasRecord { name: "g".into(), aliases: Default::default() }).unwrap();
        state
    }

    fn change(state: &StateDir) -> RecordChange<'_> {
        let mut change = state.change(TENANT);
        change.put(&grant("f", "new")).unwrap();
        change.put(&grant("g", "new")).unwrap();
        change.remove(Kind::Alias, "g");
        change
    }

    #[test]
    fn a_change_that_is_killed_anywhere_is_made_or_not() {
        let old = (vec!["f old".to_owned(), "g old".to_owned()], true);
        let new = (vec!["f new".to_owned(), "g new".to_owned()], false);
        for made in 0..=3 {
            let dir = tempfile::tempdir().unwrap();
            let state = before(dir.path());
            let there = files(dir.path());
            let written = change(&state);
            let steps = written.steps.clone();
            assert_eq!(found(&state), old);
            assert!(written.write_down().unwrap());
            let folder = state.tenant(TENANT);
            steps[..made].iter().for_each(|step| step.make(&folder).unwrap());
            // The control: what is there now is neither.
            assert!(made == 0 || made == 3 || (found(&state) != old && found(&state) != new));
            drop(state);
            let state = StateDir::open(dir.path()).unwrap();
            state.finish_change(TENANT).unwrap();
            assert_eq!((found(&state), files(dir.path())), (new.clone(), there - 1), "{made} were made");
        }
        // Before it was written down.
        let dir = tempfile::tempdir().unwrap();
        let state = before(dir.path());
        let there = files(dir.path());
        change(&state).texts.into_iter().for_each(Staged::keep);
        state.finish_change(TENANT).unwrap();
        state.stored(TENANT, true).unwrap();
        assert_eq!((found(&state), files(dir.path())), (old.clone(), there));
        // Likewise where one of its texts cannot be written.
        let aliases = state.tenant(TENANT).join("aliases");
        fs::remove_dir_all(&aliases).unwrap();
        fs::write(&aliases, "no folder").unwrap();
        let mut change = state.change(TENANT);
        change.put(&grant("f", "new")).unwrap();
        change.put(&AliasRecord { name: "f".into(), aliases: Default::default() }).unwrap_err();
        drop(change);
        assert_eq!((found(&state).0, files(dir.path())), (old.0, there));
    }

    #[test]
    fn what_is_left_of_a_change_comes_before_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let state = before(dir.path());
        // A place that no rename can take, as if the disk failed.
        let place = state.tenant(TENANT).join("grants/g.json");
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        change(&state).commit().unwrap();
        let refused = state.put(TENANT, &grant("f", "newest")).unwrap_err();
        assert!(refused.to_string().starts_with("cannot change records of "), "{refused}");
        fs::remove_dir(&place).unwrap();
        state.put(TENANT, &grant("f", "newest")).unwrap();
        assert_eq!(found(&state).0, ["f newest", "g new"]);
        // Steps that are no steps are set aside, and the texts that they may mean stay.
        let text = state.tenant(TENANT).join(CHANGE);
        assert!(change(&state).write_down().unwrap());
        let there = files(dir.path());
        fs::write(&text, "{").unwrap();
        state.put(TENANT, &grant("f", "last")).unwrap();
        assert!(!text.exists() && found(&state).0 == ["f last", "g new"]);
        let damaged = state.damaged_change(TENANT).unwrap();
        state.stored(TENANT, damaged.is_none()).unwrap();
        assert_eq!(files(dir.path()), there);
        // Likewise one whose texts are gone, as in a copy of the folder without them: nothing of it is done.
        fs::remove_file(damaged.unwrap()).unwrap();
        state.put(TENANT, &AliasRecord { name: "g".into(), aliases: Default::default() }).unwrap();
        state.stored(TENANT, true).unwrap();
        assert!(change(&state).write_down().unwrap());
        state.stored(TENANT, true).unwrap();
        state.finish_change(TENANT).unwrap();
        assert!(state.damaged_change(TENANT).unwrap().is_some());
        assert_eq!(found(&state), (vec!["f last".to_owned(), "g new".to_owned()], true));
    }
}
