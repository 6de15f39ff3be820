//! The library's functions registered in a supervisor, and calls of them.

use std::path::Path;
use std::time::{Duration, Instant};

use pappus_client::v1::{AddFunction, BlobStored, FunctionModule, Region, Variant, Weight, response};
use pappus_client::{Arena, Blob, Client, Invocation};
use pappus_kernels::bytes::from_elements;
use pappus_kernels::{artefact, config};

use super::sampling::nanoseconds;
use crate::Result;

/// The side of the matrices in small calls: 128 KiB in each.
pub const SIDE: u64 = 128;
/// The side of the image of the evaluation's `inference`.
pub const PICTURE: u64 = 224;

/// A function whose parts the supervisor has; registering it takes one request more.
#[derive(Debug, Clone)]
pub struct Handed(AddFunction);

/// The compiled form of a function's modules that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For the CPU device.
    Wasm,
    /// For NVIDIA GPUs.
    Ptx,
}

impl Form {
    fn variant(self, stem: &str) -> Result<(Variant, &'static [u8])> {
        let format = match self {
            Self::Wasm => "wasm",
            Self::Ptx => "ptx",
        };
        let file = format!("{stem}.{format}");
        let bytes = artefact(&file).ok_or_else(|| format!("the library has no {file}"))?;
        let variant = Variant { format: format.to_owned(), arch: String::new(), sha256: Vec::new().into() };
        Ok((variant, bytes))
    }
}

impl Handed {
    /// Hands over the parts of one of the library's functions for the CPU device.
    pub fn put(client: &mut Client, function: &str) -> Result<Self> {
        Self::put_as(client, function, Form::Wasm, "")
    }

    /// Hands over a configuration of one module, and the module.
    pub fn put_own(client: &mut Client, config: &str, format: &str, module: &[u8]) -> Result<Self> {
        let blueprint = pappus_blueprint::parse(config.as_bytes())?;
        let name = blueprint.modules().first().ok_or("a function without a module")?.name.clone();
        let sha256 = client.put_blob(Blob::Bytes(module))?.sha256;
        let variants = vec![Variant { format: format.to_owned(), arch: String::new(), sha256 }];
        Ok(Self(AddFunction {
            config_sha256: client.put_blob(Blob::Bytes(config.as_bytes()))?.sha256,
            modules: vec![FunctionModule { name, variants, registered: String::new() }],
            ..AddFunction::default()
        }))
    }

    /// Hands over the parts of one of the library's functions; `tail` is added to the text of PTX modules, so
    /// that they are different ones.
    pub fn put_as(client: &mut Client, function: &str, form: Form, tail: &str) -> Result<Self> {
        let text = config(function).ok_or_else(|| format!("the library has no function {function}"))?;
        Self::put_text(client, text, form, tail)
    }

    /// As [`Handed::put_as`], for a configuration that uses the library's modules.
    pub fn put_text(client: &mut Client, text: &str, form: Form, tail: &str) -> Result<Self> {
        let mut add = AddFunction {
            config_sha256: client.put_blob(Blob::Bytes(text.as_bytes()))?.sha256,
            ..AddFunction::default()
        };
        for module in pappus_blueprint::parse(text.as_bytes())?.modules() {
            let stem = Path::new(&module.path).file_stem().and_then(|name| name.to_str());
            let (mut variant, bytes) = form.variant(stem.unwrap_or_default())?;
            let tail = if form == Form::Ptx { tail } else { "" };
            variant.sha256 = client.put_blob(Blob::Bytes(&[bytes, tail.as_bytes()].concat()))?.sha256;
            add.modules.push(FunctionModule {
                name: module.name.clone(),
                variants: vec![variant],
                registered: String::new(),
            });
        }
        Ok(Self(add))
    }

    /// Adds a weights buffer by the hash of its bytes.
    pub fn weight(mut self, name: &str, blob: &BlobStored) -> Self {
        self.0.weights.push(Weight { name: name.to_owned(), sha256: blob.sha256.clone() });
        self
    }

    /// The request that registers it under `name`.
    pub fn named(&self, name: &str) -> AddFunction {
        AddFunction { name: name.to_owned(), ..self.0.clone() }
    }
}

/// Registers functions of the library under their own names.
pub fn register(client: &mut Client, functions: &[&str]) -> Result<()> {
    for function in functions {
        let handed = Handed::put(client, function)?;
        client.add_function(handed.named(function))?;
    }
    Ok(())
}

/// A matrix multiplication with everything in one arena, and where its result goes.
#[derive(Debug)]
pub struct Matmul {
    /// The call.
    pub call: Invocation,
    /// The shared memory.
    pub arena: Arena,
    /// Its result.
    pub output: Region,
}

impl Matmul {
    /// `matmul_tiled` of two matrices of [`SIDE`].
    pub fn tiled(client: &mut Client) -> Result<Self> {
        let mut arena = client.open_arena(1 << 20)?;
        let a = arena.store(&from_elements(&values(0)))?;
        let b = arena.store(&from_elements(&values(1)))?;
        let output = arena.alloc(SIDE * SIDE * 8)?;
        let call = Invocation::new("matmul_tiled")
            .input("A", a)
            .typed("A", "i64", &[SIDE; 2])
            .input("B", b)
            .typed("B", "i64", &[SIDE; 2])
            .output_to("C", output);
        Ok(Self { call, arena, output })
    }
}

/// A call whose client asks again and again; the nanoseconds it took.
pub fn polled(client: &mut Client, call: &Invocation) -> Result<u64> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let start = Instant::now();
    client.send_invocation(call)?;
    loop {
        if let Some(answer) = client.recv_within(Duration::ZERO)? {
            return match answer.body {
                Some(response::Body::Invoked(_)) => Ok(nanoseconds(start)),
                other => Err(format!("a call ended with {other:?}").into()),
            };
        }
        if start.elapsed() > PATIENCE {
            return Err("a call was not answered for 30 s".into());
        }
        std::hint::spin_loop();
    }
}

/// The elements of a matrix of [`SIDE`]; different ones for another `seed`.
pub fn values(seed: u64) -> Vec<i64> {
    let number = |at| ((at * 37 + seed * 11) % 101) as i64 - 50;
    (0..SIDE * SIDE).map(number).collect()
}

/// A matrix of [`SIDE`] that says so in front, as `matmul` takes it.
pub fn square() -> Vec<i64> {
    [vec![SIDE as i64], values(0)].concat()
}

/// The image and the filter of the evaluation's `inference`, as bytes.
pub fn picture() -> (Vec<u8>, Vec<u8>) {
    let matrix = |rows: usize, cols: usize| {
        let values = (0..rows * cols).map(|at| (at % 251) as f32 / 16.0);
        from_elements(&[rows as f32, cols as f32].into_iter().chain(values).collect::<Vec<f32>>())
    };
    (matrix(PICTURE as usize, PICTURE as usize), matrix(5, 5))
}
