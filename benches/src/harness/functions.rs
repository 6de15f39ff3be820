//! The library's functions registered in a supervisor, and calls of them.

use std::path::Path;

use pappus_client::v1::{AddFunction, FunctionModule, Region, Variant};
use pappus_client::{Arena, Blob, Client, Invocation};
use pappus_kernels::bytes::from_elements;
use pappus_kernels::{artefact, cfg, config};

use crate::Result;

/// The side of the matrices in small calls: 128 KiB in each.
pub const SIDE: u64 = 128;

/// A function whose parts the supervisor has; registering it takes one request more.
#[derive(Debug, Clone)]
pub struct Handed(AddFunction);

impl Handed {
    /// Hands over the parts of one of the library's functions.
    pub fn put(client: &mut Client, function: &str) -> Result<Self> {
        let text = config(function).ok_or_else(|| format!("the library has no function {function}"))?;
        let mut add = AddFunction {
            config_sha256: client.put_blob(Blob::Bytes(text.as_bytes()))?.sha256,
            ..AddFunction::default()
        };
        for module in pappus_blueprint::parse(text.as_bytes())?.modules() {
            let file = Path::new(&module.path).file_name().and_then(|name| name.to_str());
            let bytes = file
                .and_then(artefact)
                .ok_or_else(|| format!("the library has no module {}", module.path))?;
            add.modules.push(FunctionModule {
                name: module.name.clone(),
                variants: vec![Variant {
                    format: "wasm".into(),
                    arch: String::new(),
                    sha256: client.put_blob(Blob::Bytes(bytes))?.sha256,
                }],
                registered: String::new(),
            });
        }
        Ok(Self(add))
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
        let words = arena.store(&from_elements(&cfg::product(SIDE, SIDE, SIDE)))?;
        let a = arena.store(&from_elements(&values(0)))?;
        let b = arena.store(&from_elements(&values(1)))?;
        let output = arena.alloc(SIDE * SIDE * 8)?;
        let call = Invocation::new("matmul_tiled")
            .input("cfg", words)
            .input("A", a)
            .input("B", b)
            .output_to("C", output);
        Ok(Self { call, arena, output })
    }
}

/// The elements of a matrix of [`SIDE`]; different ones for another `seed`.
pub fn values(seed: u64) -> Vec<i64> {
    let number = |at| ((at * 37 + seed * 11) % 101) as i64 - 50;
    (0..SIDE * SIDE).map(number).collect()
}
