//! Parses what follows a value: fields, methods with their arguments, and `.(query)`.

use thalweg_record::Text;

use super::Parser;
use super::arguments::{Arguments, CallArgument, CallMistakes};
use crate::error::{SyntaxError, unknown};
use crate::expr::{Expr, PostfixChain, PostfixStep};
use crate::lexer::Token;
use crate::limits::NESTING_MAX;
use crate::methods::{self, Method};
use crate::path::{Path, PathSegment};

impl Parser<'_> {
    pub(super) fn postfix(&mut self) -> Result<Expr, SyntaxError> {
        let base = self.primary()?;
        self.postfix_of(base)
    }

    pub(super) fn postfix_of(&mut self, mut value: Expr) -> Result<Expr, SyntaxError> {
        loop {
            let next = self.peek()?;
            match next.token {
                Token::Sign(".") => {}
                Token::Sign("[") if !next.on_new_line => {
                    let message =
                        "a value is not indexed with brackets; write `.index(0)`, or `.get(\"a.b\")` for a path";
                    return Err(SyntaxError::new(next.start, message));
                }
                _ => return Ok(value),
            }
            self.take()?;
            value = self.step(value)?;
        }
    }

    /// Parses the step after a dot.
    fn step(&mut self, value: Expr) -> Result<Expr, SyntaxError> {
        self.lexer.skip_space();
        let at = self.lexer.at;
        if self.lexer.peek() == Some('(') {
            self.take()?;
            let in_match = std::mem::replace(&mut self.in_match, false);
            let query = self.query()?;
            self.in_match = in_match;
            self.expect(")", "to close the bracketed query")?;
            return Ok(with_step(value, PostfixStep::Map(query)));
        }
        let (name, quoted) = self.lexer.segment()?;
        if !quoted && self.lexer.peek() == Some('(') {
            return self.method(value, &name, at);
        }
        with_field(value, PathSegment::new(name), at)
    }

    fn method(&mut self, value: Expr, name: &Text, at: usize) -> Result<Expr, SyntaxError> {
        let Some(spec) = methods::all().find(|spec| spec.name == name) else {
            let names = methods::all().map(|spec| spec.name);
            let mistake = self.instead_of(SyntaxError::new(at, unknown("method", name, names)));
            // They may have mistakes of their own.
            self.arguments()?;
            return Ok(mistake);
        };
        let written = self.arguments()?;
        let call = format!("method `{name}`");
        let bound = Arguments::bind(&call, at, spec.params, spec.variadic, written);
        let mut method = match bound.and_then(|arguments| Ok(spec.build(arguments)?)) {
            Ok(method) => method,
            Err(mistakes) => return Ok(self.instead_of_call(mistakes)),
        };
        let value = with_zone_before(value, &mut method);
        Ok(with_step(value, PostfixStep::Method(spec.name, method)))
    }

    /// Like [`Parser::instead_of`], for a call.
    pub(super) fn instead_of_call(&mut self, CallMistakes(mistakes): CallMistakes) -> Expr {
        mistakes.into_iter().for_each(|mistake| self.note(mistake));
        Expr::Root(Path::default())
    }

    /// Parses the parentheses and their contents.
    pub(super) fn arguments(&mut self) -> Result<Vec<CallArgument>, SyntaxError> {
        self.expect("(", "before the arguments")?;
        let in_match = std::mem::replace(&mut self.in_match, false);
        let mut written = Vec::new();
        while !self.accept(")")? {
            let next = self.peek()?.clone();
            let name = match next.token {
                Token::Name(name) if self.second_is(":") => {
                    self.take()?;
                    self.take()?;
                    Some(name.to_string())
                }
                _ => None,
            };
            let at = next.start;
            let value = self.query()?;
            written.push(CallArgument { name, value, at });
            if !self.accept(",")? {
                self.expect(")", "or `,` in the arguments")?;
                break;
            }
        }
        self.in_match = in_match;
        Ok(written)
    }
}

/// `ts_tz(zone)` before a method that formats is an argument of that method.
fn with_zone_before(value: Expr, method: &mut Method) -> Expr {
    let Expr::Steps(mut steps) = value else {
        return value;
    };
    if let Some(PostfixStep::Method(_, before)) = steps.steps.last_mut()
        && method.takes_zone_of(before)
    {
        steps.steps.pop();
    }
    match steps.steps.is_empty() {
        true => steps.base,
        false => Expr::Steps(steps),
    }
}

fn with_step(value: Expr, step: PostfixStep) -> Expr {
    match value {
        Expr::Steps(mut steps) => {
            steps.steps.push(step);
            Expr::Steps(steps)
        }
        base => Expr::Steps(Box::new(PostfixChain {
            base,
            steps: vec![step],
        })),
    }
}

/// Fields are appended to the path that is read, so that a document is walked once.
fn with_field(mut value: Expr, segment: PathSegment, at: usize) -> Result<Expr, SyntaxError> {
    let path = match &mut value {
        Expr::This(path) | Expr::Root(path) | Expr::Input(path) => path,
        Expr::AllMeta => return Ok(Expr::Meta(segment.name)),
        Expr::AllNewMeta => return Ok(Expr::NewMeta(segment.name)),
        Expr::Steps(steps) => match steps.steps.last_mut() {
            Some(PostfixStep::Field(path)) => path,
            _ => return Ok(with_step(value, PostfixStep::Field(Path(vec![segment])))),
        },
        _ => return Ok(with_step(value, PostfixStep::Field(Path(vec![segment])))),
    };
    if path.0.len() >= NESTING_MAX {
        return Err(SyntaxError::new(
            at,
            format!("a path is longer than the limit of {NESTING_MAX} fields"),
        ));
    }
    path.push(segment);
    Ok(value)
}
