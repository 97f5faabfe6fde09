//! The result of a soak as text, and whether it passed.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use super::Faults;
use super::ledger::Account;
use super::memory::{Memory, Trend};
use super::probes::{PATHS, Probe, Probes, TOOK_MAX};
use super::queries::Queries;

/// Maximum number of late probes to list.
const NAMED_MAX: usize = 50;

pub struct Verdict {
    probes: Vec<Probe>,
    longest_delay: Duration,
    resident: Option<Trend>,
    heap: Option<Trend>,
    faults: Vec<String>,
    fault_count: u64,
    missing: u64,
}

impl Verdict {
    pub fn of(probes: &Probes, memory: &Memory, accounts: &[Account], faults: &Faults) -> Verdict {
        let samples = memory.samples();
        let resident: Vec<(f64, f64)> = samples.iter().map(|one| (one.seconds, one.resident as f64)).collect();
        let heap: Vec<(f64, f64)> = samples
            .iter()
            .filter_map(|one| Some((one.seconds, one.heap? as f64)))
            .collect();
        Verdict {
            probes: probes.all(),
            longest_delay: probes.longest_delay(),
            resident: Trend::of(&resident),
            heap: Trend::of(&heap),
            faults: faults.told.clone(),
            fault_count: faults.count,
            missing: accounts.iter().map(|account| account.missing).sum(),
        }
    }

    pub fn text(&self, queries: &Queries, accounts: &[Account]) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "\n{:<26} {:>13} {:>12} {:>8}",
            "account", "acknowledged", "came", "missing"
        );
        for account in accounts {
            let Account {
                name,
                acknowledged,
                came,
                missing,
                note,
            } = account;
            let _ = writeln!(out, "{name:<26} {acknowledged:>13} {came:>12} {missing:>8}  {note}");
        }
        let _ = writeln!(out, "{}\n", queries.text());
        self.tell_probes(&mut out);
        self.tell_memory(&mut out);
        let _ = writeln!(out, "{} requests got a wrong response", self.fault_count);
        self.faults.iter().for_each(|fault| out.extend([fault.as_str(), "\n"]));
        out
    }

    fn tell_probes(&self, out: &mut String) {
        for path in PATHS {
            let mut took: Vec<f64> = self
                .probes
                .iter()
                .filter(|probe| probe.path == path)
                .map(|probe| probe.took.as_secs_f64() * 1e3)
                .collect();
            took.sort_by(f64::total_cmp);
            let at = |part: f64| {
                let last = took.len().saturating_sub(1);
                took.get(((took.len() as f64 * part) as usize).min(last))
                    .copied()
                    .unwrap_or(f64::NAN)
            };
            let _ = writeln!(
                out,
                "{path:<9} {:>6} probes: median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
                took.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
        let (late, excused): (Vec<_>, Vec<_>) = (
            self.late().collect(),
            self.probes.iter().filter(|one| one.is_excused()).collect(),
        );
        let _ = writeln!(
            out,
            "{} probes took over {} ms because of Thalweg, {} because the machine stalled (for {:.0} ms at most)",
            late.len(),
            TOOK_MAX.as_millis(),
            excused.len(),
            self.longest_delay.as_secs_f64() * 1e3
        );
        for probe in late.into_iter().chain(excused).take(NAMED_MAX) {
            let _ = writeln!(
                out,
                "  {:8.1} s  {:<9} {:.0} ms, the machine {:.0} ms late",
                probe.seconds,
                probe.path,
                probe.took.as_secs_f64() * 1e3,
                probe.delay.as_secs_f64() * 1e3
            );
        }
    }

    fn tell_memory(&self, out: &mut String) {
        for (name, trend) in [("RSS", self.resident), ("heap", self.heap)] {
            let Some(trend) = trend else { continue };
            let _ = writeln!(
                out,
                "{name}: {:+.1} MB an hour after the warm-up; median of the second quarter {:.1} MB, of the last {:.1} MB: {}",
                trend.bytes_per_hour / 1e6,
                trend.second_quarter / 1e6,
                trend.last_quarter / 1e6,
                if trend.is_flat() { "flat" } else { "NOT FLAT" }
            );
        }
    }

    fn late(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| probe.is_late())
    }

    /// An error that lists all violated promises.
    pub fn judge(&self, queries: &Queries) -> Result<()> {
        let mut wrong = Vec::new();
        if self.missing > 0 {
            wrong.push(format!("{} acknowledged messages are missing", self.missing));
        }
        let late = self.late().count();
        if late > 0 {
            wrong.push(format!("{late} probes took over {} ms", TOOK_MAX.as_millis()));
        }
        if self.probes.len() < PATHS.len() * 10 {
            wrong.push(format!("only {} probes were made", self.probes.len()));
        }
        match self.resident {
            Some(trend) if trend.is_flat() => {}
            Some(_) => wrong.push("RSS is not flat".to_owned()),
            None => wrong.push("too few samples of RSS".to_owned()),
        }
        if !self.heap.is_some_and(|trend| trend.is_flat()) {
            wrong.push("the heap is not flat".to_owned());
        }
        if self.fault_count > 0 {
            wrong.push(format!("{} requests got a wrong response", self.fault_count));
        }
        if !queries.did_all() {
            wrong.push("not every kind of query was made".to_owned());
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => bail!("{}", wrong.join("; ")),
        }
    }
}
