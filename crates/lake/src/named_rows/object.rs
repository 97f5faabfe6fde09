//! Rows as JSON objects.

use super::nested::{plain, value};
use super::{BadRow, NamedRowBuilder};
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_kit::json_tokens::{JsonError, JsonTokenizer};

impl NamedRowBuilder {
    /// Adds the row of a JSON object, or nothing. `depth` limits the nesting.
    pub fn object(
        &mut self,
        text: &[u8],
        depth: usize,
        chunk: &mut MemtableChunk,
        changed: &mut RowChangeCounts,
    ) -> Result<(), BadRow> {
        let wrong = |error: JsonError| match error.what {
            what if what.contains("nested too deep") => {
                BadRow::limit(RejectionReason::NestingTooDeep, error.to_string())
            }
            _ => BadRow::line(error.to_string()),
        };
        let mut tokens = JsonTokenizer::new(text, depth);
        self.begin();
        tokens.object().map_err(wrong)?;
        let mut is_first = true;
        while tokens.more(b'}', is_first).map_err(wrong)? {
            is_first = false;
            let name = tokens.name().map_err(wrong)?;
            let (name, is_replaced) = plain(name.raw, name.is_escaped);
            changed.utf8_replaced += u64::from(is_replaced);
            let put = value(&mut tokens, |cell, is_replaced| {
                changed.utf8_replaced += u64::from(is_replaced);
                self.put(&name, cell)
            });
            put.map_err(wrong)??;
        }
        tokens.end().map_err(wrong)?;
        self.end(chunk, changed)
    }
}
