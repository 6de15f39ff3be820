//! Which function a name means for a caller: asked of the supervisor, or as it was when the supervisor told of it last. A granted
//! function may be named `OWNER/NAME` as well where a protocol permits that. One's own function goes first; of several owners none does.

use std::sync::Arc;

use pappus_client::Code;

use crate::callers::Caller;
use crate::failure::{Failure, Kind, Result};
use crate::limits::{MAX_NAME_BYTES, MAX_PAGES, MAX_SPLITS};
use crate::model::Model;

/// Names by which the supervisor may know a model of this name, one's own first.
fn functions_of(name: &str) -> impl Iterator<Item = String> {
    let dots =
        name.match_indices('.').map(|(at, _)| at).take(if name.contains('/') { 0 } else { MAX_SPLITS });
    let granted = dots
        .filter(|at| *at > 0 && at + 1 < name.len())
        .map(|at| format!("{}/{}", &name[..at], &name[at + 1..]));
    std::iter::once(name.to_owned()).chain(granted)
}

/// A function as the supervisor knows it now.
pub async fn look(caller: &Caller, name: &str, version: &str) -> Result<Arc<Model>> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Failure::invalid(format!("it has more than {MAX_NAME_BYTES} bytes")).at("model_name"));
    }
    let mut found: Option<Arc<Model>> = None;
    for function in functions_of(name) {
        match caller.client.show_function(&function).await {
            Ok(info) => {
                let model = Arc::new(Model::of(&info));
                if let Some(other) = &found {
                    // Whoever owns one of the two would get what is meant for the other.
                    let told = format!("it may be `{}` or `{}`", other.function, model.function);
                    return Err(Failure::invalid(told).at("model_name"));
                }
                let is_own = function == name;
                found = Some(model);
                if is_own {
                    break;
                }
            }
            Err(pappus_client::Error::Refused(error))
                // Not every text is a name, with or without an owner's.
                if matches!(error.code(), Code::NotFound | Code::InvalidArgument) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(model) = found {
        caller.remember(name, &model);
        model.check_version(version)?;
        return Ok(model);
    }
    caller.forget(name);
    let shown: String = name.chars().take(80).collect();
    let told =
        format!("there is no model `{shown}` for you: the repository index lists those that there are");
    Err(Failure::new(Kind::Supervisor(Code::NotFound), told))
}

/// A function as it was known last, for a call that says for which version it is made.
pub async fn find(caller: &Caller, name: &str, version: &str) -> Result<Arc<Model>> {
    match caller.remembered(name) {
        Some(model) if model.check_version(version).is_ok() => Ok(model),
        _ => look(caller, name, version).await,
    }
}

/// The caller's functions, and those granted to it.
pub async fn list(caller: &Caller) -> Result<Vec<Model>> {
    let (mut all, mut after) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let page = caller.client.list_functions(&after).await?;
        all.extend(page.functions.iter().map(Model::of));
        match page.functions.last() {
            Some(last) if page.more => after.clone_from(&last.name),
            _ => break,
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_ones_own_function_or_an_owners() {
        let of = |name: &str| functions_of(name).collect::<Vec<_>>();
        assert_eq!(of("f"), ["f"]);
        assert_eq!(of("acme.f"), ["acme.f", "acme/f"]);
        assert_eq!(of("a.b.f"), ["a.b.f", "a/b.f", "a.b/f"]);
        assert_eq!(of("acme/f.1"), ["acme/f.1"]);
        assert_eq!(of(".f."), [".f."]);
        assert_eq!(of(&"a.".repeat(100)).len(), 1 + MAX_SPLITS);
    }
}
