//! Decompresses request bodies. Whatever a body declares, its limits apply to what comes out: at most so many bytes, at
//! most [`RATIO_MAX`] times as many as went in, and a zstd window of at most [`WINDOW_BYTES_MAX`]. Several gzip members
//! or zstd frames behind each other are one body.

use std::error::Error;
use std::io::{self, BufRead, ErrorKind, Read};

use axum::body::{Body, BodyDataStream};
use bytes::{Buf as _, Bytes, BytesMut};
use flate2::bufread::MultiGzDecoder;
use futures::{StreamExt as _, stream};

use super::ContentCoding;

/// Decompressed bytes per compressed byte, once there are more than [`RATIO_FREE`]. JSON reaches 50.
const RATIO_MAX: u64 = 1000;
const RATIO_FREE: u64 = 1 << 20;
/// What RFC 9659 allows for this coding of HTTP.
const WINDOW_BYTES_MAX: usize = 8 << 20;
/// Made at a time: a fraction of a millisecond.
const PIECE_BYTES: usize = 32 << 10;

/// Why a body cannot be decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the body is no {} after {at} bytes: {reason}", .coding.name())]
    Malformed {
        coding: ContentCoding,
        /// Offset in the compressed body.
        at: u64,
        reason: String,
    },
    #[error("the body has more than {limit} bytes after decompression; send it in parts")]
    TooLarge { limit: usize },
    #[error(
        "the body becomes more than {} times as large by decompression; send it uncompressed",
        RATIO_MAX
    )]
    Ratio,
    #[error(
        "the zstd window of the body is larger than {} bytes; compress it with a smaller one",
        WINDOW_BYTES_MAX
    )]
    Window,
}

impl DecodeError {
    /// Why a body of [`decoded_pieces`] has failed, if its compression is the reason.
    pub fn of(error: &axum::Error) -> Option<&DecodeError> {
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// The bytes that have arrived. Reading beyond them is [`ErrorKind::WouldBlock`] until the body is whole.
#[derive(Default)]
struct ArrivedBytes {
    piece: Bytes,
    /// Bytes that were read.
    read: u64,
    is_whole: bool,
}

impl BufRead for ArrivedBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.piece.is_empty() && !self.is_whole {
            true => Err(ErrorKind::WouldBlock.into()),
            false => Ok(&self.piece),
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.advance(bytes);
        self.read += bytes as u64;
    }
}

impl Read for ArrivedBytes {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(room)?;
        self.consume(read);
        Ok(read)
    }
}

enum PieceDecoder {
    Gzip(Box<MultiGzDecoder<ArrivedBytes>>),
    Zstd(zstd::stream::read::Decoder<'static, ArrivedBytes>),
}

/// Decompresses a body that arrives in pieces.
struct BodyDecoder {
    coding: ContentCoding,
    decoder: PieceDecoder,
    /// The most bytes that may come out.
    limit: usize,
    /// The bytes that have come out.
    made: u64,
}

impl BodyDecoder {
    fn new(coding: ContentCoding, arrived: ArrivedBytes, limit: usize) -> Result<BodyDecoder, DecodeError> {
        let decoder = match coding {
            ContentCoding::Gzip => PieceDecoder::Gzip(Box::new(MultiGzDecoder::new(arrived))),
            ContentCoding::Zstd => {
                let no_decoder = |error: io::Error| DecodeError::Malformed {
                    coding,
                    at: 0,
                    reason: error.to_string(),
                };
                let mut decoder = zstd::stream::read::Decoder::with_buffer(arrived).map_err(no_decoder)?;
                decoder.window_log_max(WINDOW_BYTES_MAX.ilog2()).map_err(no_decoder)?;
                PieceDecoder::Zstd(decoder)
            }
        };
        Ok(BodyDecoder {
            coding,
            decoder,
            limit,
            made: 0,
        })
    }

    fn arrived(&mut self) -> &mut ArrivedBytes {
        match &mut self.decoder {
            PieceDecoder::Gzip(decoder) => decoder.get_mut(),
            PieceDecoder::Zstd(decoder) => decoder.get_mut(),
        }
    }

    /// The next piece, or the end of the body: `None`.
    fn push(&mut self, piece: Option<Bytes>) {
        let arrived = self.arrived();
        match piece {
            Some(piece) => arrived.piece = piece,
            None => arrived.is_whole = true,
        }
    }

    /// Decompresses into `room`, which is not empty. 0 is the end of the body; `None`: the next piece is needed.
    fn read(&mut self, room: &mut [u8]) -> Result<Option<usize>, DecodeError> {
        let arrived = self.arrived();
        if arrived.is_whole && arrived.read == 0 && arrived.piece.is_empty() {
            // A body without a byte has nothing that could be damaged.
            return Ok(Some(0));
        }
        let read = match &mut self.decoder {
            PieceDecoder::Gzip(decoder) => decoder.read(room),
            PieceDecoder::Zstd(decoder) => decoder.read(room),
        };
        let made = match read {
            Ok(made) => made,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(self.failure(&error)),
        };
        self.made += made as u64;
        if self.made > self.limit as u64 {
            return Err(DecodeError::TooLarge { limit: self.limit });
        }
        if self.made > self.arrived().read.saturating_mul(RATIO_MAX).max(RATIO_FREE) {
            return Err(DecodeError::Ratio);
        }
        Ok(Some(made))
    }

    fn failure(&mut self, error: &io::Error) -> DecodeError {
        let reason = error.to_string();
        // The library reports a window that is too large only in words.
        if self.coding == ContentCoding::Zstd && reason.contains("requires too much memory") {
            return DecodeError::Window;
        }
        DecodeError::Malformed {
            coding: self.coding,
            at: self.arrived().read,
            reason,
        }
    }
}

fn whole(coding: ContentCoding, body: &Bytes, limit: usize) -> Result<BodyDecoder, DecodeError> {
    let arrived = ArrivedBytes {
        piece: body.clone(),
        read: 0,
        is_whole: true,
    };
    BodyDecoder::new(coding, arrived, limit)
}

/// The length of a whole body after decompression, at most `limit`. It is decompressed for that and not kept, so that a
/// caller can get memory for it first.
pub fn decoded_len(coding: ContentCoding, body: &Bytes, limit: usize) -> Result<usize, DecodeError> {
    let mut decoder = whole(coding, body, limit)?;
    let mut room = vec![0; PIECE_BYTES];
    let mut len = 0;
    while let Some(made @ 1..) = decoder.read(&mut room)? {
        len += made;
    }
    Ok(len)
}

/// Decompresses a whole body of which [`decoded_len`] is known.
pub fn decode(coding: ContentCoding, body: &Bytes, len: usize) -> Result<Bytes, DecodeError> {
    let mut decoder = whole(coding, body, len)?;
    let mut out = BytesMut::zeroed(len);
    let mut made = 0;
    while let Some(room) = out.get_mut(made..).filter(|room| !room.is_empty()) {
        match decoder.read(room)? {
            Some(more @ 1..) => made += more,
            _ => break,
        }
    }
    out.truncate(made);
    Ok(out.freeze())
}

/// A body that is decompressed while it arrives, in pieces of at most 32 KiB, without a limit on all of them together.
/// [`DecodeError::of`] tells a mistake in its compression; who reads on after that reads nothing more, to the end of the
/// compressed body.
pub fn decoded_pieces(coding: ContentCoding, body: Body) -> Body {
    let pieces = match BodyDecoder::new(coding, ArrivedBytes::default(), usize::MAX) {
        Ok(decoder) => DecodedPieces {
            body: body.into_data_stream(),
            decoder: Some(decoder),
            has_given: false,
        },
        Err(error) => return Body::from_stream(stream::iter([Err::<Bytes, _>(error)])),
    };
    let pieces = stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().await?;
        Some((piece, pieces))
    });
    // A body may be asked again after its end.
    Body::from_stream(pieces.fuse())
}

struct DecodedPieces {
    body: BodyDataStream,
    /// `None` after an error.
    decoder: Option<BodyDecoder>,
    /// Whether a piece was made since other tasks had their turn.
    has_given: bool,
}

impl DecodedPieces {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        if std::mem::take(&mut self.has_given) {
            tokio::task::yield_now().await;
        }
        while let Some(decoder) = &mut self.decoder {
            let mut room = BytesMut::zeroed(PIECE_BYTES);
            match decoder.read(&mut room) {
                Ok(Some(0)) => return None,
                Ok(Some(made)) => {
                    self.has_given = true;
                    room.truncate(made);
                    return Some(Ok(room.freeze()));
                }
                Ok(None) => {}
                Err(error) => {
                    self.decoder = None;
                    return Some(Err(axum::Error::new(error)));
                }
            }
            match self.body.next().await.transpose() {
                Ok(piece) => decoder.push(piece),
                Err(error) => return Some(Err(error)),
            }
        }
        while self.body.next().await?.is_ok() {}
        None
    }
}

#[cfg(test)]
mod tests;
