//! `bench collect --steady [--minutes N] [--only WORD]`: long runs, not for continuous integration. First, 100,000 tags change
//! once per second and every value is read at the other end of a pipe. Then 50,000 tags go through a script into the lake,
//! which is queried. Then 50,000 tags, of which half change every ten seconds, as plants are commonly measured. Then 100,000
//! tags change ten times per second on one core. The simulator numbers the values of each tag, so a lost, repeated or reordered
//! value is detected, and it counts its published values. A row that violates its promise reports it, and the command fails.

use std::io::{PipeReader, Read as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::environment;
use super::plant;
use super::report::Row;
use super::under_test::{Costs, Plant, UnderTest};
use crate::shell::binary_under_test;

const TAGS_OF_PIPE: u64 = 100_000;
const TAGS_OF_LAKE: u64 = 50_000;
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Between two changes all published values have arrived.
const EQUAL_WITHIN: Duration = Duration::from_secs(20);
/// Memory is compared from this time on: until then caches fill.
const SETTLED_AFTER: Duration = Duration::from_secs(60);
const COMMITTED_WITHIN: Duration = Duration::from_secs(60);

fn input(plant: &Plant) -> String {
    format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    subscribeEnabled: true\n",
        plant.endpoint
    )
}

/// A line of the pipe: the tag and its value.
const LINES: &str = "pipeline:\n  processors:\n    - mapping: root = @opcua_tag_name + \" \" + content().string()\noutput:\n  stdout: {}\n";

const INTO_LAKE: &str = r#"
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = "enterprise.site.area";
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
output:
  lake: {table: tags}
"#;

/// Per tag: the number of received values, whether they are consecutive, and whether each has the expected second; the
/// simulator changes all values of a tag exactly one second apart.
const TAGS: &str = "
    select count(*) as tags, sum(n) as rows,
      sum(case when n <> hi - lo + 1 or total <> (lo + hi) * n / 2 or earliest <> latest
        or squares <> n * (n - 1) * (2 * n - 1) / 6 + lo * n * (n - 1) + lo * lo * n then 1 else 0 end) as wrong
    from (select tag_id, count(*) as n, min(value_int) as lo, max(value_int) as hi,
            sum(value_int) as total, sum(value_int * value_int) as squares,
            min(value_int - source_time_unix_nano / 1000000000) as earliest,
            max(value_int - source_time_unix_nano / 1000000000) as latest
          from tags group by tag_id)";

/// Share of a core, for the runs at 1 Hz.
const CORES_PROMISED: f64 = 0.25;
/// Maximum growth of the median of resident bytes from the first half to the second, from the first minute on.
const GROWTH_PROMISED: f64 = 1.2;
const FULL_RATE_PROMISED: f64 = 1e6;

pub fn run(minutes: u64, only: Option<&str>) -> Result<Vec<Row>> {
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let run = Run {
        binary: binary_under_test()?,
        folder,
        length: Duration::from_secs(60 * minutes),
    };
    let runs: [(&str, LongRun); 4] = [
        (PIPE, Run::through_a_pipe),
        (LAKE, Run::through_the_lake),
        (MIX, Run::half_of_it_slow),
        (FULL_RATE, Run::at_full_rate),
    ];
    let wanted = runs
        .iter()
        .filter(|(name, _)| only.is_none_or(|word| name.contains(word)));
    wanted.map(|(_, of)| of(&run)).collect()
}

const PIPE: &str = "exactly_once_100k";
const LAKE: &str = "exactly_once_50k_lake";
const MIX: &str = "half_slow_50k";
const FULL_RATE: &str = "full_rate_one_core";

type LongRun = fn(&Run) -> Result<Row>;

struct Run {
    binary: PathBuf,
    folder: PathBuf,
    length: Duration,
}

impl Run {
    fn plant(&self, tags: u64) -> Result<Plant> {
        let arguments = [
            "--slow-nodes",
            "0",
            "--fast-nodes",
            &tags.to_string(),
            "--fast-rate",
            "1",
        ];
        Plant::start(&self.binary, &arguments)
    }

    fn through_a_pipe(&self) -> Result<Row> {
        println!("measuring {PIPE}: {TAGS_OF_PIPE} tags at 1 Hz, each value read from a pipe");
        let plant = self.plant(TAGS_OF_PIPE)?;
        let (reader, writer) = std::io::pipe()?;
        let yaml = format!("{}{LINES}", input(&plant));
        let mut collector = UnderTest::start_into(Stdio::from(writer), &self.folder, &self.binary, &yaml)?;
        let lines = Lines::read(reader);
        collector.watch_until(
            "thalweg_opcua_items_monitored",
            TAGS_OF_PIPE as f64,
            Duration::from_millis(50),
        )?;
        let steady = self.watch(&collector, || lines.count())?;
        let arrived = equal(&plant, || Ok(lines.count()))?;
        collector.stop()?;
        let seen = lines.end()?;
        println!(
            "{arrived} values published and arrived; {} tags, {} values; {} missing, {} repeated or late",
            seen.tags, seen.values, seen.missing, seen.repeated
        );
        ensure!(seen.tags == TAGS_OF_PIPE, "{} tags of {TAGS_OF_PIPE} came", seen.tags);
        ensure!(seen.missing + seen.repeated == 0, "values are missing or repeated");
        steady.row(PIPE, Steady::is_light)
    }

    fn through_the_lake(&self) -> Result<Row> {
        println!("measuring {LAKE}: {TAGS_OF_LAKE} tags at 1 Hz, through a script into the lake");
        let plant = self.plant(TAGS_OF_LAKE)?;
        let yaml = format!("{}{INTO_LAKE}", input(&plant));
        let mut collector = UnderTest::start_below(&self.folder, &self.binary, &yaml)?;
        collector.wait_until("thalweg_opcua_items_monitored", TAGS_OF_LAKE as f64)?;
        let out = |collector: &UnderTest| Ok(collector.total("thalweg_flow_out_total")? as u64);
        let steady = self.watch(&collector, || out(&collector).unwrap_or_default())?;
        let arrived = equal(&plant, || out(&collector))?;
        // Nothing changes any more; values in flight are acknowledged.
        drop(plant);
        std::thread::sleep(Duration::from_secs(2));
        let rows = out(&collector)?;
        ensure!(
            rows >= arrived,
            "{arrived} values were acknowledged, but the lake has {rows}"
        );
        let start = Instant::now();
        let seen = loop {
            let seen = collector.sql(TAGS)?;
            let number = |name: &str| seen[0][name].as_u64().with_context(|| format!("no {name} in {seen}"));
            if number("rows")? >= rows || start.elapsed() > COMMITTED_WITHIN {
                break (number("tags")?, number("rows")?, number("wrong")?);
            }
            std::thread::sleep(Duration::from_secs(1));
        };
        println!(
            "{arrived} values published and acknowledged; the table has {} tags, {} rows, {} tags with missing, repeated or wrongly timed values",
            seen.0, seen.1, seen.2
        );
        ensure!(
            seen == (TAGS_OF_LAKE, rows, 0),
            "of {TAGS_OF_LAKE} tags {rows} values were acknowledged"
        );
        collector.stop()?;
        steady.row(LAKE, Steady::is_light)
    }

    /// The load with which plants are commonly measured: half of the tags change every second, half every ten; a script reads
    /// the metadata, and no further stage follows.
    fn half_of_it_slow(&self) -> Result<Row> {
        println!("measuring {MIX}: {TAGS_OF_LAKE} tags, half at 1 Hz and half at 0.1 Hz, through a script on metadata");
        let half = (TAGS_OF_LAKE / 2).to_string();
        let plant = Plant::start(&self.binary, &["--slow-nodes", &half, "--fast-nodes", &half])?;
        let yaml = format!(
            "{}{}\noutput:\n  drop: {{}}\n",
            input(&plant),
            super::collect::static_script()
        );
        let mut collector = UnderTest::start(&self.binary, &yaml)?;
        collector.wait_until("thalweg_opcua_items_monitored", TAGS_OF_LAKE as f64)?;
        let out = || collector.total("thalweg_flow_out_total").map(|out| out as u64);
        let steady = self.watch(&collector, || out().unwrap_or_default())?;
        let arrived = equal(&plant, out)?;
        println!("{arrived} values published and acknowledged");
        collector.stop()?;
        steady.row(MIX, Steady::is_light)
    }

    /// Some values are always in flight. So this checks whether their number grows.
    fn at_full_rate(&self) -> Result<Row> {
        println!("measuring {FULL_RATE}: 1,000,000 values/s, through a script on metadata, on one core");
        let (plant, collector) = plant::full_rate(&self.binary)?;
        let out = || collector.total("thalweg_flow_out_total").map(|out| out as u64);
        let (of_plant, before) = (plant.changes()?, out()?);
        let steady = self.watch(&collector, || out().unwrap_or_default())?;
        let (arrived, after) = (out()?, plant.changes()?);
        let gaps = collector.total("thalweg_opcua_gaps_total")?;
        let published = after.published - of_plant.published;
        let (arrived, lost) = (arrived - before, after.lost - of_plant.lost);
        let row = steady.row(FULL_RATE, |steady| {
            let rate = steady.rate();
            // Values in flight at the two samples do not lower the rate.
            let is_less = rate < FULL_RATE_PROMISED * 0.99;
            is_less.then(|| format!("{rate:.0} values/s, promised are {FULL_RATE_PROMISED}"))
        })?;
        println!(
            "{published} values published and {arrived} acknowledged meanwhile; {lost} lost by the server, {gaps} gaps, {} changes late",
            after.late - of_plant.late
        );
        ensure!(lost == 0 && gaps == 0.0, "values were lost");
        ensure!(
            published.abs_diff(arrived) as f64 <= row.ops_per_second,
            "the collector falls behind"
        );
        collector.stop()?;
        Ok(row)
    }

    /// Samples for the duration of the run.
    fn watch(&self, collector: &UnderTest, values: impl Fn() -> u64) -> Result<Steady> {
        println!(
            "{:>8} {:>12} {:>10} {:>10} {:>12}",
            "s", "values", "values/s", "cores", "resident MB"
        );
        let (start, first) = (Instant::now(), Look::at(collector, values())?);
        let (mut before, mut resident) = (first, Vec::new());
        while start.elapsed() < self.length {
            std::thread::sleep(TOLD_EVERY.min(self.length.saturating_sub(start.elapsed())));
            let now = Look::at(collector, values())?;
            let seconds = now.at.duration_since(before.at).as_secs_f64();
            println!(
                "{:>8.0} {:>12} {:>10.0} {:>10.3} {:>12.1}",
                start.elapsed().as_secs_f64(),
                now.values,
                (now.values - before.values) as f64 / seconds,
                (now.costs.cpu_seconds - before.costs.cpu_seconds) / seconds,
                now.resident / 1e6
            );
            if start.elapsed() >= SETTLED_AFTER {
                resident.push(now.resident);
            }
            before = now;
        }
        Ok(Steady {
            first,
            resident,
            last: before,
        })
    }
}

/// Waits for a moment at which all published values have arrived, and checks that none is lost. Returns their number.
fn equal(plant: &Plant, arrived: impl Fn() -> Result<u64>) -> Result<u64> {
    let start = Instant::now();
    loop {
        let (of_plant, arrived) = (plant.changes()?, arrived()?);
        ensure!(of_plant.lost == 0, "the server lost {} values", of_plant.lost);
        if of_plant.pending == 0 && of_plant.published == arrived {
            return Ok(arrived);
        }
        let published = of_plant.published;
        ensure!(
            start.elapsed() < EQUAL_WITHIN,
            "{published} values were published, and {arrived} arrived"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    values: u64,
    costs: Costs,
    resident: f64,
}

impl Look {
    fn at(collector: &UnderTest, values: u64) -> Result<Look> {
        Ok(Look {
            at: Instant::now(),
            values,
            costs: collector.costs()?,
            resident: collector.resident_bytes()?,
        })
    }
}

struct Steady {
    first: Look,
    /// Bytes, every ten seconds, once caches are full.
    resident: Vec<f64>,
    last: Look,
}

impl Steady {
    fn seconds(&self) -> f64 {
        self.last.at.duration_since(self.first.at).as_secs_f64()
    }

    fn rate(&self) -> f64 {
        (self.last.values - self.first.values) as f64 / self.seconds()
    }

    fn cores(&self) -> f64 {
        (self.last.costs.cpu_seconds - self.first.costs.cpu_seconds) / self.seconds()
    }

    /// Violated promises about CPU time.
    fn is_light(&self) -> Option<String> {
        let cores = self.cores();
        (cores > CORES_PROMISED).then(|| format!("{cores:.3} cores, promised are {CORES_PROMISED}"))
    }

    /// Violated promises about memory.
    fn is_flat(&self) -> Option<String> {
        let (first, second) = self.halves()?;
        let is_more = second > first * GROWTH_PROMISED;
        is_more.then(|| format!("{:.0} MB resident, and then {:.0}", first / 1e6, second / 1e6))
    }

    /// The medians of resident bytes of both halves. `None` for a run that is too short.
    fn halves(&self) -> Option<(f64, f64)> {
        let (first, second) = self.resident.split_at(self.resident.len() / 2);
        Some((median(first)?, median(second)?))
    }

    /// `broken`: the violated promises of that row.
    fn row(&self, name: &str, broken: impl Fn(&Steady) -> Option<String>) -> Result<Row> {
        let (first, last) = (&self.first, &self.last);
        let values = (last.values - first.values) as f64;
        let cpu_seconds = last.costs.cpu_seconds - first.costs.cpu_seconds;
        let (earlier, later) = self.halves().unwrap_or((first.resident, last.resident));
        let most = self.resident.iter().copied().fold(last.resident, f64::max);
        println!(
            "{name}: {:.3} cores, {:.2} us per value; resident MB: {:.0} and then {:.0} (medians of both halves), at most {:.0}",
            self.cores(),
            cpu_seconds * 1e6 / values,
            earlier / 1e6,
            later / 1e6,
            most / 1e6
        );
        let broken: Vec<String> = [broken(self), self.is_flat()].into_iter().flatten().collect();
        match broken.is_empty() {
            true => println!("{name} meets its promises\n"),
            false => println!("{name} violates its promises: {}\n", broken.join("; ")),
        }
        let mut more: serde_json::Map<String, serde_json::Value> = [
            ("cores", self.cores()),
            ("resident_first_half", earlier),
            ("resident_second_half", later),
            ("resident_most", most),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
        if !broken.is_empty() {
            more.insert(BROKEN.to_owned(), broken.join("; ").into());
        }
        Ok(Row {
            name: name.to_owned(),
            ops_per_second: self.rate(),
            wall_ns_per_op: self.seconds() * 1e9 / values,
            cpu_ns_per_op: cpu_seconds * 1e9 / values,
            bytes_per_op: (last.costs.bytes - first.costs.bytes) / values,
            allocs_per_op: (last.costs.allocations - first.costs.allocations) / values,
            more,
            ..Row::default()
        })
    }
}

/// Marks a row that violates its promise.
const BROKEN: &str = "broken";

/// Fails if a row violates its promise.
pub fn judge(rows: &[Row]) -> Result<()> {
    let broken = rows.iter().filter(|row| row.more.contains_key(BROKEN));
    let names: Vec<&str> = broken.map(|row| row.name.as_str()).collect();
    ensure!(names.is_empty(), "promises violated: {}", names.join(", "));
    Ok(())
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The values read from the pipe.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    tags: u64,
    values: u64,
    missing: u64,
    /// Values that are not larger than the one before.
    repeated: u64,
}

/// Reads the pipe on a thread of its own.
struct Lines {
    count: Arc<AtomicU64>,
    thread: JoinHandle<Result<Seen>>,
}

impl Lines {
    fn read(mut pipe: PipeReader) -> Lines {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let thread = std::thread::spawn(move || {
            let (mut checker, mut buffer) = (Checker::default(), vec![0; 1 << 20]);
            loop {
                let n = pipe.read(&mut buffer)?;
                if n == 0 {
                    return checker.end();
                }
                checker.take(buffer.get(..n).unwrap_or_default())?;
                counted.store(checker.seen.values, Relaxed);
            }
        });
        Lines { count, thread }
    }

    fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn end(self) -> Result<Seen> {
        self.thread.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?
    }
}

#[derive(Default)]
struct Checker {
    /// The last value of each tag, by its number.
    last: Vec<Option<u64>>,
    seen: Seen,
    /// A partial line.
    begun: Vec<u8>,
}

impl Checker {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        if !self.begun.is_empty()
            && let Some(rest) = lines.next()
        {
            self.begun.extend_from_slice(rest);
            if rest.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                self.line(&line)?;
            }
        }
        for line in lines {
            match line.ends_with(b"\n") {
                true => self.line(line)?,
                false => self.begun.extend_from_slice(line),
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(line)?.trim_end();
        let parts = text.strip_prefix("FastUInt").and_then(|text| text.split_once(' '));
        let (tag, value) = parts.with_context(|| format!("{text:?} is not a tag value"))?;
        let (tag, value): (usize, u64) = (tag.parse()?, value.parse()?);
        if self.last.len() <= tag {
            self.last.resize(tag + 1, None);
        }
        let Some(last) = self.last.get_mut(tag) else {
            bail!("there is no tag {tag}")
        };
        match *last {
            None => self.seen.tags += 1,
            Some(last) if value <= last => self.seen.repeated += 1,
            Some(last) => self.seen.missing += value - last - 1,
        }
        *last = Some(value);
        self.seen.values += 1;
        Ok(())
    }

    fn end(&self) -> Result<Seen> {
        ensure!(self.begun.is_empty(), "the last line is incomplete");
        Ok(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(cpu_seconds: f64, resident: &[f64]) -> Steady {
        let look = |second: u64, values, cpu_seconds| Look {
            at: Instant::now() + Duration::from_secs(second),
            values,
            costs: Costs {
                cpu_seconds,
                bytes: 0.0,
                allocations: 0.0,
            },
            resident: 1.0,
        };
        Steady {
            first: look(0, 0, 0.0),
            resident: resident.to_vec(),
            last: look(100, 1000, cpu_seconds),
        }
    }

    #[test]
    fn what_is_promised_and_not_kept_is_told() -> Result<()> {
        let row = |steady: Steady| steady.row("row", Steady::is_light);
        let good = row(steady(24.0, &[5.0, 9.0, 5.0, 5.0, 5.0, 9.0]))?;
        judge(std::slice::from_ref(&good))?;
        let heavy = row(steady(26.0, &[5.0; 6]))?;
        assert!(judge(&[good, heavy]).is_err());
        let leaking = row(steady(24.0, &[5.0, 6.0, 7.0, 8.0, 9.0, 10.0]))?;
        assert!(judge(&[leaking]).is_err());
        Ok(())
    }

    fn seen(parts: &[&str]) -> Result<Seen> {
        let mut checker = Checker::default();
        for part in parts {
            checker.take(part.as_bytes())?;
        }
        checker.end()
    }

    #[test]
    fn what_is_lost_or_comes_twice_is_seen() -> Result<()> {
        let good = seen(&["FastUInt1 7\nFastUI", "nt2 9\nFastUInt1", " 8\n", "FastUInt2 10\n"])?;
        assert_eq!((good.tags, good.values, good.missing, good.repeated), (2, 4, 0, 0));
        let bad = seen(&["FastUInt1 7\nFastUInt1 10\nFastUInt1 10\nFastUInt1 9\nFastUInt1 10\n"])?;
        assert_eq!((bad.missing, bad.repeated), (2, 2));
        assert!(seen(&["FastUInt1 7\nFastUInt"]).is_err());
        assert!(seen(&["SlowUInt1 7\n"]).is_err());
        Ok(())
    }
}
