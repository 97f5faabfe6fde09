//! Parses text to [`Value`]. Strict RFC 8259: no comments, no trailing commas, no bare words; nesting is bounded.

use std::sync::Arc;

use crate::{Object, Text, Value};

/// Limits of the parser.
#[derive(Clone, Copy, Debug)]
pub struct ParseLimits {
    /// Maximum nesting of arrays and objects.
    pub depth: usize,
}

impl Default for ParseLimits {
    fn default() -> ParseLimits {
        ParseLimits { depth: 128 }
    }
}

/// What is wrong, and the byte offset at which it was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {offset}: {what}")]
pub struct JsonError {
    pub offset: usize,
    pub what: &'static str,
}

const TOO_DEEP: &str = "nested too deeply";

impl JsonError {
    /// Whether the text was refused because of its depth; nothing after that position was parsed.
    pub fn is_too_deep(&self) -> bool {
        self.what == TOO_DEEP
    }
}

/// Parses one JSON value; anything but white space after it is an error.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    parse_with(bytes, ParseLimits::default())
}

pub fn parse_with(bytes: &[u8], limits: ParseLimits) -> Result<Value, JsonError> {
    let mut parser = JsonParser {
        bytes,
        at: 0,
        depth: limits.depth,
    };
    let value = parser.value()?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.error("unexpected text after the value")),
    }
}

struct JsonParser<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> JsonParser<'a> {
    fn value(&mut self) -> Result<Value, JsonError> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.nested(JsonParser::object),
            Some(b'[') => self.nested(JsonParser::array),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b't') => self.word(b"true", Value::Bool(true)),
            Some(b'f') => self.word(b"false", Value::Bool(false)),
            Some(b'n') => self.word(b"null", Value::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("expected a value")),
            None => Err(self.error("the text ends where a value was expected")),
        }
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<Value, JsonError>) -> Result<Value, JsonError> {
        if self.depth == 0 {
            return Err(self.error(TOO_DEEP));
        }
        self.depth -= 1;
        self.at += 1;
        let value = inner(self);
        self.depth += 1;
        value
    }

    fn object(&mut self) -> Result<Value, JsonError> {
        let mut members: Vec<(Text, Value)> = Vec::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Object::new().into());
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a member name in double quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.error("expected ':' after the member name"));
            }
            members.push((name, self.value()?));
            self.skip_space();
            if self.take(b'}') {
                return Ok(members.into_iter().collect::<Object>().into());
            }
            if !self.take(b',') {
                return Err(self.error("expected ',' or '}' in the object"));
            }
        }
    }

    fn array(&mut self) -> Result<Value, JsonError> {
        let mut values = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::Array(Arc::from(values)));
        }
        loop {
            values.push(self.value()?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::Array(values.into()));
            }
            if !self.take(b',') {
                return Err(self.error("expected ',' or ']' in the array"));
            }
        }
    }

    fn word(&mut self, word: &[u8], value: Value) -> Result<Value, JsonError> {
        if self.rest().starts_with(word) {
            self.at += word.len();
            return Ok(value);
        }
        Err(self.error("expected true, false or null"))
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        self.take(b'-');
        let whole = self.digits();
        if whole == 0 {
            return Err(self.error("expected a digit"));
        }
        if whole > 1 && self.bytes.get(self.at - whole) == Some(&b'0') {
            return Err(self.error("a number may not start with 0"));
        }
        let mut integer = true;
        if self.take(b'.') {
            integer = false;
            if self.digits() == 0 {
                return Err(self.error("expected a digit after the decimal point"));
            }
        }
        if self.take(b'e') || self.take(b'E') {
            integer = false;
            let _sign = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return Err(self.error("expected a digit in the exponent"));
            }
        }
        let text = self
            .bytes
            .get(start..self.at)
            .and_then(|b| std::str::from_utf8(b).ok())
            .unwrap_or_default();
        Ok(number_from_text(text, integer))
    }

    fn digits(&mut self) -> usize {
        let count = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn string(&mut self) -> Result<Text, JsonError> {
        self.at += 1;
        let start = self.at;
        // Strings without escapes are copied unchanged.
        let plain = self
            .rest()
            .iter()
            .position(|&b| b == b'"' || b == b'\\' || b < 0x20)
            .unwrap_or(self.rest().len());
        self.at += plain;
        let head = self.utf8(start, self.at)?;
        if self.take(b'"') {
            return Ok(Text::new(head));
        }
        let mut text = head.to_owned();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text.into());
                }
                Some(b'\\') => self.escape(&mut text)?,
                Some(b) if b < 0x20 => {
                    return Err(self.error("control characters must be escaped in a string"));
                }
                Some(_) => {
                    let start = self.at;
                    let run = self.rest().iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20);
                    self.at += run.unwrap_or(self.rest().len());
                    text.push_str(self.utf8(start, self.at)?);
                }
                None => return Err(self.error("the string has no closing quote")),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), JsonError> {
        self.at += 1;
        let escaped = self
            .peek()
            .ok_or_else(|| self.error("the string has no closing quote"))?;
        self.at += 1;
        text.push(match escaped {
            b'"' | b'\\' | b'/' => char::from(escaped),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode_escape()?,
            _ => return Err(self.error("unknown escape in a string")),
        });
        Ok(())
    }

    /// After `\u`. An unpaired surrogate becomes U+FFFD, as in most parsers.
    fn unicode_escape(&mut self) -> Result<char, JsonError> {
        let high = self.hex4()?;
        if !(0xD800..0xE000).contains(&high) {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if high < 0xDC00 && self.rest().starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if (0xDC00..0xE000).contains(&low) {
                let point = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                return Ok(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.rest().get(..4).and_then(|d| std::str::from_utf8(d).ok());
        let value = digits
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|d| u32::from_str_radix(d, 16).ok());
        let value = value.ok_or_else(|| self.error("expected four hex digits after \\u"))?;
        self.at += 4;
        Ok(value)
    }

    fn utf8(&self, start: usize, end: usize) -> Result<&'a str, JsonError> {
        let bytes = self.bytes.get(start..end).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|e| JsonError {
            offset: start + e.valid_up_to(),
            what: "the text is not valid UTF-8",
        })
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn error(&self, what: &'static str) -> JsonError {
        JsonError { offset: self.at, what }
    }
}

/// The narrowest faithful value of a valid JSON number.
fn number_from_text(text: &str, integer: bool) -> Value {
    if integer {
        if let Ok(n) = text.parse::<i64>() {
            // "-0" has no integer that prints the same.
            return if n == 0 && text.len() > 1 {
                Value::F64(-0.0)
            } else {
                Value::I64(n)
            };
        }
        if let Ok(n) = text.parse::<u64>() {
            return Value::U64(n);
        }
        return Value::Decimal(text.into());
    }
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && same_text(n, text) => Value::F64(n),
        _ => Value::Decimal(text.into()),
    }
}

fn same_text(n: f64, text: &str) -> bool {
    use std::fmt::Write as _;
    /// Compares the written text with an expected one, without a buffer.
    struct Expect<'a>(&'a str);
    impl std::fmt::Write for Expect<'_> {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(std::fmt::Error)?;
            Ok(())
        }
    }
    let mut expect = Expect(text);
    write!(expect, "{n}").is_ok() && expect.0.is_empty()
}
