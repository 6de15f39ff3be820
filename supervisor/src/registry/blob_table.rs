//! Which blobs a tenant has, how often each is needed, and what they take. Pure bookkeeping.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::store::StagedCode;
use crate::store::records::{FunctionRecord, Hash, ModuleRecord, Variant};

/// The blobs of one tenant.
#[derive(Debug, Default)]
pub(super) struct BlobTable {
    blobs: HashMap<Hash, Blob>,
    /// Room on disk of all blobs, with their machine code.
    on_disk: OnDisk,
    /// Bytes of blobs that are modules.
    module_bytes: u64,
}

/// What files take on disk.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct OnDisk {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

#[derive(Debug, Default)]
struct Blob {
    /// How many records and connections need it.
    needed: u32,
    /// Of these, as a module.
    as_module: u32,
    bytes: u64,
    disk_bytes: u64,
    code: Vec<Code>,
}

/// Machine code that was made from a module.
#[derive(Debug)]
struct Code {
    fingerprint: Box<str>,
    on_disk: OnDisk,
}

/// A blob that is needed no more: what has to go from the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unneeded {
    pub(super) hash: Hash,
    /// Fingerprints of devices that it has machine code for.
    pub(super) code: Vec<Box<str>>,
}

impl BlobTable {
    /// How large a blob is, if the tenant has it.
    pub(super) fn bytes_of(&self, hash: Hash) -> Option<u64> {
        self.blobs.get(&hash).map(|blob| blob.bytes)
    }

    pub(super) fn has(&self, hash: Hash) -> bool {
        self.blobs.contains_key(&hash)
    }

    /// A needed blob that is not among `there`.
    pub(super) fn first_missing_from(&self, there: &HashSet<Hash>) -> Option<Hash> {
        self.blobs.keys().find(|hash| !there.contains(hash)).copied()
    }

    pub(super) fn on_disk(&self) -> OnDisk {
        self.on_disk
    }

    /// Bytes of its modules.
    pub(super) fn module_bytes(&self) -> u64 {
        self.module_bytes
    }

    /// Bytes that modules with these contents would add.
    pub(super) fn new_module_bytes<'v>(&self, modules: impl Iterator<Item = &'v Variant>) -> u64 {
        let mut seen = BTreeSet::new();
        let is_new = |hash: &Hash| self.blobs.get(hash).is_none_or(|blob| blob.as_module == 0);
        let new = modules.filter(|variant| is_new(&variant.sha256) && seen.insert(variant.sha256));
        new.map(|variant| variant.bytes).sum()
    }

    /// Bytes of modules that stay where functions give way to others, each `(old, new)`, and those that come.
    pub(super) fn replaced_module_bytes<'r>(
        &self,
        gone: impl Iterator<Item = &'r FunctionRecord>,
        come: impl Iterator<Item = &'r FunctionRecord> + Clone,
    ) -> (u64, u64) {
        let old = gone.flat_map(FunctionRecord::variants);
        let new = || come.clone().flat_map(FunctionRecord::variants);
        let mut uses: BTreeMap<Hash, u32> = BTreeMap::new();
        old.for_each(|variant| *uses.entry(variant.sha256).or_default() += 1);
        new().for_each(|variant| {
            uses.remove(&variant.sha256);
        });
        let freed = uses.iter().filter_map(|(hash, uses)| {
            self.blobs.get(hash).filter(|blob| blob.as_module <= *uses).map(|blob| blob.bytes)
        });
        (self.module_bytes - freed.sum::<u64>(), self.new_module_bytes(new()))
    }

    /// A record or a connection needs a blob.
    pub(super) fn need(&mut self, hash: Hash) {
        self.blobs.entry(hash).or_default().needed += 1;
    }

    /// The file of a blob that is needed.
    pub(super) fn measured(&mut self, hash: Hash, bytes: u64, disk_bytes: u64) {
        let Some(blob) = self.blobs.get_mut(&hash) else { return };
        self.on_disk.bytes = self.on_disk.bytes - blob.disk_bytes + disk_bytes;
        self.on_disk.files += u64::from(blob.disk_bytes == 0);
        if blob.as_module > 0 {
            self.module_bytes = self.module_bytes - blob.bytes + bytes;
        }
        (blob.bytes, blob.disk_bytes) = (bytes, disk_bytes);
    }

    /// A file of machine code that was made from a blob; more than one with the same fingerprint belong together.
    pub(super) fn add_code(&mut self, hash: Hash, fingerprint: &str, disk_bytes: u64, files: u64) {
        let Some(blob) = self.blobs.get_mut(&hash) else { return };
        let known = blob.code.iter_mut().find(|code| *code.fingerprint == *fingerprint);
        match known {
            Some(code) => {
                code.on_disk.bytes += disk_bytes;
                code.on_disk.files += files;
            }
            None => {
                let on_disk = OnDisk { bytes: disk_bytes, files };
                blob.code.push(Code { fingerprint: fingerprint.into(), on_disk });
            }
        }
        self.on_disk.bytes += disk_bytes;
        self.on_disk.files += files;
    }

    /// Machine code takes the place of what was made before for the same devices, and of that whose fingerprint is none that devices
    /// take (`is_loaded`). Returns the fingerprints of the latter.
    pub(super) fn replace_code(
        &mut self,
        hash: Hash,
        fingerprint: &str,
        disk_bytes: u64,
        is_loaded: impl Fn(&str) -> bool,
    ) -> Vec<Box<str>> {
        let mut outdated = Vec::new();
        if let Some(blob) = self.blobs.get_mut(&hash) {
            let goes = |code: &mut Code| *code.fingerprint == *fingerprint || !is_loaded(&code.fingerprint);
            for Code { fingerprint: gone, on_disk } in blob.code.extract_if(.., goes) {
                self.on_disk.bytes -= on_disk.bytes;
                self.on_disk.files -= on_disk.files;
                outdated.extend(Some(gone).filter(|gone| **gone != *fingerprint));
            }
        }
        self.add_code(hash, fingerprint, disk_bytes, StagedCode::FILES);
        outdated
    }

    fn need_module(&mut self, variant: &Variant) {
        self.need(variant.sha256);
        if let Some(blob) = self.blobs.get_mut(&variant.sha256) {
            blob.as_module += 1;
            if blob.as_module == 1 {
                self.module_bytes += blob.bytes;
            }
        }
    }

    /// A record or a connection needs a blob no longer; the blob, if nothing does.
    #[must_use]
    pub(super) fn release(&mut self, hash: Hash) -> Option<Unneeded> {
        let blob = self.blobs.get_mut(&hash)?;
        blob.needed -= 1;
        if blob.needed > 0 {
            return None;
        }
        let blob = self.blobs.remove(&hash)?;
        let code = blob.code.iter().map(|code| code.on_disk);
        let own = OnDisk { bytes: blob.disk_bytes, files: u64::from(blob.disk_bytes > 0) };
        for gone in code.chain([own]) {
            self.on_disk.bytes -= gone.bytes;
            self.on_disk.files -= gone.files;
        }
        Some(Unneeded { hash, code: blob.code.into_iter().map(|code| code.fingerprint).collect() })
    }

    fn release_module(&mut self, hash: Hash) -> Option<Unneeded> {
        if let Some(blob) = self.blobs.get_mut(&hash) {
            blob.as_module -= 1;
            if blob.as_module == 0 {
                self.module_bytes -= blob.bytes;
            }
        }
        self.release(hash)
    }

    /// A function needs its blobs.
    pub(super) fn need_function(&mut self, record: &FunctionRecord) {
        record.texts().for_each(|hash| self.need(hash));
        record.variants().for_each(|variant| self.need_module(variant));
        record.weights.iter().for_each(|weight| self.need(weight.sha256));
    }

    /// Releases a function's blobs; returns those that nothing needs any more.
    #[must_use]
    pub(super) fn release_function(&mut self, record: &FunctionRecord) -> Vec<Unneeded> {
        let mut unneeded: Vec<_> =
            record.variants().filter_map(|variant| self.release_module(variant.sha256)).collect();
        let others = record.texts().chain(record.weights.iter().map(|w| w.sha256));
        unneeded.extend(others.filter_map(|hash| self.release(hash)));
        unneeded
    }

    /// A module needs its blobs.
    pub(super) fn need_variants(&mut self, record: &ModuleRecord) {
        record.variants.iter().for_each(|variant| self.need_module(variant));
    }

    /// Releases a module's blobs; returns those that nothing needs any more.
    #[must_use]
    pub(super) fn release_variants(&mut self, record: &ModuleRecord) -> Vec<Unneeded> {
        record.variants.iter().filter_map(|variant| self.release_module(variant.sha256)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::records::{FunctionModule, Weight};

    fn hash(n: u8) -> Hash {
        Hash([n; 32])
    }

    fn variant(n: u8, bytes: u64) -> Variant {
        Variant { format: "wasm".into(), arch: "".into(), sha256: hash(n), bytes }
    }

    fn function(name: &str, variants: Vec<Variant>) -> FunctionRecord {
        FunctionRecord {
            name: name.into(),
            config: hash(9),
            modules: Box::new([FunctionModule { name: "m".into(), variants: variants.into() }]),
            weights: Box::new([Weight { name: "w".into(), sha256: hash(8), bytes: 100 }]),
            inputs: Box::default(),
            outputs: Box::default(),
            input_types: Box::default(),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        }
    }

    /// A table with blobs that one connection needs, each a block on disk.
    fn handed(blobs: &[(u8, u64)]) -> BlobTable {
        let mut table = BlobTable::default();
        for (n, bytes) in blobs {
            table.need(hash(*n));
            table.measured(hash(*n), *bytes, 4096);
        }
        table
    }

    fn names(unneeded: impl IntoIterator<Item = Unneeded>) -> Vec<Hash> {
        let mut names: Vec<_> = unneeded.into_iter().map(|blob| blob.hash).collect();
        names.sort();
        names
    }

    #[test]
    fn bytes_count_once_however_many_need_them() {
        let blobs = [(1, 10), (2, 20), (8, 100), (9, 1000)];
        let mut mine = handed(&blobs);
        let first = function("a", vec![variant(1, 10), variant(2, 20)]);
        let second = function("b", vec![variant(1, 10)]);
        let module = ModuleRecord { name: "m".into(), variants: vec![variant(1, 10)] };
        let all = [variant(1, 10), variant(2, 20), variant(1, 10)];
        assert_eq!(mine.new_module_bytes(all.iter()), 30);
        mine.need_function(&first);
        mine.need_function(&second);
        mine.need_variants(&module);
        assert_eq!(mine.new_module_bytes(all.iter()), 0);
        // The connection ends.
        assert!(blobs.iter().all(|(n, _)| mine.release(hash(*n)).is_none()));
        let on_disk = |mine: &BlobTable| (mine.on_disk().bytes / 4096, mine.on_disk().files);
        assert_eq!((mine.module_bytes(), on_disk(&mine)), (30, (4, 4)));
        assert_eq!(names(mine.release_function(&first)), [hash(2)]);
        assert_eq!((mine.module_bytes(), on_disk(&mine)), (10, (3, 3)));
        assert_eq!(names(mine.release_function(&second)), [hash(8), hash(9)]);
        assert_eq!(names(mine.release_variants(&module)), [hash(1)]);
        assert_eq!((mine.module_bytes(), on_disk(&mine)), (0, (0, 0)));
    }

    #[test]
    fn machine_code_counts_with_its_module_and_goes_with_it() {
        let mut mine = handed(&[(1, 10)]);
        let all = |_: &str| true;
        mine.replace_code(hash(1), "sm_90", 8192, all);
        mine.replace_code(hash(1), "cpu", 8192, all);
        // Made again, and smaller.
        assert!(mine.replace_code(hash(1), "cpu", 4096, all).is_empty());
        assert_eq!(mine.on_disk(), OnDisk { bytes: 4096 + 8192 + 4096, files: 5 });
        // By another build, for devices of which one is here.
        let outdated = mine.replace_code(hash(1), "cpu-2", 4096, |of| of == "sm_90");
        assert_eq!((outdated, mine.on_disk().bytes), (vec!["cpu".into()], 4096 + 8192 + 4096));
        let gone = mine.release(hash(1)).unwrap();
        assert_eq!(gone.code, ["sm_90".into(), "cpu-2".into()]);
        assert_eq!(mine.on_disk(), OnDisk::default());
        // Made for a module that is gone: counted for nothing.
        mine.replace_code(hash(1), "cpu", 4096, all);
        assert_eq!(mine.on_disk(), OnDisk::default());
    }

    #[test]
    fn a_replacement_counts_for_what_is_there_afterwards() {
        let mut mine = handed(&[(1, 10), (2, 20), (3, 40), (8, 100), (9, 1000)]);
        let old = function("a", vec![variant(1, 10), variant(2, 20)]);
        mine.need_function(&old);
        // 2 stays, 1 goes, 3 comes.
        let new = function("a", vec![variant(2, 20), variant(3, 40)]);
        assert_eq!(mine.replaced_module_bytes([&old].into_iter(), [&new].into_iter()), (20, 40));
        // A composition runs it, and gives way with it.
        let whole = function("whole", vec![variant(1, 10), variant(2, 20)]);
        mine.need_function(&whole);
        assert_eq!(mine.replaced_module_bytes([&old].into_iter(), [&new].into_iter()), (30, 40));
        let again = function("whole", vec![variant(2, 20), variant(3, 40)]);
        assert_eq!(
            mine.replaced_module_bytes([&old, &whole].into_iter(), [&new, &again].into_iter()),
            (20, 40)
        );
        assert_eq!(names(mine.release_function(&whole)), []);
        // Another one needs 1, too.
        mine.need_variants(&ModuleRecord { name: "m".into(), variants: vec![variant(1, 10)] });
        assert_eq!(mine.replaced_module_bytes([&old].into_iter(), [&new].into_iter()), (30, 40));
        mine.need_function(&new);
        assert_eq!(names(mine.release_function(&old)), [], "connections and the module need them");
        assert_eq!(mine.module_bytes(), 70);
    }
}
