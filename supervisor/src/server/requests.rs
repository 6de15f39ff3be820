//! Every request that is not about a running call: registration, status, draining, settings.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use pappus_proto::Code;
use pappus_proto::limits::MAX_BLOB_BYTES;
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};
use pappus_shmem::memfd;

use super::connection::Connection;
use super::status::status;
use crate::registry::{Refusal, internal, refusal};

/// Runs blocking work where it disturbs no socket.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(internal("a request's work broke off", e)))
}

/// Does what a request asks.
pub async fn handle(
    connection: &Arc<Connection>,
    request: Request,
    passed: Vec<OwnedFd>,
) -> Result<Response, Refusal> {
    let tenant = connection.tenant;
    let registry = connection.server.registry.clone();
    match request {
        Request::PutBlob(blob) => {
            let connection = connection.clone();
            off_thread(move || put_blob(&connection, blob.inline, passed)).await
        }
        Request::AddModule(module) => {
            off_thread(move || registry.add_module(tenant, module)).await.map(Response::Module)
        }
        Request::RemoveModule(v1::Name { name }) => {
            off_thread(move || registry.remove_module(tenant, &name)).await.map(|()| done())
        }
        Request::ListModules(v1::Page { after }) => {
            off_thread(move || Ok(registry.list_modules(tenant, &after))).await.map(Response::Modules)
        }
        Request::ShowModule(v1::Name { name }) => {
            off_thread(move || registry.show_module(tenant, &name)).await.map(Response::Module)
        }
        Request::AddFunction(function) => {
            off_thread(move || registry.add_function(tenant, function)).await.map(Response::Function)
        }
        Request::RemoveFunction(v1::Name { name }) => {
            let loaded = off_thread(move || registry.remove_function(tenant, &name)).await?;
            if let Some(function) = loaded {
                connection.server.devices.iter().for_each(|device| device.uninstall(function));
            }
            Ok(done())
        }
        Request::ListFunctions(v1::Page { after }) => {
            off_thread(move || Ok(registry.list_functions(tenant, &after))).await.map(Response::Functions)
        }
        Request::ShowFunction(v1::Name { name }) => {
            off_thread(move || registry.show_function(tenant, &name)).await.map(Response::Function)
        }
        Request::Status(_) => Ok(Response::Status(status(connection))),
        Request::Drain(_) => {
            admin_only(connection)?;
            connection.server.drain().await;
            Ok(done())
        }
        Request::Settings(settings) => {
            admin_only(connection)?;
            let values = connection
                .server
                .change_settings(&settings.change)
                .map_err(|e| refusal(Code::InvalidArgument, e.to_string()))?;
            Ok(Response::Settings(v1::SettingsValues { values }))
        }
        Request::Invoke(_) | Request::Cancel(_) | Request::OpenArena(_) | Request::CloseArena(_) => {
            Err(internal("misdirected request", "handled by the connection"))
        }
    }
}

fn done() -> Response {
    Response::Done(v1::Done {})
}

fn admin_only(connection: &Connection) -> Result<(), Refusal> {
    match connection.admin {
        true => Ok(()),
        false => Err(refusal(
            Code::PermissionDenied,
            "this is for the admin socket (by default the socket's path + \".admin\")",
        )),
    }
}

fn put_blob(connection: &Connection, inline: Bytes, mut passed: Vec<OwnedFd>) -> Result<Response, Refusal> {
    let registry = &connection.server.registry;
    let (hash, bytes) = match passed.pop() {
        None => registry.put_blob(connection.tenant, &connection.handed, &inline[..])?,
        Some(_) if !inline.is_empty() => {
            return Err(refusal(Code::InvalidArgument, "bytes and a descriptor: give one of them"));
        }
        Some(fd) => {
            let held = memfd::judge_sealed(fd, MAX_BLOB_BYTES)
                .map_err(|e| refusal(Code::InvalidArgument, e.to_string()))?;
            let reader = held.reader().map_err(|e| internal("cannot read the memfd", e))?;
            registry.put_blob(connection.tenant, &connection.handed, reader)?
        }
    };
    Ok(Response::Blob(v1::BlobStored { sha256: hash.0.to_vec().into(), bytes }))
}
