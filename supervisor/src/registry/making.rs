//! A function that is about to be registered: what it is made of, and every check that changes nothing.

use std::sync::Arc;

use pappus_blueprint::{Blueprint, Mistakes};

use super::admission::{NewFunction, able, check_config, check_modules, check_weights};
use super::codes::Codes;
use super::device_class::DeviceClass;
use super::error::RegistryError;
use super::signature::{Signature, signature};
use super::state::Registry;
use crate::store::records::{Composition, FunctionModule, FunctionRecord, Hash, Weight};
use crate::tenants::{Account, Taken};

/// What a function is made of.
pub(super) struct Parts {
    pub(super) name: String,
    /// The name of the bytes of its configuration, and these bytes.
    pub(super) config: (Hash, Vec<u8>),
    pub(super) blueprint: Blueprint,
    pub(super) modules: Box<[FunctionModule]>,
    pub(super) weights: Box<[Weight]>,
    pub(super) composition: Option<Box<Composition>>,
    /// Records of the functions that a composition was linked from.
    pub(super) linked_from: Vec<Arc<FunctionRecord>>,
    /// The memory of what a composition was linked to: many may be made before the first of them is registered.
    pub(super) taken: Option<Taken>,
}

/// A function that can be registered.
pub(super) struct Made<'r> {
    pub(super) record: Arc<FunctionRecord>,
    pub(super) config: Vec<u8>,
    pub(super) blueprint: Blueprint,
    /// The devices that it runs on.
    pub(super) classes: Vec<&'r DeviceClass>,
    /// See [`Parts::linked_from`].
    pub(super) linked_from: Vec<Arc<FunctionRecord>>,
    /// See [`Parts::taken`].
    pub(super) taken: Option<Taken>,
}

impl Registry {
    /// The parts of a function that a client handed over.
    pub(super) fn parts(&self, account: &Arc<Account>, new: &NewFunction) -> Result<Parts, RegistryError> {
        let mine = self.registry_of(account.tenant);
        let hash = check_config(&mine.change(account.clone()).blobs, &new.config_sha256)?;
        let (config, blueprint) = self.parse_config(account, hash)?;
        let change = mine.change(account.clone());
        let modules = check_modules(&change, &blueprint, &new.modules)?;
        let weights = check_weights(&change.blobs, &blueprint, &new.weights)?;
        drop(change);
        let (name, config) = (new.name.clone(), (hash, config));
        Ok(Parts {
            name,
            config,
            blueprint,
            modules,
            weights,
            composition: None,
            linked_from: Vec::new(),
            taken: None,
        })
    }

    /// Checks what a function is made of against the devices here.
    pub(super) fn make_function(
        &self,
        account: &Arc<Account>,
        parts: Parts,
        codes: &mut Codes,
    ) -> Result<Made<'_>, RegistryError> {
        let Parts {
            name,
            config: (hash, config),
            blueprint,
            modules,
            weights,
            composition,
            linked_from,
            taken,
        } = parts;
        let weight_bytes: Vec<u64> = weights.iter().map(|weight| weight.bytes).collect();
        blueprint
            .check_weights(&weight_bytes)
            .map_err(|why| why.found_in(&config))
            .map_err(Mistakes::from)?;
        let classes = self.with_room(&weights, able(&blueprint, self.runnable(&modules)?)?)?;
        self.check_code(account.tenant, &blueprint, &modules, &classes, codes)?;
        self.check_declared(account.tenant, &blueprint, &modules, codes)?;
        let Signature { inputs, outputs, input_types } =
            signature(&blueprint).map_err(RegistryError::LongNames)?;
        let record = FunctionRecord {
            name,
            config: hash,
            modules,
            weights,
            inputs,
            outputs,
            input_types,
            state_bytes: blueprint.state_bytes().iter().sum(),
            composition,
            // Its place among what is registered gives it another one.
            number: 1,
            largest: 0,
        };
        Ok(Made { record: record.into(), config, blueprint, classes, linked_from, taken })
    }
}
