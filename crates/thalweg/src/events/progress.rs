//! Shows the progress of long work in one line on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use thalweg_kit::clock;

const TELL_EVERY: Duration = Duration::from_secs(1);

/// Dropping it ends the line.
pub struct ByteProgress {
    done: &'static str,
    told: Instant,
    on_terminal: bool,
    begun: bool,
}

impl ByteProgress {
    /// `done` is what happened to the bytes.
    pub fn new(done: &'static str) -> ByteProgress {
        ByteProgress {
            done,
            told: clock::now(),
            on_terminal: io::stderr().is_terminal(),
            begun: false,
        }
    }

    pub fn tell(&mut self, bytes: u64) {
        if self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            (self.told, self.begun) = (clock::now(), true);
            // A failed write only loses progress output.
            let _ = write!(io::stderr(), "\r{} MiB {}", bytes >> 20, self.done);
        }
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        if self.begun {
            let _ = writeln!(io::stderr());
        }
    }
}
