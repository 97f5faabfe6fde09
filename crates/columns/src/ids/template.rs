//! Log templates: messages without their variable parts, and the hash of a template, the fingerprint.
//!
//! A template depends on the body alone. Its text is the first line of the body without ANSI escapes. If the body is a
//! JSON object, the text is the first of the members `message`, `msg`, `event`, `log` and `error` that is a string, and
//! the sorted names of all members come last, as `{a,b,c}`. At most 2,048 bytes of the text count. They are split into
//! tokens: at each position the first rule that matches takes as much as it can.
//!
//! | token | is |
//! |---|---|
//! | `<str>` | `"..."`, or `'...'` unless the quote follows a letter or digit; a backslash escapes the next character |
//! | `<url>` | a scheme, `://`, and everything up to white space |
//! | `<email>` | `name@domain.tld` |
//! | `<uuid>` | 8-4-4-4-12 hexadecimal digits |
//! | `<time>` | ISO 8601 date and time, or one of them, `HH:MM:SS`, `Mon D HH:MM:SS` |
//! | `<ip>` | an IPv4 or IPv6 address, with or without a port |
//! | `<path>` | `/...` unless it follows a letter or digit, `C:\...`, or names with two or more separators |
//! | `<hex>` | `0x...`, or 8 or more hexadecimal digits, at least one of them decimal |
//! | `<dur>` | numbers with `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`, `d` |
//! | `<size>` | a number with `B`, `kB`, `KiB`, `MB`, `MiB`, `GB`, `GiB` |
//! | `<num>` | sign, digits, fraction, exponent, `%` |
//! | `<id>` | a word of letters and digits |
//! | itself | a word of letters, ASCII letters in lower case; any other character; white space is dropped |
//!
//! No token ends within a word. Two or more equal placeholders with only white space and commas between them become one
//! with a `*`: `<num>*`. A template ends after 64 tokens. The fingerprint is XXH3-64 with seed 0 over the tokens joined
//! by spaces, read as signed; 0 becomes 1. A body without text has none.

mod json_body;
mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use scan::{Scanner, TemplateToken};

/// The version of these rules. Tables record with which version their fingerprints were made.
pub const VERSION: u32 = 1;

const TEXT_BYTES_MAX: usize = 2048;
const TOKENS_MAX: usize = 64;
const ESCAPE: u8 = 0x1b;

/// Builds templates and reuses its buffers.
#[derive(Debug, Default)]
pub struct TemplateBuilder {
    out: Vec<u8>,
    /// Commas after a placeholder; a run of this placeholder absorbs them.
    commas: usize,
    last: Option<&'static str>,
    is_run: bool,
    tokens: usize,
}

impl TemplateBuilder {
    /// `None` for a body without text.
    pub fn fingerprint(&mut self, body: &str) -> Option<i64> {
        self.make(body)?;
        match xxh3_64(&self.out) as i64 {
            0 => Some(1),
            number => Some(number),
        }
    }

    /// The tokens joined by spaces; `None` for a body without text.
    pub fn template(&mut self, body: &str) -> Option<&str> {
        self.make(body)?;
        std::str::from_utf8(&self.out).ok()
    }

    fn make(&mut self, body: &str) -> Option<()> {
        self.begin();
        let body = without_escapes(body);
        let body = body.trim_ascii();
        if body.is_empty() {
            return None;
        }
        if body.starts_with('{')
            && body.ends_with('}')
            && let Some(object) = json_body::object(body)
        {
            self.tokens_of(&object.text);
            self.end_run();
            self.separate();
            object.write_names(&mut self.out);
            return Some(());
        }
        self.tokens_of(body);
        Some(())
    }

    fn begin(&mut self) {
        self.out.clear();
        (self.commas, self.last, self.is_run, self.tokens) = (0, None, false, 0);
    }

    fn tokens_of(&mut self, text: &str) {
        let line = text.trim_ascii().lines().next().unwrap_or_default();
        let text = line.get(..line.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
        let mut scanner = Scanner::new(text);
        loop {
            if self.plain_word(&mut scanner) {
                continue;
            }
            let Some(token) = scanner.next() else { break };
            let goes_on = match token {
                TemplateToken::Placeholder(name) => self.placeholder(name, scanner.is_apart()),
                TemplateToken::Word(word) => self.token(|out| {
                    let at = out.len();
                    out.extend_from_slice(word.as_bytes());
                    out[at..].make_ascii_lowercase();
                }),
                TemplateToken::Other(',') if self.last.is_some() => {
                    self.commas += 1;
                    true
                }
                TemplateToken::Other(character) => self.token(|out| {
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }),
            };
            if !goes_on {
                break;
            }
        }
        self.end_run();
    }

    /// A fast path: most tokens are words that no other rule matches.
    #[inline]
    fn plain_word(&mut self, scanner: &mut Scanner<'_>) -> bool {
        if self.last.is_some() || self.tokens == TOKENS_MAX {
            return false;
        }
        let begin = self.out.len();
        self.separate();
        let found = scanner.plain_word(&mut self.out);
        match found {
            true => self.tokens += 1,
            false => self.out.truncate(begin),
        }
        found
    }

    /// Returns whether more tokens may follow.
    fn placeholder(&mut self, name: &'static str, is_apart: bool) -> bool {
        if self.last == Some(name) && (is_apart || self.commas > 0) {
            self.commas = 0;
            if !std::mem::replace(&mut self.is_run, true) {
                self.out.push(b'*');
            }
            return true;
        }
        let goes_on = self.token(|out| out.extend_from_slice(name.as_bytes()));
        self.last = Some(name);
        goes_on
    }

    #[inline]
    fn token(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.end_run();
        if self.tokens == TOKENS_MAX {
            return false;
        }
        self.separate();
        write(&mut self.out);
        self.tokens += 1;
        true
    }

    /// Emits pending commas as tokens if no equal placeholder followed them.
    #[inline]
    fn end_run(&mut self) {
        if self.last.take().is_none() {
            return;
        }
        self.is_run = false;
        for _ in 0..std::mem::take(&mut self.commas) {
            if self.tokens < TOKENS_MAX {
                self.separate();
                self.out.push(b',');
                self.tokens += 1;
            }
        }
    }

    #[inline]
    fn separate(&mut self) {
        if !self.out.is_empty() {
            self.out.push(b' ');
        }
    }
}

/// Removes ANSI escapes such as colours: `ESC [` up to a letter, `ESC ]` up to its terminator, and `ESC` with one other
/// character.
fn without_escapes(text: &str) -> Cow<'_, str> {
    if !text.as_bytes().contains(&ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\x1b') {
        out.push_str(before);
        let mut characters = after.char_indices();
        let end = match characters.next() {
            Some((_, '[')) => characters.find(|(_, character)| ('@'..='~').contains(character)),
            Some((_, ']')) => characters.find(|(at, character)| {
                *character == '\x07' || (*character == '\\' && after.as_bytes().get(at - 1) == Some(&ESCAPE))
            }),
            other => other,
        };
        rest = match end {
            Some((at, character)) => after.get(at + character.len_utf8()..).unwrap_or_default(),
            None => "",
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}
