//! Rollups: one row for each series and window of 10 s, 1 min, 5 min, 20 min and 1 h. Each resolution is made from the
//! next finer one.

mod file_writer;
mod input;
pub mod job;
mod last_points;
mod pass;
#[cfg(test)]
mod tests;
pub mod windows;

use thalweg_delta::FileEntry;

const NANOS_PER_S: i64 = 1_000_000_000;

/// The compression level of windows, also in merges. Sketches are long and similar: at this level they take a quarter
/// less space than at the one of flushes, and there are few of them to compress.
pub(crate) const ZSTD_LEVEL: i32 = 6;

/// The length of a window. Windows begin at multiples of it since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resolution {
    TenSeconds,
    Minute,
    FiveMinutes,
    TwentyMinutes,
    Hour,
}

impl Resolution {
    /// From the finest, which is made from raw rows.
    pub const ALL: [Resolution; 5] = [
        Resolution::TenSeconds,
        Resolution::Minute,
        Resolution::FiveMinutes,
        Resolution::TwentyMinutes,
        Resolution::Hour,
    ];

    pub const fn seconds(self) -> i32 {
        match self {
            Resolution::TenSeconds => 10,
            Resolution::Minute => 60,
            Resolution::FiveMinutes => 300,
            Resolution::TwentyMinutes => 1200,
            Resolution::Hour => 3600,
        }
    }

    /// That of a file with windows.
    pub(crate) fn of_file(file: &FileEntry) -> Option<Resolution> {
        let seconds: i32 = file.partition.first()?.as_deref()?.parse().ok()?;
        Resolution::ALL.into_iter().find(|of| of.seconds() == seconds)
    }

    pub const fn nanos(self) -> i64 {
        self.seconds() as i64 * NANOS_PER_S
    }

    /// The beginning of the window of a time. Saturates at the least time.
    pub fn window_of(self, time: i64) -> i64 {
        time.saturating_sub(time.rem_euclid(self.nanos()))
    }
}
