//! What the registry answers as messages of the client protocol.

use pappus_proto::v1;
use std::sync::Arc;

use pappus_blueprint::kernel_info::CodeInfo;
use pappus_protocol::from_worker::{KernelInfo, ParamInfo};

use crate::function::Versions;
use crate::limits::{LIST_BYTES, LISTED_MODULE_BYTES, MAX_DETAILS, MAX_KERNEL_NAMES};
use crate::registry::views::{
    FunctionView, KnownCode, ListedFunction, ModuleView, Registered, Registration, VersionList,
};
use crate::store::records::{Declared, Dimension, FunctionRecord, ModuleRecord, Output, Variant};

/// A module with its kernels.
pub(super) fn module(view: ModuleView) -> v1::ModuleInfo {
    found(&view.record.name, &view.record.variants, view.code, &mut Room::default())
}

/// A module that was registered.
pub(super) fn added_module(view: ModuleView, done: Registration) -> v1::ModuleInfo {
    v1::ModuleInfo { registration: registration(done).into(), ..module(view) }
}

/// A function that was registered.
pub(super) fn added_function(added: &Registered, versions: &VersionList) -> v1::FunctionInfo {
    let registration = registration(added.registration).into();
    v1::FunctionInfo { registration, ..function(&added.record, versions) }
}

fn registration(done: Registration) -> v1::Registration {
    match done {
        Registration::Added => v1::Registration::Added,
        Registration::Replaced => v1::Registration::Replaced,
        Registration::Unchanged => v1::Registration::Unchanged,
    }
}

/// A module in a list.
pub(super) fn listed_module(record: &ModuleRecord) -> v1::ModuleInfo {
    let variants = record.variants.iter().map(|one| variant_info(one, None, &mut Room::default())).collect();
    v1::ModuleInfo { name: record.name.clone(), variants, ..Default::default() }
}

/// A function as its owner is told of it.
fn function(record: &FunctionRecord, versions: &VersionList) -> v1::FunctionInfo {
    let modules = record.modules.iter().map(|module| v1::FunctionModule {
        name: module.name.to_string(),
        variants: module.variants.iter().map(variant).collect(),
        registered: String::new(),
    });
    let weights = record.weights.iter().map(|w| v1::WeightInfo {
        name: w.name.to_string(),
        bytes: w.bytes,
        sha256: w.sha256.0.to_vec().into(),
    });
    v1::FunctionInfo {
        modules: modules.collect(),
        weights: weights.collect(),
        ..own_in_list(record, versions)
    }
}

/// A function with its configuration and kernels.
pub(super) fn shown_function(view: FunctionView) -> v1::FunctionInfo {
    let record = &view.record;
    let found = record.modules.iter().zip(view.code);
    let mut room = Room::default();
    v1::FunctionInfo {
        config: match record.is_consecutive() {
            false => String::from_utf8_lossy(&view.config).into_owned(),
            true => String::new(),
        },
        found: found
            .map(|(module, code)| self::found(&module.name, &module.variants, code, &mut room))
            .collect(),
        ..function(record, &view.versions)
    }
}

/// A function in a list.
pub(super) fn listed_function(listed: &ListedFunction) -> v1::FunctionInfo {
    match listed {
        ListedFunction::Own { record, versions } => own_in_list(record, versions),
        ListedFunction::Granted { reference, record, versions } => v1::FunctionInfo {
            name: reference.to_string(),
            inputs: inputs(record),
            outputs: outputs(record, Audience::Grantees),
            input_types: input_types(record, Audience::Grantees),
            state_bytes: record.state_bytes,
            granted: true,
            version: Versions::of(record).for_caller(true),
            number: record.number,
            current: versions.current,
            kept: versions.kept.clone(),
            aliases: aliases(versions),
            ..Default::default()
        },
    }
}

/// The names of modules are left out where they are longer than a page of a list has room for.
fn own_in_list(record: &FunctionRecord, versions: &VersionList) -> v1::FunctionInfo {
    let name_bytes: usize = record.modules.iter().map(|module| module.name.len()).sum();
    let listed = if name_bytes <= LISTED_MODULE_BYTES { &record.modules[..] } else { &[] };
    let modules = listed
        .iter()
        .map(|module| v1::FunctionModule { name: module.name.to_string(), ..Default::default() });
    v1::FunctionInfo {
        name: record.name.clone(),
        config_sha256: record.config.0.to_vec().into(),
        modules: modules.collect(),
        inputs: inputs(record),
        outputs: outputs(record, Audience::Owner),
        input_types: input_types(record, Audience::Owner),
        state_bytes: record.state_bytes,
        version: Versions::of(record).for_caller(false),
        number: record.number,
        current: versions.current,
        kept: versions.kept.clone(),
        aliases: aliases(versions),
        composition_sha256: record
            .composition
            .as_ref()
            .map(|of| of.text.0.to_vec().into())
            .unwrap_or_default(),
        ..Default::default()
    }
}

fn aliases(versions: &VersionList) -> Vec<v1::VersionAlias> {
    let all = versions.aliases.iter();
    all.map(|(name, number)| v1::VersionAlias { name: name.to_string(), number: *number }).collect()
}

fn inputs(record: &FunctionRecord) -> Vec<String> {
    record.inputs.iter().map(|name| name.to_string()).collect()
}

/// Who is told of a function. Formulas of dimensions may name buffers and weights, which are its owner's to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    Owner,
    Grantees,
}

fn outputs(record: &FunctionRecord, audience: Audience) -> Vec<v1::OutputInfo> {
    let output = |output: &Output| v1::OutputInfo {
        name: output.name.to_string(),
        dtype: output.dtype.to_string(),
        shape: declared_shape(&output.shape, audience),
    };
    record.outputs.iter().map(output).collect()
}

fn input_types(record: &FunctionRecord, audience: Audience) -> Vec<v1::DeclaredType> {
    let declared = |declared: &Declared| v1::DeclaredType {
        dtype: declared.dtype.to_string(),
        shape: declared_shape(&declared.shape, audience),
    };
    record.input_types.iter().map(declared).collect()
}

fn declared_shape(shape: &Option<Box<[Dimension]>>, audience: Audience) -> Option<v1::DeclaredShape> {
    use v1::dimension::Elements;
    let dimensions = shape.as_ref()?.iter().map(|dim| {
        let elements = match dim {
            Dimension::Fixed(value) => Elements::Fixed(*value),
            Dimension::Free(name) => Elements::Free(name.to_string()),
            Dimension::Computed(formula) if audience == Audience::Owner => {
                Elements::Computed(formula.to_string())
            }
            Dimension::Computed(_) => Elements::Computed(String::new()),
        };
        v1::Dimension { elements: Some(elements) }
    });
    Some(v1::DeclaredShape { dimensions: dimensions.collect() })
}

/// Keeps as many of a page's functions as one answer has room for, at least one; true if some are left out.
pub(super) fn fitting(functions: &mut Vec<v1::FunctionInfo>) -> bool {
    let mut bytes = 0;
    let beyond = functions.iter().skip(1).position(|function| {
        bytes += prost::Message::encoded_len(function);
        bytes > LIST_BYTES
    });
    match beyond {
        Some(at) => functions.truncate(at + 1),
        None => return false,
    }
    true
}

/// A module and what is in its variants.
fn found(name: &str, variants: &[Variant], code: KnownCode, room: &mut Room) -> v1::ModuleInfo {
    let variants =
        variants.iter().zip(code).map(|(variant, code)| variant_info(variant, code, room)).collect();
    v1::ModuleInfo { name: name.to_owned(), variants, ..Default::default() }
}

fn variant(variant: &Variant) -> v1::Variant {
    v1::Variant {
        format: variant.format.to_string(),
        arch: variant.arch.to_string(),
        sha256: variant.sha256.0.to_vec().into(),
    }
}

/// What an answer, which is one message, has room for still.
struct Room {
    details: usize,
    name_bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { details: MAX_DETAILS, name_bytes: MAX_KERNEL_NAMES }
    }
}

/// Takes `amount` of what is left; true if there was as much.
fn takes(left: &mut usize, amount: usize) -> bool {
    let after = left.checked_sub(amount);
    *left = after.unwrap_or(*left);
    after.is_some()
}

fn variant_info(one: &Variant, code: Option<Arc<CodeInfo>>, room: &mut Room) -> v1::VariantInfo {
    let mut info = v1::VariantInfo { variant: Some(variant(one)), bytes: one.bytes, ..Default::default() };
    let kernels = code.as_ref().map_or(&[][..], |code| &code.kernels);
    if takes(&mut room.name_bytes, kernels.iter().map(|kernel| kernel.name.len()).sum()) {
        info.kernels = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    }
    if takes(&mut room.details, kernels.iter().map(KernelInfo::details).sum()) {
        info.details = kernels.iter().map(kernel).collect();
    }
    info
}

fn kernel(kernel: &KernelInfo) -> v1::Kernel {
    let param = |param: &ParamInfo| v1::KernelParam {
        offset: param.offset,
        bytes: param.bytes,
        r#type: param.class.name().to_owned(),
        name: param.name.to_string(),
    };
    v1::Kernel {
        name: kernel.name.clone(),
        has_params: kernel.params.is_some(),
        params: kernel.params.iter().flatten().map(param).collect(),
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
    fn a_page_ends_where_its_answer_is_full() {
        let large = |n: usize| v1::FunctionInfo {
            name: format!("{n}"),
            inputs: vec!["x".repeat(1000)],
            ..Default::default()
        };
        let mut few: Vec<_> = (0..10).map(large).collect();
        assert!(!fitting(&mut few) && few.len() == 10);
        let mut many: Vec<_> = (0..1500).map(large).collect();
        assert!(fitting(&mut many));
        let bytes: usize = many.iter().map(prost::Message::encoded_len).sum();
        assert!((1000..1100).contains(&many.len()) && bytes <= LIST_BYTES + 2000, "{} {bytes}", many.len());
    }

    #[test]
    fn callers_of_anothers_function_see_no_formulas() {
        let shape =
            Some(vec![Dimension::Free("n".into()), Dimension::Computed("sizeof(secret)".into())].into());
        let told = |audience| format!("{:?}", declared_shape(&shape, audience));
        assert!(told(Audience::Owner).contains("secret"));
        let grantee = told(Audience::Grantees);
        assert!(
            !grantee.contains("secret") && grantee.contains("Computed") && grantee.contains("Free(\"n\")")
        );
    }

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
                input_types: Box::default(),
                state_bytes: 0,
                composition: None,
                number: 1,
                largest: 0,
            };
            let (record, versions) = (Arc::new(record), VersionList::default());
            listed_function(&ListedFunction::Own { record, versions }).modules
        };
        let expected = v1::FunctionModule { name: "m".into(), ..Default::default() };
        assert_eq!(listed(1), [expected]);
        assert_eq!(listed(LISTED_MODULE_BYTES + 1), []);
    }
}
