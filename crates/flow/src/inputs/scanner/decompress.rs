//! Decompresses a stream, in pieces of bounded size however much the compressed bytes expand to.

use std::io::{self, Write as _};

use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{Decoder as ZstdDecoder, Operation as _};

use super::invalid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zlib,
    Flate,
    Zstd,
}

impl Compression {
    /// `pgzip` is gzip that another program would read in parallel.
    pub const NAMES: [(&'static str, Compression); 5] = [
        ("gzip", Compression::Gzip),
        ("pgzip", Compression::Gzip),
        ("zlib", Compression::Zlib),
        ("flate", Compression::Flate),
        ("zstd", Compression::Zstd),
    ];

    pub fn of(name: &str) -> Option<Compression> {
        let found = Compression::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, compression)| *compression)
    }
}

/// A step ends with about this number of decompressed bytes.
const STEP_BYTES: usize = 64 << 10;
/// Compressed bytes that the decoder of gzip gets at once: it returns everything that they expand to, which is at most
/// 1032 times as much.
const GZIP_BYTES: usize = 64;

pub(super) struct Decompressor {
    decoder: Decoder,
    /// Whether the stream may end here.
    is_complete: bool,
}

enum Decoder {
    /// Several in one stream follow each other.
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// With or without the header of zlib.
    Inflate(Decompress),
    Zstd(ZstdDecoder<'static>),
}

impl Decompressor {
    pub fn new(compression: Compression) -> io::Result<Decompressor> {
        let decoder = match compression {
            Compression::Gzip => Decoder::Gzip(MultiGzDecoder::new(Vec::new())),
            Compression::Zlib => Decoder::Inflate(Decompress::new(true)),
            Compression::Flate => Decoder::Inflate(Decompress::new(false)),
            Compression::Zstd => Decoder::Zstd(ZstdDecoder::new()?),
        };
        Ok(Decompressor {
            decoder,
            is_complete: true,
        })
    }

    /// Takes some bytes off the front of `input` and returns what they expand to; with an empty `input`, what earlier
    /// ones still expand to.
    pub fn step(&mut self, input: &mut &[u8]) -> io::Result<Vec<u8>> {
        let all = *input;
        let (plain, read) = match &mut self.decoder {
            Decoder::Gzip(decoder) => {
                let (mut plain, mut read) = (Vec::new(), 0);
                while read < all.len() && plain.len() < STEP_BYTES {
                    let end = all.len().min(read + GZIP_BYTES);
                    decoder
                        .write_all(all.get(read..end).unwrap_or_default())
                        .map_err(damaged)?;
                    plain.append(decoder.get_mut());
                    read = end;
                }
                // Its end is known only at the end of the stream.
                self.is_complete &= read == 0;
                (plain, read)
            }
            Decoder::Inflate(decoder) => {
                let has_ended = self.is_complete && decoder.total_in() > 0;
                if has_ended {
                    return match all.is_empty() {
                        true => Ok(Vec::new()),
                        false => Err(invalid(
                            "there are bytes behind the end of the compressed data".to_owned(),
                        )),
                    };
                }
                let mut plain = Vec::with_capacity(STEP_BYTES);
                let before = decoder.total_in();
                let status = decoder.decompress_vec(all, &mut plain, FlushDecompress::None);
                let status = status.map_err(|error| damaged(error.into()))?;
                let read = usize::try_from(decoder.total_in() - before).unwrap_or(usize::MAX);
                self.is_complete = status == Status::StreamEnd || decoder.total_in() == 0;
                (plain, read)
            }
            Decoder::Zstd(decoder) => {
                let mut plain = vec![0; STEP_BYTES];
                let status = decoder.run_on_buffers(all, &mut plain).map_err(damaged)?;
                plain.truncate(status.bytes_written);
                // Without progress, the hint is about a frame that has not begun.
                if status.bytes_read > 0 || status.bytes_written > 0 {
                    self.is_complete = status.remaining == 0;
                }
                (plain, status.bytes_read)
            }
        };
        if read == 0 && plain.is_empty() && !all.is_empty() {
            return Err(invalid("the compressed data cannot be read on".to_owned()));
        }
        *input = all.get(read..).unwrap_or_default();
        Ok(plain)
    }

    /// Ends the stream and returns the rest; an error if it is not complete.
    pub fn finish(&mut self) -> io::Result<Vec<u8>> {
        match &mut self.decoder {
            _ if self.is_complete => Ok(Vec::new()),
            Decoder::Gzip(decoder) => {
                decoder.try_finish().map_err(|_| incomplete())?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Decoder::Inflate(_) | Decoder::Zstd(_) => Err(incomplete()),
        }
    }
}

fn incomplete() -> io::Error {
    invalid("the compressed data ends in the middle, or is damaged".to_owned())
}

fn damaged(error: io::Error) -> io::Error {
    invalid(format!("the data is damaged, or compressed in another way: {error}"))
}
