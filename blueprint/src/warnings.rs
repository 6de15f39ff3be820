//! What is declared and nothing uses. No mistake: a function with such parts does what it says, though perhaps not what its
//! author meant.

use std::collections::HashSet;

use crate::blueprint::{Blueprint, BufferId, Role};
use crate::error::Error;

impl Blueprint {
    /// Inputs, weights, buffers, kernels and modules that nothing uses, and outputs that no step writes, with their places.
    pub fn warnings(&self) -> Vec<Error> {
        let launched: HashSet<usize> = self.launches().map(|launch| launch.kernel).collect();
        let loaded: HashSet<usize> = self.kernels.iter().map(|kernel| kernel.module).collect();
        let modules = self.modules.iter().enumerate().filter(|(at, _)| !loaded.contains(at));
        // A blueprint whose only module has no kernels has said so: it copies and fills.
        let modules = modules.filter(|_| self.modules.len() > 1).map(|(at, module)| {
            Error::new(
                format_args!("modules[{at}]"),
                format_args!("no kernel is of module {:?}", module.name),
            )
        });
        let kernels = self.kernels.iter().enumerate().filter(|(at, _)| !launched.contains(at));
        let kernels = kernels.map(|(at, kernel)| {
            Error::new(
                format_args!("kernels[{at}]"),
                format_args!("no step launches kernel {:?}", kernel.name),
            )
        });
        let buffers = (0..self.buffers.len()).filter_map(|at| {
            let (id, buffer) = (BufferId(at as u32), &self.buffers[at]);
            let message = match buffer.role {
                Role::Input if !buffer.used => format!("nothing uses input {:?}", buffer.name),
                Role::Weight if !buffer.used => format!("nothing uses weights {:?}", buffer.name),
                Role::State if !buffer.used => format!("nothing uses state {:?}", buffer.name),
                Role::Buffer if !buffer.used => format!("nothing uses buffer {:?}", buffer.name),
                Role::Buffer if buffer.output && !buffer.named => {
                    format!("no step names output {:?}: it is zero bytes", buffer.name)
                }
                _ => return None,
            };
            Some(Error::new(self.place_of(id), message))
        });
        modules.chain(kernels).chain(buffers).collect()
    }
}
