//! JSON to [`Value`] and back, with numbers exact.
//!
//! Integers of up to 64 bits are typed; any other number whose text a double would not give back keeps its text. This is
//! why the parser is here and not a library's: the usual ones turn every large or long number into a double.

mod parse;
mod write;

pub use parse::{JsonError, ParseLimits, parse, parse_with};
pub use write::{to_string, write, write_js_string, write_sorted, write_string};

#[cfg(test)]
mod tests;
