//! Real servers for tests: our simulator, asyncua (Python), node-opcua (Node.js), and moto for S3.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::process::Process;
use crate::thalweg::binary;

/// A running server and its address.
pub struct Server {
    pub endpoint: String,
    /// The whole line with which it announced itself.
    pub line: String,
    pub process: Process,
    _folder: TempDir,
}

/// The implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Simulator,
    Asyncua,
    NodeOpcua,
    /// An object store.
    S3,
}

impl Server {
    pub fn start(kind: Kind, arguments: &[&str]) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let mut command = match kind {
            Kind::Simulator => {
                let mut command = Command::new(binary());
                command.args(["simulate", "opcua"]);
                command
            }
            Kind::Asyncua => {
                let mut command = Command::new(python()?);
                command.arg(script("asyncua_server.py"));
                command
            }
            Kind::S3 => {
                let mut command = Command::new(python()?);
                command.arg(script("s3.py"));
                command
            }
            Kind::NodeOpcua => {
                let mut command = Command::new("node");
                command
                    .arg(script("node_opcua_server.mjs"))
                    .env("NODE_PATH", node_modules()?);
                command
            }
        };
        // Only the simulator can choose a port by itself; for the others a free one is found here.
        let free = free_port()?.to_string();
        let arguments = arguments.iter().map(|a| {
            if *a == "0" && kind != Kind::Simulator {
                free.as_str()
            } else {
                a
            }
        });
        command.args(arguments).current_dir(folder.path());
        let mut process = Process::start(&format!("{kind:?}"), folder.path(), &mut command)?;
        let line = process.wait_for_line("listening ")?;
        let endpoint = line
            .split_whitespace()
            .nth(1)
            .context("the server named no endpoint")?
            .to_owned();
        Ok(Server {
            endpoint,
            line,
            process,
            _folder: folder,
        })
    }

    /// The port, for starting another server at the same address after this one was killed.
    pub fn port(&self) -> Result<u16> {
        let host = self
            .endpoint
            .trim_start_matches("opc.tcp://")
            .split('/')
            .next()
            .unwrap_or_default();
        host.rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .context("no port in the endpoint")
    }
}

/// Below the ephemeral ports of the system.
const FREE_PORTS: std::ops::Range<u32> = 10_000..32_000;

/// A port on which nothing listens, and that no other test gets: the system would give the same one to two tests at once,
/// because neither listens yet, or to an outgoing client.
/// neither listens yet, or to a client on its way out.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let many = FREE_PORTS.end - FREE_PORTS.start;
    // Concurrent processes start at different ports.
    let begin = std::process::id().wrapping_mul(1_009) % many;
    for _ in 0..many {
        let n = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % many;
        let port = u16::try_from(FREE_PORTS.start + n)?;
        if std::net::TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("every port of {FREE_PORTS:?} is in use")
}

fn script(name: &str) -> PathBuf {
    crate::beside("servers").join(name)
}

/// The Python with the packages of the tests.
pub fn python() -> Result<PathBuf> {
    tool("THALWEG_TEST_PYTHON", "venv/bin/python")
}

/// The folder of the Node.js packages of the tests.
pub fn node_modules() -> Result<PathBuf> {
    tool("THALWEG_TEST_NODE_MODULES", "node/node_modules")
}

/// The OpenTelemetry Collector.
pub fn collector() -> Result<PathBuf> {
    tool("THALWEG_TEST_COLLECTOR", "collector/collector")
}

/// A Kafka broker, and a second client for it.
pub fn kafka() -> Result<PathBuf> {
    tool("THALWEG_TEST_KAFKA", "kafka/kafka")
}

/// Never skipped: a missing tool fails the test with the cure.
fn tool(variable: &str, in_cache: &str) -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let path = std::env::var_os(variable)
        .map(PathBuf::from)
        .or_else(|| Some(cache?.join("thalweg").join(in_cache)));
    match path {
        Some(path) if path.exists() => Ok(path),
        _ => bail!("the test needs {in_cache}; install it with: cargo xtask tools"),
    }
}

/// The browser of the tests.
pub fn tool_chromium() -> Result<PathBuf> {
    let path =
        std::env::var_os("THALWEG_TEST_CHROMIUM").map_or_else(|| PathBuf::from("/usr/bin/chromium"), PathBuf::from);
    anyhow::ensure!(
        path.exists(),
        "the test needs chromium; install it with: cargo xtask tools"
    );
    Ok(path)
}
