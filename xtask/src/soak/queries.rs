//! Runs several kinds of queries during the load, and some that need too much memory: these must be refused, without any other
//! effect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::Scope;
use std::time::Duration;

use super::{Chance, Soak};

const CLIENTS: u64 = 2;
const PAUSE: Duration = Duration::from_millis(1000);

const COUNT: &str = "select count(*) as n from logs";

/// All but the first query read only the last minutes: the tables keep growing, and so would the memory of a client that reads
/// every row.
const ANSWERED: [&str; 7] = [
    COUNT,
    "select resource_service_name, severity_text, count(*) as n from logs where time > now() - interval '3 minutes' group by 1, 2 \
     order by 3 desc",
    "select body from logs where body like '%upstream%' and time > now() - interval '3 minutes' order by time_unix_nano desc limit 20",
    "select count(*) as n, count(distinct trace_id) as traces from traces where time > now() - interval '3 minutes'",
    "select tag_id, min(value_int) as lo, max(value_int) as hi, count(*) as n from tags where time > now() - interval '3 minutes' \
     group by 1 order by 1 limit 50",
    "select a.tag_id, count(*) as n from tags a join (select distinct tag_id from tags where time > now() - interval '1 minute' limit 5) b \
     on a.tag_id = b.tag_id where a.time > now() - interval '3 minutes' group by 1",
    "select date_bin(interval '1 minute', time) as minute, count(*) as n from metrics where time > now() - interval '3 minutes' \
     group by 1 order by 1 desc",
];

/// Each must be refused for the size of its result, and for nothing else.
const TOO_LARGE: [&str; 3] = [
    "select length(repeat('x', 2000000000)) as n",
    "select array_length(array_repeat('x', 1000000000)) as n",
    "select length(repeat(severity_text || 'x', 500000000)) as n from logs",
];

#[derive(Default)]
pub struct Queries {
    answered: AtomicU64,
    refused: AtomicU64,
    /// Told to retry: too many queries, or no memory at the moment.
    busy: AtomicU64,
    /// Whether logs were found in their table.
    has_rows: AtomicBool,
}

impl Queries {
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, soak: &'scope Soak) {
        for number in 0..CLIENTS {
            scope.spawn(move || self.ask(soak, Chance(500 + number)));
        }
    }

    pub fn count(&self) -> u64 {
        self.answered.load(Relaxed) + self.refused.load(Relaxed)
    }

    pub fn text(&self) -> String {
        format!(
            "{} queries were answered, {} were refused for their size, {} were told to retry",
            self.answered.load(Relaxed),
            self.refused.load(Relaxed),
            self.busy.load(Relaxed)
        )
    }

    /// Whether both kinds were seen.
    pub fn did_all(&self) -> bool {
        self.answered.load(Relaxed) > 0 && self.refused.load(Relaxed) > 0
    }

    fn ask(&self, soak: &Soak, mut chance: Chance) {
        let client = soak.client();
        while soak.goes_on() {
            // Without rows there are no duplicates.
            let is_large = chance.one_of(6) && self.has_rows.load(Relaxed);
            let all: &[&str] = if is_large { &TOO_LARGE } else { &ANSWERED };
            let query = all
                .get(chance.below(all.len() as u64) as usize)
                .copied()
                .unwrap_or_default();
            match client.sql(query) {
                Ok(answer) if answer.status == 200 && !is_large => {
                    if query == COUNT && answer.json[0]["n"].as_u64() > Some(0) {
                        self.has_rows.store(true, Relaxed);
                    }
                    self.answered.fetch_add(1, Relaxed)
                }
                Ok(answer) if is_large && answer.status == 422 && answer.json["error"]["code"] == "query.too_large" => {
                    self.refused.fetch_add(1, Relaxed)
                }
                Ok(answer) if matches!(answer.status, 429 | 503 | 504) => self.busy.fetch_add(1, Relaxed),
                other => {
                    soak.fault("query", format!("{query}: {other:?}"));
                    0
                }
            };
            soak.pause(PAUSE);
        }
    }
}
