//! Requests that may need machine code. Their work is done on threads that may wait for the disk, and ends early where
//! machine code is missing; that is made, and the work begins anew. No thread waits for a turn to compile.

use std::sync::Arc;

use super::admission::{NewFunction, NewModule};
use super::codes::{Codes, Wish};
use super::error::RegistryError;
use super::state::Registry;
use super::views::{FunctionView, ModuleView, Registered, Registration};
use crate::blocking::Whose;
use crate::function::Loaded;
use crate::limits::MAX_OVERTAKEN;
use crate::tenants::Account;

impl Registry {
    /// Registers a module by name.
    pub async fn add_module(
        self: &Arc<Self>,
        whose: Whose,
        account: Arc<Account>,
        new: NewModule,
    ) -> Result<(ModuleView, Registration), RegistryError> {
        self.compile_and_retry(whose, Wish::Afresh, move |registry, codes| {
            registry.try_add_module(&account, &new, codes)
        })
        .await
    }

    /// Registers a function; with `replace`, in the place of one of the same name. Calls that were accepted finish with
    /// the old one, whose grants the new one has.
    pub async fn add_function(
        self: &Arc<Self>,
        whose: Whose,
        account: Arc<Account>,
        new: NewFunction,
    ) -> Result<Registered, RegistryError> {
        self.compile_and_retry(whose, Wish::Afresh, move |registry, codes| {
            registry.try_add_function(&account, &new, codes)
        })
        .await
    }

    /// Makes a version of a function the current one, whose grants it has. Calls that were accepted finish with what they began
    /// with.
    pub async fn use_version(
        self: &Arc<Self>,
        whose: Whose,
        account: Arc<Account>,
        reference: String,
    ) -> Result<Registered, RegistryError> {
        self.compile_and_retry(whose, Wish::Afresh, move |registry, codes| {
            registry.try_use_version(&account, &reference, codes)
        })
        .await
    }

    /// One module with its kernels.
    pub async fn show_module(
        self: &Arc<Self>,
        whose: Whose,
        account: Arc<Account>,
        name: String,
    ) -> Result<ModuleView, RegistryError> {
        self.compile_and_retry(whose, Wish::Known, move |registry, codes| {
            registry.try_show_module(&account, &name, codes)
        })
        .await
    }

    /// One function with its configuration.
    pub async fn show_function(
        self: &Arc<Self>,
        whose: Whose,
        account: Arc<Account>,
        name: String,
    ) -> Result<FunctionView, RegistryError> {
        self.compile_and_retry(whose, Wish::Known, move |registry, codes| {
            registry.try_show_function(&account, &name, codes)
        })
        .await
    }

    /// As [`Registry::find`], from disk if need be. A tenant that may not call a function learns nothing of it, not
    /// even that it is there.
    pub async fn load(
        self: &Arc<Self>,
        whose: Whose,
        caller: &Account,
        reference: &str,
    ) -> Result<Arc<Loaded>, RegistryError> {
        let mut codes = Codes::new(Wish::Known);
        loop {
            let outcome = self.threads.run_here(whose, || self.try_load(caller, reference, &mut codes)).await;
            let missing = codes.take_missing();
            if missing.is_empty() {
                return outcome;
            }
            self.make(whose, missing, &mut codes).await;
        }
    }

    /// Repeats `work`, making the machine code that it lacks in between, until it lacks none or the code cannot be made; also where
    /// other requests of the tenant changed what it had read, so many times.
    async fn compile_and_retry<T: Send + 'static>(
        self: &Arc<Self>,
        whose: Whose,
        wish: Wish,
        work: impl Fn(&Self, &mut Codes) -> Result<T, RegistryError> + Send + Sync + 'static,
    ) -> Result<T, RegistryError> {
        let work = Arc::new(work);
        let mut codes = Codes::new(wish);
        let mut overtaken = 0;
        loop {
            let (this, work) = (self.clone(), work.clone());
            let tried = self.threads.run(whose, move || (work(&this, &mut codes), codes)).await?;
            let outcome = tried.0;
            codes = tried.1;
            let missing = codes.take_missing();
            match outcome {
                Err(RegistryError::Changed) if missing.is_empty() && overtaken < MAX_OVERTAKEN => {
                    overtaken += 1
                }
                outcome if missing.is_empty() => return outcome,
                _ => self.make(whose, missing, &mut codes).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::tests::open;
    use super::*;

    #[tokio::test]
    async fn who_is_overtaken_begins_anew_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let registry = open(dir.path());
        let overtaken = async |times: u32| {
            let tried = AtomicU32::new(0);
            let work = move |_: &Registry, _: &mut Codes| match tried.fetch_add(1, Ordering::Relaxed) {
                nth if nth < times => Err(RegistryError::Changed),
                nth => Ok(nth),
            };
            registry.compile_and_retry(Whose::Tenant, Wish::Known, work).await
        };
        assert_eq!(overtaken(MAX_OVERTAKEN).await.unwrap(), MAX_OVERTAKEN);
        assert!(matches!(overtaken(MAX_OVERTAKEN + 1).await, Err(RegistryError::Changed)));
    }
}
