//! A function that a composition uses: as written, as resolved, and what the linker asks of it again and again.

use std::collections::HashMap;
use std::rc::Rc;

use crate::blueprint::{Blueprint, BufferId, FieldValue, Item, Role, Step};
use crate::error::Mistakes;
use crate::format;
use crate::resolve::read_and_resolve;

/// What the linker needs of a function.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Its configuration.
    pub config: Vec<u8>,
    /// What tells the content of each of its modules, in the blueprint's order: equal ones are one module of the linked function.
    pub modules: Vec<String>,
    /// The same of its weights, with their bytes where those are known.
    pub weights: Vec<(String, Option<u64>)>,
}

/// Names in their order.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Whose they are, if that is known.
    pub(super) function: Option<String>,
    pub(super) list: Vec<String>,
    pub(super) ids: HashMap<String, usize>,
}

/// A function that steps run.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) written: format::Config,
    pub(super) blueprint: Blueprint,
    pub(super) part: Part,
    pub(super) inputs: Rc<Names>,
    pub(super) outputs: Rc<Names>,
    /// By input: true if a call may change the input's bytes. A kernel may write whatever it has the address of.
    pub(super) changes: Vec<bool>,
    /// By kernel: true if a step launches it.
    pub(super) launches: Vec<bool>,
    /// Places of what is declared of buffers, by their names.
    types: HashMap<String, usize>,
}

impl Function {
    pub(super) fn read(name: &str, part: Part) -> Result<Self, Mistakes> {
        let (written, blueprint) = read_and_resolve(&part.config)?;
        let names = |ids: &[BufferId]| {
            let list: Vec<String> = ids.iter().map(|id| blueprint.buffers[id.index()].name.clone()).collect();
            let ids = list.iter().enumerate().map(|(at, name)| (name.clone(), at)).collect();
            Rc::new(Names { function: Some(name.to_owned()), list, ids })
        };
        let (inputs, outputs) = (names(blueprint.inputs()), names(blueprint.outputs()));
        let changes = changes(&blueprint);
        let mut launches = vec![false; blueprint.kernels.len()];
        for step in &blueprint.steps {
            if let Step::Launch { kernel, .. } = step {
                launches[*kernel as usize] = true;
            }
        }
        let declared = written.blueprint.as_ref().and_then(|flow| flow.types.as_ref());
        let names = declared.iter().flat_map(|types| &types.0).enumerate();
        let types = names.map(|(at, (name, _))| (name.clone(), at)).collect();
        Ok(Self {
            name: name.to_owned(),
            written,
            blueprint,
            part,
            inputs,
            outputs,
            changes,
            launches,
            types,
        })
    }

    /// What is declared of a buffer as written, if anything is.
    pub(super) fn declared(&self, name: &str) -> Option<&format::Type> {
        let types = self.written.blueprint.as_ref()?.types.as_ref()?;
        types.0.get(*self.types.get(name)?)?.1.as_ref()
    }
}

/// Of each input: true if a call may change it.
fn changes(blueprint: &Blueprint) -> Vec<bool> {
    let mut changes: Vec<bool> = blueprint.buffers.iter().map(|buffer| buffer.output).collect();
    for step in &blueprint.steps {
        match *step {
            Step::Copy { to, .. } => changes[to.index()] = true,
            Step::Fill { buffer, .. } => changes[buffer.index()] = true,
            Step::Launch { .. } | Step::Repeat { .. } => {}
        }
    }
    for item in &blueprint.items {
        if let Item::Field { value: FieldValue::Pointer { buffer, .. }, .. } = item {
            changes[buffer.index()] = true;
        }
    }
    for map in &blueprint.tensor_maps {
        changes[map.buffer.index()] = true;
    }
    changes.truncate(blueprint.buffers.iter().take_while(|buffer| buffer.role == Role::Input).count());
    changes
}
