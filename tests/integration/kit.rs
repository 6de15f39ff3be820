//! Small functions over the probe kernels (`probes.wat`), and checks of answers.

use std::sync::LazyLock;

use pappus_client::{Blob, Client, Code, Error, Invocation, Result, v1};
use rustix::process::Uid;
use serde_json::{Value, json};

use crate::fixture::Supervisor;

/// The probe kernels.
const PROBES: &str = include_str!("probes.wat");
const KERNELS: [&str; 7] = ["copy", "fill", "store", "global", "work", "spin", "trap"];

/// The probe kernels, as a module.
pub(crate) fn probes() -> &'static [u8] {
    static WASM: LazyLock<Vec<u8>> = LazyLock::new(|| wat::parse_str(PROBES).unwrap());
    &WASM
}

/// A blueprint over the probe kernels.
#[derive(Default)]
pub(crate) struct Function<'a> {
    pub(crate) inputs: &'a [&'a str],
    pub(crate) weights: &'a [(&'a str, &'a [u8])],
    pub(crate) state: &'a [(&'a str, Value)],
    pub(crate) buffers: &'a [(&'a str, Value)],
    pub(crate) outputs: &'a [&'a str],
    pub(crate) types: &'a [(&'a str, Value)],
    pub(crate) steps: &'a [Value],
}

impl Function<'_> {
    pub(crate) fn json(&self) -> String {
        let map = |named: &[(&str, Value)]| -> serde_json::Map<_, _> {
            named.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
        };
        let weights: Vec<_> = self.weights.iter().map(|(name, _)| *name).collect();
        let kernels = KERNELS.map(|kernel| json!({"module_name": "probes", "kernel_name": kernel}));
        json!({
            "modules": [{"module_name": "probes", "path": "probes.wasm"}],
            "kernels": kernels,
            "blueprint": {
                "inputs": self.inputs, "weights": weights, "state": map(self.state), "buffers": map(self.buffers),
                "outputs": self.outputs, "types": map(self.types), "control_flow": self.steps,
            }
        })
        .to_string()
    }

    /// Registers it.
    pub(crate) fn add(&self, client: &mut Client, name: &str) {
        self.try_add(client, name).unwrap();
    }

    pub(crate) fn try_add(&self, client: &mut Client, name: &str) -> Result<v1::FunctionInfo> {
        self.try_add_with(client, name, probes())
    }

    /// Registers it in the place of another one.
    pub(crate) fn replace(&self, client: &mut Client, name: &str) -> Result<v1::FunctionInfo> {
        let function = self.parts(client, name, probes())?;
        client.add_function(v1::AddFunction { replace: true, ..function })
    }

    /// With a module of its own that has the probe kernels.
    fn try_add_with(&self, client: &mut Client, name: &str, module: &[u8]) -> Result<v1::FunctionInfo> {
        let function = self.parts(client, name, module)?;
        client.add_function(function)
    }

    /// Hands its parts over.
    fn parts(&self, client: &mut Client, name: &str, module: &[u8]) -> Result<v1::AddFunction> {
        let weights = self.weights.iter().map(|(name, content)| {
            let sha256 = client.put_blob(Blob::Bytes(content))?.sha256;
            Ok(v1::Weight { name: (*name).into(), sha256 })
        });
        let weights = weights.collect::<Result<_>>()?;
        let variant = try_wasm(client, module)?;
        let function = parts(client, name, &self.json(), module_of("probes", vec![variant]))?;
        Ok(v1::AddFunction { weights, ..function })
    }
}

/// Hands a configuration over, and names what makes a function of it and one module.
pub(crate) fn parts(
    client: &mut Client,
    name: &str,
    config: &str,
    module: v1::FunctionModule,
) -> Result<v1::AddFunction> {
    let config_sha256 = client.put_blob(Blob::Bytes(config.as_bytes()))?.sha256;
    let name = name.to_owned();
    Ok(v1::AddFunction { name, config_sha256, modules: vec![module], weights: vec![], replace: false })
}

/// A function's own module, with variants that were handed over.
pub(crate) fn module_of(name: &str, variants: Vec<v1::Variant>) -> v1::FunctionModule {
    v1::FunctionModule { name: name.into(), variants, registered: String::new() }
}

/// Hands a wasm module over.
pub(crate) fn wasm(client: &mut Client, module: &[u8]) -> v1::Variant {
    try_wasm(client, module).unwrap()
}

fn try_wasm(client: &mut Client, module: &[u8]) -> Result<v1::Variant> {
    let sha256 = client.put_blob(Blob::Bytes(module))?.sha256;
    Ok(v1::Variant { format: "wasm".into(), arch: String::new(), sha256 })
}

/// One of the functions that come with Pappus.
pub(crate) fn add_library(client: &mut Client, name: &str) {
    let config = pappus_kernels::config(name).unwrap();
    let path = serde_json::from_str::<Value>(config).unwrap()["module_path"].as_str().unwrap().to_owned();
    let file = path.rsplit('/').next().unwrap();
    let variant = wasm(client, pappus_kernels::artefact(file).unwrap());
    let function = parts(client, name, config, module_of(file, vec![variant])).unwrap();
    client.add_function(function).unwrap();
}

/// `in` → `out`: a copy, by this name.
pub(crate) fn add_copy_as(client: &mut Client, name: &str, module: &[u8]) -> Result<v1::FunctionInfo> {
    let size = json!({"Sizeof": "in"});
    let copied = launch("copy", &[ptr("in"), ptr("out"), json!({"I64": {"Sizeof": "in"}})]);
    let function = Function {
        inputs: &["in"],
        buffers: &[("out", size)],
        outputs: &["out"],
        steps: &[copied],
        ..Function::default()
    };
    function.try_add_with(client, name, module)
}

/// `in` → `out`: a copy.
pub(crate) fn add_copy(client: &mut Client) {
    add_copy_as(client, "copy", probes()).unwrap();
}

/// Registers `in` → `out`, 8 bytes each: `out` is what the call before brought, which is the state. `more` runs behind that.
pub(crate) fn add_last(client: &mut Client, name: &str, more: &[Value]) {
    last(more, |function| function.try_add(client, name).unwrap());
}

/// The same in the place of the one before.
pub(crate) fn replace_last(client: &mut Client, name: &str, more: &[Value]) {
    last(more, |function| function.replace(client, name).unwrap());
}

fn last(more: &[Value], register: impl FnOnce(Function<'_>) -> v1::FunctionInfo) {
    let copy = |from: &str, to: &str| json!({"Copy": {"from": from, "to": to, "bytes": 8}});
    let steps = [&[copy("last", "out"), copy("in", "last")], more].concat();
    let function = Function {
        inputs: &["in"],
        state: &[("last", absolute(8))],
        buffers: &[("out", absolute(8))],
        outputs: &["out"],
        steps: &steps,
        ..Function::default()
    };
    register(function);
}

/// Nothing → nothing: one launch of `kernel`.
pub(crate) fn add_kernel(client: &mut Client, name: &str, kernel: &str, args: &[Value]) {
    let function = Function { steps: &[launch(kernel, args)], ..Function::default() };
    function.add(client, name);
}

/// Nothing → nothing: never ends by itself.
pub(crate) fn add_spin(client: &mut Client) {
    add_kernel(client, "spin", "spin", &[]);
}

/// A launch by one thread.
pub(crate) fn launch(kernel: &str, args: &[Value]) -> Value {
    let one = absolute(1);
    json!({"ExecKernel": [kernel, args, {
        "grid_dim_x": one, "grid_dim_y": one, "grid_dim_z": one,
        "block_dim_x": one, "block_dim_y": one, "block_dim_z": one, "shared_mem_bytes": absolute(0),
    }]})
}

pub(crate) fn absolute(n: u64) -> Value {
    json!({ "Absolute": n })
}

pub(crate) fn ptr(buffer: &str) -> Value {
    json!({ "Ptr": buffer })
}

pub(crate) fn constant(n: i64) -> Value {
    json!({ "Constant": n })
}

/// Calls `copy`; the answer.
pub(crate) fn copied(client: &mut Client, bytes: &[u8]) -> Result<Vec<u8>> {
    let call = Invocation::new("copy").input("in", bytes).output("out");
    Ok(client.invoke(&call)?.outputs[0].inline.to_vec())
}

/// The supervisor still does what it is for, for this client.
pub(crate) fn works(client: &mut Client) {
    assert_eq!(copied(client, b"works").unwrap(), b"works");
}

/// The refusal that an answer must be.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T>, code: Code, words: &str) -> v1::Error {
    match answer {
        Err(Error::Refused(error)) if error.code() == code && error.to_string().contains(words) => error,
        other => panic!("expected {code:?} with {words:?}, got {other:?}"),
    }
}

/// The end of a call that must fail, sent before.
pub(crate) fn fails(client: &mut Client, id: u64, code: Code) -> v1::Error {
    refused(client.wait_invoked(id), code, "")
}

/// A supervisor with `copy` and `spin`, and the connection that registered them.
pub(crate) fn copy_and_spin() -> (Supervisor, Client) {
    copy_and_spin_with(&[])
}

/// The same, with flags.
pub(crate) fn copy_and_spin_with(flags: &[&str]) -> (Supervisor, Client) {
    let supervisor = Supervisor::with(flags);
    let mut client = supervisor.client();
    add_copy(&mut client);
    add_spin(&mut client);
    (supervisor, client)
}

/// The other user.
pub(crate) const STRANGER: u32 = 54_321;

/// Connections of another user, made by `connect`; `None` where this user cannot become another.
pub(crate) fn as_stranger<T: Send>(connect: impl FnOnce() -> T + Send) -> Option<T> {
    as_user(STRANGER, connect)
}

/// The same of any other user.
pub(crate) fn as_user<T: Send>(user: u32, connect: impl FnOnce() -> T + Send) -> Option<T> {
    let uid = Uid::from_raw(user);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let became = rustix::thread::set_thread_uid(uid);
            assert_eq!(became.is_ok(), rustix::process::geteuid().as_raw() == user);
            became.is_ok().then(connect)
        });
        thread.join().unwrap()
    })
}
