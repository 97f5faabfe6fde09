//! A proxy between a client and its broker: it damages records on their way to the client, or cuts connections.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

pub struct Proxy {
    /// `host:port`
    pub address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    /// By request type.
    requests: Requests,
    is_dead: Arc<AtomicBool>,
}

type Requests = Arc<Mutex<BTreeMap<i16, usize>>>;

/// A change to a response of the broker.
#[derive(Clone)]
struct Change {
    /// The addresses of the broker and of the proxy, as responses encode them: the client must connect to the proxy.
    from: Vec<u8>,
    to: Vec<u8>,
    /// A text in records, which are damaged where it stands; empty means none.
    text: Vec<u8>,
    damage: Damage,
    /// How many times.
    left: Arc<AtomicUsize>,
}

/// What happens to a frame at the position of a text in it.
type Damage = fn(&mut [u8], usize);

/// Size of the fixed part of a record batch.
const BATCH_HEADER_BYTES: usize = 61;
/// Positions in a record batch: its length counts from behind itself, its checksum from the attributes on.
const BATCH_LENGTH: usize = 8;
const BATCH_CHECKSUM: usize = 17;
const BATCH_ATTRIBUTES: usize = 21;

/// How frames of one direction are handled.
enum OnTheWay {
    Requests(Requests),
    Answers(Change),
}

impl Proxy {
    /// Damages nothing.
    pub fn plain(broker: &str) -> Proxy {
        Proxy::start(broker, "", 0, flip_bit)
    }

    /// Flips a bit of a text in records, as often as `times` says. Their checksum no longer fits.
    pub fn that_flips_a_bit(broker: &str, text: &str, times: usize) -> Proxy {
        Proxy::start(broker, text, times, flip_bit)
    }

    /// Records with a text in them claim to be compressed by a method that does not exist yet. Their checksum fits.
    pub fn that_compresses_unknowably(broker: &str, text: &str) -> Proxy {
        Proxy::start(broker, text, usize::MAX, claim_unknown_compression)
    }

    /// Returns how many requests of a type the client has sent; types are numbers of the protocol.
    pub fn requests(&self, kind: i16) -> usize {
        self.requests.lock().get(&kind).copied().unwrap_or(0)
    }

    /// Ends all open connections.
    pub fn cut(&self) {
        for connection in self.connections.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections and takes no more: for the broker, its client has died without a word.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.cut();
    }

    fn start(broker: &str, text: &str, times: usize, damage: Damage) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let change = Change {
            from: spelt(broker),
            to: spelt(&address),
            text: text.as_bytes().to_vec(),
            damage,
            left: Arc::new(AtomicUsize::new(times)),
        };
        let (broker, connections) = (broker.to_owned(), Arc::new(Mutex::new(Vec::new())));
        let open = connections.clone();
        let requests = Requests::default();
        let counted = requests.clone();
        let is_dead = Arc::new(AtomicBool::new(false));
        let dies = is_dead.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if dies.load(Ordering::SeqCst) {
                    continue;
                }
                let server = TcpStream::connect(&broker);
                // The broker may be gone when the test ends.
                let Ok(server) = server else { continue };
                open.lock().push(client.try_clone().unwrap());
                let requests = OnTheWay::Requests(counted.clone());
                pass(client.try_clone().unwrap(), server.try_clone().unwrap(), requests);
                pass(server, client, OnTheWay::Answers(change.clone()));
            }
        });
        Proxy {
            address,
            connections,
            requests,
            is_dead,
        }
    }
}

/// Encodes host and port as the protocol does: text, then number.
fn spelt(address: &str) -> Vec<u8> {
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut out = host.as_bytes().to_vec();
    out.extend_from_slice(&port.parse::<u32>().unwrap().to_be_bytes());
    out
}

/// Forwards frames until either end closes.
fn pass(mut from: TcpStream, mut to: TcpStream, frames: OnTheWay) {
    std::thread::spawn(move || {
        let mut length = [0; 4];
        while from.read_exact(&mut length).is_ok() {
            let mut frame = vec![0; u32::from_be_bytes(length) as usize];
            if from.read_exact(&mut frame).is_err() {
                break;
            }
            match (&frames, frame.first_chunk()) {
                (OnTheWay::Answers(change), _) => change.apply(&mut frame),
                (OnTheWay::Requests(count), Some(kind)) => {
                    *count.lock().entry(i16::from_be_bytes(*kind)).or_default() += 1;
                }
                (OnTheWay::Requests(_), None) => {}
            }
            if to.write_all(&length).is_err() || to.write_all(&frame).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Change {
    fn apply(&self, frame: &mut [u8]) {
        for at in found(frame, &self.from) {
            frame[at..at + self.to.len()].copy_from_slice(&self.to);
        }
        for at in found(frame, &self.text) {
            let left = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if left.is_ok() {
                (self.damage)(frame, at);
            }
        }
    }
}

fn flip_bit(frame: &mut [u8], at: usize) {
    frame[at] ^= 1;
}

fn claim_unknown_compression(frame: &mut [u8], at: usize) {
    let checksum = |batch: &[u8], end: usize| crc32c::crc32c(&batch[BATCH_ATTRIBUTES..end]).to_be_bytes();
    // The record set before the text is the one whose checksum fits.
    for start in (0..=at.saturating_sub(BATCH_HEADER_BYTES)).rev() {
        let batch = &mut frame[start..];
        let length: [u8; 4] = batch[BATCH_LENGTH..BATCH_LENGTH + 4].try_into().unwrap();
        let end = BATCH_LENGTH + 4 + u32::from_be_bytes(length) as usize;
        if end < BATCH_HEADER_BYTES || end > batch.len() {
            continue;
        }
        let sum = BATCH_CHECKSUM..BATCH_ATTRIBUTES;
        if batch[sum.clone()] == checksum(batch, end) {
            batch[BATCH_ATTRIBUTES + 1] |= 7;
            let changed = checksum(batch, end);
            batch[sum].copy_from_slice(&changed);
            return;
        }
    }
    panic!("no record set before {at}");
}

fn found(frame: &[u8], what: &[u8]) -> Vec<usize> {
    // A window of zero width would panic.
    let windows = frame.windows(what.len().max(1)).enumerate();
    windows
        .filter(|(_, window)| *window == what)
        .map(|(at, _)| at)
        .collect()
}
