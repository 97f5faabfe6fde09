//! Tests of the state machine: against a model, through crashes, cell by cell of its table, and its parts alone.

mod driver;
mod model;
mod random;
