//! Makes rows of named values, from files and messages, with the same limits and rules as for OTLP records.
//!
//! A row is buffered first, because nothing can be removed from a chunk: an invalid value rejects the whole row.

pub(crate) mod cell;
pub(crate) mod column_mapping;
mod entry_decoder;
mod finish;
pub(crate) mod nested;
mod object;
mod row_buffer;
pub(crate) mod time;

use hashbrown::HashMap;

pub(crate) use cell::CellValue;
pub use column_mapping::{ColumnMapping, PromotedColumn, promoted};
use column_mapping::{ColumnTarget, FieldRole};
pub use entry_decoder::RowEntryDecoder;
use finish::RowFinisher;
use row_buffer::RowBuffer;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::{RecordLimits, RejectionReason};
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_delta::schema::ColumnType;

/// The reasons for which rows are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRowReason {
    /// The row cannot be parsed, or a value does not fit its column.
    Line,
    /// The row breaks a rule or a limit that records of OTLP have, too.
    Record(RejectionReason),
}

impl BadRowReason {
    /// The label in counts.
    pub fn name(self) -> &'static str {
        match self {
            BadRowReason::Line => "bad_line",
            BadRowReason::Record(reason) => reason.name(),
        }
    }

    /// What is wrong, in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            BadRowReason::Line => "A line or a message is not a row of its table, or a value does not fit its column.",
            BadRowReason::Record(reason) => reason.meaning(),
        }
    }
}

/// Why a row is rejected.
#[derive(Debug, PartialEq, Eq)]
pub struct BadRow {
    pub reason: BadRowReason,
    /// The reason for the user.
    pub why: String,
}

impl BadRow {
    /// The row cannot be parsed, or a value does not fit its column.
    pub fn line(why: impl Into<String>) -> BadRow {
        BadRow {
            reason: BadRowReason::Line,
            why: why.into(),
        }
    }

    pub fn limit(reason: RejectionReason, why: String) -> BadRow {
        BadRow {
            reason: BadRowReason::Record(reason),
            why: format!("{}: {why}", reason.name()),
        }
    }
}

/// Column names that are cached; further ones are looked up each time.
const NAMES_MAX: usize = 4096;

/// Makes rows of one table.
pub struct NamedRowBuilder {
    places: ColumnMapping,
    limits: RecordLimits,
    time_format: Option<String>,
    /// The targets of names seen so far.
    known: Vec<(Box<str>, ColumnTarget)>,
    index: HashMap<Box<str>, u32>,
    /// The names of the previous row in order; the next row mostly has the same.
    guess: Vec<u32>,
    at: usize,
    row: RowBuffer,
    finish: RowFinisher,
}

/// The rules for all rows of a file.
pub struct RowRules {
    pub limits: RecordLimits,
    pub window: ArrivalWindow,
    /// In nanoseconds.
    pub arrival: i64,
    pub time_format: Option<String>,
}

impl NamedRowBuilder {
    pub fn new(places: ColumnMapping, rules: RowRules) -> NamedRowBuilder {
        NamedRowBuilder {
            finish: RowFinisher::new(places.spec(), rules.window, rules.arrival),
            places,
            limits: rules.limits,
            time_format: rules.time_format,
            known: Vec::new(),
            index: HashMap::new(),
            guess: Vec::new(),
            at: 0,
            row: RowBuffer::default(),
        }
    }

    /// Sets the arrival, in nanoseconds, and the limits of the following rows.
    pub fn arrived(&mut self, arrival: i64, limits: RecordLimits) {
        self.finish.arrival = arrival;
        self.limits = limits;
    }

    /// Begins a row.
    pub fn begin(&mut self) {
        self.row.clear();
        self.at = 0;
    }

    /// Adds a value to the row. After an error, begin another row to discard this one.
    pub(crate) fn put(&mut self, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        let at = self.at;
        self.at += 1;
        if value == CellValue::Null {
            return Ok(());
        }
        let guessed = self.guess.get(at).copied().unwrap_or(u32::MAX);
        let is_right = self
            .known
            .get(guessed as usize)
            .is_some_and(|(known, _)| **known == *name);
        let found = match is_right {
            true => Some(guessed),
            false => self.find(name, at),
        };
        // Moved out during the call, because the call borrows `self` mutably.
        match found.and_then(|found| self.known.get_mut(found as usize)) {
            Some((_, place)) => {
                let taken = std::mem::replace(place, ColumnTarget::Made);
                let done = self.put_at(name, &taken, value);
                if let Some((_, place)) = found.and_then(|found| self.known.get_mut(found as usize)) {
                    *place = taken;
                }
                done
            }
            None => {
                let place = self.places.of(name);
                self.put_at(name, &place, value)
            }
        }
    }

    /// The number of a name, which becomes the guess for this position of the next row.
    #[inline(never)]
    fn find(&mut self, name: &str, at: usize) -> Option<u32> {
        let number = match self.index.get(name) {
            Some(number) => *number,
            // A name that is too long rejects the row, so it is not cached.
            None if self.known.len() < NAMES_MAX && name.len() <= self.limits.name_bytes => {
                let number = self.known.len() as u32;
                self.known.push((name.into(), self.places.of(name)));
                self.index.insert(name.into(), number);
                number
            }
            None => return None,
        };
        if self.guess.len() <= at && at < NAMES_MAX {
            self.guess.resize(at + 1, u32::MAX);
        }
        if let Some(guess) = self.guess.get_mut(at) {
            *guess = number;
        }
        Some(number)
    }

    fn put_at(&mut self, name: &str, place: &ColumnTarget, value: CellValue<'_>) -> Result<(), BadRow> {
        match place {
            ColumnTarget::Best(best, rank) => self.best(*best, *rank, name, value),
            ColumnTarget::Column(column) => self.column(*column, name, value),
            ColumnTarget::Millis(column) => {
                let millis = match value {
                    CellValue::Number(digits) | CellValue::Text(digits) => time::of_millis(digits.trim()),
                    _ => None,
                };
                let nanos = millis.and_then(|nanos| i64::try_from(nanos).ok());
                let nanos = nanos.ok_or_else(|| wrong(name, value, "a number of milliseconds"))?;
                self.row.longs.push((*column, nanos));
                Ok(())
            }
            ColumnTarget::Attribute(source, attribute) => self.attribute(*source, attribute, value),
            ColumnTarget::Overflow => self.overflow(value),
            ColumnTarget::Made => Ok(()),
        }
    }

    /// Adds a candidate for the time, the body or the severity. A candidate that is not the best becomes an attribute.
    fn best(&mut self, best: FieldRole, rank: u8, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        let nanos = match best {
            FieldRole::Time => moment(rank, value, self.time_format.as_deref()),
            FieldRole::Body | FieldRole::Severity => None,
        };
        let rank = match (best, nanos) {
            (FieldRole::Time, None) => rank + NO_TIME,
            _ => rank,
        };
        match self.row.best(best, rank, name, value, nanos) {
            Some(other) => self.demoted(best, other),
            None => Ok(()),
        }
    }

    /// Handles a candidate that is not the best.
    fn demoted(&mut self, best: FieldRole, other: row_buffer::Candidate) -> Result<(), BadRow> {
        // In these tables, and in those of the reference system, a second column has the same time less precisely.
        let is_same = matches!(
            (other.name.as_str(), self.row.rank(best)),
            ("time", Some(0)) | ("chq_timestamp", Some(1))
        );
        if best == FieldRole::Time && is_same {
            return Ok(());
        }
        self.attribute(AttributeSource::Attr, &other.name, CellValue::Text(&other.text))
    }

    fn attribute(&mut self, source: AttributeSource, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        self.named(name)?;
        let cut = self.limits.cut_values.then_some(self.limits.value_bytes);
        let len = self.row.attribute(source, name, |out| value.write(out));
        match cut {
            Some(limit) => {
                self.row.cut_last(limit);
                Ok(())
            }
            None => self.check_value(name, len),
        }
    }

    fn named(&self, name: &str) -> Result<(), BadRow> {
        let (limit, count) = (self.limits.name_bytes, self.limits.attributes);
        if name.len() > limit {
            let why = format!("a name has {} bytes, the limit is {limit}", name.len());
            return Err(BadRow::limit(RejectionReason::NameTooLong, why));
        }
        if self.row.attributes() >= count {
            let why = format!("it has more than {count} attributes");
            return Err(BadRow::limit(RejectionReason::TooManyAttributes, why));
        }
        Ok(())
    }

    fn check_value(&self, name: &str, len: usize) -> Result<(), BadRow> {
        let limit = self.limits.value_bytes;
        match len > limit && !self.limits.cut_values {
            true => {
                let why = format!("{name} has {len} bytes, the limit is {limit}");
                Err(BadRow::limit(RejectionReason::ValueTooLong, why))
            }
            false => Ok(()),
        }
    }

    /// Adds the attributes `resource.x`, `scope.x` and `attr.x`.
    fn overflow(&mut self, value: CellValue<'_>) -> Result<(), BadRow> {
        let CellValue::Json(json) = value else {
            return Err(wrong("overflow", value, "a map"));
        };
        let mut pairs = Vec::new();
        nested::pairs(json, |name, text| pairs.push((name.to_owned(), text.to_owned())))
            .map_err(|why| BadRow::line(format!("overflow: {why}")))?;
        for (name, text) in pairs {
            match column_mapping::of_source(&name) {
                Some(ColumnTarget::Attribute(source, attribute)) => {
                    self.attribute(source, &attribute, CellValue::Text(&text))?
                }
                _ => self.attribute(AttributeSource::Attr, &name, CellValue::Text(&text))?,
            }
        }
        Ok(())
    }

    fn column(&mut self, column: usize, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        let Some((column_name, kind)) = self.places.kind(column) else {
            return Ok(());
        };
        let row = &mut self.row;
        match kind {
            ColumnType::Long if column_name.ends_with("_unix_nano") => {
                let value = value
                    .nanos()
                    .ok_or_else(|| wrong(name, value, "a time in nanoseconds"))?;
                row.longs.push((column, value));
            }
            ColumnType::Long => {
                let value = value
                    .long()
                    .ok_or_else(|| wrong(name, value, "a whole number of 64 bits"))?;
                row.longs.push((column, value));
            }
            ColumnType::Integer => {
                let number = value.long().and_then(|number| i32::try_from(number).ok());
                row.integers.push((
                    column,
                    number.ok_or_else(|| wrong(name, value, "a whole number of 32 bits"))?,
                ));
            }
            ColumnType::Double => {
                let number = value.double().ok_or_else(|| wrong(name, value, "a number"))?;
                row.doubles.push((column, number));
                if column_name == "value"
                    && let CellValue::Number(_) | CellValue::Text(_) = value
                    && let Some(exact) = exact_long(value)
                {
                    row.exact_value = Some(exact);
                }
            }
            ColumnType::Boolean => {
                let value = value.boolean().ok_or_else(|| wrong(name, value, "true or false"))?;
                row.booleans.push((column, value));
            }
            ColumnType::String if column_name.ends_with("_id") => {
                let id = nested::id(value, if column_name == "trace_id" { 16 } else { 8 });
                row.text(column, |out| id.write(out));
            }
            ColumnType::String if column_name == "temporality" => {
                let mut word = String::new();
                value.write(&mut word);
                row.text(column, |out| out.push_str(&word.to_ascii_lowercase()));
            }
            ColumnType::Array(_) | ColumnType::Struct(_) => {
                let CellValue::Json(json) = value else {
                    return Err(wrong(name, value, "a list"));
                };
                nested::check(json, kind).map_err(|why| BadRow::line(format!("{name}: {why}")))?;
                row.text_of_nested(column, json);
            }
            _ => {
                let len = row.text(column, |out| value.write(out));
                self.check_value(name, len)?;
            }
        }
        Ok(())
    }

    /// Adds the row to the chunk.
    pub fn end(
        &mut self,
        chunk: &mut MemtableChunk,
        changed: &mut thalweg_columns::rows::change_counts::RowChangeCounts,
    ) -> Result<(), BadRow> {
        if let Some(body) = self.row.best_text(FieldRole::Body) {
            self.check_value("the body", body.len())?;
        }
        let cut = self.limits.cut_values.then_some(self.limits.value_bytes);
        if let Some(text) = self
            .row
            .best_text(FieldRole::Time)
            .filter(|_| self.row.rank(FieldRole::Time) >= Some(NO_TIME))
        {
            let shown = CellValue::Text(text).shown();
            let name = self.row.best_name(FieldRole::Time).unwrap_or_default();
            return Err(BadRow::line(match &self.time_format {
                Some(format) => format!("{name}: {shown} is not a time of the form {format:?}"),
                None => {
                    format!("{name}: {shown} is not a time: neither RFC 3339 nor a number")
                }
            }));
        }
        self.finish.row(&mut self.row, chunk, cut, changed)
    }
}

/// Added to the rank of values that are no time, so that any time is better.
const NO_TIME: u8 = 100;

/// The time of a value in nanoseconds, interpreted by the rank of its name.
fn moment(rank: u8, value: CellValue<'_>, format: Option<&str>) -> Option<i128> {
    let (text, is_number) = match value {
        CellValue::Time(nanos) => return Some(nanos),
        CellValue::Number(digits) => (digits, true),
        CellValue::Text(text) => (text.trim(), false),
        _ => return None,
    };
    let exact = |unit: i128| text.parse::<i64>().ok().map(|number| i128::from(number) * unit);
    match (usize::from(rank), format) {
        (column_mapping::OWN | column_mapping::THEIRS, _) => exact(1).or_else(|| time::of_text(text)),
        (column_mapping::THEIRS_MILLIS, _) => time::of_millis(text).or_else(|| time::of_text(text)),
        (_, Some(format)) if !is_number => time::of_format(text, format),
        _ if is_number => time::of_number(text),
        _ => time::of_text(text),
    }
}

/// Whole numbers also have a separate column beside the doubles.
fn exact_long(value: CellValue<'_>) -> Option<i64> {
    match value {
        CellValue::Number(digits) | CellValue::Text(digits) => digits.trim().parse().ok(),
        _ => None,
    }
}

fn wrong(name: &str, value: CellValue<'_>, expected: &str) -> BadRow {
    BadRow::line(format!("{name}: {} is not {expected}", value.shown()))
}
