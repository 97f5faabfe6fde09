//! Writes a time as an RFC 3339 text in UTC, such as `2031-05-06T07:08:09.123Z`. The text is on the stack and goes into texts
//! and bytes alike, because two of them are written for every value of some inputs.

use std::fmt;

use super::{CivilTime, UnixTime};

/// How many digits a text shows of the fraction of a second. What is finer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decimals {
    /// This number, of at most nine.
    Exactly(u8),
    /// As many as the time needs, none for a whole second, but at most this number.
    UpTo(u8),
}

/// How years other than 0 to 9999 are written, for which RFC 3339 has no form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YearForm {
    /// The number in at least four characters: `12345`, `-044`.
    Plain,
    /// A sign and at least six digits, as in ISO 8601: `+012345`, `-000044`.
    Expanded,
}

/// A year of 64 bits of seconds has a sign and twelve digits.
const YEAR_BYTES_MAX: usize = 13;
const TEXT_BYTES_MAX: usize = YEAR_BYTES_MAX + "-05-06T07:08:09.123456789Z".len();

/// The text of a time.
#[derive(Clone, Copy)]
pub struct TimeText {
    bytes: [u8; TEXT_BYTES_MAX],
    len: usize,
}

impl TimeText {
    pub fn new(time: UnixTime, decimals: Decimals, years: YearForm) -> TimeText {
        let mut text = TimeText {
            bytes: [0; TEXT_BYTES_MAX],
            len: 0,
        };
        let civil = time.civil();
        text.year(civil.date.year, years);
        text.within_year(&civil);
        text.fraction(civil.nanos, decimals);
        text.extend(b"Z");
        text
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    fn year(&mut self, year: i64, form: YearForm) {
        match (year, form) {
            // The usual case, without the formatting machinery.
            (0..=9999, _) => {
                self.extend(&two_digits((year / 100) as u8));
                self.extend(&two_digits((year % 100) as u8));
            }
            (_, YearForm::Plain) => self.extend(format!("{year:04}").as_bytes()),
            (..0, YearForm::Expanded) => self.extend(format!("-{:06}", year.unsigned_abs()).as_bytes()),
            (_, YearForm::Expanded) => self.extend(format!("+{year:06}").as_bytes()),
        }
    }

    fn within_year(&mut self, civil: &CivilTime) {
        let ([m1, m2], [d1, d2]) = (two_digits(civil.date.month), two_digits(civil.date.day));
        let ([h1, h2], [n1, n2], [s1, s2]) = (
            two_digits(civil.hour),
            two_digits(civil.minute),
            two_digits(civil.second),
        );
        self.extend(&[b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2]);
    }

    fn fraction(&mut self, nanos: u32, decimals: Decimals) {
        let mut digits = [0; 9];
        let mut rest = nanos;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let shown = match decimals {
            Decimals::Exactly(count) => digits.get(..usize::from(count)).unwrap_or(&digits),
            Decimals::UpTo(most) => {
                let most = digits.get(..usize::from(most)).unwrap_or(&digits);
                let needed = most.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
                most.get(..needed).unwrap_or_default()
            }
        };
        if !shown.is_empty() {
            self.extend(b".");
            self.extend(shown);
        }
    }

    /// The longest text fits.
    #[inline]
    fn extend(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }
}

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[inline]
const fn two_digits(number: u8) -> [u8; 2] {
    [b'0' + number / 10, b'0' + number % 10]
}
