//! What both roles share: one context, and what code compiled for it depends on.

use pappus_protocol::from_worker::Hello;
use pappus_protocol::{Fault, FaultCode};

use super::driver::{Context, Driver};
use super::nvml;

/// The driver and the process's context on its device.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) context: Context,
    driver: Driver,
    /// Device memory that the context took.
    context_bytes: u64,
}

impl Engine {
    /// The first device that the process sees: the supervisor lets it see one.
    pub(super) fn start() -> Result<Self, Fault> {
        silence().map_err(|e| Fault::new(FaultCode::Internal, format!("opening /dev/null: {e}")))?;
        let driver = Driver::open()?;
        let info = super::driver::DeviceInfo::read(&driver, 0);
        let uuid = info.map(|info| info.uuid).unwrap_or_default();
        let before = nvml::used_bytes(&uuid);
        let context = Context::create(&driver, 0)?;
        let grown = before.zip(nvml::used_bytes(&uuid)).map(|(before, after)| after.saturating_sub(before));
        // Without the management library: what is used in all, which is right for the first process.
        let (free, total) = context.memory().map_err(|e| e.fault("asking for free memory"))?;
        let context_bytes = grown.filter(|&bytes| bytes > 0).unwrap_or(total - free);
        Ok(Self { context, driver, context_bytes })
    }

    /// As the supervisor hears it.
    pub(super) fn hello(&self) -> Hello {
        let arch = &self.context.info.arch;
        let release = Driver::release().unwrap_or_default().replace('.', "-");
        let fingerprint = format!("cuda-{arch}-{}-{release}", self.driver.version);
        Hello {
            arch: arch.clone(),
            context_bytes: self.context_bytes,
            ..Hello::new("cuda", fingerprint.trim_end_matches('-'))
        }
    }
}

/// What kernels print goes nowhere, whatever buffer the driver keeps for it behind a limit of zero.
fn silence() -> std::io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(nowhere)?)
}
