//! What a service manager such as systemd hands to this process and is told by it. It keeps the clients' socket while one
//! supervisor follows another, so that no client is refused; it hears when calls can be made, when the configuration is
//! read again and when the process is about to end, and, where it asked for that, again and again that the process works.
//! Without a service manager none of it happens.
//!
//! The protocols are those of `sd_listen_fds(3)` and `sd_notify(3)`.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use listenfd::ListenFd;
use rustix::time::{ClockId, clock_gettime};

/// The service manager of this process, if it has one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// Where it hears what this process says.
    ear: Option<(UnixDatagram, SocketAddr)>,
    /// It ends a process that is silent for so long.
    watchdog: Option<Duration>,
    /// The clients' socket, if it listens on it.
    clients: Option<UnixListener>,
    told_ready: AtomicBool,
    told_stopping: AtomicBool,
}

impl ServiceManager {
    /// As the environment says. To be asked once, before other descriptors are opened.
    pub fn from_environment() -> Result<Self> {
        let variable = |name| std::env::var_os(name);
        let ear = variable("NOTIFY_SOCKET").map(|name| ear(&name)).transpose()?;
        let watched = variable("WATCHDOG_PID")
            .is_none_or(|pid| pid.to_str().and_then(|pid| pid.parse().ok()) == Some(std::process::id()));
        let period = variable("WATCHDOG_USEC").and_then(|period| period.to_str()?.parse().ok());
        let watchdog = period.filter(|period| watched && *period > 0).map(Duration::from_micros);
        Ok(Self {
            ear,
            watchdog,
            clients: clients()?,
            told_ready: AtomicBool::new(false),
            told_stopping: AtomicBool::new(false),
        })
    }

    /// True if the service manager listens on the clients' socket.
    pub fn has_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// The clients' socket, which must be the configured one.
    pub fn take_clients(&mut self, configured: &Path) -> Result<Option<UnixListener>> {
        let Some(listener) = self.clients.take() else { return Ok(None) };
        let address = listener.local_addr()?;
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match address.as_pathname() {
            Some(path) if path == configured || real(path) == real(configured) => {}
            other => {
                let other = other.unwrap_or(Path::new("a socket without a path")).display();
                let configured = configured.display();
                let why = format!(
                    "the service manager listens on {other}, the configuration says {configured}: make both the same \
                     (ListenStream= of the .socket unit, and `socket`)"
                );
                return Err(Error::new(ErrorKind::InvalidInput, why));
            }
        }
        if !rustix::net::sockopt::socket_acceptconn(&listener)? {
            let why = "the socket that the service manager hands over is not listened on";
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        listener.set_nonblocking(true)?;
        Ok(Some(listener))
    }

    /// True if the service manager wants notifications.
    pub fn listens(&self) -> bool {
        self.ear.is_some()
    }

    /// How often to tell the service manager that the process works.
    pub fn wants_to_hear_every(&self) -> Option<Duration> {
        // Twice as often as it must be.
        self.watchdog.filter(|_| self.listens()).map(|period| period / 2)
    }

    /// Calls can be made.
    pub fn ready(&self) {
        if !self.told_stopping.load(Ordering::Acquire) {
            self.told_ready.store(true, Ordering::Release);
            self.tell("READY=1");
        }
    }

    /// Does what reads the configuration again, and says so before and after.
    pub fn reloading<T>(&self, reload: impl FnOnce() -> T) -> T {
        if !self.told_ready.load(Ordering::Acquire) {
            return reload();
        }
        let now = clock_gettime(ClockId::Monotonic);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}{:06}", now.tv_sec, now.tv_nsec / 1000));
        let reloaded = reload();
        self.ready();
        reloaded
    }

    /// The process still works.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// The process accepts no call any more.
    pub fn stopping(&self) {
        // From now on neither a reload nor a worker is news.
        self.told_stopping.store(true, Ordering::Release);
        self.told_ready.store(false, Ordering::Release);
        self.tell("STOPPING=1\nSTATUS=draining: accepted calls are answered, new ones are refused");
    }

    fn tell(&self, news: &str) {
        let Some((socket, ear)) = &self.ear else { return };
        if let Err(e) = socket.send_to_addr(news.as_bytes(), ear) {
            tracing::warn!("the service manager cannot be told {news:?}: {e}");
        }
    }
}

/// A socket to speak through, and the address that `NOTIFY_SOCKET` names: a path, or `@` and an abstract name.
fn ear(name: &OsStr) -> Result<(UnixDatagram, SocketAddr)> {
    let named = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound()?;
    // Who does not read must not stop this process.
    socket.set_nonblocking(true)?;
    Ok((socket, named?))
}

fn clients() -> Result<Option<UnixListener>> {
    let mut given = ListenFd::from_env();
    match given.len() {
        0 => Ok(None),
        1 => given.take_unix_listener(0),
        more => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("the service manager hands over {more} sockets: it must be one, the clients'"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is heard through the other socket.
    fn heard() -> (ServiceManager, UnixDatagram) {
        let name = format!("pappus-test-{}-{:?}", std::process::id(), std::thread::current().id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let hears = UnixDatagram::bind_addr(&address).unwrap();
        let ear = ear(OsStr::new(&format!("@{name}"))).unwrap();
        (ServiceManager { ear: Some(ear), ..ServiceManager::default() }, hears)
    }

    fn next(hears: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = hears.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].into()).unwrap()
    }

    #[test]
    fn what_is_said_arrives_as_sd_notify_has_it() {
        let (manager, hears) = heard();
        // Before it is ready, a reload is no news.
        manager.reloading(|| ());
        manager.ready();
        assert_eq!(next(&hears), "READY=1");
        manager.reloading(|| manager.alive());
        let reloading = next(&hears);
        let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
        assert_eq!([next(&hears), next(&hears)], ["WATCHDOG=1", "READY=1"]);
        manager.stopping();
        assert!(next(&hears).starts_with("STOPPING=1\nSTATUS="));
    }

    #[test]
    fn a_service_manager_that_does_not_read_stops_nothing() {
        let (manager, hears) = heard();
        (0..10_000).for_each(|_| manager.alive());
        hears.set_nonblocking(true).unwrap();
        let heard = std::iter::from_fn(|| hears.recv(&mut [0; 256]).ok()).count();
        assert!((1..10_000).contains(&heard), "{heard}");
    }

    #[test]
    fn without_a_service_manager_nothing_is_said() {
        let manager = ServiceManager::default();
        manager.ready();
        assert_eq!((manager.has_clients(), manager.wants_to_hear_every()), (false, None));
    }

    #[test]
    fn a_socket_that_is_not_the_configured_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (there, link) = (dir.path().join("socket"), dir.path().join("link"));
        std::os::unix::fs::symlink(&there, &link).unwrap();
        let given = UnixListener::bind(&there).unwrap();
        let manager = || ServiceManager { clients: Some(given.try_clone().unwrap()), ..Default::default() };
        assert!(manager().take_clients(&there).unwrap().is_some());
        assert!(manager().take_clients(&link).unwrap().is_some(), "the same by another name");
        let why = manager().take_clients(Path::new("/other")).unwrap_err().to_string();
        assert!(why.contains("the configuration says /other"), "{why}");
    }
}
