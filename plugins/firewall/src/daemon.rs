//! firewalld, over the system bus (firewalld.dbus(5)).

use std::net::IpAddr;
use std::time::Duration;

use cni_types::{Cidr, Error, Result};
use zbus::Connection;
use zbus::connection::Builder;

const SERVICE: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";

/// How long an answer may take. firewalld writes its rules before it answers, and may be starting.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether firewalld runs: whether its name on the system bus has an owner. Without a bus, it does not.
pub(crate) fn is_running() -> bool {
    zbus::block_on(async {
        match connect().await {
            Ok(bus) => has_owner(&bus).await.unwrap_or(false),
            Err(_) => false,
        }
    })
}

/// Tells whether firewalld could be asked.
///
/// # Errors
///
/// There is no system bus, or firewalld is not on it.
pub(crate) fn probe() -> Result<()> {
    zbus::block_on(async { Daemon::open().await.map(drop) })
}

/// Makes addresses sources of a zone.
pub(crate) fn add(zone: &str, addresses: &[IpAddr]) -> Result<()> {
    zbus::block_on(async {
        let daemon = Daemon::open().await?;
        for address in addresses {
            daemon.change("addSource", zone, *address, "ZONE_ALREADY_SET").await?;
        }
        Ok(())
    })
}

/// Tells whether all addresses are sources of a zone.
///
/// # Errors
///
/// The first that is not.
pub(crate) fn check(zone: &str, addresses: &[IpAddr]) -> Result<()> {
    zbus::block_on(async {
        let daemon = Daemon::open().await?;
        for address in addresses {
            if !daemon.has_source(zone, *address).await? {
                let message = format!("{} is no source of firewalld's zone {zone}", Cidr::host(*address));
                return Err(Error::internal(message));
            }
        }
        Ok(())
    })
}

/// Takes addresses from zones. Where firewalld does not run, it has none: sources are not permanent.
pub(crate) fn remove(sources: &[(String, IpAddr)]) -> Result<()> {
    if !is_running() {
        return Ok(());
    }
    zbus::block_on(async {
        let daemon = Daemon::open().await?;
        for (zone, address) in sources {
            daemon.change("removeSource", zone, *address, "UNKNOWN_SOURCE").await?;
        }
        Ok(())
    })
}

struct Daemon {
    bus: Connection,
}

impl Daemon {
    async fn open() -> Result<Daemon> {
        let bus = connect().await?;
        match has_owner(&bus).await? {
            true => Ok(Daemon { bus }),
            false => Err(Error::internal(format!(
                "firewalld does not run: {SERVICE} is not on the system bus"
            ))),
        }
    }

    /// Calls a method that changes a source. An error of firewalld's that begins with `done` says that it is so already.
    async fn change(&self, method: &str, zone: &str, address: IpAddr, done: &str) -> Result<()> {
        let source = Cidr::host(address).to_string();
        let body = (zone, source.as_str());
        match self
            .bus
            .call_method(Some(SERVICE), PATH, Some(ZONES), method, &body)
            .await
        {
            Ok(_) => Ok(()),
            Err(zbus::Error::MethodError(_, Some(text), _)) if text.starts_with(done) => Ok(()),
            Err(e) => Err(Error::internal(format!("firewalld: {method} {zone} {source}: {e}"))),
        }
    }

    async fn has_source(&self, zone: &str, address: IpAddr) -> Result<bool> {
        let source = Cidr::host(address).to_string();
        let failed = |e: zbus::Error| Error::internal(format!("firewalld: querySource {zone} {source}: {e}"));
        let body = (zone, source.as_str());
        let reply = self
            .bus
            .call_method(Some(SERVICE), PATH, Some(ZONES), "querySource", &body);
        reply.await.map_err(failed)?.body().deserialize().map_err(failed)
    }
}

async fn connect() -> Result<Connection> {
    let bus = Builder::system().method_timeout(PATIENCE).build().await;
    bus.map_err(|e| Error::internal(format!("system bus: {e}")))
}

async fn has_owner(bus: &Connection) -> Result<bool> {
    const BUS: &str = "org.freedesktop.DBus";
    let failed = |e: zbus::Error| Error::internal(format!("system bus: {e}"));
    let reply = bus.call_method(
        Some(BUS),
        "/org/freedesktop/DBus",
        Some(BUS),
        "NameHasOwner",
        &(SERVICE,),
    );
    reply.await.map_err(failed)?.body().deserialize().map_err(failed)
}
