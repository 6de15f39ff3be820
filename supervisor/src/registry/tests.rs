//! A registry over a directory: what is registered, charged and found, without a device that compiles anything.

use std::path::Path;
use std::sync::Arc;

use pappus_protocol::Kind;

use super::admission::{NewFunction, NewFunctionModule, NewModule, NewVariant, NewWeight};
use super::codes::{Codes, Wish};
use super::failures::Job;
use super::views::Registered;
use super::*;
use crate::blocking::{BlockingThreads, Whose};
use crate::config::SandboxSettings;
use crate::config::device::{Surveys, resolve};
use crate::function::Loaded;
use crate::function::loaded::Callers;
use crate::ids::TenantId;
use crate::processes::confinement::Confinement;
use crate::processes::launcher::Launcher;
use crate::quota::Quota;
use crate::refusal::{Reason, Refusable};
use crate::store::StateDir;
use crate::tenants::{Account, Limit, Tenants};

const BLOCK: u64 = 4096;

pub(super) fn open(dir: &Path) -> Arc<Registry> {
    open_on(dir, Kind::Cpu)
}

/// A registry with one device of this kind.
fn open_on(dir: &Path, kind: Kind) -> Arc<Registry> {
    let launcher = Launcher::new("/nonexistent", Confinement::new(SandboxSettings::default(), None)).unwrap();
    let devices = resolve(&["cpu".parse().unwrap()], &Surveys::new()).unwrap();
    let mut classes = DeviceClass::of(&devices, &launcher.into());
    classes[0].kind = kind;
    let state = Arc::new(StateDir::open(dir).unwrap());
    let tenants =
        Arc::new(Tenants::new(Default::default(), state.names().clone(), crate::tenants::Machine::here(0)));
    let targets = tokio::sync::watch::channel(vec![]).1;
    Registry::open(state, tenants, classes, targets).unwrap().into()
}

pub(super) fn account(registry: &Registry, tenant: u32) -> Arc<Account> {
    registry.tenants.account(TenantId::new(tenant))
}

/// A function without modules that has these weights.
pub(super) fn add(
    registry: &Registry,
    account: &Arc<Account>,
    name: &str,
    weights: &[&[u8]],
) -> Result<(), RegistryError> {
    try_add(registry, account, name, weights, None).map(drop)
}

/// The same, which replaces another one if that is to be kept with so many older versions at most.
pub(super) fn try_add(
    registry: &Registry,
    account: &Arc<Account>,
    name: &str,
    weights: &[&[u8]],
    keep: Option<usize>,
) -> Result<Registered, RegistryError> {
    let names: Vec<String> = (0..weights.len()).map(|n| format!("w{n}")).collect();
    let list = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(",");
    let config = format!(
        r#"{{"modules": [], "kernels": [], "blueprint":
            {{"inputs": [], "weights": [{list}], "buffers": {{}}, "outputs": [], "control_flow": []}}}}"#
    );
    let handed = Handed::default();
    let put = |bytes: &[u8]| registry.put_blob(account, &handed, bytes.len() as u64, bytes);
    let config_sha256 = put(config.as_bytes())?.0.0.to_vec().into();
    let contents = weights.iter().map(|content| put(content)).collect::<Result<Vec<_>, _>>()?;
    let weights = names.into_iter().zip(contents);
    let weights =
        weights.map(|(name, (hash, _))| NewWeight { name, sha256: hash.0.to_vec().into() }).collect();
    let (replace, keep) = (keep.is_some(), keep.unwrap_or(0));
    let new = NewFunction { name: name.into(), config_sha256, modules: vec![], weights, replace, keep };
    let added = registry.try_add_function(account, &new, &mut Codes::new(Wish::Afresh));
    release(registry, account, &handed);
    added
}

pub(super) fn load(registry: &Registry, caller: &Account, name: &str) -> Result<Arc<Loaded>, RegistryError> {
    registry.try_load(caller, name, &mut Codes::new(Wish::Known))
}

/// A connection that handed this over ended, and its tenant's thread did what follows.
fn release(registry: &Registry, account: &Arc<Account>, handed: &Handed) {
    registry.release_handed(account, &handed.end());
}

/// Bytes on disk and files that a tenant is charged for.
fn on_disk(account: &Account) -> (u64, u64) {
    (account.used(Limit::BlobBytes), account.used(Limit::BlobFiles))
}

#[test]
fn no_lookup_and_no_other_tenant_waits_for_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let (busy, other) = (account(&registry, 1), account(&registry, 2));
    add(&registry, &busy, "f", &[]).unwrap();
    registry.grant(&busy, "f", "2").unwrap();
    // As it is held while files are written and removed.
    let of_busy = registry.registry_of(busy.tenant);
    let change = of_busy.change(busy.clone());
    std::thread::scope(|scope| {
        let rest = scope.spawn(|| {
            let counts = (registry.counts(), registry.counts_of(busy.tenant));
            let listed = registry.list_functions(&other, "").items.len();
            let loaded = load(&registry, &other, "1/f").is_ok();
            add(&registry, &other, "g", &[]).unwrap();
            (counts, listed, loaded, registry.list_functions(&busy, "").items.len())
        });
        assert_eq!(rest.join().unwrap(), (((1, 0), (1, 0)), 1, true, 1));
    });
    drop(change);
    assert_eq!(registry.counts(), (2, 0));
}

#[test]
fn files_are_charged_as_blocks_and_inodes_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let handed = Handed::default();
    for n in 0..10u8 {
        registry.put_blob(&account, &handed, 3, &[n; 3][..]).unwrap();
        // Handed over again: nothing more is held for it.
        registry.put_blob(&account, &handed, 3, &[n; 3][..]).unwrap();
    }
    assert_eq!(on_disk(&account), (10 * BLOCK, 10));
    release(&registry, &account, &handed);
    assert_eq!(on_disk(&account), (0, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("tenants/1/blobs")).unwrap().count(), 0);

    // Two records and the configuration, the weights, and who may call it.
    add(&registry, &account, "f", &[b"w"]).unwrap();
    add(&registry, &account, "g", &[b"w"]).unwrap();
    assert_eq!(on_disk(&account), (4 * BLOCK, 4));
    registry.grant(&account, "f", "2").unwrap();
    registry.grant(&account, "f", "3").unwrap();
    assert_eq!((on_disk(&account), account.used(Limit::Functions)), ((5 * BLOCK, 5), 2));
    drop((registry, account));

    let registry = open(dir.path());
    let account = self::account(&registry, 1);
    assert_eq!((on_disk(&account), account.used(Limit::Functions)), ((5 * BLOCK, 5), 2));
    registry.remove_function(&account, "f").unwrap();
    assert_eq!(on_disk(&account), (3 * BLOCK, 3));
    registry.remove_function(&account, "g").unwrap();
    assert_eq!((on_disk(&account), account.used(Limit::Functions)), ((0, 0), 0));
}

#[test]
fn bytes_that_come_after_their_connection_ended_do_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let handed = Handed::default();
    release(&registry, &account, &handed);
    assert!(registry.put_blob(&account, &handed, 3, &b"abc"[..]).is_err());
    assert_eq!(on_disk(&account), (0, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("tenants/1/blobs")).unwrap().count(), 0);
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let refused =
        |error: RegistryError, limit| matches!(error, RegistryError::Quota(why) if why.limit == limit);
    let mut quota = Quota::default();
    quota.set(Limit::BlobBytes, 2 * BLOCK);
    account.allow(quota);
    assert!(
        refused(add(&registry, &account, "f", &[b"w"]).unwrap_err(), Limit::BlobBytes),
        "no room for its record"
    );
    let handed = Handed::default();
    let error = registry.put_blob(&account, &handed, 3 * BLOCK, &[0; 12288][..]).unwrap_err();
    assert!(refused(error, Limit::BlobBytes));
    quota.set(Limit::BlobFiles, 0);
    account.allow(quota);
    assert!(refused(registry.put_blob(&account, &handed, 1, &b"x"[..]).unwrap_err(), Limit::BlobFiles));
    assert_eq!(on_disk(&account), (0, 0));
}

#[test]
fn records_and_grants_are_charged_as_memory() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let memory = || account.used(Limit::PlanBytes);
    add(&registry, &account, "f", &[]).unwrap();
    // It is in memory, too.
    let both = memory();
    drop(registry.loaded.remove(account.tenant, "f").unwrap());
    let one = memory();
    assert!(both > one && one > 256);
    registry.grant(&account, "f", "2").unwrap();
    let granted = memory() - one;
    let mut quota = Quota::default();
    quota.set(Limit::PlanBytes, one + 2 * granted);
    account.allow(quota);
    registry.grant(&account, "f", "3").unwrap();
    let full = |error| matches!(error, RegistryError::Quota(why) if why.limit == Limit::PlanBytes);
    assert!(full(registry.grant(&account, "f", "4").unwrap_err()));
    assert!(full(add(&registry, &account, "g", &[]).unwrap_err()));
    registry.revoke(&account, "f", "2").unwrap();
    assert_eq!(memory(), one + granted);
    let before = memory();
    drop(registry);
    let registry = open(dir.path());
    let account = self::account(&registry, 1);
    assert_eq!(account.used(Limit::PlanBytes), before);
    registry.remove_function(&account, "f").unwrap();
    assert_eq!(account.used(Limit::PlanBytes), 0);
}

#[test]
fn a_function_whose_machine_code_is_gone_is_not_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let handed = Handed::default();
    let put = |bytes: &[u8]| registry.put_blob(&account, &handed, bytes.len() as u64, bytes).unwrap().0;
    let config = br#"{"module_path": "m.wasm", "kernels": [], "blueprint": {"inputs": [], "buffers": {}, "outputs": [], "control_flow": []}}"#;
    let (config, module) = (put(config), put(b"module"));
    let variant = NewVariant { format: "wasm".into(), arch: String::new(), sha256: module.0.to_vec().into() };
    let module_of =
        NewFunctionModule { name: "m.wasm".into(), variants: vec![variant], registered: String::new() };
    let new = NewFunction {
        name: "f".into(),
        config_sha256: config.0.to_vec().into(),
        modules: vec![module_of],
        weights: vec![],
        replace: false,
        keep: 2,
    };
    // It was made for this request, and went while another module was.
    let mut codes = Codes::new(Wish::Afresh);
    codes.put_made(Job { tenant: account.tenant, module, class: Some(0) });
    registry.try_add_function(&account, &new, &mut codes).unwrap();
    assert!(registry.find(&account, "f").is_none());
    // The control: one without modules.
    add(&registry, &account, "g", &[]).unwrap();
    assert!(registry.find(&account, "g").is_some());
}

#[test]
fn a_function_that_is_removed_while_it_loads_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    add(&registry, &account, "f", &[]).unwrap();
    let loaded = load(&registry, &account, "f").unwrap();
    assert!(registry.find(&account, "f").is_some());
    assert_eq!(registry.remove_function(&account, "f").unwrap(), [loaded.id]);
    assert!(registry.find(&account, "f").is_none() && load(&registry, &account, "f").is_err());
    // Its bytes stay for the call that holds it, and go with the next change after that.
    assert_eq!(on_disk(&account), (BLOCK, 1));
    drop(loaded);
    registry.release_handed(&account, &[]);
    assert_eq!(on_disk(&account), (0, 0));
}

#[test]
fn functions_with_the_same_weights_share_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let (one, other) = (account(&registry, 1), account(&registry, 2));
    let weights = [7; 100_000];
    for n in 0..15 {
        add(&registry, &one, &format!("f{n}"), &[&weights]).unwrap();
    }
    add(&registry, &other, "f", &[&weights]).unwrap();
    let loaded: Vec<_> = (0..15).map(|n| load(&registry, &one, &format!("f{n}")).unwrap()).collect();
    let packed = loaded[0].packed_weight_bytes();
    assert!(packed >= weights.len() as u64);
    assert_eq!(one.used(Limit::WeightBytes), packed);
    load(&registry, &other, "f").unwrap();
    assert_eq!((one.used(Limit::WeightBytes), other.used(Limit::WeightBytes)), (packed, packed));

    // Others do not fit beside them as long as calls have these.
    let mut quota = Quota::default();
    quota.set(Limit::WeightBytes, packed);
    one.allow(quota);
    add(&registry, &one, "new", &[&[8; 100_000]]).unwrap();
    let refused = load(&registry, &one, "new").unwrap_err();
    assert!(matches!(refused, RegistryError::Quota(why) if why.limit == Limit::WeightBytes));
    drop(loaded);
    load(&registry, &one, "new").unwrap();
    assert_eq!(one.used(Limit::WeightBytes), packed);
    // No tenant is connected: functions that no call uses go.
    (0..2).for_each(|_| registry.loaded.evict_unused(|_| false));
    assert_eq!((one.used(Limit::WeightBytes), other.used(Limit::WeightBytes)), (0, 0));
    assert_eq!(one.used(Limit::LoadedFunctions), 0);
}

#[test]
fn a_function_with_small_weights_is_in_memory_once_it_is_registered() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    let is_there = |name: &str, weights: &[u8]| {
        add(&registry, &account, name, &[weights]).unwrap();
        registry.find(&account, name).is_some()
    };
    assert!(is_there("small", &[7; 4096]));
    assert!(!is_there("large", &vec![7; (1 << 20) + 1]));
    // It takes no other's place.
    let mut quota = Quota::default();
    quota.set(Limit::WeightBytes, 3 * account.used(Limit::WeightBytes));
    account.allow(quota);
    assert!(!is_there("another", &[8; 4096]));
    assert!(registry.find(&account, "small").is_some());
    load(&registry, &account, "another").unwrap();
    // Whoever has no weights needs no room for them.
    add(&registry, &account, "none", &[]).unwrap();
    assert!(registry.find(&account, "none").is_some());
}

/// A module that nothing compiles: there is no program to start.
async fn add_module(registry: &Arc<Registry>, account: &Arc<Account>) -> Result<(), RegistryError> {
    let handed = Handed::default();
    let (hash, _) = registry.put_blob(account, &handed, 4, &b"wasm"[..])?;
    let variant = NewVariant { format: "wasm".into(), arch: String::new(), sha256: hash.0.to_vec().into() };
    let new = NewModule { name: "m".into(), variants: vec![variant] };
    registry.add_module(Whose::Tenant, account.clone(), new).await.map(drop)
}

#[tokio::test]
async fn a_module_that_cannot_be_compiled_is_tried_once_for_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let account = account(&registry, 1);
    for _ in 0..2 {
        let why = add_module(&registry, &account).await.unwrap_err();
        assert!(why.to_string().contains("cannot start a compiling worker"), "{why}");
    }
}

#[tokio::test]
async fn who_waits_for_a_turn_to_compile_keeps_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path());
    Arc::get_mut(&mut registry).unwrap().threads = BlockingThreads::new(1);
    let account = account(&registry, 1);
    // Another request of this tenant compiles.
    let turn = registry.compilations[0].turn(Some(account.tenant)).await;
    let waits = add_module(&registry, &account);
    tokio::pin!(waits);
    let other = async {
        // The only thread is free again and again while the first one waits.
        for _ in 0..10 {
            registry.threads.run(Whose::Tenant, || ()).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = &mut waits => panic!("it was not its turn"),
        () = other => {}
    }
    drop(turn);
    assert!(waits.await.is_err());
}

#[test]
fn one_tenant_grants_another_so_many_functions_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let owner = account(&registry, 1);
    add(&registry, &owner, "f", &[]).unwrap();
    add(&registry, &owner, "g", &[]).unwrap();
    // As if so many had been granted.
    let (none, one): (Callers, Callers) = (Callers::default(), ["2".into()].into());
    (1..crate::limits::MAX_GRANTS_TO_ONE)
        .for_each(|n| registry.granted.lock().change("1", &format!("x{n}"), &none, &one));
    registry.grant(&owner, "f", "2").unwrap();
    let why = registry.grant(&owner, "g", "2").unwrap_err();
    assert!(matches!(why, RegistryError::TooManyGrantsTo(_)), "{why}");
    // The control: a grant to another tenant, and a grant that replaces a revoked one.
    registry.grant(&owner, "g", "3").unwrap();
    registry.revoke(&owner, "f", "2").unwrap();
    registry.grant(&owner, "g", "2").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checked_version_is_its_owners_and_goes_with_its_function() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path());
    let (owner, other) = (account(&registry, 1), account(&registry, 2));
    add(&registry, &owner, "f", &[b"abc"]).unwrap();
    registry.grant(&owner, "f", "2").unwrap();
    let evict = |registry: &Registry| (0..2).for_each(|_| registry.loaded.evict_unused(|_| false));
    evict(&registry);
    let registered = owner.used(Limit::PlanBytes);
    let load_checked = |caller: &Arc<Account>, name: &'static str| {
        let (registry, caller) = (registry.clone(), caller.clone());
        async move { registry.load_checked(Whose::Tenant, &caller, name).await }
    };
    let refused = load_checked(&other, "1/f").await.unwrap_err();
    assert_eq!(refused.reason(), Reason::PermissionDenied, "{refused}");
    let plain = load(&registry, &owner, "f").unwrap();
    assert!(registry.find_checked(&owner, "f").is_none() && plain.checked().is_none());
    let checked = load_checked(&owner, "f").await.unwrap();
    assert!(Arc::ptr_eq(&checked, &load_checked(&owner, "f").await.unwrap()), "made once");
    assert!(Arc::ptr_eq(&checked, &registry.find_checked(&owner, "f").unwrap()));
    assert!(registry.find_checked(&other, "1/f").is_none(), "it is there, and not for others");
    assert_eq!((checked.id, checked.blueprint.is_checked()), (plain.id.checked(), true));
    // Its weights have room behind them, and are charged for beside the function's own.
    assert_eq!(checked.packed_weight_bytes(), plain.packed_weight_bytes() + pappus_blueprint::GUARD_BYTES);
    let weights = plain.packed_weight_bytes() + checked.packed_weight_bytes();
    assert_eq!((owner.used(Limit::LoadedFunctions), owner.used(Limit::WeightBytes)), (2, weights));
    let ids = [plain.id, checked.id];
    drop((plain, checked));
    let (tell, told) = std::sync::mpsc::channel();
    registry.on_eviction(move |function| tell.send(function).unwrap());
    evict(&registry);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ids, "workers forget both");
    assert_eq!((owner.used(Limit::LoadedFunctions), owner.used(Limit::PlanBytes)), (0, registered));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cpu_device_nothing_is_called_checked() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open_on(dir.path(), Kind::Cuda);
    let owner = account(&registry, 1);
    add(&registry, &owner, "f", &[]).unwrap();
    load(&registry, &owner, "f").unwrap();
    let refused = registry.load_checked(Whose::Tenant, &owner, "f").await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Unsupported);
    assert!(refused.to_string().contains("that takes a cpu device"), "{refused}");
}
