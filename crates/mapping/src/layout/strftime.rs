//! Formats of `strftime` and `strptime`: `%Y-%m-%d %H:%M:%S`.

use jiff::Timestamp;
use jiff::fmt::strtime::{self, BrokenDownTime};
use jiff::tz::TimeZone;

/// A format whose directives are known.
#[derive(Debug)]
pub(crate) struct StrftimeFormat(String);

impl StrftimeFormat {
    pub fn parse(text: &str) -> Result<StrftimeFormat, String> {
        let format = StrftimeFormat(text.to_owned());
        format.write(Timestamp::UNIX_EPOCH, TimeZone::UTC)?;
        Ok(format)
    }

    pub fn write(&self, time: Timestamp, zone: TimeZone) -> Result<String, String> {
        strtime::format(&self.0, &time.to_zoned(zone)).map_err(|error| format!("bad time format {:?}: {error}", self.0))
    }

    /// A text without an offset is in UTC.
    pub fn read(&self, text: &str) -> Result<Timestamp, String> {
        let refuse = |error: jiff::Error| format!("cannot parse {text:?} as a time with format {:?}: {error}", self.0);
        let parsed = BrokenDownTime::parse(&self.0, text).map_err(refuse)?;
        if let Ok(time) = parsed.to_timestamp() {
            return Ok(time);
        }
        let civil = parsed.to_datetime().map_err(refuse)?;
        civil
            .to_zoned(TimeZone::UTC)
            .map(|zoned| zoned.timestamp())
            .map_err(refuse)
    }
}
