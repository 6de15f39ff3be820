//! A method of [`Client`] for every request but the calls: sends it, waits, and unwraps its kind of answer.

use std::collections::HashMap;
use std::os::fd::AsFd;

use pappus_proto::v1::{self, request, response};
use pappus_shmem::memfd;

use crate::arena::Arena;
use crate::client::Client;
use crate::error::{Error, Result};

/// Unwraps the kind of answer that belongs to a request.
macro_rules! answer {
    ($body:expr, $kind:ident) => {
        match $body {
            response::Body::$kind(answer) => Ok(answer),
            other => Err(unexpected(stringify!($kind), &other)),
        }
    };
}
pub(crate) use answer;

pub(crate) fn unexpected(expected: &str, got: &response::Body) -> Error {
    Error::Protocol(format!("the supervisor sent the wrong kind of answer, expected {expected}, got {got:?}"))
}

impl Client {
    /// Registers a module under a name.
    pub fn add_module(&mut self, name: &str, variants: Vec<v1::Variant>) -> Result<v1::ModuleInfo> {
        let body = v1::AddModule { name: name.into(), variants };
        answer!(self.call(request::Body::AddModule(body), &[])?, Module)
    }

    /// Removes a registered module.
    pub fn remove_module(&mut self, name: &str) -> Result<()> {
        let body = request::Body::RemoveModule(named(name));
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// The registered modules.
    pub fn list_modules(&mut self) -> Result<Vec<v1::ModuleInfo>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |last: &v1::ModuleInfo| last.name.clone());
            let page = answer!(self.call(request::Body::ListModules(v1::Page { after }), &[])?, Modules)?;
            all.extend(page.modules);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// One registered module.
    pub fn show_module(&mut self, name: &str) -> Result<v1::ModuleInfo> {
        answer!(self.call(request::Body::ShowModule(named(name)), &[])?, Module)
    }

    /// Registers a function whose parts have been handed over; [`crate::functions`] does all of it.
    pub fn add_function(&mut self, function: v1::AddFunction) -> Result<v1::FunctionInfo> {
        answer!(self.call(request::Body::AddFunction(function), &[])?, Function)
    }

    /// Removes a registered function with all its versions; by NAME@NUMBER, a kept version.
    pub fn remove_function(&mut self, name: &str) -> Result<()> {
        let body = request::Body::RemoveFunction(named(name));
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// Makes a version of a function, NAME@NUMBER or NAME:ALIAS, the current one.
    pub fn use_version(&mut self, version: &str) -> Result<v1::FunctionInfo> {
        answer!(self.call(request::Body::UseVersion(named(version)), &[])?, Function)
    }

    /// From now on the function can be called as FUNCTION:ALIAS, which means the version of this number.
    pub fn set_alias(&mut self, function: &str, alias: &str, number: u32) -> Result<()> {
        let body = v1::SetAlias { function: function.into(), alias: alias.into(), number };
        answer!(self.call(request::Body::SetAlias(body), &[])?, Done).map(drop)
    }

    /// FUNCTION:ALIAS means nothing any more.
    pub fn remove_alias(&mut self, function: &str, alias: &str) -> Result<()> {
        self.set_alias(function, alias, 0)
    }

    /// The registered functions, followed by granted ones.
    pub fn list_functions(&mut self) -> Result<Vec<v1::FunctionInfo>> {
        self.functions_behind("")
    }

    /// The granted functions.
    pub fn list_granted_functions(&mut self) -> Result<Vec<v1::FunctionInfo>> {
        self.functions_behind("/")
    }

    fn functions_behind(&mut self, first: &str) -> Result<Vec<v1::FunctionInfo>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(first.to_owned(), |last: &v1::FunctionInfo| last.name.clone());
            let page = answer!(self.call(request::Body::ListFunctions(v1::Page { after }), &[])?, Functions)?;
            all.extend(page.functions);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// One registered function with its configuration.
    pub fn show_function(&mut self, name: &str) -> Result<v1::FunctionInfo> {
        answer!(self.call(request::Body::ShowFunction(named(name)), &[])?, Function)
    }

    /// Says which tenant all other requests are from, by its token. For a gateway, and before anything else.
    pub fn act_for(&mut self, token: &[u8]) -> Result<()> {
        let body = request::Body::ActFor(v1::ActFor { token: token.to_vec().into() });
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// Lets another tenant, by its name or uid, call a function; it names it OWNER/NAME.
    pub fn grant(&mut self, function: &str, tenant: &str) -> Result<()> {
        let body = v1::Grant { function: function.into(), tenant: tenant.into() };
        answer!(self.call(request::Body::Grant(body), &[])?, Done).map(drop)
    }

    /// Another tenant may call a function no longer.
    pub fn revoke(&mut self, function: &str, tenant: &str) -> Result<()> {
        let body = v1::Grant { function: function.into(), tenant: tenant.into() };
        answer!(self.call(request::Body::Revoke(body), &[])?, Done).map(drop)
    }

    /// Leaves what an owner granted to this tenant, or will grant, out of its lists; or no longer, with `undo`.
    pub fn decline(&mut self, owner: &str, undo: bool) -> Result<()> {
        let body = request::Body::Decline(v1::Decline { owner: owner.into(), undo });
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// Who may call a function besides its owner.
    pub fn list_grants(&mut self, function: &str) -> Result<Vec<String>> {
        let body = request::Body::ListGrants(named(function));
        answer!(self.call(body, &[])?, Grants).map(|grants| grants.tenants)
    }

    /// The tenant's usage and quotas.
    pub fn quota(&mut self) -> Result<v1::TenantInfo> {
        answer!(self.call(request::Body::Quota(v1::Empty {}), &[])?, Tenant)
    }

    /// All tenants with their usage and quotas. Admin socket only.
    pub fn list_tenants(&mut self) -> Result<Vec<v1::TenantInfo>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |last: &v1::TenantInfo| last.name.clone());
            let page = answer!(self.call(request::Body::ListTenants(v1::Page { after }), &[])?, Tenants)?;
            all.extend(page.tenants);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// Has the supervisor read its configuration file again: what changed besides tenants. Admin socket only.
    pub fn reload(&mut self) -> Result<v1::Reloaded> {
        answer!(self.call(request::Body::Reload(v1::Empty {}), &[])?, Reloaded)
    }

    /// Creates an arena of `bytes` zeros and shares it with the supervisor.
    pub fn open_arena(&mut self, bytes: u64) -> Result<Arena> {
        while let Some(arena) = self.take_stray() {
            let body = request::Body::CloseArena(v1::CloseArena { arena });
            answer!(self.call(body, &[])?, Done)?;
        }
        let memfd = memfd::arena("pappus-arena", bytes)?;
        let body = request::Body::OpenArena(v1::OpenArena {});
        let opened = answer!(self.call(body, &[memfd.as_fd()])?, Arena)?;
        Arena::map(opened.arena, &memfd)
    }

    /// Stops sharing an arena. Invocations that were accepted before end as ever; their outputs in it are gone.
    pub fn close_arena(&mut self, arena: Arena) -> Result<()> {
        let body = request::Body::CloseArena(v1::CloseArena { arena: arena.id() });
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// Begins a session of a function that has state, which is zero. Calls are made in it with [`Invocation::session`]; it ends with
    /// the connection.
    ///
    /// [`Invocation::session`]: crate::Invocation::session
    pub fn open_session(&mut self, function: &str) -> Result<v1::SessionOpened> {
        let body = request::Body::OpenSession(v1::OpenSession { function: function.into() });
        answer!(self.call(body, &[])?, Session)
    }

    /// Ends a session. Calls of it that were accepted end as ever.
    pub fn close_session(&mut self, session: u64) -> Result<()> {
        let body = request::Body::CloseSession(v1::CloseSession { session });
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// Cancels the invocation sent as `request`; its own answer says whether that came in time.
    pub fn cancel(&mut self, request: u64) -> Result<()> {
        let body = request::Body::Cancel(v1::Cancel { request });
        answer!(self.call(body, &[])?, Done).map(drop)
    }

    /// What the supervisor and its devices are doing.
    pub fn status(&mut self) -> Result<v1::Status> {
        answer!(self.call(request::Body::Status(v1::Empty {}), &[])?, Status)
    }

    /// Lets running work finish, accepts no more, and ends the supervisor. Admin socket only.
    pub fn drain(&mut self) -> Result<()> {
        answer!(self.call(request::Body::Drain(v1::Empty {}), &[])?, Done).map(drop)
    }

    /// Changes settings of a device while it serves, then reads all of them. Admin socket only.
    pub fn set_device(
        &mut self,
        device: &str,
        change: HashMap<String, String>,
    ) -> Result<v1::DeviceSettings> {
        let body = request::Body::SetDevice(v1::SetDevice { device: device.into(), change });
        answer!(self.call(body, &[])?, DeviceSettings)
    }

    /// Changes settings, then reads all of them. Admin socket only.
    pub fn settings(&mut self, change: HashMap<String, String>) -> Result<HashMap<String, String>> {
        let body = request::Body::Settings(v1::Settings { change });
        answer!(self.call(body, &[])?, Settings).map(|settings| settings.values)
    }
}

fn named(name: &str) -> v1::Name {
    v1::Name { name: name.into() }
}
