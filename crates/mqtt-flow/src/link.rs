//! One connection to a broker: packets in, packets out, and keep alive. A read, a write and a timer wait together, and giving up
//! the wait at any point loses nothing.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use thalweg_kit::clock;
use thalweg_mqtt_wire::encode::{self, PropertyWriter};
use thalweg_mqtt_wire::{DecodeContext, FixedHeader, Packet, PropertyId, ProtocolVersion, ReasonCode, Sender};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

/// What carries the bytes of a connection: TCP, TLS, or a broker in the process.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The largest packet that the protocol has.
pub const PACKET_BYTES_MAX: usize = 5 + 268_435_455;
const READ_BYTES: usize = 64 << 10;
/// Waiting output beyond this should not be added to.
const OUT_BYTES: usize = 256 << 10;
const CLOSED: &str = "the broker has closed the connection";
/// A buffer that one large packet made is not kept.
const KEPT_BYTES: usize = 1 << 20;

/// A connection.
pub struct Link {
    reader: ReadHalf<Box<dyn Transport>>,
    writer: WriteHalf<Box<dyn Transport>>,
    inbox: BytesMut,
    outbox: Vec<u8>,
    /// Bytes at the front of `outbox` that were written.
    written: usize,
    needs_flush: bool,
    /// Bytes that were ever put into `outbox`, that were written, and that were flushed.
    put: u64,
    left: u64,
    flushed: u64,
    version: ProtocolVersion,
    /// Zero: off.
    keep_alive: Duration,
    last_left: Instant,
    last_read: Instant,
    pinged: Option<Instant>,
    /// How long the transport may accept nothing.
    write_timeout: Duration,
    /// Why nothing can be written any more; what the broker has said before is still read.
    broken: Option<String>,
}

/// How long the last words of a broker that takes nothing any more are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Link {
    pub fn new(transport: Box<dyn Transport>, version: ProtocolVersion, write_timeout: Duration) -> Link {
        let (reader, writer) = tokio::io::split(transport);
        let now = clock::tokio_now();
        Link {
            reader,
            writer,
            inbox: BytesMut::new(),
            outbox: Vec::new(),
            written: 0,
            needs_flush: false,
            put: 0,
            left: 0,
            flushed: 0,
            version,
            keep_alive: Duration::ZERO,
            last_left: now,
            last_read: now,
            pinged: None,
            write_timeout,
            broken: None,
        }
    }

    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Pings leave a bit more often than the broker expects them.
    pub fn set_keep_alive(&mut self, keep_alive: Duration) {
        self.keep_alive = keep_alive * 3 / 4;
    }

    /// Puts packets behind those that wait. Returns the count that [`Link::has_left`] takes.
    pub fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let before = self.outbox.len();
        if before == self.written {
            // The time until the transport accepts something begins now.
            self.last_left = clock::tokio_now().max(self.last_left);
        }
        write(&mut self.outbox);
        self.put += (self.outbox.len() - before) as u64;
        self.put
    }

    /// Whether everything up to this count was given to the transport.
    pub fn has_left(&self, count: u64) -> bool {
        self.flushed >= count
    }

    pub fn is_flushed(&self) -> bool {
        self.written == self.outbox.len() && !self.needs_flush
    }

    /// Whether more may be put, besides acknowledgements.
    pub fn has_room(&self) -> bool {
        self.outbox.len() - self.written < OUT_BYTES
    }

    /// The next packet that was received completely.
    pub fn buffered(&mut self) -> Result<Option<Packet>, String> {
        let Some(header) = self.next_header()? else {
            return Ok(None);
        };
        if header.packet_len() > self.inbox.len() {
            return Ok(None);
        }
        let packet = self.inbox.split_to(header.packet_len()).freeze();
        let context = DecodeContext {
            version: self.version,
            sender: Sender::Server,
            strict_utf8: false,
        };
        match Packet::decode(packet, &header, context) {
            Ok(packet) => {
                if matches!(packet, Packet::PingResp) {
                    self.pinged = None;
                }
                Ok(Some(packet))
            }
            Err(error) => Err(self.broken(error.code, error)),
        }
    }

    /// The bytes of the first packet, which may be in the form of another version.
    pub fn first_packet(&mut self) -> Result<Option<(FixedHeader, bytes::Bytes)>, String> {
        match self.next_header()? {
            Some(header) if header.packet_len() <= self.inbox.len() => {
                Ok(Some((header, self.inbox.split_to(header.packet_len()).freeze())))
            }
            _ => Ok(None),
        }
    }

    fn next_header(&mut self) -> Result<Option<FixedHeader>, String> {
        match FixedHeader::parse(&self.inbox, PACKET_BYTES_MAX) {
            Ok(header) => Ok(header),
            Err(error) => Err(self.broken(error.code, error)),
        }
    }

    /// Tells the broker why the connection ends, as far as the transport takes it.
    fn broken(&mut self, code: ReasonCode, error: impl std::fmt::Display) -> String {
        let version = self.version;
        if version.is_5() {
            self.put(|out| encode::disconnect(out, version, code, &[]));
        }
        format!("the broker sent a packet that breaks the protocol: {error}")
    }

    /// Waits until something was received or has left. With `reads: false` nothing is read, and so the broker waits.
    pub async fn progress(&mut self, reads: bool) -> Result<(), String> {
        if !reads && let Some(why) = self.broken.take() {
            return Err(why);
        }
        let writes = self.broken.is_none();
        let waits = self.written < self.outbox.len() || self.needs_flush;
        let deadline = self.deadline(reads, waits);
        self.inbox.reserve(if reads { READ_BYTES } else { 0 });
        tokio::select! {
            biased;
            left = push(&mut self.writer, self.outbox.get(self.written..).unwrap_or_default()), if writes && waits => {
                self.has_left_some(left);
                Ok(())
            }
            read = self.reader.read_buf(&mut self.inbox), if reads => self.has_read(read),
            () = sleep_until(deadline) => self.tick(reads, waits),
        }
    }

    fn has_left_some(&mut self, left: std::io::Result<Option<usize>>) {
        self.last_left = clock::tokio_now();
        match left {
            Ok(None) => {
                self.needs_flush = false;
                self.flushed = self.left;
            }
            Ok(Some(0)) => self.broken = Some(CLOSED.to_owned()),
            Ok(Some(written)) => {
                self.written += written;
                self.left += written as u64;
                self.needs_flush = true;
                if self.written == self.outbox.len() {
                    self.outbox.clear();
                    self.outbox.shrink_to(KEPT_BYTES);
                    self.written = 0;
                } else if self.written >= KEPT_BYTES {
                    self.outbox.drain(..self.written);
                    self.written = 0;
                }
            }
            Err(error) => self.broken = Some(format!("the connection broke: {error}")),
        }
    }

    fn has_read(&mut self, read: std::io::Result<usize>) -> Result<(), String> {
        match read {
            Ok(0) => {
                self.inbox.advance(self.inbox.len());
                Err(self.broken.take().unwrap_or_else(|| CLOSED.to_owned()))
            }
            Ok(_) => {
                self.last_read = clock::tokio_now();
                Ok(())
            }
            Err(error) => Err(self
                .broken
                .take()
                .unwrap_or_else(|| format!("the connection broke: {error}"))),
        }
    }

    /// When the next ping, the lack of an answer, or a write that hangs is due.
    fn deadline(&self, reads: bool, waits: bool) -> Instant {
        if self.broken.is_some() {
            return self.last_left + LAST_WORDS;
        }
        // Long enough to never matter.
        let mut deadline = clock::tokio_now() + Duration::from_secs(3600);
        if waits {
            deadline = deadline.min(self.last_left + self.write_timeout);
        } else if !self.keep_alive.is_zero() && self.pinged.is_none() {
            deadline = deadline.min(self.last_left + self.keep_alive);
        }
        match self.pinged {
            Some(pinged) if reads => deadline.min(self.last_read.max(pinged) + self.keep_alive),
            Some(pinged) if !waits => deadline.min(pinged.max(self.last_left) + self.keep_alive),
            _ => deadline,
        }
    }

    fn tick(&mut self, reads: bool, waits: bool) -> Result<(), String> {
        if let Some(why) = self.broken.take() {
            return Err(why);
        }
        let now = clock::tokio_now();
        if waits && now >= self.last_left + self.write_timeout {
            let seconds = self.write_timeout.as_secs_f64();
            return Err(format!("the broker has taken no bytes for {seconds} s"));
        }
        if let Some(pinged) = self.pinged
            && reads
            && now >= self.last_read.max(pinged) + self.keep_alive
        {
            let seconds = self.keep_alive.as_secs_f64();
            return Err(format!(
                "the broker has sent nothing for {seconds} s, and does not answer a ping"
            ));
        }
        // While nothing is read, answers to pings wait, too; the pings keep the broker from ending the connection.
        if !waits && !self.keep_alive.is_zero() && now >= self.last_left + self.keep_alive {
            self.put(encode::pingreq);
            self.pinged = Some(now);
        }
        Ok(())
    }

    /// Ends the connection in order: the broker discards the will, and the session if it is to end.
    pub async fn disconnect(mut self, ends_session: bool) {
        let version = self.version;
        let mut properties = PropertyWriter::default();
        if ends_session && version.is_5() {
            properties.number(PropertyId::SessionExpiryInterval, 0);
        }
        self.put(|out| encode::disconnect(out, version, ReasonCode::Success, properties.bytes()));
        self.flush_and_close().await;
    }

    /// Gives what waits to the transport, if it takes it in time, and closes the connection.
    pub async fn flush_and_close(mut self) {
        while !self.is_flushed() {
            if self.progress(false).await.is_err() {
                return;
            }
        }
        let _ = self.writer.shutdown().await;
    }
}

/// Writes some of the bytes; without bytes it flushes what was written before, and returns `None`.
async fn push(writer: &mut WriteHalf<Box<dyn Transport>>, bytes: &[u8]) -> std::io::Result<Option<usize>> {
    match bytes.is_empty() {
        true => writer.flush().await.map(|()| None),
        false => writer.write(bytes).await.map(Some),
    }
}

#[cfg(test)]
mod tests;
