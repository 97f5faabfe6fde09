//! What the operating system reports about this process.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::{Counter, IntCounter, IntGauge, Opts, proto};

use crate::Metrics;

/// CPU time of all threads, user and system.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Resident memory.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

/// Registers `process_*` (the usual names), `thalweg_process_allocat*` and `thalweg_process_heap_bytes`.
pub fn register_process_metrics(metrics: &Metrics) {
    metrics.register(ProcessCollector::default());
}

struct ProcessCollector {
    cpu: Counter,
    resident: IntGauge,
    files: IntGauge,
    allocations: IntCounter,
    allocated: IntCounter,
    heap: IntGauge,
}

impl Default for ProcessCollector {
    fn default() -> ProcessCollector {
        fn valid<T>(metric: prometheus::Result<T>) -> T {
            metric.expect("the name is a valid constant")
        }
        let counter = |name, help| valid(IntCounter::with_opts(Opts::new(name, help)));
        let gauge = |name, help| valid(IntGauge::with_opts(Opts::new(name, help)));
        ProcessCollector {
            cpu: valid(Counter::with_opts(Opts::new(
                "process_cpu_seconds_total",
                "CPU time of all threads, user and system.",
            ))),
            resident: gauge("process_resident_memory_bytes", "Resident memory."),
            files: gauge("process_open_fds", "Open file descriptors."),
            allocations: counter("thalweg_process_allocations_total", "Memory allocations."),
            allocated: counter("thalweg_process_allocated_bytes_total", "Bytes allocated."),
            heap: gauge("thalweg_process_heap_bytes", "Bytes allocated and not freed."),
        }
    }
}

impl ProcessCollector {
    fn parts(&self) -> [&dyn Collector; 6] {
        [
            &self.cpu,
            &self.resident,
            &self.files,
            &self.allocations,
            &self.allocated,
            &self.heap,
        ]
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(|part| part.desc()).collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let (allocations, bytes) = crate::alloc::allocated();
        self.cpu.reset();
        self.cpu.inc_by(cpu_time().as_secs_f64());
        self.resident.set(resident_bytes() as i64);
        self.files.set(open_files() as i64);
        self.allocations.reset();
        self.allocations.inc_by(allocations);
        self.allocated.reset();
        self.allocated.inc_by(bytes);
        self.heap.set(i64::try_from(crate::alloc::live()).unwrap_or(i64::MAX));
        self.parts().into_iter().flat_map(|part| part.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_its_own_cost() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_time() > before);
        assert!(resident_bytes() > 100_000);
        let metrics = Metrics::default();
        register_process_metrics(&metrics);
        let text = metrics.text();
        assert!(text.contains("thalweg_process_allocations_total "), "{text}");
        assert!(text.contains("thalweg_process_heap_bytes "), "{text}");
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
