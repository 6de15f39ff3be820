//! The compiler and linkers that a build needs: found by their names, of one version, and run.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::failure::{Failure, Result};
use crate::scratch::Scratch;
use crate::target::{Code, PREFERRED_COMPILER, Target};

/// The last version that is looked for by its name.
const LAST: u32 = 29;

/// The tools, by the end of their names.
#[derive(Debug, Clone)]
pub(super) struct Toolchain {
    suffix: String,
}

/// How a tool ended, and what it said.
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    pub(super) said: Vec<u8>,
}

/// A tool of LLVM's, and Debian's package that has it.
type Tool = (&'static str, &'static str);
pub(super) const CLANG: &str = "clang";
pub(super) const WASM_LD: &str = "wasm-ld";
pub(super) const OBJCOPY: &str = "llvm-objcopy";

/// What a target needs.
fn tools(code: Code) -> &'static [Tool] {
    match code {
        Code::Wasm => &[(CLANG, "clang"), (WASM_LD, "lld")],
        Code::Ptx(_) => &[(CLANG, "clang")],
        // clang calls the linker itself.
        Code::Hsaco => &[(CLANG, "clang"), ("ld.lld", "lld"), (OBJCOPY, "llvm")],
    }
}

impl Toolchain {
    /// The first version of which everything is there that the targets need; an error says what to install.
    pub(super) fn find(targets: &[Target]) -> Result<Self> {
        let mut needed: Vec<Tool> = targets.iter().flat_map(|target| tools(target.code)).copied().collect();
        needed.sort_unstable();
        needed.dedup();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let missing = |suffix: &str| -> Vec<Tool> {
            let absent = |(tool, _): &Tool| !is_in(&path, &format!("{tool}{suffix}"));
            needed.iter().copied().filter(absent).collect()
        };
        let least = targets.iter().map(|target| target.compiler).max().unwrap_or(PREFERRED_COMPILER);
        let mut named = (least..=LAST).map(|version| format!("-{version}"));
        if let Some(suffix) = named.find(|suffix| missing(suffix).is_empty()) {
            return Ok(Self { suffix });
        }
        let plain = Self { suffix: String::new() };
        if missing("").is_empty() && plain.version().is_some_and(|version| version >= least) {
            return Ok(plain);
        }
        Err(Failure::Refused(advice(&missing(&format!("-{least}")), least)))
    }

    /// What the compiler calls itself.
    pub(super) fn name(&self) -> Result<String> {
        let output = self.command(CLANG).arg("--version").output();
        let output = output.map_err(|error| self.unusable(CLANG, &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Runs a tool with arguments, in this folder and no locale, its temporary files in the other.
    pub(super) fn run<S: AsRef<OsStr>>(&self, scratch: &Scratch, tool: &str, arguments: &[S]) -> Result<Ran> {
        let run = || -> std::io::Result<Ran> {
            let mut command = self.command(tool);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = scratch.spawn(&mut command)?;
            let mut said = Vec::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_end(&mut said)?;
            }
            Ok(Ran { status: scratch.wait(&mut child)?, said })
        };
        run().map_err(|error| self.unusable(tool, &error))
    }

    /// A tool's name.
    pub(super) fn tool(&self, tool: &str) -> String {
        format!("{tool}{}", self.suffix)
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(self.tool(tool));
        command.env("LC_ALL", "C");
        // Folders of other projects' headers, which would be looked into first.
        for name in ["CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"] {
            command.env_remove(name);
        }
        command
    }

    fn version(&self) -> Option<u32> {
        let name = self.name().ok()?;
        let behind = name.split("version ").nth(1)?;
        behind.split('.').next()?.parse().ok()
    }

    fn unusable(&self, tool: &str, error: &std::io::Error) -> Failure {
        Failure::Failed(format!("{}: {error}", self.tool(tool)))
    }
}

/// What to install for these tools of a version.
fn advice(missing: &[Tool], version: u32) -> String {
    let of = |part: fn(&Tool) -> &'static str| {
        let mut names: Vec<String> = missing.iter().map(|tool| format!("{}-{version}", part(tool))).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    format!(
        "missing: {}. Install them with: apt-get install -y {} (any later version does, too)",
        of(|tool| tool.0).join(", "),
        of(|tool| tool.1).join(" ")
    )
}

/// True if one of the folders of `PATH` has a program of that name.
fn is_in(path: &OsStr, name: &str) -> bool {
    let is_program = |file: &Path| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).any(|folder| is_program(&folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        let text = advice(&[("ld.lld", "lld"), (WASM_LD, "lld"), (OBJCOPY, "llvm")], 19);
        assert_eq!(
            text,
            "missing: ld.lld-19, llvm-objcopy-19, wasm-ld-19. Install them with: apt-get install -y lld-19 llvm-19 \
             (any later version does, too)"
        );
    }

    #[test]
    fn a_tool_is_an_executable_file() {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("clang-99");
        std::fs::write(&tool, "").unwrap();
        assert!(!is_in(dir.path().as_os_str(), "clang-99"));
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_in(dir.path().as_os_str(), "clang-99") && !is_in("".as_ref(), "clang-99"));
    }
}
