//! Conversion between JSON and [`Value`], with exact numbers.
//!
//! Integers of up to 64 bits are typed; any other number that a double would not print in the same way keeps its text.
//! That is why this parser exists: the usual libraries turn every large or long number into a double.

mod parse;
mod write;

pub use parse::{JsonError, ParseLimits, parse, parse_with};
pub use write::{to_string, write, write_js_string, write_sorted, write_string};

#[cfg(test)]
mod tests;
