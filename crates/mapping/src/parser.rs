//! Parses source text to a tree of typed nodes, by recursive descent with a bounded depth.
//!
//! Line breaks end statements but not expressions: an expression continues while an operator or a dot follows, on any
//! line. The parser resolves names (variables to slots, `name ->` queries to depths, functions and methods to code), so
//! a mapping that compiles has no unknown name.
//!
//! Parsing goes on after a mistake, so that all mistakes of a text are told at once. A name or an argument that is wrong
//! leaves the rest of its statement clear. After a statement that cannot be understood, `recovery` finds the next one.

use thalweg_record::Text;

use crate::Compiler;
use crate::error::{SyntaxError, unknown};
use crate::expr::{Expr, Lambda, OperatorChain};
use crate::growth::growth;
use crate::lexer::{Lexer, SpannedToken, Token};
use crate::limits::{GROWTH_MAX, NESTING_MAX};
use crate::operators::Op;
use crate::path::Path;

pub(crate) mod arguments;
mod literals;
mod postfix;
mod recovery;
pub(crate) mod statements;

pub(crate) struct Parser<'s> {
    compiler: &'s Compiler,
    lexer: Lexer<'s>,
    source: &'s str,
    peeked: Option<SpannedToken>,
    depth: usize,
    /// Names of the `name ->` queries around the current place, outermost first.
    names: Vec<Text>,
    /// Variables set so far; the index is the slot.
    variables: Vec<Text>,
    /// Whether the current expression may be followed by another match arm on the next line.
    in_match: bool,
    /// Whether `this` is the document under construction.
    in_place: bool,
    /// What is wrong so far. Where the text is clear nonetheless, parsing goes on with a placeholder.
    mistakes: Vec<SyntaxError>,
    /// Where the text could first not be understood, so that a part of it was left out.
    broken_at: Option<usize>,
    /// The text exceeds a limit, and no more of it is read.
    is_beyond_limits: bool,
    /// A place and its line.
    line: (usize, usize),
}

/// Maximum number of mistakes of one text; it is read no further after them.
pub(crate) const MISTAKES_MAX: usize = 100;

impl<'s> Parser<'s> {
    pub fn new(compiler: &'s Compiler, source: &'s str, at: usize, in_place: bool) -> Parser<'s> {
        Parser {
            compiler,
            lexer: Lexer::new(source, at),
            source,
            peeked: None,
            depth: 0,
            names: Vec::new(),
            variables: Vec::new(),
            in_match: false,
            in_place,
            mistakes: Vec::new(),
            broken_at: None,
            is_beyond_limits: false,
            line: (0, 1),
        }
    }

    /// Parses the expression of an interpolation. Returns it and the position after the closing brace. An error is
    /// that of a text whose end is unknown; other mistakes are only added to `mistakes`.
    pub fn braced_expression(mut self, mistakes: &mut Vec<SyntaxError>) -> Result<(Expr, usize), SyntaxError> {
        let found = self.whole_expression().and_then(|expression| {
            let end = self.expect("}", "after the expression of the interpolation")?;
            Ok((expression, end.end))
        });
        let room = MISTAKES_MAX.saturating_sub(mistakes.len());
        mistakes.extend(self.mistakes.into_iter().take(room));
        found
    }

    /// Records a mistake after which parsing goes on.
    fn note(&mut self, mistake: SyntaxError) {
        if self.mistakes.len() < MISTAKES_MAX {
            self.mistakes.push(mistake);
        }
    }

    /// Records a mistake in an expression, and returns what stands for the expression from then on. It is no literal,
    /// because those are checked where they are used, and would be a second mistake.
    fn instead_of(&mut self, mistake: SyntaxError) -> Expr {
        self.note(mistake);
        Expr::Root(Path::default())
    }

    /// Parses an expression that is not part of another one.
    fn whole_expression(&mut self) -> Result<Expr, SyntaxError> {
        let at = self.peek()?.start;
        let expression = self.expression()?;
        if growth(&expression) > GROWTH_MAX {
            let message =
                format!("the value is nested up to {GROWTH_MAX} levels deeper than its parts; split it with `let`");
            return Ok(self.instead_of(SyntaxError::new(at, message)));
        }
        Ok(expression)
    }

    fn expression(&mut self) -> Result<Expr, SyntaxError> {
        self.nested(|parser| {
            let mut items = vec![parser.operand()?];
            let mut ops = Vec::new();
            while let Some(op) = parser.operator()? {
                ops.push(op);
                items.push(parser.operand()?);
            }
            Ok(group(items, ops))
        })
    }

    /// Consumes an operator if one follows.
    fn operator(&mut self) -> Result<Option<Op>, SyntaxError> {
        let next = self.peek()?;
        let Token::Sign(sign) = next.token else {
            return Ok(None);
        };
        let (on_new_line, end) = (next.on_new_line, next.end);
        // In a match, a line that starts with `-5` is the next arm, not a subtraction.
        let sticks = !self.source.get(end..).unwrap_or_default().starts_with([' ', '\t']);
        if sign == "-" && on_new_line && self.in_match && sticks {
            return Ok(None);
        }
        let op = Op::of(sign);
        if op.is_some() {
            self.take()?;
        }
        Ok(op)
    }

    fn operand(&mut self) -> Result<Expr, SyntaxError> {
        let next = self.peek()?;
        let start = next.start;
        match next.token {
            Token::Sign("!") => {
                self.take()?;
                let inner = self.nested(Parser::operand)?;
                Ok(Expr::Not(Box::new(inner)))
            }
            Token::Sign("-") => {
                let end = next.end;
                self.take()?;
                self.negated(start, end)
            }
            _ => self.postfix(),
        }
    }

    /// Parses what follows a minus: `-5.abs()` is the absolute value of -5, `-this.a.abs()` negates an absolute value.
    fn negated(&mut self, start: usize, end: usize) -> Result<Expr, SyntaxError> {
        let next = self.peek()?;
        if let (Token::Number(number), true) = (&next.token, next.start == end) {
            let negative = crate::operators::negate(number);
            let negative = negative.map_err(|fault| SyntaxError::new(start, fault.to_string()))?;
            self.take()?;
            return self.postfix_of(Expr::Literal(negative));
        }
        let inner = self.nested(Parser::operand)?;
        Ok(Expr::Negate(Box::new(inner)))
    }

    /// Parses an argument or bracketed query: `name -> expression`, or an expression in which `this` is the value.
    fn query(&mut self) -> Result<Lambda, SyntaxError> {
        let next = self.peek()?.clone();
        let Token::Name(name) = next.token else {
            let body = self.expression()?;
            return Ok(Lambda { named: false, body });
        };
        if !self.second_is("->") {
            let body = self.expression()?;
            return Ok(Lambda { named: false, body });
        }
        if matches!(name.as_str(), "this" | "root" | "true" | "false" | "null") {
            let message = format!("`{name}` has a meaning already and cannot name a query's value");
            self.note(SyntaxError::new(next.start, message));
        }
        self.take()?;
        self.take()?;
        self.names.push(name);
        let body = self.expression();
        self.names.pop();
        Ok(Lambda {
            named: true,
            body: body?,
        })
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, SyntaxError>) -> Result<T, SyntaxError> {
        if self.depth >= NESTING_MAX {
            self.is_beyond_limits = true;
            let at = self.peek()?.start;
            return Err(SyntaxError::new(
                at,
                format!("nested deeper than the limit of {NESTING_MAX} levels"),
            ));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn peek(&mut self) -> Result<&SpannedToken, SyntaxError> {
        match self.peeked {
            Some(ref next) => Ok(next),
            None => {
                let next = self.lexer.next()?;
                Ok(self.peeked.insert(next))
            }
        }
    }

    fn take(&mut self) -> Result<SpannedToken, SyntaxError> {
        match self.peeked.take() {
            Some(next) => Ok(next),
            None => self.lexer.next(),
        }
    }

    fn next_is(&mut self, sign: &str) -> Result<bool, SyntaxError> {
        Ok(matches!(self.peek()?.token, Token::Sign(found) if found == sign))
    }

    fn next_is_name(&mut self, name: &str) -> Result<bool, SyntaxError> {
        Ok(matches!(&self.peek()?.token, Token::Name(found) if found == name))
    }

    /// Consumes a sign if it follows.
    fn accept(&mut self, sign: &str) -> Result<bool, SyntaxError> {
        let found = self.next_is(sign)?;
        if found {
            self.take()?;
        }
        Ok(found)
    }

    fn expect(&mut self, sign: &str, place: &str) -> Result<SpannedToken, SyntaxError> {
        let next = self.take()?;
        if matches!(next.token, Token::Sign(found) if found == sign) {
            return Ok(next);
        }
        let found = next.token.show();
        Err(SyntaxError::new(
            next.start,
            format!("expected `{sign}` {place}, found {found}"),
        ))
    }

    /// Whether the token after the next one is this sign.
    fn second_is(&mut self, sign: &str) -> bool {
        let at = match &self.peeked {
            Some(next) => next.end,
            None => return false,
        };
        let second = Lexer::new(self.source, at).next();
        second.is_ok_and(|second| matches!(second.token, Token::Sign(found) if found == sign))
    }

    fn variable(&mut self, name: &Text, at: usize) -> Expr {
        match self.variables.iter().position(|known| known == name) {
            Some(slot) => Expr::Variable(slot, name.clone()),
            None => {
                let known = self.variables.iter().map(Text::as_str);
                let message = unknown("variable", name, known);
                let message = format!("{message}; a variable is set with `let {name} = ...` before it is used");
                self.instead_of(SyntaxError::new(at, message))
            }
        }
    }

    /// The slot of a variable that is set here.
    fn slot(&mut self, name: Text) -> usize {
        let known = self.variables.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            self.variables.push(name);
            self.variables.len() - 1
        })
    }
}

/// Groups operands and the operators between them into chains, level by level.
fn group(mut items: Vec<Expr>, mut ops: Vec<Op>) -> Expr {
    for level in 0..Op::LEVELS {
        if ops.is_empty() {
            break;
        }
        (items, ops) = group_level(items, ops, level);
    }
    items.pop().unwrap_or(Expr::Literal(thalweg_record::Value::Null))
}

fn group_level(items: Vec<Expr>, ops: Vec<Op>, level: usize) -> (Vec<Expr>, Vec<Op>) {
    let (mut new_items, mut new_ops) = (Vec::new(), Vec::new());
    let mut items = items.into_iter();
    let mut chain: Vec<(Op, Expr)> = Vec::new();
    let Some(mut first) = items.next() else {
        return (new_items, new_ops);
    };
    for (op, item) in ops.into_iter().zip(items) {
        if op.level() == level {
            chain.push((op, item));
            continue;
        }
        new_items.push(chained(first, std::mem::take(&mut chain)));
        new_ops.push(op);
        first = item;
    }
    new_items.push(chained(first, chain));
    (new_items, new_ops)
}

fn chained(first: Expr, rest: Vec<(Op, Expr)>) -> Expr {
    match rest.first() {
        None => first,
        Some((op @ (Op::And | Op::Or), _)) => {
            let is_and = *op == Op::And;
            let terms = std::iter::once(first)
                .chain(rest.into_iter().map(|(_, term)| term))
                .collect();
            if is_and { Expr::All(terms) } else { Expr::Any(terms) }
        }
        Some(_) => Expr::Chain(Box::new(OperatorChain {
            first,
            rest: rest.into(),
        })),
    }
}
