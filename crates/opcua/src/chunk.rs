//! How many operations go into one call: as many as server and profile allow, fewer after a refusal, and more again
//! where the profile knows nothing of the server.

use crate::channel::CallError;
use crate::value::status;

/// Upper bound where the server names none.
const OPERATIONS_MAX: usize = 1000;

/// Calls without a refusal before the size doubles.
const CLEAN_CALLS: u8 = 4;

/// The same where answers were too large: a try that fails costs the server a large answer for nothing.
const CLEAN_CALLS_RECOVERING: u8 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSize {
    now: usize,
    max: usize,
    grows: bool,
    clean: u8,
    /// Made smaller for the sake of answers, which may be smaller again another time.
    recovers: bool,
}

impl ChunkSize {
    /// `server_limit` 0: the server names none. `grows`: start at the profile's figure and find out.
    pub fn new(server_limit: u32, profile: usize, grows: bool) -> ChunkSize {
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
        ChunkSize {
            now: profile.min(max).max(1),
            max: max.max(1),
            grows,
            clean: 0,
            recovers: false,
        }
    }

    pub fn get(&self) -> usize {
        self.now
    }

    pub fn succeeded(&mut self) {
        if !(self.grows || self.recovers) || self.now >= self.max {
            self.recovers = false;
            return;
        }
        self.clean += 1;
        let enough = if self.recovers {
            CLEAN_CALLS_RECOVERING
        } else {
            CLEAN_CALLS
        };
        if self.clean >= enough {
            self.clean = 0;
            self.now = (self.now * 2).min(self.max);
        }
    }

    /// A call of `operations` failed. True if calls are smaller now, so that trying again may help.
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

    /// The answer to a call of `operations` was too large. That depends on the values of the moment, so calls become
    /// smaller now and larger again later. False if it cannot be made smaller.
    pub fn answer_too_large(&mut self, operations: usize) -> bool {
        if operations <= 1 {
            return false;
        }
        self.now = self.now.min(operations / 2).max(1);
        self.clean = 0;
        self.recovers = true;
        true
    }

    /// A call of `operations` was too large. False if it cannot be made smaller.
    pub fn too_large(&mut self, operations: usize) -> bool {
        if operations <= 1 {
            return false;
        }
        // What was refused once is not tried again.
        self.max = self.max.min(operations - 1).max(1);
        self.now = (operations / 2).clamp(1, self.max);
        self.clean = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_profile_stays_within_both_limits() {
        assert_eq!(ChunkSize::new(0, 800, false).get(), 800);
        let mut chunk = ChunkSize::new(300, 800, false);
        (0..100).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 300);
    }

    #[test]
    fn an_unknown_server_is_given_more_step_by_step() {
        let mut chunk = ChunkSize::new(0, 50, true);
        let sizes: Vec<usize> = (0..40)
            .map(|_| {
                chunk.succeeded();
                chunk.get()
            })
            .collect();
        assert_eq!(sizes[..8], [50, 50, 50, 100, 100, 100, 100, 200]);
        assert_eq!(sizes.last(), Some(&1000));
        let mut limited = ChunkSize::new(120, 50, true);
        (0..40).for_each(|_| limited.succeeded());
        assert_eq!(limited.get(), 120);
        assert_eq!(ChunkSize::new(7, 50, true).get(), 7);
    }

    #[test]
    fn a_large_answer_halves_for_a_while() {
        let mut chunk = ChunkSize::new(0, 800, false);
        assert!(chunk.answer_too_large(800) && chunk.answer_too_large(400));
        assert_eq!(chunk.get(), 200);
        (0..63).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 200);
        (0..200).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 800);
        assert!(!chunk.answer_too_large(1));
        assert_eq!(chunk.get(), 800);
    }

    #[test]
    fn a_refusal_halves_and_is_remembered() {
        let mut chunk = ChunkSize::new(0, 50, true);
        assert!(chunk.too_large(50));
        assert_eq!(chunk.get(), 25);
        (0..40).for_each(|_| chunk.succeeded());
        assert_eq!(chunk.get(), 49);
        assert!(!chunk.too_large(1));
    }
}
