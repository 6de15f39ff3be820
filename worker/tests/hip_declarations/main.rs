//! What `device/hip/sys.rs` declares of `libamdhip64.so.7` is what its headers do: compared with the bindings of every
//! release that the crate cubecl-hip-sys has, and with Debian's own headers where they are installed. Nothing is called.

#![allow(clippy::unwrap_used, reason = "a test")]

mod source;
#[path = "../../src/device/hip/sys.rs"]
#[allow(dead_code, unreachable_pub, reason = "its layout is all that is used")]
mod sys;

// Its sources are read; the crate itself looks for libraries, which is not wanted here.
use cubecl_hip_sys as _;

use std::path::{Path, PathBuf};
use std::process::Command;

use source::Declarations;

const OURS: &str = include_str!("../../src/device/hip/sys.rs");

/// From this release on everything that is declared must be there.
const FLOOR: (i128, i128) = (7, 1);

/// Where ROCm and Debian put the headers; `PAPPUS_HIP_INCLUDE` names another folder.
const INCLUDE: [&str; 2] = ["/opt/rocm/include", "/usr/include"];
const HEADER: &str = "hip/hip_runtime_api.h";

/// The bindings of each release: file name and text.
fn bindings() -> Vec<(String, Declarations)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let told = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told = String::from_utf8(told.stdout).unwrap();
    let manifest =
        told.split('"').find(|text| text.contains("/cubecl-hip-sys-") && text.ends_with("/Cargo.toml"));
    let folder = Path::new(manifest.expect("the crate is a dependency")).with_file_name("src/bindings");
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.to_str().unwrap().contains("bindings_")).collect();
    files.sort_unstable();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, Declarations::read(&std::fs::read_to_string(path).unwrap()))
    };
    files.into_iter().map(read).collect()
}

fn release(bindings: &Declarations) -> (i128, i128) {
    (bindings.constants["HIP_VERSION_MAJOR"], bindings.constants["HIP_VERSION_MINOR"])
}

/// True for HIP's own names; the library below is in no bindings.
fn is_of_hip(name: &str) -> bool {
    name.starts_with("hip")
}

/// Where ours and the headers of a release disagree.
fn differences(ours: &Declarations, theirs: &Declarations) -> Vec<String> {
    let all = release(theirs) >= FLOOR;
    let mut wrong = Vec::new();
    for (name, (arguments, result)) in &ours.functions {
        // The headers of some releases call a struct by one of their own aliases.
        let last = |of: &Declarations, kind: &String| {
            let kind = of.resolved(kind);
            let name = kind.trim_start_matches('*');
            format!("{}{}", &kind[..kind.len() - name.len()], theirs.resolved(name))
        };
        let form = |of: &Declarations, (arguments, result): (&Vec<String>, &String)| {
            let arguments: Vec<_> = arguments.iter().map(|one| last(of, one)).collect();
            format!("({}) -> {}", arguments.join(", "), last(of, result))
        };
        match theirs.functions.get(name) {
            Some((their_arguments, their_result)) => {
                let (here, there) =
                    (form(ours, (arguments, result)), form(theirs, (their_arguments, their_result)));
                if here != there {
                    wrong.push(format!("{name}: {here}, the headers have {there}"));
                }
            }
            None if all => wrong.push(format!("{name} is in no header")),
            None => {}
        }
    }
    for (name, value) in ours.constants.iter().filter(|(name, _)| is_of_hip(name)) {
        match theirs.constant(name) {
            Some(theirs) if theirs != *value => {
                wrong.push(format!("{name} is {value}, the headers have {theirs}"))
            }
            None if all => wrong.push(format!("{name} is in no header")),
            _ => {}
        }
    }
    for record in ours.records.keys().filter(|name| is_of_hip(name) && theirs.records.contains_key(*name)) {
        let ((here, own), (there, layout)) = (ours.places(record), theirs.places(record));
        // What grows has room to.
        if own.align != layout.align
            || own.bytes < layout.bytes
            || own.bytes > layout.bytes && layout.bytes < 1000
        {
            wrong.push(format!("{record} is {own:?}, the headers have {layout:?}"));
        }
        // Ours are not all there are, and two of ours are what lies between.
        for (member, place) in
            here.iter().filter(|(member, _)| !["between", "rest"].contains(&member.as_str()))
        {
            match there.get(member) {
                Some(theirs) if theirs != place => {
                    wrong.push(format!("{record}.{member} is at {place:?}, the headers have {theirs:?}"));
                }
                None if all => wrong.push(format!("{record}.{member} is in no header")),
                _ => {}
            }
        }
    }
    wrong
}

#[test]
fn every_release_declares_what_is_declared_here() {
    let ours = Declarations::read(OURS);
    assert!(ours.functions.len() > 40 && ours.constants.len() > 40, "{ours:?}");
    let mut releases = Vec::new();
    for (name, theirs) in bindings() {
        let wrong = differences(&ours, &theirs);
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        releases.push(release(&theirs));
    }
    assert!(
        releases.contains(&(6, 2)) && releases.contains(&(7, 1)) && releases.contains(&(7, 14)),
        "{releases:?}"
    );
}

#[test]
fn the_comparison_finds_what_is_wrong() {
    let (_, newest) = bindings().pop().unwrap();
    for (before, after, words) in [
        (
            "hipErrorNoDevice: hipError_t = 100",
            "hipErrorNoDevice: hipError_t = 101",
            "hipErrorNoDevice is 101",
        ),
        (
            "hipInit(flags: c_uint)",
            "hipInit(flags: c_ulonglong)",
            "hipInit: (c_ulonglong) -> c_uint, the headers have (c_uint)",
        ),
        ("hipInit(", "hipBegin(", "hipBegin is in no header"),
        ("pub id: c_int,", "pub id: u64,", "hipMemLocation"),
        (
            "1160 - 256 - 16",
            "1168 - 256 - 16",
            "hipDeviceProp_tR0600.gcnArchName is at (1168, 256), the headers have (1160, 256)",
        ),
    ] {
        let changed = OURS.replace(before, after);
        assert_ne!(changed, OURS, "{before}");
        let wrong = differences(&Declarations::read(&changed), &newest).join("\n");
        assert!(wrong.contains(words), "{before}: {wrong}");
    }
}

/// What is read from the text is what the compiler makes of it.
#[test]
fn layouts_are_those_of_the_compiler() {
    use std::mem::{align_of, offset_of, size_of};
    let ours = Declarations::read(OURS);
    macro_rules! same {
        ($record:ident, $($member:ident).+) => {
            let (places, layout) = ours.places(stringify!($record));
            assert_eq!((layout.bytes, layout.align), (size_of::<sys::$record>(), align_of::<sys::$record>()));
            let member = concat!($(".", stringify!($member)),+);
            assert_eq!(places[&member[1..]].0, offset_of!(sys::$record, $($member).+), "{member}");
        };
    }
    same!(hipMemLocation, id);
    same!(hipMemAccessDesc, flags);
    same!(hipMemAllocationProp, win32HandleMetaData);
    same!(hipMemAllocationProp, allocFlags.usage);
    assert_eq!(
        ours.places("hipDeviceProp_tR0600").0["gcnArchName"].0,
        offset_of!(sys::hipDeviceProp_tR0600, gcnArchName)
    );
    assert_eq!(size_of::<sys::hipDeviceProp_tR0600>(), 4096);
}

/// A type as C writes it.
fn in_c(kind: &str) -> String {
    if let Some(target) = kind.strip_prefix("*mut ") {
        return format!("{} *", in_c(target));
    }
    if let Some(target) = kind.strip_prefix("*const ") {
        return format!("const {} *", in_c(target));
    }
    let plain = match kind {
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_ulonglong" => "unsigned long long",
        "usize" => "size_t",
        "f32" => "float",
        "c_void" => "void",
        other => other,
    };
    plain.to_owned()
}

/// The compiler has the last word, on what an older release has already.
#[test]
fn the_headers_of_the_distribution_agree() {
    /// Not marked as only read from before 7.0.
    const NOT_CONST: [&str; 1] = ["hipMemcpyHtoDAsync"];
    let named = std::env::var_os("PAPPUS_HIP_INCLUDE").map(PathBuf::from);
    let folders = named.into_iter().chain(INCLUDE.map(PathBuf::from));
    let Some(include) = folders.into_iter().find(|folder| folder.join(HEADER).is_file()) else {
        println!("SKIPPED: {HEADER} is not there: apt-get install libamdhip64-dev");
        return;
    };
    let header = std::fs::read_to_string(include.join(HEADER)).unwrap();
    let words: std::collections::HashSet<&str> =
        header.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let ours = Declarations::read(OURS);
    let mut text = "#define __HIP_PLATFORM_AMD__ 1\n#include <hip/hip_runtime_api.h>\n".to_owned();
    let mut compared = 0;
    for (name, (arguments, result)) in &ours.functions {
        if words.contains(name.as_str()) && !NOT_CONST.contains(&name.as_str()) {
            let arguments: Vec<_> = arguments.iter().map(|one| in_c(one)).collect();
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
            let (result, same) = (in_c(result), "__builtin_types_compatible_p");
            text +=
                &format!("_Static_assert({same}(__typeof__({name}), {result}({arguments})), \"{name}\");\n");
            compared += 1;
        }
    }
    for (name, value) in ours.constants.iter().filter(|(name, _)| is_of_hip(name)) {
        if words.contains(name.as_str()) {
            text += &format!("_Static_assert((unsigned long long)({name}) == {value}ULL, \"{name}\");\n");
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
    let compile = |text: &str| {
        let dir = std::env::temp_dir().join(format!("pappus-hip-headers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("declarations.c");
        std::fs::write(&file, text).unwrap();
        let ran = Command::new("cc")
            .args(["-std=c11", "-fsyntax-only", "-I"])
            .arg(&include)
            .arg(&file)
            .output()
            .unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (agree, said) = compile(&text);
    assert!(agree, "{said}");
    // The control.
    let (agree, said) = compile(&text.replace("== 100ULL", "== 101ULL"));
    assert!(!agree && said.contains("hipErrorNoDevice"), "{said}");
}
