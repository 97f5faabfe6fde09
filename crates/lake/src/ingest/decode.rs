//! Entries of the log, back to the rows that they stand for.

use std::sync::Arc;

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::TableSpec;

use super::handoff::Handoff;
use crate::metrics::LakeMetrics;

/// What entries may become.
#[derive(Clone, Copy, Debug)]
pub struct EntryLimits {
    pub window: ArrivalWindow,
    /// What each partition of messages remembers of their tags; more where the others do not.
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

/// Makes rows of the entries of one queue. Each kind of entry has its own: the store knows no protocol.
///
/// What an entry becomes depends on the entry alone, so that a replay makes the same rows of it. After an error some of its rows
/// may be in the chunk, which the caller gives up.
pub trait DecodeEntry: Send {
    /// Adds the rows of an entry as the log has it.
    fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<DecodedEntry, String>;

    /// Adds the rows of an entry that is at hand as it was before it was written.
    fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<DecodedEntry, String>;

    /// Bounds what the decoder remembers of earlier entries, in bytes.
    fn may_remember(&mut self, _bytes: usize) {}

    /// Forgets earlier entries, which are remembered only to be fast.
    fn forget(&mut self) {}

    /// Bytes of what the decoder remembers of earlier entries.
    fn remembered_bytes(&self) -> usize {
        0
    }
}

/// Makes a decoder for each partition of a queue.
pub type DecoderFactory = Arc<dyn Fn(&EntryLimits) -> Box<dyn DecodeEntry> + Send + Sync>;

/// The decoder of a partition, whose changes are counted.
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

    /// Adds the rows of an entry. Returns when it arrived. After an error some of its rows may be there.
    pub fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<i64, String> {
        let decoded = self.decoder.decode(entry, chunk)?;
        Ok(self.counted(&decoded))
    }

    /// The same of an entry that is at hand as it was before it was written.
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

    /// Starts anew after a panic, which may have left anything.
    pub fn reset(&mut self) {
        self.decoder = (self.factory)(&self.limits);
    }
}
