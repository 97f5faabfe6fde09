//! A bound on the depth of the value that an expression can build, computed from its source text.
//!
//! Values are measured when they are stored or printed, not at each step of an expression. This bound covers what an
//! expression adds on top of its parts before that, so every recursion over a value (printing, comparing, freeing)
//! stays within the stack.

use crate::expr::{Expr, Lambda, MatchPattern, PostfixStep};
use crate::functions::Function;
use crate::limits::FOLD_CHECK_STEPS;
use crate::methods::Method;
use crate::methods::queries::QueryMethod;

/// Returns how many levels deeper the value can be than the deepest value it is made of.
pub(crate) fn growth(expr: &Expr) -> usize {
    match expr {
        Expr::Literal(_)
        | Expr::This(_)
        | Expr::Root(_)
        | Expr::Input(_)
        | Expr::Meta(_)
        | Expr::AllMeta
        | Expr::NewMeta(_)
        | Expr::AllNewMeta
        | Expr::Variable(..)
        | Expr::Named(..) => 0,
        Expr::Array(elements) => 1 + greatest(elements),
        Expr::Object(members) => 1 + members.iter().map(|(_, value)| growth(value)).max().unwrap_or(0),
        Expr::Not(inner) | Expr::Negate(inner) => growth(inner),
        Expr::Chain(chain) => {
            let rest = chain.rest.iter().map(|(_, operand)| growth(operand));
            rest.fold(growth(&chain.first), usize::max)
        }
        Expr::All(terms) | Expr::Any(terms) => greatest(terms),
        Expr::If(branches) => {
            let branches_max = branches
                .branches
                .iter()
                .map(|(test, value)| growth(test).max(growth(value)))
                .max();
            branches_max
                .unwrap_or(0)
                .max(branches.otherwise.as_ref().map_or(0, growth))
        }
        Expr::Match(cases) => {
            let arms = cases.arms.iter().map(|(pattern, value)| match pattern {
                MatchPattern::When(test) => growth(test).max(growth(value)),
                MatchPattern::Any | MatchPattern::Equal(_) => growth(value),
            });
            cases.subject.as_ref().map_or(0, growth) + arms.max().unwrap_or(0)
        }
        Expr::Call(_, function) => of_function(function),
        Expr::Steps(steps) => {
            let added = steps.steps.iter().map(|step| match step {
                PostfixStep::Field(_) => 0,
                PostfixStep::Map(query) => body(query),
                PostfixStep::Method(_, method) => of_method(method),
            });
            added.fold(growth(&steps.base), usize::saturating_add)
        }
    }
}

fn greatest(exprs: &[Expr]) -> usize {
    exprs.iter().map(growth).max().unwrap_or(0)
}

fn body(query: &Lambda) -> usize {
    growth(&query.body)
}

/// Functions return flat values; their arguments count only because they are evaluated.
fn of_function(function: &Function) -> usize {
    match function {
        Function::Json(argument) | Function::Meta(argument) | Function::Env(argument) | Function::Throw(argument) => {
            growth(argument)
        }
        Function::CountOf(argument, _) => growth(argument),
        Function::Range { start, stop, step } => growth(start).max(growth(stop)).max(step.as_ref().map_or(0, growth)),
        _ => 0,
    }
}

fn of_method(method: &Method) -> usize {
    match method {
        Method::Plain(_) | Method::Type | Method::Path(_) | Method::Pattern(_) | Method::Time(_) => 0,
        Method::WithArguments { arguments, nests, .. } => {
            usize::from(*nests) + arguments.iter().flatten().map(growth).max().unwrap_or(0)
        }
        Method::Or(alternative) => growth(alternative),
        Method::Catch(query) => body(query),
        Method::Query(
            QueryMethod::All(query)
            | QueryMethod::Any(query)
            | QueryMethod::Filter(query)
            | QueryMethod::Sort(Some(query))
            | QueryMethod::SortBy(query)
            | QueryMethod::Unique(Some(query)),
        ) => body(query),
        Method::Query(QueryMethod::Sort(None) | QueryMethod::Unique(None)) => 0,
        Method::Query(QueryMethod::MapEach(query)) => 1 + body(query),
        Method::Query(QueryMethod::Fold(initial, query)) => {
            growth(initial).saturating_add((1 + body(query)).saturating_mul(FOLD_CHECK_STEPS))
        }
    }
}
