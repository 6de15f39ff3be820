//! What the registry answers as messages of the client protocol.

use pappus_proto::v1;
use pappus_protocol::from_worker::{KernelInfo, ParamClass, ParamInfo};

use crate::limits::{MAX_DETAILS, MAX_SIGNATURE_BYTES};
use crate::registry::views::{FunctionView, ListedFunction, ModuleView};
use crate::store::records::{CodeInfo, FunctionRecord, ModuleRecord, Variant};

/// A module with its kernels.
pub(super) fn module(view: ModuleView) -> v1::ModuleInfo {
    found(&view.record.name, &view.record.variants, view.code)
}

/// A module in a list.
pub(super) fn listed_module(record: &ModuleRecord) -> v1::ModuleInfo {
    let variants = record.variants.iter().map(|one| variant_info(one, None)).collect();
    v1::ModuleInfo { name: record.name.clone(), variants }
}

/// A function as its owner is told of it.
pub(super) fn function(record: &FunctionRecord) -> v1::FunctionInfo {
    let modules = record.modules.iter().map(|module| v1::FunctionModule {
        name: module.name.to_string(),
        variants: module.variants.iter().map(variant).collect(),
        registered: String::new(),
    });
    let weights = record.weights.iter().map(|w| v1::WeightInfo { name: w.name.to_string(), bytes: w.bytes });
    v1::FunctionInfo { modules: modules.collect(), weights: weights.collect(), ..own_in_list(record) }
}

/// A function with its configuration and kernels.
pub(super) fn shown_function(view: FunctionView) -> v1::FunctionInfo {
    let record = &view.record;
    let found = record.modules.iter().zip(view.code);
    v1::FunctionInfo {
        config: String::from_utf8_lossy(&view.config).into_owned(),
        found: found.map(|(module, code)| self::found(&module.name, &module.variants, code)).collect(),
        ..function(record)
    }
}

/// A function in a list.
pub(super) fn listed_function(listed: &ListedFunction) -> v1::FunctionInfo {
    match listed {
        ListedFunction::Own(record) => own_in_list(record),
        ListedFunction::Granted { reference, record } => v1::FunctionInfo {
            name: reference.to_string(),
            inputs: inputs(record),
            outputs: record
                .outputs
                .iter()
                .map(|output| v1::OutputInfo { name: output.name.to_string(), dtype: String::new() })
                .collect(),
            granted: true,
            ..Default::default()
        },
    }
}

/// The names of modules are left out where they are longer than a page of a list has room for.
fn own_in_list(record: &FunctionRecord) -> v1::FunctionInfo {
    let name_bytes: usize = record.modules.iter().map(|module| module.name.len()).sum();
    let listed = if name_bytes <= MAX_SIGNATURE_BYTES { &record.modules[..] } else { &[] };
    let modules = listed
        .iter()
        .map(|module| v1::FunctionModule { name: module.name.to_string(), ..Default::default() });
    let outputs = record
        .outputs
        .iter()
        .map(|output| v1::OutputInfo { name: output.name.to_string(), dtype: output.dtype.to_string() });
    v1::FunctionInfo {
        name: record.name.clone(),
        config_sha256: record.config.0.to_vec().into(),
        modules: modules.collect(),
        inputs: inputs(record),
        outputs: outputs.collect(),
        ..Default::default()
    }
}

fn inputs(record: &FunctionRecord) -> Vec<String> {
    record.inputs.iter().map(|name| name.to_string()).collect()
}

/// A module and what is in its variants.
fn found(name: &str, variants: &[Variant], code: Vec<Option<CodeInfo>>) -> v1::ModuleInfo {
    let variants = variants.iter().zip(code).map(|(variant, code)| variant_info(variant, code)).collect();
    v1::ModuleInfo { name: name.to_owned(), variants }
}

fn variant(variant: &Variant) -> v1::Variant {
    v1::Variant {
        format: variant.format.to_string(),
        arch: variant.arch.to_string(),
        sha256: variant.sha256.0.to_vec().into(),
    }
}

fn variant_info(one: &Variant, code: Option<CodeInfo>) -> v1::VariantInfo {
    let mut info = v1::VariantInfo { variant: Some(variant(one)), bytes: one.bytes, ..Default::default() };
    let Some(CodeInfo { kernels, .. }) = code else { return info };
    info.kernels = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    // An answer is one message; of a module with more than this, it has the names.
    let params = kernels.iter().map(|kernel| 1 + kernel.params.as_ref().map_or(0, Vec::len));
    if params.sum::<usize>() <= MAX_DETAILS {
        info.details = kernels.into_iter().map(kernel).collect();
    }
    info
}

fn kernel(kernel: KernelInfo) -> v1::Kernel {
    let param = |param: ParamInfo| {
        let class = match param.class {
            ParamClass::Unknown => "",
            ParamClass::Integer => "integer",
            ParamClass::Float => "float",
            ParamClass::Bytes => "struct",
            ParamClass::Pointer => "pointer",
            ParamClass::Value => "value",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sha256::Hash;
    use crate::store::records::FunctionModule;

    #[test]
    fn a_list_has_names_of_modules_without_their_variants() {
        let listed = |name_bytes: usize| {
            let arch = Variant { format: "wasm".into(), arch: "".into(), sha256: Hash([1; 32]), bytes: 8 };
            let module = FunctionModule { name: "m".repeat(name_bytes).into(), variants: Box::new([arch]) };
            let record = FunctionRecord {
                name: "f".into(),
                config: Hash([0; 32]),
                modules: Box::new([module]),
                weights: Box::default(),
                inputs: Box::default(),
                outputs: Box::default(),
            };
            listed_function(&ListedFunction::Own(std::sync::Arc::new(record))).modules
        };
        let expected = v1::FunctionModule { name: "m".into(), ..Default::default() };
        assert_eq!(listed(1), [expected]);
        assert_eq!(listed(MAX_SIGNATURE_BYTES + 1), []);
    }
}
