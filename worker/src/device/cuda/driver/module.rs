//! Machine code: modules, their kernels and globals; the linker that makes it.

use std::ffi::{CStr, CString, c_void};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUjit_option, CUjitInputType};

use super::error::{CudaError, check};
use crate::device::CodeError;
use crate::device::gpu::driver::{self, LoadedKernel, ParamPlace};

/// Loaded machine code.
#[derive(Debug)]
pub struct Module {
    raw: sys::CUmodule,
    /// Shared memory that a block of a kernel can have.
    shared_bytes: u32,
}

/// A kernel of a module that is loaded; its holder holds the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    raw: sys::CUfunction,
}

impl Module {
    /// Loads an image: a cubin.
    pub fn load(image: &[u8]) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle. The driver takes the image's length from its own headers: callers
        // pass whole ELF files only (`elf::judge`).
        check(unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) })?;
        Ok(Self { raw, shared_bytes: 0 })
    }

    /// The same, with kernels that can be launched with as much shared memory as a block can have.
    pub fn load_for_calls(image: &[u8], shared_bytes: u32) -> Result<Self, CudaError> {
        let mut module = Self::load(image)?;
        module.shared_bytes = shared_bytes;
        Ok(module)
    }

    /// The kernel of that name.
    pub fn find(&self, name: &str) -> Option<Kernel> {
        let name = CString::new(name).ok()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the name ends with a zero byte.
        check(unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()) }).ok()?;
        // SAFETY: loads the code now rather than in front of the first launch.
        check(unsafe { sys::cuFuncLoad(raw) }).ok()?;
        Some(Kernel { raw })
    }

    /// All kernels with their names.
    pub fn kernels(&self) -> Result<Vec<(String, Kernel)>, CudaError> {
        let mut count = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::cuModuleGetFunctionCount(&mut count, self.raw) })?;
        let mut raw = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: writes at most as many handles as there is room for.
        check(unsafe { sys::cuModuleEnumerateFunctions(raw.as_mut_ptr(), count, self.raw) })?;
        let named = raw.into_iter().map(|raw| {
            let mut name = std::ptr::null();
            // SAFETY: writes one pointer to a string that lives as long as the module.
            check(unsafe { sys::cuFuncGetName(&mut name, raw) })?;
            // SAFETY: the call above stored a pointer to a string of the module, which ends with a zero byte.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            // SAFETY: makes sure that the code is there, and not only announced: attributes need it.
            check(unsafe { sys::cuFuncLoad(raw) })?;
            Ok((name, Kernel { raw }))
        });
        named.collect()
    }
}

impl driver::Module for Module {
    type Error = CudaError;
    type Kernel = Kernel;

    fn kernel(&self, name: &str) -> Result<Option<LoadedKernel<Kernel>>, CudaError> {
        let Some(kernel) = self.find(name) else { return Ok(None) };
        kernel.allow_shared(self.shared_bytes.saturating_sub(kernel.shared_bytes()))?;
        let place = |(offset, bytes)| ParamPlace { offset, bytes };
        let params = kernel.params().into_iter().map(place).collect();
        Ok(Some(LoadedKernel { kernel, params, local_bytes: kernel.local_bytes(), window: None }))
    }

    fn variable(&self, name: &str) -> Option<(u64, u64)> {
        let name = CString::new(name).ok()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: writes two numbers; the name ends with a zero byte.
        check(unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, self.raw, name.as_ptr()) })
            .ok()?;
        Some((address, bytes as u64))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by this value; nothing that runs uses it.
        let _ = unsafe { sys::cuModuleUnload(self.raw) };
    }
}

impl Kernel {
    pub(super) fn raw(self) -> sys::CUfunction {
        self.raw
    }

    /// Offset and size of every parameter.
    pub fn params(self) -> Vec<(u32, u32)> {
        let mut params = Vec::new();
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: writes two numbers; a position behind the last is an error, which ends the list.
        while check(unsafe { sys::cuFuncGetParamInfo(self.raw, params.len(), &mut offset, &mut bytes) })
            .is_ok()
        {
            params.push((offset as u32, bytes as u32));
        }
        params
    }

    fn attribute(self, which: Attribute) -> u32 {
        let mut value = 0;
        // SAFETY: writes one number about a kernel that is loaded.
        match check(unsafe { sys::cuFuncGetAttribute(&mut value, which, self.raw) }) {
            Ok(()) => value as u32,
            Err(_) => 0,
        }
    }

    /// Bytes of stack of each thread.
    pub fn local_bytes(self) -> u32 {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// Bytes of shared memory that the kernel declares.
    pub fn shared_bytes(self) -> u32 {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    /// Most threads of a block.
    pub fn max_threads(self) -> u32 {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Registers of each thread.
    pub fn registers(self) -> u32 {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory.
    pub fn allow_shared(self, bytes: u32) -> Result<(), CudaError> {
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: sets an attribute of a kernel that is loaded.
        check(unsafe { sys::cuFuncSetAttribute(self.raw, which, bytes as i32) })
    }
}

/// What the linker is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Text; ends with a zero byte.
    Ptx,
    /// A fatbin.
    Fatbin,
}

/// Makes a cubin for the current context's device; an error is the linker's own words.
pub(crate) fn link(source: Source, bytes: &[u8]) -> Result<Vec<u8>, CodeError> {
    let mut log = vec![0u8; 16 << 10];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CUjit_option::CU_JIT_TARGET_FROM_CUCONTEXT,
    ];
    let mut values: [*mut c_void; 3] =
        [log.as_mut_ptr().cast(), log.len() as *mut c_void, std::ptr::null_mut()];
    let mut state = std::ptr::null_mut();
    // SAFETY: options and values are equally long and, like the log, outlive the linker's state.
    let made = check(unsafe {
        sys::cuLinkCreate_v2(options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr(), &mut state)
    });
    let linked = made.and_then(|()| {
        let kind = match source {
            Source::Ptx => CUjitInputType::CU_JIT_INPUT_PTX,
            Source::Fatbin => CUjitInputType::CU_JIT_INPUT_FATBINARY,
        };
        let (mut cubin, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the bytes live during the call; no further options.
        let added = check(unsafe {
            sys::cuLinkAddData_v2(
                state,
                kind,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                c"module".as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        });
        // SAFETY: writes one pointer and its length, valid until the state is destroyed.
        let completed =
            added.and_then(|()| check(unsafe { sys::cuLinkComplete(state, &mut cubin, &mut size) }));
        // SAFETY: `cuLinkComplete` stored this pointer and length; the bytes are copied before the state is destroyed.
        completed.map(|()| unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec())
    });
    if made.is_ok() {
        // SAFETY: created above, destroyed once.
        let _ = unsafe { sys::cuLinkDestroy(state) };
    }
    linked.map_err(|e| {
        let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
        match log.trim() {
            "" => CodeError(e.to_string()),
            words => CodeError(words.to_owned()),
        }
    })
}
