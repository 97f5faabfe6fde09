//! Any bytes as lines of JSON, as values over lines, and as CSV.

use super::growing::Growing;
use super::json::Json;
use super::kind::Kind;
use super::quarantine::Quarantine;
use super::reading::Reading;
use super::report::{Counts, Watched};
use super::requests::Requests;
use super::{BulkOptions, SPECS, Wanted, csv};
use crate::by_name::{Places, RowRules, Rows, promoted};

const NOW: i64 = 1_700_000_000_000_000_000;
const LINE_BYTES_MAX: usize = 1 << 16;

/// However they are read, a line is a row, is rejected, or is no line; the first byte picks how, and the table.
pub fn lines(data: &[u8]) {
    let Some((pick, text)) = data.split_first() else {
        return;
    };
    let spec = SPECS[usize::from(pick % 3)];
    let kind = match pick / 3 % 3 {
        0 => Kind::Csv,
        1 => Kind::Json,
        _ => Kind::JsonLines,
    };
    let (options, wanted, watched) = (BulkOptions::default(), Wanted::default(), Watched::default());
    let mut reading = Reading {
        name: "-",
        wanted: &wanted,
        options: &options,
        arrival: NOW,
        watched: &watched,
        counts: Counts::default(),
        quarantine: Quarantine::new(None, u64::MAX),
    };
    let rules = RowRules {
        limits: options.walk,
        window: options.window,
        arrival: NOW,
        time_format: None,
    };
    let mut maker = Rows::new(Places::new(spec, promoted(&(spec.columns)()), Vec::new()), rules);
    let mut rows = Growing::new(usize::MAX, None);
    let read = match kind {
        Kind::Csv => csv::read(text, LINE_BYTES_MAX, spec, &mut maker, &mut reading, &mut rows),
        kind => {
            let requests = Requests::new(options.walk, options.window, NOW);
            let mut json = Json::new(requests, &mut maker, spec, None, options.walk.nesting, LINE_BYTES_MAX);
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
