//! Reads the lines of a file, or its JSON values if they span lines. Their length in memory is limited.

use std::io::BufRead;

use memchr::memchr;

use super::error::BulkError;

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineOutcome {
    Whole,
    /// It exceeds the limit; only its beginning is returned.
    TooLong,
    End,
}

/// Reads lines.
pub(super) struct LineReader<R> {
    from: R,
    /// The number of the last line, from 1.
    number: u64,
    bytes_max: usize,
}

/// How much of a line that is too long is kept.
const KEPT_BYTES: usize = 64 << 10;

impl<R: BufRead> LineReader<R> {
    pub fn new(from: R, bytes_max: usize) -> LineReader<R> {
        LineReader {
            from,
            number: 0,
            bytes_max,
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn into_inner(self) -> R {
        self.from
    }

    /// Reads the next line without its line end. A line that is too long does not end the reading.
    pub fn next(&mut self, line: &mut Vec<u8>) -> Result<LineOutcome, BulkError> {
        line.clear();
        let (mut is_any, mut is_long) = (false, false);
        loop {
            let there = self.from.fill_buf()?;
            if there.is_empty() {
                if !is_any {
                    return Ok(LineOutcome::End);
                }
                break;
            }
            if !is_any {
                self.number += 1;
                is_any = true;
            }
            let end = memchr(b'\n', there);
            let piece = there.get(..end.unwrap_or(there.len())).unwrap_or(there);
            if !is_long {
                let room = self.bytes_max - line.len();
                line.extend_from_slice(piece.get(..room).unwrap_or(piece));
                is_long = piece.len() > room;
            }
            let read = piece.len() + usize::from(end.is_some());
            self.from.consume(read);
            if end.is_some() {
                break;
            }
        }
        if is_long {
            line.truncate(KEPT_BYTES);
            return Ok(LineOutcome::TooLong);
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(LineOutcome::Whole)
    }
}

/// Reads concatenated JSON values, or the elements of one list, across lines.
pub(super) struct JsonValueReader<R> {
    from: R,
    /// The line of the next byte.
    line: u64,
    bytes_max: usize,
    /// The line in which the last value begins.
    begin: u64,
}

impl<R: BufRead> JsonValueReader<R> {
    pub fn new(from: R, bytes_max: usize) -> JsonValueReader<R> {
        JsonValueReader {
            from,
            line: 1,
            bytes_max,
            begin: 1,
        }
    }

    /// The line in which the last value begins.
    pub fn number(&self) -> u64 {
        self.begin
    }

    /// Reads the next value from its first bracket to its last. Anything else between values counts as a value up to
    /// the end of its line.
    pub fn next(&mut self, value: &mut Vec<u8>) -> Result<LineOutcome, BulkError> {
        value.clear();
        let mut state = JsonScanState::default();
        loop {
            let there = self.from.fill_buf()?;
            if there.is_empty() {
                return Ok(match value.is_empty() {
                    true => LineOutcome::End,
                    false => LineOutcome::Whole,
                });
            }
            let mut is_whole = false;
            let mut read = 0;
            for &byte in there {
                read += 1;
                if value.is_empty() && state.is_between(byte) {
                    self.line += u64::from(byte == b'\n');
                    continue;
                }
                if value.is_empty() {
                    self.begin = self.line;
                }
                self.line += u64::from(byte == b'\n');
                if value.len() >= self.bytes_max {
                    self.from.consume(read);
                    let (begin, mib) = (self.begin, self.bytes_max >> 20);
                    return Err(BulkError::Text(format!(
                        "the value that begins in line {begin} has more than {mib} MiB"
                    )));
                }
                value.push(byte);
                if state.ends_with(byte) {
                    is_whole = true;
                    break;
                }
            }
            self.from.consume(read);
            if is_whole {
                return Ok(LineOutcome::Whole);
            }
        }
    }
}

/// The state within a value.
#[derive(Default)]
struct JsonScanState {
    depth: u32,
    in_text: bool,
    is_escaped: bool,
}

impl JsonScanState {
    /// Whether a byte separates values: white space, or the punctuation of a list.
    fn is_between(&self, byte: u8) -> bool {
        byte.is_ascii_whitespace() || matches!(byte, b'[' | b']' | b',' | 0xef | 0xbb | 0xbf)
    }

    fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            b'\n' | b',' if self.depth == 0 => return true,
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    fn lines(text: &[u8], max: usize) -> Vec<(u64, LineOutcome, String)> {
        let mut lines = LineReader::new(BufReader::with_capacity(3, text), max);
        let (mut all, mut line) = (Vec::new(), Vec::new());
        loop {
            match lines.next(&mut line).unwrap() {
                LineOutcome::End => return all,
                kind => all.push((lines.number(), kind, String::from_utf8_lossy(&line).into_owned())),
            }
        }
    }

    fn values(text: &[u8]) -> Vec<(u64, String)> {
        let mut values = JsonValueReader::new(BufReader::with_capacity(5, text), 1000);
        let (mut all, mut value) = (Vec::new(), Vec::new());
        while values.next(&mut value).unwrap() != LineOutcome::End {
            all.push((values.number(), String::from_utf8_lossy(&value).into_owned()));
        }
        all
    }

    #[test]
    fn a_line_that_is_too_long_costs_its_own_bytes_only() {
        let whole = |number, text: &str| (number, LineOutcome::Whole, text.to_owned());
        assert_eq!(
            lines(b"a\r\n\nabcdefghij\nlast", 5),
            [
                whole(1, "a"),
                whole(2, ""),
                (3, LineOutcome::TooLong, "abcde".to_owned()),
                whole(4, "last")
            ]
        );
        assert_eq!(lines(b"", 5), []);
    }

    #[test]
    fn values_go_over_lines_and_may_be_a_list() {
        let text = b"[\n {\"a\": [1, 2,\n 3]},\n {\"b\": \"}\\\"]\"}\n]\n{\"c\": {}}";
        assert_eq!(
            values(text),
            [
                (2, "{\"a\": [1, 2,\n 3]}".to_owned()),
                (4, "{\"b\": \"}\\\"]\"}".to_owned()),
                (6, "{\"c\": {}}".to_owned())
            ]
        );
        assert_eq!(values(b"{\"cut\": [1"), [(1, "{\"cut\": [1".to_owned())]);
        assert_eq!(values(b"what\n{}"), [(1, "what\n".to_owned()), (2, "{}".to_owned())]);
        let endless = vec![b'{'; 2000];
        let mut values = JsonValueReader::new(&endless[..], 1000);
        let error = values.next(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("begins in line 1 has more than"), "{error}");
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text(text in "[a\\n\\r]{0,60}") {
            let expected: Vec<String> = text.lines().map(str::to_owned).collect();
            let found: Vec<String> = lines(text.as_bytes(), 1000).into_iter().map(|(_, _, line)| line).collect();
            // `str::lines` does not treat a `\r` at the very end as part of a line end.
            let trimmed: Vec<String> = expected.iter().map(|line| line.trim_end_matches('\r').to_owned()).collect();
            let found: Vec<String> = found.iter().map(|line| line.trim_end_matches('\r').to_owned()).collect();
            prop_assert_eq!(found, trimmed);
        }

        #[test]
        fn values_are_found_whatever_stands_around_them(
            numbers in prop::collection::vec(any::<i32>(), 0..8),
            gap in "[ \\n\\t]{0,3}",
        ) {
            let all: Vec<String> = numbers.iter().map(|n| format!("{{\"n\":{gap}[{n}]}}")).collect();
            let text = all.join(&format!("{gap}\n"));
            let found: Vec<String> = values(text.as_bytes()).into_iter().map(|(_, value)| value).collect();
            prop_assert_eq!(found, all);
        }
    }
}
