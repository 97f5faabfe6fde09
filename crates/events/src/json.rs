//! JSON that stays text: it is validated and stripped of whitespace in one pass, and accessed without building a tree.
//! Digits, escapes, the order of keys and repeated keys stay as the client wrote them.

use std::borrow::Cow;
use std::fmt;

use thalweg_kit::json_tokens;
pub use thalweg_kit::json_tokens::JsonKind;

/// Maximum nesting depth of arrays and objects.
pub const NESTING_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    what: JsonErrorKind,
    /// Byte position in the text.
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonErrorKind {
    Utf8,
    End,
    Unexpected(u8),
    Trailing,
    Nesting,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            JsonErrorKind::Utf8 => f.write_str("invalid UTF-8")?,
            JsonErrorKind::End => f.write_str("unexpected end")?,
            JsonErrorKind::Unexpected(byte) if byte.is_ascii_graphic() => {
                write!(f, "unexpected {:?}", char::from(byte))?
            }
            JsonErrorKind::Unexpected(byte) => write!(f, "unexpected byte 0x{byte:02x}")?,
            JsonErrorKind::Trailing => f.write_str("unexpected text after the value")?,
            JsonErrorKind::Nesting => write!(f, "more than {NESTING_MAX} levels")?,
        }
        write!(f, " at byte {}", self.at)
    }
}

/// Checks that `text` is one JSON value, and appends it to `out` without whitespace between tokens.
pub fn compact(text: &[u8], out: &mut String) -> Result<(), JsonError> {
    let checked = std::str::from_utf8(text).map_err(|error| JsonError {
        what: JsonErrorKind::Utf8,
        at: error.valid_up_to(),
    })?;
    let mut reader = JsonCompactor {
        text: checked,
        bytes: text,
        at: 0,
        copied: 0,
        out,
        objects: Vec::new(),
    };
    reader.value()
}

struct JsonCompactor<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Everything up to here is in `out`.
    copied: usize,
    out: &'a mut String,
    /// For each enclosing value, outermost first, whether it is an object.
    objects: Vec<bool>,
}

impl JsonCompactor<'_> {
    /// Without recursion, because nesting can be deep.
    fn value(&mut self) -> Result<(), JsonError> {
        loop {
            if self.begin()? {
                continue;
            }
            // A value has ended, and perhaps the values that contain it.
            loop {
                self.space();
                let Some(in_object) = self.objects.last().copied() else {
                    self.copy(self.at);
                    return match self.at == self.bytes.len() {
                        true => Ok(()),
                        false => Err(self.error(JsonErrorKind::Trailing)),
                    };
                };
                match (self.peek()?, in_object) {
                    (b',', _) => {
                        self.at += 1;
                        if in_object {
                            self.key()?;
                        }
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        self.objects.pop();
                    }
                    _ => return Err(self.unexpected()),
                }
            }
        }
    }

    /// Reads a value, or the start of a non-empty array or object. Returns whether its first element comes next.
    fn begin(&mut self) -> Result<bool, JsonError> {
        self.space();
        match self.peek()? {
            open @ (b'{' | b'[') => {
                if self.objects.len() == NESTING_MAX {
                    return Err(self.error(JsonErrorKind::Nesting));
                }
                self.at += 1;
                self.space();
                let is_object = open == b'{';
                if self.peek()? == open + 2 {
                    self.at += 1;
                    return Ok(false);
                }
                self.objects.push(is_object);
                if is_object {
                    self.key()?;
                }
                return Ok(true);
            }
            b'"' => self.string()?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => self.word(b"null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(self.unexpected()),
        }
        Ok(false)
    }

    fn key(&mut self) -> Result<(), JsonError> {
        self.space();
        self.string()?;
        self.space();
        self.byte(b':')
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.byte(b'"')?;
        loop {
            let rest = self.rest();
            let Some(len) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = self.bytes.len();
                return Err(self.error(JsonErrorKind::End));
            };
            let plain = rest.get(..len).unwrap_or_default();
            let is_end = rest.get(len) == Some(&b'"');
            // A single pass without branches, because control characters are rare.
            if plain.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
                let within = plain.iter().position(|byte| *byte < 0x20);
                self.at += within.unwrap_or_default();
                return Err(self.unexpected());
            }
            self.at += len + 1;
            if is_end {
                return Ok(());
            }
            match self.peek()? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                b'u' => {
                    self.at += 1;
                    for _ in 0..4 {
                        match self.peek()? {
                            digit if digit.is_ascii_hexdigit() => self.at += 1,
                            _ => return Err(self.unexpected()),
                        }
                    }
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        // A leading zero must be the only digit before the point.
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.rest().first() == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.rest().first(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.rest().first(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Reads at least one digit.
    fn digits(&mut self) -> Result<(), JsonError> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            self.peek()?;
            return Err(self.unexpected());
        }
        self.at += count;
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        word.iter().try_for_each(|byte| self.byte(*byte))
    }

    fn byte(&mut self, byte: u8) -> Result<(), JsonError> {
        match self.peek()? == byte {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(self.unexpected()),
        }
    }

    /// Skips whitespace without copying it.
    fn space(&mut self) {
        let count = self
            .rest()
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'))
            .count();
        if count > 0 {
            self.copy(self.at);
            self.at += count;
            self.copied = self.at;
        }
    }

    fn copy(&mut self, to: usize) {
        self.out.push_str(self.text.get(self.copied..to).unwrap_or_default());
        self.copied = to;
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Result<u8, JsonError> {
        self.bytes
            .get(self.at)
            .copied()
            .ok_or_else(|| self.error(JsonErrorKind::End))
    }

    fn unexpected(&self) -> JsonError {
        match self.bytes.get(self.at) {
            Some(byte) => self.error(JsonErrorKind::Unexpected(*byte)),
            None => self.error(JsonErrorKind::End),
        }
    }

    fn error(&self, what: JsonErrorKind) -> JsonError {
        JsonError { what, at: self.at }
    }
}

/// A value in a text from [`compact`]. On other texts the methods return arbitrary results, but do not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// `compacted` must come from [`compact`].
    pub fn new(compacted: &'a str) -> Json<'a> {
        Json(compacted)
    }

    pub fn text(self) -> &'a str {
        self.0
    }

    pub fn kind(self) -> JsonKind {
        JsonKind::of(self.0)
    }

    pub fn is_null(self) -> bool {
        self.kind() == JsonKind::Null
    }

    pub fn object(self) -> Option<Members<'a>> {
        (self.kind() == JsonKind::Object).then(|| Members(self.0.get(1..).unwrap_or_default()))
    }

    pub fn array(self) -> Option<Elements<'a>> {
        (self.kind() == JsonKind::Array).then(|| Elements(self.0.get(1..).unwrap_or_default()))
    }

    /// The last member with this name, as in most JSON readers.
    pub fn get(self, name: &str) -> Option<Json<'a>> {
        let named = self.object()?.filter(|(key, _)| unescape(key) == name);
        named.last().map(|(_, value)| value)
    }

    /// An unpaired surrogate becomes U+FFFD.
    pub fn string(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        Some(unescape(inner))
    }

    /// Any number, truncated toward zero and clamped.
    pub fn integer(self) -> Option<i64> {
        (self.kind() == JsonKind::Number).then(|| integer(self.0))
    }

    pub fn bool(self) -> Option<bool> {
        (self.kind() == JsonKind::Boolean).then(|| self.0.starts_with('t'))
    }
}

/// The elements after the opening bracket.
#[derive(Clone, Debug)]
pub struct Elements<'a>(&'a str);

/// The members, with raw names without quotes.
#[derive(Clone, Debug)]
pub struct Members<'a>(&'a str);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        let (value, rest) = split(self.0)?;
        self.0 = rest.strip_prefix(',').unwrap_or_default();
        Some(Json(value))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, Json<'a>);

    fn next(&mut self) -> Option<(&'a str, Json<'a>)> {
        let (key, rest) = split(self.0)?;
        let (value, rest) = split(rest.strip_prefix(':')?)?;
        self.0 = rest.strip_prefix(',').unwrap_or_default();
        Some((key.get(1..key.len().checked_sub(1)?)?, Json(value)))
    }
}

/// The value at the start of a text, and the rest.
fn split(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let end = match bytes.first()? {
        b'"' => string_end(bytes)?,
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0_usize);
            loop {
                at += memchr_structure(bytes.get(at..)?)?;
                match bytes.get(at)? {
                    b'"' => at += string_end(bytes.get(at..)?)?,
                    b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
                    _ => (at, depth) = (at + 1, depth.checked_sub(1)?),
                }
                if depth == 0 {
                    break at;
                }
            }
        }
        b'}' | b']' => return None,
        _ => bytes
            .iter()
            .position(|byte| matches!(byte, b',' | b'}' | b']' | b':'))
            .unwrap_or(bytes.len()),
    };
    text.split_at_checked(end)
}

fn memchr_structure(bytes: &[u8]) -> Option<usize> {
    bytes
        .iter()
        .position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))
}

/// The position after the closing quote of the string at the start of `bytes`.
fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Decodes the inside of a string literal.
fn unescape(inner: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut out = Vec::with_capacity(inner.len());
    json_tokens::unescape(inner.as_bytes(), &mut out);
    Cow::Owned(String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Does not use floating point, which would change large numbers.
fn integer(text: &str) -> i64 {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let far = if exponent.starts_with('-') { i64::MIN } else { i64::MAX };
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent).parse().unwrap_or(far);
    // The number of digits before the point after applying the exponent.
    let count = (whole.len() as i64).saturating_add(exponent);
    let mut digits = whole.bytes().chain(fraction.bytes());
    let mut value = 0_i128;
    let limit = i128::from(i64::MAX) + 1;
    let mut taken = 0;
    while taken < count {
        // What is no digit ends the number.
        let Some(digit) = digits.next().filter(u8::is_ascii_digit) else {
            // Only zeros follow: zero stays zero, and every other value overflows within this many.
            let zeros = (count - taken).min(20);
            value = (0..zeros).fold(value, |value, _| (value * 10).min(limit));
            break;
        };
        value = (value * 10 + i128::from(digit - b'0')).min(limit);
        taken += 1;
    }
    let value = if negative { -value } else { value };
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests;
