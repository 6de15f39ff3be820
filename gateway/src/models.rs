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

/// A function as the supervisor knows it now; of the version, if one is asked for.
pub async fn look(caller: &Caller, name: &str, version: &str) -> Result<Arc<Model>> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Failure::invalid(format!("it has more than {MAX_NAME_BYTES} bytes")).at("model_name"));
    }
    if let Some(model) = seek(caller, name, version).await? {
        caller.remember(&key(name, version), &model);
        return Ok(model);
    }
    caller.forget(&key(name, version));
    let not_found = |told| Failure::new(Kind::Supervisor(Code::NotFound), told);
    let shown = |text: &str| text.chars().take(80).collect::<String>();
    let current = if version.is_empty() { None } else { seek(caller, name, "").await? };
    Err(match current {
        Some(model) => {
            let (name, asked, has) = (&model.name, shown(version), model.versions().join(", "));
            not_found(format!("model `{name}` has no version {asked}: there are {has}")).at("version")
        }
        None => not_found(format!(
            "there is no model `{}` for you: the repository index lists those that there are",
            shown(name)
        )),
    })
}

/// The function that is meant, if there is one.
async fn seek(caller: &Caller, name: &str, version: &str) -> Result<Option<Arc<Model>>> {
    // No number has other characters, so that nothing else can be named in its place.
    if version.len() > MAX_NAME_BYTES || !version.bytes().all(|digit| digit.is_ascii_digit()) {
        return Ok(None);
    }
    let mut found: Option<Arc<Model>> = None;
    for function in functions_of(name) {
        let called = key(&function, version);
        match caller.client.show_function(&called).await {
            Ok(info) => {
                // By what it was asked for: an alias may name another version tomorrow.
                let model = Model { function: called, name: function.replacen('/', ".", 1), ..Model::of(&info) };
                if let Some(other) = &found {
                    // Whoever owns one of the two would get what is meant for the other.
                    let told = format!("it may be `{}` or `{}`", other.function, model.function);
                    return Err(Failure::invalid(told).at("model_name"));
                }
                found = Some(Arc::new(model));
                if function == name {
                    break;
                }
            }
            Err(pappus_client::Error::Refused(error))
                // Not every text is a name, with or without an owner's.
                if matches!(error.code(), Code::NotFound | Code::InvalidArgument) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// What the supervisor calls a version of a function; without a version, the function.
fn key(function: &str, version: &str) -> String {
    match version {
        "" => function.to_owned(),
        version => format!("{function}@{version}"),
    }
}

/// A function as it was known last, for a call that says for which one it is made.
pub async fn find(caller: &Caller, name: &str, version: &str) -> Result<Arc<Model>> {
    let known = match version {
        "" => caller.remembered(name),
        version => caller.remembered(&key(name, version)),
    };
    match known {
        Some(model) => Ok(model),
        None => look(caller, name, version).await,
    }
}

/// The caller's functions, and those granted to it, each as its current version.
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
