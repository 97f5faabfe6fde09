//! What the broker counts, for metrics, `$SYS` and the console. Connections count for themselves and add up once for all packets that
//! came together, so that cores do not wait for each other's counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_mqtt_wire::{PacketKind, QoS, ReasonCode};

use crate::session::DropReason;

/// Counters by the number of something small.
#[derive(Debug)]
pub(crate) struct NumberedCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for NumberedCounters<N> {
    fn default() -> NumberedCounters<N> {
        NumberedCounters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> NumberedCounters<N> {
    pub fn add(&self, number: usize, count: u64) {
        if let Some(counter) = self.0.get(number)
            && count > 0
        {
            counter.fetch_add(count, Relaxed);
        }
    }

    pub fn get(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, |counter| counter.load(Relaxed))
    }
}

/// Counts since the process started.
#[derive(Debug, Default)]
pub(crate) struct BrokerCounters {
    /// Packets that came, by type.
    pub packets_received: NumberedCounters<16>,
    pub bytes_received: AtomicU64,
    /// Messages by QoS.
    pub publishes_received: NumberedCounters<3>,
    pub publishes_sent: NumberedCounters<3>,
    pub dropped: NumberedCounters<{ DropReason::ALL.len() }>,
    /// Answers to CONNECT, by code.
    pub connects: NumberedCounters<256>,
    /// Connections that the broker has ended, by code.
    pub ended: NumberedCounters<256>,
    /// Connections that clients have ended, by code.
    pub left: NumberedCounters<256>,
    pub takeovers: AtomicU64,
    pub denied_publishes: AtomicU64,
    pub denied_subscriptions: AtomicU64,
    pub wills_sent: AtomicU64,
    pub wills_cancelled: AtomicU64,
}

impl BrokerCounters {
    pub fn dropped(&self, reason: DropReason, count: u64) {
        self.dropped.add(reason as usize, count);
    }

    pub fn connected(&self, code: ReasonCode) {
        self.connects.add(code.number().into(), 1);
    }
}

/// What one connection has counted since it last added up.
#[derive(Debug, Default)]
pub(crate) struct LocalCounters {
    packets: [u32; 16],
    publishes: [u32; 3],
    bytes: u64,
}

impl LocalCounters {
    pub fn packet(&mut self, kind: PacketKind, bytes: usize) {
        if let Some(count) = self.packets.get_mut(kind as usize) {
            *count += 1;
        }
        self.bytes += bytes as u64;
    }

    pub fn publish(&mut self, qos: QoS) {
        if let Some(count) = self.publishes.get_mut(usize::from(qos.number())) {
            *count += 1;
        }
    }

    pub fn add_to(&mut self, all: &BrokerCounters) {
        if self.bytes == 0 {
            return;
        }
        for (number, count) in self.packets.iter_mut().enumerate() {
            all.packets_received.add(number, std::mem::take(count).into());
        }
        for (number, count) in self.publishes.iter_mut().enumerate() {
            all.publishes_received.add(number, std::mem::take(count).into());
        }
        all.bytes_received.fetch_add(std::mem::take(&mut self.bytes), Relaxed);
    }
}
