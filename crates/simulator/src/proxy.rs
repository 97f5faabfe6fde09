//! A TCP proxy between clients and the server: it forwards bytes from the public port to the server's, delayed by the
//! given latency in both directions, until the connection ends or all connections are cut. The server library has no
//! hook for either; the proxy exists only when one of them is enabled.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thalweg_kit::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::ProxyStats;

const READ_BYTES: usize = 64 * 1024;
/// Chunks in flight per direction; a full line stops reading, as a full network does.
const PIECES_IN_FLIGHT: usize = 256;

/// A running proxy.
#[derive(Clone)]
pub(crate) struct FaultProxy {
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    latency: Duration,
    /// Counts the cuts; every change ends the connections that were open before it.
    cuts: watch::Sender<u64>,
    open: AtomicU64,
    accepted: AtomicU64,
}

impl FaultProxy {
    pub(crate) fn new(target: SocketAddr, latency: Duration) -> FaultProxy {
        let (cuts, _) = watch::channel(0);
        FaultProxy {
            shared: Arc::new(Shared {
                target,
                latency,
                cuts,
                open: AtomicU64::new(0),
                accepted: AtomicU64::new(0),
            }),
        }
    }

    /// Accepts connections until cancelled. `drop_every` cuts all connections at this interval.
    pub(crate) async fn run(self, listener: TcpListener, drop_every: Option<Duration>, cancel: CancellationToken) {
        let cutter = self.clone().cut_regularly(drop_every);
        tokio::select! {
            () = cancel.cancelled() => {}
            () = cutter => {}
            () = self.accept(listener) => {}
        }
        self.cut();
    }

    /// Ends all open connections immediately, and loses the data in flight.
    pub(crate) fn cut(&self) -> u64 {
        let open = self.shared.open.load(Ordering::Relaxed);
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        open
    }

    pub(crate) fn stats(&self) -> ProxyStats {
        ProxyStats {
            connections_open: self.shared.open.load(Ordering::Relaxed),
            connections_accepted: self.shared.accepted.load(Ordering::Relaxed),
            cuts: *self.shared.cuts.borrow(),
        }
    }

    async fn cut_regularly(self, every: Option<Duration>) {
        let Some(every) = every else {
            return std::future::pending().await;
        };
        let mut ticks = interval_at(clock::tokio_now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let connections = self.cut();
            debug!(connections, "cut all connections");
        }
    }

    async fn accept(&self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    tokio::spawn(Arc::clone(&self.shared).serve(client));
                }
                Err(error) => {
                    // Usually too many open files; waiting lets others close some.
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, mut client: TcpStream) {
        let mut cuts = self.cuts.subscribe();
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        let relay = async {
            let mut server = TcpStream::connect(self.target).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            if self.latency.is_zero() {
                tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, READ_BYTES, READ_BYTES).await?;
                return Ok(());
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let up = delay(from_client, to_server, self.latency);
            let down = delay(from_server, to_client, self.latency);
            tokio::try_join!(up, down).map(|_| ())
        };
        let ended: Result<(), std::io::Error> = tokio::select! {
            ended = relay => ended,
            _ = cuts.changed() => Ok(()),
        };
        if let Err(error) = ended {
            debug!(%error, "connection ended");
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Forwards bytes, each chunk `latency` after it was read.
async fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, latency: Duration) -> std::io::Result<()> {
    let (pieces, mut line) = mpsc::channel::<(Instant, Bytes)>(PIECES_IN_FLIGHT);
    let read = async move {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            buffer.reserve(READ_BYTES);
            if from.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            if pieces
                .send((clock::tokio_now() + latency, buffer.split().freeze()))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = line.recv().await {
            sleep_until(due).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_: ((), ())| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that echoes every byte.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn front(latency: Duration) -> (FaultProxy, SocketAddr, CancellationToken) {
        let front = FaultProxy::new(echo().await, latency);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(front.clone().run(listener, None, cancel.clone()));
        (front, address, cancel)
    }

    async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let (mut read, mut write) = stream.split();
        let mut answer = vec![0; bytes.len()];
        tokio::try_join!(write.write_all(bytes), read.read_exact(&mut answer))?;
        Ok(answer)
    }

    #[tokio::test]
    async fn bytes_pass_unchanged_with_and_without_latency() {
        let message: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        for latency in [Duration::ZERO, Duration::from_millis(5)] {
            let (front, address, _cancel) = front(latency).await;
            let mut stream = TcpStream::connect(address).await.unwrap();
            let before = clock::tokio_now();
            assert_eq!(exchange(&mut stream, &message).await.unwrap(), message);
            assert!(before.elapsed() >= latency * 2, "each direction waits");
            assert_eq!(front.stats().connections_accepted, 1);
        }
    }

    #[tokio::test]
    async fn a_cut_ends_open_connections_and_takes_new_ones() {
        let (front, address, _cancel) = front(Duration::ZERO).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        exchange(&mut stream, b"before").await.unwrap();
        assert_eq!(front.cut(), 1);
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
        let mut again = TcpStream::connect(address).await.unwrap();
        assert_eq!(exchange(&mut again, b"after").await.unwrap(), b"after");
        assert_eq!(front.stats().cuts, 1);
    }
}
