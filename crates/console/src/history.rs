//! The totals of the last minutes, so that a newly opened page can draw the past. One sample every two seconds, each
//! with a few numbers per flow; the oldest is dropped.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use thalweg_telemetry::StatusBoard;

use crate::status::ConsoleState;

const EVERY: Duration = Duration::from_secs(2);
const SAMPLES_MAX: usize = 150;

/// Further flows are left out of the history, not of the current status.
const FLOWS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub uptime_ms: u64,
    pub cpu_seconds: f64,
    /// Per flow, in the order of `/api/v1/status`: messages that entered and that went out.
    pub flows: Vec<(u64, u64)>,
}

#[derive(Default)]
pub struct History {
    samples: Mutex<VecDeque<Sample>>,
}

impl History {
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().iter().cloned().collect()
    }

    fn add(&self, sample: Sample) {
        let mut samples = self.samples.lock();
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

/// Takes samples until the future is dropped.
pub async fn record(state: &ConsoleState) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        state.history.add(sample(state.uptime_ms(), &state.board));
    }
}

fn sample(uptime_ms: u64, board: &StatusBoard) -> Sample {
    let flows = board.flows();
    Sample {
        uptime_ms,
        cpu_seconds: thalweg_telemetry::cpu_time().as_secs_f64(),
        flows: flows
            .iter()
            .take(FLOWS_MAX)
            .map(|flow| (flow.balance.entered, flow.balance.out))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_samples_are_kept_in_order() {
        let history = History::default();
        for uptime_ms in 0..SAMPLES_MAX as u64 + 3 {
            history.add(Sample {
                uptime_ms,
                cpu_seconds: 0.0,
                flows: Vec::new(),
            });
        }
        let kept = history.samples();
        assert_eq!(kept.len(), SAMPLES_MAX);
        assert_eq!(kept.first().unwrap().uptime_ms, 3);
        assert_eq!(kept.last().unwrap().uptime_ms, SAMPLES_MAX as u64 + 2);
    }
}
