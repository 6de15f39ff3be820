//! One module of a loaded function. Code without writable variables is loaded once; code with some has
//! an instance per lane, which is reset from a pristine copy behind every call. Fenced code is loaded once: its variables lie
//! in the window of the call.

use pappus_protocol::{Fault, FaultCode, LaneId};

use super::command_list::WINDOW_PARAM_BYTES;
use super::driver::{DeviceBuffer, Driver, DriverError, LoadedKernel, Module, Section, Stream};
use super::variables::Variables;
use crate::device::broken;

/// A module, ready to run.
#[derive(Debug)]
pub(super) struct LoadedModule<D: Driver> {
    image: Vec<u8>,
    writable: Vec<Section>,
    /// True if the kernels take a window as their last parameter, and cannot leave it.
    fenced: bool,
    /// Those of fenced code.
    variables: Option<Variables<D>>,
    /// Kernels that the blueprint names, in its order.
    symbols: Vec<String>,
    /// One for all lanes, or one for each.
    instances: Vec<Option<Instance<D>>>,
}

/// Code in the device's memory.
#[derive(Debug)]
struct Instance<D: Driver> {
    kernels: Vec<LoadedKernel<D::Kernel>>,
    /// How its variables are reset; none if the driver does not tell where all of them are.
    reset: Option<Vec<Reset>>,
    _pristine: Option<D::DeviceBuffer>,
    // Dropped last: the kernels and resets above refer to it.
    _module: D::Module,
}

/// A range of variables and its pristine copy.
#[derive(Debug)]
struct Reset {
    address: u64,
    pristine: u64,
    bytes: u64,
}

impl<D: Driver> LoadedModule<D> {
    /// Loads the instance for lane 0 at once, so that a bad module is refused at installation.
    pub(super) fn load(
        driver: &D,
        stream: &D::Stream,
        image: Vec<u8>,
        symbols: Vec<String>,
        lanes: usize,
        fenced: bool,
    ) -> Result<Self, Fault> {
        let refused = |why| Fault::new(FaultCode::Load, format!("machine code: {why}"));
        let code = D::open(image, fenced).map_err(refused)?;
        let writable = D::writable_sections(&code.machine).map_err(refused)?;
        if fenced && !writable.is_empty() {
            return Err(refused("fenced code has variables outside of its window".into()));
        }
        let variables = Variables::load(driver, stream, &code)?;
        let count = if writable.is_empty() { 1 } else { lanes };
        let (image, instances) = (code.machine, (0..count).map(|_| None).collect());
        let mut module = Self { image, writable, fenced, variables, symbols, instances };
        module.instance(driver, stream, LaneId::new(0))?;
        if module.writable.is_empty() {
            // Never loaded again.
            module.image = Vec::new();
        }
        Ok(module)
    }

    /// True if the module's kernels can write variables.
    pub(super) fn has_variables(&self) -> bool {
        !self.writable.is_empty()
    }

    /// Its variables in the window.
    pub(super) fn window_variables(&self) -> Option<&Variables<D>> {
        self.variables.as_ref()
    }

    /// The largest stack of its kernels' threads.
    pub(super) fn stack_bytes(&self) -> u32 {
        let kernels = self.instances.iter().flatten().flat_map(|instance| &instance.kernels);
        kernels.map(|kernel| kernel.local_bytes).max().unwrap_or(0)
    }

    /// A lane's kernels, by their position among the blueprint's kernels of this module.
    pub(super) fn kernel(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        lane: LaneId,
        position: usize,
    ) -> Result<LoadedKernel<D::Kernel>, Fault> {
        let instance = self.instance(driver, stream, lane)?;
        instance.kernels.get(position).cloned().ok_or_else(broken)
    }

    fn instance(&mut self, driver: &D, stream: &D::Stream, lane: LaneId) -> Result<&Instance<D>, Fault> {
        let index = lane.index() % self.instances.len();
        if self.instances[index].is_none() {
            let made =
                Instance::load(driver, stream, &self.image, &self.writable, &self.symbols, self.fenced)?;
            self.instances[index] = Some(made);
        }
        self.instances[index].as_ref().ok_or_else(broken)
    }

    /// Clears variables and their pristine copies; nothing of it runs any more.
    pub(super) fn wipe(&self, stream: &D::Stream) -> Result<(), D::Error> {
        let resets = self.instances.iter().flatten().flat_map(|instance| &instance.reset).flatten();
        for reset in resets {
            stream.fill(reset.address, 0, reset.bytes)?;
            stream.fill(reset.pristine, 0, reset.bytes)?;
        }
        self.variables.as_ref().map_or(Ok(()), |variables| variables.wipe(stream))
    }

    /// Resets the variables that a lane's call may have changed, behind the call on its stream. Returns whether the
    /// lane keeps its kernels: where the driver does not locate all variables, the module gets a fresh instance.
    pub(super) fn reset(&mut self, stream: &D::Stream, lane: LaneId) -> Result<bool, D::Error> {
        if self.writable.is_empty() {
            return Ok(true);
        }
        let index = lane.index() % self.instances.len();
        let Some(instance) = &self.instances[index] else {
            return Ok(true);
        };
        match &instance.reset {
            Some(resets) => {
                for reset in resets {
                    stream.copy(reset.address, reset.pristine, reset.bytes)?;
                }
                Ok(true)
            }
            None => {
                self.instances[index] = None;
                Ok(false)
            }
        }
    }
}

impl<D: Driver> Instance<D> {
    fn load(
        driver: &D,
        stream: &D::Stream,
        image: &[u8],
        writable: &[Section],
        symbols: &[String],
        fenced: bool,
    ) -> Result<Self, Fault> {
        let refused = |why: String| Fault::new(FaultCode::Load, why);
        let module = driver.load_module(image);
        let module = module.map_err(|e| refused(format!("machine code: the driver refuses it: {e}")))?;
        let mut kernels = Vec::with_capacity(symbols.len());
        for symbol in symbols {
            let kernel = module.kernel(symbol).map_err(|e| refused(format!("kernel `{symbol}`: {e}")))?;
            let mut kernel = kernel.ok_or_else(|| refused(format!("the module has no kernel `{symbol}`")))?;
            if fenced {
                let last = kernel.params.pop().filter(|last| last.bytes == WINDOW_PARAM_BYTES);
                let last =
                    last.ok_or_else(|| refused(format!("kernel `{symbol}` does not take its window")))?;
                kernel.window = Some(last.offset);
            }
            kernels.push(kernel);
        }
        let located = locate::<D>(&module, writable);
        let (reset, pristine) = match located {
            None => (None, None),
            Some(ranges) => {
                let copied = keep_pristine(driver, stream, &ranges);
                let copied = copied.map_err(|e| e.fault("keeping a module's variables"))?;
                copied.map_or((None, None), |(resets, buffer)| (Some(resets), buffer))
            }
        };
        Ok(Self { kernels, reset, _pristine: pristine, _module: module })
    }
}

/// How variables are reset, and the buffer with their pristine copies; none if they have no bytes.
type Pristine<D> = (Vec<Reset>, Option<<D as Driver>::DeviceBuffer>);

/// Addresses and sizes of a module's variables, with the gaps between neighbours; none if there is one
/// that the driver does not find by name.
fn locate<D: Driver>(module: &D::Module, writable: &[Section]) -> Option<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for section in writable {
        let mut before: Option<u64> = None;
        for variable in &section.variables {
            let (address, bytes) = module.variable(&variable.name)?;
            match ranges.last_mut() {
                // Placed as in the file, so what lies between the two is the section's, too.
                Some((start, length))
                    if before.is_some_and(|offset| {
                        address.checked_sub(*start) == Some(variable.offset - offset)
                    }) =>
                {
                    *length = address + bytes - *start;
                }
                _ => {
                    ranges.push((address, bytes));
                    before = Some(variable.offset);
                }
            }
        }
        if section.variables.is_empty() {
            return None;
        }
    }
    Some(ranges)
}

/// Copies of them; none if the driver refuses to copy one: variables that lie as in the file, but in allocations of their
/// own, have no gap that could be copied.
fn keep_pristine<D: Driver>(
    driver: &D,
    stream: &D::Stream,
    ranges: &[(u64, u64)],
) -> Result<Option<Pristine<D>>, D::Error> {
    let total: u64 = ranges.iter().map(|(_, bytes)| bytes.next_multiple_of(256)).sum();
    if total == 0 {
        return Ok(Some((Vec::new(), None)));
    }
    let buffer = driver.allocate_device(total)?;
    let mut pristine = buffer.address();
    let mut resets = Vec::with_capacity(ranges.len());
    for &(address, bytes) in ranges {
        match stream.copy(pristine, address, bytes) {
            Ok(()) => {}
            Err(error) if error.is_fatal() => return Err(error),
            Err(_) => {
                // What was queued has to be over before the buffer goes.
                driver.synchronize()?;
                return Ok(None);
            }
        }
        resets.push(Reset { address, pristine, bytes });
        pristine += bytes.next_multiple_of(256);
    }
    driver.synchronize()?;
    Ok(Some((resets, Some(buffer))))
}
