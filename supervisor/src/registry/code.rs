//! Machine code for the devices here: which variant each runs, compiled once by a process of its own.

use pappus_blueprint::Blueprint;
use pappus_proto::{Code, v1};

use super::layout::{self, Place};
use super::records::{CodeInfo, FunctionModule, Variant};
use super::registration::{Registry, plain_info, vanished};
use super::target::DeviceClass;
use super::{Refusal, Tenant, internal, refusal};

impl Registry {
    /// Compiles what the devices here would run, and says which kernels there are.
    pub(super) fn inspect(
        &self,
        tenant: Tenant,
        module: &str,
        variants: &[Variant],
    ) -> Result<Vec<v1::VariantInfo>, Refusal> {
        let mut infos: Vec<_> = variants.iter().map(plain_info).collect();
        for class in &self.classes {
            let Some(at) = class.choose(variants).and_then(|v| variants.iter().position(|o| o == v)) else {
                continue;
            };
            self.ensure_code(tenant, module, &variants[at], class)?.describe(&mut infos[at]);
        }
        Ok(infos)
    }

    /// The classes of devices that have a variant of every module, at least one.
    pub(super) fn runnable(&self, modules: &[FunctionModule]) -> Result<Vec<&DeviceClass>, Refusal> {
        let mut classes: Vec<&DeviceClass> = self.classes.iter().collect();
        for module in modules {
            let left: Vec<_> =
                classes.iter().copied().filter(|class| class.choose(&module.variants).is_some()).collect();
            if left.is_empty() {
                let needs: Vec<_> = classes.iter().map(|class| class.needs()).collect();
                let there: Vec<_> = module.variants.iter().map(Variant::label).collect();
                let why = format!("{}, but there is only {}", needs.join("; "), there.join(", "));
                return Err(Box::new(refusal(Code::Unsupported, why).at(format!("module {}", module.name))));
            }
            classes = left;
        }
        Ok(classes)
    }

    /// Compiles a function's modules for these devices and checks the blueprint against what is in them.
    pub(super) fn check_code(
        &self,
        tenant: Tenant,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
        classes: &[&DeviceClass],
    ) -> Result<(), Refusal> {
        for class in classes {
            let codes = modules.iter().map(|module| {
                let variant = class.choose(&module.variants);
                let variant = variant.ok_or_else(|| internal("no variant for this device", &module.name))?;
                self.ensure_code(tenant, &module.name, variant, class)
            });
            let codes = codes.collect::<Result<Vec<_>, _>>()?;
            let place = Place { devices: &class.names(), stack_bytes: class.stack_bytes };
            layout::check(blueprint, &codes, place)?;
        }
        Ok(())
    }

    /// What is known about machine code that is there already.
    fn made(&self, tenant: Tenant, variant: &Variant, class: &DeviceClass) -> Option<CodeInfo> {
        let targets = self.targets.borrow();
        let same = targets.iter().find(|target| target.kind == class.kind && target.arch == class.arch)?;
        self.state.code_info(tenant, variant.sha256, &same.fingerprint)
    }

    /// Machine code of a variant for one class of devices.
    fn ensure_code(
        &self,
        tenant: Tenant,
        module: &str,
        variant: &Variant,
        class: &DeviceClass,
    ) -> Result<CodeInfo, Refusal> {
        if let Some(info) = self.made(tenant, variant, class) {
            return Ok(info);
        }
        let runtime = tokio::runtime::Handle::current();
        let permit = runtime.block_on(self.compilations.acquire());
        // Somebody else may have compiled it while this one waited.
        if let Some(info) = self.made(tenant, variant, class) {
            return Ok(info);
        }
        let hash = variant.sha256;
        let bytes = self.state.read_blob(tenant, hash).map_err(|e| internal("cannot read the module", e))?;
        let compiled = class.compiler.compile(&bytes).map_err(|mut e| {
            e.message = format!("module {module} ({}): {}", variant.label(), e.message);
            e
        })?;
        drop(permit);
        let failed = |e: &dyn std::fmt::Display| internal("cannot store the machine code", e);
        let code = compiled.code.reader().map_err(|e| failed(&e))?;
        self.state
            .put_code(tenant, hash, &compiled.fingerprint, code, &compiled.info)
            .map_err(|e| failed(&e))?;
        // The client may have gone meanwhile, and the module with it: its code must not stay alone.
        let index = self.index();
        if !index.tenant(tenant).is_some_and(|t| t.has_blob(hash)) {
            self.state.remove_blob(tenant, hash);
            return Err(vanished());
        }
        Ok(compiled.info)
    }
}
