//! Compresses responses while they are sent. What is sent as it comes, such as events, reaches the client piece by piece:
//! each piece leaves whole, in one chunk. Encoders need memory for as long as the client reads, so they have a budget; a
//! response that finds no room in it is sent plain.

use std::io;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use thalweg_kit::byte_budget::{ByteBudget, ByteReservation};

use super::ContentCoding;

/// A shorter response is one packet anyway.
const PAYS_FROM_BYTES: u64 = 1 << 10;
/// Compressed in about a millisecond.
const PIECE_BYTES: usize = 32 << 10;
/// 256 KiB, which bounds the memory of an encoder.
const ZSTD_WINDOW_LOG: u32 = 18;
/// The fastest: a server shares its cores with its writers.
const ZSTD_LEVEL: i32 = 1;

/// The memory of an encoder with its output.
fn encoder_bytes(coding: ContentCoding) -> usize {
    match coding {
        ContentCoding::Gzip => 512 << 10,
        ContentCoding::Zstd => 1536 << 10,
    }
}

/// Compresses the responses of a face.
pub struct AnswerEncoder {
    encoders: ByteBudget,
}

impl AnswerEncoder {
    /// An encoder whose responses together use this much memory for their compression.
    pub fn new(bytes: usize) -> AnswerEncoder {
        AnswerEncoder {
            encoders: ByteBudget::new(bytes),
        }
    }

    /// The response with the coding that the client accepts, or the response as it is: if the client accepts none, if it
    /// has a coding already, if it is short, or if there is no memory for one more encoder.
    pub fn encode(&self, accepted: Option<ContentCoding>, mut response: Response<Body>) -> Response<Body> {
        let len = response.body().size_hint().exact();
        let is_short = len.is_some_and(|len| len < PAYS_FROM_BYTES);
        if is_short || response.headers().contains_key(CONTENT_ENCODING) {
            return response;
        }
        // A cache must not give this response to a client that accepts something else.
        response.headers_mut().append(VARY, HeaderValue::from(ACCEPT_ENCODING));
        let Some(coding) = accepted else {
            return response;
        };
        let mut room = self.encoders.reservation();
        if !room.try_grow(encoder_bytes(coding)) {
            return response;
        }
        let Ok(encoder) = PieceEncoder::new(coding) else {
            return response;
        };
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        response.map(|body| {
            let pieces = EncodedPieces {
                body: body.into_data_stream(),
                encoder: Some(encoder),
                rest: Bytes::new(),
                sends_each: len.is_none(),
                has_given: false,
                _room: room,
            };
            let pieces = stream::unfold(pieces, |mut pieces| async move {
                let piece = pieces.next().await?;
                Some((piece, pieces))
            });
            // A body may be asked again after its end.
            Body::from_stream(pieces.fuse())
        })
    }
}

enum PieceEncoder {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl PieceEncoder {
    fn new(coding: ContentCoding) -> io::Result<PieceEncoder> {
        Ok(match coding {
            ContentCoding::Gzip => {
                let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                PieceEncoder::Gzip(encoder)
            }
            ContentCoding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                PieceEncoder::Zstd(encoder)
            }
        })
    }

    /// The compressed bytes that are there after this piece; with `sends_it` all of them.
    fn add(&mut self, piece: &[u8], sends_it: bool) -> io::Result<Vec<u8>> {
        fn add(mut to: impl io::Write, piece: &[u8], sends_it: bool) -> io::Result<()> {
            to.write_all(piece)?;
            if sends_it { to.flush() } else { Ok(()) }
        }
        match self {
            PieceEncoder::Gzip(encoder) => {
                add(&mut *encoder, piece, sends_it)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            PieceEncoder::Zstd(encoder) => {
                add(&mut *encoder, piece, sends_it)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            PieceEncoder::Gzip(encoder) => encoder.finish(),
            PieceEncoder::Zstd(encoder) => encoder.finish(),
        }
    }
}

/// A body that is compressed while it is sent. An error of the body cuts it off.
struct EncodedPieces {
    body: BodyDataStream,
    /// `None` after the end.
    encoder: Option<PieceEncoder>,
    /// Of the body's last piece: what is not compressed yet.
    rest: Bytes,
    /// Whether each piece of the body is sent at once, rather than when there is much.
    sends_each: bool,
    /// Whether a piece was made since other tasks had their turn.
    has_given: bool,
    _room: ByteReservation,
}

impl EncodedPieces {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            // The body has ended, and may not be asked again.
            self.encoder.as_ref()?;
            if std::mem::take(&mut self.has_given) {
                tokio::task::yield_now().await;
            }
            if self.rest.is_empty() {
                match self.body.next().await {
                    Some(Ok(piece)) => self.rest = piece,
                    Some(Err(error)) => {
                        self.encoder = None;
                        return Some(Err(error));
                    }
                    None => {
                        let end = self.encoder.take()?.finish();
                        return Some(end.map(Bytes::from).map_err(axum::Error::new));
                    }
                }
            }
            let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
            let sends_it = self.sends_each && self.rest.is_empty();
            let made = self.encoder.as_mut()?.add(&piece, sends_it);
            self.has_given = true;
            match made {
                Ok(made) if made.is_empty() => {}
                Ok(made) => return Some(Ok(made.into())),
                Err(error) => {
                    self.encoder = None;
                    return Some(Err(axum::Error::new(error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
