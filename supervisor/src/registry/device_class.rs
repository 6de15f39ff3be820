//! Configured devices that run the same machine code, and the compiler for them.

use std::sync::Arc;

use pappus_protocol::Kind;
use pappus_protocol::kind::CodeFamily;

use super::compile::Compiler;
use crate::config::DeviceConfig;
use crate::function::variants::choose;
use crate::limits::MAX_WEIGHT_BYTES;
use crate::processes::launcher::Launcher;
use crate::processes::target::DeviceTarget;
use crate::store::records::Variant;

/// Configured devices that run the same machine code.
#[derive(Debug, Clone)]
pub struct DeviceClass {
    /// Their kind.
    pub kind: Kind,
    /// Their architecture.
    pub arch: String,
    /// Their names.
    pub devices: Vec<String>,
    /// The smallest of their `stack` settings; none where stacks are no memory of the device.
    pub stack_bytes: Option<u64>,
    /// The most bytes of one function's weights on any of the devices.
    pub weights_bytes: u64,
    /// Compiles for the devices.
    pub compiler: Compiler,
}

impl DeviceClass {
    /// The classes of the configured devices, whose compiling workers are started by `launcher`.
    pub fn of(devices: &[DeviceConfig], launcher: &Arc<Launcher>) -> Vec<Self> {
        let mut classes: Vec<Self> = Vec::new();
        for device in devices {
            let stack_bytes = device.kind.traits().has_own_memory.then_some(device.stack_bytes);
            let weights_bytes = match device.kind.traits().has_own_memory {
                true => device.weights_bytes,
                false => MAX_WEIGHT_BYTES,
            };
            match classes.iter_mut().find(|class| class.kind == device.kind && class.arch == device.arch) {
                Some(class) => {
                    class.devices.push(device.name.clone());
                    class.stack_bytes = class.stack_bytes.min(stack_bytes);
                    class.weights_bytes = class.weights_bytes.min(weights_bytes);
                }
                None => classes.push(Self {
                    kind: device.kind,
                    arch: device.arch.clone(),
                    devices: vec![device.name.clone()],
                    stack_bytes,
                    weights_bytes,
                    compiler: Compiler::new(
                        launcher.clone(),
                        DeviceTarget { lanes: 1, ..DeviceTarget::of(device) },
                    ),
                }),
            }
        }
        classes
    }

    /// True if blocks can be launched in clusters, and kernels can read tensor maps: on NVIDIA GPUs since `sm_90`.
    pub fn has_clusters(&self) -> bool {
        let capability = self.arch.strip_prefix("sm_").and_then(|number| number.parse::<u32>().ok());
        self.kind.traits().code == CodeFamily::Nvidia && capability.is_some_and(|capability| capability >= 90)
    }

    /// The variant that the devices run, if any.
    pub fn choose<'v>(&self, variants: &'v [Variant]) -> Option<&'v Variant> {
        choose(variants, self.kind, &self.arch)
    }

    /// The devices' names, for messages.
    pub fn names(&self) -> String {
        match &self.devices[..] {
            [only] => format!("the device {only}"),
            several => format!("the devices {}", several.join(", ")),
        }
    }

    /// What they need, for messages.
    pub fn needs(&self) -> String {
        match self.kind.traits().code {
            CodeFamily::Wasm => format!("{} needs its .wasm variant", self.names()),
            CodeFamily::Nvidia => {
                let (names, arch) = (self.names(), &self.arch);
                let need = if self.devices.len() == 1 { "needs" } else { "need" };
                format!("{names} {need} a .cubin for {arch}, a .fatbin, or a .ptx for {arch} or older")
            }
            CodeFamily::Amd => {
                let need = if self.devices.len() == 1 { "needs" } else { "need" };
                format!("{} {need} a .hsaco for {}", self.names(), self.arch)
            }
        }
    }
}
