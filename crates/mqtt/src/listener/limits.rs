//! What all listeners of a broker count together: connections without a complete CONNECT, of which the oldest gives way;
//! connected clients; and how often each source address connects.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::clock;
use thalweg_mqtt_wire::{DecodeError, ReasonCode};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::rate_table::RateTable;
use crate::outbox::Outbox;
use crate::settings::MqttSettings;

/// The limits of a broker that concern connections, and what counts against them.
pub(crate) struct ConnectionLimits {
    connecting_max: usize,
    connected_max: usize,
    next: AtomicU64,
    /// By number, so the first is the oldest.
    connecting: Mutex<BTreeMap<u64, Arc<Notify>>>,
    connected: Mutex<ConnectedClients>,
    rates: Option<Mutex<RateTable>>,
}

#[derive(Default)]
struct ConnectedClients {
    outboxes: HashMap<u64, Arc<Outbox>>,
    /// When everything must have ended, once the broker stops.
    stops_at: Option<Instant>,
}

impl ConnectionLimits {
    pub fn new(settings: &MqttSettings) -> Arc<ConnectionLimits> {
        Arc::new(ConnectionLimits {
            connecting_max: settings.connecting.max(1),
            connected_max: settings.connections,
            next: AtomicU64::new(0),
            connecting: Mutex::default(),
            connected: Mutex::default(),
            rates: settings.connect_rate.map(|limit| Mutex::new(RateTable::new(limit))),
        })
    }

    /// A connection begins. If there are too many without CONNECT, the oldest of them is closed.
    pub fn begin(self: &Arc<Self>) -> ConnectingEntry {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gives_way = Arc::new(Notify::new());
        let mut connecting = self.connecting.lock();
        connecting.insert(number, gives_way.clone());
        if connecting.len() > self.connecting_max
            && let Some((_, oldest)) = connecting.pop_first()
        {
            oldest.notify_one();
        }
        drop(connecting);
        if self.stops_at().is_some() {
            gives_way.notify_one();
        }
        ConnectingEntry {
            limits: self.clone(),
            number,
            gives_way,
        }
    }

    /// Counts a client whose CONNECT is complete, or says why it is refused.
    pub fn admit(
        self: &Arc<Self>,
        listener: &Arc<ListenerCount>,
        source: IpAddr,
        outbox: &Arc<Outbox>,
    ) -> Result<ConnectedEntry, DecodeError> {
        if let Some(rates) = &self.rates
            && !rates.lock().take(source, clock::now())
        {
            return Err(DecodeError {
                code: ReasonCode::ConnectionRateExceeded,
                what: "too many connections came from this address in a short time",
            });
        }
        let full = |what| DecodeError {
            code: ReasonCode::QuotaExceeded,
            what,
        };
        if !listener.take() {
            return Err(full("as many clients are connected as the listener takes"));
        }
        // Given back if it is refused below.
        let listener = ListenerShare(listener.clone());
        let mut connected = self.connected.lock();
        if connected.stops_at.is_some() {
            return Err(DecodeError {
                code: ReasonCode::ServerUnavailable,
                what: "the broker stops",
            });
        }
        if connected.outboxes.len() >= self.connected_max {
            return Err(full("as many clients are connected as the broker takes"));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        connected.outboxes.insert(number, outbox.clone());
        Ok(ConnectedEntry {
            limits: self.clone(),
            number,
            _listener: listener,
        })
    }

    /// Closes the connections without CONNECT, and lets those of clients finish within `timeout`.
    pub fn stop(&self, timeout: Duration) {
        let mut connected = self.connected.lock();
        connected.stops_at = Some(clock::tokio_now() + timeout);
        let outboxes: Vec<_> = connected.outboxes.values().cloned().collect();
        drop(connected);
        self.connecting.lock().values().for_each(|entry| entry.notify_one());
        outboxes.iter().for_each(|outbox| outbox.stop());
    }

    /// When a connection must be closed that has `patience` at other times.
    pub fn deadline(&self, patience: Duration) -> Instant {
        let deadline = clock::tokio_now() + patience;
        self.stops_at().map_or(deadline, |stops_at| stops_at.min(deadline))
    }

    fn stops_at(&self) -> Option<Instant> {
        self.connected.lock().stops_at
    }
}

/// A connection without CONNECT, until it is dropped.
pub(crate) struct ConnectingEntry {
    limits: Arc<ConnectionLimits>,
    number: u64,
    gives_way: Arc<Notify>,
}

impl ConnectingEntry {
    /// Waits until the connection must make room for another one.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for ConnectingEntry {
    fn drop(&mut self) {
        self.limits.connecting.lock().remove(&self.number);
    }
}

/// A connected client, until it is dropped.
pub(crate) struct ConnectedEntry {
    limits: Arc<ConnectionLimits>,
    number: u64,
    _listener: ListenerShare,
}

impl Drop for ConnectedEntry {
    fn drop(&mut self) {
        self.limits.connected.lock().outboxes.remove(&self.number);
    }
}

/// The connected clients of one listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerCount {
    /// 0: only the broker's limit.
    max: usize,
    connected: AtomicUsize,
}

impl ListenerCount {
    pub fn new(max: usize) -> Arc<ListenerCount> {
        Arc::new(ListenerCount {
            max,
            connected: AtomicUsize::new(0),
        })
    }

    fn take(&self) -> bool {
        let before = self.connected.fetch_add(1, Ordering::Relaxed);
        let fits = self.max == 0 || before < self.max;
        if !fits {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }
}

struct ListenerShare(Arc<ListenerCount>);

impl Drop for ListenerShare {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::OutboxDuty;

    fn limits(settings: MqttSettings) -> Arc<ConnectionLimits> {
        ConnectionLimits::new(&settings)
    }

    fn outbox() -> Arc<Outbox> {
        Arc::new(Outbox::new(None, 10))
    }

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn the_oldest_connection_without_connect_gives_way() {
        let limits = limits(MqttSettings {
            connecting: 2,
            ..MqttSettings::default()
        });
        let (first, second) = (limits.begin(), limits.begin());
        drop(second);
        let (third, fourth) = (limits.begin(), limits.begin());
        first.gives_way().await;
        let fifth = limits.begin();
        third.gives_way().await;
        assert_eq!(limits.connecting.lock().len(), 2);
        drop((first, third, fourth, fifth));
        assert!(limits.connecting.lock().is_empty());
    }

    #[test]
    fn clients_beyond_a_limit_are_refused_until_another_one_has_left() {
        let limits = limits(MqttSettings {
            connections: 2,
            ..MqttSettings::default()
        });
        let (small, large) = (ListenerCount::new(1), ListenerCount::new(0));
        let refused = |listener| limits.admit(listener, SOURCE, &outbox()).err().map(|error| error.code);
        let first = limits.admit(&small, SOURCE, &outbox()).unwrap();
        assert_eq!(refused(&small), Some(ReasonCode::QuotaExceeded));
        let second = limits.admit(&large, SOURCE, &outbox()).unwrap();
        assert_eq!(refused(&large), Some(ReasonCode::QuotaExceeded));
        drop(second);
        assert_eq!(refused(&small), Some(ReasonCode::QuotaExceeded));
        drop(first);
        assert_eq!(refused(&small), None);
        assert_eq!(large.connected.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_stop_reaches_those_who_are_there_and_those_who_come() {
        let limits = limits(MqttSettings::default());
        let (outbox, count) = (outbox(), ListenerCount::new(0));
        let _client = limits.admit(&count, SOURCE, &outbox).unwrap();
        let before = limits.begin();
        limits.stop(Duration::from_secs(1));
        assert_eq!(outbox.duty(), OutboxDuty::Stop);
        before.gives_way().await;
        limits.begin().gives_way().await;
        let late = limits.admit(&count, SOURCE, &outbox).err().map(|error| error.code);
        assert_eq!(late, Some(ReasonCode::ServerUnavailable));
        assert!(limits.deadline(Duration::from_secs(100)) <= clock::tokio_now() + Duration::from_secs(1));
    }
}
