//! A proxy between a collector and a plant without security that loses, rejects, delays and changes single messages
//! like real networks and servers. It corrects sequence numbers, so that neither end notices anything else. Of a
//! secured connection it can only forward and record the bytes.

use std::collections::HashMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use opcua::types::{
    BinaryDecodable, BinaryEncodable, ContextOwned, DecodingOptions, NamespaceMap, NodeId, RequestHeader,
    ResponseHeader, ServiceFault, StatusCode,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Type ids of requests, as in their encodings.
pub const GET_ENDPOINTS: u32 = 428;
pub const ACTIVATE_SESSION: u32 = 467;
pub const TRANSLATE: u32 = 554;
pub const READ: u32 = 631;
pub const BROWSE: u32 = 527;
pub const BROWSE_NEXT: u32 = 533;
pub const CALL: u32 = 712;
pub const CREATE_ITEMS: u32 = 751;
pub const DELETE_ITEMS: u32 = 781;
pub const CREATE_SUBSCRIPTION: u32 = 787;
pub const PUBLISH: u32 = 826;
pub const REPUBLISH: u32 = 832;

/// One request of a collector.
#[derive(Clone)]
pub struct Request {
    pub kind: u32,
    /// Number of requests before it, over all connections.
    pub number: usize,
    body: Vec<u8>,
}

impl Request {
    /// Returns whether a text, such as the name of a node, occurs in it.
    pub fn names(&self, text: &str) -> bool {
        self.body.windows(text.len()).any(|window| window == text.as_bytes())
    }

    pub fn decoded<T: BinaryDecodable>(&self) -> T {
        decode(&self.body)
    }

    /// Returns the header of a response to it.
    pub fn response_header(&self, status: StatusCode) -> ResponseHeader {
        ResponseHeader::new_service_result(&self.decoded::<RequestHeader>(), status)
    }
}

/// What happens to a request.
pub enum Verdict {
    Pass,
    /// The proxy responds with a fault; the server never receives it.
    Refuse(StatusCode),
    /// The proxy responds with this, made by [`answer`]; the server never receives it.
    Answer(Vec<u8>),
    /// The server never receives it, and nobody responds.
    Swallow,
    /// The connection ends before it.
    Cut,
}

/// What happens to a response.
pub enum Fate {
    Pass,
    /// Held until [`Proxy::release`]; later ones overtake it.
    Hold,
    /// Replaced by another body.
    Change(Vec<u8>),
}

type Judge = Box<dyn FnMut(&Request) -> Verdict + Send>;
type Teller = Box<dyn FnMut(&Request, &[u8]) -> Fate + Send>;

pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    plant: String,
    judge: Mutex<Judge>,
    teller: Mutex<Teller>,
    seen: Mutex<Vec<Request>>,
    secured: Mutex<Vec<u8>>,
    release: Notify,
    cut: Notify,
}

impl Proxy {
    /// Starts a proxy in front of the server with this endpoint.
    pub async fn start(endpoint: &str) -> Proxy {
        let plant = endpoint
            .trim_start_matches("opc.tcp://")
            .trim_end_matches('/')
            .to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            plant,
            judge: Mutex::new(Box::new(|_| Verdict::Pass)),
            teller: Mutex::new(Box::new(|_, _| Fate::Pass)),
            seen: Mutex::default(),
            secured: Mutex::default(),
            release: Notify::new(),
            cut: Notify::new(),
        });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(accepting.clone(), client));
            }
        });
        Proxy { shared, address }
    }

    pub fn endpoint(&self) -> String {
        format!("opc.tcp://{}/", self.address)
    }

    /// Sets the function that decides on every request from now on.
    pub fn judge(&self, judge: impl FnMut(&Request) -> Verdict + Send + 'static) {
        *self.shared.judge.lock() = Box::new(judge);
    }

    /// Sets the function that decides on every response from now on, by its request and its body.
    pub fn tell(&self, teller: impl FnMut(&Request, &[u8]) -> Fate + Send + 'static) {
        *self.shared.teller.lock() = Box::new(teller);
    }

    /// Returns the requests of a kind so far.
    pub fn seen(&self, kind: u32) -> Vec<Request> {
        let seen = self.shared.seen.lock();
        seen.iter().filter(|request| request.kind == kind).cloned().collect()
    }

    /// Returns whether a text was sent to the server in plain text although the connection is secured.
    pub fn overheard(&self, text: &str) -> bool {
        let secured = self.shared.secured.lock();
        secured.windows(text.len()).any(|window| window == text.as_bytes())
    }

    pub fn requests(&self) -> usize {
        self.shared.seen.lock().len()
    }

    /// Sends the held responses.
    pub fn release(&self) {
        self.shared.release.notify_waiters();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }
}

/// One chunk with its header.
struct Chunk(Vec<u8>);

/// Offsets of the sequence number, the request id and the body in a symmetric chunk.
const SEQUENCE: usize = 16;
const REQUEST_ID: usize = 20;
const BODY: usize = 24;

impl Chunk {
    async fn read(stream: &mut OwnedReadHalf) -> std::io::Result<Chunk> {
        let mut bytes = vec![0; 8];
        stream.read_exact(&mut bytes).await?;
        let size = number(&bytes, 4) as usize;
        bytes.resize(size.max(8), 0);
        stream.read_exact(&mut bytes[8..]).await?;
        Ok(Chunk(bytes))
    }

    fn is_message(&self) -> bool {
        self.0.starts_with(b"MSG") && self.0.len() > BODY + 4
    }

    /// Returns whether this chunk opens a secured connection.
    fn secures(&self) -> bool {
        let policy = || self.0.get(16..16 + number(&self.0, 12) as usize);
        self.0.starts_with(b"OPN") && policy().is_some_and(|uri| !uri.ends_with(b"#None"))
    }

    fn is_final(&self) -> bool {
        self.0[3] == b'F'
    }

    fn request_id(&self) -> u32 {
        number(&self.0, REQUEST_ID)
    }

    /// Returns the offset of the sequence number; in an opening chunk, texts of variable length precede it.
    fn sequence_at(&self) -> Option<usize> {
        match &self.0[..3] {
            b"MSG" | b"CLO" => Some(SEQUENCE),
            b"OPN" => {
                let mut at = 12;
                for _ in 0..3 {
                    at += 4 + usize::try_from(number(&self.0, at) as i32).unwrap_or(0);
                }
                Some(at)
            }
            _ => None,
        }
    }

    fn with_body(&self, body: &[u8]) -> Chunk {
        let mut bytes = self.0[..BODY].to_vec();
        bytes.extend(body);
        let size = u32::try_from(bytes.len()).unwrap();
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        Chunk(bytes)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Assigns sequence numbers to the chunks it sends.
struct Sender {
    stream: OwnedWriteHalf,
    sequence: Option<u32>,
    /// Chunks are forwarded unchanged, including the sequence number.
    secured: bool,
}

impl Sender {
    async fn send(&mut self, mut chunk: Chunk) -> std::io::Result<()> {
        self.secured |= chunk.secures();
        if !self.secured
            && let Some(at) = chunk.sequence_at()
        {
            let next = self.sequence.map_or(number(&chunk.0, at), |last| last + 1);
            self.sequence = Some(next);
            chunk.0[at..at + 4].copy_from_slice(&next.to_le_bytes());
        }
        self.stream.write_all(&chunk.0).await
    }
}

type Outstanding = Arc<Mutex<HashMap<u32, Request>>>;
type ToClient = Arc<tokio::sync::Mutex<Sender>>;

async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let Ok(server) = TcpStream::connect(&shared.plant).await else {
        return;
    };
    let _nodelay = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let sender = |stream| Sender {
        stream,
        sequence: None,
        secured: false,
    };
    let to_client: ToClient = Arc::new(tokio::sync::Mutex::new(sender(to_client)));
    let outstanding = Outstanding::default();
    tokio::select! {
        _ = requests(&shared, from_client, sender(to_server), &to_client, &outstanding) => {}
        _ = answers(&shared, from_server, &to_client, &outstanding) => {}
        () = shared.cut.notified() => {}
    }
    let _closed = to_client.lock().await.stream.shutdown().await;
}

async fn requests(
    shared: &Shared,
    mut from: OwnedReadHalf,
    mut to: Sender,
    to_client: &ToClient,
    outstanding: &Outstanding,
) -> std::io::Result<()> {
    let mut continued = false;
    loop {
        let chunk = Chunk::read(&mut from).await?;
        let begins = !std::mem::replace(&mut continued, !chunk.is_final());
        if to.secured {
            shared.secured.lock().extend(&chunk.0);
        }
        if !chunk.is_message() || !begins || to.secured {
            to.send(chunk).await?;
            continue;
        }
        let request = {
            let mut seen = shared.seen.lock();
            let request = Request {
                kind: kind_of(&chunk),
                number: seen.len(),
                body: chunk.0[BODY + 4..].to_vec(),
            };
            seen.push(request.clone());
            request
        };
        let verdict = (shared.judge.lock())(&request);
        match verdict {
            Verdict::Pass => {
                outstanding.lock().insert(chunk.request_id(), request);
                to.send(chunk).await?;
            }
            Verdict::Refuse(status) => {
                let fault = chunk.with_body(&fault(&request, status));
                to_client.lock().await.send(fault).await?;
            }
            Verdict::Answer(body) => to_client.lock().await.send(chunk.with_body(&body)).await?,
            Verdict::Swallow => {}
            Verdict::Cut => return Ok(()),
        }
    }
}

async fn answers(
    shared: &Arc<Shared>,
    mut from: OwnedReadHalf,
    to_client: &ToClient,
    outstanding: &Outstanding,
) -> std::io::Result<()> {
    let mut continued = false;
    loop {
        let chunk = Chunk::read(&mut from).await?;
        let begins = !std::mem::replace(&mut continued, !chunk.is_final());
        let request = if chunk.is_message() && begins && chunk.is_final() {
            outstanding.lock().remove(&chunk.request_id())
        } else {
            None
        };
        let Some(request) = request else {
            to_client.lock().await.send(chunk).await?;
            continue;
        };
        let fate = (shared.teller.lock())(&request, &chunk.0[BODY + 4..]);
        match fate {
            Fate::Pass => to_client.lock().await.send(chunk).await?,
            Fate::Change(body) => {
                let mut with_kind = chunk.0[BODY..BODY + 4].to_vec();
                with_kind.extend(body);
                to_client.lock().await.send(chunk.with_body(&with_kind)).await?;
            }
            Fate::Hold => {
                let (shared, to_client) = (shared.clone(), to_client.clone());
                let released = tokio::spawn(async move {
                    shared.release.notified().await;
                    to_client.lock().await.send(chunk).await
                });
                drop(released);
            }
        }
    }
}

/// Returns the type id of a message: all are four-byte NodeIds of namespace 0.
fn kind_of(chunk: &Chunk) -> u32 {
    u32::from(u16::from_le_bytes([chunk.0[BODY + 2], chunk.0[BODY + 3]]))
}

fn fault(request: &Request, status: StatusCode) -> Vec<u8> {
    const SERVICE_FAULT: u32 = 397;
    let fault = ServiceFault {
        response_header: request.response_header(status),
    };
    answer(SERVICE_FAULT, &fault)
}

/// Encodes a response with the number of its encoding.
pub fn answer<T: BinaryEncodable>(kind: u32, message: &T) -> Vec<u8> {
    let mut body = encode(&NodeId::new(0, kind));
    body.extend(encode(message));
    body
}

pub fn decode<T: BinaryDecodable>(bytes: &[u8]) -> T {
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    T::decode(&mut Cursor::new(bytes), &context.context()).unwrap()
}

pub fn encode<T: BinaryEncodable>(value: &T) -> Vec<u8> {
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    value.encode_to_vec(&context.context())
}
