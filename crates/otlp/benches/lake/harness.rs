//! Measures and prints wall time, CPU time, and allocations for each record.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use thalweg_telemetry::{alloc, cpu_time};

use crate::environment;

/// The command line options.
pub struct Session {
    json: bool,
    pub quick: bool,
    /// Runs only rows whose name contains it.
    only: Option<String>,
    /// Requests of the user instead of generated ones.
    pub input: Option<PathBuf>,
    /// The folder for tables.
    pub folder: PathBuf,
}

impl Session {
    pub fn parse() -> Session {
        let mut session = Session {
            json: false,
            quick: false,
            only: None,
            input: None,
            folder: environment::bench_folder(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => session.json = true,
                "--quick" => session.quick = true,
                "--bench" => {}
                "--input" => session.input = words.next().map(PathBuf::from),
                name => session.only = Some(name.to_owned()),
            }
        }
        session
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Records of a run.
    pub fn records(&self) -> u64 {
        if self.quick { 100_000 } else { 1_000_000 }
    }

    fn runs(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    pub fn print_head(&self) {
        let head = format!(
            "\n{}\n\nlake: one op is one record; the median of {} runs; CPU is that of all threads\n{:<28} {:>12} {:>10} {:>10} {:>14} {:>10} {:>10} {:>10}",
            environment::text(&environment::facts(&self.folder)),
            self.runs(),
            "row",
            "ops/s",
            "wall ns",
            "CPU ns",
            "per core/s",
            "bytes",
            "allocs",
            "input MB/s"
        );
        eprintln!("{head}");
    }

    /// `run` processes some records and returns how many records and input bytes they were. Its third result is dropped
    /// outside the measurement.
    pub fn measure<T>(&self, name: &str, mut run: impl FnMut() -> (u64, u64, T)) {
        if !self.wants(name) {
            return;
        }
        let mut costs: Vec<[f64; 5]> = Vec::new();
        // The first run is a warm-up: it allocates buffers that later runs reuse.
        for number in 0..=self.runs() {
            let (allocations, allocated) = alloc::allocated();
            let (start, cpu) = (Instant::now(), cpu_time());
            let (records, input, kept) = run();
            let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
            let (more_allocations, more_allocated) = alloc::allocated();
            drop(kept);
            let per = |amount: f64| amount / records as f64;
            if number > 0 {
                costs.push([
                    per(wall.as_nanos() as f64),
                    per(cpu.as_nanos() as f64),
                    per((more_allocated - allocated) as f64),
                    per((more_allocations - allocations) as f64),
                    per(input as f64),
                ]);
            }
        }
        let mut median = |of: usize| {
            costs.sort_by(|a, b| a[of].total_cmp(&b[of]));
            costs[costs.len() / 2][of]
        };
        let [wall, cpu, bytes, allocations, input] = [0, 1, 2, 3, 4].map(&mut median);
        eprintln!(
            "{name:<28} {:>12.0} {wall:>10.0} {cpu:>10.0} {:>14.0} {bytes:>10.0} {allocations:>10.3} {:>10.0}",
            1e9 / wall,
            1e9 / cpu,
            input / wall * 1e3
        );
        if self.json {
            println!(
                "{}",
                json!({
                    "name": name, "ops_per_second": 1e9 / wall, "wall_ns_per_op": wall, "cpu_ns_per_op": cpu,
                    "bytes_per_op": bytes, "allocs_per_op": allocations, "input_bytes_per_op": input,
                })
            );
        }
    }
}
