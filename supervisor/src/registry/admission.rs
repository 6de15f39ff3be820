//! What the registry is asked to add, and what that must fulfil: blobs that the tenant holds, modules with known formats,
//! weights with content.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use pappus_blueprint::Blueprint;
use pappus_blueprint::code::{self, CodeFormat};
use pappus_blueprint::limits::JSON_BYTES;
use pappus_proto::limits::is_valid_name;

use super::blob_table::BlobTable;
use super::device_class::DeviceClass;
use super::state::Registry;
use super::tenant::Change;
use crate::limits::{MAX_MODULE_BYTES, MAX_VARIANTS};
use crate::refusal::{Failure, Reason, Refusable};
use crate::sha256::NoHash;
use crate::store::records::{FunctionModule, Hash, Variant, Weight};
use crate::tenants::{Limit, QuotaError};

/// The place of a configuration that is wrong.
const CONFIG: &str = "config_sha256";
/// The place of weights that are wrong.
const WEIGHTS: &str = "blueprint.weights";

/// One compiled form of a module.
#[derive(Debug)]
pub struct NewVariant {
    /// Its format.
    pub format: String,
    /// Its architecture; empty for the format's default.
    pub arch: String,
    /// The name of its bytes, which were handed over before.
    pub sha256: Bytes,
}

/// A module.
#[derive(Debug)]
pub struct NewModule {
    /// Its name.
    pub name: String,
    /// Its compiled forms.
    pub variants: Vec<NewVariant>,
}

/// A module of a function.
#[derive(Debug)]
pub struct NewFunctionModule {
    /// As the configuration calls it.
    pub name: String,
    /// Its compiled forms; none for those of the registered module [`NewFunctionModule::registered`].
    pub variants: Vec<NewVariant>,
    /// The name of a registered module.
    pub registered: String,
}

/// The content of a weights buffer.
#[derive(Debug)]
pub struct NewWeight {
    /// The buffer.
    pub name: String,
    /// The name of its bytes.
    pub sha256: Bytes,
}

/// A function.
#[derive(Debug)]
pub struct NewFunction {
    /// Its name.
    pub name: String,
    /// The name of the bytes of its configuration.
    pub config_sha256: Bytes,
    /// Its modules, in any order.
    pub modules: Vec<NewFunctionModule>,
    /// Its weights, in any order.
    pub weights: Vec<NewWeight>,
    /// True if the function may take the place of another one of that name.
    pub replace: bool,
    /// The most older versions of it that are kept.
    pub keep: usize,
}

/// Why what was handed over cannot become a module or a function.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The name of bytes does not read.
    #[error("{source}")]
    BadHash {
        /// Where in the request.
        place: String,
        /// What is wrong with it.
        source: NoHash,
    },
    /// The tenant has no such bytes.
    #[error("no bytes with hash {hash}: hand them over with PutBlob on this connection first")]
    NoBlob {
        /// Where in the request.
        place: String,
        /// Their name.
        hash: Hash,
    },
    /// A configuration that is too large to be read.
    #[error("{bytes} bytes of JSON, expected at most {JSON_BYTES}")]
    ConfigSize {
        /// How large it is.
        bytes: u64,
    },
    /// A module without variants, or with too many.
    #[error("module {module}: {count} variants, expected 1 to {MAX_VARIANTS}")]
    Variants {
        /// The module.
        module: String,
        /// How many.
        count: usize,
    },
    /// No module has this format.
    #[error("module {module}: unknown format {format:?}, expected one of {:?}", code::FORMATS.map(CodeFormat::name))]
    Format {
        /// The module.
        module: String,
        /// The format.
        format: String,
    },
    /// No device can have this architecture.
    #[error("module {module}: {arch:?} is no architecture such as sm_90")]
    Arch {
        /// The module.
        module: String,
        /// The architecture.
        arch: String,
    },
    /// The same devices would run either.
    #[error("module {module}: two variants for {format} {arch}")]
    Twice {
        /// The module.
        module: String,
        /// The format of both.
        format: String,
        /// The architecture of both.
        arch: String,
    },
    /// A variant that is too large.
    #[error("module {module}: {bytes} bytes, at most {MAX_MODULE_BYTES} are allowed")]
    ModuleSize {
        /// The module.
        module: String,
        /// Its bytes.
        bytes: u64,
    },
    /// The configuration names a module that was not handed over.
    #[error("its files are missing: hand over at least one variant")]
    NoModule {
        /// The module.
        module: String,
    },
    /// A function's module is to be a registered one that there is not.
    #[error("there is no module `{registered}`: `pappus module list` shows what there is")]
    NotRegistered {
        /// As the configuration calls it.
        module: String,
        /// The registered module.
        registered: String,
    },
    /// A module or weights for a composition.
    #[error("`{0}` was handed over for a composition: modules and weights are those of its functions")]
    PartOfComposition(String),
    /// Weights that the blueprint does not have.
    #[error("the blueprint has no weights `{0}`")]
    ExtraWeights(String),
    /// Weights of the blueprint without content.
    #[error("weights `{0}` have no content: name a file for them")]
    NoWeights(String),
    /// More weights than a device takes.
    #[error(
        "the weights have {total} bytes, a device here has room for {most}: ask the operator for a larger weights \
         setting"
    )]
    WeightsSize {
        /// Their bytes.
        total: u64,
        /// The most that a device takes.
        most: u64,
    },
    /// Launches take what no device here has.
    #[error(
        "kernel `{kernel}` is launched with {what}, which NVIDIA GPUs have from sm_90 on, and {without} {}",
        if *several { "do not" } else { "does not" }
    )]
    Special {
        /// The kernel.
        kernel: String,
        /// What its launch takes.
        what: &'static str,
        /// The devices that could run it otherwise.
        without: String,
        /// True if `without` names several devices.
        several: bool,
        /// Where in the blueprint.
        place: String,
    },
    /// The supervisor failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Refusable for AdmissionError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoBlob { .. } | Self::NotRegistered { .. } => Reason::NotFound,
            Self::WeightsSize { .. } => Reason::OutOfMemory,
            Self::Special { .. } => Reason::Unsupported,
            Self::Failure(failure) => failure.reason(),
            Self::BadHash { .. }
            | Self::ConfigSize { .. }
            | Self::Variants { .. }
            | Self::Format { .. }
            | Self::Arch { .. }
            | Self::Twice { .. }
            | Self::ModuleSize { .. }
            | Self::NoModule { .. }
            | Self::PartOfComposition(_)
            | Self::ExtraWeights(_)
            | Self::NoWeights(_) => Reason::InvalidArgument,
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::BadHash { place, .. } | Self::NoBlob { place, .. } | Self::Special { place, .. } => {
                place.into()
            }
            Self::NoModule { module } | Self::NotRegistered { module, .. } => {
                format!("module {module}").into()
            }
            Self::NoWeights(_) | Self::WeightsSize { .. } => WEIGHTS.into(),
            Self::ConfigSize { .. } => CONFIG.into(),
            _ => "".into(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Failure(failure) => failure.retry_after_ms(),
            _ => None,
        }
    }
}

/// Checks that a tenant's quota has room for these modules.
pub(super) fn check_module_bytes<'v>(
    change: &Change<'_>,
    variants: impl Iterator<Item = &'v Variant>,
) -> Result<(), QuotaError> {
    let more = change.blobs.new_module_bytes(variants);
    change.account.check(Limit::ModuleBytes, change.blobs.module_bytes(), more)
}

/// A blob that the tenant really holds, and how large it is.
fn check_blob(blobs: &BlobTable, place: &str, sha256: &[u8]) -> Result<(Hash, u64), AdmissionError> {
    let place = || place.to_owned();
    let hash = Hash::try_from(sha256).map_err(|source| AdmissionError::BadHash { place: place(), source })?;
    let bytes = blobs.bytes_of(hash).ok_or_else(|| AdmissionError::NoBlob { place: place(), hash })?;
    Ok((hash, bytes))
}

/// A configuration that the tenant really holds, and that can be read.
pub(super) fn check_config(blobs: &BlobTable, sha256: &[u8]) -> Result<Hash, AdmissionError> {
    match check_blob(blobs, CONFIG, sha256)? {
        (_, bytes) if bytes > JSON_BYTES as u64 => Err(AdmissionError::ConfigSize { bytes }),
        (hash, _) => Ok(hash),
    }
}

pub(super) fn check_variants(
    blobs: &BlobTable,
    module: &str,
    variants: &[NewVariant],
) -> Result<Vec<Variant>, AdmissionError> {
    let module = || module.to_owned();
    if variants.is_empty() || variants.len() > MAX_VARIANTS {
        return Err(AdmissionError::Variants { module: module(), count: variants.len() });
    }
    let mut checked: Vec<Variant> = Vec::with_capacity(variants.len());
    for NewVariant { format, arch, sha256 } in variants {
        if code::of_name(format).is_none() {
            return Err(AdmissionError::Format { module: module(), format: format.clone() });
        }
        if !arch.is_empty() && !is_valid_name(arch) {
            return Err(AdmissionError::Arch { module: module(), arch: arch.clone() });
        }
        if checked.iter().any(|v| (&*v.format, &*v.arch) == (format.as_str(), arch.as_str())) {
            let (format, arch) = (format.clone(), arch.clone());
            return Err(AdmissionError::Twice { module: module(), format, arch });
        }
        let (hash, bytes) = check_blob(blobs, "variants.sha256", sha256)?;
        if bytes > MAX_MODULE_BYTES {
            return Err(AdmissionError::ModuleSize { module: module(), bytes });
        }
        checked.push(Variant { format: (**format).into(), arch: (**arch).into(), sha256: hash, bytes });
    }
    Ok(checked)
}

/// The modules of a function in the blueprint's order.
pub(super) fn check_modules(
    change: &Change<'_>,
    blueprint: &Blueprint,
    given: &[NewFunctionModule],
) -> Result<Box<[FunctionModule]>, AdmissionError> {
    let given = by_name(given, |module| &module.name);
    let registered = change.published().modules;
    let checked = blueprint.modules().iter().map(|module| {
        let name = module.name.as_str();
        let source = given.get(name).ok_or_else(|| AdmissionError::NoModule { module: name.to_owned() })?;
        let variants = match source.variants.is_empty() {
            false => check_variants(&change.blobs, name, &source.variants)?,
            true => {
                let found = registered.get(&source.registered).ok_or_else(|| AdmissionError::NotRegistered {
                    module: name.to_owned(),
                    registered: source.registered.clone(),
                });
                found?.record.variants.clone()
            }
        };
        Ok(FunctionModule { name: name.into(), variants: variants.into() })
    });
    checked.collect()
}

/// Checks that a composition comes without modules and weights: its functions have them.
pub(super) fn check_no_parts(new: &NewFunction) -> Result<(), AdmissionError> {
    match (new.modules.first(), new.weights.first()) {
        (Some(module), _) => Err(AdmissionError::PartOfComposition(module.name.clone())),
        (None, Some(weight)) => Err(AdmissionError::PartOfComposition(weight.name.clone())),
        (None, None) => Ok(()),
    }
}

/// Those of the classes whose devices have what the blueprint's launches take, at least one.
pub(super) fn able<'c>(
    blueprint: &Blueprint,
    mut classes: Vec<&'c DeviceClass>,
) -> Result<Vec<&'c DeviceClass>, AdmissionError> {
    let special = blueprint.launches().find_map(|launch| Some((launch.special()?, launch)));
    let Some((what, launch)) = special else { return Ok(classes) };
    let devices: usize = classes.iter().map(|class| class.devices.len()).sum();
    let without: Vec<String> = classes.iter().map(|class| class.names()).collect();
    classes.retain(|class| code::has_clusters(&class.arch));
    match classes.is_empty() {
        false => Ok(classes),
        true => Err(AdmissionError::Special {
            kernel: blueprint.kernels()[launch.kernel].name.clone(),
            what,
            without: without.join(", "),
            several: devices > 1,
            place: launch.place(),
        }),
    }
}

/// The weights of a function in the blueprint's order.
pub(super) fn check_weights(
    blobs: &BlobTable,
    blueprint: &Blueprint,
    given: &[NewWeight],
) -> Result<Box<[Weight]>, AdmissionError> {
    let names = || blueprint.weights().iter().map(|id| blueprint.buffers()[id.index()].name.as_str());
    let known: HashSet<&str> = names().collect();
    if let Some(extra) = given.iter().find(|weight| !known.contains(&*weight.name)) {
        return Err(AdmissionError::ExtraWeights(extra.name.clone()));
    }
    let given = by_name(given, |weight| &weight.name);
    let checked = names().map(|name| {
        let weight = given.get(name).ok_or_else(|| AdmissionError::NoWeights(name.to_owned()))?;
        let (sha256, bytes) = check_blob(blobs, name, &weight.sha256)?;
        Ok(Weight { name: name.into(), sha256, bytes })
    });
    checked.collect()
}

/// What was given, by name; of two with one name the first.
fn by_name<'g, T>(given: &'g [T], name: impl Fn(&'g T) -> &'g str) -> HashMap<&'g str, &'g T> {
    given.iter().rev().map(|one| (name(one), one)).collect()
}

impl Registry {
    /// Those of the classes on which the weights have room, at least one.
    pub(super) fn with_room<'c>(
        &self,
        weights: &[Weight],
        mut classes: Vec<&'c DeviceClass>,
    ) -> Result<Vec<&'c DeviceClass>, AdmissionError> {
        let total = weights.iter().fold(0u64, |sum, w| sum.saturating_add(w.bytes));
        let most = classes.iter().map(|class| class.weights_bytes).max().unwrap_or(0);
        classes.retain(|class| total <= class.weights_bytes);
        match classes.is_empty() {
            false => Ok(classes),
            true => Err(AdmissionError::WeightsSize { total, most }),
        }
    }
}
