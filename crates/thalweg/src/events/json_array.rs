//! Reads the elements of a JSON array one by one as they arrive, so that a page of any size takes only the memory of
//! its largest message.

use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};

/// Limit for one element.
const ELEMENT_MAX: usize = 256 << 20;
const READ: usize = 64 << 10;

pub struct JsonArrayReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// Bytes before this are consumed.
    start: usize,
    /// The next byte to examine.
    at: usize,
    begun: bool,
    ended: bool,
}

impl<R: Read> JsonArrayReader<R> {
    pub fn new(source: R) -> JsonArrayReader<R> {
        JsonArrayReader {
            source,
            buffer: Vec::new(),
            start: 0,
            at: 0,
            begun: false,
            ended: false,
        }
    }

    /// The text of the next element; `None` at the end of the array.
    pub fn next(&mut self) -> Result<Option<String>> {
        if self.ended {
            return Ok(None);
        }
        if !self.begun {
            ensure!(self.significant()? == b'[', "the answer is not an array");
            self.begun = true;
        } else if self.significant()? == b']' {
            self.ended = true;
            return Ok(None);
        }
        self.element()
    }

    /// Reads up to the next comma or the closing bracket, which is not consumed.
    fn element(&mut self) -> Result<Option<String>> {
        let (mut depth, mut in_string, mut escaped) = (0_u32, false, false);
        self.start = self.at;
        loop {
            let byte = self.peek()?;
            let is_end = !in_string && depth == 0 && matches!(byte, b',' | b']');
            if is_end {
                break;
            }
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                b'[' | b'{' if !in_string => depth += 1,
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            ensure!(
                self.at - self.start <= ELEMENT_MAX,
                "the answer has an element of more than {ELEMENT_MAX} bytes"
            );
        }
        let text = self.buffer.get(self.start..self.at).unwrap_or_default();
        let text = std::str::from_utf8(text).context("the answer is not UTF-8")?.trim();
        if text.is_empty() {
            ensure!(self.peek()? == b']', "the answer has an empty element");
            self.ended = true;
            return Ok(None);
        }
        Ok(Some(text.to_owned()))
    }

    /// Consumes the next byte that is not white space.
    fn significant(&mut self) -> Result<u8> {
        loop {
            let byte = self.peek()?;
            self.at += 1;
            self.start = self.at;
            if !byte.is_ascii_whitespace() {
                return Ok(byte);
            }
        }
    }

    fn peek(&mut self) -> Result<u8> {
        loop {
            if let Some(byte) = self.buffer.get(self.at) {
                return Ok(*byte);
            }
            self.buffer.drain(..self.start);
            self.at -= self.start;
            self.start = 0;
            let old = self.buffer.len();
            self.buffer.resize(old + READ, 0);
            let read = self.source.read(self.buffer.get_mut(old..).unwrap_or_default());
            let count = read.context("the answer was cut off")?;
            self.buffer.truncate(old + count);
            if count == 0 {
                bail!("the answer was cut off");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Returns one byte per read.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let (Some((first, rest)), Some(place)) = (self.0.split_first(), into.first_mut()) else {
                return Ok(0);
            };
            (*place, self.0) = (*first, rest);
            Ok(1)
        }
    }

    fn all(text: &str) -> Result<Vec<String>> {
        let mut elements = JsonArrayReader::new(Slow(text.as_bytes()));
        std::iter::from_fn(|| elements.next().transpose()).collect()
    }

    #[test]
    fn elements_keep_their_text_however_the_answer_comes() {
        assert_eq!(all("[]\n").unwrap(), Vec::<String>::new());
        assert_eq!(all(" [ ] ").unwrap(), Vec::<String>::new());
        let text = r#"[["a","],\"[",{"x":[1,{}]}] , "b\\", {"é":"}"}, 1.50]"#;
        assert_eq!(
            all(text).unwrap(),
            [r#"["a","],\"[",{"x":[1,{}]}]"#, r#""b\\""#, r#"{"é":"}"}"#, "1.50"]
        );
    }

    #[test]
    fn an_answer_that_is_cut_off_is_no_end() {
        for text in ["", "[", "[1", "[1,", "[\"a", "{}", "[1,,2]"] {
            assert!(all(text).is_err(), "{text}");
        }
    }
}
