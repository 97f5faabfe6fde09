//! The acknowledged rows of one table, which queries have to find.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::Micros;

/// Retention of rows in days.
pub const KEPT_DAYS: u32 = 30;
const KEPT: Micros = KEPT_DAYS as Micros * 86_400_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The row is in the table.
    Live,
    /// Unknown whether it was stored.
    Maybe,
    /// It has left the table, or was never stored.
    Gone,
}

/// When a row survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Once it was acknowledged or found by a query: queries find only synced rows.
    Acknowledged,
    /// Once a query has found it: acknowledgements do not wait for the disk.
    Seen,
    /// Once it was acknowledged: another program committed it, and queries may find it before it is synced.
    Committed,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    fate: Fate,
    survives: Survives,
    is_acknowledged: bool,
    /// A query has found it.
    is_seen: bool,
    /// Log time before it was stored.
    since: Micros,
}

/// The rows that a query must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// No particular rows: the query reads committed rows only.
    Committed,
    /// Rows that earlier queries have found.
    Seen,
    /// All acknowledged rows.
    Acknowledged,
    /// All acknowledged rows; what is missing now was never stored.
    Final,
}

#[derive(Default)]
pub struct Ledger {
    rows: BTreeMap<String, Row>,
    pub expired: u64,
}

impl Ledger {
    /// Records an attempt before it is made.
    pub fn attempted(&mut self, names: &[String], survives: Survives, now: Micros) {
        for name in names {
            let row = Row {
                fate: Fate::Maybe,
                survives,
                is_acknowledged: false,
                is_seen: false,
                since: now,
            };
            assert!(self.rows.insert(name.clone(), row).is_none(), "{name} is new");
        }
    }

    pub fn acknowledged(&mut self, names: &[String]) {
        for name in names {
            let row = self.rows.get_mut(name).unwrap();
            row.is_acknowledged = true;
            if row.fate == Fate::Maybe {
                row.fate = Fate::Live;
            }
        }
    }

    /// These rows were certainly not stored.
    pub fn refused(&mut self, names: &[String]) {
        for name in names {
            self.rows.remove(name);
        }
    }

    pub fn power_cut(&mut self) {
        for row in self.rows.values_mut().filter(|row| row.fate == Fate::Live) {
            let is_kept = match row.survives {
                Survives::Acknowledged => true,
                Survives::Seen => row.is_seen,
                Survives::Committed => row.is_acknowledged,
            };
            if !is_kept {
                (row.fate, row.is_seen) = (Fate::Maybe, false);
            }
        }
    }

    /// Whether a query missed a row that it should have found.
    pub fn lacks(&self, found: &[String], now: Micros) -> bool {
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        self.rows.iter().any(|(name, row)| {
            let is_young = now.saturating_sub(row.since) <= KEPT;
            row.fate == Fate::Live && is_young && !found.contains(name.as_str())
        })
    }

    /// Checks the rows of a query that began after the ledger's state and has ended now.
    pub fn check(&mut self, found: &[String], extent: Extent, now: Micros, what: &str) {
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        for name in found {
            *times.entry(name).or_default() += 1;
        }
        for (name, times) in &times {
            let row = self.rows.get(*name);
            let row = row.unwrap_or_else(|| panic!("{what}: {name} was never stored, and is there"));
            assert_eq!(*times, 1, "{what}: {name} is there {times} times");
            assert_ne!(row.fate, Fate::Gone, "{what}: {name} was gone, and is there again");
        }
        for (name, row) in &mut self.rows {
            if times.contains_key(name.as_str()) {
                (row.fate, row.is_seen) = (Fate::Live, true);
                continue;
            }
            let must_be = match row.fate {
                Fate::Live => match extent {
                    Extent::Committed => false,
                    Extent::Seen => row.is_seen,
                    Extent::Acknowledged | Extent::Final => true,
                },
                Fate::Maybe | Fate::Gone => false,
            };
            let age = now.saturating_sub(row.since);
            assert!(
                !must_be || age > KEPT,
                "{what}: {name} is missing after {} h: {row:?}",
                age / 3_600_000_000
            );
            if must_be || (row.fate == Fate::Maybe && extent == Extent::Final) {
                self.expired += u64::from(must_be);
                row.fate = Fate::Gone;
            }
        }
    }
}
