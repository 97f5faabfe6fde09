//! Rows that are no OTLP, of files and of messages, from their values to a chunk: by the names of columns, with the limits and rules that records of requests
//! have.
//!
//! A row is gathered first, since a chunk takes nothing back: what one of its values makes wrong is a bad line, whole.

pub(crate) mod cell;
mod finish;
mod gathered;
pub(crate) mod nested;
mod object;
pub(crate) mod place;
pub(crate) mod time;

use hashbrown::HashMap;

use crate::delta::schema::ColumnType;
use crate::otlp::decode::Window;
use crate::otlp::walk::{Reason, WalkLimits};
use crate::rows::chunk::Chunk;
use crate::rows::slots::Source;
pub(crate) use cell::Cell;
use finish::Finish;
use gathered::Gathered;
use place::{Best, Place};
pub(crate) use place::{Places, Promoted, promoted};

/// Why a row is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadRow {
    /// As it is counted.
    pub reason: &'static str,
    /// For whoever corrects it.
    pub why: String,
}

impl BadRow {
    /// What cannot be read, or is no value of its column.
    pub fn line(why: impl Into<String>) -> BadRow {
        BadRow {
            reason: "bad_line",
            why: why.into(),
        }
    }

    pub fn limit(reason: Reason, why: String) -> BadRow {
        BadRow {
            reason: reason.name(),
            why: format!("{}: {why}", reason.name()),
        }
    }
}

/// Names that are remembered; of a file with more, further ones are looked up each time.
const NAMES_MAX: usize = 4096;

/// Makes rows of one table.
pub(crate) struct Rows {
    places: Places,
    limits: WalkLimits,
    time_format: Option<String>,
    /// What names mean, as they were met.
    known: Vec<(Box<str>, Place)>,
    index: HashMap<Box<str>, u32>,
    /// The names of the row before, in their order: the next one mostly has the same.
    guess: Vec<u32>,
    at: usize,
    row: Gathered,
    finish: Finish,
}

/// What is the same for all rows of a file.
pub(crate) struct RowRules {
    pub limits: WalkLimits,
    pub window: Window,
    /// In nanoseconds.
    pub arrival: i64,
    pub time_format: Option<String>,
}

impl Rows {
    pub fn new(places: Places, rules: RowRules) -> Rows {
        Rows {
            finish: Finish::new(places.spec(), rules.window, rules.arrival),
            places,
            limits: rules.limits,
            time_format: rules.time_format,
            known: Vec::new(),
            index: HashMap::new(),
            guess: Vec::new(),
            at: 0,
            row: Gathered::default(),
        }
    }

    /// What follows arrived then, in nanoseconds, and has other limits.
    pub fn arrived(&mut self, arrival: i64, limits: WalkLimits) {
        self.finish.arrival = arrival;
        self.limits = limits;
    }

    /// Another row begins.
    pub fn begin(&mut self) {
        self.row.clear();
        self.at = 0;
    }

    /// A value of the row. After an error the row is given up by beginning another.
    pub fn put(&mut self, name: &str, value: Cell<'_>) -> Result<(), BadRow> {
        let at = self.at;
        self.at += 1;
        if value == Cell::Null {
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
        // Taken for the moment of the call, so that the row can be changed.
        match found.and_then(|found| self.known.get_mut(found as usize)) {
            Some((_, place)) => {
                let taken = std::mem::replace(place, Place::Made);
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

    /// The number of a name, which is guessed for this place in the next row.
    #[inline(never)]
    fn find(&mut self, name: &str, at: usize) -> Option<u32> {
        let number = match self.index.get(name) {
            Some(number) => *number,
            // One that is too long makes the row a bad one, and is not worth any memory.
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

    fn put_at(&mut self, name: &str, place: &Place, value: Cell<'_>) -> Result<(), BadRow> {
        match place {
            Place::Best(best, rank) => self.best(*best, *rank, name, value),
            Place::Column(column) => self.column(*column, name, value),
            Place::Millis(column) => {
                let millis = match value {
                    Cell::Number(digits) | Cell::Text(digits) => time::of_millis(digits.trim()),
                    _ => None,
                };
                let nanos = millis.and_then(|nanos| i64::try_from(nanos).ok());
                let nanos = nanos.ok_or_else(|| wrong(name, value, "a number of milliseconds"))?;
                self.row.longs.push((*column, nanos));
                Ok(())
            }
            Place::Attribute(source, attribute) => self.attribute(*source, attribute, value),
            Place::Overflow => self.overflow(value),
            Place::Made => Ok(()),
        }
    }

    /// What may be the time, the body or the severity. The one that is not the best is an attribute.
    fn best(&mut self, best: Best, rank: u8, name: &str, value: Cell<'_>) -> Result<(), BadRow> {
        let nanos = match best {
            Best::Time => moment(rank, value, self.time_format.as_deref()),
            Best::Body | Best::Severity => None,
        };
        let rank = match (best, nanos) {
            (Best::Time, None) => rank + NO_TIME,
            _ => rank,
        };
        match self.row.best(best, rank, name, value, nanos) {
            Some(other) => self.demoted(best, other),
            None => Ok(()),
        }
    }

    /// What could have been the time, the body or the severity.
    fn demoted(&mut self, best: Best, other: gathered::Candidate) -> Result<(), BadRow> {
        // Of these tables, and of those of the reference system, a second column says the same moment less exactly.
        let is_same = matches!(
            (other.name.as_str(), self.row.rank(best)),
            ("time", Some(0)) | ("chq_timestamp", Some(1))
        );
        if best == Best::Time && is_same {
            return Ok(());
        }
        self.attribute(Source::Attr, &other.name, Cell::Text(&other.text))
    }

    fn attribute(&mut self, source: Source, name: &str, value: Cell<'_>) -> Result<(), BadRow> {
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
            let why = format!("a name has {} bytes, and may have {limit}", name.len());
            return Err(BadRow::limit(Reason::NameTooLong, why));
        }
        if self.row.attributes() >= count {
            let why = format!("it has more than {count} attributes");
            return Err(BadRow::limit(Reason::TooManyAttributes, why));
        }
        Ok(())
    }

    fn check_value(&self, name: &str, len: usize) -> Result<(), BadRow> {
        let limit = self.limits.value_bytes;
        match len > limit && !self.limits.cut_values {
            true => {
                let why = format!("{name} has {len} bytes, and may have {limit}");
                Err(BadRow::limit(Reason::ValueTooLong, why))
            }
            false => Ok(()),
        }
    }

    /// `resource.x`, `scope.x` and `attr.x` with their texts.
    fn overflow(&mut self, value: Cell<'_>) -> Result<(), BadRow> {
        let Cell::Json(json) = value else {
            return Err(wrong("overflow", value, "a map"));
        };
        let mut pairs = Vec::new();
        nested::pairs(json, |name, text| pairs.push((name.to_owned(), text.to_owned())))
            .map_err(|why| BadRow::line(format!("overflow: {why}")))?;
        for (name, text) in pairs {
            match place::of_source(&name) {
                Some(Place::Attribute(source, attribute)) => self.attribute(source, &attribute, Cell::Text(&text))?,
                _ => self.attribute(Source::Attr, &name, Cell::Text(&text))?,
            }
        }
        Ok(())
    }

    fn column(&mut self, column: usize, name: &str, value: Cell<'_>) -> Result<(), BadRow> {
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
                    && let Cell::Number(_) | Cell::Text(_) = value
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
                let Cell::Json(json) = value else {
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

    /// Adds the row.
    pub fn end(&mut self, chunk: &mut Chunk, changed: &mut crate::otlp::decode::Changed) -> Result<(), BadRow> {
        if let Some(body) = self.row.best_text(Best::Body) {
            self.check_value("the body", body.len())?;
        }
        let cut = self.limits.cut_values.then_some(self.limits.value_bytes);
        if let Some(text) = self
            .row
            .best_text(Best::Time)
            .filter(|_| self.row.rank(Best::Time) >= Some(NO_TIME))
        {
            let shown = Cell::Text(text).shown();
            let name = self.row.best_name(Best::Time).unwrap_or_default();
            return Err(BadRow::line(match &self.time_format {
                Some(format) => format!("{name}: {shown} is no time of the form {format:?}"),
                None => {
                    format!("{name}: {shown} is no time: neither RFC 3339 nor a number")
                }
            }));
        }
        self.finish.row(&mut self.row, chunk, cut, changed)
    }
}

/// What is no time comes behind all that is one.
const NO_TIME: u8 = 100;

/// The moment that a value says, in nanoseconds, by how good its name is.
fn moment(rank: u8, value: Cell<'_>, format: Option<&str>) -> Option<i128> {
    let (text, is_number) = match value {
        Cell::Time(nanos) => return Some(nanos),
        Cell::Number(digits) => (digits, true),
        Cell::Text(text) => (text.trim(), false),
        _ => return None,
    };
    let exact = |unit: i128| text.parse::<i64>().ok().map(|number| i128::from(number) * unit);
    match (usize::from(rank), format) {
        (place::OWN | place::THEIRS, _) => exact(1).or_else(|| time::of_text(text)),
        (place::THEIRS_MILLIS, _) => time::of_millis(text).or_else(|| time::of_text(text)),
        (_, Some(format)) if !is_number => time::of_format(text, format),
        _ if is_number => time::of_number(text),
        _ => time::of_text(text),
    }
}

/// Whole numbers have a column of their own beside the doubles.
fn exact_long(value: Cell<'_>) -> Option<i64> {
    match value {
        Cell::Number(digits) | Cell::Text(digits) => digits.trim().parse().ok(),
        _ => None,
    }
}

fn wrong(name: &str, value: Cell<'_>, expected: &str) -> BadRow {
    BadRow::line(format!("{name}: {} is not {expected}", value.shown()))
}
