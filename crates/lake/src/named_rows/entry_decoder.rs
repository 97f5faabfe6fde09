//! Decodes entries of rows.

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::tables::TableSpec;

use super::{ColumnMapping, NamedRowBuilder, RowRules, promoted};
use crate::entry::{self, EntryForm};
use crate::ingest::{DecodeEntry, DecodedEntry, EntryLimits, Handoff};

/// Decodes the entries of rows of one table.
pub struct RowEntryDecoder {
    rows: NamedRowBuilder,
}

impl RowEntryDecoder {
    /// Uses the fixed columns of the table kind, not the current attribute columns, so that the rows depend on the
    /// entry alone.
    pub fn new(spec: &'static TableSpec, limits: &EntryLimits) -> RowEntryDecoder {
        let rules = RowRules {
            limits: RecordLimits::widest(),
            window: limits.window,
            arrival: 0,
            time_format: None,
        };
        let mapping = ColumnMapping::new(spec, promoted(&(spec.columns)()), Vec::new());
        RowEntryDecoder {
            rows: NamedRowBuilder::new(mapping, rules),
        }
    }

    /// Adds the rows of an entry's payload. They were validated when they were stored, so current limits do not apply.
    pub fn decode_rows(
        &mut self,
        payload: &[u8],
        arrival: i64,
        cut_values_at: Option<u32>,
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedEntry, String> {
        let limits = RecordLimits {
            value_bytes: cut_values_at.map_or(usize::MAX, |at| at as usize),
            cut_values: cut_values_at.is_some(),
            ..RecordLimits::widest()
        };
        self.rows.arrived(arrival, limits);
        let mut changed = RowChangeCounts::default();
        for (index, row) in entry::rows(payload).enumerate() {
            let row = row.map_err(|error| error.to_string())?;
            let made = self.rows.object(row, limits.nesting + 1, chunk, &mut changed);
            made.map_err(|bad| format!("row {index}: {}", bad.why))?;
        }
        Ok(DecodedEntry { arrival, changed })
    }
}

/// For tables whose queue has only entries of rows.
impl DecodeEntry for RowEntryDecoder {
    fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        let (head, payload) = entry::decode(entry).map_err(|error| error.to_string())?;
        match head.form {
            EntryForm::Rows => self.decode_rows(payload, head.arrival, head.cut_values_at, chunk),
            EntryForm::Request(_) => Err("the entry is a request, but this table only accepts rows".to_owned()),
        }
    }

    fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        match handed {
            Handoff::Request(rows) if rows.is_rows => {
                self.decode_rows(&rows.request, rows.arrival, rows.cut_values_at, chunk)
            }
            _ => Err("the entry has no rows, but this table only accepts rows".to_owned()),
        }
    }
}
