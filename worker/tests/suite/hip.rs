//! An AMD GPU under test: the machine's, or a library that looks like HIP's and runs kernels on the processor (`tests/amd`). A
//! fault there ends all work of a process, so a worker is a process.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::blueprints::{i64, launch, ptr, u32};
use super::leaks_on_chip::{ChipUnderTest, Place, step};
use super::{GpuUnderTest, UnderTest};
use crate::folder::look_like_a_gpu;
use crate::harness::Worker;
use crate::harness::program::{self, Options};

/// One of these GPUs.
pub struct OnHip<G>(PhantomData<G>);

/// Where the GPU is.
pub trait Gpu: 'static {
    /// How a worker is started there.
    fn options() -> Options;
    /// The same, where what a call left is not cleared.
    fn uncleared() -> Options;
    /// Blocks of 1024 threads, so many that every compute unit gets some.
    const COVERING: u64;
    /// What is left on the chip is surely found where nothing is cleared. Compute units of a GPU are said to keep it; nobody
    /// has looked. What looks like one begins with the pattern in it, as if a process before had left it.
    const KEEPS: bool;
    /// The position of the code objects that run there, in [`PROBES`] and the like.
    fn position() -> usize;
}

/// The machine's.
pub struct Machine;
/// What looks like an MI210.
pub struct Gfx90a;
/// What looks like an MI300.
pub struct Gfx942;

/// Built by `scripts/probes` and `scripts/kernels`, for each processor that there are code objects for.
const PROBES: [&[u8]; 2] =
    [include_bytes!("../probes/probes.gfx90a.hsaco"), include_bytes!("../probes/probes.gfx942.hsaco")];
const LINALG: [&[u8]; 2] = [
    include_bytes!("../../../kernels/built/linalg.hsaco"),
    include_bytes!("../../../kernels/built/linalg.gfx942.hsaco"),
];

impl Gpu for Machine {
    const COVERING: u64 = 4096;
    const KEEPS: bool = false;

    fn options() -> Options {
        Options::HIP
    }

    fn uncleared() -> Options {
        Options { uncleared: true, ..Options::HIP }
    }

    fn position() -> usize {
        static POSITION: OnceLock<usize> = OnceLock::new();
        *POSITION.get_or_init(|| {
            let runs = |object: &&[u8]| program::compile(&Options::HIP, object).is_ok();
            PROBES.iter().position(runs).expect("there are probes for this GPU")
        })
    }
}

/// Workers of what looks like a GPU, with these settings.
fn looking_like(folder: &OnceLock<PathBuf>, name: &str, settings: &str) -> Options {
    let folder = folder.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", env!("CARGO_CRATE_NAME")));
        // Of an earlier run.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        look_like_a_gpu(&folder, settings);
        folder
    });
    Options { library: Some(Box::leak(folder.clone().into_boxed_path())), ..Options::HIP }
}

macro_rules! look_alike {
    ($gpu:ty, $arch:literal, $position:literal) => {
        impl Gpu for $gpu {
            const COVERING: u64 = 32;
            const KEEPS: bool = true;

            fn options() -> Options {
                static FOLDER: OnceLock<PathBuf> = OnceLock::new();
                looking_like(&FOLDER, $arch, concat!("arch=", $arch, "\nunits=2"))
            }

            fn uncleared() -> Options {
                static FOLDER: OnceLock<PathBuf> = OnceLock::new();
                looking_like(
                    &FOLDER,
                    concat!($arch, "-uncleared"),
                    concat!("arch=", $arch, "\nunits=2\nclears=no"),
                )
            }

            fn position() -> usize {
                $position
            }
        }
    };
}
look_alike!(Gfx90a, "gfx90a", 0);
look_alike!(Gfx942, "gfx942", 1);

fn worker_with<G: Gpu>(options: &Options) -> Worker {
    let mut worker = Worker::process(options);
    worker.lane_bytes = OnHip::<G>::LANE_BYTES;
    worker
}

impl<G: Gpu> GpuUnderTest for OnHip<G> {
    fn worker_with(lanes: u32) -> Worker {
        worker_with::<G>(&Options { lanes, ..G::options() })
    }
}

/// LDS of blocks of which one fits on a compute unit, and two.
const LDS: u64 = 64 << 10;
const HALF: u64 = 32 << 10;

impl<G: Gpu> ChipUnderTest for OnHip<G> {
    const COVERING: u64 = G::COVERING;
    /// What compute units hold at first where they are looked like.
    const PATTERN: u8 = 0xd6;
    const CLEARED_BETWEEN_PROCESSES: bool = false;
    const SURELY_NOT_CLEARED: bool = G::KEEPS;

    fn places(_: &str, count: u64) -> Vec<Place> {
        let word = u32(u32::from_le_bytes([Self::PATTERN; 4]));
        let [all, half] = [LDS, HALF].map(|bytes| u32((bytes / 4) as u32));
        let (hits, marks, words, odd) = (ptr("hits"), ptr("marks"), ptr("words"), u32(7));
        let place = |name, marks, fill, scan| Place {
            name,
            fill,
            scan,
            code: Self::probes(),
            surely: G::KEEPS,
            marks,
        };
        vec![
            place(
                "LDS",
                true,
                step("shared_fill", &[&word, &all, &marks], 8 * count, 1024, LDS),
                step("shared_scan", &[&word, &all, &hits, &marks], 8 * count, 1024, LDS),
            ),
            place(
                "LDS of small blocks",
                true,
                step("shared_fill", &[&word, &half, &marks], 16 * count, 1024, HALF),
                step("shared_scan", &[&word, &half, &hits, &marks], 16 * count, 1024, HALF),
            ),
            place(
                "stacks",
                false,
                step("local_fill", &[&word, &odd], 4 * count, 1024, 0),
                step("local_scan", &[&word, &odd, &hits], 4 * count, 1024, 0),
            ),
            place(
                "vector registers",
                false,
                step("register_fill", &[&words, &words], 8 * count, 256, 0),
                step("register_scan", &[&word, &hits, &u32(0)], 8 * count, 256, 0),
            ),
            place(
                "scalar registers",
                false,
                step("scalar_fill", &[&word], 8 * count, 256, 0),
                step("scalar_scan", &[&word, &hits], 8 * count, 256, 0),
            ),
        ]
    }
}

impl<G: Gpu> UnderTest for OnHip<G> {
    const LANE_BYTES: u64 = 4 << 20;
    /// What is lent at a time.
    const SMALL_LANE_BYTES: u64 = 2 << 20;
    const FAULTS_END_THE_WORKER: bool = true;
    const ENDS_RUNNING_KERNELS: bool = false;
    const STRAY: &'static str = "it ";
    const NO_CODE: &'static str = "";
    const GRIDS: &'static [[u64; 3]] = &[[1, 1, 1], [7, 3, 2], [1_000, 5, 1]];

    fn worker() -> Worker {
        worker_with::<G>(&G::options())
    }

    fn uncleared_worker() -> Worker {
        worker_with::<G>(&G::uncleared())
    }

    fn probes() -> &'static [u8] {
        PROBES[G::position()]
    }

    fn library(name: &str) -> Vec<u8> {
        match name {
            "linalg" => LINALG[G::position()].to_vec(),
            other => panic!("no module {other}"),
        }
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        vec![("trap", String::new(), ""), ("illegal", i64(16), "not its own")]
    }

    fn strays() -> Vec<(&'static str, String)> {
        let illegal = [0, 64, 1 << 46].map(|at| ("illegal", launch("illegal", &i64(at))));
        // Behind the pool, whose address range is longer than what is mapped.
        let behind = [ptr("out"), i64(1), i64(1 << 40)];
        let copy = [i64(0), ptr("out"), i64(64)];
        let others = [("touch_pages", behind), ("copy", copy)];
        let others = others.map(|(kernel, params)| (kernel, launch(kernel, &params.join(","))));
        illegal.into_iter().chain(others).collect()
    }
}
