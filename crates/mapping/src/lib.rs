//! The mapping language: compiles source text to a tree of typed nodes and runs it on messages.
//!
//! A [`Mapping`] turns one message into another or deletes it; an [`Interpolation`] turns one into text. Both are
//! compiled once, are shared between threads, and never panic. A compile-time error is a [`CompileError`] with its
//! position. A run-time error is a [`RunError`] that concerns one message and leaves it unchanged. The language is the
//! Bloblang subset that `docs/reference/mapping.md` lists.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod compiler;
mod context;
mod error;
mod expr;
mod expr_value;
mod functions;
mod growth;
mod host;
mod interpolation;
mod layout;
mod lexer;
mod limits;
mod mapping;
mod methods;
mod operators;
mod parser;
mod path;
mod prepared_argument;
mod root;
mod statement;
mod view;

pub use compiler::Compiler;
pub use error::{CompileError, RunError};
pub use host::{Host, NamedCounters, system};
pub use interpolation::{Interpolation, RenderedValue};
pub use limits::{ELEMENTS_MAX, NESTING_MAX, TEXT_BYTES_MAX, VALUE_DEPTH_MAX, WORK_BYTES_MAX};
pub use mapping::{Mapping, MappingOutcome};

#[cfg(test)]
mod tests;
