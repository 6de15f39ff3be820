//! Adding, replacing and removing functions. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs.

use std::sync::Arc;

use pappus_blueprint::Blueprint;

use super::admission::check_module_bytes;
use super::code::Wish;
use super::error::{RegistryError, Thing};
use super::requests::NewFunction;
use super::state::Registry;
use super::views::Registered;
use crate::ids::FunctionId;
use crate::limits::MAX_SIGNATURE_BYTES;
use crate::refusal::failed;
use crate::store::records::{FunctionRecord, Output};
use crate::store::state_dir::Kind;
use crate::tenants::{Account, Limit};

/// Names of inputs, and outputs.
type Signature = (Box<[Box<str>]>, Box<[Output]>);

impl Registry {
    /// Registers a function; with `replace`, in the place of one of the same name. Calls that were accepted finish with
    /// the old one, whose grants the new one has.
    pub fn add_function(&self, account: &Account, new: NewFunction) -> Result<Registered, RegistryError> {
        let tenant = account.tenant;
        Thing::Function.check_name(&new.name)?;
        let config_hash = self.check_blob(tenant, "config_sha256", &new.config_sha256)?;
        let config = self.read_config(tenant, config_hash)?;
        let blueprint = pappus_blueprint::parse(&config)?;
        let modules = self.check_modules(tenant, &blueprint, &new.modules)?;
        let classes = self.runnable(&modules)?;
        let weights = self.check_weights(tenant, &blueprint, &new.weights)?;
        let classes = self.with_room(&weights, classes)?;
        self.check_code(tenant, &blueprint, &modules, &classes, Wish::Afresh)?;
        self.check_declared(tenant, &blueprint, &modules)?;
        let (inputs, outputs) = signature(&blueprint);
        let record =
            FunctionRecord { name: new.name, config: config_hash, modules, weights, inputs, outputs };
        let record = Arc::new(record);
        let mut index = self.index();
        self.sweep(&mut index);
        let mine = index.tenant_mut(tenant);
        let before = mine.functions.get(&record.name).cloned();
        match &before {
            Some(existing) if *existing == record => return Ok(Registered { record, replaced: None }),
            Some(_) if !new.replace => {
                return Err(RegistryError::Exists { thing: Thing::Function, name: record.name.clone() });
            }
            _ if !record.blobs().all(|hash| mine.has_blob(hash)) => return Err(RegistryError::Vanished),
            Some(existing) => {
                let (kept, more) = mine.replaced_module_bytes(existing, &record);
                account.check(Limit::ModuleBytes, kept, more)?;
            }
            None => {
                account.check(Limit::Functions, mine.functions.len() as u64, 1)?;
                check_module_bytes(account, mine, record.variants())?;
            }
        }
        // By rename: after a crash the record is the old one or the new one.
        self.state.put_function(tenant, &record).map_err(|e| failed("cannot store the function", &e))?;
        tracing::debug!(tenant = &*account.name, function = record.name, "registered");
        // Before the old one is released: what both need stays.
        mine.add_function(record.clone());
        let replaced = before.and_then(|before| self.retire(&mut index, tenant, &record.name, &before));
        Ok(Registered { record, replaced })
    }

    /// Removes a function; calls that were accepted finish. Returns its name towards workers if it was in
    /// memory.
    pub fn remove_function(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<Option<FunctionId>, RegistryError> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let mut index = self.index();
        self.sweep(&mut index);
        let Some(record) = index.tenant_mut(tenant).functions.get(name).cloned() else {
            return Err(RegistryError::unknown_function(name));
        };
        // First: if the rest fails, a later function of this name is granted to no tenant.
        self.forget_grants(&mut index, account, name)?;
        self.state
            .remove_record(tenant, Kind::Function, name)
            .map_err(|e| failed("cannot remove the function", &e))?;
        index.tenant_mut(tenant).functions.remove(name);
        Ok(self.retire(&mut index, tenant, name, &record))
    }
}

/// What a record keeps of a function's inputs and outputs.
fn signature(blueprint: &Blueprint) -> Signature {
    let buffers = blueprint.buffers();
    let inputs = blueprint.inputs().iter().map(|id| buffers[id.index()].name.as_str().into());
    let outputs = blueprint.outputs().iter().map(|id| &buffers[id.index()]).map(|buffer| Output {
        name: buffer.name.as_str().into(),
        dtype: buffer.dtype.map_or("", |d| d.name()).into(),
    });
    let (inputs, outputs): Signature = (inputs.collect(), outputs.collect());
    let names = inputs.iter().chain(outputs.iter().map(|output| &output.name));
    match names.map(|name| name.len()).sum::<usize>() > MAX_SIGNATURE_BYTES {
        true => Signature::default(),
        false => (inputs, outputs),
    }
}
