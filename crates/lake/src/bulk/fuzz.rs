//! Reads any bytes as JSON lines, as JSON values across lines, and as CSV.

use super::file_import::FileImport;
use super::format::BulkFormat;
use super::json::BulkJsonReader;
use super::memtable::BulkMemtables;
use super::quarantine::Quarantine;
use super::report::{BulkCounts, BulkProgress};
use super::requests::{RequestDecoder, RequestRules};
use super::{BulkOptions, BulkRequest, SPECS, csv};
use crate::named_rows::{ColumnMapping, NamedRowBuilder, RowRules, promoted};

const NOW: i64 = 1_700_000_000_000_000_000;
const LINE_BYTES_MAX: usize = 1 << 16;

/// Each line must become a row, be rejected, or be blank. The first byte selects the format and the table.
pub fn lines(data: &[u8], requests: &mut dyn RequestDecoder) {
    let Some((pick, text)) = data.split_first() else {
        return;
    };
    let spec = SPECS[usize::from(pick % 3)];
    let kind = match pick / 3 % 3 {
        0 => BulkFormat::Csv,
        1 => BulkFormat::Json,
        _ => BulkFormat::JsonLines,
    };
    let (options, wanted, watched) = (BulkOptions::default(), BulkRequest::default(), BulkProgress::default());
    let mut reading = FileImport {
        name: "-",
        wanted: &wanted,
        options: &options,
        arrival: NOW,
        watched: &watched,
        counts: BulkCounts::default(),
        quarantine: Quarantine::new(None, u64::MAX),
    };
    let rules = RowRules {
        limits: options.walk,
        window: options.window,
        arrival: NOW,
        time_format: None,
    };
    let mut maker = NamedRowBuilder::new(ColumnMapping::new(spec, promoted(&(spec.columns)()), Vec::new()), rules);
    let mut rows = BulkMemtables::new(usize::MAX, None);
    let read = match kind {
        BulkFormat::Csv => csv::read(text, LINE_BYTES_MAX, spec, &mut maker, &mut reading, &mut rows),
        kind => {
            requests.begin(&RequestRules {
                limits: options.walk,
                window: options.window,
                arrival: NOW,
                bytes_max: LINE_BYTES_MAX,
            });
            let mut json = BulkJsonReader::new(requests, &mut maker, spec, None, options.walk.nesting);
            json.read(kind, text, LINE_BYTES_MAX, &mut reading, &mut rows)
        }
    };
    for part in rows.rest() {
        for chunk in &part.chunks {
            let times = chunk.times().map_or(0, |times| times.values().len());
            assert_eq!(times, chunk.rows(), "every row has a time");
        }
    }
    drop(read);
}
