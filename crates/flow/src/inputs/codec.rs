//! Splits a stream of bytes into messages: `lines`, `all-bytes`, `delim:x`.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// Where a stream is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delimiter {
    /// At line feeds; a carriage return before one belongs to it.
    Lines,
    At(Vec<u8>),
    /// No split: the stream is one message.
    AllBytes,
}

impl Delimiter {
    /// Reads the name of a codec.
    pub fn of_codec(name: &str) -> Result<Delimiter, String> {
        match name {
            "lines" => Ok(Delimiter::Lines),
            "all-bytes" => Ok(Delimiter::AllBytes),
            other => match other.strip_prefix("delim:") {
                Some(delimiter) if !delimiter.is_empty() => Ok(Delimiter::At(delimiter.as_bytes().to_vec())),
                _ => Err(format!("unknown codec \"{other}\"; valid: lines, all-bytes, delim:x")),
            },
        }
    }
}

/// Splits one stream.
pub(super) struct DelimiterSplitter {
    cut: Delimiter,
    /// Maximum size of a message.
    max_bytes: usize,
    buffer: BytesMut,
    /// No delimiter begins before this offset of the buffer.
    searched: usize,
    /// Inside a message that is too large: everything up to the next delimiter is skipped.
    skipping: bool,
}

/// The messages of a piece of the stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitMessages {
    pub messages: Vec<Bytes>,
    /// Messages that were skipped because they exceed `max_buffer`.
    pub too_large: usize,
}

impl DelimiterSplitter {
    pub fn new(cut: Delimiter, max_bytes: usize) -> DelimiterSplitter {
        DelimiterSplitter {
            cut,
            max_bytes,
            buffer: BytesMut::new(),
            searched: 0,
            skipping: false,
        }
    }

    pub fn push(&mut self, piece: &[u8]) -> SplitMessages {
        self.buffer.extend_from_slice(piece);
        let mut cuts = SplitMessages::default();
        while let Some((end, next)) = self.find() {
            let mut message = self.buffer.split_to(next);
            message.truncate(end);
            self.searched = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if message.len() > self.max_bytes {
                cuts.too_large += 1;
            } else {
                cuts.messages.push(message.freeze());
            }
        }
        self.bound(&mut cuts);
        cuts
    }

    /// Ends the stream: the rest is a message too, unless it is empty.
    pub fn finish(&mut self) -> SplitMessages {
        let rest = self.buffer.split().freeze();
        let complete = !rest.is_empty() && !self.skipping;
        SplitMessages {
            messages: complete.then_some(rest).into_iter().collect(),
            too_large: 0,
        }
    }

    /// Returns the end of the first message and the beginning of the next.
    fn find(&mut self) -> Option<(usize, usize)> {
        let tail = self.buffer.get(self.searched..)?;
        match &self.cut {
            Delimiter::AllBytes => None,
            Delimiter::Lines => {
                let Some(at) = memchr::memchr(b'\n', tail).map(|at| at + self.searched) else {
                    self.searched = self.buffer.len();
                    return None;
                };
                let carriage_return = at.checked_sub(1).and_then(|i| self.buffer.get(i)) == Some(&b'\r');
                Some((at - usize::from(carriage_return), at + 1))
            }
            Delimiter::At(delimiter) => {
                let Some(at) = memmem::find(tail, delimiter).map(|at| at + self.searched) else {
                    self.searched = self.buffer.len().saturating_sub(delimiter.len() - 1);
                    return None;
                };
                Some((at, at + delimiter.len()))
            }
        }
    }

    /// Keeps the buffer from growing with a message that is too large anyway.
    fn bound(&mut self, cuts: &mut SplitMessages) {
        if self.buffer.len() <= self.max_bytes && !self.skipping {
            return;
        }
        if !std::mem::replace(&mut self.skipping, true) {
            cuts.too_large += 1;
        }
        // A delimiter of several bytes may have begun at the end.
        let keep = match &self.cut {
            Delimiter::At(delimiter) => delimiter.len() - 1,
            _ => 0,
        };
        let passed = self.buffer.len().saturating_sub(keep);
        let _ = self.buffer.split_to(passed);
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(cut: Delimiter, max_bytes: usize, pieces: &[&[u8]]) -> (Vec<String>, usize) {
        let mut splitter = DelimiterSplitter::new(cut, max_bytes);
        let mut all: Vec<SplitMessages> = pieces.iter().map(|piece| splitter.push(piece)).collect();
        all.push(splitter.finish());
        let too_large = all.iter().map(|cuts| cuts.too_large).sum();
        let messages = all.into_iter().flat_map(|cuts| cuts.messages);
        (
            messages.map(|m| String::from_utf8_lossy(&m).into_owned()).collect(),
            too_large,
        )
    }

    #[test]
    fn lines_end_with_or_without_carriage_return_and_the_last_needs_no_end() {
        let (messages, _) = run(Delimiter::Lines, 100, &[b"a\r", b"\nb\n\nc"]);
        assert_eq!(messages, ["a", "b", "", "c"]);
    }

    #[test]
    fn a_message_over_the_limit_is_passed_over_and_the_next_is_whole() {
        for cut in [Delimiter::Lines, Delimiter::At(b"\n".to_vec())] {
            let (messages, too_large) = run(cut, 3, &[b"ab\nabcd", b"efgh", b"i\nxy\nabcd\nz"]);
            assert_eq!(
                (messages, too_large),
                (vec!["ab".to_owned(), "xy".to_owned(), "z".to_owned()], 2)
            );
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[a-c|;]{0,60}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let cut = Delimiter::At(b"|;".to_vec());
            let mut at: Vec<usize> = cuts.iter().map(|i| i.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            let mut expected: Vec<String> = text.split("|;").map(str::to_owned).collect();
            if expected.last().is_some_and(String::is_empty) { expected.pop(); }
            prop_assert_eq!(run(cut, 1000, &pieces).0, expected);
        }
    }
}
