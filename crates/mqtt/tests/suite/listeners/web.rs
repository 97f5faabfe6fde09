//! A WebSocket client that says exactly what it is told.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::support::TestStream;

pub const CONTINUE: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;
/// The last frame of a message.
pub const FINAL: u8 = 0x80;

pub const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                           Sec-WebSocket-Protocol: mqtt\r\n\r\n";

/// A frame of a client.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x11, 0x22, 0x33, 0x44];
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..0x1_0000 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// Sends a request. Returns the head of the answer.
pub async fn request(stream: &mut impl TestStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    String::from_utf8(head).unwrap()
}

/// A WebSocket.
pub async fn open(stream: &mut impl TestStream) {
    let head = request(stream, REQUEST).await;
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    assert!(head.contains("sec-websocket-protocol: mqtt\r\n"), "{head}");
}

/// The first byte and the payload of the next frame of the broker.
pub async fn read_frame(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let first = stream.read_u8().await.ok()?;
    let len = match stream.read_u8().await.ok()? {
        126 => stream.read_u16().await.ok()?.into(),
        127 => stream.read_u64().await.ok()?,
        len @ 0..126 => u64::from(len),
        masked => panic!("a frame of the broker is masked: {masked}"),
    };
    let mut payload = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    Some((first, payload))
}

/// The bytes of MQTT within a WebSocket.
pub async fn bytes(mut stream: impl TestStream + 'static) -> DuplexStream {
    open(&mut stream).await;
    let (near, far) = tokio::io::duplex(1 << 20);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (mut from, mut to) = tokio::io::split(far);
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            if writer.write_all(&frame(FINAL | BINARY, &buffer[..len])).await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    });
    tokio::spawn(async move {
        while let Some((first, payload)) = read_frame(&mut reader).await {
            if first != FINAL | BINARY || to.write_all(&payload).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    });
    near
}
