//! A TCP proxy that behaves like a bad network: it delays, it silences connections without closing them, and it cuts them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Listens until the process ends.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections with smaller numbers are silent.
    silent_before: AtomicU64,
    /// Connections with smaller numbers are cut.
    cut_before: AtomicU64,
    connections: AtomicU64,
    /// Delay before each piece of bytes is forwarded.
    delay_ms: AtomicU64,
    /// Lifetime of a new connection; 0: until either end closes it.
    lasts_ms: AtomicU64,
}

impl Proxy {
    /// In front of a server, which may come and go.
    pub fn start(server: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, state) = (listener.local_addr()?, Arc::new(State::default()));
        let of_connections = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Without its server a client is disconnected at once.
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let _ = join(client, server, &of_connections);
            }
        });
        Ok(Proxy { address, state })
    }

    /// In front of an OPC UA server; returns the proxy's address for clients.
    pub fn of_endpoint(endpoint: &str) -> Result<(Proxy, String)> {
        let rest = endpoint.strip_prefix("opc.tcp://").context("no OPC UA endpoint")?;
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        let proxy = Proxy::start(server.parse()?)?;
        let endpoint = format!("opc.tcp://{}/{path}", proxy.address);
        Ok((proxy, endpoint))
    }

    /// Silences all existing connections without closing them. New ones are not affected.
    pub fn silence(&self) {
        self.state
            .silent_before
            .store(self.state.connections.load(SeqCst), SeqCst);
    }

    pub fn delay(&self, each: Duration) {
        self.state.delay_ms.store(millis(each), SeqCst);
    }

    /// From now on each new connection is cut after this time, and existing ones at once.
    pub fn cut_after(&self, each: Duration) {
        self.state.lasts_ms.store(millis(each), SeqCst);
        self.state.cut_before.store(self.state.connections.load(SeqCst), SeqCst);
    }

    /// Connections last again.
    pub fn cut_no_more(&self) {
        self.state.lasts_ms.store(0, SeqCst);
    }

    pub fn connections(&self) -> u64 {
        self.state.connections.load(SeqCst)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn join(client: TcpStream, server: TcpStream, state: &Arc<State>) -> Result<()> {
    let number = state.connections.fetch_add(1, SeqCst);
    let (ends, cuts) = ([client.try_clone()?, server.try_clone()?], state.clone());
    thread::spawn(move || cut_when_it_is_time(&ends, number, &cuts));
    let pairs = [(client.try_clone()?, server.try_clone()?), (server, client)];
    for (from, to) in pairs {
        let state = state.clone();
        thread::spawn(move || {
            let _ = forward(from, to, number, &state);
        });
    }
    Ok(())
}

/// Ends with the process unless the connection ends first; tests create few.
fn cut_when_it_is_time(ends: &[TcpStream; 2], number: u64, state: &State) {
    let (start, lasts) = (Instant::now(), state.lasts_ms.load(SeqCst));
    let is_over = || lasts > 0 && start.elapsed() >= Duration::from_millis(lasts);
    while !is_over() && number >= state.cut_before.load(SeqCst) {
        thread::sleep(Duration::from_millis(20));
    }
    for end in ends {
        let _closed = end.shutdown(std::net::Shutdown::Both);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, number: u64, state: &State) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let n = from.read(&mut buffer)?;
        while number < state.silent_before.load(SeqCst) {
            thread::sleep(Duration::from_secs(1));
        }
        thread::sleep(Duration::from_millis(state.delay_ms.load(SeqCst)));
        if n == 0 {
            to.shutdown(std::net::Shutdown::Both)?;
            return Ok(());
        }
        to.write_all(buffer.get(..n).unwrap_or_default())?;
    }
}
