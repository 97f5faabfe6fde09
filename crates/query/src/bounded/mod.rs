//! Functions that cannot take more memory than a query has.
//!
//! Operators reserve what they hold; what a function makes nobody counts, and a short call can make any number of bytes:
//! `repeat('x', 2000000000)`. So each function is on a [`function_list`] with the size of its result, told from its arguments
//! ([`sizes`]). A [`scalar`] function is called when the memory for that is there ([`budget`]), and what it made stays reserved
//! as long as it lives. Each call of a plan is one of these ([`rewrite`]), whoever put it there. [`windows`] are charged for each
//! value, and [`operators`] that repeat rows look at the width of what they repeat.

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
        .filter(|name| ![concatenation::NAME, conversion::CAST, conversion::CASE].contains(name));
    let others = function_list::AGGREGATE.iter().chain(function_list::WINDOW).copied();
    scalar.chain(others).map(str::to_owned).collect()
}
