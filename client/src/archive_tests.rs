//! Packages: those of `tests/packages`, which Python judges likewise, and changed ones.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::functions::Package;

/// Packages that both clients must judge alike, and how.
fn cases() -> (PathBuf, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/packages");
    let cases = std::fs::read(folder.join("cases.json")).unwrap();
    (folder, serde_json::from_slice(&cases).unwrap())
}

fn judge(path: &Path) -> Option<String> {
    Package::read(path, &[]).err().map(|why| why.to_string())
}

#[test]
fn every_package_is_judged_as_by_python() {
    let (folder, cases) = cases();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 60);
    for case in cases {
        let file = case["file"].as_str().unwrap();
        let why = judge(&folder.join(file));
        let Some(refused) = case["refused"].as_str() else {
            assert_eq!(why, None, "{file}");
            continue;
        };
        let why = why.expect(file);
        let member = format!("{:?}", case["member"].as_str().unwrap_or_default());
        assert!(why.contains(refused) && why.contains(member.trim_matches('"')), "{file}: {why}");
    }
}

#[test]
fn every_changed_byte_is_judged_as_by_python() {
    let (folder, cases) = cases();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.pappus");
    let masks: Vec<u8> = serde_json::from_value(cases["masks"].clone()).unwrap();
    let flips = cases["flips"].as_object().unwrap();
    assert_eq!(flips.len(), 2);
    for (file, expected) in flips {
        let content = std::fs::read(folder.join(file)).unwrap();
        for (mask, expected) in masks.iter().zip(expected.as_array().unwrap()) {
            let letter = |at: usize| {
                let mut changed = content.clone();
                changed[at] ^= mask;
                std::fs::write(&path, changed).unwrap();
                if judge(&path).is_none() { 't' } else { 'r' }
            };
            let letters: String = (0..content.len()).map(letter).collect();
            assert_eq!(letters, expected.as_str().unwrap(), "{file}, each byte changed by {mask:#x}");
        }
    }
}

#[test]
fn files_are_read_where_they_lie() {
    let (folder, _) = cases();
    let archive = Archive::open(&folder.join("wide.pappus")).unwrap();
    let names: Vec<_> = archive.names().collect();
    assert_eq!(names, ["function.json", "lib/m.wasm", "weights/w.npy"]);
    let module = archive.find("lib/m.wasm").unwrap();
    assert_eq!(module.read(8, "a module").unwrap(), b"\0asm\x01\0\0\0");
    assert!(module.path().ends_with("tests/packages/wide.pappus/lib/m.wasm"));
    assert!(archive.find("lib").is_none() && archive.find("../packages/cases.json").is_none());
}

#[test]
fn a_package_is_read_like_the_folder_that_it_was_made_of() {
    let (folder, _) = cases();
    let archive = Archive::open(&folder.join("good.pappus")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in archive.names() {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, archive.find(name).unwrap().read(4096, "a file").unwrap()).unwrap();
    }
    for path in [dir.path(), &folder.join("good.pappus")] {
        let package = Package::read(path, &[]).unwrap();
        assert_eq!(package.modules()[0].files[0].format.name(), "wasm", "{}", path.display());
        assert_eq!(package.weights()[0].data.unwrap().bytes, 8, "{}", path.display());
    }
    let absent = judge(&folder.join("absent.pappus")).unwrap();
    assert!(absent.contains("No such file"), "{absent}");
}

#[test]
fn a_configuration_outside_of_packages_may_name_any_file() {
    let (folder, _) = cases();
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret.bin");
    std::fs::write(&secret, b"12345").unwrap();
    let config = Archive::open(&folder.join("good.pappus")).unwrap().find(CONFIG).unwrap();
    let config = String::from_utf8(config.read(4096, "a configuration").unwrap()).unwrap();
    let named = config.replace("weights/w.npy", secret.to_str().unwrap());
    assert_ne!(config, named);
    // The control of packages that name files of the machine: without the rule for packages they would be read so.
    let path = dir.path().join("function.json");
    std::fs::write(&path, named).unwrap();
    assert_eq!(Package::read(&path, &[]).unwrap().weights()[0].data.unwrap().bytes, 5);
}

proptest::proptest! {
    /// Whatever is in a file: it is a package or refused, and nothing else happens.
    #[test]
    fn any_change_is_refused_or_harmless(at in 0usize..1000, to in 0u8.., cut in 0usize..1000) {
        let (folder, _) = cases();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.pappus");
        let mut content = std::fs::read(folder.join("good.pappus")).unwrap();
        let at = at % content.len();
        content[at] = to;
        content.truncate(content.len() - cut.min(content.len()));
        std::fs::write(&path, content).unwrap();
        if let Ok(found) = Archive::open(&path) {
            proptest::prop_assert!(found.find(CONFIG).is_some());
        }
    }
}
