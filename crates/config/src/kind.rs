//! The types of fields, in the words of the reference.
//!
//! The typed readers of [`Fields`](crate::Fields) name their type themselves; a reader that takes a value as it is
//! names one of these. The reference prints the words, and the JSON Schema is made from them.

pub const TEXT: &str = "text";
pub const TRUE_OR_FALSE: &str = "true or false";
pub const WHOLE_NUMBER: &str = "whole number";
pub const NUMBER: &str = "number";
pub const DURATION: &str = "duration";
/// The time between two of something, or a cron expression for the times at which it is due.
pub const INTERVAL: &str = "duration or cron expression";
pub const SIZE: &str = "size";
pub const LIST: &str = "list";
pub const MAPPING: &str = "mapping";
pub const TEXT_LIST: &str = "list of text";
pub const TEXT_MAPPING: &str = "mapping of text";
pub const TEXT_OR_LIST: &str = "text or list of text";
pub const MAPPING_OR_LIST: &str = "mapping or list of one mapping";

/// A program of the mapping language.
pub const PROGRAM: &str = "text in the mapping language";

/// A text with `${! … }` in it, which is evaluated for each message.
pub const INTERPOLATED: &str = "interpolated text";
/// Such a text, which is a duration once it is evaluated.
pub const INTERPOLATED_DURATION: &str = "interpolated duration";
pub const INTERPOLATED_MAPPING: &str = "mapping of interpolated text";
pub const INTERPOLATED_OR_MAPPING: &str = "interpolated text or mapping of interpolated text";

pub const INPUT: &str = "input";
pub const BUFFER: &str = "buffer";
pub const OUTPUT: &str = "output";
pub const INPUT_LIST: &str = "list of inputs";
pub const PROCESSOR_LIST: &str = "list of processors";
pub const OUTPUT_LIST: &str = "list of outputs";

/// A field of another version, in which every value is a mistake.
pub const NOT_THERE: &str = "not in this version";
/// A field of another version, which may be there without content.
pub const EMPTY: &str = "empty text or list";
pub const EMPTY_LIST: &str = "empty list";

/// One word of several.
pub fn one_of(words: &[&str]) -> String {
    format!("one of {}", words.join(", "))
}

/// A list of words, each of which is one of several.
pub fn list_of(words: &[&str]) -> String {
    format!("list of {}", words.join(", "))
}
