//! Documents the fields of a component by running its own reader on an empty mapping.
//!
//! There is no second description of fields beside the code that reads them, so the two cannot differ:
//! [`Fields`](crate::Fields) records each field that is read.

use crate::diagnostics::Diagnostics;
use crate::node::Node;

/// One field of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDoc {
    /// The path from the component, such as `deadband.type` or `conditions[].if`.
    pub name: String,
    /// The type of the field, such as `whole number`.
    pub kind: String,
    /// The default as it would be written; `None` without one.
    pub default: Option<String>,
    pub required: bool,
}

/// Runs a reader on an empty mapping and lists the fields that it reads, in order. Mistakes that the reader reports,
/// such as missing fields, are discarded. Each list of mappings appears with one entry, `name[]`.
pub fn describe(read: impl FnOnce(&Node, &Diagnostics)) -> Vec<FieldDoc> {
    let diags = Diagnostics::describing();
    read(&Node::empty_map(), &diags);
    diags.take_docs()
}
