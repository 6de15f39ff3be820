//! The kernels compiled for this processor: the C sources through clang into a shared library, opened
//! here. The only `unsafe` of the benchmarks: calling what was just compiled from our own sources.

#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::cases::{Case, Slot};
use crate::Result;

const COMPILER: &str = "clang-19";
/// As `kernels/README.md` gives them, for a library.
const FLAGS: [&str; 8] =
    ["-std=c2x", "-O3", "-mavx2", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-shared", "-fPIC"];
/// The sources, one for each module.
const MODULES: [&str; 3] = ["linalg", "mlops", "vision"];

/// A kernel's C function: parameters, launch, first block, blocks.
type Function = unsafe extern "C" fn(*const u64, *const Launch, i64, i64);

/// `pappus_launch` of `kernels/c/pappus_cpu.h`, with pointers of 8 bytes.
#[derive(Debug)]
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    shared: usize,
}

const _: () = assert!(offset_of!(Launch, shared) == 32 && size_of::<Launch>() == 40);

/// The compiled kernels. What is opened stays valid although the files vanish with this.
#[derive(Debug)]
pub struct Library {
    modules: Vec<(&'static str, libloading::Library)>,
    _folder: TempDir,
}

/// A library to compare with, if there is a compiler.
#[derive(Debug)]
pub enum Built {
    /// The library is there.
    Ready(Library),
    /// The library is missing; the text says what to do.
    Missing(String),
}

impl Library {
    /// Compiles the sources.
    pub fn build() -> Result<Built> {
        #[cfg(target_arch = "x86_64")]
        let can = std::arch::is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let can = false;
        if !can {
            return Ok(Built::Missing("the comparison is with AVX2, which this processor lacks".into()));
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/c");
        if !sources.is_dir() {
            let sources = sources.display();
            return Ok(Built::Missing(format!("{sources} is gone: run it in the repository")));
        }
        let folder = tempfile::tempdir()?;
        let mut modules = Vec::new();
        for module in MODULES {
            let output = folder.path().join(format!("lib{module}.so"));
            let compiled = Command::new(COMPILER)
                .args(FLAGS)
                .arg(sources.join(format!("{module}.c")))
                .arg("-o")
                .arg(&output)
                .stdin(Stdio::null())
                .status();
            match compiled {
                Ok(status) if status.success() => modules.push((module, open(&output)?)),
                Ok(status) => return Err(format!("{COMPILER} ended on {module}.c: {status}").into()),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Ok(Built::Missing(format!(
                        "{COMPILER} is missing: apt-get install -y clang-19 lld-19"
                    )));
                }
                Err(e) => return Err(format!("{COMPILER}: {e}").into()),
            }
        }
        Ok(Built::Ready(Self { modules, _folder: folder }))
    }

    /// A kernel with its data in place.
    pub fn kernel(&self, case: &Case) -> Result<Kernel<'_>> {
        let library = self.modules.iter().find(|(stem, _)| *stem == case.module);
        let (_, library) = library.ok_or("no such module")?;
        // SAFETY: the sources define every kernel with this type (KERNEL in pappus_cpu.h), and the
        // symbol cannot outlive the library, which the result borrows.
        let function = unsafe { library.get::<Function>(case.kernel) }?;
        let mut buffers: Vec<Buffer> = case.buffers.iter().map(|bytes| Buffer::holding(bytes)).collect();
        let slots = case.slots.iter().map(|slot| match *slot {
            Slot::Buffer(at) => buffers[at].words.as_mut_ptr().expose_provenance() as u64,
            Slot::Word(word) => word,
        });
        Ok(Kernel {
            slots: slots.collect(),
            function,
            launch: Launch { grid: case.grid, block: case.block, shared_bytes: 0, shared: 0 },
            blocks: i64::try_from(case.blocks())?,
            buffers,
        })
    }
}

fn open(path: &PathBuf) -> Result<libloading::Library> {
    // SAFETY: it has no constructors: the sources are plain C functions, compiled a moment ago into a
    // folder that only this user can write.
    Ok(unsafe { libloading::Library::new(path) }?)
}

/// Memory aligned for every element type.
#[derive(Debug)]
struct Buffer {
    words: Vec<u64>,
    bytes: usize,
}

impl Buffer {
    fn holding(bytes: &[u8]) -> Self {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(8), 0);
        Self { words: pappus_kernels::bytes::to_elements(&padded), bytes: bytes.len() }
    }
}

/// A kernel with its data in place.
#[derive(Debug)]
pub struct Kernel<'a> {
    function: libloading::Symbol<'a, Function>,
    slots: Vec<u64>,
    launch: Launch,
    blocks: i64,
    buffers: Vec<Buffer>,
}

impl Kernel<'_> {
    /// Runs all blocks.
    pub fn run(&mut self) {
        // SAFETY: slots hold the parameters in the order of the case, which the kernels' own tests and
        // the comparison with the bounds-checked wasm confirm; the addresses are those of `buffers`, which are
        // neither moved nor touched while this borrow lasts, and the launch covers just their elements.
        unsafe { (self.function)(self.slots.as_ptr(), &self.launch, 0, self.blocks) };
    }

    /// What a buffer holds now.
    pub fn buffer(&self, at: usize) -> Vec<u8> {
        let Buffer { words, bytes } = &self.buffers[at];
        let mut out = pappus_kernels::bytes::from_elements(words);
        out.truncate(*bytes);
        out
    }
}
