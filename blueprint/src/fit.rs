//! What a blueprint does with kernels against what modules tell of them: names, blocks and arguments. Pure.

use std::collections::BTreeMap;

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::hints;
use crate::kernel_info::{KernelInfo, ParamClass, ParamInfo};
use crate::launches::{Launch, PassedParam};
use crate::types::ParamKind;

/// Kernels of a module, by their names.
pub type Told<'a> = BTreeMap<&'a str, &'a KernelInfo>;

/// The kernels of a module by their names.
pub fn by_name<'a>(kernels: impl IntoIterator<Item = &'a KernelInfo>) -> Told<'a> {
    kernels.into_iter().map(|kernel| (kernel.name.as_str(), kernel)).collect()
}

/// Where a blueprint and its modules disagree, in its order; nothing is known of a module that has none in `told`.
pub fn misfits<'a>(
    blueprint: &'a Blueprint,
    told: &'a [Option<Told<'a>>],
) -> impl Iterator<Item = Error> + 'a {
    let absent = blueprint.kernels().iter().enumerate().filter_map(|(at, kernel)| {
        let symbol = kernel.symbol.as_str();
        let there = told[kernel.module].as_ref().filter(|there| !there.contains_key(symbol))?.keys().copied();
        let (module, near) =
            (&blueprint.modules()[kernel.module].name, hints::nearest(symbol, there.clone()));
        let there = hints::listed(there);
        let message = format_args!("module {module} has no kernel `{symbol}`{near}; it has {there}");
        Some(Error::new(format_args!("kernels[{at}]"), message))
    });
    let launches = blueprint.launches().flat_map(|launch| {
        let kernel = &blueprint.kernels()[launch.kernel];
        let info = told[kernel.module].as_ref().and_then(|there| there.get(kernel.symbol.as_str()));
        info.map_or_else(Vec::new, |info| of_launch(&kernel.name, info, &launch))
    });
    absent.chain(launches)
}

/// What a launch does otherwise than the kernel takes it.
fn of_launch(name: &str, kernel: &KernelInfo, launch: &Launch<'_>) -> Vec<Error> {
    let mut misfits = Vec::new();
    let place = launch.place();
    let most = kernel.max_threads;
    if let Some(threads) = launch.block_threads.filter(|threads| most > 0 && *threads > most.into()) {
        let message =
            format_args!("kernel `{name}`: blocks of {threads} threads, it can be launched with {most}");
        misfits.push(Error::new(format_args!("{place}[2]"), message));
    }
    let Some(params) = &kernel.params else { return misfits };
    let (takes, passes) = (params.len(), launch.params().count());
    if takes != passes {
        let message = format_args!("kernel `{name}` takes {takes} arguments, the blueprint passes {passes}");
        misfits.push(Error::new(format_args!("{place}[1]"), message));
        return misfits;
    }
    let mut end = 0;
    for (at, (param, passed)) in params.iter().zip(launch.params()).enumerate() {
        if let Err(why) = of_param(param, passed, end) {
            let argument = hints::argument(at + 1, &param.name);
            let message = format_args!("kernel `{name}`, {argument}: {why}");
            misfits.push(Error::new(format_args!("{place}[1][{at}]"), message));
        }
        end = u64::from(param.offset) + u64::from(param.bytes);
    }
    misfits
}

/// Checks that a launch may pass this for a parameter; `end` is where the parameter before ends.
fn of_param(param: &ParamInfo, passed: PassedParam, end: u64) -> Result<(), String> {
    if param.bytes != passed.bytes || !takes(param.class, passed) {
        let (bytes, class, passed) = (hints::bytes(param.bytes), described(param.class), passed.described());
        return Err(format!("the kernel takes {bytes}{class}, the blueprint passes {passed}"));
    }
    passed.lies_at(param.offset.into(), end).map_err(|expected| {
        format!(
            "the kernel has it at byte {} of its parameters, the blueprint's alignment of {} puts it at byte {expected}: \
             give the struct the kernel's \"align\"",
            param.offset, passed.align
        )
    })
}

/// True if a kernel that declares this may be passed such a parameter.
fn takes(class: ParamClass, passed: PassedParam) -> bool {
    let pointer = passed.kind == ParamKind::Pointer;
    match class {
        ParamClass::Integer => !passed.kind.is_float(),
        ParamClass::Whole => !passed.kind.is_float() && !pointer,
        ParamClass::Float => !passed.kind.is_whole(),
        // A zero is an address of nothing.
        ParamClass::Pointer => pointer || passed.is_zero && passed.kind.is_whole(),
        ParamClass::Value => !pointer,
        ParamClass::Unknown | ParamClass::Bytes => true,
    }
}

/// ` (float)`: behind a number of bytes.
fn described(class: ParamClass) -> &'static str {
    match class {
        ParamClass::Unknown => "",
        ParamClass::Integer => " (integer or address)",
        ParamClass::Whole => " (integer)",
        ParamClass::Float => " (float)",
        ParamClass::Bytes => " (struct)",
        ParamClass::Pointer => " (pointer)",
        ParamClass::Value => " by value",
    }
}
