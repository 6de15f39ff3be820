//! The library, opened; its functions by name; processes of their own.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The opened library.
pub(crate) struct Hip(usize);

/// Where cargo puts the library: beside the test.
pub(crate) fn file() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libamdhip64.so")
}

/// The library, opened and initialised once in this process.
pub(crate) fn opened() -> &'static Hip {
    static OPENED: OnceLock<Hip> = OnceLock::new();
    OPENED.get_or_init(|| {
        let path = CString::new(file().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a library of this repository, without constructors.
        let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!opened.is_null(), "{} cannot be opened", file().display());
        let hip = Hip(opened.addr());
        let mut free = 0usize;
        assert_eq!(
            hip.call("hipMemGetInfo", [(&raw mut free).addr(), (&raw mut free).addr()]),
            3,
            "before hipInit"
        );
        hip.ok("hipInit", [0]);
        hip
    })
}

/// An address, or a number where a pointer is asked for.
pub(crate) fn at(number: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number)
}

impl Hip {
    /// A function by name.
    pub(crate) fn get<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: the library stays open.
        let found = unsafe { libc::dlsym(at(self.0), name.as_ptr()) };
        assert!(!found.is_null(), "no {name:?}");
        assert_eq!(size_of::<F>(), size_of::<usize>());
        // SAFETY: the tests name functions by their signatures; both are one pointer.
        unsafe { std::mem::transmute_copy(&found) }
    }

    /// Where a function lies.
    pub(crate) fn find(&self, name: &std::ffi::CStr) -> Option<*const c_void> {
        // SAFETY: the library stays open.
        let found = unsafe { libc::dlsym(at(self.0), name.as_ptr()) };
        (!found.is_null()).then_some(found.cast_const())
    }

    /// Calls a function whose arguments are numbers and pointers only, six at most, in registers.
    pub(crate) fn call<const N: usize>(&self, name: &str, arguments: [usize; N]) -> u32 {
        let function: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32 = self.get(name);
        let mut six = [0; 6];
        six[..N].copy_from_slice(&arguments);
        let [a, b, c, d, e, f] = six;
        // SAFETY: further arguments are ignored; pointers are those that the tests give.
        unsafe { function(a, b, c, d, e, f) }
    }

    /// The same; it succeeds.
    pub(crate) fn ok<const N: usize>(&self, name: &str, arguments: [usize; N]) {
        assert_eq!(self.call(name, arguments), 0, "{name}");
    }
}

const CASE: &str = "LOOKALIKE_CASE";

/// Runs a case of a test in a process of its own, which must succeed; in that process, it is Some for its case.
pub(crate) fn child(test: &str, case: &str, prepare: impl FnOnce(&mut Command)) -> Option<()> {
    match std::env::var(CASE) {
        Ok(own) => (own == case).then_some(()),
        Err(_) => {
            let mut command = Command::new("sh");
            // Without core files, as Pappus has its workers.
            command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]);
            command
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(CASE, case);
            prepare(&mut command);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
    }
}
