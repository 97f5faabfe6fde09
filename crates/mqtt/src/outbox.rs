//! Bytes on their way to one client. Whoever has something for it appends to the outbox, and writes to the socket itself once it is
//! done with all that came together; only what the socket does not take is left to the task of the connection.

use std::io;

use parking_lot::Mutex;
use thalweg_mqtt_wire::{QoS, ReasonCode};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::counters::BrokerCounters;

/// Why the broker ends a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// With DISCONNECT in 5.0, and a sentence if it is wanted.
    Code(ReasonCode, String),
    /// The client has closed it, or the network has.
    Closed,
}

/// The bytes that wait for one client.
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<OutboxState>,
    /// The task of the connection has something to do.
    wake: Notify,
    /// The socket, if bytes go to it as they are.
    socket: Option<std::sync::Arc<TcpStream>>,
    /// Beyond this many bytes there is no room for more messages.
    limit: usize,
}

#[derive(Debug, Default)]
struct OutboxState {
    bytes: Vec<u8>,
    /// The first of `bytes` that is not written.
    start: usize,
    /// Somebody has appended and will flush.
    is_marked: bool,
    /// The socket takes nothing now; the connection's task waits for it.
    is_blocked: bool,
    end: Option<ConnectionEnd>,
    /// The broker stops: the connection finishes what it has received, and ends.
    is_stopping: bool,
    failed: bool,
}

impl OutboxState {
    fn waiting(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn wrote(&mut self, len: usize) {
        self.start += len;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            // An idle connection holds no buffer.
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.start > COMPACT_BYTES {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// A buffer of this size is kept while it is empty.
const KEPT_BYTES: usize = 4 << 10;
/// What is written is removed from the front at this size, so that little is moved for much that is written.
const COMPACT_BYTES: usize = 256 << 10;

impl Outbox {
    pub fn new(socket: Option<std::sync::Arc<TcpStream>>, limit: usize) -> Outbox {
        Outbox {
            state: Mutex::default(),
            wake: Notify::new(),
            socket,
            limit,
        }
    }

    /// Appends by `write`. Returns whether the caller must flush: it is the first to append since the last flush.
    pub fn append(&self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return false;
        }
        write(&mut state.bytes);
        !std::mem::replace(&mut state.is_marked, true)
    }

    /// Appends by `write` if there is room. `None`: there is none.
    pub fn append_if_room(&self, write: impl FnOnce(&mut Vec<u8>)) -> Option<bool> {
        let mut state = self.state.lock();
        if state.end.is_some() || state.waiting() >= self.limit {
            return None;
        }
        write(&mut state.bytes);
        Some(!std::mem::replace(&mut state.is_marked, true))
    }

    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.end.is_none() && state.waiting() < self.limit
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        state.is_marked = false;
        if state.waiting() == 0 || state.failed {
            return;
        }
        if state.is_blocked {
            return;
        }
        let Some(socket) = &self.socket else {
            drop(state);
            self.wake.notify_one();
            return;
        };
        if !write_to(socket, &mut state) {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// The socket takes bytes again. Returns whether all of them are written.
    pub fn unblocked(&self) -> bool {
        let mut state = self.state.lock();
        state.is_blocked = false;
        match &self.socket {
            Some(socket) => write_to(socket, &mut state) && state.waiting() == 0,
            None => true,
        }
    }

    /// Waits until the connection's task has something to do: bytes that the socket did not take, or the end.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// What the connection's task must do.
    pub fn duty(&self) -> OutboxDuty {
        let state = self.state.lock();
        match &state.end {
            _ if state.failed => OutboxDuty::End(ConnectionEnd::Closed),
            Some(end) => OutboxDuty::End(end.clone()),
            None if state.is_stopping => OutboxDuty::Stop,
            None if state.is_blocked => OutboxDuty::WaitForSocket,
            None if self.socket.is_none() && state.waiting() > 0 => OutboxDuty::Write,
            None => OutboxDuty::Nothing,
        }
    }

    /// Takes all bytes, for a connection that encodes them itself.
    pub fn take(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        let start = std::mem::take(&mut state.start);
        let mut bytes = std::mem::take(&mut state.bytes);
        bytes.drain(..start);
        bytes
    }

    /// Takes what is left, and nothing more is appended: the last bytes are not mixed with others.
    pub fn close(&self) -> Vec<u8> {
        self.state.lock().end.get_or_insert(ConnectionEnd::Closed);
        self.take()
    }

    /// The broker stops.
    pub fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.wake.notify_one();
    }

    /// Ends the connection. The first reason counts.
    pub fn end(&self, end: ConnectionEnd) {
        self.state.lock().end.get_or_insert(end);
        self.wake.notify_one();
    }
}

/// What the task of a connection must do for its outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxDuty {
    Nothing,
    /// Bytes wait for the socket to take them.
    WaitForSocket,
    /// Bytes wait to be taken and encoded.
    Write,
    /// The broker stops: what was received is finished, and the client is told.
    Stop,
    End(ConnectionEnd),
}

/// Returns whether the socket has taken all bytes; otherwise the connection's task has something to do.
fn write_to(socket: &TcpStream, state: &mut OutboxState) -> bool {
    while state.waiting() > 0 {
        let waiting = state.bytes.get(state.start..).unwrap_or_default();
        match socket.try_write(waiting) {
            Ok(len) => state.wrote(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                state.is_blocked = true;
                return false;
            }
            Err(_) => {
                state.failed = true;
                return false;
            }
        }
    }
    true
}

/// Outboxes that were appended to and must be flushed, each once.
#[derive(Debug, Default)]
pub struct TouchedOutboxes {
    outboxes: Vec<std::sync::Arc<Outbox>>,
    /// Messages that were sent since the last flush, by QoS.
    sent: [u64; 3],
    counters: std::sync::Arc<BrokerCounters>,
}

impl TouchedOutboxes {
    pub fn new(counters: &std::sync::Arc<BrokerCounters>) -> TouchedOutboxes {
        TouchedOutboxes {
            counters: counters.clone(),
            ..TouchedOutboxes::default()
        }
    }

    /// Counts a message that is sent.
    pub fn sent(&mut self, qos: QoS) {
        if let Some(count) = self.sent.get_mut(usize::from(qos.number())) {
            *count += 1;
        }
    }

    /// Appends, and remembers to flush.
    pub fn append(&mut self, outbox: &std::sync::Arc<Outbox>, write: impl FnOnce(&mut Vec<u8>)) {
        if outbox.append(write) {
            self.outboxes.push(outbox.clone());
        }
    }

    /// Appends if there is room. Returns whether there was.
    pub fn append_if_room(&mut self, outbox: &std::sync::Arc<Outbox>, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        match outbox.append_if_room(write) {
            None => false,
            Some(is_first) => {
                if is_first {
                    self.outboxes.push(outbox.clone());
                }
                true
            }
        }
    }

    /// Writes to all sockets.
    pub fn flush(&mut self) {
        self.outboxes.drain(..).for_each(|outbox| outbox.flush());
        for (number, count) in self.sent.iter_mut().enumerate() {
            self.counters.publishes_sent.add(number, std::mem::take(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_who_append_flushes() {
        let outbox = std::sync::Arc::new(Outbox::new(None, 10));
        let mut touched = TouchedOutboxes::default();
        touched.append(&outbox, |bytes| bytes.extend_from_slice(b"12345"));
        assert!(touched.append_if_room(&outbox, |bytes| bytes.extend_from_slice(b"67890")));
        assert!(!touched.append_if_room(&outbox, |bytes| bytes.push(0)), "it is full");
        touched.append(&outbox, |bytes| bytes.push(b'!'));
        assert_eq!(touched.outboxes.len(), 1);
        touched.flush();
        assert_eq!(outbox.duty(), OutboxDuty::Write);
        assert_eq!(outbox.take(), b"1234567890!");
        assert_eq!(outbox.duty(), OutboxDuty::Nothing);
        outbox.end(ConnectionEnd::Closed);
        outbox.end(ConnectionEnd::Code(ReasonCode::ServerBusy, String::new()));
        assert_eq!(outbox.duty(), OutboxDuty::End(ConnectionEnd::Closed));
        assert!(!outbox.append(|bytes| bytes.push(0)) && !outbox.has_room());
    }
}
