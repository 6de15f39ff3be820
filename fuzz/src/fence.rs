//! PTX of strangers that is made fit for a shared worker, and the checker of what came out.

use pappus_fence::{check, fence, reasons};

/// The reader and the rewriter: what is not refused is a text, the same each time, that cannot be fenced again.
pub fn read_ptx(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match fence(text) {
        Err(why) => assert!(!why.to_string().is_empty() && !reasons(text).is_empty()),
        Ok(fenced) => {
            assert_eq!(fence(text).as_ref(), Ok(&fenced));
            let has_kernels = fenced.text.contains(".entry ");
            assert!(!has_kernels || fence(&fenced.text).is_err(), "fenced text names the fence");
            // What the checker does not accept does not run: no danger, and not to be expected of a text that means something.
            let _ = check(&fenced.text);
        }
    }
}

/// The checker: what it accepts has no access to global memory that is not the fence's.
pub fn read_fenced(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.lines().count().max(1);
    match check(text) {
        Err(why) => assert!((1..=lines).contains(&why.line) && !why.what.is_empty()),
        Ok(checked) => {
            assert_eq!(text.matches(".entry ").count(), checked.kernels.len());
            let code = text.lines().map(|line| line.trim_start_matches([' ', '\t']));
            let mut before = "";
            for line in code.filter(|line| !line.is_empty()) {
                if line.contains(".global") && line.contains('[') {
                    assert_eq!(before, "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};", "{line}");
                    assert!(line.contains("[%pappus_at"), "{line}");
                }
                before = line;
            }
        }
    }
}
