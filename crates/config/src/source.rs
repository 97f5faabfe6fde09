//! The text of a configuration file, and the mapping from any parsed position back to it.
//!
//! The YAML parser sees the text after environment replacement. [`SourceMap`] contains that text with the list of
//! replacements, and converts a position in it to the line and column that the user sees in the original file. A
//! position inside a replacement maps to the `$` that began it.

use std::fmt;
use std::io::Read;
use std::path::Path;

use crate::diagnostics::Diagnostic;

/// Largest accepted configuration, in bytes, before and after environment replacement.
pub(crate) const TEXT_BYTES_MAX: usize = 8 << 20;

/// A line and a column in the original file, both counted from 1, columns in characters.
///
/// Two values are outside the file: [`Pos::WHOLE_FILE`] and [`Pos::COMMAND_LINE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pos {
    pub line: u32,
    pub column: u32,
}

impl Pos {
    /// The file as a whole, for example if it cannot be read.
    pub const WHOLE_FILE: Pos = Pos { line: 0, column: 0 };
    /// A value given by `-s path=value`.
    pub const COMMAND_LINE: Pos = Pos { line: 0, column: 1 };

    pub(crate) fn new(line: usize, column: usize) -> Pos {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Pos {
            line: clamp(line),
            column: clamp(column),
        }
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A configuration text and its name in messages.
#[derive(Debug, Clone)]
pub struct SourceText {
    /// The file name as the user typed it.
    pub name: String,
    pub text: String,
}

impl SourceText {
    /// Takes the text unchanged, except for the byte order mark that some editors put first.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> SourceText {
        let mut text = text.into();
        if text.starts_with('\u{FEFF}') {
            text.drain(..'\u{FEFF}'.len_utf8());
        }
        SourceText {
            name: name.into(),
            text,
        }
    }

    /// Reads a file of at most 8 MiB of UTF-8.
    pub fn read(path: &Path) -> Result<SourceText, Diagnostic> {
        let name = path.display().to_string();
        let fail = |pos, message: String| Diagnostic::error(&name, pos, message);
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(|e| fail(Pos::WHOLE_FILE, format!("cannot be read: {}", reason(&e))))?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(fail(Pos::WHOLE_FILE, too_large()));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(SourceText::new(name, text)),
            Err(e) => {
                let valid = e.utf8_error().valid_up_to();
                let bytes = e.into_bytes();
                let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default());
                let pos = IndexedText::new(before.into_owned()).pos(valid);
                let byte = bytes.get(valid).copied().unwrap_or_default();
                let text = format!("the file is not UTF-8 text: byte 0x{byte:02X} here; save it as UTF-8");
                Err(fail(pos, text))
            }
        }
    }
}

/// The message for a text over [`TEXT_BYTES_MAX`].
pub(crate) fn too_large() -> String {
    format!(
        "the configuration is larger than {} MiB, the limit",
        TEXT_BYTES_MAX >> 20
    )
}

/// The reason of an I/O error without the operating system's number.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((before, _)) => before.to_owned(),
        None => text,
    }
}

/// Bytes between two entries of the character count table.
const STRIDE: usize = 1024;

/// A text with tables that convert byte offsets to lines and columns without scanning it again, so that one very long
/// line does not make a thousand mistakes slow to locate.
#[derive(Debug)]
pub(crate) struct IndexedText {
    text: String,
    line_starts: Vec<usize>,
    /// Characters that begin before byte `k * STRIDE`.
    char_counts: Vec<usize>,
    /// Every byte is a character, and no table is needed.
    ascii: bool,
}

impl IndexedText {
    pub(crate) fn new(text: String) -> IndexedText {
        let bytes = text.as_bytes();
        let mut line_starts = vec![0];
        let mut char_counts = Vec::with_capacity(bytes.len() / STRIDE + 1);
        let mut chars = 0;
        for (offset, &byte) in bytes.iter().enumerate() {
            if offset.is_multiple_of(STRIDE) {
                char_counts.push(chars);
            }
            chars += usize::from(begins_char(byte));
            // The parser counts LF, CR LF and a lone CR as one line break each.
            let breaks = byte == b'\n' || (byte == b'\r' && bytes.get(offset + 1) != Some(&b'\n'));
            if breaks {
                line_starts.push(offset + 1);
            }
        }
        if bytes.len().is_multiple_of(STRIDE) {
            char_counts.push(chars);
        }
        IndexedText {
            ascii: chars == text.len(),
            text,
            line_starts,
            char_counts,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Line and column of a byte offset; an offset beyond the end is the end.
    pub(crate) fn pos(&self, offset: usize) -> Pos {
        let offset = offset.min(self.text.len());
        let line = self.line_number(offset);
        let start = self.line_start(line);
        Pos::new(line, self.char_index(offset) - self.char_index(start) + 1)
    }

    /// Byte offset of a line (from 1) and a column (from 0, in characters).
    pub(crate) fn offset(&self, line: usize, column: usize) -> usize {
        self.char_offset(self.char_index(self.line_start(line)) + column)
    }

    pub(crate) fn line_number(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }

    pub(crate) fn line_start(&self, line: usize) -> usize {
        let start = self.line_starts.get(line.saturating_sub(1));
        start.copied().unwrap_or(self.text.len())
    }

    /// The text of a line (from 1) without its line break.
    pub(crate) fn line(&self, line: usize) -> &str {
        let range = self.line_start(line)..self.line_start(line + 1);
        self.text.get(range).unwrap_or_default().trim_end_matches(['\n', '\r'])
    }

    fn char_index(&self, offset: usize) -> usize {
        if self.ascii {
            return offset;
        }
        let block = offset / STRIDE;
        let before = self.char_counts.get(block).copied().unwrap_or_default();
        let rest = self.text.as_bytes().get(block * STRIDE..offset).unwrap_or_default();
        before + rest.iter().filter(|&&byte| begins_char(byte)).count()
    }

    fn char_offset(&self, index: usize) -> usize {
        if self.ascii {
            return index.min(self.text.len());
        }
        let block = self
            .char_counts
            .partition_point(|&count| count <= index)
            .saturating_sub(1);
        let mut left = index - self.char_counts.get(block).copied().unwrap_or_default();
        let bytes = self.text.as_bytes().get(block * STRIDE..).unwrap_or_default();
        for (at, &byte) in bytes.iter().enumerate() {
            if begins_char(byte) {
                if left == 0 {
                    return block * STRIDE + at;
                }
                left -= 1;
            }
        }
        self.text.len()
    }
}

fn begins_char(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

/// One replaced range: `old` bytes of the original became `new` bytes of the parsed text.
#[derive(Debug, Clone)]
pub(crate) struct TextEdit {
    pub(crate) old_start: usize,
    pub(crate) old_end: usize,
    pub(crate) new_start: usize,
    pub(crate) new_end: usize,
}

/// The parsed text and its relation to the original one.
#[derive(Debug)]
pub(crate) struct SourceMap {
    original: IndexedText,
    parsed: IndexedText,
    edits: Vec<TextEdit>,
}

impl SourceMap {
    /// `edits` are sorted and do not overlap.
    pub(crate) fn new(original: IndexedText, parsed: String, edits: Vec<TextEdit>) -> SourceMap {
        SourceMap {
            original,
            parsed: IndexedText::new(parsed),
            edits,
        }
    }

    /// A text without replacements.
    pub(crate) fn unchanged(text: &str) -> SourceMap {
        SourceMap::new(IndexedText::new(text.to_owned()), text.to_owned(), Vec::new())
    }

    /// The text after replacement, as the parser sees it.
    pub(crate) fn parsed(&self) -> &IndexedText {
        &self.parsed
    }

    /// The position in the original file of a byte offset in the parsed text.
    pub(crate) fn pos(&self, offset: usize) -> Pos {
        let next = self.edits.partition_point(|edit| edit.new_start <= offset);
        let old = match next.checked_sub(1).and_then(|last| self.edits.get(last)) {
            None => offset,
            Some(edit) if offset < edit.new_end => edit.old_start,
            Some(edit) => edit.old_end + (offset - edit.new_end),
        };
        self.original.pos(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_and_all_line_breaks() {
        let text = IndexedText::new("aé\nb\r\nc\rd".to_owned());
        assert_eq!(text.pos(0), Pos { line: 1, column: 1 });
        assert_eq!(text.pos(3), Pos { line: 1, column: 3 });
        assert_eq!(text.pos(4), Pos { line: 2, column: 1 });
        assert_eq!(text.pos(7), Pos { line: 3, column: 1 });
        assert_eq!(text.pos(9), Pos { line: 4, column: 1 });
        assert_eq!(text.pos(999), Pos { line: 4, column: 2 });
        assert_eq!(text.line(2), "b");
        assert_eq!(text.line(9), "");
    }

    #[test]
    fn offsets_of_long_lines_come_back_to_the_same_place() {
        for unit in ["a", "é", "→", "a𝄞"] {
            let line = unit.repeat(3000);
            let text = IndexedText::new(format!("{line}\n{line}"));
            for (offset, _) in text.text().char_indices().step_by(97) {
                let pos = text.pos(offset);
                let back = text.offset(pos.line as usize, pos.column as usize - 1);
                assert_eq!(back, offset, "unit {unit}");
            }
        }
    }

    #[test]
    fn invalid_utf8_names_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.yaml");
        std::fs::write(&path, b"input:\n  x: \xff\n").unwrap();
        let error = SourceText::read(&path).unwrap_err();
        let expected = "bad.yaml:2:6: the file is not UTF-8 text: byte 0xFF here; save it as UTF-8";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn files_over_the_limit_and_missing_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big.yaml");
        std::fs::write(&path, vec![b' '; TEXT_BYTES_MAX + 1]).unwrap();
        let error = SourceText::read(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("big.yaml: the configuration is larger than 8 MiB, the limit"),
            "{error}"
        );
        let error = SourceText::read(&folder.path().join("none.yaml"))
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("none.yaml: cannot be read: No such file or directory"),
            "{error}"
        );
    }
}
