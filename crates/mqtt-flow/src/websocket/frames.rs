//! Frames of a server as a stream of bytes, and frames of a client. A frame that comes is not collected: its payload goes on as it
//! comes, so its length costs nothing. Control frames have at most 125 bytes.

use std::io::Cursor;

use bytes::BytesMut;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Bytes of the longest header.
const HEADER_MAX: usize = 14;
const CONTROL_MAX: u64 = 125;

/// Reads the frames of a server.
#[derive(Debug, Default)]
pub struct ServerFrames {
    /// A header that is not complete.
    header: Vec<u8>,
    current: Option<CurrentFrame>,
    /// A message goes on in another frame.
    is_open: bool,
    /// The payload of a control frame.
    control: Vec<u8>,
    /// The last ping that was not answered.
    ping: Option<Vec<u8>>,
    is_closed: bool,
}

#[derive(Debug)]
struct CurrentFrame {
    kind: OpCode,
    /// Bytes of the payload that have not come.
    rest: u64,
}

impl ServerFrames {
    /// Reads what has come, and appends the payload of binary frames to `data`. What comes behind a close frame is ignored. The
    /// error says what breaks the protocol.
    pub fn decode(&mut self, mut input: &[u8], data: &mut BytesMut) -> Result<(), &'static str> {
        while !self.is_closed {
            let Some(frame) = &mut self.current else {
                if input.is_empty() {
                    return Ok(());
                }
                self.current = self.read_header(&mut input)?;
                self.end_frame();
                continue;
            };
            if input.is_empty() {
                return Ok(());
            }
            let len = input.len().min(usize::try_from(frame.rest).unwrap_or(usize::MAX));
            let (payload, rest) = input.split_at(len);
            input = rest;
            frame.rest -= len as u64;
            match frame.kind {
                OpCode::Data(_) => data.extend_from_slice(payload),
                OpCode::Control(_) => self.control.extend_from_slice(payload),
            }
            self.end_frame();
        }
        Ok(())
    }

    /// The payload of the last ping, once.
    pub fn ping(&mut self) -> Option<Vec<u8>> {
        self.ping.take()
    }

    /// The server has closed the WebSocket.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads a header. `None`: more bytes are needed.
    fn read_header(&mut self, input: &mut &[u8]) -> Result<Option<CurrentFrame>, &'static str> {
        let known = self.header.len();
        let more = input.len().min(HEADER_MAX - known);
        self.header.extend_from_slice(input.get(..more).unwrap_or_default());
        let mut cursor = Cursor::new(self.header.as_slice());
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| "a WebSocket frame has an unknown header")?;
        let Some((header, len)) = parsed else {
            *input = input.get(more..).unwrap_or_default();
            return Ok(None);
        };
        let used = usize::try_from(cursor.position()).unwrap_or(HEADER_MAX);
        *input = input.get(used - known..).unwrap_or_default();
        self.header = Vec::new();
        if header.mask.is_some() || header.rsv1 || header.rsv2 || header.rsv3 {
            return Err("a WebSocket frame of the server is masked, or has an extension");
        }
        match header.opcode {
            OpCode::Data(Data::Binary) if !self.is_open => self.is_open = !header.is_final,
            OpCode::Data(Data::Continue) if self.is_open => self.is_open = !header.is_final,
            OpCode::Data(Data::Text) => return Err("a WebSocket frame is text; MQTT has binary ones"),
            OpCode::Control(_) if header.is_final && len <= CONTROL_MAX => {}
            _ => return Err("a WebSocket frame comes out of order"),
        }
        Ok(Some(CurrentFrame {
            kind: header.opcode,
            rest: len,
        }))
    }

    /// Ends the current frame if its payload is complete.
    fn end_frame(&mut self) {
        let Some(frame) = self.current.take_if(|frame| frame.rest == 0) else {
            return;
        };
        if let OpCode::Control(kind) = frame.kind {
            let payload = std::mem::take(&mut self.control);
            match kind {
                Control::Ping => self.ping = Some(payload),
                Control::Close => self.is_closed = true,
                Control::Pong | Control::Reserved(_) => {}
            }
        }
    }
}

/// Appends a binary frame of the client.
pub fn data(payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    frame(OpCode::Data(Data::Binary), payload, mask, out);
}

/// Appends the answer to a ping.
pub fn pong(payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    frame(OpCode::Control(Control::Pong), payload, mask, out);
}

/// Appends a close frame that says that all is well.
pub fn close(mask: [u8; 4], out: &mut Vec<u8>) {
    frame(OpCode::Control(Control::Close), &1000_u16.to_be_bytes(), mask, out);
}

fn frame(opcode: OpCode, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    let header = FrameHeader {
        opcode,
        mask: Some(mask),
        ..FrameHeader::default()
    };
    out.reserve(HEADER_MAX + payload.len());
    header
        .format(payload.len() as u64, out)
        .expect("a vector takes all bytes");
    let start = out.len();
    out.extend_from_slice(payload);
    for (byte, mask) in out.iter_mut().skip(start).zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Reads bytes at once and in pieces of the size that the first byte says: both must come to the same.
pub fn fuzz(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else {
        return;
    };
    let read = |size: usize| {
        let (mut frames, mut data) = (ServerFrames::default(), BytesMut::new());
        let outcome = bytes
            .chunks(size.max(1))
            .try_for_each(|piece| frames.decode(piece, &mut data));
        assert!(frames.header.len() <= HEADER_MAX && frames.control.len() <= CONTROL_MAX as usize);
        assert!(data.len() <= bytes.len());
        (outcome, data, frames.ping(), frames.is_closed)
    };
    assert_eq!(read(usize::from(*size)), read(bytes.len()));
}
