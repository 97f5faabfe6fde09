//! Answers are right or an error. The library's planner and functions differ from SQL in a few places without a word: integers
//! wrap, NaN and `-0.0` are compared by their bits, patterns of `SIMILAR TO` are not translated, columns of one name collide.
//! Each module here takes one of them; the rules run after the library has resolved types and before it folds constants.

mod arithmetic;
pub mod attribute_extremes;
mod cases;
pub mod dynamic_filters;
mod expressions;
mod extremes;
mod filter_projections;
pub mod floats;
mod grouped;
mod integers;
mod lists;
pub mod opaque;
mod ordered_doubles;
mod output;
mod percentile;
pub mod rounding;
pub mod similar;
pub mod sort_keys;
mod summands;
mod texts;
mod totals;

pub use filter_projections::physical_rules;
pub use output::unused as unused_name;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::AggregateUDF;
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::resolve_grouping_function::ResolveGroupingFunction;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

/// The functions that the rules put into plans. No query can call them by name.
pub const PLANNED_FUNCTIONS: [&str; 11] = [
    "+",
    "-",
    "*",
    "/",
    "<<",
    ">>",
    floats::CANONICAL,
    floats::CANONICAL_LIST,
    opaque::OPAQUE,
    rounding::ROUNDED,
    rounding::SECONDS,
];

/// The library's rules and those of this module.
pub fn analyzer_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let mut rules = analyzer_rules_of_parts();
    rules.push(Arc::new(output::OutputColumns));
    rules
}

/// The same for a plan that is part of another one, which expects the columns as they are.
pub fn analyzer_rules_of_parts() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    vec![
        Arc::new(ResolveGroupingFunction::new()),
        Arc::new(texts::NumbersInTexts),
        Arc::new(TypeCoercion::new()),
        Arc::new(lists::SeparateLists),
        Arc::new(arithmetic::CheckedArithmetic),
        Arc::new(rounding::CheckedRounding),
        Arc::new(cases::NullableCases),
        Arc::new(floats::CanonicalFloats),
    ]
}

/// The aggregate functions that replace those of the same name.
pub fn aggregate_functions(all: Vec<Arc<AggregateUDF>>) -> Result<Vec<Arc<AggregateUDF>>> {
    let [min, max] = extremes::functions();
    let [attribute_min, attribute_max] = attribute_extremes::functions();
    let own = [
        totals::sum(),
        totals::average(),
        percentile::function()?,
        min,
        max,
        attribute_min,
        attribute_max,
    ];
    let is_own = |known: &Arc<AggregateUDF>| own.iter().any(|own| own.name() == known.name());
    let mut kept: Vec<_> = all.into_iter().filter(|known| !is_own(known)).collect();
    kept.extend(own);
    Ok(kept)
}
