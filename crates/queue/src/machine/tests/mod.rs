//! Tests of the state machine: against a model, through crashes, cell by cell of its table, and its parts alone.

mod crash;
mod driver;
mod model;
mod parts;
mod random;
mod sleeping;
mod streams;
mod table;
