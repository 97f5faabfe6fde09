//! JSON read where it lies, token by token. Nothing is copied; what is open is counted, not remembered, since whoever reads
//! knows what it is in.

use super::{JsonError, JsonResult};

/// A place in a text of JSON.
pub struct JsonTokenizer<'a> {
    json: &'a [u8],
    at: usize,
    /// Objects and lists that are open.
    depth: usize,
    depth_max: usize,
}

/// What lies between two quotes. Its escapes are whole.
#[derive(Clone, Copy, Debug)]
pub struct JsonString<'a> {
    pub raw: &'a [u8],
    pub is_escaped: bool,
    /// Of its first quote.
    pub offset: usize,
}

/// What stands where a value must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLiteral {
    Null,
    True,
    False,
}

impl<'a> JsonTokenizer<'a> {
    pub fn new(json: &'a [u8], depth_max: usize) -> JsonTokenizer<'a> {
        let at = if json.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        JsonTokenizer {
            json,
            at,
            depth: 0,
            depth_max,
        }
    }

    pub fn offset(&self) -> usize {
        self.at
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn rest(&self) -> &'a [u8] {
        self.json.get(self.at..).unwrap_or_default()
    }

    /// Passes over bytes that were seen in [`rest`](Self::rest).
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

    /// The next byte that is no space, or 0, which no token begins with.
    #[inline(always)]
    pub fn peek(&mut self) -> u8 {
        match self.json.get(self.at) {
            Some(&byte) if byte > b' ' => byte,
            _ => self.peek_behind_spaces(),
        }
    }

    fn peek_behind_spaces(&mut self) -> u8 {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.json.get(self.at) {
            self.at += 1;
        }
        self.json.get(self.at).copied().unwrap_or_default()
    }

    /// Nothing but spaces is left.
    pub fn end(&mut self) -> JsonResult<()> {
        self.peek();
        match self.at < self.json.len() {
            true => Err(self.wrong("something stands behind the request")),
            false => Ok(()),
        }
    }

    /// Goes into an object, which has members, as long as there are [`more`](Self::more).
    #[inline(always)]
    pub fn object(&mut self) -> JsonResult<()> {
        self.enter(b'{', "an object must stand here")
    }

    /// Goes into a list.
    #[inline(always)]
    pub fn list(&mut self) -> JsonResult<()> {
        self.enter(b'[', "a list must stand here")
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

    /// Whether another one follows in what ends with this bracket, which is left otherwise.
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
                return Err(self.wrong("a comma or a closing bracket must stand here"));
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// The name of a member, and the colon behind it.
    #[inline]
    pub fn name(&mut self) -> JsonResult<JsonString<'a>> {
        let name = self.quoted()?;
        self.colon()?;
        Ok(name)
    }

    #[inline(always)]
    pub fn colon(&mut self) -> JsonResult<()> {
        if self.peek() != b':' {
            return Err(self.wrong("a colon must stand here"));
        }
        self.at += 1;
        Ok(())
    }

    #[inline]
    pub fn quoted(&mut self) -> JsonResult<JsonString<'a>> {
        if self.peek() != b'"' {
            return Err(self.wrong("a text must stand here"));
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

    /// A text that is not plain from so many bytes on.
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
                        b'\\' => "an escape that does not exist",
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
            0 => Err(self.wrong("a number must stand here")),
            len => {
                self.at += len;
                Ok(rest.get(..len).unwrap_or_default())
            }
        }
    }

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
        Err(self.wrong("what stands here is no JSON"))
    }

    /// Passes over `null`, if that is next.
    #[inline(always)]
    pub fn null(&mut self) -> JsonResult<bool> {
        if self.peek() != b'n' {
            return Ok(false);
        }
        self.literal().map(|_| true)
    }

    /// Passes over a value.
    pub fn skip(&mut self) -> JsonResult<()> {
        match self.peek() {
            b'"' => self.quoted().map(drop),
            b'{' => {
                self.object()?;
                let mut is_first = true;
                while self.more(b'}', is_first)? {
                    self.name()?;
                    self.skip()?;
                    is_first = false;
                }
                Ok(())
            }
            b'[' => {
                self.list()?;
                let mut is_first = true;
                while self.more(b']', is_first)? {
                    self.skip()?;
                    is_first = false;
                }
                Ok(())
            }
            b'-' | b'0'..=b'9' => self.number().map(drop),
            _ => self.literal().map(drop),
        }
    }
}

/// How many bytes there are before a quote, a backslash or a control character.
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

/// Marks the first of eight bytes at which plain text ends in its highest bit. Bits above that may be wrong, since a
/// difference borrows from the byte above it.
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

/// How many bytes a number takes with which the text begins; 0 without one.
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

/// Appends a text without its escapes. Half of a surrogate pair becomes U+FFFD.
pub fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    let mut rest = raw;
    loop {
        let (text, behind) = rest.split_at_checked(plain(rest)).unwrap_or((rest, &[]));
        out.extend_from_slice(text);
        rest = match behind {
            [b'\\', b'u', behind @ ..] => {
                let (character, behind) = unicode(behind);
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                behind
            }
            [b'\\', byte, behind @ ..] => {
                out.push(match byte {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    byte => *byte,
                });
                behind
            }
            _ => return,
        };
    }
}

/// A character by its number, of which the digits begin here, and what is behind it.
fn unicode(text: &[u8]) -> (char, &[u8]) {
    let (first, behind) = unit(text);
    let second = match (first, behind) {
        (0xd800..0xdc00, [b'\\', b'u', low @ ..]) => Some(unit(low)).filter(|(low, _)| (0xdc00..0xe000).contains(low)),
        _ => None,
    };
    match second {
        Some((low, behind)) => {
            let number = 0x10000 + ((first - 0xd800) << 10 | (low - 0xdc00));
            (char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER), behind)
        }
        None => (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), behind),
    }
}

/// Four hexadecimal digits.
fn unit(text: &[u8]) -> (u32, &[u8]) {
    let (digits, behind) = text.split_at_checked(4).unwrap_or((text, &[]));
    let number = digits.iter().fold(0, |number, digit| {
        number << 4 | char::from(*digit).to_digit(16).unwrap_or_default()
    });
    (number, behind)
}
