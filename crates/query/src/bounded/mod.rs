//! Bounds the memory that functions of a query can take.
//!
//! Operators reserve the memory they use, but nobody accounts for the results of functions, and a short call can
//! allocate any number of bytes: `repeat('x', 2000000000)`. Each function is therefore on a [`function_list`] with the
//! size of its result, computed from its arguments ([`sizes`]). A [`scalar`] function is called once the memory for its
//! result is reserved ([`budget`]), and the reservation lives as long as the result. [`rewrite`] replaces every call of
//! a plan by a bounded one. [`windows`] are charged for each value, and [`operators`] that repeat rows check the width
//! of these rows.

pub mod budget;
mod concatenation;
pub mod conversion;
pub mod function_list;
mod like;
mod measure;
pub mod operators;
pub mod planners;
pub mod rewrite;
mod scalar;
mod sizes;
mod substitution;
#[cfg(test)]
mod tests;
pub mod text_length;
mod windows;

pub use budget::Budget;

/// Every function that a query can call.
pub fn function_names() -> Vec<String> {
    let scalar = function_list::SCALAR
        .iter()
        .filter(|(_, size)| !matches!(size, function_list::ResultBound::Refused));
    let scalar = scalar
        .map(|(name, _)| *name)
        .filter(|name| ![concatenation::NAME, conversion::CAST, conversion::CASE].contains(name))
        .filter(|name| !crate::exact::PLANNED_FUNCTIONS.contains(name));
    let others = function_list::AGGREGATE.iter().chain(function_list::WINDOW).copied();
    scalar.chain(others).map(str::to_owned).collect()
}
