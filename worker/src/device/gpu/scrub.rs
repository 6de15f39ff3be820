//! Clearing on-chip memory: shared memory, registers, stacks. The backend has the kernels that do it; here they are run
//! until they have reached every multiprocessor.
//!
//! A kernel runs as one block (or some) for every multiprocessor: blocks wait for each other, so that none can take
//! another's place, and count where they ran. Only a run that reached every multiprocessor counts.

use pappus_protocol::{Fault, FaultCode};

use super::driver::{
    ALONE, COUNTERS_BYTES, DeviceBuffer, Driver, DriverError, HostBuffer, ScrubKernelOf, ScrubRun, Shape,
    Stream,
};

/// Runs after which a scrub that has not reached every multiprocessor fails.
const ATTEMPTS: usize = 8;
/// Stack of each thread that is cleared at least, in bytes.
const LEAST_STACK: u32 = 1 << 10;

/// The scrubbing kernels of one context.
#[derive(Debug)]
pub(super) struct Scrubber<D: Driver> {
    chip: Vec<ScrubKernelOf<D>>,
    stack: ScrubKernelOf<D>,
    /// Bytes of stack that `stack` clears of each thread.
    stack_bytes: u32,
    counters: Counters<D>,
}

impl<D: Driver> Scrubber<D> {
    /// Kernels that clear at least `stack_bytes` of each thread's stack.
    pub(super) fn load(driver: &D, stack_bytes: u32) -> Result<Self, Fault> {
        let failed = |e: D::Error| Fault::new(FaultCode::Internal, format!("the scrubbing kernels: {e}"));
        let chip = driver.scrub_kernels()?;
        let stack_bytes = rounded(stack_bytes);
        let stack = driver.stack_scrub_kernel(stack_bytes)?;
        Ok(Self { chip, stack, stack_bytes, counters: Counters::allocate(driver).map_err(failed)? })
    }

    /// Makes it clear at least `stack_bytes` of each thread's stack.
    pub(super) fn fit(&mut self, driver: &D, stack_bytes: u32) -> Result<(), Fault> {
        let stack_bytes = rounded(stack_bytes);
        if stack_bytes > self.stack_bytes {
            self.stack = driver.stack_scrub_kernel(stack_bytes)?;
            self.stack_bytes = stack_bytes;
        }
        Ok(())
    }

    /// Clears everything; nothing else runs in this context. `streams` are all that kernels ran on.
    pub(super) fn run<'s>(
        &mut self,
        driver: &D,
        streams: impl IntoIterator<Item = &'s D::Stream>,
    ) -> Result<(), Fault>
    where
        D::Stream: 's,
    {
        let mut streams = streams.into_iter();
        let Some(first) = streams.next() else { return Ok(()) };
        for kernel in self.chip.iter().chain([&self.stack]) {
            for run in &kernel.runs {
                self.counters.reach_all(driver, first, kernel, *run)?;
            }
        }
        if driver.properties().stacks_per_stream {
            for stream in streams {
                for run in &self.stack.runs {
                    self.counters.reach_all(driver, stream, &self.stack, *run)?;
                }
            }
        }
        Ok(())
    }
}

fn rounded(stack_bytes: u32) -> u32 {
    stack_bytes.max(LEAST_STACK).next_power_of_two()
}

/// Where blocks count that they ran.
#[derive(Debug)]
struct Counters<D: Driver> {
    device: D::DeviceBuffer,
    host: D::HostBuffer,
}

impl<D: Driver> Counters<D> {
    fn allocate(driver: &D) -> Result<Self, D::Error> {
        let host = driver.allocate_host(COUNTERS_BYTES as usize)?;
        Ok(Self { device: driver.allocate_device(COUNTERS_BYTES)?, host })
    }

    fn reach_all(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        kernel: &ScrubKernelOf<D>,
        run: ScrubRun,
    ) -> Result<(), Fault> {
        let properties = driver.properties();
        for _ in 0..ATTEMPTS {
            let reached = self.run_once(driver, stream, kernel, run).map_err(|e| e.fault("scrubbing"))?;
            if reached == properties.multiprocessors {
                return Ok(());
            }
        }
        Err(Fault::new(
            FaultCode::Device,
            format!(
                "scrubbing does not reach all {} multiprocessors of {}: does another process use it at the same time (MPS)?",
                properties.multiprocessors, properties.name
            ),
        ))
    }

    /// Runs a kernel once; returns how many multiprocessors had at least as many blocks as they must.
    fn run_once(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        kernel: &ScrubKernelOf<D>,
        run: ScrubRun,
    ) -> Result<u32, D::Error> {
        let blocks = driver.properties().multiprocessors * run.blocks_each;
        let block = [kernel.threads, 1, 1];
        let shape = Shape { grid: [blocks, 1, 1], block, cluster: ALONE, shared_bytes: run.shared_bytes };
        let mut params = self.device.address().to_le_bytes().to_vec();
        params.extend(blocks.to_le_bytes());
        params.extend(run.shared_bytes.to_le_bytes());
        stream.fill(self.device.address(), 0, COUNTERS_BYTES)?;
        stream.launch(kernel.kernel, &shape, &params)?;
        // SAFETY: the buffer is this long and is read after `synchronize` only.
        unsafe { stream.copy_out(self.host.as_ptr(), self.device.address(), COUNTERS_BYTES) }?;
        driver.synchronize()?;
        let counters = self.host.as_mut().chunks_exact(4).skip(1);
        let full = counters
            .filter(|count| count.first_chunk().is_some_and(|&count| u32::from_le_bytes(count) >= run.least));
        Ok(full.count() as u32)
    }
}
