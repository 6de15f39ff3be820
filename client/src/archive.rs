//! Packages in one file: a `.pappus` file is a zip archive whose members are stored as they are, unpacked here into a folder
//! that vanishes again. Archives come from strangers: every member is checked before the first byte is written, and what is
//! written is never more than the archive has.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};
use tempfile::TempDir;

use crate::error::{Error, Result};

/// The configuration of a package.
pub const CONFIG: &str = "function.json";

/// What packages are called.
const EXTENSION: &str = "pappus";
/// Members of an archive.
const MAX_MEMBERS: usize = 8192;
/// Bytes of a member's name.
const MAX_NAME_BYTES: usize = 1024;

/// A package's files, for as long as this lives.
#[derive(Debug)]
pub struct Unpacked {
    folder: PathBuf,
    _until_dropped: TempDir,
}

impl Unpacked {
    /// Where its configuration is.
    pub fn config(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }
}

/// Whether a file is meant to be a package.
pub fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// A file of the archive.
struct Member {
    name: String,
    found: ZipArchiveEntryWayfinder,
}

/// Unpacks a package.
pub fn unpack(path: &Path) -> Result<Unpacked> {
    let file = File::open(path).map_err(Error::file(path))?;
    let bytes = file.metadata().map_err(Error::file(path))?.len();
    let unreadable = |why: rawzip::Error| Error::content(path, format!("it is no package: {why}"));
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(unreadable)?;
    let members = members(path, &archive, &mut buffer, bytes)?;
    if !members.iter().any(|member| member.name == CONFIG) {
        return Err(Error::content(path, format!("it is no package: there is no {CONFIG} in it")));
    }

    let until_dropped = tempfile::Builder::new().prefix("pappus-").tempdir();
    let until_dropped = until_dropped.map_err(Error::io("making a folder to unpack a package"))?;
    // Errors name files in it, which should read as parts of the package.
    let folder = until_dropped.path().join(path.file_name().unwrap_or(EXTENSION.as_ref()));
    for member in members {
        let target = folder.join(&member.name);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(Error::file(parent))?;
        }
        let mut out = File::create_new(&target).map_err(Error::file(&target))?;
        let entry = archive.get_entry(member.found).map_err(unreadable)?;
        // Bytes that are not those of the checksum are an error, too.
        std::io::copy(&mut entry.verifying_reader(entry.reader()), &mut out)
            .map_err(|why| Error::content(path, format!("{:?} cannot be unpacked: {why}", member.name)))?;
    }
    Ok(Unpacked { folder, _until_dropped: until_dropped })
}

/// All files of an archive, once each of them may be unpacked.
fn members(
    path: &Path,
    archive: &ZipArchive<rawzip::FileReader>,
    buffer: &mut [u8],
    bytes: u64,
) -> Result<Vec<Member>> {
    let refused = |why: String| Error::content(path, why);
    let mut members = Vec::new();
    let mut names = HashSet::new();
    let mut unpacked = 0u64;
    let mut entries = archive.entries(buffer);
    while let Some(entry) = entries.next_entry().map_err(|why| refused(format!("it is no package: {why}")))? {
        let name = entry.file_path();
        let name = member_name(name.as_bytes()).map_err(refused)?;
        if entry.mode().is_symlink() {
            return Err(refused(format!("{name:?} is a link, expected plain files")));
        }
        if entry.is_dir() {
            continue;
        }
        if entry.flags().is_encrypted() {
            return Err(refused(format!("{name:?} is encrypted")));
        }
        let size = entry.uncompressed_size_hint();
        if entry.compression_method() != CompressionMethod::STORE || entry.compressed_size_hint() != size {
            return Err(refused(format!("{name:?} is compressed: packages hold files as they are (zip -0)")));
        }
        // Members that overlap would be more together than the archive has.
        unpacked = unpacked.saturating_add(size);
        if unpacked > bytes {
            return Err(refused(
                "its files are larger than itself: members overlap, or it was cut off".into(),
            ));
        }
        if members.len() == MAX_MEMBERS {
            return Err(refused(format!("it has more than {MAX_MEMBERS} files")));
        }
        if !names.insert(name.clone()) {
            return Err(refused(format!("{name:?} is in it twice")));
        }
        members.push(Member { found: entry.wayfinder(), name });
    }
    Ok(members)
}

/// A name that stays inside the folder it is unpacked to.
fn member_name(name: &[u8]) -> std::result::Result<String, String> {
    let shown = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]);
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']);
    match std::str::from_utf8(name) {
        _ if name.len() > MAX_NAME_BYTES => Err(format!("a name of {} bytes: {shown:?}…", name.len())),
        Ok(name)
            if name.strip_suffix('/').unwrap_or(name).split('/').all(plain)
                && !name.contains(char::is_control) =>
        {
            Ok(name.to_owned())
        }
        _ => {
            Err(format!("{shown:?} is no name for a file of a package, expected one such as weights/w0.npy"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// An archive as every program writes it.
    fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut archive = rawzip::ZipArchiveWriter::new(&mut out);
        for (name, content) in members {
            let path = rawzip::path::EntryPath::verbatim(name.as_bytes().to_vec());
            let (mut entry, config) = archive.new_file(path).start().unwrap();
            let mut writer = config.wrap(&mut entry);
            writer.write_all(content).unwrap();
            let (_, descriptor) = writer.finish().unwrap();
            entry.finish(descriptor).unwrap();
        }
        archive.finish().unwrap();
        out
    }

    fn unpacked(content: &[u8]) -> Result<Unpacked> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.pappus");
        std::fs::write(&path, content).unwrap();
        unpack(&path)
    }

    fn refusal(content: &[u8]) -> String {
        unpacked(content).unwrap_err().to_string()
    }

    /// Where a signature of the format stands first.
    fn find(content: &[u8], signature: &[u8; 4]) -> usize {
        content.windows(4).position(|window| window == signature).unwrap()
    }

    const CENTRAL: &[u8; 4] = b"PK\x01\x02";

    #[test]
    fn files_are_unpacked_and_vanish_with_it() {
        let found = unpacked(&zip(&[("function.json", b"{}"), ("weights/a.npy", b"12")])).unwrap();
        assert_eq!(std::fs::read(found.config()).unwrap(), b"{}");
        let weights = found.config().with_file_name("weights");
        assert_eq!(std::fs::read(weights.join("a.npy")).unwrap(), b"12");
        assert!(found.config().to_string_lossy().ends_with("f.pappus/function.json"));
        let config = found.config();
        drop(found);
        assert!(!config.exists());
    }

    #[test]
    fn what_is_no_package_is_told() {
        let cases: [&[u8]; 4] = [b"", b"PK", b"{\"modules\": []}", &[0; 4096]];
        for content in cases {
            assert!(refusal(content).contains("it is no package"), "{}", refusal(content));
        }
        assert!(refusal(&zip(&[("f.json", b"{}")])).contains("no function.json in it"));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let names = [
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a\\b",
            "c:x",
            "a\nb",
            "a\0b",
            "",
            "/",
            "a/.",
        ];
        for name in names {
            let content = zip(&[("function.json", b"{}"), (name, b"x")]);
            assert!(refusal(&content).contains("is no name for a file"), "{name:?}: {}", refusal(&content));
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        assert!(refusal(&zip(&[(&long, b"")])).contains("a name of 1025 bytes"));
        assert!(member_name(b"\xff").is_err());
    }

    #[test]
    fn a_name_that_comes_twice_is_refused() {
        assert!(refusal(&zip(&[("function.json", b"{}"), ("function.json", b"[]")])).contains("twice"));
        // A file where another one needs a folder.
        assert!(unpacked(&zip(&[("function.json", b"{}"), ("a", b""), ("a/b", b"")])).is_err());
    }

    #[test]
    fn links_are_refused() {
        let mut content = zip(&[("function.json", b"{}"), ("link", b"/etc/passwd")]);
        let last = content.windows(4).rposition(|window| window == CENTRAL).unwrap();
        // Made by Unix, mode of a symbolic link.
        content[last + 5] = 3;
        content[last + 38..last + 42].copy_from_slice(&(0o120_777u32 << 16).to_le_bytes());
        assert!(refusal(&content).contains("is a link"), "{}", refusal(&content));
    }

    #[test]
    fn compressed_members_are_refused() {
        let mut content = zip(&[("function.json", b"{}")]);
        let central = find(&content, CENTRAL);
        content[central + 10] = 8;
        assert!(refusal(&content).contains("is compressed"), "{}", refusal(&content));
        // Stored, but of another size when unpacked.
        let mut content = zip(&[("function.json", b"{}")]);
        content[central + 24] = 9;
        assert!(refusal(&content).contains("is compressed"), "{}", refusal(&content));
    }

    #[test]
    fn members_that_overlap_are_refused() {
        let big = vec![7; 4096];
        let names: Vec<String> = (0..8).map(|n| format!("w{n}")).collect();
        let mut members: Vec<(&str, &[u8])> = vec![("function.json", b"{}"), ("big", &big)];
        members.extend(names.iter().map(|name| (name.as_str(), &b""[..])));
        let mut content = zip(&members);
        // Each empty member claims the bytes of the big one.
        let at: Vec<usize> =
            content.windows(4).enumerate().filter(|(_, w)| w == CENTRAL).map(|(at, _)| at).collect();
        let claimed = content[at[1] + 20..at[1] + 28].to_vec();
        let offset = content[at[1] + 42..at[1] + 46].to_vec();
        for entry in &at[2..] {
            content[entry + 20..entry + 28].copy_from_slice(&claimed);
            content[entry + 42..entry + 46].copy_from_slice(&offset);
        }
        assert!(refusal(&content).contains("larger than itself"), "{}", refusal(&content));
    }

    #[test]
    fn bytes_that_changed_are_noticed() {
        let mut content = zip(&[("function.json", b"{}"), ("w", b"weights")]);
        let at = content.windows(7).position(|window| window == b"weights").unwrap();
        content[at] ^= 1;
        assert!(refusal(&content).contains("\"w\" cannot be unpacked"), "{}", refusal(&content));
    }

    proptest::proptest! {
        /// Whatever is in a file: it is a package or refused, and nothing else happens.
        #[test]
        fn any_change_is_refused_or_harmless(at in 0usize..400, to in 0u8.., cut in 0usize..400) {
            let mut content = zip(&[("function.json", b"{}"), ("weights/w.npy", b"0123456789")]);
            let at = at % content.len();
            content[at] = to;
            content.truncate(content.len() - cut.min(content.len()));
            if let Ok(found) = unpacked(&content) {
                proptest::prop_assert!(found.config().is_file());
            }
        }
    }
}
