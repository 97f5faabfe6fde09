//! Attributes: those of a resource or a scope, which many rows have, and those of a record.

use std::ops::Range;

use hashbrown::HashSet;

use super::RequestDecoder;
use super::value::{AnyValueKind, AnyValueReader, name_and_value};
use crate::otlp::wire::{WireCursor, WireResult};
use crate::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use crate::rows::chunk::MemtableChunk;

/// So many names are compared with each other.
const FEW: usize = 16;

/// Names and texts of one resource or scope.
#[derive(Default)]
pub(crate) struct AttributeSet {
    texts: String,
    pairs: Vec<AttributeRange>,
}

#[derive(Clone)]
struct AttributeRange {
    name: Range<usize>,
    /// `None`: it has no value.
    text: Option<Range<usize>>,
}

impl AttributeSet {
    pub fn clear(&mut self) {
        self.texts.clear();
        self.pairs.clear();
    }

    pub fn push(&mut self, name: &str, text: &str) {
        let begin = self.texts.len();
        self.texts.push_str(name);
        let name = begin..self.texts.len();
        self.texts.push_str(text);
        let text = Some(name.end..self.texts.len());
        self.pairs.push(AttributeRange { name, text });
    }

    pub(super) fn read(&mut self, pair: WireCursor<'_>, read: &mut AnyValueReader) -> WireResult<()> {
        let (name, value) = name_and_value(pair)?;
        let begin = self.texts.len();
        self.texts.push_str(&read.text(name));
        let name = begin..self.texts.len();
        let text = match value {
            None => None,
            Some(value) => {
                let (kind, text) = read.value(value)?;
                let begin = self.texts.len();
                self.texts.push_str(&text);
                (kind != AnyValueKind::Null).then_some(begin..self.texts.len())
            }
        };
        self.pairs.push(AttributeRange { name, text });
        Ok(())
    }

    /// Of those of one name the last stays.
    pub(super) fn settle(&mut self, read: &mut AnyValueReader) {
        let AttributeSet { texts, pairs } = self;
        let name = |pair: &AttributeRange| texts.get(pair.name.clone()).unwrap_or_default();
        let before = pairs.len();
        if before <= FEW {
            let mut at = 0;
            while let Some(pair) = pairs.get(at) {
                match pairs.iter().skip(at + 1).any(|later| name(later) == name(pair)) {
                    true => drop(pairs.remove(at)),
                    false => at += 1,
                }
            }
        } else {
            let mut seen = HashSet::with_capacity(before);
            let mut is_last: Vec<bool> = pairs.iter().rev().map(|pair| seen.insert(name(pair))).collect();
            pairs.retain(|_| is_last.pop().unwrap_or(true));
        }
        read.changed.keys_repeated += (before - pairs.len()) as u64;
    }

    /// Names and texts, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.pairs.iter().map(|pair| {
            let name = self.texts.get(pair.name.clone()).unwrap_or_default();
            (name, pair.text.clone().and_then(|text| self.texts.get(text)))
        })
    }

    /// Into each of some rows.
    pub(super) fn put(
        &self,
        chunk: &mut MemtableChunk,
        rows: Range<usize>,
        source: AttributeSource,
        guess: &mut AttributeColumnHint,
    ) {
        if rows.is_empty() {
            return;
        }
        guess.begin();
        for (name, text) in self.iter() {
            let Some(text) = text else { continue };
            if let Some(column) = chunk.slots.next(source, name, guess) {
                column.push_run(rows.clone(), text.as_bytes());
                continue;
            }
            for row in rows.clone() {
                chunk.push_extra(row, source, name, text);
            }
        }
    }
}

impl RequestDecoder<'_, '_> {
    /// An attribute of a record.
    #[inline]
    pub(super) fn put_attribute(&mut self, row: usize, pair: WireCursor<'_>) -> WireResult<()> {
        let (name, value) = name_and_value(pair)?;
        let Some(value) = value else { return Ok(()) };
        let super::OtlpDecoder { read, guess, .. } = &mut *self.decoder;
        let name = read.text(name);
        let (kind, text) = read.value(value)?;
        if kind == AnyValueKind::Null {
            return Ok(());
        }
        let is_repeated = match self.chunk.slots.next(AttributeSource::Attr, &name, guess) {
            Some(column) => column.push(row, text.as_bytes()),
            None => {
                self.chunk.push_extra(row, AttributeSource::Attr, &name, &text);
                false
            }
        };
        read.changed.keys_repeated += u64::from(is_repeated);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: usize, name: impl Fn(usize) -> String) -> AttributeSet {
        let mut pairs = AttributeSet::default();
        (0..n).for_each(|i| pairs.push(&name(i), &i.to_string()));
        pairs
    }

    #[test]
    fn of_few_and_of_many_the_last_of_a_name_stays_in_its_place() {
        for n in [0, 1, 7, FEW, FEW + 1, 100] {
            let mut own = pairs(n, |i| (i % 5).to_string());
            let mut read = AnyValueReader::default();
            own.settle(&mut read);
            let kept: Vec<String> = own
                .iter()
                .map(|(_, text)| text.unwrap_or_default().to_owned())
                .collect();
            let expected: Vec<String> = (n.saturating_sub(5)..n).map(|i| i.to_string()).collect();
            assert_eq!(
                (kept, read.changed.keys_repeated),
                (expected, n.saturating_sub(5) as u64),
                "{n}"
            );
        }
    }

    /// `ingest.limits.max_attributes` may be 65,535, of each resource and scope of a request.
    #[test]
    fn many_attributes_are_a_step_for_each() {
        let shapes: [fn(usize) -> String; 3] = [
            |i| format!("a{i}"),
            |_| "same".to_owned(),
            |i| format!("{}{i}", "p".repeat(40)),
        ];
        for shape in shapes {
            let exponent = thalweg_record::growth::exponent(
                1_000,
                |n| pairs(n, shape),
                |mut own| {
                    own.settle(&mut AnyValueReader::default());
                    own
                },
            );
            assert!(exponent < thalweg_record::growth::LINEAR, "{exponent}");
        }
    }
}
