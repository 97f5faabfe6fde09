//! Decodes log entries to rows.

use std::sync::Arc;

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::TableSpec;

use super::handoff::Handoff;
use crate::metrics::LakeMetrics;

/// The limits of decoded entries.
#[derive(Clone, Copy, Debug)]
pub struct EntryLimits {
    pub window: ArrivalWindow,
    /// The cache for tag metadata of each partition of messages. A partition gets more if others do not use theirs.
    pub remembered_bytes: usize,
}

impl Default for EntryLimits {
    fn default() -> EntryLimits {
        EntryLimits {
            window: ArrivalWindow::default(),
            remembered_bytes: 160 << 20,
        }
    }
}

/// An entry whose rows were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedEntry {
    /// When it arrived, in nanoseconds since 1970.
    pub arrival: i64,
    pub changed: RowChangeCounts,
}

/// Makes rows of the entries of one queue. Each kind of entry has its own decoder, because the lake does not know what
/// the requests of a protocol say.
///
/// The rows depend on the entry alone, so that a replay makes the same rows. After an error some of its rows may be in
/// the chunk, which the caller must discard.
pub trait DecodeEntry: Send {
    /// Adds the rows of an entry as stored in the log.
    fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<DecodedEntry, String>;

    /// Adds the rows of an entry that is still in memory.
    fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<DecodedEntry, String>;

    /// Limits the cache of earlier entries, in bytes.
    fn may_remember(&mut self, _bytes: usize) {}

    /// Clears the cache of earlier entries, which affects only speed.
    fn forget(&mut self) {}

    /// The size of the cache of earlier entries in bytes.
    fn remembered_bytes(&self) -> usize {
        0
    }
}

/// Creates a decoder for each partition of a queue.
pub type DecoderFactory = Arc<dyn Fn(&EntryLimits) -> Box<dyn DecodeEntry> + Send + Sync>;

/// The decoder of a partition. It counts changed values in metrics.
pub(crate) struct EntryDecoder {
    decoder: Box<dyn DecodeEntry>,
    factory: DecoderFactory,
    limits: EntryLimits,
    spec: &'static TableSpec,
    metrics: LakeMetrics,
}

impl EntryDecoder {
    pub fn new(
        spec: &'static TableSpec,
        factory: DecoderFactory,
        limits: EntryLimits,
        metrics: LakeMetrics,
    ) -> EntryDecoder {
        EntryDecoder {
            decoder: factory(&limits),
            factory,
            limits,
            spec,
            metrics,
        }
    }

    pub fn may_remember(&mut self, bytes: usize) {
        self.decoder.may_remember(bytes);
    }

    pub fn forget(&mut self) {
        self.decoder.forget();
    }

    pub fn remembered_bytes(&self) -> usize {
        self.decoder.remembered_bytes()
    }

    /// Adds the rows of an entry. Returns its arrival. After an error some of its rows may have been added.
    pub fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<i64, String> {
        let decoded = self.decoder.decode(entry, chunk)?;
        Ok(self.counted(&decoded))
    }

    /// The same for an entry that is still in memory.
    pub fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<i64, String> {
        let decoded = self.decoder.decode_handed(handed, chunk)?;
        Ok(self.counted(&decoded))
    }

    fn counted(&self, decoded: &DecodedEntry) -> i64 {
        for (reason, count) in decoded.changed.reasons() {
            if count > 0 {
                let changed = &self.metrics.changed_values;
                changed.with_label_values(&[self.spec.name, reason]).inc_by(count);
            }
        }
        decoded.arrival
    }

    /// Replaces the decoder after a panic, which may have left an inconsistent state.
    pub fn reset(&mut self) {
        self.decoder = (self.factory)(&self.limits);
    }
}
