//! Buffers the values of one row, and reuses its memory.

use std::ops::Range;

use super::cell::CellValue;
use super::column_mapping::FieldRole;
use thalweg_columns::rows::attribute_columns::AttributeSource;

/// A candidate for the time, the body or the severity of a row.
#[derive(Debug)]
pub(super) struct Candidate {
    pub rank: u8,
    pub name: String,
    pub text: String,
    /// For a body that is no text.
    pub kind: Option<&'static str>,
    /// For a time.
    pub nanos: Option<i128>,
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

    /// Keeps the better candidate and returns the other. A repeated candidate replaces the earlier one.
    pub fn best(
        &mut self,
        best: FieldRole,
        rank: u8,
        name: &str,
        value: CellValue<'_>,
        nanos: Option<i128>,
    ) -> Option<Candidate> {
        let mut text = String::new();
        value.write(&mut text);
        let candidate = Candidate {
            rank,
            name: name.to_owned(),
            text,
            kind: value.kind(),
            nanos,
        };
        let kept = self.bests.get_mut(best as usize)?;
        match kept {
            Some(known) if known.rank < rank => Some(candidate),
            _ => kept.replace(candidate).filter(|known| known.rank != rank),
        }
    }

    pub fn rank(&self, best: FieldRole) -> Option<u8> {
        self.bests.get(best as usize)?.as_ref().map(|candidate| candidate.rank)
    }

    pub fn best_text(&self, best: FieldRole) -> Option<&str> {
        let candidate = self.bests.get(best as usize)?.as_ref();
        candidate.map(|candidate| candidate.text.as_str())
    }

    pub fn best_name(&self, best: FieldRole) -> Option<&str> {
        let candidate = self.bests.get(best as usize)?.as_ref();
        candidate.map(|candidate| candidate.name.as_str())
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
