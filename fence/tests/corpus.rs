//! Whole modules: the project's own kernels, and what clang 19 and Triton 3.9 wrote (`ptx/` says how).

mod fixture;

use fixture::folder;
use pappus_fence::{fence, reasons};

/// What stands in the way in each of the folder's modules: file, kernel and reason.
fn in_the_way(path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in folder(path) {
        let text = std::fs::read_to_string(&file).expect("a text");
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        found.extend(
            reasons(&text).into_iter().map(|r| format!("{name} {}: {}: {}", r.kernel, r.what, r.why)),
        );
    }
    found.dedup();
    found
}

#[test]
fn all_the_projects_kernels_can_be_fenced() {
    assert_eq!(folder("../kernels/built").len(), 5);
    assert_eq!(in_the_way("../kernels/built"), Vec::<String>::new());
}

#[test]
fn what_compilers_write_can_be_fenced_but_for_these() {
    assert_eq!(folder("tests/ptx").len(), 8);
    let expected = [
        "refused b1: ld.u32 %r4, [%rd15]: the address may be of more than one kind of memory: use `ld.global` or the like",
        "refused rec: rec: the function calls itself, or one that calls it: stacks that grow cannot be fenced",
        "refused b3: call (retval0), %rd3, (param0), $prototype_2: functions cannot be called through a \
         register",
    ];
    assert_eq!(in_the_way("tests/ptx"), expected);
}

#[test]
fn fenced_text_has_no_access_without_a_fence() {
    for file in folder("../kernels/built").into_iter().chain(folder("tests/ptx")) {
        let Ok(fenced) = fence(&std::fs::read_to_string(&file).expect("a text")) else { continue };
        let mut before = "";
        for line in fenced.text.lines().map(str::trim) {
            let access = ["ld", "st", "atom", "red", "cp"].iter().any(|name| {
                let opcode = line.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
                opcode.split('.').next() == Some(name) && opcode.contains(".global")
            });
            if access {
                assert_eq!(before, "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};", "{line}");
                assert!(line.contains("[%pappus_at"), "{line}");
            }
            before = line;
        }
    }
}

#[test]
fn fenced_text_cannot_be_fenced_again() {
    let text = std::fs::read_to_string(&folder("../kernels/built")[0]).expect("a text");
    let again = fence(&fence(&text).expect("fenced").text).expect_err("refused");
    assert!(again.why.contains("the fence's own"), "{again}");
}
