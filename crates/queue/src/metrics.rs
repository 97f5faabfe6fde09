//! Counters of a queue beside its groups: why messages left, and why producers were refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{QueueError, QueueErrorKind};
use crate::machine::RemovalReason;

/// Kinds of errors of the log that have a counter each.
const KINDS: [QueueErrorKind; 7] = [
    QueueErrorKind::DiskFull,
    QueueErrorKind::LogPoisoned,
    QueueErrorKind::MessageTooLarge,
    QueueErrorKind::Fenced,
    QueueErrorKind::UnknownOutcome,
    QueueErrorKind::NewerFormat,
    QueueErrorKind::Corrupt,
];
/// The label of all other kinds together.
const OTHER: &str = "other";

/// Messages by the reason for which they left.
#[derive(Debug, Default)]
pub struct ReasonCounters([AtomicU64; RemovalReason::ALL.len()]);

impl ReasonCounters {
    pub fn count(&self, reason: RemovalReason) {
        self.add(reason, 1);
    }

    pub fn add(&self, reason: RemovalReason, count: u64) {
        if let Some(counter) = self.0.get(reason as usize) {
            counter.fetch_add(count, Relaxed);
        }
    }

    /// The count of each reason, by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|counter| counter.load(Relaxed));
        RemovalReason::ALL.into_iter().map(RemovalReason::name).zip(counts)
    }
}

/// Refusals by the log, by kind; the last counter is that of all other kinds.
#[derive(Debug, Default)]
pub struct ErrorCodeCounters([AtomicU64; KINDS.len() + 1]);

impl ErrorCodeCounters {
    pub fn count(&self, error: &QueueError) {
        let at = KINDS.iter().position(|kind| *kind == error.kind());
        if let Some(counter) = self.0.get(at.unwrap_or(KINDS.len())) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// The count of each code.
    fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let codes = KINDS.into_iter().map(|kind| kind.facts().code).chain([OTHER]);
        codes.zip(self.0.iter().map(|counter| counter.load(Relaxed)))
    }
}

/// Counts since the process started.
#[derive(Debug, Default)]
pub struct QueueCounters {
    pub refused_full: AtomicU64,
    pub refused_paused: AtomicU64,
    pub refused_too_large: AtomicU64,
    pub refused_by_log: ErrorCodeCounters,
    pub repeated: AtomicU64,
    /// Moved to the dead letters, and dropped without becoming dead letters.
    pub dead: ReasonCounters,
    pub(crate) dropped: ReasonCounters,
    /// Dropped on request: by a purge, and by a seek forward.
    pub(crate) purged: AtomicU64,
    pub(crate) passed_over: AtomicU64,
}

impl QueueCounters {
    /// Messages that were dropped without becoming dead letters, by reason.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let asked = [("purge", &self.purged), ("seek", &self.passed_over)];
        let asked = asked.map(|(reason, counter)| (reason, counter.load(Relaxed)));
        self.dropped.all().chain(asked)
    }

    /// Refused messages, by error code.
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        let own = [
            (QueueErrorKind::QueueFull, &self.refused_full),
            (QueueErrorKind::Paused, &self.refused_paused),
            (QueueErrorKind::MessageTooLarge, &self.refused_too_large),
        ];
        let own = own.map(|(kind, counter)| (kind.facts().code, counter.load(Relaxed)));
        let mut all: Vec<(&'static str, u64)> = own.into();
        for (code, count) in self.refused_by_log.all() {
            match all.iter_mut().find(|(known, _)| *known == code) {
                Some((_, sum)) => *sum += count,
                None => all.push((code, count)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::LogError;

    use super::*;

    #[test]
    fn every_reason_and_code_has_a_counter_of_its_own() {
        let reasons = ReasonCounters::default();
        for (n, reason) in (1..).zip(RemovalReason::ALL) {
            (0..n).for_each(|_| reasons.count(reason));
        }
        let expected = [
            ("max_retries", 1),
            ("timeout", 2),
            ("rejected", 3),
            ("expired", 4),
            ("overflow", 5),
        ];
        assert_eq!(reasons.all().collect::<Vec<_>>(), expected);
        let counters = QueueCounters::default();
        counters.refused_too_large.fetch_add(1, Relaxed);
        counters.refused_by_log.count(&QueueError::Log(LogError::TooLarge {
            what: "x",
            size: 2,
            limit: 1,
        }));
        counters.refused_by_log.count(&QueueError::Log(LogError::Closed));
        let refused = counters.refused();
        let of = |code: &str| {
            refused
                .iter()
                .find(|(known, _)| *known == code)
                .map(|(_, count)| *count)
        };
        assert_eq!(
            (of("message_too_large"), of("unknown_outcome"), of("disk_full")),
            (Some(2), Some(1), Some(0))
        );
    }
}
