//! Puts operators in the order of the SQL standard and of PostgreSQL where the parser has another one, which would be another
//! answer without an error.
//!
//! `a IS DISTINCT FROM b AND c` is `(a IS DISTINCT FROM b) AND c`. The parser reads `b AND c` as the right operand (its
//! `parse_infix` takes a whole expression there). And `a -> 'b' = c` is `(a -> 'b') = c`: for the parser the operators of JSON
//! bind less than comparisons, and less than `||`. It cannot read them at all in the lower bound of BETWEEN.
//!
//! An operand of a lower precedence is otherwise always in parentheses, so one that is not is moved out.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Statement, UnaryOperator, VisitMut as _, VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Puts the lower bound of BETWEEN into parentheses if it has an operator of JSON.
pub fn enclose_lower_bounds(tokens: &mut Vec<TokenWithSpan>) {
    let (mut depth, mut bounds, mut enclosed) = (0_usize, Vec::<LowerBound>::new(), Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace => depth = depth.saturating_sub(1),
            Token::Word(word) if word.keyword == Keyword::CASE => depth += 1,
            Token::Word(word) if word.keyword == Keyword::END => depth = depth.saturating_sub(1),
            Token::Word(word) if word.keyword == Keyword::BETWEEN => bounds.push(LowerBound {
                start: at + 1,
                depth,
                has_operator: false,
            }),
            Token::Word(word) if word.keyword == Keyword::AND => {
                enclosed.extend(
                    bounds
                        .pop_if(|bound| bound.depth == depth)
                        .filter(|bound| bound.has_operator)
                        .map(|bound| (bound.start, at)),
                );
            }
            Token::Arrow | Token::LongArrow | Token::HashArrow | Token::HashLongArrow | Token::Question => {
                if let Some(bound) = bounds.last_mut().filter(|bound| bound.depth == depth) {
                    bound.has_operator = true;
                }
            }
            _ => {}
        }
        while bounds.pop_if(|bound| bound.depth > depth).is_some() {}
    }
    let mut inserted: Vec<(usize, Token)> = Vec::new();
    for (start, end) in enclosed {
        inserted.extend([(start, Token::LParen), (end, Token::RParen)]);
    }
    inserted.sort_by_key(|(at, _)| *at);
    let mut inserted = inserted.into_iter().peekable();
    if inserted.peek().is_none() {
        return;
    }
    let mut all = Vec::with_capacity(tokens.len() + inserted.len());
    for (at, token) in std::mem::take(tokens).into_iter().enumerate() {
        while let Some((_, parenthesis)) = inserted.next_if(|(before, _)| *before == at) {
            all.push(TokenWithSpan::new(parenthesis, token.span));
        }
        all.push(token);
    }
    *tokens = all;
}

/// The tokens between BETWEEN and AND.
struct LowerBound {
    start: usize,
    /// How many parentheses, brackets and CASE are open around it.
    depth: usize,
    has_operator: bool,
}

/// Puts the operators of a statement in their order.
pub fn correct(statement: &mut Statement) {
    let _: ControlFlow<()> = statement.visit(&mut Corrector);
}

struct Corrector;

impl VisitorMut for Corrector {
    type Break = ();

    /// Innermost first, so that an operand is in order already.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if is_json_operator(expr) {
            correct_json(expr);
        } else if let Some(operand) = last_operand(expr) {
            let whole = emptied(operand, first_part);
            take_place(expr, whole, first_part);
        }
        ControlFlow::Continue(())
    }
}

fn nothing() -> Expr {
    Expr::Identifier(Ident::new(""))
}

/// Takes an operand out of its operator and leaves a part of it there. The part leaves its place in the operand empty.
fn emptied(operand: &mut Expr, part: fn(&mut Expr) -> &mut Expr) -> Expr {
    let mut whole = std::mem::replace(operand, nothing());
    *operand = std::mem::replace(part(&mut whole), nothing());
    whole
}

/// Puts the operator into the empty place of its operand, which takes the place of the operator.
fn take_place(expr: &mut Expr, mut whole: Expr, part: fn(&mut Expr) -> &mut Expr) {
    *part(&mut whole) = std::mem::replace(expr, nothing());
    *expr = whole;
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

pub fn is_json_operator(expr: &Expr) -> bool {
    use BinaryOperator::{Arrow, HashArrow, HashLongArrow, LongArrow, Question};
    let Expr::BinaryOp { op, .. } = expr else { return false };
    matches!(op, Arrow | LongArrow | HashArrow | HashLongArrow | Question)
}

/// Moves comparisons out of the operands of an operator of JSON, first out of the right one.
fn correct_json(expr: &mut Expr) {
    if let Some(right) = operand_of(expr, OperandSide::Right)
        && is_weaker(right, OperandSide::Right)
    {
        let whole = emptied(right, first_of_weaker);
        take_place(expr, whole, first_of_weaker);
    }
    let operator = first_of_weaker(expr);
    if let Some(left) = operand_of(operator, OperandSide::Left)
        && is_weaker(left, OperandSide::Left)
    {
        let whole = emptied(left, last_of_weaker);
        take_place(operator, whole, last_of_weaker);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum OperandSide {
    Left,
    Right,
}

fn operand_of(expr: &mut Expr, side: OperandSide) -> Option<&mut Expr> {
    match (expr, side) {
        (Expr::BinaryOp { left, .. }, OperandSide::Left) => Some(left),
        (Expr::BinaryOp { right, .. }, OperandSide::Right) => Some(right),
        _ => None,
    }
}

/// Whether an operand on this side of an operator of JSON binds less. What binds alike goes from left to right.
fn is_weaker(expr: &Expr, side: OperandSide) -> bool {
    match expr {
        Expr::BinaryOp { op, .. } => is_comparison(op) || side == OperandSide::Right && binds_alike(op),
        Expr::Like { .. }
        | Expr::ILike { .. }
        | Expr::SimilarTo { .. }
        | Expr::Between { .. }
        | Expr::IsDistinctFrom(..)
        | Expr::IsNotDistinctFrom(..) => true,
        Expr::InList { .. }
        | Expr::InSubquery { .. }
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsNotTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsNotFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotUnknown(_)
        | Expr::AnyOp { .. }
        | Expr::AllOp { .. } => side == OperandSide::Right,
        _ => false,
    }
}

fn is_comparison(operator: &BinaryOperator) -> bool {
    use BinaryOperator::{
        Eq, Gt, GtEq, Lt, LtEq, NotEq, PGILikeMatch, PGLikeMatch, PGNotILikeMatch, PGNotLikeMatch, PGRegexIMatch,
        PGRegexMatch, PGRegexNotIMatch, PGRegexNotMatch, Spaceship,
    };
    matches!(
        operator,
        Eq | NotEq
            | Lt
            | LtEq
            | Gt
            | GtEq
            | Spaceship
            | PGLikeMatch
            | PGILikeMatch
            | PGNotLikeMatch
            | PGNotILikeMatch
            | PGRegexMatch
            | PGRegexIMatch
            | PGRegexNotMatch
            | PGRegexNotIMatch
    )
}

fn binds_alike(operator: &BinaryOperator) -> bool {
    use BinaryOperator::{BitwiseAnd, BitwiseOr, BitwiseXor, PGBitwiseShiftLeft, PGBitwiseShiftRight, StringConcat};
    matches!(
        operator,
        StringConcat | BitwiseAnd | BitwiseOr | BitwiseXor | PGBitwiseShiftLeft | PGBitwiseShiftRight
    )
}

/// The operand that a chain of weaker operators begins with.
fn first_of_weaker(expr: &mut Expr) -> &mut Expr {
    if !is_weaker(expr, OperandSide::Right) {
        return expr;
    }
    match expr {
        Expr::BinaryOp { left: first, .. }
        | Expr::Like { expr: first, .. }
        | Expr::ILike { expr: first, .. }
        | Expr::SimilarTo { expr: first, .. }
        | Expr::Between { expr: first, .. }
        | Expr::InList { expr: first, .. }
        | Expr::InSubquery { expr: first, .. }
        | Expr::AnyOp { left: first, .. }
        | Expr::AllOp { left: first, .. }
        | Expr::IsDistinctFrom(first, _)
        | Expr::IsNotDistinctFrom(first, _)
        | Expr::IsNull(first)
        | Expr::IsNotNull(first)
        | Expr::IsTrue(first)
        | Expr::IsNotTrue(first)
        | Expr::IsFalse(first)
        | Expr::IsNotFalse(first)
        | Expr::IsUnknown(first)
        | Expr::IsNotUnknown(first) => first_of_weaker(first),
        part => part,
    }
}

/// The operand that a chain of weaker operators ends with.
fn last_of_weaker(expr: &mut Expr) -> &mut Expr {
    if !is_weaker(expr, OperandSide::Left) {
        return expr;
    }
    match expr {
        Expr::BinaryOp { right: last, .. }
        | Expr::Like { pattern: last, .. }
        | Expr::ILike { pattern: last, .. }
        | Expr::SimilarTo { pattern: last, .. }
        | Expr::Between { high: last, .. }
        | Expr::IsDistinctFrom(_, last)
        | Expr::IsNotDistinctFrom(_, last) => last_of_weaker(last),
        part => part,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::ast::SelectItem;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;

    /// With parentheses around all that operators combine.
    fn shown(expr: &Expr) -> String {
        let both = |left: &Expr, sign: &str, right: &Expr| format!("({} {sign} {})", shown(left), shown(right));
        match expr {
            Expr::BinaryOp { left, op, right } => both(left, &op.to_string(), right),
            Expr::IsDistinctFrom(left, right) => both(left, "IS DISTINCT FROM", right),
            Expr::IsNotDistinctFrom(left, right) => both(left, "IS NOT DISTINCT FROM", right),
            Expr::Like { expr, pattern, .. } => both(expr, "LIKE", pattern),
            Expr::Between { expr, low, high, .. } => {
                format!("({} BETWEEN {} AND {})", shown(expr), shown(low), shown(high))
            }
            Expr::UnaryOp { op, expr } => format!("({op} {})", shown(expr)),
            Expr::IsNull(value) => format!("({} IS NULL)", shown(value)),
            Expr::InList { expr, list, .. } => format!("({} IN {})", shown(expr), list.len()),
            Expr::Nested(inner) => shown(inner),
            other => other.to_string(),
        }
    }

    fn corrected(sql: &str) -> String {
        let mut tokens = Tokenizer::new(&GenericDialect {}, &format!("SELECT {sql}"))
            .tokenize_with_location()
            .unwrap();
        enclose_lower_bounds(&mut tokens);
        let mut statement = Parser::new(&GenericDialect {})
            .with_tokens_with_locations(tokens)
            .parse_statement()
            .unwrap();
        correct(&mut statement);
        let Statement::Query(query) = &statement else {
            panic!("{sql}")
        };
        let SelectItem::UnnamedExpr(expr) = &query.body.as_select().unwrap().projection[0] else {
            panic!("{sql}")
        };
        shown(expr)
    }

    #[test]
    fn operators_bind_as_in_postgresql() {
        for (sql, ordered) in [
            ("a IS DISTINCT FROM b AND c", "((a IS DISTINCT FROM b) AND c)"),
            (
                "a IS NOT DISTINCT FROM b OR c AND d",
                "((a IS NOT DISTINCT FROM b) OR (c AND d))",
            ),
            (
                "a IS DISTINCT FROM b AND c OR d",
                "(((a IS DISTINCT FROM b) AND c) OR d)",
            ),
            (
                "x AND a IS DISTINCT FROM b OR c",
                "((x AND (a IS DISTINCT FROM b)) OR c)",
            ),
            (
                "x OR a IS DISTINCT FROM b AND c",
                "(x OR ((a IS DISTINCT FROM b) AND c))",
            ),
            ("NOT a IS DISTINCT FROM b AND c", "((NOT (a IS DISTINCT FROM b)) AND c)"),
            (
                "a IS DISTINCT FROM b AND c IS DISTINCT FROM d AND e",
                "((a IS DISTINCT FROM b) AND ((c IS DISTINCT FROM d) AND e))",
            ),
            ("a IS DISTINCT FROM (b AND c)", "(a IS DISTINCT FROM (b AND c))"),
            ("a IS DISTINCT FROM b + 1", "(a IS DISTINCT FROM (b + 1))"),
            ("a AND (b OR c)", "(a AND (b OR c))"),
            ("a -> 'b' = c", "((a -> 'b') = c)"),
            ("c = a ->> 'b'", "(c = (a ->> 'b'))"),
            ("a -> 'b' ->> 'c' = 'x'", "(((a -> 'b') ->> 'c') = 'x')"),
            ("a -> 'b' = c -> 'd'", "((a -> 'b') = (c -> 'd'))"),
            (
                "a ->> 'b' = 'x' AND c ->> 'd' > 2",
                "(((a ->> 'b') = 'x') AND ((c ->> 'd') > 2))",
            ),
            ("NOT a ->> 'b' = 'x' OR d", "((NOT ((a ->> 'b') = 'x')) OR d)"),
            ("a ->> 'b' LIKE 'x%'", "((a ->> 'b') LIKE 'x%')"),
            ("c LIKE a ->> 'b'", "(c LIKE (a ->> 'b'))"),
            ("a ->> 'b' IS NULL", "((a ->> 'b') IS NULL)"),
            ("c LIKE a ->> 'b' IS NULL", "((c LIKE (a ->> 'b')) IS NULL)"),
            ("a ->> 'b' BETWEEN 1 AND 2", "((a ->> 'b') BETWEEN 1 AND 2)"),
            ("c BETWEEN 1 AND a ->> 'b'", "(c BETWEEN 1 AND (a ->> 'b'))"),
            ("a ->> 'b' IN ('x', 'y')", "((a ->> 'b') IN 2)"),
            ("a -> 1 + 1", "(a -> (1 + 1))"),
            ("a ->> 'b' || 'c'", "((a ->> 'b') || 'c')"),
            ("a ->> 'b' || 'c' = 'd'", "(((a ->> 'b') || 'c') = 'd')"),
            ("a #> '{b}' = c", "((a #> '{b}') = c)"),
            ("a ->> (b = c)", "(a ->> (b = c))"),
            (
                "a -> 'b' ->> 'c' LIKE 'x' AND d",
                "((((a -> 'b') ->> 'c') LIKE 'x') AND d)",
            ),
            ("c BETWEEN a -> 'b' AND 2", "(c BETWEEN (a -> 'b') AND 2)"),
            (
                "c BETWEEN a ->> 'b' AND d ->> 'e' AND f",
                "((c BETWEEN (a ->> 'b') AND (d ->> 'e')) AND f)",
            ),
            (
                "NOT c NOT BETWEEN 1 + a #>> '{b}' AND 2 OR d",
                "((NOT (c BETWEEN ((1 + a) #>> '{b}') AND 2)) OR d)",
            ),
            (
                "c BETWEEN f(a -> 'b') AND d -> 'e'",
                "(c BETWEEN f(a -> 'b') AND (d -> 'e'))",
            ),
            (
                "c BETWEEN a -> CASE WHEN b AND d BETWEEN a -> 1 AND 2 THEN 'e' END AND 3",
                "(c BETWEEN (a -> CASE WHEN b AND d BETWEEN (a -> 1) AND 2 THEN 'e' END) AND 3)",
            ),
        ] {
            assert_eq!(corrected(sql), ordered, "{sql}");
        }
    }
}
