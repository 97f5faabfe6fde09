//! Decides which lines the log gets about a connection that is down.
//!
//! | state | a failure | every second | data flows |
//! |---|---|---|---|
//! | up | a line, → told; within 10 s of the last line → untold | one line for untold outages that are over | – |
//! | untold | counted | a line when the 10 s are over, → told | → up |
//! | told | counted; another reason → untold, or a line | a line when the last one is a minute old | a line, → up |

use std::time::{Duration, Instant};

use super::ConnectionFailure;

/// Minimum time between two lines, so that a flapping connection does not flood the log.
const PAUSE: Duration = Duration::from_secs(10);
/// Time between two lines about the same reason.
const REMINDER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Outage {
    /// `None` while data flows.
    since: Option<Instant>,
    /// The last failure and its reason.
    last: Option<(ConnectionFailure, String)>,
    /// Whether no line has reported the last reason yet.
    is_untold: bool,
    /// Whether a line has reported this outage.
    is_known: bool,
    /// The time of the last line, which may precede this outage.
    line_at: Option<Instant>,
    /// Failures that no line has reported.
    more: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutageLogLine {
    Trouble {
        text: String,
        /// Failures since the last line, without the reported one.
        more: u64,
    },
    Ended(String),
}

impl Outage {
    pub fn failed(&mut self, trouble: ConnectionFailure, why: &str, now: Instant) -> Option<OutageLogLine> {
        self.since.get_or_insert(now);
        self.more += 1;
        let is_new = !self.is_known || self.last.as_ref().is_none_or(|(_, last)| last != why);
        if is_new {
            self.is_untold = true;
            self.last = Some((trouble, why.to_owned()));
        }
        self.line(now)
    }

    pub fn remind(&mut self, now: Instant) -> Option<OutageLogLine> {
        self.line(now)
    }

    /// `None` if no line reported its beginning.
    pub fn ended(&mut self, now: Instant) -> Option<OutageLogLine> {
        let since = self.since.take()?;
        self.is_untold = false;
        let seconds = now.duration_since(since).as_secs();
        if self.is_known {
            self.more = 0;
        }
        std::mem::take(&mut self.is_known).then(|| OutageLogLine::Ended(format!("connected again after {seconds} s")))
    }

    fn line(&mut self, now: Instant) -> Option<OutageLogLine> {
        let quiet = self.line_at.map_or(REMINDER, |at| now.duration_since(at));
        let (trouble, why) = self.last.as_ref()?;
        let told = trouble.text();
        let (text, about) = match self.since {
            None if self.more > 0 && quiet >= PAUSE => (format!("{told} and connected again at once: {why}"), 1),
            Some(_) if self.is_untold && quiet >= PAUSE => (format!("{told}, retrying: {why}"), 1),
            Some(since) if !self.is_untold && quiet >= REMINDER => {
                let seconds = now.duration_since(since).as_secs();
                (format!("not connected for {seconds} s, still retrying: {why}"), 0)
            }
            _ => return None,
        };
        let more = std::mem::take(&mut self.more).saturating_sub(about);
        self.is_known = self.since.is_some();
        self.is_untold = false;
        self.line_at = Some(now);
        Some(OutageLogLine::Trouble { text, more })
    }
}

#[cfg(test)]
mod tests {
    use thalweg_kit::clock;

    use super::*;

    /// Returns the lines by second. In each second, `happens` runs before the reminder.
    fn told(seconds: u64, happens: impl Fn(u64, &mut Outage, Instant) -> Option<OutageLogLine>) -> Vec<(u64, String)> {
        let start = clock::now();
        let mut outage = Outage::default();
        let mut lines = Vec::new();
        for second in 0..seconds {
            let now = start + Duration::from_secs(second);
            let both = [happens(second, &mut outage, now), outage.remind(now)];
            lines.extend(both.into_iter().flatten().map(|line| match line {
                OutageLogLine::Trouble { text, more: 0 } => (second, text),
                OutageLogLine::Trouble { text, more } => (second, format!("{text} (+{more})")),
                OutageLogLine::Ended(text) => (second, text),
            }));
        }
        lines
    }

    fn line(second: u64, text: &str) -> (u64, String) {
        (second, text.to_owned())
    }

    #[test]
    fn what_goes_on_is_told_at_once_each_minute_and_at_its_end() {
        let lines = told(200, |second, outage, now| match second {
            5..150 => outage.failed(ConnectionFailure::Connect, "there is no queue ordrs", now),
            150 => outage.ended(now),
            _ => None,
        });
        assert_eq!(
            lines,
            [
                line(5, "cannot connect, retrying: there is no queue ordrs"),
                line(
                    65,
                    "not connected for 60 s, still retrying: there is no queue ordrs (+60)"
                ),
                line(
                    125,
                    "not connected for 120 s, still retrying: there is no queue ordrs (+60)"
                ),
                line(150, "connected again after 145 s"),
            ]
        );
    }

    /// One failure is enough: an outage with a long wait for the next attempt is still reported.
    #[test]
    fn a_reminder_needs_no_further_failure() {
        let lines = told(130, |second, outage, now| match second {
            0 => outage.failed(ConnectionFailure::Open, "x", now),
            _ => None,
        });
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 60, 120]);
    }

    #[test]
    fn another_reason_is_told_when_ten_seconds_are_over() {
        let lines = told(30, |second, outage, now| match second {
            0..3 => outage.failed(ConnectionFailure::Connect, "a", now),
            3..30 => outage.failed(ConnectionFailure::Connect, "b", now),
            _ => None,
        });
        assert_eq!(
            lines,
            [
                line(0, "cannot connect, retrying: a"),
                line(10, "cannot connect, retrying: b (+9)"),
            ]
        );
    }

    #[test]
    fn a_connection_that_comes_and_goes_is_told_of_every_ten_seconds() {
        let lines = told(40, |second, outage, now| match second % 2 {
            0 => outage.failed(ConnectionFailure::Lost, "gone", now),
            _ => outage.ended(now),
        });
        let warnings = lines.iter().filter(|(_, text)| text.starts_with("connection lost"));
        let seconds: Vec<u64> = warnings.map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 10, 20, 30], "{lines:?}");
        assert!(lines.len() <= 8, "{lines:?}");
    }

    /// A short outage that could not be logged at the time is logged afterwards.
    #[test]
    fn nothing_is_passed_over() {
        let lines = told(30, |second, outage, now| match second {
            0 | 3 => outage.failed(ConnectionFailure::Lost, "gone", now),
            1 | 4 => outage.ended(now),
            _ => None,
        });
        assert_eq!(
            lines,
            [
                line(0, "connection lost, retrying: gone"),
                line(1, "connected again after 1 s"),
                line(10, "connection lost and connected again at once: gone"),
            ]
        );
    }
}
