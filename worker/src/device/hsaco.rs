//! What AMD's machine code tells without a GPU: enough to check a function against it wherever it is registered. Reading
//! it is [`pappus_blueprint::hsaco`]'s.

use pappus_blueprint::hsaco::{self, Argument, Kernel};
use pappus_protocol::from_worker::{CompiledModule, KernelInfo, ParamClass, ParamInfo};

use super::{CodeError, MAX_MODULE_BYTES};

/// The kernels of a code object, or those that all objects of a bundle have; each object is judged.
pub fn declared(module: &[u8]) -> Result<CompiledModule, CodeError> {
    if module.len() > MAX_MODULE_BYTES {
        return Err(CodeError(format!(
            "the module has {} bytes, allowed are {MAX_MODULE_BYTES}",
            module.len()
        )));
    }
    let refused = |why: hsaco::Refused| CodeError(why.to_string());
    let objects = hsaco::read(module).map_err(refused)?;
    let kernels = hsaco::common_kernels(&objects).map_err(refused)?;
    Ok(CompiledModule {
        kernels: kernels.iter().map(|kernel| described(kernel, 0)).collect(),
        targets: objects.iter().map(|object| object.target.to_string()).collect(),
    })
}

/// A kernel for a device on which `threads` can be resident.
pub fn described(kernel: &Kernel, threads: u64) -> KernelInfo {
    let param = |argument: &Argument| ParamInfo {
        name: Box::default(),
        offset: argument.offset,
        bytes: argument.bytes,
        class: if argument.is_pointer { ParamClass::Pointer } else { ParamClass::Value },
    };
    KernelInfo {
        name: kernel.name.clone(),
        params: Some(kernel.arguments.iter().map(param).collect()),
        local_bytes: kernel.private_bytes,
        stack_bytes: u64::from(kernel.private_bytes) * threads,
        shared_bytes: kernel.lds_bytes,
        max_threads: kernel.max_threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_object_tells_its_kernels_and_what_it_is_made_for() {
        let module = include_bytes!("../../../kernels/built/linalg.gfx942.hsaco");
        let CompiledModule { kernels, targets } = declared(module).unwrap();
        assert_eq!(targets, ["gfx942"]);
        let sgemm = kernels.iter().find(|kernel| kernel.name == "vec_add_f").unwrap();
        let params: Vec<_> =
            sgemm.params.iter().flatten().map(|one| (one.offset, one.bytes, one.class)).collect();
        use ParamClass::{Pointer, Value};
        assert_eq!(params, [(0, 8, Pointer), (8, 8, Pointer), (16, 8, Pointer), (24, 8, Value)]);
        assert!(kernels.iter().all(|kernel| kernel.max_threads == 1024 && kernel.stack_bytes == 0));
        assert!(declared(&module[1..]).unwrap_err().to_string().contains("no code object"));
        assert!(declared(&vec![0; MAX_MODULE_BYTES + 1]).unwrap_err().to_string().contains("allowed are"));
    }
}
