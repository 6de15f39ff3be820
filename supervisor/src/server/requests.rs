//! Every request that is not about a running call: registration, status, draining, settings.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use pappus_proto::limits::MAX_BLOB_BYTES;
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};

use super::request_error::RequestError;
use super::state::RequestCtx;
use super::status::{add_quarantine, add_warmth, status};
use super::{from_proto, to_proto};
use crate::client_fd::ClientFd;
use crate::log::AUDIT;
use crate::refusal::{Refusal, internal};
use crate::store::records::Hash;

/// Runs blocking work where it disturbs no socket.
async fn off_thread<T, E>(
    ctx: &RequestCtx,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    E: Into<Refusal> + Send + 'static,
{
    ctx.server.registry.threads.run(ctx.whose(), work).await?.map_err(Into::into)
}

/// Characters of a name in the audit log: any name that something can have is shorter.
const AUDITED: usize = 300;

/// What a request changes, for the audit log: the action, and what it is about.
fn change_of(request: &Request) -> Option<(&'static str, String)> {
    let cut = |name: &str| name.chars().take(AUDITED).collect::<String>();
    let granted = |grant: &v1::Grant| format!("{} {}", cut(&grant.function), cut(&grant.tenant));
    Some(match request {
        Request::AddModule(module) => ("add module", cut(&module.name)),
        Request::RemoveModule(named) => ("remove module", cut(&named.name)),
        Request::AddFunction(function) if function.replace => ("replace function", cut(&function.name)),
        Request::AddFunction(function) => ("add function", cut(&function.name)),
        Request::RemoveFunction(named) => ("remove function", cut(&named.name)),
        Request::Grant(grant) => ("grant", granted(grant)),
        Request::Revoke(grant) => ("revoke", granted(grant)),
        Request::UseVersion(named) => ("use version", cut(&named.name)),
        Request::SetAlias(v1::SetAlias { function, alias, number: 0 }) => {
            ("remove alias", format!("{}:{}", cut(function), cut(alias)))
        }
        Request::SetAlias(v1::SetAlias { function, alias, number }) => {
            ("set alias", format!("{}:{} {number}", cut(function), cut(alias)))
        }
        Request::Decline(v1::Decline { owner, undo: false }) => ("decline", cut(owner)),
        Request::Decline(v1::Decline { owner, undo: true }) => ("undo decline", cut(owner)),
        Request::SetDevice(set) => ("set device", cut(&set.device)),
        Request::Settings(settings) if !settings.change.is_empty() => {
            let mut changes: Vec<_> =
                settings.change.iter().map(|(key, value)| format!("{key}={value}")).collect();
            changes.sort_unstable();
            ("set", cut(&changes.join(" ")))
        }
        Request::Reload(_) => ("reload", String::new()),
        Request::Drain(_) => ("drain", String::new()),
        _ => return None,
    })
}

/// Does what a request asks. What changes anything is written to the audit log (target `audit`), with who asked.
pub async fn handle(
    ctx: &Arc<RequestCtx>,
    request: Request,
    passed: Vec<ClientFd>,
) -> Result<Response, Refusal> {
    let change = change_of(&request);
    let outcome = answer(ctx, request, passed).await;
    if let Some((action, name)) = change {
        let result = match &outcome {
            Ok(_) => "done".to_owned(),
            Err(refusal) => match refusal.quota() {
                Some(quota) => format!("refused: {:?}, quota {quota}", refusal.reason()),
                None => format!("refused: {:?}", refusal.reason()),
            },
        };
        let (tenant, uid) = (&*ctx.account.name, ctx.uid);
        match ctx.admin {
            true => tracing::info!(target: AUDIT, by = "operator", uid, action, name, result),
            false => tracing::info!(target: AUDIT, tenant, uid, action, name, result),
        }
    }
    outcome
}

/// What was registered has these blobs from now on, and this connection no more.
async fn registered(ctx: &Arc<RequestCtx>, blobs: HashSet<Hash>) -> Result<(), Refusal> {
    let this = ctx.clone();
    let release = move || {
        this.server.registry.registered(&this.account, &this.handed, blobs.into_iter());
        Ok::<_, Refusal>(())
    };
    off_thread(ctx, release).await
}

async fn answer(ctx: &Arc<RequestCtx>, request: Request, passed: Vec<ClientFd>) -> Result<Response, Refusal> {
    let account = ctx.account.clone();
    let registry = ctx.server.registry.clone();
    match request {
        Request::PutBlob(blob) => {
            let this = ctx.clone();
            // A file may keep its thread for long: those of all tenants together leave some to everything else.
            let _place = match passed.is_empty() {
                true => None,
                false => registry.threads.place_to_copy(ctx.whose()).await,
            };
            off_thread(ctx, move || put_blob(&this, blob.inline, passed)).await
        }
        Request::AddModule(module) => {
            let module = from_proto::module(module);
            let (added, registration) = registry.add_module(ctx.whose(), account, module).await?;
            registered(ctx, added.record.variants.iter().map(|variant| variant.sha256).collect()).await?;
            Ok(Response::Module(to_proto::added_module(added, registration)))
        }
        Request::RemoveModule(v1::Name { name }) => {
            off_thread(ctx, move || registry.remove_module(&account, &name)).await.map(|()| done())
        }
        Request::ListModules(v1::Page { after }) => {
            let page =
                off_thread(ctx, move || infallible(registry.list_modules(account.tenant, &after))).await?;
            let modules = page.items.iter().map(|record| to_proto::listed_module(record)).collect();
            Ok(Response::Modules(v1::ModuleList { modules, more: page.more }))
        }
        Request::ShowModule(v1::Name { name }) => {
            let shown = registry.show_module(ctx.whose(), account, name).await?;
            Ok(Response::Module(to_proto::module(shown)))
        }
        Request::AddFunction(function) => {
            let keep = ctx.server.settings().kept_versions as usize;
            let function = from_proto::function(function, keep);
            let tenant = account.tenant;
            let added = registry.add_function(ctx.whose(), account, function).await?;
            registered(ctx, added.record.blobs().collect()).await?;
            added.replaced.iter().for_each(|function| ctx.server.uninstall(*function));
            let versions = registry.version_list(tenant, &added.record.name);
            Ok(Response::Function(to_proto::added_function(&added, &versions)))
        }
        Request::UseVersion(v1::Name { name }) => {
            let tenant = account.tenant;
            let used = registry.use_version(ctx.whose(), account, name).await?;
            used.replaced.iter().for_each(|function| ctx.server.uninstall(*function));
            let versions = registry.version_list(tenant, &used.record.name);
            Ok(Response::Function(to_proto::added_function(&used, &versions)))
        }
        Request::SetAlias(v1::SetAlias { function, alias, number }) => {
            let change = move || match number {
                0 => registry.remove_alias(&account, &function, &alias),
                number => registry.set_alias(&account, &function, &alias, number),
            };
            off_thread(ctx, change).await.map(|()| done())
        }
        Request::RemoveFunction(v1::Name { name }) => {
            let removed = off_thread(ctx, move || registry.remove_function(&account, &name)).await?;
            removed.into_iter().for_each(|function| ctx.server.uninstall(function));
            Ok(done())
        }
        Request::ListFunctions(v1::Page { after }) => {
            let page = off_thread(ctx, move || infallible(registry.list_functions(&account, &after))).await?;
            let mut functions: Vec<_> = page.items.iter().map(to_proto::listed_function).collect();
            let more = to_proto::fitting(&mut functions) || page.more;
            add_quarantine(ctx, &mut functions);
            add_warmth(ctx, &mut functions);
            Ok(Response::Functions(v1::FunctionList { functions, more }))
        }
        Request::ShowFunction(v1::Name { name }) => {
            let mut function = match registry.granted_function(&account, &name) {
                Some(granted) => to_proto::listed_function(&granted),
                None => to_proto::shown_function(registry.show_function(ctx.whose(), account, name).await?),
            };
            add_quarantine(ctx, std::slice::from_mut(&mut function));
            add_warmth(ctx, std::slice::from_mut(&mut function));
            Ok(Response::Function(function))
        }
        Request::Grant(v1::Grant { function, tenant }) => {
            off_thread(ctx, move || registry.grant(&account, &function, &tenant)).await.map(|()| done())
        }
        Request::Revoke(v1::Grant { function, tenant }) => {
            let revoked = off_thread(ctx, move || registry.revoke(&account, &function, &tenant)).await?;
            ctx.server.forget(&revoked);
            Ok(done())
        }
        Request::Decline(v1::Decline { owner, undo }) => {
            let decline = move || match undo {
                false => registry.decline(&account, &owner),
                true => registry.accept(&account, &owner),
            };
            off_thread(ctx, decline).await.map(|()| done())
        }
        Request::ListGrants(v1::Name { name }) => {
            let callers = off_thread(ctx, move || registry.list_grants(&account, &name)).await?;
            let tenants = callers.iter().map(ToString::to_string).collect();
            Ok(Response::Grants(v1::Grants { tenants }))
        }
        Request::Quota(_) => {
            let _turn = ctx.server.fair_turns.begin(ctx.sharer()).await;
            let declined = registry.declined(account.tenant);
            Ok(Response::Tenant(v1::TenantInfo { declined, ..ctx.server.quota_of(&account) }))
        }
        Request::ListTenants(v1::Page { after }) => {
            admin_only(ctx)?;
            let server = ctx.server.clone();
            off_thread(ctx, move || infallible(server.list_tenants(&after))).await.map(Response::Tenants)
        }
        Request::Reload(_) => {
            admin_only(ctx)?;
            let server = ctx.server.clone();
            off_thread(ctx, move || server.reload()).await.map(Response::Reloaded)
        }
        Request::SetDevice(set) => {
            admin_only(ctx)?;
            let server = ctx.server.clone();
            let set = off_thread(ctx, move || server.set_device(&set.device, &set.change)).await?;
            Ok(Response::DeviceSettings(set))
        }
        Request::ActFor(_) if ctx.admin => Err(RequestError::AdminActsForNone.into()),
        Request::ActFor(_) => {
            tracing::warn!(uid = ctx.uid, "a token from a uid that is no gateway, or behind another request");
            Err(RequestError::NoGateway.into())
        }
        Request::Status(_) => {
            let _turn = ctx.server.fair_turns.begin(ctx.sharer()).await;
            Ok(Response::Status(status(ctx)))
        }
        Request::Drain(_) => {
            admin_only(ctx)?;
            ctx.server.drain().await;
            Ok(done())
        }
        Request::Settings(settings) => {
            admin_only(ctx)?;
            let values = ctx.server.change_settings(&settings.change).map_err(RequestError::Settings)?;
            Ok(Response::Settings(v1::SettingsValues { values }))
        }
        Request::Invoke(_)
        | Request::Cancel(_)
        | Request::OpenArena(_)
        | Request::CloseArena(_)
        | Request::OpenSession(_)
        | Request::CloseSession(_) => {
            Err(internal("misdirected request", "handled by the connection").into())
        }
    }
}

fn done() -> Response {
    Response::Done(v1::Done {})
}

/// Wraps the result of a lookup, which is never refused.
fn infallible<T>(found: T) -> Result<T, Refusal> {
    Ok(found)
}

fn admin_only(ctx: &RequestCtx) -> Result<(), RequestError> {
    match ctx.admin {
        true => Ok(()),
        false => Err(RequestError::AdminOnly),
    }
}

fn put_blob(ctx: &RequestCtx, inline: Bytes, mut passed: Vec<ClientFd>) -> Result<Response, Refusal> {
    let registry = &ctx.server.registry;
    let (account, handed) = (&ctx.account, &ctx.handed);
    let (hash, bytes) = match passed.pop() {
        None => registry.put_blob(account, handed, inline.len() as u64, &inline[..])?,
        Some(_) if !inline.is_empty() => {
            return Err(RequestError::TwoContents.into());
        }
        Some(fd) => {
            let held = fd.sealed(MAX_BLOB_BYTES).map_err(RequestError::Memfd)?;
            registry.put_blob(account, handed, held.bytes(), held.reader())?
        }
    };
    Ok(Response::Blob(v1::BlobStored { sha256: hash.0.to_vec().into(), bytes }))
}
