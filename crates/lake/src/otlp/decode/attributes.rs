//! Attributes: those of a resource or a scope, which many rows have, and those of a record.

use std::ops::Range;

use super::Decoding;
use super::value::{Kind, Reader, name_and_value};
use crate::otlp::wire::{Cursor, Result};
use crate::rows::chunk::Chunk;
use crate::rows::slots::{Guess, Source};

/// Names and texts of one resource or scope.
#[derive(Default)]
pub(crate) struct Pairs {
    texts: String,
    pairs: Vec<Pair>,
}

#[derive(Clone)]
struct Pair {
    name: Range<usize>,
    /// `None`: it has no value.
    text: Option<Range<usize>>,
}

impl Pairs {
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
        self.pairs.push(Pair { name, text });
    }

    pub(super) fn read(&mut self, pair: Cursor<'_>, read: &mut Reader) -> Result<()> {
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
                (kind != Kind::Null).then_some(begin..self.texts.len())
            }
        };
        self.pairs.push(Pair { name, text });
        Ok(())
    }

    /// Of those of one name the last stays.
    pub(super) fn settle(&mut self, read: &mut Reader) {
        let Pairs { texts, pairs } = self;
        let name = |pair: &Pair| texts.get(pair.name.clone()).unwrap_or_default();
        let mut at = 0;
        while at < pairs.len() {
            let is_repeated = match pairs.split_at(at + 1) {
                ([.., pair], later) => later.iter().any(|other| name(other) == name(pair)),
                _ => false,
            };
            if is_repeated {
                pairs.remove(at);
                read.changed.keys_repeated += 1;
            } else {
                at += 1;
            }
        }
    }

    /// Names and texts, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.pairs.iter().map(|pair| {
            let name = self.texts.get(pair.name.clone()).unwrap_or_default();
            (name, pair.text.clone().and_then(|text| self.texts.get(text)))
        })
    }

    /// Into each of some rows.
    pub(super) fn put(&self, chunk: &mut Chunk, rows: Range<usize>, source: Source, guess: &mut Guess) {
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

impl Decoding<'_, '_> {
    /// An attribute of a record.
    #[inline]
    pub(super) fn put_attribute(&mut self, row: usize, pair: Cursor<'_>) -> Result<()> {
        let (name, value) = name_and_value(pair)?;
        let Some(value) = value else { return Ok(()) };
        let super::Decoder { read, guess, .. } = &mut *self.decoder;
        let name = read.text(name);
        let (kind, text) = read.value(value)?;
        if kind == Kind::Null {
            return Ok(());
        }
        let is_repeated = match self.chunk.slots.next(Source::Attr, &name, guess) {
            Some(column) => column.push(row, text.as_bytes()),
            None => {
                self.chunk.push_extra(row, Source::Attr, &name, &text);
                false
            }
        };
        read.changed.keys_repeated += u64::from(is_repeated);
        Ok(())
    }
}
