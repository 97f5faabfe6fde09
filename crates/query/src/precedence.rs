//! `a IS DISTINCT FROM b AND c` is `(a IS DISTINCT FROM b) AND c`. The parser reads `b AND c` as the right operand (its
//! `parse_infix` takes a whole expression there), which for conditions is another answer without an error.
//!
//! An operand of a lower precedence is otherwise always in parentheses, so one that is not is moved out.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Statement, UnaryOperator, VisitMut as _, VisitorMut,
};

/// Puts the operators of a statement in their order.
pub fn correct(statement: &mut Statement) {
    let _: ControlFlow<()> = statement.visit(&mut Corrector);
}

struct Corrector;

impl VisitorMut for Corrector {
    type Break = ();

    /// Innermost first, so that an operand is in order already.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Some(operand) = last_operand(expr) else {
            return ControlFlow::Continue(());
        };
        let nothing = || Expr::Identifier(Ident::new(""));
        let mut whole = std::mem::replace(operand, nothing());
        // The first part of the operand takes its place, and the operator takes the place of the first part.
        let place = first_part(&mut whole);
        *operand = std::mem::replace(place, nothing());
        *place = std::mem::replace(expr, nothing());
        *expr = whole;
        ControlFlow::Continue(())
    }
}

/// The last operand of an operator that binds closer than the operator in this operand.
fn last_operand(expr: &mut Expr) -> Option<&mut Expr> {
    let (operand, binds_closer_than_and) = match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => (right, true),
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => (expr, true),
        Expr::BinaryOp {
            op: BinaryOperator::And,
            right,
            ..
        } => (right, false),
        _ => return None,
    };
    match &**operand {
        Expr::BinaryOp {
            op: BinaryOperator::Or, ..
        } => Some(operand),
        Expr::BinaryOp {
            op: BinaryOperator::And,
            ..
        } if binds_closer_than_and => Some(operand),
        _ => None,
    }
}

/// The operand that a chain of AND and OR begins with.
fn first_part(expr: &mut Expr) -> &mut Expr {
    match expr {
        Expr::BinaryOp {
            op: BinaryOperator::And | BinaryOperator::Or,
            left,
            ..
        } => first_part(left),
        part => part,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    /// With parentheses around all that AND, OR and NOT combine.
    fn shown(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp {
                left,
                op: op @ (BinaryOperator::And | BinaryOperator::Or),
                right,
            } => format!("({} {op} {})", shown(left), shown(right)),
            Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr,
            } => format!("(NOT {})", shown(expr)),
            other => other.to_string(),
        }
    }

    #[test]
    fn and_and_or_bind_less_than_is_distinct_from() {
        for (sql, ordered) in [
            ("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b AND c)"),
            (
                "a IS NOT DISTINCT FROM b OR c AND d",
                "(a IS NOT DISTINCT FROM b OR (c AND d))",
            ),
            ("a IS DISTINCT FROM b AND c OR d", "((a IS DISTINCT FROM b AND c) OR d)"),
            ("x AND a IS DISTINCT FROM b OR c", "((x AND a IS DISTINCT FROM b) OR c)"),
            ("x OR a IS DISTINCT FROM b AND c", "(x OR (a IS DISTINCT FROM b AND c))"),
            ("NOT a IS DISTINCT FROM b AND c", "((NOT a IS DISTINCT FROM b) AND c)"),
            (
                "a IS DISTINCT FROM b AND c IS DISTINCT FROM d AND e",
                "(a IS DISTINCT FROM b AND (c IS DISTINCT FROM d AND e))",
            ),
            ("a IS DISTINCT FROM (b AND c)", "a IS DISTINCT FROM (b AND c)"),
            ("a IS DISTINCT FROM b + 1", "a IS DISTINCT FROM b + 1"),
            ("a AND (b OR c)", "(a AND (b OR c))"),
        ] {
            let mut statement = Parser::parse_sql(&GenericDialect {}, &format!("SELECT {sql}"))
                .unwrap()
                .remove(0);
            correct(&mut statement);
            let Statement::Query(query) = &statement else {
                panic!("{sql}")
            };
            let select = query.body.as_select().unwrap();
            let datafusion::sql::sqlparser::ast::SelectItem::UnnamedExpr(expr) = &select.projection[0] else {
                panic!("{sql}")
            };
            assert_eq!(shown(expr), ordered, "{sql}");
        }
    }
}
