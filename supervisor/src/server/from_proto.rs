//! Messages of the client protocol as the registry's requests. Bytes are handed on, not copied.

use pappus_proto::v1;

use crate::registry::admission::{NewFunction, NewFunctionModule, NewModule, NewVariant, NewWeight};

/// A module to be added.
pub(super) fn module(message: v1::AddModule) -> NewModule {
    NewModule { name: message.name, variants: variants(message.variants) }
}

/// A function to be added, of which so many older versions are kept.
pub(super) fn function(message: v1::AddFunction, keep: usize) -> NewFunction {
    let module = |module: v1::FunctionModule| NewFunctionModule {
        name: module.name,
        variants: variants(module.variants),
        registered: module.registered,
    };
    let weight = |weight: v1::Weight| NewWeight { name: weight.name, sha256: weight.sha256 };
    NewFunction {
        name: message.name,
        config_sha256: message.config_sha256,
        modules: message.modules.into_iter().map(module).collect(),
        weights: message.weights.into_iter().map(weight).collect(),
        replace: message.replace,
        keep,
    }
}

fn variants(messages: Vec<v1::Variant>) -> Vec<NewVariant> {
    let variant = |variant: v1::Variant| NewVariant {
        format: variant.format,
        arch: variant.arch,
        sha256: variant.sha256,
    };
    messages.into_iter().map(variant).collect()
}
