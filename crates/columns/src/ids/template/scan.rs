//! Matches the token rules at a position of a text, in their order.
//!
//! Nearly all tokens are words of letters. A word is therefore matched first, and the rules that could match more are
//! tried only if the character after the word is one of theirs.

use std::net::Ipv6Addr;

/// A token at a position of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateToken<'a> {
    Placeholder(&'static str),
    Word(&'a str),
    Other(char),
}

const STR: TemplateToken<'static> = TemplateToken::Placeholder("<str>");
const URL: TemplateToken<'static> = TemplateToken::Placeholder("<url>");
const EMAIL: TemplateToken<'static> = TemplateToken::Placeholder("<email>");
const UUID: TemplateToken<'static> = TemplateToken::Placeholder("<uuid>");
const TIME: TemplateToken<'static> = TemplateToken::Placeholder("<time>");
const IP: TemplateToken<'static> = TemplateToken::Placeholder("<ip>");
const PATH: TemplateToken<'static> = TemplateToken::Placeholder("<path>");
const HEX: TemplateToken<'static> = TemplateToken::Placeholder("<hex>");
const DURATION: TemplateToken<'static> = TemplateToken::Placeholder("<dur>");
const SIZE: TemplateToken<'static> = TemplateToken::Placeholder("<size>");
const NUMBER: TemplateToken<'static> = TemplateToken::Placeholder("<num>");
const ID: TemplateToken<'static> = TemplateToken::Placeholder("<id>");

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DURATIONS: [&str; 8] = ["ns", "us", "µs", "ms", "s", "m", "h", "d"];
const SIZES: [&str; 7] = ["B", "kB", "KiB", "MB", "MiB", "GB", "GiB"];
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
const HEX_DIGITS_MIN: usize = 8;
/// The longest IPv6 address, with an IPv4 address at its end.
const IPV6_BYTES_MAX: usize = 45;
const PORT_DIGITS_MAX: usize = 5;

/// Character classes of a byte. Characters beyond ASCII count as letters if they are alphanumeric.
mod class {
    pub const LETTER: u8 = 1;
    pub const DIGIT: u8 = 2;
    pub const HEX: u8 = 4;
    pub const SPACE: u8 = 8;
    /// May follow a word that is the beginning of a longer token.
    pub const JOINS: u8 = 16;
    /// May be in a path, beside letters, digits and separators.
    pub const PATH: u8 = 32;
    /// May be in the name of an email address, beside letters and digits.
    pub const EMAIL: u8 = 64;
    pub const BEYOND: u8 = 128;
}

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let ascii = byte as u8;
        let mut class = 0;
        if ascii.is_ascii_alphabetic() {
            class |= class::LETTER;
        }
        if ascii.is_ascii_digit() {
            class |= class::DIGIT;
        }
        if ascii.is_ascii_hexdigit() {
            class |= class::HEX;
        }
        if ascii.is_ascii_whitespace() || ascii == 0x0b {
            class |= class::SPACE;
        }
        if matches!(
            ascii,
            b':' | b'@' | b'.' | b'_' | b'%' | b'+' | b'-' | b'/' | b'\\' | b'~'
        ) {
            class |= class::JOINS;
        }
        if matches!(ascii, b'.' | b'_' | b'-' | b'~' | b'+' | b'@' | b'%' | b'$' | b'#') || ascii >= 0x80 {
            class |= class::PATH;
        }
        if matches!(ascii, b'.' | b'_' | b'%' | b'+' | b'-') {
            class |= class::EMAIL;
        }
        if ascii >= 0x80 {
            class |= class::BEYOND;
        }
        classes[byte] = class;
        byte += 1;
    }
    classes
};

#[inline(always)]
fn is(byte: u8, classes: u8) -> bool {
    CLASSES[usize::from(byte)] & classes != 0
}

const EACH: u64 = 0x0101_0101_0101_0101;

/// How many of the eight bytes are ASCII letters before the first that is not.
#[inline(always)]
fn letters_of(eight: u64) -> usize {
    const HIGH: u64 = EACH * 0x80;
    let lower = (eight | (EACH * 0x20)) & !HIGH;
    let from_a = lower + EACH * (0x80 - b'a' as u64);
    let beyond_z = lower + EACH * (0x7f - b'z' as u64);
    let letters = from_a & !beyond_z & !eight & HIGH;
    ((letters ^ HIGH).trailing_zeros() / 8) as usize
}

pub(super) struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    is_apart: bool,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Scanner<'a> {
        Scanner {
            text,
            bytes: text.as_bytes(),
            at: 0,
            is_apart: false,
        }
    }

    /// Whether white space precedes the last token.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Appends a word of ASCII letters that no longer token can begin with, in lower case, eight letters at a time. If
    /// the next token is something else, nothing is consumed and the caller must truncate `out`.
    #[inline]
    pub fn plain_word(&mut self, out: &mut Vec<u8>) -> bool {
        let begin = self.at + usize::from(self.byte(self.at) == b' ');
        let (mut end, first) = (begin, out.len());
        loop {
            let Some(eight) = self.bytes.get(end..end + 8).and_then(|bytes| bytes.as_array::<8>()) else {
                return false;
            };
            let eight = u64::from_le_bytes(*eight);
            out.extend_from_slice(&(eight | (EACH * 0x20)).to_le_bytes());
            let letters = letters_of(eight);
            end += letters;
            if letters < 8 {
                break;
            }
        }
        out.truncate(first + end - begin);
        let next = self.byte(end);
        let may_be_month = end - begin == 3 && next == b' ' && self.byte(begin).is_ascii_uppercase();
        let is_longer = is(next, class::LETTER | class::DIGIT | class::BEYOND | class::JOINS);
        if end == begin || is_longer || may_be_month {
            return false;
        }
        self.at = end;
        true
    }

    #[inline]
    pub fn next(&mut self) -> Option<TemplateToken<'a>> {
        let begin = self.at;
        self.at = self.run(begin, class::SPACE);
        self.is_apart = self.at > begin;
        let first = *self.bytes.get(self.at)?;
        let (token, end) = self.token(first);
        self.at = end;
        Some(token)
    }

    #[inline]
    fn token(&self, first: u8) -> (TemplateToken<'a>, usize) {
        let at = self.at;
        if is(first, class::LETTER | class::DIGIT | class::BEYOND) {
            let (end, classes) = self.word(at);
            if end > at {
                return self.begun_by_word(end, classes);
            }
        }
        self.begun_by_other(first).unwrap_or_else(|| {
            let other = self.text.get(at..).and_then(|rest| rest.chars().next()).unwrap_or(' ');
            (TemplateToken::Other(other), at + other.len_utf8())
        })
    }

    /// The end of the word at this position, and the classes of its characters.
    #[inline]
    fn word(&self, at: usize) -> (usize, u8) {
        let (mut end, mut classes) = (at, 0);
        while let Some(byte) = self.bytes.get(end) {
            let class = CLASSES[usize::from(*byte)];
            if class & (class::LETTER | class::DIGIT) != 0 {
                classes |= class;
                end += 1;
            } else if class & class::BEYOND != 0 && self.is_letter_beyond(end) {
                classes |= class::LETTER;
                end += self.character(end).map_or(1, char::len_utf8);
            } else {
                break;
            }
        }
        (end, classes)
    }

    #[cold]
    fn is_letter_beyond(&self, at: usize) -> bool {
        self.character(at).is_some_and(char::is_alphanumeric)
    }

    fn character(&self, at: usize) -> Option<char> {
        self.text.get(at..)?.chars().next()
    }

    #[inline]
    fn begun_by_word(&self, end: usize, classes: u8) -> (TemplateToken<'a>, usize) {
        let at = self.at;
        let next = self.byte(end);
        let has_digits = classes & class::DIGIT != 0;
        // A full stop mostly ends a sentence.
        let ends = !is(next, class::JOINS)
            || (next == b'.' && is(self.byte(end + 1), class::SPACE))
            || (next == b'.' && end + 1 == self.bytes.len());
        if ends && !has_digits {
            if next == b' '
                && end - at == 3
                && let Some(end) = self.month_day_time(at)
            {
                return (TIME, end);
            }
            return (TemplateToken::Word(self.text.get(at..end).unwrap_or_default()), end);
        }
        if !ends && let Some(found) = self.joined(end, classes) {
            return found;
        }
        match has_digits {
            true => self.with_digits(end),
            false => (TemplateToken::Word(self.text.get(at..end).unwrap_or_default()), end),
        }
    }

    /// Tries the rules that match more than the word that ends here.
    fn joined(&self, end: usize, classes: u8) -> Option<(TemplateToken<'a>, usize)> {
        let at = self.at;
        let found = |token, end: Option<usize>| end.map(|end| (token, end));
        found(URL, self.url(at))
            .or_else(|| found(EMAIL, self.email(at)))
            .or_else(|| found(UUID, self.uuid(at)))
            .or_else(|| match classes & class::DIGIT != 0 {
                true => found(TIME, self.time(at)),
                false => None,
            })
            .or_else(|| found(IP, self.ip(at)))
            .or_else(|| found(PATH, self.drive(at, end)))
            .or_else(|| found(PATH, self.separated(at)))
    }

    /// Matches tokens that begin with neither a letter nor a digit.
    fn begun_by_other(&self, first: u8) -> Option<(TemplateToken<'a>, usize)> {
        let at = self.at;
        let found = |token, end: Option<usize>| end.map(|end| (token, end));
        match first {
            b'"' => found(STR, self.quoted(b'"')),
            b'\'' if !self.follows_word() => found(STR, self.quoted(b'\'')),
            b':' => found(IP, self.ip(at)),
            b'[' => found(IP, self.ip_in_brackets(at)),
            b'/' if !self.follows_word() => found(PATH, self.rooted(at)),
            b'.' | b'~' | b'_' | b'\\' => {
                let email = (first == b'_').then(|| self.email(at)).flatten();
                found(EMAIL, email).or_else(|| found(PATH, self.separated(at)))
            }
            b'+' | b'-' if is(self.byte(at + 1), class::DIGIT) => self.measure(at),
            _ => None,
        }
    }

    /// Matches a word of digits, or of letters and digits.
    fn with_digits(&self, end: usize) -> (TemplateToken<'a>, usize) {
        let at = self.at;
        let word = self.bytes.get(at..end).unwrap_or_default();
        let is_hex = |digits: &[u8]| !digits.is_empty() && digits.iter().all(|byte| is(*byte, class::HEX));
        let prefixed = word.strip_prefix(b"0x").or_else(|| word.strip_prefix(b"0X"));
        if prefixed.is_some_and(is_hex) || (word.len() >= HEX_DIGITS_MIN && is_hex(word)) {
            return (HEX, end);
        }
        if is(self.byte(at), class::DIGIT)
            && let Some((token, longest)) = self.measure(at)
            && longest >= end
        {
            return (token, longest);
        }
        (ID, end)
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or_default()
    }

    /// The end of a run of bytes of these classes.
    #[inline]
    fn run(&self, at: usize, classes: u8) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|byte| is(**byte, classes)).count()
    }

    fn follows_word(&self) -> bool {
        let before = self.text.get(..self.at).and_then(|text| text.chars().next_back());
        before.is_some_and(char::is_alphanumeric)
    }

    /// Whether no word continues at this position.
    fn is_boundary(&self, at: usize) -> bool {
        match CLASSES[usize::from(self.byte(at))] {
            class if class & (class::LETTER | class::DIGIT) != 0 => false,
            class if class & class::BEYOND != 0 => !self.is_letter_beyond(at),
            _ => true,
        }
    }

    fn at_boundary(&self, end: usize) -> Option<usize> {
        self.is_boundary(end).then_some(end)
    }

    fn quoted(&self, quote: u8) -> Option<usize> {
        let mut at = self.at + 1;
        loop {
            match *self.bytes.get(at)? {
                b'\\' => at += 2,
                byte if byte == quote => return Some(at + 1),
                _ => at += 1,
            }
        }
    }

    fn url(&self, at: usize) -> Option<usize> {
        let rest = self.bytes.get(at..)?;
        let of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let scheme = rest.iter().position(|byte| !of_scheme(byte))?;
        if !rest.first()?.is_ascii_alphabetic() || !rest.get(scheme..)?.starts_with(b"://") {
            return None;
        }
        let len = rest.iter().position(|byte| is(*byte, class::SPACE));
        Some(at + len.unwrap_or(rest.len())).filter(|end| *end > at + scheme + "://".len())
    }

    fn email(&self, at: usize) -> Option<usize> {
        let name_end = self.run(at, class::LETTER | class::DIGIT | class::EMAIL);
        if self.byte(name_end) != b'@' {
            return None;
        }
        let (mut end, mut labels) = (name_end + 1, 0);
        loop {
            let label = self.bytes.get(end..)?;
            let len = label
                .iter()
                .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-')
                .count();
            if len == 0 {
                // A full stop after the address is not part of it.
                return (labels >= 2).then_some(end.saturating_sub(1));
            }
            (end, labels) = (end + len, labels + 1);
            if self.byte(end) != b'.' {
                return (labels >= 2).then_some(end).and_then(|end| self.at_boundary(end));
            }
            end += 1;
        }
    }

    fn uuid(&self, at: usize) -> Option<usize> {
        let mut end = at;
        for (group, digits) in UUID_GROUPS.into_iter().enumerate() {
            if group > 0 {
                end = (self.byte(end) == b'-').then_some(end + 1)?;
            }
            let hex = self.bytes.get(end..end + digits)?;
            end = hex.iter().all(|byte| is(*byte, class::HEX)).then_some(end + digits)?;
        }
        self.at_boundary(end)
    }

    /// Matches `count` digits with a value in the range.
    fn digits(&self, at: usize, count: usize, range: std::ops::RangeInclusive<u32>) -> Option<usize> {
        let mut value = 0;
        for byte in self.bytes.get(at..at + count)? {
            value = value * 10 + char::from(*byte).to_digit(10)?;
        }
        range.contains(&value).then_some(at + count)
    }

    fn one_of(&self, at: usize, bytes: &[u8]) -> Option<usize> {
        bytes.contains(self.bytes.get(at)?).then_some(at + 1)
    }

    fn time(&self, at: usize) -> Option<usize> {
        let date = self.date(at);
        let date_and_time = date.and_then(|end| {
            let begin = self.one_of(end, b"Tt ")?;
            self.clock(begin, false).and_then(|end| self.at_boundary(end))
        });
        date_and_time
            .or_else(|| date.and_then(|end| self.at_boundary(end)))
            .or_else(|| self.clock(at, true).and_then(|end| self.at_boundary(end)))
    }

    fn date(&self, at: usize) -> Option<usize> {
        let month = self.one_of(self.digits(at, 4, 0..=9999)?, b"-")?;
        let day = self.one_of(self.digits(month, 2, 1..=12)?, b"-")?;
        self.digits(day, 2, 1..=31)
    }

    /// Hours and minutes, optional seconds with a fraction, and an optional zone.
    fn clock(&self, at: usize, needs_seconds: bool) -> Option<usize> {
        let minute = self.one_of(self.digits(at, 2, 0..=24)?, b":")?;
        let mut end = self.digits(minute, 2, 0..=59)?;
        let seconds = self.one_of(end, b":").and_then(|at| self.digits(at, 2, 0..=60));
        match seconds {
            Some(seconds) => end = self.fraction(seconds),
            None if needs_seconds => return None,
            None => {}
        }
        Some(self.zone(end).unwrap_or(end))
    }

    fn fraction(&self, at: usize) -> usize {
        match self.one_of(at, b".,") {
            Some(begin) => Some(self.run(begin, class::DIGIT))
                .filter(|end| *end > begin)
                .unwrap_or(at),
            None => at,
        }
    }

    fn zone(&self, at: usize) -> Option<usize> {
        if let Some(end) = self.one_of(at, b"Zz") {
            return Some(end);
        }
        let hours = self.digits(self.one_of(at, b"+-")?, 2, 0..=23)?;
        let minutes = self.one_of(hours, b":").unwrap_or(hours);
        Some(self.digits(minutes, 2, 0..=59).unwrap_or(hours))
    }

    fn month_day_time(&self, at: usize) -> Option<usize> {
        let name = self.bytes.get(at..at + 3)?;
        if !MONTHS.contains(&name) {
            return None;
        }
        let day = self.run(at + 3, class::SPACE);
        let end = self.digits(day, 2, 1..=31).or_else(|| self.digits(day, 1, 1..=9))?;
        let clock = Some(self.run(end, class::SPACE)).filter(|clock| *clock > end)?;
        self.clock(clock, true).and_then(|end| self.at_boundary(end))
    }

    fn ip(&self, at: usize) -> Option<usize> {
        if let Some(end) = self.ipv4(at) {
            return Some(self.port(end).unwrap_or(end));
        }
        let of_address = |byte: &&u8| is(**byte, class::HEX) || matches!(byte, b':' | b'.');
        let rest = self.bytes.get(at..)?;
        let len = rest.iter().take(IPV6_BYTES_MAX + 1).take_while(of_address).count();
        // A colon or full stop after the address is not part of it.
        (0..2).find_map(|less| {
            let len = len.checked_sub(less).filter(|len| *len <= IPV6_BYTES_MAX)?;
            let address = self.text.get(at..at + len)?;
            let is_some = address.bytes().any(|byte| is(byte, class::HEX));
            (is_some && address.parse::<Ipv6Addr>().is_ok()).then_some(())?;
            self.at_boundary(at + len)
        })
    }

    fn ipv4(&self, at: usize) -> Option<usize> {
        let mut end = at;
        for part in 0..4 {
            if part > 0 {
                end = self.one_of(end, b".")?;
            }
            let len = self.run(end, class::DIGIT) - end;
            end = (1..=3)
                .contains(&len)
                .then(|| self.digits(end, len, 0..=255))
                .flatten()?;
        }
        // With a fifth number it is no address.
        let goes_on = self.byte(end) == b'.' && is(self.byte(end + 1), class::DIGIT);
        self.at_boundary(end).filter(|_| !goes_on)
    }

    fn port(&self, at: usize) -> Option<usize> {
        let begin = self.one_of(at, b":")?;
        let end = self.run(begin, class::DIGIT);
        (1..=PORT_DIGITS_MAX).contains(&(end - begin)).then_some(())?;
        self.at_boundary(end)
    }

    fn ip_in_brackets(&self, at: usize) -> Option<usize> {
        let rest = self.bytes.get(at + 1..)?;
        let len = rest.iter().take(IPV6_BYTES_MAX + 1).position(|byte| *byte == b']')?;
        let address = self.text.get(at + 1..at + 1 + len)?;
        address.parse::<Ipv6Addr>().ok()?;
        let end = at + 1 + len + 1;
        Some(self.port(end).unwrap_or(end))
    }

    /// `C:\...`: the word before the colon is one letter.
    fn drive(&self, at: usize, word_end: usize) -> Option<usize> {
        let is_drive = word_end == at + 1 && self.byte(at).is_ascii_alphabetic();
        let begin = is_drive.then(|| self.one_of(word_end, b":")).flatten()?;
        self.one_of(begin, b"/\\")?;
        self.path(begin).map(|(end, _)| end)
    }

    fn rooted(&self, at: usize) -> Option<usize> {
        self.path(at).map(|(end, _)| end)
    }

    fn separated(&self, at: usize) -> Option<usize> {
        self.path(at)
            .filter(|(_, separators)| *separators >= 2)
            .map(|(end, _)| end)
    }

    /// Matches names and separators with at least one name. Returns the end and the number of separators.
    fn path(&self, at: usize) -> Option<(usize, usize)> {
        let rest = self.bytes.get(at..)?;
        let of_path =
            |byte: &&u8| is(**byte, class::LETTER | class::DIGIT | class::PATH) || matches!(byte, b'/' | b'\\');
        let mut path = rest.get(..rest.iter().take_while(of_path).count())?;
        // A full stop at the end is not part of the path.
        while let Some(shorter) = path.strip_suffix(b".") {
            path = shorter;
        }
        let separators = path.iter().filter(|byte| matches!(byte, b'/' | b'\\')).count();
        let has_name = path
            .iter()
            .any(|byte| is(*byte, class::LETTER | class::DIGIT | class::BEYOND));
        has_name.then_some((at + path.len(), separators))
    }

    /// A duration, a size or a number, the first of these that matches.
    fn measure(&self, at: usize) -> Option<(TemplateToken<'a>, usize)> {
        if let Some(end) = self.duration(at) {
            return Some((DURATION, end));
        }
        let unsigned = self.one_of(at, b"+-").unwrap_or(at);
        let size = self.decimal(unsigned).and_then(|end| self.unit(end, &SIZES));
        if let Some(end) = size.and_then(|end| self.at_boundary(end)) {
            return Some((SIZE, end));
        }
        self.number(at).map(|end| (NUMBER, end))
    }

    /// `1h2m3.5s`: one or more numbers with units.
    fn duration(&self, at: usize) -> Option<usize> {
        let mut at = self.one_of(at, b"+-").unwrap_or(at);
        loop {
            let end = self.unit(self.decimal(at)?, &DURATIONS)?;
            if self.is_boundary(end) {
                return Some(end);
            }
            at = end;
        }
    }

    fn decimal(&self, at: usize) -> Option<usize> {
        let end = self.run(at, class::DIGIT);
        if end == at {
            return None;
        }
        let fraction = self
            .one_of(end, b".")
            .map(|begin| (begin, self.run(begin, class::DIGIT)));
        Some(fraction.filter(|(begin, end)| end > begin).map_or(end, |(_, end)| end))
    }

    /// The end of the longest matching unit.
    fn unit(&self, at: usize, units: &[&str]) -> Option<usize> {
        let rest = self.text.get(at..)?;
        let fitting = units.iter().filter(|unit| rest.starts_with(**unit));
        Some(at + fitting.map(|unit| unit.len()).max()?)
    }

    /// The longest number that ends at a word boundary.
    fn number(&self, at: usize) -> Option<usize> {
        let whole_end = self.run(self.one_of(at, b"+-").unwrap_or(at), class::DIGIT);
        let decimal_end = self.decimal(self.one_of(at, b"+-").unwrap_or(at))?;
        let exponent = || {
            let begin = self.one_of(decimal_end, b"eE")?;
            let begin = self.one_of(begin, b"+-").unwrap_or(begin);
            Some(self.run(begin, class::DIGIT)).filter(|end| *end > begin)
        };
        let ends = [exponent(), Some(decimal_end), Some(whole_end)];
        let end = ends.into_iter().flatten().find(|end| self.is_boundary(*end))?;
        Some(self.one_of(end, b"%").unwrap_or(end))
    }
}
