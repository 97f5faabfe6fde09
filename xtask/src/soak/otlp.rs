//! Logs, metrics and traces over HTTP and gRPC. Each acknowledged record must be a row of its table.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Soak;
use super::ledger::Account;
use crate::bench::export::{Export, Protocol, Signal};
use crate::bench::generator::{Generator, Shape};
use crate::bench::lake::free_port;
use crate::bench::under_test::UnderTest;

const SIGNALS: [(Signal, Shape); 3] = [
    (Signal::Logs, Shape::Logs),
    (Signal::Metrics, Shape::Metrics),
    (Signal::Traces, Shape::Traces),
];
const PROTOCOLS: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];
const RECORDS: u64 = 50;
/// Pause between two requests of a sender.
const EVERY: Duration = Duration::from_millis(500);
/// A sender opens another connection after this many requests.
const REQUESTS_OF_CONNECTION: u32 = 200;
const COMMITTED_WITHIN: Duration = Duration::from_secs(120);

pub struct Ports {
    pub http: u16,
    pub grpc: u16,
}

impl Ports {
    pub fn free() -> Result<Ports> {
        Ok(Ports {
            http: free_port()?,
            grpc: free_port()?,
        })
    }
}

pub struct Otlp {
    ports: Ports,
    /// Per signal: acknowledged records, and those of requests without a response, which may be stored.
    stored: [AtomicU64; 3],
    unsure: [AtomicU64; 3],
}

impl Otlp {
    pub fn new(ports: Ports) -> Otlp {
        Otlp {
            ports,
            stored: Default::default(),
            unsure: Default::default(),
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.stored.iter().map(|stored| stored.load(Relaxed)).sum()
    }

    /// Runs all senders until the soak is over.
    pub fn send(&self, soak: &Soak) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let [http_logs, http_metrics, http_traces] =
                [0, 1, 2].map(|signal| self.sender(soak, signal, PROTOCOLS[0]));
            let [grpc_logs, grpc_metrics, grpc_traces] =
                [0, 1, 2].map(|signal| self.sender(soak, signal, PROTOCOLS[1]));
            tokio::join!(
                http_logs,
                http_metrics,
                http_traces,
                grpc_logs,
                grpc_metrics,
                grpc_traces
            );
        });
        Ok(())
    }

    async fn sender(&self, soak: &Soak, signal: usize, protocol: Protocol) {
        let (Some((of, shape)), Some(stored), Some(unsure)) =
            (SIGNALS.get(signal), self.stored.get(signal), self.unsure.get(signal))
        else {
            return;
        };
        let per_second = RECORDS * 1000 / EVERY.as_millis() as u64;
        let mut generator = Generator::live(*shape, protocol.choose(1, 2), per_second);
        let port = protocol.choose(self.ports.grpc, self.ports.http);
        while soak.goes_on() {
            let mut export = match Export::open_for(*of, protocol, port).await {
                Ok(export) => export,
                Err(error) => {
                    soak.fault("otlp", format!("{protocol:?} {of:?}: {error:#}"));
                    tokio::time::sleep(EVERY).await;
                    continue;
                }
            };
            for _ in 0..REQUESTS_OF_CONNECTION {
                if !soak.goes_on() {
                    return;
                }
                let request = protocol.framed(&generator.request(RECORDS));
                match export.send(request).await {
                    Ok(_) => stored.fetch_add(RECORDS, Relaxed),
                    Err(error) => {
                        soak.fault("otlp", format!("{protocol:?} {of:?}: {error:#}"));
                        unsure.fetch_add(RECORDS, Relaxed);
                        break;
                    }
                };
                tokio::time::sleep(EVERY).await;
            }
        }
    }

    /// Called when nothing is sent any more.
    pub fn close(&self, soak: &Soak, server: &UnderTest) -> Vec<Account> {
        let until = Instant::now() + COMMITTED_WITHIN;
        let both = self.stored.iter().zip(&self.unsure);
        let account = |((signal, _), (stored, unsure)): (&(Signal, Shape), (&AtomicU64, &AtomicU64))| {
            let (stored, unsure) = (stored.load(Relaxed), unsure.load(Relaxed));
            let rows = rows_within(server, signal.name(), stored, until);
            if rows.as_ref().is_ok_and(|rows| *rows > stored + unsure) {
                soak.fault(
                    "otlp",
                    format!("{rows:?} rows of {stored} {signal:?} and {unsure} without a response"),
                );
            }
            let came = rows.unwrap_or_else(|error| {
                soak.fault("otlp", format!("{error:#}"));
                0
            });
            Account {
                name: format!("otlp {}", signal.name()),
                acknowledged: stored,
                came,
                missing: stored.saturating_sub(came),
                note: format!("records and rows; {unsure} had no response"),
            }
        };
        SIGNALS.iter().zip(both).map(account).collect()
    }
}

/// The rows of a table, once there are as many as wanted, or time is up.
pub fn rows_within(server: &UnderTest, table: &str, wanted: u64, until: Instant) -> Result<u64> {
    loop {
        let answer = server.sql(&format!("select count(*) as n from {table}"))?;
        let rows = answer[0]["n"]
            .as_u64()
            .with_context(|| format!("no count in {answer}"))?;
        if rows >= wanted || Instant::now() > until {
            return Ok(rows);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
