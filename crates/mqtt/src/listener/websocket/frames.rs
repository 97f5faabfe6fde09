//! Frames of a client as a stream of bytes. A frame is not collected: its payload goes on as it comes, so its length costs
//! nothing. Control frames have at most 125 bytes.
//!
//! Source: RFC 6455, section 5; [MQTT-6.0.0-1], [MQTT-6.0.0-2].

use std::io::Cursor;

use bytes::BytesMut;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame, FrameHeader};

/// Bytes of the longest header.
const HEADER_MAX: usize = 14;
const CONTROL_MAX: u64 = 125;

/// Reads the frames of a client.
#[derive(Debug, Default)]
pub(in crate::listener) struct FrameDecoder {
    /// A header that is not complete.
    header: Vec<u8>,
    current: Option<CurrentFrame>,
    /// A message goes on in another frame.
    is_open: bool,
    /// The payload of a control frame.
    control: Vec<u8>,
    /// What the last ping is answered with.
    pong: Option<Vec<u8>>,
}

#[derive(Debug)]
struct CurrentFrame {
    kind: OpCode,
    /// Bytes of the payload that have not come.
    rest: u64,
    mask: [u8; 4],
}

/// Why a connection ends: the code of the close frame that it ends with.
pub(in crate::listener) type FrameResult<T> = Result<T, CloseCode>;

impl FrameDecoder {
    /// Reads what has come, and appends the payload of binary frames to `data`.
    pub fn decode(&mut self, mut input: &[u8], data: &mut BytesMut) -> FrameResult<()> {
        loop {
            let Some(mut frame) = self.current.take() else {
                if input.is_empty() {
                    return Ok(());
                }
                self.current = self.header(&mut input)?;
                if self.current.as_ref().is_some_and(|frame| frame.rest == 0) {
                    self.end_frame()?;
                }
                continue;
            };
            if input.is_empty() {
                self.current = Some(frame);
                return Ok(());
            }
            let len = input.len().min(usize::try_from(frame.rest).unwrap_or(usize::MAX));
            let (payload, rest) = input.split_at(len);
            input = rest;
            match frame.kind {
                OpCode::Data(_) => {
                    let start = data.len();
                    data.extend_from_slice(payload);
                    unmask(data.get_mut(start..).unwrap_or_default(), frame.mask);
                }
                OpCode::Control(_) => {
                    let start = self.control.len();
                    self.control.extend_from_slice(payload);
                    unmask(self.control.get_mut(start..).unwrap_or_default(), frame.mask);
                }
            }
            frame.rest -= len as u64;
            frame.mask.rotate_left(len % 4);
            let is_complete = frame.rest == 0;
            self.current = Some(frame);
            if is_complete {
                self.end_frame()?;
            }
        }
    }

    /// The pong that answers the last ping, once.
    pub fn pong(&mut self) -> Option<Vec<u8>> {
        let payload = self.pong.take()?;
        Some(written(Frame::pong(payload)))
    }

    /// Reads a header. `None`: more bytes are needed.
    fn header(&mut self, input: &mut &[u8]) -> FrameResult<Option<CurrentFrame>> {
        let known = self.header.len();
        let more = input.len().min(HEADER_MAX - known);
        self.header.extend_from_slice(input.get(..more).unwrap_or_default());
        let mut cursor = Cursor::new(self.header.as_slice());
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| CloseCode::Protocol)?;
        let Some((header, len)) = parsed else {
            *input = input.get(more..).unwrap_or_default();
            return Ok(None);
        };
        let used = usize::try_from(cursor.position()).unwrap_or(HEADER_MAX);
        *input = input.get(used - known..).unwrap_or_default();
        self.header = Vec::new();
        self.begin_frame(&header, len).map(Some)
    }

    fn begin_frame(&mut self, header: &FrameHeader, len: u64) -> FrameResult<CurrentFrame> {
        let has_extension = header.rsv1 || header.rsv2 || header.rsv3;
        let Some(mask) = header.mask.filter(|_| !has_extension) else {
            return Err(CloseCode::Protocol);
        };
        match header.opcode {
            OpCode::Data(Data::Text) => return Err(CloseCode::Unsupported),
            OpCode::Data(Data::Binary) if !self.is_open => self.is_open = !header.is_final,
            OpCode::Data(Data::Continue) if self.is_open => self.is_open = !header.is_final,
            OpCode::Control(_) if header.is_final && len <= CONTROL_MAX => {}
            _ => return Err(CloseCode::Protocol),
        }
        Ok(CurrentFrame {
            kind: header.opcode,
            rest: len,
            mask,
        })
    }

    /// The payload of the current frame is complete.
    fn end_frame(&mut self) -> FrameResult<()> {
        let kind = self.current.take().map(|frame| frame.kind);
        let Some(OpCode::Control(kind)) = kind else {
            return Ok(());
        };
        let payload = std::mem::take(&mut self.control);
        match kind {
            Control::Ping => self.pong = Some(payload),
            Control::Close => return Err(close_code(&payload)),
            Control::Pong | Control::Reserved(_) => {}
        }
        Ok(())
    }
}

/// The code that answers a close frame: its own, if there is one that may be sent.
fn close_code(payload: &[u8]) -> CloseCode {
    let [high, low, reason @ ..] = payload else {
        return match payload.is_empty() {
            true => CloseCode::Normal,
            false => CloseCode::Protocol,
        };
    };
    let code = CloseCode::from(u16::from_be_bytes([*high, *low]));
    match code.is_allowed() && std::str::from_utf8(reason).is_ok() {
        true => code,
        false => CloseCode::Protocol,
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let (words, rest) = bytes.as_chunks_mut::<4>();
    let whole = u32::from_ne_bytes(mask);
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ whole).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

/// The header of a binary frame of the server.
pub(in crate::listener) fn data_head(len: usize) -> Vec<u8> {
    let header = FrameHeader {
        opcode: OpCode::Data(Data::Binary),
        ..FrameHeader::default()
    };
    let mut bytes = Vec::with_capacity(HEADER_MAX);
    header.format(len as u64, &mut bytes).expect("a vector takes all bytes");
    bytes
}

/// A close frame of the server.
pub(in crate::listener) fn close_frame(code: CloseCode) -> Vec<u8> {
    written(Frame::close(Some(CloseFrame {
        code,
        reason: Default::default(),
    })))
}

fn written(frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len());
    frame.format(&mut bytes).expect("a vector takes all bytes");
    bytes
}

/// Reads bytes at once and in pieces of the size that the first byte says: both must come to the same.
pub(in crate::listener) fn fuzz(data: &[u8]) {
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let read = |size: usize| {
        let (mut decoder, mut payload) = (FrameDecoder::default(), BytesMut::new());
        let pieces = &mut data.chunks(size.max(1));
        let outcome = pieces.try_for_each(|piece| decoder.decode(piece, &mut payload));
        assert!(decoder.header.len() <= HEADER_MAX && decoder.control.len() <= CONTROL_MAX as usize);
        assert!(payload.len() <= data.len());
        (outcome, payload, decoder.pong())
    };
    assert_eq!(read(usize::from(*size)), read(data.len()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame of a client.
    fn frame(opcode: OpCode, is_final: bool, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
        let header = FrameHeader {
            opcode,
            is_final,
            mask: Some(mask),
            ..FrameHeader::default()
        };
        let mut bytes = Vec::new();
        header.format(payload.len() as u64, &mut bytes).unwrap();
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    const MASK: [u8; 4] = [1, 2, 3, 4];
    const BINARY: OpCode = OpCode::Data(Data::Binary);
    const CONTINUE: OpCode = OpCode::Data(Data::Continue);
    const PING: OpCode = OpCode::Control(Control::Ping);
    const PONG: OpCode = OpCode::Control(Control::Pong);
    const CLOSE: OpCode = OpCode::Control(Control::Close);

    fn decoded(frames: &[Vec<u8>]) -> FrameResult<(Vec<u8>, Option<Vec<u8>>)> {
        let (mut decoder, mut data) = (FrameDecoder::default(), BytesMut::new());
        decoder.decode(&frames.concat(), &mut data)?;
        Ok((data.to_vec(), decoder.pong()))
    }

    #[test]
    fn frames_join_and_pings_between_them_are_answered_once() {
        let frames = [
            frame(BINARY, false, b"ab", MASK),
            frame(PING, true, b"first", MASK),
            frame(CONTINUE, false, b"", MASK),
            frame(PING, true, b"last", MASK),
            frame(PONG, true, b"unasked", MASK),
            frame(CONTINUE, true, b"c", MASK),
            frame(BINARY, true, b"de", MASK),
        ];
        let pong = [&[0x8a, 4][..], b"last"].concat();
        assert_eq!(decoded(&frames), Ok((b"abcde".to_vec(), Some(pong))));
    }

    #[test]
    fn what_is_not_allowed_ends_with_its_code() {
        let text = OpCode::Data(Data::Text);
        let mut unmasked = data_head(1);
        unmasked.push(0);
        let mut extended = frame(BINARY, true, b"x", MASK);
        extended[0] |= 0x40;
        let mut reserved = frame(BINARY, true, b"x", MASK);
        reserved[0] = 0x83;
        for (frames, code) in [
            (vec![frame(text, true, b"x", MASK)], CloseCode::Unsupported),
            (vec![frame(text, true, b"", MASK)], CloseCode::Unsupported),
            (vec![unmasked], CloseCode::Protocol),
            (vec![extended], CloseCode::Protocol),
            (vec![reserved], CloseCode::Protocol),
            (vec![frame(CONTINUE, true, b"x", MASK)], CloseCode::Protocol),
            (
                vec![frame(BINARY, false, b"x", MASK), frame(BINARY, true, b"x", MASK)],
                CloseCode::Protocol,
            ),
            (vec![frame(PING, false, b"x", MASK)], CloseCode::Protocol),
            (vec![frame(PING, true, &[0; 126], MASK)], CloseCode::Protocol),
            (vec![frame(CLOSE, true, b"", MASK)], CloseCode::Normal),
            (vec![frame(CLOSE, true, b"x", MASK)], CloseCode::Protocol),
            (vec![frame(CLOSE, true, &1001_u16.to_be_bytes(), MASK)], CloseCode::Away),
            (
                vec![frame(CLOSE, true, &1005_u16.to_be_bytes(), MASK)],
                CloseCode::Protocol,
            ),
            (vec![frame(CLOSE, true, b"\x03\xe8\xff", MASK)], CloseCode::Protocol),
        ] {
            assert_eq!(decoded(&frames), Err(code), "{frames:?}");
        }
    }

    #[test]
    fn a_long_frame_takes_only_what_has_come() {
        let header = FrameHeader {
            opcode: BINARY,
            mask: Some([0; 4]),
            ..FrameHeader::default()
        };
        let mut bytes = Vec::new();
        header.format(u64::MAX >> 1, &mut bytes).unwrap();
        bytes.extend([7; 100]);
        let (mut decoder, mut data) = (FrameDecoder::default(), BytesMut::new());
        decoder.decode(&bytes, &mut data).unwrap();
        assert_eq!(data.len(), 100);
        assert!(data.capacity() < 1000);
    }

    proptest! {
        #[test]
        fn frames_in_pieces_are_the_same_frames(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<[u8; 4]>()), 1..6),
            size in 1..40_u8,
        ) {
            let last = parts.len() - 1;
            let mut bytes = vec![size];
            for (at, (payload, mask)) in parts.iter().enumerate() {
                let opcode = if at == 0 { BINARY } else { CONTINUE };
                bytes.extend(frame(opcode, at == last, payload, *mask));
            }
            fuzz(&bytes);
            let whole: Vec<u8> = parts.into_iter().flat_map(|(payload, _)| payload).collect();
            prop_assert_eq!(decoded(&[bytes[1..].to_vec()]), Ok((whole, None)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..100)) {
            fuzz(&data);
        }
    }
}
