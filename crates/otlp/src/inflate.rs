//! Decompresses requests. The limits apply to the actual output, whatever size the input declares.

use std::io::Read;

use thalweg_lake::entry::{InflateLimits, PayloadCompression};

/// The output buffer grows by at least this many bytes.
const STEP: usize = 64 << 10;

/// Why a request cannot be decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// With the offset in the compressed bytes.
    #[error("byte {0}: it cannot be decompressed: {1}")]
    Malformed(usize, String),
    #[error("it has more than {0} bytes after decompression")]
    TooLarge(usize),
    #[error("it becomes more than {0} times as large")]
    Ratio(usize),
    #[error("its zstd window is larger than {0} bytes")]
    Window(usize),
}

/// Decompresses a request, including all members of a multi-part stream.
pub fn inflate(compression: PayloadCompression, bytes: &[u8], limits: &InflateLimits) -> Result<Vec<u8>, InflateError> {
    match compression {
        PayloadCompression::None if bytes.len() > limits.bytes => Err(InflateError::TooLarge(limits.bytes)),
        PayloadCompression::None => Ok(bytes.to_vec()),
        PayloadCompression::Gzip => {
            let decoder = flate2::bufread::MultiGzDecoder::new(bytes);
            read(decoder, |decoder| decoder.get_ref().len(), bytes.len(), limits)
        }
        PayloadCompression::Zstd => {
            let malformed = |error: std::io::Error| InflateError::Malformed(0, error.to_string());
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(malformed)?;
            decoder.window_log_max(limits.zstd_window_log()).map_err(malformed)?;
            let read = read(decoder, |decoder| decoder.get_ref().len(), bytes.len(), limits);
            read.map_err(|error| match error {
                InflateError::Malformed(_, text) if InflateLimits::is_zstd_window(&text) => {
                    InflateError::Window(limits.window)
                }
                other => other,
            })
        }
    }
}

/// Reads to the end. `came` is the compressed size; `left` returns how many of these bytes are unread.
fn read<R: Read>(
    mut from: R,
    left: impl Fn(&R) -> usize,
    came: usize,
    limits: &InflateLimits,
) -> Result<Vec<u8>, InflateError> {
    let mut out = Vec::new();
    loop {
        let len = out.len();
        if out.capacity() - len < STEP {
            // The capacity at most doubles.
            out.reserve(STEP.max(len / 2));
        }
        out.resize(len + STEP, 0);
        let room = out.get_mut(len..).unwrap_or_default();
        let got = from.read(room);
        let got = got.map_err(|error| InflateError::Malformed(came.saturating_sub(left(&from)), error.to_string()))?;
        out.truncate(len + got);
        if out.len() > limits.bytes {
            return Err(InflateError::TooLarge(limits.bytes));
        }
        if limits.exceeds_ratio(came as u64, out.len() as u64) {
            return Err(InflateError::Ratio(limits.ratio));
        }
        if got == 0 {
            out.shrink_to_fit();
            return Ok(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn all_parts_of_a_request_are_there() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        let (first, second) = text.split_at(70_000);
        let limits = InflateLimits::default();
        let gzipped = [gzip(first), gzip(second)].concat();
        assert_eq!(inflate(PayloadCompression::Gzip, &gzipped, &limits).unwrap(), text);
        let zstd = |bytes| zstd::bulk::compress(bytes, 1).unwrap();
        let frames = [zstd(first), zstd(second)].concat();
        assert_eq!(inflate(PayloadCompression::Zstd, &frames, &limits).unwrap(), text);
        assert_eq!(inflate(PayloadCompression::None, &text, &limits).unwrap(), text);
        for (compression, bytes) in [(PayloadCompression::Gzip, gzipped), (PayloadCompression::Zstd, frames)] {
            for cut in [1, 20, bytes.len() / 2, bytes.len() - 1] {
                let cut_at = cut;
                let cut = inflate(compression, &bytes[..cut_at], &limits);
                assert!(
                    matches!(cut, Err(InflateError::Malformed(at, _)) if at <= cut_at),
                    "{compression:?}"
                );
            }
        }
    }

    #[test]
    fn without_a_limit_of_the_window_any_is_read() {
        let limits = InflateLimits {
            window: usize::MAX,
            ..InflateLimits::default()
        };
        let packed = zstd::bulk::compress(b"hello", 1).unwrap();
        assert_eq!(inflate(PayloadCompression::Zstd, &packed, &limits).unwrap(), b"hello");
    }

    #[test]
    fn what_becomes_too_much_is_stopped_on_the_way() {
        let limits = InflateLimits {
            bytes: 3 << 20,
            ratio: 100,
            window: 1 << 20,
        };
        let zeros = vec![0; 16 << 20];
        let bombs = [
            (PayloadCompression::Gzip, gzip(&zeros)),
            (PayloadCompression::Zstd, zstd::bulk::compress(&zeros, 1).unwrap()),
        ];
        for (compression, bomb) in bombs {
            let failed = inflate(compression, &bomb, &limits);
            assert_eq!(failed, Err(InflateError::Ratio(100)), "{compression:?}");
        }
        let noise: Vec<u8> = (0..2_u64 << 20)
            .map(|n| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()) as u8)
            .collect();
        let twice = gzip(&[&noise[..], &noise[..]].concat());
        assert_eq!(
            inflate(PayloadCompression::Gzip, &twice, &limits),
            Err(InflateError::TooLarge(3 << 20))
        );
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 19).unwrap();
        encoder.window_log(24).unwrap();
        encoder.write_all(&noise).unwrap();
        let wide = encoder.finish().unwrap();
        assert_eq!(
            inflate(PayloadCompression::Zstd, &wide, &limits),
            Err(InflateError::Window(1 << 20))
        );
    }
}
