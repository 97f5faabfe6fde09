//! Converts values to text: a text stays as it is, other kinds follow the documented form of attribute columns.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::fields::{any, list, map, pair};
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::double_text::write_double;
use thalweg_kit::wire::{END, WireCursor, WireResult};

/// The kind of value that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnyValueKind {
    /// The value is absent.
    Null,
    Text,
    Bool,
    Int,
    Double,
    Bytes,
    Array,
    Map,
}

impl AnyValueKind {
    /// The name of the kind as columns store it; `None` for texts, which most values are.
    pub fn name(self) -> Option<&'static str> {
        match self {
            AnyValueKind::Null | AnyValueKind::Text => None,
            AnyValueKind::Bool => Some("bool"),
            AnyValueKind::Int => Some("int"),
            AnyValueKind::Double => Some("double"),
            AnyValueKind::Bytes => Some("bytes"),
            AnyValueKind::Array => Some("array"),
            AnyValueKind::Map => Some("map"),
        }
    }
}

/// Reads texts and values, and counts the changes it makes to them.
#[derive(Default)]
pub(super) struct AnyValueReader {
    pub changed: RowChangeCounts,
    cut_at: Option<usize>,
    /// Reused buffer for values that are not texts in the request.
    made: String,
}

impl AnyValueReader {
    pub fn begin(&mut self, cut_at: Option<usize>) {
        self.changed = RowChangeCounts::default();
        self.cut_at = cut_at;
    }

    /// Returns valid UTF-8, with U+FFFD in place of invalid bytes.
    #[inline]
    pub fn text<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, str> {
        // Most texts are ASCII, and for short ones this check is much faster than the full one.
        if bytes.is_ascii() {
            // SAFETY: ASCII is valid UTF-8.
            return Cow::Borrowed(unsafe { std::str::from_utf8_unchecked(bytes) });
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => {
                self.changed.utf8_replaced += 1;
                Cow::Owned(String::from_utf8_lossy(bytes).into_owned())
            }
        }
    }

    /// Reads a value as text; the kind is `Null` if there is none.
    #[inline]
    pub fn value<'a>(&'a mut self, mut at: WireCursor<'a>) -> WireResult<(AnyValueKind, Cow<'a, str>)> {
        loop {
            match at.key()? {
                any::TEXT => {
                    let text = self.text(at.bytes()?);
                    return Ok((AnyValueKind::Text, self.cut(text)));
                }
                END => return Ok((AnyValueKind::Null, Cow::Borrowed(""))),
                key @ (any::BOOL | any::INT | any::DOUBLE | any::BYTES | any::LIST | any::MAP) => {
                    let kind = self.make(key, &mut at)?;
                    let made = Cow::Borrowed(self.made.as_str());
                    return Ok((kind, Self::cut_made(made, self.cut_at, &mut self.changed)));
                }
                key => at.skip(key, any::KNOWN)?,
            }
        }
    }

    /// Cuts a text that exceeds the limit at a character boundary.
    #[inline]
    fn cut<'a>(&mut self, text: Cow<'a, str>) -> Cow<'a, str> {
        Self::cut_made(text, self.cut_at, &mut self.changed)
    }

    #[inline]
    fn cut_made<'a>(text: Cow<'a, str>, cut_at: Option<usize>, changed: &mut RowChangeCounts) -> Cow<'a, str> {
        let Some(limit) = cut_at.filter(|limit| text.len() > *limit) else {
            return text;
        };
        changed.values_cut += 1;
        let end = text.floor_char_boundary(limit);
        match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(..end).unwrap_or_default()),
            Cow::Owned(mut text) => {
                text.truncate(end);
                Cow::Owned(text)
            }
        }
    }

    #[inline(never)]
    fn make(&mut self, key: u32, at: &mut WireCursor<'_>) -> WireResult<AnyValueKind> {
        let mut made = std::mem::take(&mut self.made);
        made.clear();
        let kind = match key {
            any::BOOL => {
                made.push_str(if at.number()? == 0 { "false" } else { "true" });
                AnyValueKind::Bool
            }
            any::INT => {
                made.push_str(itoa::Buffer::new().format(at.number()? as i64));
                AnyValueKind::Int
            }
            any::DOUBLE => {
                write_double(f64::from_bits(at.fixed64()?), &mut made);
                AnyValueKind::Double
            }
            any::BYTES => {
                BASE64_STANDARD.encode_string(at.bytes()?, &mut made);
                AnyValueKind::Bytes
            }
            any::LIST => {
                self.write_list(at.message()?, &mut made)?;
                AnyValueKind::Array
            }
            _ => {
                self.write_map(at.message()?, &mut made)?;
                AnyValueKind::Map
            }
        };
        self.made = made;
        Ok(kind)
    }

    /// Writes a value as compact JSON. Validation has already checked the nesting depth.
    fn write_value(&mut self, mut at: WireCursor<'_>, out: &mut String) -> WireResult<()> {
        loop {
            match at.key()? {
                any::TEXT => write_json_text(&self.text(at.bytes()?), out),
                any::BOOL => out.push_str(if at.number()? == 0 { "false" } else { "true" }),
                any::INT => out.push_str(itoa::Buffer::new().format(at.number()? as i64)),
                any::DOUBLE => {
                    let number = f64::from_bits(at.fixed64()?);
                    match number.is_finite() {
                        true => write_double(number, out),
                        // JSON has no infinities and no NaN.
                        false => {
                            out.push('"');
                            write_double(number, out);
                            out.push('"');
                        }
                    }
                }
                any::BYTES => {
                    out.push('"');
                    BASE64_STANDARD.encode_string(at.bytes()?, out);
                    out.push('"');
                }
                any::LIST => self.write_list(at.message()?, out)?,
                any::MAP => self.write_map(at.message()?, out)?,
                END => out.push_str("null"),
                key => {
                    at.skip(key, any::KNOWN)?;
                    continue;
                }
            }
            return Ok(());
        }
    }

    fn write_list(&mut self, mut at: WireCursor<'_>, out: &mut String) -> WireResult<()> {
        out.push('[');
        let mut is_first = true;
        loop {
            match at.key()? {
                list::VALUES => {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    self.write_value(at.message()?, out)?;
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        out.push(']');
        Ok(())
    }

    fn write_map(&mut self, mut at: WireCursor<'_>, out: &mut String) -> WireResult<()> {
        out.push('{');
        let mut is_first = true;
        loop {
            match at.key()? {
                map::PAIRS => {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    let (name, value) = name_and_value(at.message()?)?;
                    write_json_text(&self.text(name), out);
                    out.push(':');
                    match value {
                        Some(value) => self.write_value(value, out)?,
                        None => out.push_str("null"),
                    }
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        out.push('}');
        Ok(())
    }
}

/// Reads the name and the raw value of an attribute.
#[inline(always)]
pub(super) fn name_and_value<'a>(mut at: WireCursor<'a>) -> WireResult<(&'a [u8], Option<WireCursor<'a>>)> {
    let (mut name, mut value): (&[u8], _) = (&[], None);
    loop {
        match at.key()? {
            pair::NAME => name = at.bytes()?,
            pair::VALUE => value = Some(at.message()?),
            END => return Ok((name, value)),
            key => at.skip(key, 0)?,
        }
    }
}

/// Writes a text as a quoted JSON string.
fn write_json_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
