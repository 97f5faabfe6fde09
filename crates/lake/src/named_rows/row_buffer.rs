//! Buffers the values of one row, and reuses its memory.

use std::ops::Range;

use super::cell::CellValue;
use super::known_names::{DATE, FieldRole, RoleName};
use super::time;
use thalweg_columns::rows::attribute_columns::AttributeSource;

/// A candidate for a role of a row.
#[derive(Debug)]
pub(super) struct Candidate {
    pub role: RoleName,
    /// The candidate with the lowest rank is used.
    pub rank: u8,
    pub name: String,
    pub text: String,
    /// For a body that is no text.
    pub kind: Option<&'static str>,
    /// For a time.
    pub nanos: Option<i128>,
}

impl Candidate {
    pub fn new(role: RoleName, name: &str, value: CellValue<'_>) -> Candidate {
        let mut text = String::new();
        value.write(&mut text);
        Candidate {
            role,
            rank: if role.is_mapped { 0 } else { role.position + 1 },
            name: name.to_owned(),
            text,
            kind: value.kind(),
            nanos: None,
        }
    }

    pub fn value(&self) -> CellValue<'_> {
        match self.kind {
            Some("map" | "array") => CellValue::Json(&self.text),
            _ => CellValue::Text(&self.text),
        }
    }
}

/// A value of a column whose name is spelled otherwise.
#[derive(Debug)]
pub(super) struct DeferredValue {
    pub column: usize,
    pub name: String,
    pub text: String,
}

impl DeferredValue {
    pub fn value(&self) -> CellValue<'_> {
        CellValue::Text(&self.text)
    }
}

/// An attribute, as ranges of the row's texts.
#[derive(Clone, Debug)]
pub(super) struct RowAttribute {
    pub source: AttributeSource,
    pub name: Range<usize>,
    pub text: Range<usize>,
}

#[derive(Debug, Default)]
pub(super) struct RowBuffer {
    pub longs: Vec<(usize, i64)>,
    pub integers: Vec<(usize, i32)>,
    pub doubles: Vec<(usize, f64)>,
    pub booleans: Vec<(usize, bool)>,
    /// The value of the column `value`, if it is a whole number.
    pub exact_value: Option<i64>,
    texts: Vec<(usize, Range<usize>)>,
    /// JSON of nested columns.
    nested: Vec<(usize, Range<usize>)>,
    attributes: Vec<RowAttribute>,
    all: String,
    bests: [Option<Candidate>; FieldRole::COUNT],
    deferred: Vec<DeferredValue>,
    /// Nanoseconds since midnight, of a column that is no time without its day.
    pub time_of_day: Option<i128>,
    /// The number of values that were cut.
    pub cut: u64,
}

impl RowBuffer {
    pub fn clear(&mut self) {
        self.longs.clear();
        self.integers.clear();
        self.doubles.clear();
        self.booleans.clear();
        self.exact_value = None;
        self.texts.clear();
        self.nested.clear();
        self.attributes.clear();
        self.all.clear();
        self.bests = Default::default();
        self.deferred.clear();
        self.time_of_day = None;
        self.cut = 0;
    }

    fn write(&mut self, write: impl FnOnce(&mut String)) -> Range<usize> {
        let begin = self.all.len();
        write(&mut self.all);
        begin..self.all.len()
    }

    /// Returns the length of the text.
    pub fn text(&mut self, column: usize, write: impl FnOnce(&mut String)) -> usize {
        let text = self.write(write);
        let len = text.len();
        self.texts.push((column, text));
        len
    }

    pub fn text_of_nested(&mut self, column: usize, json: &str) {
        let text = self.write(|out| out.push_str(json));
        self.nested.push((column, text));
    }

    /// Returns the length of the text.
    pub fn attribute(&mut self, source: AttributeSource, name: &str, write: impl FnOnce(&mut String)) -> usize {
        let name = self.write(|out| out.push_str(name));
        let text = self.write(write);
        let len = text.len();
        self.attributes.push(RowAttribute { source, name, text });
        len
    }

    /// Cuts the last attribute to the limit at a character boundary.
    pub fn cut_last(&mut self, limit: usize) {
        if let Some(last) = self.attributes.last_mut()
            && last.text.len() > limit
        {
            let text = self.all.get(last.text.clone()).unwrap_or_default();
            last.text.end = last.text.start + text.floor_char_boundary(limit);
            self.cut += 1;
        }
    }

    pub fn attributes(&self) -> usize {
        self.attributes.len()
    }

    /// Keeps the better candidate and returns the other. Of two names of one rank the first counts; a repeated name
    /// replaces its earlier value.
    pub fn best(&mut self, candidate: Candidate) -> Option<Candidate> {
        let kept = self.bests.get_mut(candidate.role.role as usize)?;
        match kept {
            Some(known) if known.name == candidate.name => {
                *known = candidate;
                None
            }
            Some(known) if known.rank <= candidate.rank => Some(candidate),
            _ => kept.replace(candidate),
        }
    }

    pub fn best_of(&self, role: FieldRole) -> Option<&Candidate> {
        self.bests.get(role as usize)?.as_ref()
    }

    /// Adds the time of day to a time that is a day alone.
    pub fn join_date_and_time(&mut self) {
        if let Some(of_day) = self.time_of_day
            && let Some(Some(best)) = self.bests.get_mut(FieldRole::Time as usize)
            && best.role.position == DATE
            && (time::is_day(&best.text) || best.text.ends_with("T00:00:00Z"))
        {
            best.nanos = best.nanos.map(|nanos| nanos + of_day);
        }
    }

    /// Keeps a value until the end of the row.
    pub fn defer(&mut self, column: usize, name: &str, write: impl FnOnce(&mut String)) {
        let mut text = String::new();
        write(&mut text);
        let name = name.to_owned();
        self.deferred.push(DeferredValue { column, name, text });
    }

    pub fn take_deferred(&mut self) -> Vec<DeferredValue> {
        std::mem::take(&mut self.deferred)
    }

    /// Whether a column has a value.
    pub fn has_column(&self, column: usize) -> bool {
        let is_it = |of: &usize| *of == column;
        self.longs.iter().any(|(of, _)| is_it(of))
            || self.integers.iter().any(|(of, _)| is_it(of))
            || self.doubles.iter().any(|(of, _)| is_it(of))
            || self.booleans.iter().any(|(of, _)| is_it(of))
            || self.texts.iter().any(|(of, _)| is_it(of))
            || self.nested.iter().any(|(of, _)| is_it(of))
    }

    pub fn take_best(&mut self, best: FieldRole) -> Option<Candidate> {
        self.bests.get_mut(best as usize)?.take()
    }

    pub fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        let text = |(column, text): &(usize, Range<usize>)| (*column, self.all.get(text.clone()).unwrap_or_default());
        self.texts.iter().map(text)
    }

    pub fn text_of(&self, column: usize) -> Option<&str> {
        self.texts()
            .filter(|(of, _)| *of == column)
            .last()
            .map(|(_, text)| text)
    }

    pub fn has_text(&self, column: usize) -> bool {
        self.texts.iter().any(|(of, _)| *of == column)
    }

    pub fn nested(&self) -> impl Iterator<Item = (usize, &str)> {
        let text = |(column, text): &(usize, Range<usize>)| (*column, self.all.get(text.clone()).unwrap_or_default());
        self.nested.iter().map(text)
    }

    pub fn long_of(&self, column: usize) -> Option<i64> {
        self.longs
            .iter()
            .rev()
            .find(|(of, _)| *of == column)
            .map(|(_, value)| *value)
    }

    /// The source, name and text of each attribute.
    pub fn iter(&self) -> impl Iterator<Item = (AttributeSource, &str, &str)> {
        self.attributes.iter().map(|attribute| {
            let name = self.all.get(attribute.name.clone()).unwrap_or_default();
            (
                attribute.source,
                name,
                self.all.get(attribute.text.clone()).unwrap_or_default(),
            )
        })
    }
}
