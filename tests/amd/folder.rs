//! A folder that looks like an AMD GPU to who has it in `LD_LIBRARY_PATH`: the look-alike of HIP's library under its names, and
//! what it is told. Shared by the tests of several crates, which name the look-alike as a dependency so that cargo builds it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// Makes the folder; `settings` are lines such as `arch=gfx90a` (`tests/amd/hip/src/settings.rs` has all).
pub(crate) fn look_like_a_gpu(folder: &Path, settings: &str) {
    // Where cargo puts it: beside the test.
    let library = std::env::current_exe().unwrap().with_file_name("libamdhip64.so");
    fs::copy(library, folder.join("libamdhip64.so.7")).unwrap();
    symlink("libamdhip64.so.7", folder.join("libhsa-runtime64.so.1")).unwrap();
    fs::write(folder.join("lookalike"), format!("{settings}\n")).unwrap();
    fs::write(folder.join("lookalike.memory"), "").unwrap();
    // Workers may have users of their own.
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.join("lookalike.memory"), Permissions::from_mode(0o666)).unwrap();
}
