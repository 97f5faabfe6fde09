//! Makes rows of named values, from files and messages, with the same limits and rules as for OTLP records.
//!
//! A row is buffered first, because nothing can be removed from a chunk: an invalid value rejects the whole row.

pub(crate) mod cell;
pub(crate) mod column_mapping;
mod entry_decoder;
mod finish;
mod known_names;
pub(crate) mod missing;
pub(crate) mod nested;
mod object;
mod row_buffer;
pub(crate) mod time;

use hashbrown::HashMap;

pub(crate) use cell::CellValue;
use column_mapping::ColumnTarget;
pub use column_mapping::{ColumnMapping, PromotedColumn, promoted};
pub use entry_decoder::RowEntryDecoder;
use finish::{RowFinisher, SERVICE};
use known_names::{FieldRole, NumberUnit, RoleName, WEAK_BODIES};
use missing::{MissingFields, is_plausible};
use row_buffer::{Candidate, RowBuffer};
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
    /// The members of an object are being added, so those of a further object in it become JSON.
    is_inside: bool,
    row: RowBuffer,
    finish: RowFinisher,
    missing: Option<MissingFields>,
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
            is_inside: false,
            row: RowBuffer::default(),
            missing: None,
        }
    }

    /// Notes from now on which rows have no time or no body.
    pub(crate) fn note_missing(&mut self) {
        self.missing = Some(MissingFields::new(self.places.column("body").is_some()));
    }

    /// What was noted, if it was asked for.
    pub(crate) fn missing(&self) -> Option<&MissingFields> {
        self.missing.as_ref()
    }

    /// Sets the arrival, in nanoseconds, and the limits of the following rows.
    pub fn arrived(&mut self, arrival: i64, limits: RecordLimits) {
        self.finish.arrival = arrival;
        self.limits = limits;
    }

    /// Begins a row.
    pub fn begin(&mut self) {
        self.row.clear();
        (self.at, self.is_inside) = (0, false);
    }

    /// Adds a value to the row. After an error, begin another row to discard this one.
    pub(crate) fn put(&mut self, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        let at = self.at;
        self.at += 1;
        if value == CellValue::Null {
            return Ok(());
        }
        if let Some(missing) = &mut self.missing {
            missing.value(name, value);
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
            ColumnTarget::Role(role) => self.role(*role, name, value),
            ColumnTarget::Column(column) => self.column(*column, name, value),
            ColumnTarget::Spelled(_) if matches!(value, CellValue::Json(_)) => {
                self.attribute(AttributeSource::Attr, (name, name), value)
            }
            ColumnTarget::Spelled(column) => {
                let id_bytes = self.places.id_bytes(*column);
                self.row.defer(*column, name, |out| match id_bytes {
                    Some(bytes) => nested::id(value, bytes).write(out),
                    None => value.write(out),
                });
                Ok(())
            }
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
            ColumnTarget::Attribute(source, attribute) => self.attribute(*source, (name, attribute), value),
            ColumnTarget::Overflow => self.overflow(value),
            ColumnTarget::Made => Ok(()),
        }
    }

    /// Adds a candidate for a role. A candidate that is not the best becomes an attribute.
    fn role(&mut self, role: RoleName, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        let is_object = matches!(value, CellValue::Json(_));
        let may_be_other = match role.role {
            FieldRole::Severity | FieldRole::Service => is_object,
            FieldRole::Body => role.position >= WEAK_BODIES && matches!(value, CellValue::Bytes(_)),
            FieldRole::Time => false,
        };
        if may_be_other && !role.is_mapped {
            return self.attribute(AttributeSource::Attr, (name, name), value);
        }
        let mut candidate = Candidate::new(role, name, value);
        match role.role {
            FieldRole::Time => {
                candidate.nanos = moment(role, value, self.time_format.as_deref());
                match candidate.nanos {
                    Some(0) => candidate.rank += EMPTY,
                    Some(_) => {}
                    None => {
                        let of_day = time::of_day(&candidate.text);
                        self.row.time_of_day = of_day.or(self.row.time_of_day);
                        if !role.is_strict {
                            return self.attribute(AttributeSource::Attr, (name, name), value);
                        }
                        candidate.rank += NO_TIME;
                    }
                }
            }
            _ if candidate.text.is_empty() => candidate.rank += EMPTY,
            FieldRole::Body if is_object && role.position >= WEAK_BODIES => candidate.rank += WEAK,
            _ => {}
        }
        match self.row.best(candidate) {
            Some(other) => self.demoted(&other),
            None => Ok(()),
        }
    }

    /// Handles a candidate that is not the best.
    fn demoted(&mut self, other: &Candidate) -> Result<(), BadRow> {
        // In these tables, and in those of the reference system, a second column has the same time less precisely.
        let best = self.row.best_of(other.role.role).map(|best| best.role.position);
        let is_same = matches!(
            (other.name.as_str(), best),
            ("time" | "date", Some(known_names::OWN_TIME)) | ("chq_timestamp", Some(known_names::THEIR_TIME))
        );
        if other.role.role == FieldRole::Time && is_same {
            return Ok(());
        }
        self.attribute(AttributeSource::Attr, (&other.name, &other.name), other.value())
    }

    /// Adds an attribute, with its name in the file and its own. An object becomes attributes, one for each member.
    fn attribute(
        &mut self,
        source: AttributeSource,
        (name, attribute): (&str, &str),
        value: CellValue<'_>,
    ) -> Result<(), BadRow> {
        match value {
            CellValue::Json(json) if !self.is_inside && self.has_room_for(name, json) => {
                self.is_inside = true;
                let done = self.members(source, (name, attribute), json);
                self.is_inside = false;
                done
            }
            value => self.flat_attribute(source, attribute, value),
        }
    }

    /// Whether the members of an object can be attributes of the row.
    fn has_room_for(&self, name: &str, json: &str) -> bool {
        let Some((members, longest)) = nested::extent(json) else {
            return false;
        };
        (1..=MEMBERS_MAX).contains(&members)
            && members <= self.limits.attributes.saturating_sub(self.row.attributes())
            && name.len() + 1 + longest <= self.limits.name_bytes
    }

    /// Adds the members of an object. Those of `resource`, `scope` and `attributes` are attributes by their own names,
    /// as in OTLP; those of others have the name of the object before theirs.
    fn members(&mut self, source: AttributeSource, (name, attribute): (&str, &str), json: &str) -> Result<(), BadRow> {
        let of_otlp = known_names::attributes_of(attribute).map(|of| match source {
            AttributeSource::Attr => of,
            source => source,
        });
        let (is_scope, is_resource) = (attribute == "scope", attribute == "resource");
        let prefix = if self.places.renamed(name).is_some() {
            attribute
        } else {
            name
        };
        nested::each_member(json, |member, value| {
            let full = format!("{name}.{member}");
            if let Some(target) = self.places.renamed(&full) {
                return self.put_at(&full, &target, value);
            }
            if let Some(missing) = self.missing.as_mut().filter(|_| of_otlp.is_some()) {
                missing.value(&full, value);
            }
            match (of_otlp, member) {
                (Some(_), "name" | "version") if is_scope => self.put(&format!("scope_{member}"), value),
                (Some(of), "attributes") if is_scope || is_resource => self.members_of_attributes(of, &full, value),
                (Some(of), member) => self.flat_attribute(of, member, value),
                (None, member) if source == AttributeSource::Attr => self.put(&format!("{prefix}.{member}"), value),
                (None, member) => self.flat_attribute(source, &format!("{attribute}.{member}"), value),
            }
        })
    }

    /// Adds the attributes of `resource.attributes` and `scope.attributes`.
    fn members_of_attributes(
        &mut self,
        source: AttributeSource,
        name: &str,
        value: CellValue<'_>,
    ) -> Result<(), BadRow> {
        match value {
            CellValue::Json(json) if self.has_room_for(name, json) => {
                nested::each_member(json, |member, value| self.flat_attribute(source, member, value))
            }
            value => self.flat_attribute(source, "attributes", value),
        }
    }

    fn flat_attribute(&mut self, source: AttributeSource, name: &str, value: CellValue<'_>) -> Result<(), BadRow> {
        if value == CellValue::Null {
            return Ok(());
        }
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
                    self.flat_attribute(source, &attribute, CellValue::Text(&text))?
                }
                _ => self.flat_attribute(AttributeSource::Attr, &name, CellValue::Text(&text))?,
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
                let id = nested::id(value, self.places.id_bytes(column).unwrap_or_default());
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
        self.add_deferred()?;
        self.add_service()?;
        if let Some(body) = self.row.best_of(FieldRole::Body) {
            self.check_value("the body", body.text.len())?;
        }
        let cut = self.limits.cut_values.then_some(self.limits.value_bytes);
        if let Some(time) = self.row.best_of(FieldRole::Time).filter(|time| time.rank >= NO_TIME) {
            let (name, shown) = (&time.name, CellValue::Text(&time.text).shown());
            return Err(BadRow::line(match &self.time_format {
                Some(format) => format!("{name}: {shown} is not a time of the form {format:?}"),
                None => {
                    format!("{name}: {shown} is not a time: neither RFC 3339 nor a number")
                }
            }));
        }
        self.row.join_date_and_time();
        let found = self.finish.row(&mut self.row, chunk, cut, changed)?;
        if let Some(missing) = &mut self.missing {
            missing.row(found);
        }
        Ok(())
    }

    /// Adds the values of columns whose names are spelled otherwise, unless the row has the columns themselves.
    fn add_deferred(&mut self) -> Result<(), BadRow> {
        for other in self.row.take_deferred() {
            let id_bytes = self.places.id_bytes(other.column);
            let is_wrong = id_bytes.is_some_and(|bytes| !nested::is_id(&other.text, bytes));
            let added = match is_wrong || self.row.has_column(other.column) {
                true => Err(BadRow::line("the row has this column already, or the value is no id")),
                false => self.column(other.column, &other.name, other.value()),
            };
            match added {
                Err(bad) if bad.reason == BadRowReason::Line => {
                    self.attribute(AttributeSource::Attr, (&other.name, &other.name), other.value())?;
                }
                added => added?,
            }
        }
        Ok(())
    }

    /// Adds the service to the resource, unless that names it already.
    fn add_service(&mut self) -> Result<(), BadRow> {
        let Some(service) = self.row.take_best(FieldRole::Service) else {
            return Ok(());
        };
        let is_it = |(source, name, _)| source == AttributeSource::Resource && name == SERVICE;
        let is_known = self.row.iter().any(is_it);
        match is_known {
            true => self.flat_attribute(AttributeSource::Attr, &service.name, service.value()),
            false => self.flat_attribute(AttributeSource::Resource, SERVICE, service.value()),
        }
    }
}

/// Added to the rank of objects as bodies of names that often mean something else.
const WEAK: u8 = 30;
/// Added to the rank of values that say nothing.
const EMPTY: u8 = 60;
/// Added to the rank of values that are no time, so that any time is better.
const NO_TIME: u8 = 100;

/// The most members of an object that become attributes.
const MEMBERS_MAX: usize = 256;

/// The time of a value in nanoseconds; `None` if it is none.
fn moment(role: RoleName, value: CellValue<'_>, format: Option<&str>) -> Option<i128> {
    let (text, is_number) = match value {
        CellValue::Time(nanos) => return Some(nanos),
        CellValue::Number(digits) => (digits, true),
        CellValue::Text(text) => (text.trim(), false),
        _ => return None,
    };
    let nanos = match (role.unit, format) {
        (NumberUnit::Nanos, _) => {
            let exact = text.parse::<i64>().ok().map(i128::from);
            exact.or_else(|| time::of_text(text))
        }
        (NumberUnit::Micros, _) => time::of_micros(text).or_else(|| time::of_text(text)),
        (NumberUnit::Millis, _) => time::of_millis(text).or_else(|| time::of_text(text)),
        (NumberUnit::Magnitude, Some(format)) if !is_number => time::of_format(text, format),
        (NumberUnit::Magnitude, _) => time::of_text(text),
    }?;
    // A number of a name that may mean something else counts only if it is a likely time.
    let is_sure = role.is_strict || !(is_number || time::of_number(text).is_some());
    (is_sure || is_plausible(nanos)).then_some(nanos)
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
