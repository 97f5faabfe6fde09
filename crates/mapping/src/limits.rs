//! Limits of a mapping, whatever its text and its messages are.
//!
//! There are three kinds: the nesting of the source text, the size of one value, and the work for one message. A
//! mapping within its limits needs bounded stack, memory and time. A mapping that exceeds one fails on that message,
//! and the error names the limit.

use thalweg_record::Value;

use crate::error::{EvalResult, Fault};

/// Maximum nesting of expressions and blocks in a source text.
pub const NESTING_MAX: usize = 128;
/// Maximum nesting of arrays and objects in a value that a mapping builds.
pub const VALUE_DEPTH_MAX: usize = 256;
/// Maximum number of elements and members in one value, including nested ones.
pub const ELEMENTS_MAX: usize = 1_000_000;
/// Maximum text and bytes in one value, including nested ones.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Maximum work for one message, in the bytes needed to keep everything that was built.
pub const WORK_BYTES_MAX: usize = 1600 << 20;

/// How much deeper than its parts the value of one expression can be, by its text. Together with [`VALUE_DEPTH_MAX`]
/// this bounds the depth of values that have not been checked yet.
pub(crate) const GROWTH_MAX: usize = 512;
/// A fold measures its tally once in this many steps, because a tally that contains itself twice doubles with each
/// step.
pub(crate) const FOLD_CHECK_STEPS: usize = 8;

/// Cost of one element of an array, in bytes of work.
pub(crate) const ELEMENT_BYTES: usize = 32;
/// Cost of one call of a query (for example for an element of `map_each`), in bytes of work.
pub(crate) const CALL_BYTES: usize = 128;

/// Checks the limits of a value before it is stored or printed. Shared parts count each time they appear, because they
/// are printed each time. Returns the size in bytes of work.
pub(crate) fn check(value: &Value) -> EvalResult<usize> {
    let mut allowance = SizeBudget {
        elements: ELEMENTS_MAX,
        bytes: TEXT_BYTES_MAX,
    };
    allowance.visit(value, 0)?;
    Ok((ELEMENTS_MAX - allowance.elements) * ELEMENT_BYTES + TEXT_BYTES_MAX - allowance.bytes)
}

pub(crate) fn check_elements(count: usize) -> EvalResult<()> {
    if count > ELEMENTS_MAX {
        return Err(Fault::text(format!(
            "the value would have more than the limit of {ELEMENTS_MAX} elements"
        )));
    }
    Ok(())
}

pub(crate) fn check_bytes(count: usize) -> EvalResult<()> {
    if count > TEXT_BYTES_MAX {
        let mebibytes = TEXT_BYTES_MAX >> 20;
        return Err(Fault::text(format!(
            "the value would be larger than the limit of {mebibytes} MiB"
        )));
    }
    Ok(())
}

struct SizeBudget {
    elements: usize,
    bytes: usize,
}

impl SizeBudget {
    fn visit(&mut self, value: &Value, depth: usize) -> EvalResult<()> {
        match value {
            Value::Text(t) | Value::Decimal(t) | Value::Xml(t) | Value::NodeId(t) => self.bytes(t.len()),
            Value::Bytes(bytes) => self.bytes(bytes.len()),
            Value::Structured(structured) => self.bytes(structured.data_bytes()),
            Value::Array(values) => {
                self.enter(values.len(), depth)?;
                values.iter().try_for_each(|value| self.visit(value, depth + 1))
            }
            Value::Object(object) => {
                self.enter(object.len(), depth)?;
                object.iter().try_for_each(|(name, value)| {
                    self.bytes(name.len())?;
                    self.visit(value, depth + 1)
                })
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, elements: usize, depth: usize) -> EvalResult<()> {
        if depth >= VALUE_DEPTH_MAX {
            let message = format!("the value is nested deeper than the limit of {VALUE_DEPTH_MAX}");
            return Err(Fault::text(message));
        }
        match self.elements.checked_sub(elements) {
            Some(left) => self.elements = left,
            None => return check_elements(usize::MAX),
        }
        Ok(())
    }

    fn bytes(&mut self, count: usize) -> EvalResult<()> {
        match self.bytes.checked_sub(count) {
            Some(left) => self.bytes = left,
            None => return check_bytes(usize::MAX),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thalweg_record::{Structured, Text};

    use super::*;

    #[test]
    fn texts_inside_structured_values_count() {
        let text = Text::from("x".repeat(TEXT_BYTES_MAX / 2 + 1));
        let localized = Value::Structured(Arc::new(Structured::LocalizedText {
            locale: None,
            text: Some(text),
        }));
        assert!(check(&localized).is_ok());
        assert!(check(&Value::from(vec![localized.clone(), localized])).is_err());
    }
}
