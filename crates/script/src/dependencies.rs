//! The free variables of an expression: names that it uses and does not declare.
//!
//! They are found in its syntax tree. So a name in a template, an object literal or a parameter default counts, and a
//! parameter, a local variable, a property or a text of the same name does not.

use oxc_allocator::Allocator;
use oxc_parser::Parser;
use oxc_semantic::{Semantic, SemanticBuilder};
use oxc_span::SourceType;

use crate::native::{SOURCE_MAX, with_parser_stack};
use crate::scan;

/// What determines the value of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpressionDependencies {
    /// Each name once, ordered by first occurrence.
    pub names: Vec<FreeVariable>,
    /// Whether its value depends only on the values of its names: it uses neither clock nor randomness.
    pub is_repeatable: bool,
}

/// A name that an expression uses and does not declare. Line and column count from 1 within the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeVariable {
    pub name: String,
    /// The name is a JavaScript built-in.
    pub is_built_in: bool,
    pub line: usize,
    pub column: usize,
}

/// Put before the expression for parsing, because `{` at the beginning of a program is no object literal.
const BEFORE: &str = "(";
const AFTER: &str = "\n)";

/// Analyses an expression. `None` if it cannot be parsed, or is longer than 64 KiB.
pub fn reach(expression: &str) -> Option<ExpressionDependencies> {
    if expression.len() > SOURCE_MAX {
        return None;
    }
    Some(ExpressionDependencies {
        names: with_parser_stack(|| free_names(expression))??,
        is_repeatable: scan::is_repeatable(expression),
    })
}

fn free_names(expression: &str) -> Option<Vec<FreeVariable>> {
    let source = format!("{BEFORE}{expression}{AFTER}");
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, &source, SourceType::script()).parse();
    if !parsed.diagnostics.is_empty() {
        return None;
    }
    let semantic = SemanticBuilder::new()
        .with_build_nodes(true)
        .build(&parsed.program)
        .semantic;
    let scoping = semantic.scoping();
    let unresolved = scoping.root_unresolved_references().iter();
    let mut names: Vec<(usize, &str)> = unresolved
        .filter_map(|(name, references)| {
            let offsets = references.iter().map(|reference| offset(&semantic, *reference));
            Some((offsets.min()?, name.as_str()))
        })
        .collect();
    names.sort_unstable();
    Some(
        names
            .into_iter()
            .map(|(at, name)| free_name(name, expression, at))
            .collect(),
    )
}

/// The byte offset of a reference in the expression.
fn offset(semantic: &Semantic<'_>, reference: oxc_syntax::reference::ReferenceId) -> usize {
    let reference = semantic.scoping().get_reference(reference);
    let start = semantic.reference_span(reference).start as usize;
    start.saturating_sub(BEFORE.len())
}

fn free_name(name: &str, expression: &str, at: usize) -> FreeVariable {
    let before = expression.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    FreeVariable {
        name: name.to_owned(),
        is_built_in: scan::is_built_in(name),
        line: before.matches('\n').count() + 1,
        column: line.chars().count() + 1,
    }
}

#[cfg(test)]
mod tests;
