//! New connections through a published port: how long each takes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::Failure;
use super::call::program;

/// The first argument that makes the program the server in the container.
pub(super) const SERVE: &str = "--serve";
/// The first argument that makes the program the client.
pub(super) const CONNECT: &str = "--connect";

/// Connections in one measurement. They are made one after the other.
const CONNECTIONS: u32 = 500;

/// Starts a server on port 80 of every address of a namespace, and waits until it listens.
///
/// # Errors
/// It cannot be started.
pub(super) fn start_server(netns: &Path) -> Result<Child, Failure> {
    let mut command = inside(netns)?;
    let mut server = command.arg(SERVE).stdout(Stdio::piped()).spawn()?;
    let ready = server.stdout.as_mut().map(|stdout| stdout.read_exact(&mut [0]));
    match ready {
        Some(Ok(())) => Ok(server),
        _ => Err("the server in the container did not start".into()),
    }
}

/// What [`start_server`] starts: accepts, and closes. The side that closes first keeps the connection's ports occupied for a
/// while, which has to be the server's, as it has only one.
///
/// # Errors
/// The system's.
pub(super) fn serve() -> Result<(), Failure> {
    let listener = TcpListener::bind(("0.0.0.0", 80))?;
    std::io::stdout().write_all(b"\n")?;
    std::io::stdout().flush()?;
    for connection in listener.incoming() {
        drop(connection?);
    }
    Ok(())
}

/// How long one of many connections from a namespace takes.
///
/// # Errors
/// A connection fails.
pub(super) fn time(netns: &Path, address: &str, port: u16) -> Result<Duration, Failure> {
    let mut command = inside(netns)?;
    let output = command.args([CONNECT, address, &port.to_string()]).output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("connecting to {address}:{port}: {}", complaint.trim()).into());
    }
    let total: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
    Ok(Duration::from_nanos(total) / CONNECTIONS)
}

/// What [`time`] starts: makes the connections, and prints how many nanoseconds they took together.
///
/// # Errors
/// A connection fails.
pub(super) fn connect(address: &str, port: &str) -> Result<(), Failure> {
    let port: u16 = port.parse()?;
    let began = Instant::now();
    for _ in 0..CONNECTIONS {
        let mut connection = TcpStream::connect((address, port))?;
        // Until the server closes.
        connection.read_to_end(&mut Vec::new())?;
    }
    writeln!(std::io::stdout(), "{}", began.elapsed().as_nanos())?;
    Ok(())
}

/// This program in another network namespace.
fn inside(netns: &Path) -> Result<std::process::Command, Failure> {
    let mut command = program(Path::new("nsenter"));
    command
        .arg(format!("--net={}", netns.display()))
        .arg(std::env::current_exe()?);
    Ok(command)
}
