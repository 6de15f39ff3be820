//! What a registration must fulfil: blobs that the tenant holds, modules with known formats, weights with
//! content.

use std::io::Read;

use pappus_blueprint::Blueprint;
use pappus_proto::limits::is_valid_name;
use pappus_proto::v1;
use pappus_shmem::{ValidatedMemfd, memfd};

use super::device_class::DeviceClass;
use super::registration::{Registry, unknown};
use crate::ids::TenantId;
use crate::limits::{MAX_MODULE_BYTES, MAX_VARIANTS};
use crate::refusal::{Reason, Refusal, failed, refusal};
use crate::store::records::{FunctionModule, FunctionRecord, Hash, Variant, Weight};

/// Formats a variant can have.
const FORMATS: [&str; 5] = ["wasm", "ptx", "cubin", "fatbin", "hsaco"];

impl Registry {
    pub(super) fn read_config(&self, tenant: TenantId, hash: Hash) -> Result<Vec<u8>, Refusal> {
        let failed = |e: &(dyn std::error::Error + 'static)| failed("cannot read the configuration", e);
        let blob = self.state.open_blob(tenant, hash).map_err(|e| failed(&e))?;
        let known = blob.metadata().map_err(|e| failed(&e))?.len();
        let mut config =
            Vec::with_capacity(known.min(pappus_blueprint::limits::JSON_BYTES as u64) as usize + 1);
        let limit = pappus_blueprint::limits::JSON_BYTES as u64 + 1;
        blob.take(limit).read_to_end(&mut config).map_err(|e| failed(&e))?;
        Ok(config)
    }

    /// A blob that this tenant really holds.
    pub(super) fn check_blob(&self, tenant: TenantId, place: &str, sha256: &[u8]) -> Result<Hash, Refusal> {
        let at = |e: Refusal| Box::new(e.at(place));
        let hash = Hash::try_from(sha256).map_err(|e| at(refusal(Reason::InvalidArgument, e.to_string())))?;
        match self.index().tenant(tenant).is_some_and(|t| t.has_blob(hash)) {
            true => Ok(hash),
            false => Err(at(refusal(
                Reason::NotFound,
                format!("no bytes with hash {hash}: hand them over with PutBlob on this connection first"),
            ))),
        }
    }

    pub(super) fn check_variants(
        &self,
        tenant: TenantId,
        module: &str,
        variants: &[v1::Variant],
    ) -> Result<Vec<Variant>, Refusal> {
        let bad = |why: String| refusal(Reason::InvalidArgument, format!("module {module}: {why}"));
        if variants.is_empty() || variants.len() > MAX_VARIANTS {
            return Err(bad(format!("{} variants, expected 1 to {MAX_VARIANTS}", variants.len())));
        }
        let mut checked: Vec<Variant> = Vec::with_capacity(variants.len());
        for variant in variants {
            if !FORMATS.contains(&variant.format.as_str()) {
                return Err(bad(format!("unknown format {:?}, expected one of {FORMATS:?}", variant.format)));
            }
            if !variant.arch.is_empty() && !is_valid_name(&variant.arch) {
                return Err(bad(format!("{:?} is no architecture such as sm_90", variant.arch)));
            }
            let same =
                |v: &Variant| (&*v.format, &*v.arch) == (variant.format.as_str(), variant.arch.as_str());
            if checked.iter().any(same) {
                return Err(bad(format!("two variants for {} {}", variant.format, variant.arch)));
            }
            let hash = self.check_blob(tenant, "variants.sha256", &variant.sha256)?;
            let failed = |e: &(dyn std::error::Error + 'static)| failed("cannot read the module", e);
            let blob = self.state.open_blob(tenant, hash).map_err(|e| failed(&e))?;
            let bytes = blob.metadata().map_err(|e| failed(&e))?.len();
            if bytes > MAX_MODULE_BYTES {
                return Err(bad(format!("{bytes} bytes, at most {MAX_MODULE_BYTES} are allowed")));
            }
            checked.push(Variant {
                format: (*variant.format).into(),
                arch: (*variant.arch).into(),
                sha256: hash,
                bytes,
            });
        }
        Ok(checked)
    }

    /// The modules of a function in the blueprint's order.
    pub(super) fn check_modules(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        given: &[v1::FunctionModule],
    ) -> Result<Box<[FunctionModule]>, Refusal> {
        let mut modules = Vec::with_capacity(blueprint.modules().len());
        for module in blueprint.modules() {
            let name = module.name.as_str();
            let at = |e: Refusal| Box::new(e.at(format!("module {name}")));
            let source = given.iter().find(|m| m.name == name).ok_or_else(|| {
                at(refusal(Reason::InvalidArgument, "its files are missing: hand over at least one variant"))
            })?;
            let variants = match source.variants.is_empty() {
                false => self.check_variants(tenant, name, &source.variants)?,
                true => {
                    let registered =
                        self.index().tenant(tenant).and_then(|t| t.modules.get(&source.registered).cloned());
                    registered.ok_or_else(|| at(unknown("module", &source.registered)))?.variants.clone()
                }
            };
            modules.push(FunctionModule { name: name.into(), variants: variants.into() });
        }
        Ok(modules.into())
    }

    pub(super) fn check_weights(
        &self,
        tenant: TenantId,
        blueprint: &Blueprint,
        given: &[v1::Weight],
    ) -> Result<Box<[Weight]>, Refusal> {
        if let Some(extra) = given
            .iter()
            .find(|w| blueprint.weights().iter().all(|id| blueprint.buffers()[id.index()].name != w.name))
        {
            let why = format!("the blueprint has no weights `{}`", extra.name);
            return Err(refusal(Reason::InvalidArgument, why));
        }
        let weights = blueprint.weights().iter().map(|id| {
            let name = &blueprint.buffers()[id.index()].name;
            let weight = given.iter().find(|w| w.name == *name).ok_or_else(|| {
                let why = format!("weights `{name}` have no content: name a file for them");
                Box::new(refusal(Reason::InvalidArgument, why).at("blueprint.weights"))
            })?;
            let hash = self.check_blob(tenant, name, &weight.sha256)?;
            let blob =
                self.state.open_blob(tenant, hash).map_err(|e| failed("cannot read the weights", &e))?;
            let bytes = blob.metadata().map_err(|e| failed("cannot read the weights", &e))?.len();
            Ok(Weight { name: name.as_str().into(), sha256: hash, bytes })
        });
        let weights = weights.collect::<Result<Box<[Weight]>, Refusal>>()?;
        Ok(weights)
    }

    /// Those of the classes on which the weights have room, at least one.
    pub(super) fn with_room<'c>(
        &self,
        weights: &[Weight],
        mut classes: Vec<&'c DeviceClass>,
    ) -> Result<Vec<&'c DeviceClass>, Refusal> {
        let total = weights.iter().fold(0u64, |sum, w| sum.saturating_add(w.bytes));
        let most = classes.iter().map(|class| class.weights_bytes).max().unwrap_or(0);
        classes.retain(|class| total <= class.weights_bytes);
        match classes.is_empty() {
            false => Ok(classes),
            true => {
                let why = format!(
                    "the weights have {total} bytes, a device here has room for {most}: ask the operator for a \
                     larger weights setting"
                );
                Err(Box::new(refusal(Reason::OutOfMemory, why).at("blueprint.weights")))
            }
        }
    }

    /// A function's weights in one sealed memfd, as workers map them; none if it has none.
    pub(super) fn packed_weights(
        &self,
        tenant: TenantId,
        record: &FunctionRecord,
        blueprint: &Blueprint,
    ) -> Result<Option<ValidatedMemfd>, Refusal> {
        if record.weights.is_empty() {
            return Ok(None);
        }
        let failed = |e: &(dyn std::error::Error + 'static)| failed("cannot pack the weights", e);
        let bytes: Vec<u64> = record.weights.iter().map(|w| w.bytes).collect();
        let layout = blueprint.weight_layout(&bytes).map_err(|e| failed(&e))?;
        let packed = memfd::sealed_from("pappus-weights", layout.total, |memfd| {
            for (weight, offset) in record.weights.iter().zip(&layout.offsets) {
                let mut blob = self.state.open_blob(tenant, weight.sha256).map_err(std::io::Error::other)?;
                std::io::Seek::seek(memfd, std::io::SeekFrom::Start(*offset))?;
                std::io::copy(&mut blob, memfd)?;
            }
            Ok(())
        });
        packed.map(Some).map_err(|e| failed(&e))
    }
}
