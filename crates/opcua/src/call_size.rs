//! The number of operations per call: as many as server and profile allow, fewer after a refusal, and more again if the
//! profile does not know the server.

use crate::channel::CallError;
use crate::value::status;

/// Upper bound if the server names none.
const OPERATIONS_MAX: usize = 1000;

/// Successful calls before the size doubles.
const CLEAN_CALLS: u16 = 4;

/// The same after responses were too large or timed out: a failed attempt costs the server a large response and this
/// side a timeout.
const CLEAN_CALLS_RECOVERING: u16 = 64;

/// A size that times out repeatedly is tried less and less often, but never given up: the network may have been the
/// cause.
const CLEAN_CALLS_MAX: u16 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSize {
    now: usize,
    max: usize,
    grows: bool,
    clean: u16,
    /// Whether the size was reduced because of responses, which may be smaller or faster later.
    recovers: bool,
    /// Successful calls before it then doubles.
    patience: u16,
}

impl CallSize {
    /// `server_limit` 0 means that the server names none. `grows`: start at the profile's size and adapt.
    pub fn new(server_limit: u32, profile: usize, grows: bool) -> CallSize {
        let server = if server_limit == 0 {
            usize::MAX
        } else {
            server_limit as usize
        };
        let max = if grows {
            server.min(OPERATIONS_MAX)
        } else {
            server.min(profile)
        };
        CallSize {
            now: profile.min(max).max(1),
            max: max.max(1),
            grows,
            clean: 0,
            recovers: false,
            patience: CLEAN_CALLS_RECOVERING,
        }
    }

    pub fn get(&self) -> usize {
        self.now
    }

    pub fn succeeded(&mut self) {
        let grows = self.grows && self.now < self.max;
        if !(grows || self.recovers) {
            return;
        }
        self.clean += 1;
        let enough = if self.recovers { self.patience } else { CLEAN_CALLS };
        if self.clean < enough {
            return;
        }
        self.clean = 0;
        if self.now < self.max {
            self.now = (self.now * 2).min(self.max);
        } else {
            self.recovers = false;
            self.patience = CLEAN_CALLS_RECOVERING;
        }
    }

    /// A call of `operations` failed. Returns true if calls are smaller now, so that a retry may succeed.
    pub fn failed(&mut self, operations: usize, error: &CallError) -> bool {
        let of_request = match error {
            CallError::RequestTooLarge => true,
            CallError::Refused(status) => status::says_request_too_large(*status),
            _ => false,
        };
        match (error.is_too_large(), of_request) {
            (false, _) => false,
            (true, true) => self.too_large(operations),
            (true, false) => self.answer_too_large(operations),
        }
    }

    /// The response to a call of `operations` was too large. That depends on the current values, so calls become
    /// smaller now and larger again later. Returns false if it cannot be made smaller.
    pub fn answer_too_large(&mut self, operations: usize) -> bool {
        if operations <= 1 {
            return false;
        }
        self.now = self.now.min(operations / 2).max(1);
        self.clean = 0;
        self.recovers = true;
        true
    }

    /// A call of `operations` timed out. The cause may be the server's load or the network, so calls become smaller,
    /// and grow back more slowly the more often this happens.
    pub fn timed_out(&mut self, operations: usize) {
        // Calls that were in flight together and all timed out halve the size once: the others are larger than the
        // current size.
        if operations > self.now {
            return;
        }
        self.now = (self.now / 2).max(1);
        self.clean = 0;
        if self.recovers {
            self.patience = (self.patience * 2).min(CLEAN_CALLS_MAX);
        }
        self.recovers = true;
    }

    /// A call of `operations` was refused as a whole. If the refusal does not say that it was too large, the server may
    /// fail on one of its operations: calls become smaller until that one is alone, and larger again later. Returns
    /// false if the call cannot be made smaller.
    pub fn refused(&mut self, operations: usize, error: &CallError) -> bool {
        match error {
            CallError::WrongCount { .. } => self.answer_too_large(operations),
            _ if error.is_too_large() => self.too_large(operations),
            _ => self.answer_too_large(operations),
        }
    }

    /// A call of `operations` was too large. Returns false if it cannot be made smaller.
    pub fn too_large(&mut self, operations: usize) -> bool {
        if operations <= 1 {
            return false;
        }
        // A refused size is not tried again. A refusal of an earlier call never makes the size larger.
        self.max = self.max.min(operations - 1).max(1);
        self.now = self.now.min(operations / 2).clamp(1, self.max);
        self.clean = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_profile_stays_within_both_limits() {
        assert_eq!(CallSize::new(0, 800, false).get(), 800);
        let mut chunk = CallSize::new(300, 800, false);
        (0..100).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 300);
    }

    #[test]
    fn an_unknown_server_is_given_more_step_by_step() {
        let mut chunk = CallSize::new(0, 50, true);
        let sizes: Vec<usize> = (0..40)
            .map(|_| {
                chunk.succeeded();
                chunk.get()
            })
            .collect();
        assert_eq!(sizes[..8], [50, 50, 50, 100, 100, 100, 100, 200]);
        assert_eq!(sizes.last(), Some(&1000));
        let mut limited = CallSize::new(120, 50, true);
        (0..40).for_each(|_| limited.succeeded());
        assert_eq!(limited.get(), 120);
        assert_eq!(CallSize::new(7, 50, true).get(), 7);
    }

    #[test]
    fn a_large_answer_halves_for_a_while() {
        let mut chunk = CallSize::new(0, 800, false);
        assert!(chunk.answer_too_large(800) && chunk.answer_too_large(400));
        assert_eq!(chunk.get(), 200);
        (0..63).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 200);
        (0..200).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 800);
        assert!(!chunk.answer_too_large(1));
        assert_eq!(chunk.get(), 800);
    }

    /// Successful calls until the size changes.
    fn calls_until_it_grows(chunk: &mut CallSize) -> usize {
        let size = chunk.get();
        let calls = (1..=100_000).find(|_| {
            chunk.succeeded();
            chunk.get() != size
        });
        calls.unwrap_or_else(|| panic!("it stays at {size}"))
    }

    #[test]
    fn calls_that_time_out_halve_it_once_and_it_grows_back_ever_more_slowly() {
        let mut chunk = CallSize::new(0, 50, true);
        (0..40).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 1000);
        (0..4).for_each(|_| chunk.timed_out(1000));
        assert_eq!(chunk.get(), 500);
        let mut waits = Vec::new();
        for _ in 0..9 {
            waits.push(calls_until_it_grows(&mut chunk));
            chunk.timed_out(1000);
        }
        assert_eq!(waits, [64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]);
        // A size that works for long is no longer suspect.
        calls_until_it_grows(&mut chunk);
        (0..4096).for_each(|_| chunk.succeeded());
        chunk.timed_out(1000);
        assert_eq!(calls_until_it_grows(&mut chunk), 64);
        let mut one = CallSize::new(1, 50, true);
        one.timed_out(1);
        assert_eq!(one.get(), 1);
    }

    #[test]
    fn a_refusal_halves_and_is_remembered() {
        let mut chunk = CallSize::new(0, 50, true);
        assert!(chunk.too_large(50));
        assert_eq!(chunk.get(), 25);
        (0..40).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 49);
        assert!(!chunk.too_large(1));
    }

    #[test]
    fn refusals_of_calls_that_were_in_flight_together_make_none_larger() {
        let mut chunk = CallSize::new(0, 1000, false);
        assert!(chunk.too_large(1000) && chunk.too_large(500));
        assert!(chunk.too_large(1000));
        assert_eq!(chunk.get(), 250);
    }

    #[test]
    fn a_refusal_that_does_not_say_why_halves_for_a_while() {
        use opcua::types::StatusCode;
        let because = |status: StatusCode| CallError::Refused(status.bits());
        let mut chunk = CallSize::new(0, 800, false);
        assert!(chunk.refused(800, &because(StatusCode::BadInternalError)));
        assert!(chunk.refused(400, &CallError::Unreadable(String::new())));
        assert_eq!(chunk.get(), 200);
        (0..200).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 800);
        assert!(chunk.refused(800, &because(StatusCode::BadResponseTooLarge)));
        (0..10_000).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 400);
        assert!(!chunk.refused(1, &because(StatusCode::BadInternalError)));
    }
}
