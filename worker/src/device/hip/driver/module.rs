//! Machine code: modules, their kernels and variables. The library tells little about them, so what is known comes from
//! reading the code object.

use std::ffi::CString;

use pappus_blueprint::hsaco::{self, CodeObject};

use super::call;
use super::error::HipError;
use crate::device::CodeError;
use crate::device::gpu::driver::{self, LoadedKernel, ParamPlace, Section, Variable};
use crate::device::hip::sys;

/// Loaded machine code.
#[derive(Debug)]
pub struct Module {
    raw: sys::hipModule_t,
    /// The kernels, by the code object's note.
    kernels: Vec<hsaco::Kernel>,
}

/// A kernel of a module that is loaded; its holder holds the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    raw: sys::hipFunction_t,
    param_bytes: usize,
}

/// The one code object in `image`.
pub(crate) fn judge(image: &[u8]) -> Result<CodeObject<'_>, CodeError> {
    let mut objects = hsaco::read(image)?;
    match (objects.pop(), objects.is_empty()) {
        (Some(object), true) if object.bytes.len() == image.len() => Ok(object),
        _ => Err("a bundle where one code object was expected".into()),
    }
}

/// What kernels of a code object can write, but for the compiler's mark, which none does. Variables that have no names for the driver are told by one without a name,
/// which is never found: then the module is loaded again behind each call.
pub(crate) fn writable(object: &CodeObject<'_>) -> Vec<Section> {
    let section = |section: &hsaco::Section| {
        let mut order: Vec<_> = section.variables.iter().collect();
        order.sort_by_key(|variable| variable.offset);
        let mut variables: Vec<_> = order
            .iter()
            .map(|variable| Variable { name: variable.name.clone(), offset: variable.offset })
            .collect();
        let end = order.iter().map(|variable| variable.offset + variable.bytes).max();
        let is_told = order.first().is_some_and(|first| first.offset == 0) && end == Some(section.bytes);
        if !is_told {
            variables.push(Variable { name: String::new(), offset: section.bytes });
        }
        Section { variables }
    };
    object.writable.iter().filter(|section| !section.is_compilers_mark()).map(section).collect()
}

impl Module {
    /// Loads a code object.
    pub fn load(image: &[u8]) -> Result<Self, HipError> {
        let object = judge(image).map_err(|_| HipError::INVALID_IMAGE)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle. The driver takes the image's length from its own headers, every range of which lies
        // inside it (`judge`).
        unsafe { call!(hipModuleLoadData(&mut raw, image.as_ptr().cast())) }?;
        Ok(Self { raw, kernels: object.kernels })
    }

    /// The kernel of that name, and its description in the code object.
    pub fn find(&self, name: &str) -> Result<Option<(Kernel, &hsaco::Kernel)>, HipError> {
        let Some(told) = self.kernels.iter().find(|kernel| kernel.name == name) else { return Ok(None) };
        let Ok(name) = CString::new(name) else { return Ok(None) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the name ends with a zero byte.
        unsafe { call!(hipModuleGetFunction(&mut raw, self.raw, name.as_ptr())) }?;
        let end = told.arguments.iter().map(|argument| argument.offset + argument.bytes).max();
        Ok(Some((Kernel { raw, param_bytes: end.unwrap_or(0) as usize }, told)))
    }
}

impl driver::Module for Module {
    type Error = HipError;
    type Kernel = Kernel;

    /// Dynamic shared memory needs no permission here: a launch with more than there is fails.
    fn kernel(&self, name: &str) -> Result<Option<LoadedKernel<Kernel>>, HipError> {
        let found = self.find(name)?;
        Ok(found.map(|(kernel, told)| {
            let place =
                |argument: &hsaco::Argument| ParamPlace { offset: argument.offset, bytes: argument.bytes };
            let params = told.arguments.iter().map(place).collect();
            LoadedKernel { kernel, params, local_bytes: told.private_bytes, window: None }
        }))
    }

    fn variable(&self, name: &str) -> Option<(u64, u64)> {
        if name.is_empty() {
            return None;
        }
        let name = CString::new(name).ok()?;
        let (mut address, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: writes two numbers; the name ends with a zero byte.
        unsafe { call!(hipModuleGetGlobal(&mut address, &mut bytes, self.raw, name.as_ptr())) }.ok()?;
        Some((address.addr() as u64, bytes as u64))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by this value; nothing that runs uses it.
        let _ = unsafe { call!(hipModuleUnload(self.raw)) };
    }
}

impl Kernel {
    /// A kernel of no module that takes so many bytes.
    #[cfg(test)]
    pub(super) fn of(param_bytes: usize) -> Self {
        Self { raw: std::ptr::without_provenance_mut(3), param_bytes }
    }

    pub(super) fn raw(self) -> sys::hipFunction_t {
        self.raw
    }

    /// Bytes of what a launch passes.
    pub(super) fn param_bytes(self) -> usize {
        self.param_bytes
    }
}
