//! Machine code for the devices here: which variant each runs, and what is known of it.
//!
//! ```text
//! a request's work ──► code: it is made ──────────────────────────► goes on
//!        ▲                └─ it is not ──► CodeError::NotMade ──► make, without a thread until it is its turn
//!        └───────────────────────── again, with what was made ◄────────┘
//! ```

use std::sync::Arc;
use std::time::Instant;

use pappus_blueprint::kernel_info::CodeInfo;
use pappus_blueprint::{Blueprint, code};

use super::codes::{CodeError, Codes, NotMade, Wish};
use super::compile::{CompileError, Compiler};
use super::device_class::DeviceClass;
use super::failures::Job;
use super::layout::{self, DeviceLimits};
use super::state::Registry;
use super::views::KnownCode;
use crate::blocking::Whose;
use crate::function::loaded::RunsOn;
use crate::ids::TenantId;
use crate::limits::MAX_FUNCTION_DETAILS;
use crate::processes::process_table::ProcessTable;
use crate::refusal::{Failure, failed};
use crate::store::records::{FunctionModule, Variant};
use crate::store::{StagedCode, StateError};

impl Registry {
    /// Says where the memory is accounted of a device that modules are compiled on.
    pub fn charge(&self, device: &str, processes: &Arc<ProcessTable>) {
        for class in self.classes.iter().filter(|class| class.devices.first().is_some_and(|d| d == device)) {
            class.compiler.charge(processes);
        }
    }

    /// Says which kernels there are in what the devices here would run.
    pub(super) fn inspect(
        &self,
        tenant: TenantId,
        module: &str,
        variants: &[Variant],
        codes: &mut Codes,
    ) -> Result<KnownCode, CodeError> {
        let mut known: KnownCode = vec![None; variants.len()];
        for (nth, class) in self.classes.iter().enumerate() {
            let Some(at) = class.choose(variants).and_then(|v| variants.iter().position(|o| o == v)) else {
                continue;
            };
            known[at] = self.code(tenant, module, &variants[at], Some(nth), codes)?;
        }
        codes.all_made()?;
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

    /// Checks a blueprint against what is in the machine code of a function's modules for these devices, and says what
    /// stacks it takes on each.
    pub(super) fn check_code(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
        classes: &[&DeviceClass],
        codes: &mut Codes,
    ) -> Result<Vec<RunsOn>, CodeError> {
        let mut runs_on = Vec::with_capacity(classes.len());
        for (nth, class) in self.classes.iter().enumerate() {
            if !classes.iter().any(|chosen| std::ptr::eq(*chosen, class)) {
                continue;
            }
            let own = self.checked_code(tenant, blueprint, modules, nth, DeviceClass::choose, codes)?;
            let shared =
                match self.checked_code(tenant, blueprint, modules, nth, DeviceClass::choose_shared, codes) {
                    // It runs where its other variants do.
                    Err(CodeError::Compile { why, .. }) if why.is_of_the_module() => Vec::new(),
                    Err(CodeError::Layout(_)) => Vec::new(),
                    found => found?,
                };
            let kernels = own.iter().chain(&shared).flatten().flat_map(|info| &info.kernels);
            let stack_bytes = kernels.map(|kernel| kernel.stack_bytes).max().unwrap_or(0);
            let fenced = shared.len() == modules.len() && can_share_window(&shared);
            runs_on.push(RunsOn { kind: class.kind, arch: class.arch.clone(), stack_bytes, fenced });
        }
        codes.all_made().map(|()| runs_on)
    }

    /// What is known about the variants that `choose` takes of each module for one class of devices, checked against a blueprint where
    /// all of them are made.
    fn checked_code(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
        nth: usize,
        choose: for<'c, 'v> fn(&'c DeviceClass, &'v [Variant]) -> Option<&'v Variant>,
        codes: &mut Codes,
    ) -> Result<Vec<Option<Arc<CodeInfo>>>, CodeError> {
        let class = &self.classes[nth];
        let chosen: Option<Vec<_>> = modules.iter().map(|module| choose(class, &module.variants)).collect();
        // Of a function that cannot run there as a whole, nothing is made.
        let Some(chosen) = chosen else { return Ok(vec![None; modules.len()]) };
        let named = modules.iter().zip(chosen);
        let found = named.map(|(module, variant)| self.code(tenant, &module.name, variant, Some(nth), codes));
        let found = found.collect::<Result<Vec<_>, CodeError>>()?;
        if found.iter().all(Option::is_some) {
            let place = DeviceLimits { devices: &class.names(), stack_bytes: class.stack_bytes };
            layout::check(blueprint, &found, place).map_err(|why| CodeError::Layout(why.into()))?;
        }
        Ok(found)
    }

    /// Checks a blueprint against what the PTX and the code objects of its modules tell, where no device here runs them:
    /// what is wrong shows at registration, and not on the first host with a GPU.
    pub(super) fn check_declared(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        modules: &[FunctionModule],
        codes: &mut Codes,
    ) -> Result<(), CodeError> {
        for (at, module) in modules.iter().enumerate() {
            for variant in &module.variants {
                let format = code::of_name(&variant.format).filter(|format| format.declared().is_some());
                let Some(format) = format else { continue };
                if self.classes.iter().any(|class| class.choose(&module.variants) == Some(variant)) {
                    continue;
                }
                let declared = self.code(tenant, &module.name, variant, None, codes)?;
                let Some(targets) = declared.as_ref().map(|declared| &declared.targets) else { continue };
                if !format.is_called_right(&variant.arch, targets) {
                    let (module, variant, targets) =
                        (module.name.to_string(), variant.label(), targets.clone());
                    return Err(CodeError::Mislabelled { module, variant, targets });
                }
                let mut found = vec![None; modules.len()];
                found[at] = declared;
                let place = DeviceLimits { devices: "a GPU", stack_bytes: None };
                layout::check(blueprint, &found, place).map_err(|why| {
                    let (module, variant) = (module.name.to_string(), variant.label());
                    CodeError::Declared { module, variant, why: why.into() }
                })?;
            }
        }
        codes.all_made()
    }

    /// What is known about the machine code of a variant for one class of devices, or, without one, about what it
    /// declares; none if it has to be made first.
    fn code(
        &self,
        tenant: TenantId,
        module: &str,
        variant: &Variant,
        class: Option<usize>,
        codes: &mut Codes,
    ) -> Result<Option<Arc<CodeInfo>>, CodeError> {
        let job = Job { tenant, module: variant.sha256, class };
        if codes.details > MAX_FUNCTION_DETAILS {
            return Err(CodeError::TooManyDetails);
        }
        if let Some(outcome) = codes.outcomes.get(&job) {
            return outcome.clone().map(Some).map_err(|why| why.named(module, variant));
        }
        if let Some(info) = self.made(&job)? {
            let info = Arc::new(info);
            codes.made(job, Ok(info.clone()))?;
            return Ok(Some(info));
        }
        if let Some(why) = self.known_failure(&job, codes.wish) {
            return Err(why.named(module, variant));
        }
        if !codes.missing.contains(&job) {
            codes.missing.push(job);
        }
        Ok(None)
    }

    /// What is known about machine code that is there already.
    fn made(&self, job: &Job) -> Result<Option<CodeInfo>, Failure> {
        let Some(class) = job.class.map(|class| &self.classes[class]) else { return Ok(None) };
        let fingerprint = {
            let targets = self.targets.borrow();
            targets.iter().find(|target| class.takes(target)).map(|target| target.fingerprint.clone())
        };
        let Some(fingerprint) = fingerprint else { return Ok(None) };
        let info = self.state.code_info(job.tenant, job.module, &fingerprint);
        info.map_err(|e| failed("cannot read the machine code", &e))
    }

    fn known_failure(&self, job: &Job, wish: Wish) -> Option<NotMade> {
        match wish {
            Wish::Afresh => None,
            Wish::Known => self.failures.known(job, Instant::now()).map(NotMade::Compile),
        }
    }

    /// Makes the machine code that a request lacks, each at its tenant's turn, and puts the results into
    /// `codes`.
    pub(super) async fn make(self: &Arc<Self>, whose: Whose, jobs: Vec<Job>, codes: &mut Codes) {
        for job in jobs {
            let turns = job.class.and_then(|class| self.compilations.get(class)).unwrap_or(&self.describing);
            let turn = turns.turn((whose == Whose::Tenant).then_some(job.tenant)).await;
            let (this, wish) = (self.clone(), codes.wish);
            let made = self.threads.run(whose, move || {
                let outcome = this.make_now(&job, wish);
                drop(turn);
                outcome
            });
            let outcome =
                made.await.unwrap_or_else(|why| Err(NotMade::Compile(CompileError::BrokenOff(why.into()))));
            // What is too much is found when the work begins anew.
            let _ = codes.made(job, outcome.map(Arc::new));
        }
    }

    /// Makes machine code, or reads what a module declares. Blocking, for as long as a compilation may take.
    fn make_now(&self, job: &Job, wish: Wish) -> Result<CodeInfo, NotMade> {
        // Another request may have made the code meanwhile.
        if let Some(info) = self.made(job)? {
            return Ok(info);
        }
        if let Some(why) = self.known_failure(job, wish) {
            return Err(why);
        }
        let Job { tenant, module: hash, class } = *job;
        let bytes = match self.state.read_blob(tenant, hash, u64::MAX) {
            Ok(bytes) => bytes,
            Err(why @ StateError::Damaged(_)) => {
                why.log_damage("cannot compile a module");
                return Err(NotMade::Damaged);
            }
            // The client may have gone while this one waited, and the module with it.
            Err(_) if !self.registry_of(tenant).change(self.tenants.account(tenant)).blobs.has(hash) => {
                return Err(NotMade::Vanished);
            }
            Err(why) => return Err(failed("cannot read the module", &why).into()),
        };
        let class = match (class.map(|class| &self.classes[class]), self.classes.first()) {
            (Some(class), _) => class,
            (None, Some(any)) => {
                let reader = Compiler::of_no_device(any.compiler.launcher.clone());
                return reader.describe(&bytes).map_err(NotMade::Compile);
            }
            // Nothing runs anywhere, and nothing starts processes.
            (None, None) => return Ok(CodeInfo::default()),
        };
        let compiled = class.compiler.compile(&bytes);
        self.failures.note(*job, Instant::now(), &compiled);
        let compiled = compiled.map_err(NotMade::Compile)?;
        let what = "cannot store the machine code";
        let code = compiled.code.reader();
        let fingerprint = &compiled.fingerprint;
        let staged = self.state.stage_code(tenant, hash, fingerprint, code, &compiled.info);
        let staged = staged.map_err(|e| failed(what, &e))?;
        let mine = self.registry_of(tenant);
        let mut change = mine.change(self.tenants.account(tenant));
        // The client may have gone meanwhile, and the module with it: its code must not stay alone.
        if !change.blobs.has(hash) {
            return Err(NotMade::Vanished);
        }
        let disk_bytes = staged.disk_bytes();
        // What is registered already must load, however small the quota has become.
        if wish == Wish::Afresh {
            change.check_disk(disk_bytes, StagedCode::FILES).map_err(NotMade::Quota)?;
        }
        self.state.publish_code(tenant, hash, fingerprint, staged).map_err(|e| failed(what, &e))?;
        // What other builds or drivers made is of no use any more, once the other devices have said what they take.
        let targets = self.targets.borrow().clone();
        let mut others = self.classes.iter().filter(|other| !std::ptr::eq(*other, class));
        let are_known = others.all(|other| targets.iter().any(|target| other.takes(target)));
        let is_loaded = |of: &str| !are_known || targets.iter().any(|target| target.fingerprint == of);
        let outdated = change.blobs.replace_code(hash, fingerprint, disk_bytes, is_loaded);
        if !outdated.is_empty() {
            self.state.remove_code(tenant, hash, &outdated);
        }
        Ok(compiled.info)
    }
}

/// True if no kernel of a function's modules can leave a window, and one window has the variables of them all: those of every module
/// lie at the same place.
fn can_share_window(modules: &[Option<Arc<CodeInfo>>]) -> bool {
    let has_variables = |code: &&Arc<CodeInfo>| code.window_variables > 0;
    modules.iter().all(|code| code.as_ref().is_some_and(|code| code.fenced))
        && modules.iter().flatten().filter(has_variables).count() <= 1
}

#[cfg(test)]
mod tests {
    use pappus_protocol::Kind;
    use pappus_protocol::from_worker::{FoundDevice, Survey};

    use super::*;
    use crate::config::SandboxSettings;
    use crate::config::device::resolve;
    use crate::processes::confinement::Confinement;
    use crate::processes::launcher::Launcher;
    use crate::refusal::{Reason, Refusable};
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
        let launcher =
            Launcher::new("/nonexistent", Confinement::new(SandboxSettings::default(), None)).unwrap();
        let classes =
            DeviceClass::of(&resolve(&requests, &[(Kind::Cuda, survey)].into()).unwrap(), &launcher.into());
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

    #[test]
    fn where_processes_are_shared_text_is_compiled_beside_machine_code() {
        let variant = |format: &str, arch: &str, hash| Variant {
            format: format.into(),
            arch: arch.into(),
            sha256: Hash([hash; 32]),
            bytes: 1,
        };
        let machine_code = variant("cubin", "sm_90", 1);
        let both = vec![machine_code.clone(), variant("ptx", "sm_90", 2)];
        let other = vec![variant("cubin", "sm_90", 3)];
        let blueprint = pappus_blueprint::parse(
            br#"{"modules": [], "kernels": [], "blueprint": {"inputs": ["a"], "buffers": {}, "outputs": ["a"], "control_flow": []}}"#,
        );
        let blueprint = blueprint.unwrap();
        for (device, modules, compiled) in [
            ("cuda:0:isolation=auto", vec![both.clone()], &[1, 2][..]),
            ("cuda:0", vec![both.clone()], &[1]),
            ("cuda:0:isolation=auto", vec![vec![machine_code]], &[1]),
            // One module without text keeps the function out of shared processes.
            ("cuda:0:isolation=auto", vec![both, other], &[1, 3]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let registry = registry(dir.path(), &[device]);
            let modules = modules.into_iter().map(|variants: Vec<_>| variants.into());
            let modules: Vec<_> =
                modules.map(|variants| FunctionModule { name: "m".into(), variants }).collect();
            let classes = registry.runnable(&modules).unwrap();
            let mut codes = Codes::new(Wish::Known);
            let outcome = registry.check_code(TenantId::new(7), &blueprint, &modules, &classes, &mut codes);
            assert!(matches!(outcome, Err(CodeError::NotMade)), "{outcome:?}");
            let jobs: Vec<_> = codes.take_missing().iter().map(|job| job.module.0[0]).collect();
            assert_eq!(jobs, compiled, "{device}");
        }
    }

    #[test]
    fn a_window_has_the_variables_of_one_module() {
        let code = |fenced, window_variables| {
            Some(Arc::new(CodeInfo { fenced, window_variables, ..CodeInfo::default() }))
        };
        for (may, modules) in [
            (true, vec![]),
            (true, vec![code(true, 8), code(true, 0)]),
            (false, vec![code(true, 8), code(true, 8)]),
            (false, vec![code(true, 0), code(false, 0)]),
            (false, vec![code(true, 0), None]),
        ] {
            assert_eq!(can_share_window(&modules), may, "{modules:?}");
        }
    }

    #[test]
    fn bytes_that_were_removed_meanwhile_are_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path(), &["cpu"]);
        let tenant = TenantId::new(7);
        let job = Job { tenant, module: Hash([1; 32]), class: None };
        assert!(matches!(registry.make_now(&job, Wish::Afresh), Err(NotMade::Vanished)));
        // What a record needs must be there.
        let mine = registry.registry_of(tenant);
        mine.change(registry.tenants.account(tenant)).blobs.need(job.module);
        assert!(matches!(registry.make_now(&job, Wish::Afresh), Err(NotMade::Failure(_))));
    }
}
