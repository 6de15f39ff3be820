//! Whether what is registered is what lies on disk, found out without handing anything over: by hashes.

use pappus_proto::v1;

use crate::blobs::Blob;
use crate::client::Client;
use crate::compositions::Composition;
use crate::error::Result;
use crate::functions::{Package, PackagedModule};

/// A module's variants by format, architecture and hash.
type Variants = Vec<(String, String, Vec<u8>)>;

/// True if a supervisor would find nothing new in the package, by what the supervisor shows of the function of that name.
pub fn has_package(client: &mut Client, package: &Package, shown: &v1::FunctionInfo) -> Result<bool> {
    if !shown.composition_sha256.is_empty()
        || shown.config_sha256[..] != Blob::Bytes(package.config()).sha256()?
        || shown.modules.len() != package.modules().len()
        || shown.weights.len() != package.weights().len()
    {
        return Ok(false);
    }
    for module in package.modules() {
        let found = shown.modules.iter().find(|found| found.name == module.name);
        let found = found.map(|found| sorted(found.variants.iter()));
        if found != Some(variants(client, module)?) {
            return Ok(false);
        }
    }
    for weight in package.weights() {
        let found = shown.weights.iter().find(|found| found.name == weight.name);
        let (Some(found), Some(source), Some(data)) = (found, &weight.source, weight.data) else {
            return Ok(false);
        };
        if found.bytes != data.bytes || found.sha256[..] != Blob::Array(source).sha256()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same of a composition, by its own text: when one of its functions is replaced, the supervisor links it again.
pub fn has_composition(composition: &Composition, shown: &v1::FunctionInfo) -> Result<bool> {
    Ok(shown.composition_sha256[..] == Blob::Bytes(composition.text()).sha256()?)
}

/// What a registration would name: the files of a module, or the module that is registered in their place.
fn variants(client: &mut Client, module: &PackagedModule) -> Result<Variants> {
    if module.files.is_empty() {
        let name = module.registered(client)?;
        let registered = client.show_module(&name)?;
        return Ok(sorted(registered.variants.iter().filter_map(|found| found.variant.as_ref())));
    }
    let files = module.files.iter().map(|file| {
        let sha256 = Blob::File(&file.source).sha256()?;
        Ok((file.format.name().to_owned(), file.arch.clone(), sha256.to_vec()))
    });
    let mut files = files.collect::<Result<Variants>>()?;
    files.sort_unstable();
    Ok(files)
}

fn sorted<'a>(variants: impl Iterator<Item = &'a v1::Variant>) -> Variants {
    let all = variants.map(|one| (one.format.clone(), one.arch.clone(), one.sha256.to_vec()));
    let mut all: Variants = all.collect();
    all.sort_unstable();
    all
}
