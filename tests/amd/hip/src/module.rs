//! Code objects, their kernels and variables; launches.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use gfx9::chip::{Chip, Dispatch, LDS_BYTES, THREADS};
use gfx9::memory::Fault;
use gfx9::object::{CodeObject, Kernel};

use crate::error::{Code, INVALID_CONFIGURATION, INVALID_IMAGE, INVALID_VALUE, NO_BINARY, NOT_FOUND};
use crate::memory::{self, Registry, locked};
use crate::ranges::{self, Range, View};
use crate::settings::SETTINGS;

/// A loaded code object.
#[derive(Debug)]
pub(crate) struct Module {
    object: CodeObject,
    base: u64,
    device: usize,
}

/// A kernel of a loaded code object.
#[derive(Debug)]
pub(crate) struct Function {
    module: Arc<Module>,
    kernel: usize,
}

/// A launch with its arguments.
#[derive(Debug)]
pub(crate) struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    lds_bytes: u32,
    arguments: Vec<u8>,
}

pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();
/// Compute units that run nothing, those that ran last at the end. Kernels of several streams run beside each other, as if
/// every kernel had all compute units. A kernel finds the units as the kernel before left them.
static CHIPS: Mutex<Vec<Chip>> = Mutex::new(Vec::new());

const PAGE: u64 = 4096;
/// The longest image.
const MOST_BYTES: usize = 1 << 30;

/// How long an ELF file is, by its own headers.
///
/// # Safety
/// `image` is readable as far as its headers say.
unsafe fn length(image: *const u8) -> Option<usize> {
    // SAFETY: as the caller promises; an ELF header has 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    if !header.starts_with(b"\x7fELF\x02\x01\x01") {
        return None;
    }
    let word = |at: usize| header[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let half = |at: usize| header[at..].first_chunk().map(|bytes| u64::from(u16::from_le_bytes(*bytes)));
    let sections = word(40)?.checked_add(half(58)? * half(60)?)?;
    let segments = word(32)?.checked_add(half(54)? * half(56)?)?;
    usize::try_from(sections.max(segments)).ok().filter(|length| (64..MOST_BYTES).contains(length))
}

/// Loads the code object at an address of the host.
///
/// # Safety
/// As of `length`; the section headers lie at its end, as linkers put them.
pub(crate) unsafe fn load(device: usize, image: *const u8) -> Result<usize, Code> {
    // SAFETY: as the caller promises.
    let bytes = unsafe {
        let length = length(image).ok_or(INVALID_IMAGE)?;
        std::slice::from_raw_parts(image, length)
    };
    if !runs_here(bytes) {
        return Err(NO_BINARY);
    }
    let object = CodeObject::parse(bytes).map_err(|_| INVALID_IMAGE)?;
    let span = object.span().next_multiple_of(PAGE);
    if span == 0 || span > MOST_BYTES as u64 {
        return Err(INVALID_IMAGE);
    }
    let base = memory::allocate(device, span, true)?;
    for segment in &object.segments {
        let at = std::ptr::with_exposed_provenance_mut::<u8>((base + segment.address) as usize);
        let rest = segment.length as usize - segment.bytes.len();
        // SAFETY: segments end inside the span, which was allocated just now.
        unsafe {
            at.copy_from_nonoverlapping(segment.bytes.as_ptr(), segment.bytes.len());
            at.add(segment.bytes.len()).write_bytes(0, rest);
        }
    }
    protect(base, span, &object);
    Ok(MODULES.add(Module { object, base, device }))
}

/// Kernels may write the pages of writable segments only.
fn protect(base: u64, span: u64, object: &CodeObject) {
    let is_writable = |page: u64| {
        object.segments.iter().any(|segment| {
            segment.writable && page < segment.address + segment.length && segment.address < page + PAGE
        })
    };
    ranges::remove(base);
    for page in (0..span).step_by(PAGE as usize) {
        ranges::add(Range { base: base + page, bytes: PAGE, writable: is_writable(page), host: false });
    }
}

/// True if a code object is for this GPU: exactly its architecture, and its settings where it has any (sramecc is on,
/// xnack off).
fn runs_here(bytes: &[u8]) -> bool {
    let flags = bytes[48..].first_chunk().map_or(0, |flags| u32::from_le_bytes(*flags));
    let arch = if SETTINGS.arch == "gfx942" { 0x4c } else { 0x3f };
    flags & 0xff == arch && flags & 0x300 != 0x300 && flags & 0xc00 != 0x800
}

impl Drop for Module {
    fn drop(&mut self) {
        let span = self.object.span().next_multiple_of(PAGE);
        // All pages but the first are taken away here, which makes it one range again.
        crate::stream::while_nothing_runs(|| {
            (0..span).step_by(PAGE as usize).for_each(|page| {
                ranges::remove(self.base + page);
            });
            ranges::add(Range { base: self.base, bytes: span, writable: true, host: false });
        });
        let _ = memory::free_when_quiet(self.device, self.base);
    }
}

/// A kernel by name.
pub(crate) fn function(module: usize, name: &str) -> Result<usize, Code> {
    let module = MODULES.get(module)?;
    let kernel = module.object.kernels.iter().position(|kernel| kernel.name == name).ok_or(NOT_FOUND)?;
    Ok(FUNCTIONS.add(Function { module, kernel }))
}

/// Address and bytes of a variable.
pub(crate) fn global(module: usize, name: &str) -> Result<(u64, u64), Code> {
    let module = MODULES.get(module)?;
    let variable = module.object.variables.iter().find(|variable| variable.name == name).ok_or(NOT_FOUND)?;
    Ok((module.base + variable.address, variable.bytes))
}

impl Function {
    /// True if the kernel belongs to the module.
    pub(crate) fn is_of(&self, module: &Arc<Module>) -> bool {
        Arc::ptr_eq(&self.module, module)
    }

    fn kernel(&self) -> &Kernel {
        &self.module.object.kernels[self.kernel]
    }

    /// Visible arguments: offsets and bytes.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = (usize, usize)> {
        let visible = self.kernel().arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_"));
        visible.map(|argument| (argument.offset, argument.bytes))
    }

    /// Bytes of all visible arguments side by side.
    pub(crate) fn arguments_bytes(&self) -> usize {
        self.arguments().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0)
    }
}

impl Launch {
    /// Checks a launch as HIP 7 does.
    pub(crate) fn new(
        function: Arc<Function>,
        grid: [u32; 3],
        block: [u32; 3],
        lds_bytes: u32,
        arguments: Vec<u8>,
    ) -> Result<Self, Code> {
        if grid.contains(&0) || block.contains(&0) {
            return Err(INVALID_VALUE);
        }
        let threads = block.iter().try_fold(1u32, |product, side| product.checked_mul(*side));
        let most = function.kernel().most_threads.min(THREADS);
        if threads.is_none_or(|threads| threads > most) {
            return Err(INVALID_CONFIGURATION);
        }
        if grid.iter().zip(block).any(|(grid, block)| grid.checked_mul(block).is_none()) {
            return Err(INVALID_CONFIGURATION);
        }
        if function.kernel().lds_bytes.saturating_add(lds_bytes) > LDS_BYTES {
            return Err(INVALID_VALUE);
        }
        Ok(Self { function, grid, block, lds_bytes, arguments })
    }

    /// The kernel's name.
    pub(crate) fn name(&self) -> &str {
        &self.function.kernel().name
    }

    /// Runs the kernel to its end.
    pub(crate) fn run(&self) -> Result<(), Fault> {
        let module = &self.function.module;
        let dispatch = Dispatch {
            object: &module.object,
            kernel: self.function.kernel(),
            loaded_at: module.base,
            grid: self.grid,
            block: self.block,
            lds_bytes: self.lds_bytes,
            arguments: &self.arguments,
        };
        let idle = locked(&CHIPS).pop();
        let mut chip = idle.unwrap_or_else(|| Chip::new(SETTINGS.units));
        let ended = chip.run(&dispatch, &View::new());
        locked(&CHIPS).push(chip);
        ended
    }
}

/// The arguments of a launch from what `extra` points to: a list that names a buffer and its length, in this order.
///
/// # Safety
/// `extra` is such a list, and the buffer is as long as the kernel's arguments.
pub(crate) unsafe fn from_extra(function: &Function, extra: *mut *mut c_void) -> Result<Vec<u8>, Code> {
    // SAFETY: as the caller promises.
    unsafe {
        let at = |index: usize| extra.add(index).read();
        if at(0).addr() != 1 || at(2).addr() != 2 || at(4).addr() != 3 {
            return Err(INVALID_VALUE);
        }
        // The real library copies as much as the kernel takes, whatever the length says; here a shorter one is refused.
        let length = at(3).cast::<usize>().read();
        if length < function.arguments_bytes() {
            return Err(INVALID_VALUE);
        }
        Ok(std::slice::from_raw_parts(at(1).cast::<u8>(), function.arguments_bytes()).to_vec())
    }
}

/// The arguments of a launch from a list of pointers to them.
///
/// # Safety
/// `parameters` has a pointer to each argument.
pub(crate) unsafe fn from_parameters(function: &Function, parameters: *mut *mut c_void) -> Vec<u8> {
    let mut arguments = vec![0; function.arguments_bytes()];
    for (index, (offset, bytes)) in function.arguments().enumerate() {
        // SAFETY: as the caller promises.
        let own = unsafe { std::slice::from_raw_parts(parameters.add(index).read().cast::<u8>(), bytes) };
        arguments[offset..offset + bytes].copy_from_slice(own);
    }
    arguments
}

/// True if an address lies in a loaded code object.
pub(crate) fn has(address: u64) -> bool {
    let is_in =
        |module: &Module| address.checked_sub(module.base).is_some_and(|at| at < module.object.span());
    MODULES.all().iter().any(|module| is_in(module))
}

/// The architecture of this GPU, with its settings.
pub(crate) fn target() -> String {
    format!("{}:sramecc+:xnack-", SETTINGS.arch)
}
