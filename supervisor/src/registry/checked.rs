//! Checked versions of functions: the same kernels with checks of every access to memory, over a blueprint of which every
//! buffer can be looked at. One is made for its owner at the first checked call, lies in memory only, and goes with the
//! function. Scheduler, device threads and frames know nothing of it: a checked call is one of another function. The
//! compiling process finds the lines of accesses in debug information, which is never read here.

use std::sync::Arc;

use pappus_blueprint::Mistakes;
use pappus_protocol::Kind;

use super::codes::CodeError;
use super::error::RegistryError;
use super::state::Registry;
use crate::blocking::Whose;
use crate::function::Loaded;
use crate::function::loaded::{Parsed, RunsOn};
use crate::refusal::failed;
use crate::store::StateError;
use crate::tenants::{Account, Limit};

impl Registry {
    /// The checked version of a function of the caller's own, if it is in memory.
    pub fn find_checked(&self, caller: &Account, reference: &str) -> Option<Arc<Loaded>> {
        let function = self.find(caller, reference).filter(|function| function.owner == caller.tenant)?;
        if function.steps.is_some() { Some(function) } else { function.checked() }
    }

    /// As [`Registry::find_checked`], made if need be.
    pub async fn load_checked(
        self: &Arc<Self>,
        whose: Whose,
        caller: &Account,
        reference: &str,
    ) -> Result<Arc<Loaded>, RegistryError> {
        let function = self.load(whose, caller, reference).await?;
        if function.owner != caller.tenant {
            return Err(RegistryError::CheckedByOthers(reference.to_owned()));
        }
        if function.steps.is_some() {
            // Its steps are checked.
            return Ok(function);
        }
        if let Some(checked) = function.checked() {
            return Ok(checked);
        }
        let runs = |kind: Kind, arch: &str| kind.traits().has_checks && function.runs_on(kind, arch);
        let class = self.classes.iter().position(|class| runs(class.kind, &class.arch));
        let class = class.ok_or_else(|| RegistryError::CheckedNowhere(reference.to_owned()))?;
        let turn = self.compilations[class].turn((whose == Whose::Tenant).then_some(function.owner)).await;
        let this = self.clone();
        let made = self.threads.run(whose, move || {
            let made = this.make_checked(&function, class);
            drop(turn);
            made
        });
        made.await?
    }

    /// Makes a function's checked version, unless another call did meanwhile. Blocking, for as long as compilations may take.
    fn make_checked(&self, function: &Loaded, class: usize) -> Result<Arc<Loaded>, RegistryError> {
        if let Some(checked) = function.checked() {
            return Ok(checked);
        }
        let (class, record, account) = (&self.classes[class], &function.record, &function.account);
        let (config, blueprint) = self.parse_config(account, record.config)?;
        let blueprint = blueprint.checked().map_err(Mistakes::from)?;
        let mut code = Vec::with_capacity(record.modules.len());
        for module in &record.modules {
            let variant = class.choose(&module.variants);
            let variant = variant.ok_or_else(|| RegistryError::CheckedNowhere(record.name.clone()))?;
            let bytes = self.state.read_blob(function.owner, variant.sha256, u64::MAX);
            let bytes = bytes.map_err(|why| match why {
                StateError::Damaged(_) => {
                    why.log_damage("cannot compile a module");
                    RegistryError::Damaged { place: format!("module {}", module.name) }
                }
                why => failed("cannot read the module", &why).into(),
            })?;
            let compiled = class.compiler.compile_checked(&bytes).map_err(|why| {
                let (module, variant) = (module.name.to_string(), variant.label());
                CodeError::Compile { module, variant, why }
            })?;
            code.push(compiled.code);
        }
        // They lie apart, with room between them: not as those of the function.
        let weights = match record.weights.is_empty() {
            true => None,
            false => {
                let take = |bytes| self.loaded.make_room(account, Limit::WeightBytes, bytes);
                Some(Arc::new(self.pack_weights(account, record, &blueprint, take)?))
            }
        };
        let runs_on =
            vec![RunsOn { kind: class.kind, arch: class.arch.clone(), stack_bytes: 0, fenced: false }];
        let parsed = Parsed { blueprint, config, weights, runs_on, steps: None };
        Ok(self.loaded.insert_checked(function, parsed, code)?)
    }
}
