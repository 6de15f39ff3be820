//! Which kernels are compared, and on what: buffers, parameters and the launch, for any device.

use pappus_kernels::bytes::from_elements;
use pappus_kernels::reference::mlops::counting;

use crate::harness::functions::{SIDE, values};

/// A slot of a kernel's parameters.
#[derive(Debug, Clone, Copy)]
pub enum Slot {
    /// The address of a buffer, by its place in [`Case::buffers`].
    Buffer(usize),
    /// The number itself.
    Word(u64),
}

use Slot::{Buffer, Word};

/// One kernel on certain data.
#[derive(Debug, Clone)]
pub struct Case {
    /// For people.
    pub title: String,
    /// The module's stem.
    pub module: &'static str,
    /// The export.
    pub kernel: &'static str,
    /// What the buffers hold at first.
    pub buffers: Vec<Vec<u8>>,
    /// Parameters in their order.
    pub slots: Vec<Slot>,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// The buffer that is written.
    pub result: usize,
    /// True if there is a target for the case.
    pub promised: bool,
}

impl Case {
    /// Blocks of the whole grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().copied().map(u64::from).product()
    }

    fn new(title: &str, (module, kernel): (&'static str, &'static str), buffers: Vec<Vec<u8>>) -> Self {
        Self {
            title: format!("{kernel}, {title}"),
            module,
            kernel,
            result: buffers.len() - 1,
            slots: (0..buffers.len()).map(Buffer).collect(),
            buffers,
            grid: [1; 3],
            block: [1; 3],
            promised: false,
        }
    }

    /// Words behind the addresses.
    fn words(mut self, words: &[u64]) -> Self {
        self.slots.extend(words.iter().map(|word| Word(*word)));
        self
    }

    /// One thread for each of `width` × `height`, in blocks of `block`.
    fn over(mut self, width: u64, height: u64, block: [u32; 2]) -> Self {
        let blocks = |side: u64, of: u32| side.div_ceil(of.into()) as u32;
        self.grid = [blocks(width, block[0]), blocks(height, block[1]), 1];
        self.block = [block[0], block[1], 1];
        self
    }

    fn promised(mut self) -> Self {
        self.promised = true;
        self
    }
}

const VECTOR: u64 = 1_000_000;
const SYSTEM: u64 = 512;
const CNN_SIDE: u64 = 224;
const PHOTO_SIDE: u64 = 320;
const BLOCK: [u32; 2] = [32, 32];
const ROW: [u32; 2] = [256, 1];

/// The multiplication of the function `matmul_tiled`.
pub fn matmul_tiled() -> Case {
    let square = (SIDE * SIDE * 8) as usize;
    let buffers = vec![from_elements(&values(0)), from_elements(&values(1)), vec![0; square]];
    let mut case = Case::new("128×128 i64", ("linalg", "matmul_tiled_i64"), buffers).words(&[SIDE; 3]);
    let tiles = SIDE.div_ceil(32) as u32;
    (case.grid, case.block) = ([tiles, tiles, 1], [32, 8, 1]);
    case.promised()
}

/// Every kernel that is compared, the promised ones first.
pub fn all() -> Vec<Case> {
    let mut cases = vec![matmul_tiled(), convolution()];
    cases.extend(products());
    cases.extend(vectors());
    cases.extend(layers());
    cases.extend(pictures());
    cases
}

fn convolution() -> Case {
    let (a, filter) =
        (from_elements(&counting(CNN_SIDE as usize, CNN_SIDE as usize)), from_elements(&counting(5, 5)));
    // Dimensions of the filter are not in its buffer: the kernel reads 25 values.
    let mut case = Case::new("224×224 f32", ("mlops", "convolution_f"), vec![vec![0; a.len()], a, filter]);
    case.result = 0;
    case.over(CNN_SIDE, CNN_SIDE, BLOCK).promised()
}

fn products() -> Vec<Case> {
    let mut sgemm = matmul_tiled();
    sgemm.promised = false;
    sgemm.kernel = "sgemm";
    sgemm.title = "sgemm, 128×128 f32".into();
    let square = (SIDE * SIDE) as usize;
    sgemm.buffers = vec![floats(square, 0), floats(square, 1), vec![0; square * 4]];
    sgemm.slots.extend([Word(f32_slot(1.0)), Word(f32_slot(0.0))]);

    let with_side: Vec<i64> = [SIDE as i64].into_iter().chain(values(0)).collect();
    let a = from_elements(&with_side);
    let transposed = |kernel| {
        let buffers = vec![a.clone(), vec![0; a.len()]];
        let mut case = Case::new("128×128 i64", ("mlops", kernel), buffers);
        case.slots = vec![Buffer(0), Word(a.len() as u64), Buffer(1)];
        case
    };
    vec![sgemm, transposed("matmul_para").over(SIDE, SIDE, BLOCK), transposed("matmul_loop")]
}

fn vectors() -> Vec<Case> {
    let n = VECTOR as usize;
    let add = Case::new("10⁶ f32", ("linalg", "vec_add_f"), vec![floats(n, 0), floats(n, 1), vec![0; n * 4]])
        .words(&[VECTOR])
        .over(VECTOR, 1, ROW);
    // y, x, n, a: one struct of four slots.
    let mut axpy = Case::new("10⁶ f32", ("linalg", "axpy_f"), vec![floats(n, 0), floats(n, 1)])
        .words(&[VECTOR, f32_slot(2.0)])
        .over(VECTOR, 1, ROW);
    axpy.result = 0;
    vec![add, axpy]
}

fn layers() -> Vec<Case> {
    let n = SYSTEM as usize;
    let jacobi = Case::new(
        "512×512 f32",
        ("linalg", "jacobi_step_f"),
        vec![floats(n * n, 1), floats(n, 2), floats(n, 3), vec![0; n * 4]],
    )
    .words(&[SYSTEM])
    .over(SYSTEM, 1, ROW);
    let (rows, cols) = (256, 1024);
    let cells = (rows * cols) as usize;
    let mut softmax =
        Case::new("256×1024 f32", ("linalg", "softmax_f"), vec![floats(cells, 0), vec![0; cells * 4]])
            .words(&[rows, cols]);
    (softmax.grid, softmax.block) = ([rows as u32, 1, 1], [256, 1, 1]);
    let map = || from_elements(&counting(CNN_SIDE as usize, CNN_SIDE as usize));
    let relu = Case::new("224×224 f32", ("mlops", "relu_2d_f"), vec![map()]).over(CNN_SIDE, CNN_SIDE, BLOCK);
    let half = CNN_SIDE / 2;
    let mut pool = Case::new(
        "224×224 f32",
        ("mlops", "maxpool_f"),
        vec![vec![0; (8 + half * half * 4) as usize], map()],
    )
    .words(&[2])
    .over(half, half, BLOCK);
    pool.result = 0;
    vec![jacobi, softmax, relu, pool]
}

fn pictures() -> Vec<Case> {
    let side = PHOTO_SIDE;
    let pixels = (side * side) as usize;
    let noise = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at * 73 % 251) as u8).collect() };
    let case = |kernel, buffers, words: &[u64], width: u64| {
        let case = Case::new("320×320", ("vision", kernel), buffers);
        case.words(words).over(width, side, BLOCK)
    };
    vec![
        case("rgb_to_gray", vec![noise(pixels * 3), vec![0; pixels]], &[side; 2], side),
        case("gaussian_rows", vec![noise(pixels * 3), vec![0; pixels * 3]], &[side, side, 3], side),
        case("gaussian_columns", vec![noise(pixels * 3), vec![0; pixels * 3]], &[side * 3, side], side * 3),
        case("sobel", vec![noise(pixels), vec![0; pixels]], &[side; 2], side),
        case("ink_outlines", vec![noise(pixels * 3), noise(pixels), vec![0; pixels * 3]], &[side; 2], side),
    ]
}

/// The slot of an f32 parameter.
fn f32_slot(value: f32) -> u64 {
    value.to_bits().into()
}

/// Small numbers that are all different from zero.
fn floats(count: usize, seed: usize) -> Vec<u8> {
    let number = |at: usize| ((at * 31 + seed * 7) % 97) as f32 / 16.0 + 0.5;
    from_elements(&(0..count).map(number).collect::<Vec<f32>>())
}
