//! Shows the progress of a file in one line on a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use thalweg_kit::clock;
use thalweg_kit::threads::{self, JoinHandle};
use thalweg_lake::bulk::BulkProgress;

const DRAWN_EVERY: Duration = Duration::from_millis(200);
const WIDTH: u64 = 24;
const NAME_CHARACTERS_MAX: usize = 40;

/// Drawn until it is dropped.
pub struct ProgressBar {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressBar {
    /// Draws nothing without a terminal.
    pub fn begin(name: &str, watched: &BulkProgress) -> ProgressBar {
        if !std::io::stderr().is_terminal() {
            return ProgressBar {
                stop: None,
                thread: None,
            };
        }
        let (stop, stopped) = channel();
        let (name, watched) = (short(name), Arc::new(watched.clone()));
        let begun = clock::now();
        let draw = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(DRAWN_EVERY) {
                // A failed write only loses progress output.
                let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(&name, &watched, begun.elapsed()));
            }
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        };
        ProgressBar {
            stop: Some(stop),
            thread: threads::spawn("progress", draw).ok(),
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn short(name: &str) -> String {
    let characters = name.chars().count();
    match characters > NAME_CHARACTERS_MAX {
        true => format!(
            "…{}",
            name.chars()
                .skip(characters + 1 - NAME_CHARACTERS_MAX)
                .collect::<String>()
        ),
        false => name.to_owned(),
    }
}

fn line(name: &str, watched: &BulkProgress, took: Duration) -> String {
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (bytes, size, rows, rejected) = (
        of(&watched.bytes),
        of(&watched.size),
        of(&watched.rows),
        of(&watched.rejected),
    );
    let mut line = name.to_owned();
    // A stream has no size.
    let part = |of: u64| (of * bytes.min(size)).checked_div(size);
    if let (Some(done), Some(percent)) = (part(WIDTH), part(100)) {
        let (done, left) = (done as usize, (WIDTH - done) as usize);
        // Writing to a text cannot fail.
        let _ = write!(line, " [{}{}] {percent:3} %", "#".repeat(done), " ".repeat(left));
    }
    let per_second = rows as f64 / took.as_secs_f64().max(0.001);
    let _ = write!(line, "  {}, {rows} rows, {per_second:.0} rows/s", size_text(bytes));
    if rejected > 0 {
        let _ = write!(line, ", {rejected} rejected");
    }
    line
}

/// A size for people.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let size = bytes as f64 / f64::powi(1024.0, unit as i32);
    format!("{size:.1} {}", UNITS.get(unit - 1).unwrap_or(&"TiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_how_far_a_file_is() {
        let watched = BulkProgress::default();
        watched.bytes.store(3 << 20, Ordering::Relaxed);
        watched.rows.store(1000, Ordering::Relaxed);
        let took = Duration::from_secs(2);
        assert_eq!(line("-", &watched, took), "-  3.0 MiB, 1000 rows, 500 rows/s");
        watched.size.store(4 << 20, Ordering::Relaxed);
        watched.rejected.store(7, Ordering::Relaxed);
        assert_eq!(
            line("a", &watched, took),
            "a [##################      ]  75 %  3.0 MiB, 1000 rows, 500 rows/s, 7 rejected"
        );
        assert_eq!(size_text(1023), "1023 B");
        assert_eq!(size_text(1 << 40), "1.0 TiB");
        assert_eq!(size_text(5 << 50), "5120.0 TiB");
        assert_eq!(short(&"é".repeat(60)).chars().count(), NAME_CHARACTERS_MAX);
    }
}
