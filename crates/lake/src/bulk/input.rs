//! The bytes of a file, decompressed by a read-ahead thread, together with the hash and length of the raw file.
//!
//! Only a few blocks are in memory, however large the file is or claims to become.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use thalweg_kit::threads;
use xxhash_rust::xxh3::Xxh3;

use super::error::BulkError;
use super::format::compression_of;
use crate::entry::InflateLimits;
use crate::entry::PayloadCompression;

const BLOCK_BYTES: usize = 256 << 10;
/// The most blocks that are read ahead.
const BLOCKS_AHEAD: usize = 4;
/// The length of a compression magic number.
const BEGINNING: usize = 4;

/// Identifies the content of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentId {
    pub hash: u128,
    pub bytes: u64,
}

/// Hashes a whole file.
pub(super) fn content_of(path: &Path) -> io::Result<ContentId> {
    let mut file = File::open(path)?;
    let mut hashed = HashingReader::new(&mut file, Arc::default());
    let mut block = vec![0; 4 * BLOCK_BYTES];
    while hashed.read(&mut block)? > 0 {}
    Ok(hashed.content())
}

/// Counts and hashes the bytes that are read.
struct HashingReader<R> {
    from: R,
    hash: Xxh3,
    bytes: u64,
    /// The same count, shared with other threads.
    read: Arc<AtomicU64>,
}

impl<R: Read> HashingReader<R> {
    fn new(from: R, read: Arc<AtomicU64>) -> HashingReader<R> {
        HashingReader {
            from,
            hash: Xxh3::new(),
            bytes: 0,
            read,
        }
    }

    fn content(&self) -> ContentId {
        ContentId {
            hash: self.hash.digest128(),
            bytes: self.bytes,
        }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            match self.from.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Decoders must not mistake it for corrupt input.
                Err(error) => return Err(io::Error::other(BulkError::Read(error))),
                Ok(count) => break count,
            }
        };
        self.hash.update(into.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

enum Block {
    Bytes(Vec<u8>),
    End(ContentId),
}

/// The decompressed bytes in order.
pub(super) struct DecompressingReader {
    blocks: Receiver<Result<Block, BulkError>>,
    block: Vec<u8>,
    at: usize,
    content: Option<ContentId>,
}

impl DecompressingReader {
    /// Starts the reading thread. `named` is the compression according to the file name; `read` counts the raw bytes.
    pub fn begin(
        from: Box<dyn Read + Send>,
        named: Option<PayloadCompression>,
        limits: InflateLimits,
        read: Arc<AtomicU64>,
    ) -> io::Result<DecompressingReader> {
        let (to, blocks) = sync_channel(BLOCKS_AHEAD);
        let run = move || {
            if let Err(error) = unpack(HashingReader::new(from, read), named, &limits, &to) {
                // The receiver may be gone.
                let _ = to.send(Err(error));
            }
        };
        threads::spawn("ingest-read", run)?;
        Ok(DecompressingReader {
            blocks,
            block: Vec::new(),
            at: 0,
            content: None,
        })
    }

    /// The hash and length of the whole file, once its end is reached.
    pub fn content(&self) -> Option<ContentId> {
        self.content
    }
}

impl BufRead for DecompressingReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at >= self.block.len() && self.content.is_none() {
            match self.blocks.recv() {
                Ok(Ok(Block::Bytes(block))) => (self.block, self.at) = (block, 0),
                Ok(Ok(Block::End(content))) => self.content = Some(content),
                Ok(Err(error)) => return Err(io::Error::other(error)),
                Err(_) => return Err(io::Error::other("the reader thread has ended")),
            }
        }
        Ok(self.block.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for DecompressingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut there = self.fill_buf()?;
        let count = there.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

/// Sends all blocks and then the end. The receiver may stop earlier.
fn unpack(
    mut raw: HashingReader<Box<dyn Read + Send>>,
    named: Option<PayloadCompression>,
    limits: &InflateLimits,
    to: &SyncSender<Result<Block, BulkError>>,
) -> Result<(), BulkError> {
    let mut beginning = Vec::with_capacity(BEGINNING);
    (&mut raw).take(BEGINNING as u64).read_to_end(&mut beginning)?;
    let compression = compression_of(&beginning);
    if let Some(named) = named
        && named != compression
        && !beginning.is_empty()
    {
        let what = "its first bytes do not match the compression in its name; rename it";
        return Err(BulkError::KindUnknown(what.to_owned()));
    }
    let read = raw.read.clone();
    let goes_on = {
        let whole = BufReader::with_capacity(BLOCK_BYTES, (&beginning[..]).chain(&mut raw));
        let unpacked: Box<dyn Read + '_> = match compression {
            PayloadCompression::None => Box::new(whole),
            PayloadCompression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
            PayloadCompression::Zstd => Box::new(zstd(whole, limits.zstd_window_log())?),
        };
        send(unpacked, compression, limits, &read, to)?
    };
    if goes_on {
        // Trailing bytes that the decoder does not read are part of the file.
        io::copy(&mut raw, &mut io::sink())?;
        let _ = to.send(Ok(Block::End(raw.content())));
    }
    Ok(())
}

/// A zstd decoder with a limited window.
fn zstd<'a>(from: impl BufRead + 'a, window_log: u32) -> Result<impl Read + 'a, BulkError> {
    let damaged = |error: io::Error| BulkError::Damaged(error.to_string());
    let mut decoder = zstd::stream::read::Decoder::with_buffer(from).map_err(damaged)?;
    decoder.window_log_max(window_log).map_err(damaged)?;
    Ok(decoder)
}

/// Returns false if the receiver is gone.
fn send(
    mut from: Box<dyn Read + '_>,
    compression: PayloadCompression,
    limits: &InflateLimits,
    read: &AtomicU64,
    to: &SyncSender<Result<Block, BulkError>>,
) -> Result<bool, BulkError> {
    let mut made = 0;
    loop {
        let mut block = vec![0; BLOCK_BYTES];
        let mut len = 0;
        // A pipe delivers little at a time. Uncompressed data is passed on at once.
        while len < BLOCK_BYTES / 2 {
            let count = match from.read(block.get_mut(len..).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(of_decoder(error, limits)),
                Ok(count) => count,
            };
            len += count;
            if count == 0 || compression == PayloadCompression::None {
                break;
            }
        }
        if len == 0 {
            return Ok(true);
        }
        made += len as u64;
        if compression != PayloadCompression::None && limits.exceeds_ratio(read.load(Ordering::Relaxed), made) {
            return Err(BulkError::Bomb(limits.ratio));
        }
        block.truncate(len);
        if to.send(Ok(Block::Bytes(block))).is_err() {
            return Ok(false);
        }
    }
}

fn of_decoder(error: io::Error, limits: &InflateLimits) -> BulkError {
    match error.downcast::<BulkError>() {
        Ok(error) => error,
        Err(error) => match error.to_string() {
            text if InflateLimits::is_zstd_window(&text) => BulkError::Window(limits.window),
            text => BulkError::Damaged(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use xxhash_rust::xxh3::xxh3_128;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(
        packed: &[u8],
        named: Option<PayloadCompression>,
        limits: InflateLimits,
    ) -> Result<(Vec<u8>, ContentId), BulkError> {
        let from = Box::new(io::Cursor::new(packed.to_vec()));
        let mut input = DecompressingReader::begin(from, named, limits, Arc::default())?;
        let mut out = Vec::new();
        input.read_to_end(&mut out)?;
        Ok((out, input.content().unwrap()))
    }

    #[test]
    fn what_is_read_is_whole_and_the_hash_is_of_the_file_as_it_lies_there() {
        let text: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let limits = InflateLimits::default();
        let (first, second) = text.split_at(333_333);
        let members = [gzip(first), gzip(second)].concat();
        let frames = [first, second]
            .map(|part| zstd::bulk::compress(part, 1).unwrap())
            .concat();
        for (packed, named) in [
            (text.clone(), None),
            (members.clone(), Some(PayloadCompression::Gzip)),
            (members, None),
            (frames, Some(PayloadCompression::Zstd)),
        ] {
            let (out, content) = read(&packed, named, limits).unwrap();
            assert!(out == text, "{named:?}");
            assert_eq!(content.hash, xxh3_128(&packed));
            assert_eq!(content.bytes, packed.len() as u64);
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("x"), &packed).unwrap();
            assert_eq!(content_of(&folder.path().join("x")).unwrap(), content);
        }
        assert_eq!(read(b"", Some(PayloadCompression::Gzip), limits).unwrap().0, b"");
    }

    #[test]
    fn bombs_cuts_and_wrong_names_are_told_apart() {
        let limits = InflateLimits::default();
        let error = |packed: &[u8], named| read(packed, named, limits).unwrap_err().to_string();
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(error(&bomb, None).starts_with("otlp.decoded_too_large: it becomes more than 1000 times"));
        let packed = gzip(&(0..9_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
        assert!(error(&packed[..packed.len() - 9], None).starts_with("otlp.malformed: it cannot be decompressed"));
        assert!(
            error(b"{}", Some(PayloadCompression::Gzip))
                .starts_with("ingest.kind_unknown: its first bytes do not match")
        );
        // The first bytes name the window, however much of it is used.
        let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        wide.window_log(25).unwrap();
        wide.write_all(&(0..90_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
            .unwrap();
        assert!(error(&wide.finish().unwrap(), None).starts_with("otlp.zstd_window: "));
    }
}
