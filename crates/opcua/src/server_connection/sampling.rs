//! The sampling interval of tags: the configured one, or longer ones that more servers accept if it is refused. Some
//! servers refuse `samplingInterval: 0`, which means as fast as possible.
//!
//! An interval that is accepted where a shorter one was refused becomes that of all further tags, unless the server has
//! accepted the shorter one for others.

use std::time::Duration;

use super::ServerConnection;
use super::items::ItemIndex;
use crate::config::InputConfig;
use crate::value::status;

/// Accepted by nearly every server.
const SLOW_MS: f64 = 1000.0;

/// The intervals to try.
#[derive(Debug)]
pub(super) struct SamplingIntervals {
    /// In the order in which they are tried, the configured one first.
    steps: Vec<f64>,
    /// The first step for new tags.
    first: u8,
    /// The lowest step that the server has accepted in this session.
    taken: Option<u8>,
}

impl SamplingIntervals {
    pub fn new(config: &InputConfig) -> SamplingIntervals {
        SamplingIntervals::from_intervals(config.sampling_interval_ms, config.publishing_interval)
    }

    pub(super) fn from_intervals(configured_ms: f64, publishing: Duration) -> SamplingIntervals {
        let mut steps = vec![configured_ms];
        for slower in [publishing.as_secs_f64() * 1000.0, SLOW_MS] {
            if steps.iter().all(|step| *step < slower) {
                steps.push(slower);
            }
        }
        SamplingIntervals {
            steps,
            first: 0,
            taken: None,
        }
    }

    /// The server, or its behaviour, may have changed.
    pub fn begin_session(&mut self) {
        (self.first, self.taken) = (0, None);
    }

    /// The step for a tag that has reached `of_item`.
    fn step(&self, of_item: u8) -> u8 {
        of_item.max(self.first)
    }

    fn interval_ms(&self, step: u8) -> f64 {
        let at = usize::from(step).min(self.steps.len() - 1);
        self.steps.get(at).copied().unwrap_or(SLOW_MS)
    }

    /// The step after this one.
    fn slower(&self, step: u8) -> Option<u8> {
        let next = step.checked_add(1)?;
        (usize::from(next) < self.steps.len()).then_some(next)
    }

    /// An item was created at a step. Returns true if this is new information about the server: all further tags start
    /// here.
    fn took(&mut self, step: u8) -> bool {
        if self.taken.is_some_and(|taken| taken <= step) {
            return false;
        }
        self.taken = Some(step);
        std::mem::replace(&mut self.first, step) < step
    }
}

impl ServerConnection {
    /// Returns the interval for the request of a tag.
    pub(super) fn begin_sampling(&mut self, index: ItemIndex) -> f64 {
        let intervals = &self.creation.sampling;
        let Some(item) = self.items.get_mut(index) else {
            return intervals.interval_ms(0);
        };
        item.sampling_step = intervals.step(item.sampling_step);
        intervals.interval_ms(item.sampling_step)
    }

    /// A tag was refused. Returns true if the interval may be the cause, and a longer one is tried.
    pub(super) fn sample_slower(&mut self, index: ItemIndex, status: u32) -> bool {
        let intervals = &self.creation.sampling;
        let Some(item) = self.items.get_mut(index) else {
            return false;
        };
        if !status::says_parameters_refused(status) {
            return false;
        }
        let Some(slower) = intervals.slower(item.sampling_step) else {
            return false;
        };
        item.sampling_step = slower;
        item.sampling_refused = status;
        true
    }

    /// A tag is monitored. If that took a longer interval than the configured one, it is logged.
    pub(super) fn sampled(&mut self, index: ItemIndex) {
        let Some(item) = self.items.get(index) else { return };
        let intervals = &mut self.creation.sampling;
        let step = item.sampling_step;
        let is_of_all = intervals.took(step);
        if step == 0 {
            return;
        }
        let (configured, taken) = (intervals.interval_ms(0), intervals.interval_ms(step));
        if is_of_all {
            // Calls became smaller because of the interval, so restore their size.
            self.creation.chunk = self.creation.chunk_first.clone();
        }
        let status = item.sampling_refused;
        self.context.component.warn_limited("sampling_interval", 1, || {
            let of = if is_of_all { "tags are" } else { "some tags are" };
            format!(
                "the server rejects samplingInterval {configured} ({}); {of} sampled every {taken} ms: write samplingInterval: {taken}",
                status::text(status)
            )
        });
    }

    /// Describes the intervals that were tried for a failed tag; its retry starts over.
    pub(super) fn sampling_given_up(&mut self, index: ItemIndex) -> Option<String> {
        let item = self.items.get_mut(index)?;
        let tried = std::mem::take(&mut item.sampling_step);
        let intervals = &self.creation.sampling;
        (tried > 0).then(|| {
            let tried: Vec<String> = intervals.steps.iter().map(f64::to_string).collect();
            format!("refused with samplingInterval {}", tried.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(configured_ms: f64, publishing_ms: u64) -> SamplingIntervals {
        SamplingIntervals::from_intervals(configured_ms, Duration::from_millis(publishing_ms))
    }

    #[test]
    fn longer_intervals_are_tried_after_the_configured_one() {
        for (configured, publishing, steps) in [
            (0.0, 100, &[0.0, 100.0, 1000.0][..]),
            (0.0, 2000, &[0.0, 2000.0]),
            (50.0, 50, &[50.0, 1000.0]),
            (5000.0, 100, &[5000.0]),
            (-1.0, 1000, &[-1.0, 1000.0]),
        ] {
            let intervals = intervals(configured, publishing);
            let tried: Vec<f64> = std::iter::successors(Some(0), |step| intervals.slower(*step))
                .map(|step| intervals.interval_ms(step))
                .collect();
            assert_eq!(tried, steps);
        }
    }

    #[test]
    fn what_the_server_takes_where_it_took_nothing_shorter_is_where_all_tags_begin() {
        let mut refusing = intervals(0.0, 100);
        assert!(refusing.took(1));
        assert_eq!((refusing.step(0), refusing.step(2)), (1, 2));
        assert!(!refusing.took(1) && !refusing.took(2));
        refusing.begin_session();
        assert_eq!(refusing.step(0), 0);
        // One tag among many that are sampled as configured.
        let mut taking = intervals(0.0, 100);
        assert!(!taking.took(0) && !taking.took(1));
        assert_eq!(taking.step(0), 0);
        // And in the opposite order.
        assert!(refusing.took(2) && !refusing.took(0));
        assert_eq!(refusing.step(0), 0);
    }
}
