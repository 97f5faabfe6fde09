//! Runs the binary under gdb with a breakpoint at each hop of a table, and compares the order in which a message passes them
//! with the order of the table.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;
use tempfile::TempDir;
use thalweg_tests::{Thalweg, beside, eventually};

use super::source::entries;
use super::table::HopTable;

/// Number of messages of which one must pass the hops in their order. On a slow machine a message may be late for its
/// handover in memory; then its rows are read from the log instead.
const MESSAGES: usize = 3;

/// A process and the hops that its threads reach.
pub(super) struct HopTrace {
    pub thalweg: Thalweg,
    table: HopTable,
    hits: PathBuf,
    _folder: TempDir,
}

impl HopTrace {
    /// Starts with a configuration, and waits until everything in it is ready.
    pub fn start(title: &str, yaml: &str) -> HopTrace {
        let table = HopTable::of(title);
        let folder = tempfile::tempdir().unwrap();
        let (addresses, hits) = (folder.path().join("addresses"), folder.path().join("hits"));
        let mut lines = String::new();
        for (index, hop) in table.hops.iter().enumerate() {
            for address in entries(hop) {
                writeln!(lines, "{index} {address:x}").unwrap();
            }
        }
        std::fs::write(&addresses, lines).unwrap();
        // The addresses are known, so gdb need not read the symbols, which takes it much longer.
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "--readnever", "-iex", "set auto-load off", "-x"])
            .arg(beside("debugger/hops.py"))
            .arg("--args")
            .env("HOPS_ADDRESSES", &addresses)
            .env("HOPS_HITS", &hits);
        let mut thalweg = Thalweg::start_through(gdb, yaml).unwrap();
        thalweg.wait_ready().unwrap();
        HopTrace {
            thalweg,
            table,
            hits,
            _folder: folder,
        }
    }

    /// Sends messages until one has passed all hops in their order.
    pub fn walk(&mut self, mut send: impl FnMut(&Thalweg)) {
        let last = self.table.hops.len() - 1;
        let mut wrong = String::new();
        for _ in 0..MESSAGES {
            let before = self.hits().len();
            send(&self.thalweg);
            let arrived = eventually(|| {
                self.thalweg.process.check_running()?;
                let arrived = self.hits().iter().skip(before).any(|hop| *hop == last);
                ensure!(arrived, "the last hop was not hit");
                Ok(())
            });
            let hits = self.hits().split_off(before);
            match walked(&self.table, &hits) {
                Ok(()) => return,
                Err(why) => wrong = why,
            }
            // Another message would not get there, either.
            if arrived.is_err() {
                break;
            }
        }
        panic!("{wrong}");
    }

    /// The indexes of the hops in the order in which they were reached.
    fn hits(&self) -> Vec<usize> {
        let hits = std::fs::read_to_string(&self.hits).unwrap_or_default();
        let whole = hits.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        whole.map(|number| number.parse().unwrap()).collect()
    }
}

/// Checks that a message passed all hops in their order: the first hit of each hop follows that of the hop before it. Of a
/// shared function some hit there is enough.
fn walked(table: &HopTable, hits: &[usize]) -> Result<(), String> {
    let mut passed = 0;
    for (index, hop) in table.hops.iter().enumerate() {
        let first = hits.iter().position(|hit| *hit == index);
        let later = hits.iter().skip(passed).position(|hit| *hit == index);
        let at = match (first, later) {
            (Some(first), Some(_)) if first >= passed => first,
            (Some(_), Some(later)) if hop.is_shared() => passed + later,
            (None, _) => return Err(told(table, index, "was never hit", hits, passed)),
            _ => return Err(told(table, index, "was hit out of order", hits, passed)),
        };
        passed = at + 1;
    }
    Ok(())
}

/// The message for a hop that is not where the table has it.
fn told(table: &HopTable, index: usize, what: &str, hits: &[usize], passed: usize) -> String {
    let names = |hits: &[usize]| {
        let mut hits = hits.to_vec();
        hits.dedup();
        let names: Vec<String> = hits.iter().map(|hit| table.name(*hit)).collect();
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    };
    let (before, after) = hits.split_at(passed);
    format!(
        "{}, hop {}, {}: it {what}\nhit up to the hop before it: {}\nhit after that, instead: {}",
        table.title,
        index + 1,
        table.hops[index].function,
        names(before),
        names(after)
    )
}

#[test]
fn a_hop_that_is_missing_or_out_of_order_is_told() {
    let table = HopTable::of("Follow one event");
    let shared = table.hops.iter().position(|hop| hop.is_shared()).unwrap();
    let right: Vec<usize> = (0..table.hops.len()).flat_map(|hop| [hop, hop]).collect();
    assert_eq!(walked(&table, &right), Ok(()));
    let wrong = |change: &dyn Fn(&mut Vec<usize>)| {
        let mut hits = right.clone();
        change(&mut hits);
        walked(&table, &hits).unwrap_err()
    };
    let missing = wrong(&|hits| hits.retain(|hit| *hit != 3));
    let function = &table.hops[3].function;
    assert!(
        missing.starts_with(&format!("Follow one event, hop 4, {function}: it was never hit\n")),
        "{missing}"
    );
    let early = wrong(&|hits| hits.insert(0, 4));
    assert!(
        early.contains("hop 5, ") && early.contains("it was hit out of order"),
        "{early}"
    );
    assert!(early.contains(&table.name(4)), "{early}");
    // The log is at work beside the message, but the message passes it, too.
    let busy: Vec<usize> = [shared].iter().chain(&right).copied().collect();
    assert_eq!(walked(&table, &busy), Ok(()));
    let idle = wrong(&|hits| {
        hits.retain(|hit| *hit != shared);
        hits.insert(0, shared);
    });
    assert!(idle.contains("it was hit out of order"), "{idle}");
}
