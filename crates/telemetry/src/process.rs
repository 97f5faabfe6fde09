//! What the operating system reports about this process.

use std::time::Duration;

use crate::{MetricDoc, MetricGroup, Metrics};

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

crate::metric_group! {
    PROCESS_METRICS("The process", &[]) {
        CPU = MetricDoc::counter("process_cpu_seconds_total", "CPU time of all threads, user and system.");
        RESIDENT = MetricDoc::gauge("process_resident_memory_bytes", "Resident memory.");
        FILES = MetricDoc::gauge("process_open_fds", "Open file descriptors.");
        ALLOCATIONS = MetricDoc::counter("thalweg_process_allocations_total", "Memory allocations.");
        ALLOCATED = MetricDoc::counter("thalweg_process_allocated_bytes_total", "Bytes allocated.");
        HEAP = MetricDoc::gauge("thalweg_process_heap_bytes", "Bytes allocated and not freed.");
    }
}

/// The metrics that [`register_process_metrics`] registers.
pub const METRICS: &[MetricGroup] = &[PROCESS_METRICS];

/// Registers `process_*` (the usual names), `thalweg_process_allocat*` and `thalweg_process_heap_bytes`.
pub fn register_process_metrics(metrics: &Metrics) {
    metrics.tell(&CPU, |to| {
        let (allocations, bytes) = crate::alloc::allocated();
        to.float_counter(&CPU, &[], cpu_time().as_secs_f64());
        to.gauge(&RESIDENT, &[], resident_bytes() as f64);
        to.gauge(&FILES, &[], open_files() as f64);
        to.counter(&ALLOCATIONS, &[], allocations);
        to.counter(&ALLOCATED, &[], bytes);
        to.gauge(&HEAP, &[], crate::alloc::live() as f64);
    });
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
