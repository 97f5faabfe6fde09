//! Samples the memory of the process every five seconds and checks that it is flat: by least squares, and by quarters.

use std::sync::Mutex;
use std::time::Duration;

use super::{Soak, lock};

const EVERY: Duration = Duration::from_secs(5);
/// Share of a soak during which caches fill.
const WARM_UP: f64 = 0.2;
/// The last quarter may exceed the second one by this share plus these bytes, which is the size of the noise.
const GROWTH_MAX: f64 = 0.03;
const GROWTH_BYTES_MAX: f64 = 12e6;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub seconds: f64,
    pub resident: u64,
    /// Live bytes by the process's own count, if it reports them.
    pub heap: Option<u64>,
}

pub struct Memory {
    process: u32,
    samples: Mutex<Vec<Sample>>,
}

/// Summary of the samples of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Trend {
    pub bytes_per_hour: f64,
    /// Medians.
    pub second_quarter: f64,
    pub last_quarter: f64,
}

impl Memory {
    pub fn of(process: u32) -> Memory {
        Memory {
            process,
            samples: Mutex::default(),
        }
    }

    pub fn watch(&self, soak: &Soak) {
        let client = soak.client();
        while soak.goes_on() {
            if let Some(resident) = self.resident() {
                let heap = client.text("/metrics").ok().and_then(|text| heap_bytes(&text));
                lock(&self.samples).push(Sample {
                    seconds: soak.seconds(),
                    resident,
                    heap,
                });
            }
            soak.pause(EVERY);
        }
    }

    pub fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).clone()
    }

    pub fn last_resident(&self) -> u64 {
        lock(&self.samples).last().map_or(0, |sample| sample.resident)
    }

    fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }
}

fn heap_bytes(metrics: &str) -> Option<u64> {
    let line = metrics
        .lines()
        .find(|line| line.starts_with("thalweg_process_heap_bytes "))?;
    let value: f64 = line.rsplit(' ').next()?.parse().ok()?;
    Some(value as u64)
}

impl Trend {
    /// For ordered points (seconds, bytes). `None`: there are too few.
    pub fn of(points: &[(f64, f64)]) -> Option<Trend> {
        let end = points.last()?.0;
        let within = |from: f64, to: f64| -> Vec<(f64, f64)> {
            let chosen = points.iter().filter(|(at, _)| *at >= end * from && *at <= end * to);
            chosen.copied().collect()
        };
        let warm = within(WARM_UP, 1.0);
        Some(Trend {
            bytes_per_hour: slope(&warm)? * 3600.0,
            second_quarter: median(&within(0.25, 0.5))?,
            last_quarter: median(&within(0.75, 1.0))?,
        })
    }

    pub fn is_flat(&self) -> bool {
        self.last_quarter - self.second_quarter <= self.second_quarter * GROWTH_MAX + GROWTH_BYTES_MAX
    }
}

/// By least squares.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (points.len() >= 3 && square > 0.0).then(|| both / square)
}

fn median(points: &[(f64, f64)]) -> Option<f64> {
    let mut values: Vec<f64> = points.iter().map(|point| point.1).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(of: impl Fn(f64) -> f64) -> Trend {
        let points: Vec<(f64, f64)> = (0..720).map(|n| (f64::from(n) * 5.0, of(f64::from(n) * 5.0))).collect();
        Trend::of(&points).unwrap_or_else(|| panic!("no trend"))
    }

    #[test]
    fn a_leak_is_no_warm_up_and_a_warm_up_no_leak() {
        // 60 MB an hour on 300 MB.
        let leak = trend(|seconds| 300e6 + seconds * 60e6 / 3600.0);
        assert!((leak.bytes_per_hour - 60e6).abs() < 1e3 && !leak.is_flat(), "{leak:?}");
        // Caches are full after ten minutes; then the values vary by 10 MB.
        let warm = trend(|seconds| 200e6 + 100e6 * (seconds / 600.0).min(1.0) + 10e6 * (seconds / 37.0).sin());
        assert!(warm.bytes_per_hour.abs() < 5e6 && warm.is_flat(), "{warm:?}");
        assert!(Trend::of(&[(0.0, 1.0), (5.0, 1.0)]).is_none());
    }

    #[test]
    fn the_heap_is_what_the_metric_says() {
        let text = "# TYPE thalweg_process_heap_bytes gauge\nthalweg_process_heap_bytes 1234567\n";
        assert_eq!(heap_bytes(text), Some(1_234_567));
        assert_eq!(heap_bytes("process_cpu_seconds_total 1\n"), None);
    }
}
