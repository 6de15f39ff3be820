//! Machine code for the devices here: which variant each runs, compiled once by a process of its own.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use pappus_blueprint::Blueprint;

use super::compile::{CompileError, Compiler};
use super::device_class::DeviceClass;
use super::failures::Job;
use super::layout::{self, DeviceLimits, LayoutError};
use super::state::Registry;
use super::views::KnownCode;
use crate::ids::TenantId;
use crate::processes::memory_ledger::MemoryLedger;
use crate::refusal::{Failure, Reason, Refusable, failed, internal};
use crate::store::records::{CodeInfo, FunctionModule, Variant};
use crate::store::state_dir::StagedCode;
use crate::tenants::QuotaError;

/// Whether a compilation that failed before is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Somebody registers the module: yes.
    Afresh,
    /// What is known is enough.
    Known,
}

/// Why there is no machine code for a function or a module.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// No device here runs a module.
    #[error("{}, but there is only {}", needs.join("; "), there.join(", "))]
    NoVariant {
        /// The module.
        module: Box<str>,
        /// What the devices need.
        needs: Vec<String>,
        /// Variants that it has.
        there: Vec<String>,
    },
    /// A variant does not compile, or cannot be read.
    #[error("module {module} ({variant}): {why}")]
    Compile {
        /// The module.
        module: String,
        /// Format and architecture.
        variant: String,
        /// Why.
        why: CompileError,
    },
    /// The blueprint does something else than a variant declares that no device here runs.
    #[error("module {module} ({variant}): {why}")]
    Declared {
        /// The module.
        module: String,
        /// Format and architecture.
        variant: String,
        /// What is wrong.
        why: Box<LayoutError>,
    },
    /// The blueprint does something else than its machine code.
    #[error(transparent)]
    Layout(Box<LayoutError>),
    /// The module was removed while it was compiled.
    #[error("bytes that it needs were removed meanwhile: add it again")]
    Vanished,
    /// More than the tenant may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The supervisor failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Refusable for CodeError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoVariant { .. } => Reason::Unsupported,
            Self::Compile { why, .. } => why.reason(),
            Self::Declared { why, .. } | Self::Layout(why) => why.reason(),
            Self::Vanished => Reason::NotFound,
            Self::Quota(error) => error.reason(),
            Self::Failure(failure) => failure.reason(),
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::NoVariant { module, .. } => format!("module {module}").into(),
            Self::Declared { why, .. } | Self::Layout(why) => why.place(),
            Self::Compile { .. } | Self::Vanished | Self::Quota(_) | Self::Failure(_) => "".into(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Compile { why, .. } => why.retry_after_ms(),
            Self::Quota(error) => Refusable::retry_after_ms(error),
            Self::Failure(failure) => failure.retry_after_ms(),
            _ => None,
        }
    }
}

impl Registry {
    /// Says where the memory is accounted of a device that modules are compiled on.
    pub fn charge(&self, device: &str, ledger: &Arc<MemoryLedger>) {
        for class in self.classes.iter().filter(|class| class.devices.first().is_some_and(|d| d == device)) {
            class.compiler.charge(ledger);
        }
    }

    /// Compiles what the devices here would run, and says which kernels there are.
    pub(super) fn inspect(
        &self,
        tenant: TenantId,
        module: &str,
        variants: &[Variant],
        wish: Wish,
    ) -> Result<KnownCode, CodeError> {
        let mut known: KnownCode = vec![None; variants.len()];
        for class in &self.classes {
            let Some(at) = class.choose(variants).and_then(|v| variants.iter().position(|o| o == v)) else {
                continue;
            };
            known[at] = Some(self.ensure_code(tenant, module, &variants[at], class, wish)?);
        }
        Ok(known)
    }

    /// The classes of devices that have a variant of every module, at least one.
    pub(super) fn runnable(&self, modules: &[FunctionModule]) -> Result<Vec<&DeviceClass>, CodeError> {
        let mut classes: Vec<&DeviceClass> = self.classes.iter().collect();
        for module in modules {
            let left: Vec<_> =
                classes.iter().copied().filter(|class| class.choose(&module.variants).is_some()).collect();
            if left.is_empty() {
                return Err(CodeError::NoVariant {
                    module: module.name.clone(),
                    needs: classes.iter().map(|class| class.needs()).collect(),
                    there: module.variants.iter().map(Variant::label).collect(),
                });
            }
            classes = left;
        }
        Ok(classes)
    }

    /// Compiles a function's modules for these devices and checks the blueprint against what is in them.
    pub(super) fn check_code(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
        classes: &[&DeviceClass],
        wish: Wish,
    ) -> Result<(), CodeError> {
        for class in classes {
            let codes = modules.iter().map(|module| {
                let variant = class.choose(&module.variants);
                let variant = variant.ok_or_else(|| internal("no variant for this device", &module.name))?;
                self.ensure_code(tenant, &module.name, variant, class, wish).map(Some)
            });
            let codes = codes.collect::<Result<Vec<_>, CodeError>>()?;
            let place = DeviceLimits { devices: &class.names(), stack_bytes: class.stack_bytes };
            layout::check(blueprint, &codes, place).map_err(|why| CodeError::Layout(why.into()))?;
        }
        Ok(())
    }

    /// Checks a blueprint against what the PTX of its modules declares, where no device here runs that PTX: what is
    /// wrong shows at registration, and not on the first host with a GPU.
    pub(super) fn check_declared(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
    ) -> Result<(), CodeError> {
        let Some(launcher) = self.classes.first().map(|class| class.compiler.launcher.clone()) else {
            return Ok(());
        };
        let reader = Compiler::of_no_device(launcher);
        for (at, module) in modules.iter().enumerate() {
            for variant in module.variants.iter().filter(|variant| &*variant.format == "ptx") {
                if self.classes.iter().any(|class| class.choose(&module.variants) == Some(variant)) {
                    continue;
                }
                let names = || (module.name.to_string(), variant.label());
                let permit = tokio::runtime::Handle::current().block_on(self.compilations.permit(tenant));
                let bytes = self.state.read_blob(tenant, variant.sha256);
                let bytes = bytes.map_err(|e| failed("cannot read the module", &e))?;
                let mut codes = vec![None; modules.len()];
                let described = reader.describe(&bytes).map_err(|why| {
                    let (module, variant) = names();
                    CodeError::Compile { module, variant, why }
                });
                codes[at] = Some(described?);
                drop(permit);
                let place = DeviceLimits { devices: "a GPU", stack_bytes: None };
                layout::check(blueprint, &codes, place).map_err(|why| {
                    let (module, variant) = names();
                    CodeError::Declared { module, variant, why: why.into() }
                })?;
            }
        }
        Ok(())
    }

    /// What is known about machine code that is there already.
    fn made(&self, tenant: TenantId, variant: &Variant, class: &DeviceClass) -> Option<CodeInfo> {
        let targets = self.targets.borrow();
        let same = targets.iter().find(|target| target.kind == class.kind && target.arch == class.arch)?;
        self.state.code_info(tenant, variant.sha256, &same.fingerprint)
    }

    /// Machine code of a variant for one class of devices.
    fn ensure_code(
        &self,
        tenant: TenantId,
        module: &str,
        variant: &Variant,
        class: &DeviceClass,
        wish: Wish,
    ) -> Result<CodeInfo, CodeError> {
        if let Some(info) = self.made(tenant, variant, class) {
            return Ok(info);
        }
        let named = |why| CodeError::Compile { module: module.to_owned(), variant: variant.label(), why };
        let job = Job { tenant, module: variant.sha256, kind: class.kind, arch: class.arch.clone() };
        let known = || match wish {
            Wish::Afresh => None,
            Wish::Known => self.failures.known(&job, Instant::now()),
        };
        if let Some(why) = known() {
            return Err(named(why));
        }
        let runtime = tokio::runtime::Handle::current();
        let permit = runtime.block_on(self.compilations.permit(tenant));
        // Somebody else may have compiled it while this one waited.
        if let Some(info) = self.made(tenant, variant, class) {
            return Ok(info);
        }
        if let Some(why) = known() {
            return Err(named(why));
        }
        let hash = variant.sha256;
        let bytes = self.state.read_blob(tenant, hash).map_err(|e| failed("cannot read the module", &e))?;
        let compiled = class.compiler.compile(&bytes);
        self.failures.note(job, Instant::now(), &compiled);
        let compiled = compiled.map_err(named)?;
        drop(permit);
        let what = "cannot store the machine code";
        let code = compiled.code.reader().map_err(|e| failed(what, &e))?;
        let fingerprint = &compiled.fingerprint;
        let staged = self.state.stage_code(tenant, hash, fingerprint, code, &compiled.info);
        let staged = staged.map_err(|e| failed(what, &e))?;
        let mine = self.registry_of(tenant);
        let mut change = mine.change(self.tenants.account(tenant));
        // The client may have gone meanwhile, and the module with it: its code must not stay alone.
        if !change.blobs.has(hash) {
            return Err(CodeError::Vanished);
        }
        let disk_bytes = staged.disk_bytes();
        // What is registered already must load, however small the quota has become.
        if wish == Wish::Afresh {
            change.check_disk(disk_bytes, StagedCode::FILES)?;
        }
        self.state.publish_code(tenant, hash, fingerprint, staged).map_err(|e| failed(what, &e))?;
        change.blobs.replace_code(hash, fingerprint, disk_bytes);
        Ok(compiled.info)
    }
}

#[cfg(test)]
mod tests {
    use pappus_protocol::from_worker::{FoundDevice, Survey};

    use super::*;
    use crate::config::SandboxSettings;
    use crate::config::device::resolve;
    use crate::processes::confinement::Confinement;
    use crate::processes::launcher::Launcher;
    use crate::store::StateDir;
    use crate::store::records::{Hash, Weight};

    /// A registry of a machine with these devices; nothing is ever compiled.
    fn registry(dir: &std::path::Path, devices: &[&str]) -> Registry {
        let gpu = |index, arch: &str| FoundDevice {
            index,
            uuid: format!("GPU-{index}"),
            arch: arch.into(),
            memory_bytes: 80 << 30,
            free_bytes: 80 << 30,
            ..FoundDevice::default()
        };
        let survey =
            Survey { devices: vec![gpu(0, "sm_90"), gpu(1, "sm_80"), gpu(2, "sm_90")], ..Survey::default() };
        let requests: Vec<_> = devices.iter().map(|device| device.parse().unwrap()).collect();
        let launcher = Launcher::new("/nonexistent", Confinement::new(SandboxSettings::default(), None));
        let classes = DeviceClass::of(&resolve(&requests, &survey).unwrap(), &launcher.into());
        let targets = tokio::sync::watch::channel(vec![]).1;
        Registry::open(StateDir::open(dir).unwrap().into(), Default::default(), classes, targets).unwrap()
    }

    fn module(name: &str, variants: &[&str]) -> FunctionModule {
        let variant = |text: &&str| {
            let (format, arch) = text.split_once(' ').unwrap_or((text, ""));
            Variant { format: format.into(), arch: arch.into(), sha256: Hash([0; 32]), bytes: 1 }
        };
        FunctionModule { name: name.into(), variants: variants.iter().map(variant).collect() }
    }

    #[test]
    fn a_function_runs_where_every_module_has_a_variant() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path(), &["cpu", "cuda:0", "cuda:1:weights=1GiB", "cuda:2:weights=2GiB"]);
        let on = |modules: &[FunctionModule]| -> Result<Vec<String>, CodeError> {
            Ok(registry.runnable(modules)?.into_iter().map(|class| class.devices.join(" ")).collect())
        };
        let both = ["wasm", "ptx"];
        assert_eq!(on(&[module("m", &both)]).unwrap(), ["cpu", "cuda:0 cuda:2", "cuda:1"]);
        assert_eq!(on(&[module("m", &both), module("n", &["cubin sm_90"])]).unwrap(), ["cuda:0 cuda:2"]);
        assert_eq!(
            on(&[module("m", &["ptx sm_80"]), module("n", &both)]).unwrap(),
            ["cuda:0 cuda:2", "cuda:1"]
        );
        let why = on(&[module("m", &["hsaco gfx942"])]).unwrap_err();
        for words in [
            "the device cpu needs its .wasm variant; the devices cuda:0, cuda:2 need a .cubin for sm_90",
            "a .ptx for sm_80 or older, but there is only hsaco gfx942",
        ] {
            assert!(why.to_string().contains(words), "{why}");
        }
        // Only what was left could have run it.
        let why = on(&[module("m", &["wasm"]), module("n", &["ptx"])]).unwrap_err();
        assert_eq!(why.to_string(), "the device cpu needs its .wasm variant, but there is only ptx");
        assert_eq!((why.reason(), &*why.place()), (Reason::Unsupported, "module n"));

        let all = registry.runnable(&[module("m", &both)]).unwrap();
        let weight = |bytes| [Weight { name: "W".into(), sha256: Hash([0; 32]), bytes }];
        let room = |bytes| registry.with_room(&weight(bytes), all.clone()).map(|classes| classes.len());
        assert_eq!((room(1 << 20).unwrap(), room(3 << 29).unwrap(), room(3 << 30).unwrap()), (3, 2, 1));
        let why = room(5 << 30).unwrap_err();
        assert_eq!((why.reason(), &*why.place()), (Reason::OutOfMemory, "blueprint.weights"));
    }
}
