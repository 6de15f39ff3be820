//! What a record holds. Records are small: ten thousand of them stay in memory.

use pappus_proto::v1;
use pappus_protocol::from_worker::{KernelInfo, ParamClass, ParamInfo};
use serde::{Deserialize, Serialize};

use crate::limits::MAX_DETAILS;
pub use crate::sha256::Hash;

/// The compiled form of a module for one kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// `wasm`, `ptx`, `cubin`, `fatbin` or `hsaco`.
    pub format: Box<str>,
    /// Such as `sm_90`; empty for the format's default.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub arch: Box<str>,
    /// Its bytes.
    pub sha256: Hash,
    /// How many.
    pub bytes: u64,
}

impl Variant {
    /// Format and architecture, for messages.
    pub fn label(&self) -> String {
        match &*self.arch {
            "" => self.format.to_string(),
            arch => format!("{} {arch}", self.format),
        }
    }

    /// As clients see it.
    pub fn to_proto(&self) -> v1::Variant {
        v1::Variant {
            format: self.format.to_string(),
            arch: self.arch.to_string(),
            sha256: self.sha256.0.to_vec().into(),
        }
    }
}

/// A module registered by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleRecord {
    /// Its name.
    pub name: String,
    /// Its variants, at least one.
    pub variants: Vec<Variant>,
}

/// A module as a function uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionModule {
    /// As the configuration calls it.
    pub name: Box<str>,
    /// Its variants, at least one.
    pub variants: Box<[Variant]>,
}

/// The content of a weights buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The buffer.
    pub name: Box<str>,
    /// Its bytes.
    pub sha256: Hash,
    /// How many.
    pub bytes: u64,
}

/// A registered function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRecord {
    /// Its name.
    pub name: String,
    /// The JSON configuration.
    pub config: Hash,
    /// In the blueprint's order.
    pub modules: Box<[FunctionModule]>,
    /// In the blueprint's order.
    pub weights: Box<[Weight]>,
    /// Names of its inputs.
    pub inputs: Box<[Box<str>]>,
    /// Its outputs.
    pub outputs: Box<[Output]>,
}

/// An output of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The buffer.
    pub name: Box<str>,
    /// Element type, if the blueprint gives one.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub dtype: Box<str>,
}

impl FunctionRecord {
    /// Every variant of its modules.
    pub fn variants(&self) -> impl Iterator<Item = &Variant> + '_ {
        self.modules.iter().flat_map(|m| m.variants.iter())
    }

    /// Every blob it needs.
    pub fn blobs(&self) -> impl Iterator<Item = Hash> + '_ {
        let modules = self.variants().map(|v| v.sha256);
        std::iter::once(self.config).chain(modules).chain(self.weights.iter().map(|w| w.sha256))
    }
}

/// Who may call a function besides its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Its name.
    pub name: String,
    /// Names of tenants, sorted.
    pub callers: Vec<Box<str>>,
}

/// What the compiler found in a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeInfo {
    /// Kernels it offers. Records of older builds have names only: they do not read, and are made anew.
    pub kernels: Vec<KernelInfo>,
}

impl CodeInfo {
    /// Fills in what clients see of it.
    pub fn describe(self, info: &mut v1::VariantInfo) {
        info.kernels = self.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        // An answer is one message; whoever has a module with more than this knows it.
        let params = self.kernels.iter().map(|kernel| 1 + kernel.params.as_ref().map_or(0, Vec::len));
        if params.sum::<usize>() <= MAX_DETAILS {
            info.details = self.kernels.into_iter().map(kernel_to_proto).collect();
        }
    }
}

fn kernel_to_proto(kernel: KernelInfo) -> v1::Kernel {
    let param = |param: ParamInfo| {
        let class = match param.class {
            ParamClass::Unknown => "",
            ParamClass::Integer => "integer",
            ParamClass::Float => "float",
            ParamClass::Bytes => "struct",
        };
        v1::KernelParam { offset: param.offset, bytes: param.bytes, r#type: class.to_owned() }
    };
    v1::Kernel {
        name: kernel.name,
        has_params: kernel.params.is_some(),
        params: kernel.params.into_iter().flatten().map(param).collect(),
        local_bytes: kernel.local_bytes,
        stack_bytes: kernel.stack_bytes,
        shared_bytes: kernel.shared_bytes,
        max_threads: kernel.max_threads,
    }
}
