//! Messages without what differs from one to the next: a template, and its number, the fingerprint.
//!
//! A template depends on the body alone. Its text is the first line of the body without ANSI escapes; of a JSON object it is the
//! first of the members `message`, `msg`, `event`, `log` and `error` that is a text, and the sorted names of all members come
//! last, as `{a,b,c}`. At most 2,048 bytes of text count. They become tokens: at each place the first rule that fits takes as
//! much as it can.
//!
//! | token | is |
//! |---|---|
//! | `<str>` | `"..."`, or `'...'` unless the quote follows a letter or digit; a backslash keeps the next character within |
//! | `<url>` | a scheme, `://`, and all up to white space |
//! | `<email>` | `name@domain.tld` |
//! | `<uuid>` | 8-4-4-4-12 hexadecimal digits |
//! | `<time>` | date and time of ISO 8601, one of them, `HH:MM:SS`, `Mon D HH:MM:SS` |
//! | `<ip>` | an address of version 4 or 6, with or without a port |
//! | `<path>` | `/...` unless it follows a letter or digit, `C:\...`, or names with two or more separators |
//! | `<hex>` | `0x...`, or 8 or more hexadecimal digits with a decimal one among them |
//! | `<dur>` | numbers with `ns`, `us`, `ms`, `s`, `m`, `h`, `d` |
//! | `<size>` | a number with `B`, `kB`, `KiB`, `MB`, `MiB`, `GB`, `GiB` |
//! | `<num>` | sign, digits, fraction, exponent, `%` |
//! | `<id>` | a word of letters and digits |
//! | itself | a word of letters, in lower case as far as it is ASCII; any other character; white space is left out |
//!
//! No token ends within a word. Two or more of the same placeholder with only white space and commas between them become one
//! with a `*`: `<num>*`. After 64 tokens it ends. The fingerprint is XXH3-64, seed 0, of the tokens with a space between them,
//! read as signed; 0 becomes 1. A body without text has none.

mod json_body;
mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use scan::{Scanner, TemplateToken};

/// Of these rules. Tables say by which one their fingerprints were made.
pub const VERSION: u32 = 1;

const TEXT_BYTES_MAX: usize = 2048;
const TOKENS_MAX: usize = 64;
const ESCAPE: u8 = 0x1b;

/// Makes templates, one after the other.
#[derive(Debug, Default)]
pub struct TemplateBuilder {
    out: Vec<u8>,
    /// Commas behind a placeholder, which a run of it swallows.
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

    /// The tokens with a space between them; `None` for a body without text.
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

    /// Most tokens are words, and most words have nothing to look into.
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

    /// Returns whether there may be more tokens.
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

    /// Commas that no placeholder of the same name followed are tokens.
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

/// Colours and the like: `ESC [` up to a letter, `ESC ]` up to its end, and `ESC` with one other character.
fn without_escapes(text: &str) -> Cow<'_, str> {
    if !text.as_bytes().contains(&ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('\x1b') {
        out.push_str(before);
        let mut characters = behind.char_indices();
        let end = match characters.next() {
            Some((_, '[')) => characters.find(|(_, character)| ('@'..='~').contains(character)),
            Some((_, ']')) => characters.find(|(at, character)| {
                *character == '\x07' || (*character == '\\' && behind.as_bytes().get(at - 1) == Some(&ESCAPE))
            }),
            other => other,
        };
        rest = match end {
            Some((at, character)) => behind.get(at + character.len_utf8()..).unwrap_or_default(),
            None => "",
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}
