//! Configured devices that run the same machine code, and the compiler for them.

use std::sync::Arc;

use pappus_protocol::Kind;

use super::compile::Compiler;
use crate::config::DeviceConfig;
use crate::function::CodeTarget;
use crate::function::variants::{choose, choose_shared};
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
    /// True if machine code for this target is what these devices load.
    pub(super) fn takes(&self, target: &CodeTarget) -> bool {
        target.kind == self.kind && target.arch == self.arch
    }

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

    /// The variant that the devices run, if any.
    pub fn choose<'v>(&self, variants: &'v [Variant]) -> Option<&'v Variant> {
        choose(variants, self.kind, &self.arch)
    }

    /// The variant that their shared processes run, if there are such processes and any variant can be fenced.
    pub fn choose_shared<'v>(&self, variants: &'v [Variant]) -> Option<&'v Variant> {
        let shares = self.compiler.target.interruptible;
        shares.then(|| choose_shared(variants, self.kind, &self.arch)).flatten()
    }

    /// The devices' names, for messages.
    pub fn names(&self) -> String {
        match &self.devices[..] {
            [only] => format!("the device {only}"),
            several => format!("the devices {}", several.join(", ")),
        }
    }

    /// What they need, for messages: any of what the formats of their kind say.
    pub fn needs(&self) -> String {
        let need = if self.devices.len() == 1 { "needs" } else { "need" };
        let mut any: Vec<String> =
            self.kind.traits().formats.iter().map(|format| format.needed(&self.arch)).collect();
        if let [_, .., last] = &mut any[..] {
            last.insert_str(0, "or ");
        }
        format!("{} {need} {}", self.names(), any.join(", "))
    }
}
