//! A JSON tokenizer that works in place. It copies nothing, and it counts open brackets instead of remembering them,
//! since the caller knows its context; only [`skip`](JsonTokenizer::skip) remembers them, in a bit each.

use std::fmt;

/// A JSON syntax error and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte offset from the beginning of the text.
    pub offset: usize,
    pub what: &'static str,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for JsonError {}

pub type JsonResult<T> = std::result::Result<T, JsonError>;

/// What a JSON value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    Object,
    Array,
    String,
    Number,
    Boolean,
    Null,
}

impl JsonKind {
    /// The kind of a valid value, without spaces before it.
    #[inline]
    pub fn of(json: &str) -> JsonKind {
        match json.as_bytes().first() {
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b'"') => JsonKind::String,
            Some(b't' | b'f') => JsonKind::Boolean,
            Some(b'n') | None => JsonKind::Null,
            Some(_) => JsonKind::Number,
        }
    }
}

/// Whether the text is exactly one JSON value of any kind and depth (RFC 8259), with or without whitespace around it.
pub fn is_whole(json: &str) -> bool {
    // A byte order mark is no part of JSON.
    let mut tokens = JsonTokenizer {
        json: json.as_bytes(),
        at: 0,
        depth: 0,
        depth_max: usize::MAX,
    };
    tokens.skip().and_then(|()| tokens.end()).is_ok()
}

/// Whether the text is valid so far but ends within a string, or between the tokens of a value: more input may complete it. A
/// text that ends within a number, a word or an escape is not begun.
pub fn is_begun(json: &[u8]) -> bool {
    let mut tokens = JsonTokenizer::new(json, usize::MAX);
    tokens.skip().is_err_and(|error| error.offset >= json.len())
}

/// A position in a JSON text.
pub struct JsonTokenizer<'a> {
    json: &'a [u8],
    at: usize,
    /// The number of open objects and lists.
    depth: usize,
    depth_max: usize,
}

/// The bytes between two quotes. Their escapes are valid.
#[derive(Clone, Copy, Debug)]
pub struct JsonString<'a> {
    pub raw: &'a [u8],
    pub is_escaped: bool,
    /// Byte offset of the opening quote.
    pub offset: usize,
}

/// A literal in the position of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLiteral {
    Null,
    True,
    False,
}

impl<'a> JsonTokenizer<'a> {
    #[inline]
    pub fn new(json: &'a [u8], depth_max: usize) -> JsonTokenizer<'a> {
        let at = if json.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        JsonTokenizer {
            json,
            at,
            depth: 0,
            depth_max,
        }
    }

    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.json.get(self.at..).unwrap_or_default()
    }

    /// Skips bytes that the caller has examined in [`rest`](Self::rest).
    #[inline(always)]
    pub fn pass(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[cold]
    pub fn wrong(&self, what: &'static str) -> JsonError {
        match self.at < self.json.len() {
            true => JsonError { offset: self.at, what },
            false => JsonError {
                offset: self.json.len(),
                what: "it ends within a value",
            },
        }
    }

    /// The next byte that is no whitespace, or 0, with which no token begins.
    #[inline(always)]
    pub fn peek(&mut self) -> u8 {
        match self.json.get(self.at) {
            Some(&byte) if byte > b' ' => byte,
            _ => self.peek_after_spaces(),
        }
    }

    fn peek_after_spaces(&mut self) -> u8 {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.json.get(self.at) {
            self.at += 1;
        }
        self.json.get(self.at).copied().unwrap_or_default()
    }

    /// Fails unless only whitespace is left.
    pub fn end(&mut self) -> JsonResult<()> {
        self.peek();
        match self.at < self.json.len() {
            true => Err(self.wrong("unexpected data after the request")),
            false => Ok(()),
        }
    }

    /// Enters an object. [`more`](Self::more) iterates over its members.
    #[inline(always)]
    pub fn object(&mut self) -> JsonResult<()> {
        self.enter(b'{', "expected an object")
    }

    /// Enters a list.
    #[inline(always)]
    pub fn list(&mut self) -> JsonResult<()> {
        self.enter(b'[', "expected a list")
    }

    #[inline(always)]
    fn enter(&mut self, bracket: u8, what: &'static str) -> JsonResult<()> {
        if self.peek() != bracket {
            return Err(self.wrong(what));
        }
        if self.depth >= self.depth_max {
            return Err(self.wrong("objects and lists are nested too deep"));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Whether another element precedes the closing `bracket`. If not, consumes the bracket.
    #[inline(always)]
    pub fn more(&mut self, bracket: u8, is_first: bool) -> JsonResult<bool> {
        let byte = self.peek();
        if byte == bracket {
            self.at += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if !is_first {
            if byte != b',' {
                return Err(self.wrong("expected a comma or a closing bracket"));
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// The name of a member. Consumes the colon, too.
    #[inline]
    pub fn name(&mut self) -> JsonResult<JsonString<'a>> {
        let name = self.quoted()?;
        self.colon()?;
        Ok(name)
    }

    #[inline(always)]
    pub fn colon(&mut self) -> JsonResult<()> {
        if self.peek() != b':' {
            return Err(self.wrong("expected a colon"));
        }
        self.at += 1;
        Ok(())
    }

    #[inline]
    pub fn quoted(&mut self) -> JsonResult<JsonString<'a>> {
        if self.peek() != b'"' {
            return Err(self.wrong("expected a string"));
        }
        let offset = self.at;
        let rest = self.json.get(offset + 1..).unwrap_or_default();
        let plain = plain(rest);
        match rest.get(plain) {
            Some(b'"') => {
                self.at = offset + plain + 2;
                Ok(JsonString {
                    raw: rest.get(..plain).unwrap_or_default(),
                    is_escaped: false,
                    offset,
                })
            }
            _ => self.escaped(offset, rest, plain),
        }
    }

    /// Finishes a string of which the first `len` bytes are plain.
    #[inline(never)]
    fn escaped(&mut self, offset: usize, rest: &'a [u8], mut len: usize) -> JsonResult<JsonString<'a>> {
        loop {
            let from = rest.get(len..).unwrap_or_default();
            len += match from {
                [b'"', ..] => break,
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
                [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|byte| byte.is_ascii_hexdigit()) => 6,
                [] => {
                    self.at = self.json.len();
                    return Err(self.wrong(""));
                }
                [byte, ..] => {
                    self.at = offset + 1 + len;
                    return Err(self.wrong(match byte {
                        b'\\' => "unknown escape",
                        _ => "a control character must be escaped",
                    }));
                }
            };
            len += plain(rest.get(len..).unwrap_or_default());
        }
        self.at = offset + len + 2;
        Ok(JsonString {
            raw: rest.get(..len).unwrap_or_default(),
            is_escaped: true,
            offset,
        })
    }

    /// The text of a number.
    #[inline]
    pub fn number(&mut self) -> JsonResult<&'a [u8]> {
        self.peek();
        let rest = self.rest();
        match number_len(rest) {
            0 => Err(self.wrong("expected a number")),
            len => {
                self.at += len;
                Ok(rest.get(..len).unwrap_or_default())
            }
        }
    }

    #[inline]
    pub fn literal(&mut self) -> JsonResult<JsonLiteral> {
        self.peek();
        let rest = self.rest();
        for (text, literal) in [
            ("null", JsonLiteral::Null),
            ("true", JsonLiteral::True),
            ("false", JsonLiteral::False),
        ] {
            if rest.starts_with(text.as_bytes()) {
                self.at += text.len();
                return Ok(literal);
            }
        }
        Err(self.wrong("this is not JSON"))
    }

    /// Skips `null` if it is next, and returns whether it was.
    #[inline(always)]
    pub fn null(&mut self) -> JsonResult<bool> {
        if self.peek() != b'n' {
            return Ok(false);
        }
        self.literal().map(|_| true)
    }

    /// Skips a value. It takes no stack, however deep the value is.
    pub fn skip(&mut self) -> JsonResult<()> {
        let mut open = OpenBrackets::default();
        loop {
            let byte = self.peek();
            let mut is_first = false;
            match byte {
                b'"' => self.quoted().map(drop)?,
                b'{' | b'[' => {
                    self.enter(byte, "")?;
                    open.push(byte == b'{');
                    is_first = true;
                }
                b'-' | b'0'..=b'9' => self.number().map(drop)?,
                _ => self.literal().map(drop)?,
            }
            // A value has ended or begun, and the values that contain it may end with it.
            loop {
                let Some(is_object) = open.last() else {
                    return Ok(());
                };
                let bracket = if is_object { b'}' } else { b']' };
                if self.more(bracket, is_first)? {
                    if is_object {
                        self.name()?;
                    }
                    break;
                }
                open.pop();
                is_first = false;
            }
        }
    }
}

/// For each open bracket, whether it is that of an object.
#[derive(Default)]
struct OpenBrackets {
    /// Those of the innermost levels, up to 64; the lowest bit is the last.
    top: u64,
    /// Those of the levels around them, 64 each.
    below: Vec<u64>,
    depth: usize,
}

impl OpenBrackets {
    #[inline]
    fn push(&mut self, is_object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.below.push(self.top);
        }
        self.top = self.top << 1 | u64::from(is_object);
        self.depth += 1;
    }

    #[inline]
    fn last(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.top & 1 == 1)
    }

    #[inline]
    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.top >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.top = self.below.pop().unwrap_or_default();
        }
    }
}

/// The number of bytes before the first quote, backslash or control character.
#[inline(always)]
fn plain(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let found = ends(u64::from_le_bytes(*word));
        if found != 0 {
            return index * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '));
    words.len() * 8 + found.unwrap_or(rest.len())
}

/// Sets the highest bit of the first of eight bytes that ends plain text. Higher bits may be wrong, since the
/// subtraction borrows from the next byte.
#[inline(always)]
fn ends(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = EACH << 7;
    let quote = word ^ (EACH * b'"' as u64);
    let backslash = word ^ (EACH * b'\\' as u64);
    let is_quote = quote.wrapping_sub(EACH) & !quote;
    let is_backslash = backslash.wrapping_sub(EACH) & !backslash;
    let is_control = word.wrapping_sub(EACH * b' ' as u64) & !word;
    (is_quote | is_backslash | is_control) & HIGHEST
}

/// The length of the number at the beginning of the text; 0 if there is none.
#[inline]
pub fn number_len(text: &[u8]) -> usize {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut at = usize::from(text.first() == Some(&b'-'));
    at += match text.get(at) {
        Some(b'0') => 1,
        Some(b'1'..=b'9') => digits(at),
        _ => return 0,
    };
    if text.get(at) == Some(&b'.') {
        match digits(at + 1) {
            0 => return 0,
            count => at += 1 + count,
        }
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        match digits(at + 1 + sign) {
            0 => return 0,
            count => at += 1 + sign + count,
        }
    }
    at
}

/// Appends a string with its escapes resolved. A lone surrogate becomes U+FFFD.
pub fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    let mut rest = raw;
    loop {
        let (text, after) = rest.split_at_checked(plain(rest)).unwrap_or((rest, &[]));
        out.extend_from_slice(text);
        rest = match after {
            [b'\\', b'u', after @ ..] => {
                let (character, after) = unicode(after);
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                after
            }
            [b'\\', byte, after @ ..] => {
                out.push(match byte {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    byte => *byte,
                });
                after
            }
            _ => return,
        };
    }
}

/// Decodes the character of a `\u` escape from its digits on, and returns the rest of the text.
fn unicode(text: &[u8]) -> (char, &[u8]) {
    let (first, after) = unit(text);
    let second = match (first, after) {
        (0xd800..0xdc00, [b'\\', b'u', low @ ..]) => Some(unit(low)).filter(|(low, _)| (0xdc00..0xe000).contains(low)),
        _ => None,
    };
    match second {
        Some((low, after)) => {
            let number = 0x10000 + ((first - 0xd800) << 10 | (low - 0xdc00));
            (char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER), after)
        }
        None => (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), after),
    }
}

/// Reads four hexadecimal digits.
fn unit(text: &[u8]) -> (u32, &[u8]) {
    let (digits, after) = text.split_at_checked(4).unwrap_or((text, &[]));
    let number = digits.iter().fold(0, |number, digit| {
        number << 4 | char::from(*digit).to_digit(16).unwrap_or_default()
    });
    (number, after)
}

#[cfg(test)]
mod tests;
