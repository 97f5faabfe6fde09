//! The start of an expression: literals, names, brackets, and `if` and `match` expressions.

use thalweg_record::{Object, Text, Value};

use super::Parser;
use super::recovery::is_assignment;
use crate::error::{SyntaxError, unknown};
use crate::expr::{Expr, IfExpr, MatchExpr, MatchPattern};
use crate::functions::{FUNCTIONS, FunctionNode};
use crate::lexer::Token;
use crate::path::Path;

use super::arguments::Arguments;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Result<Expr, SyntaxError> {
        let next = self.take()?;
        let at = next.start;
        match next.token {
            Token::Number(number) => Ok(Expr::Literal(number)),
            Token::Text(text) => Ok(Expr::Literal(Value::Text(text))),
            Token::Variable(name) => Ok(self.variable(&name, at)),
            Token::Meta(Some(key)) => Ok(Expr::NewMeta(key)),
            Token::Meta(None) => Ok(Expr::AllNewMeta),
            Token::Sign("(") => {
                let in_match = std::mem::replace(&mut self.in_match, false);
                let inner = self.expression()?;
                self.in_match = in_match;
                self.expect(")", "to close the parenthesis")?;
                Ok(inner)
            }
            Token::Sign("[") => self.array(),
            Token::Sign("{") => self.object(),
            Token::Name(name) => self.name(&name, at, next.end),
            other => Err(SyntaxError::new(
                at,
                format!("expected an expression, found {}", other.show()),
            )),
        }
    }

    fn name(&mut self, name: &Text, at: usize, end: usize) -> Result<Expr, SyntaxError> {
        let is_call = self.source.get(end..).is_some_and(|after| after.starts_with('('));
        match name.as_str() {
            "true" => Ok(Expr::Literal(Value::Bool(true))),
            "false" => Ok(Expr::Literal(Value::Bool(false))),
            "null" => Ok(Expr::Literal(Value::Null)),
            "this" => Ok(Expr::This(Path::default())),
            "root" => Ok(Expr::Root(Path::default())),
            "if" => self.if_expression(),
            "match" => self.match_expression(),
            _ if is_call => self.function(name, at),
            // The next statement, after one that is not complete.
            "let" | "meta" if is_assignment(self.source.get(at..).unwrap_or_default()) => {
                let message = format!("expected an expression, found `{name}`");
                Err(SyntaxError::new(at, message))
            }
            _ => match self.names.iter().rposition(|known| known == name) {
                Some(depth) => Ok(Expr::Named(depth, name.clone())),
                None => {
                    let message = format!(
                        "unknown name `{name}`: a field of the input is written `this.{name}`, a variable `${name}`, a \
                         metadata value `@{name}`, a text \"{name}\""
                    );
                    Ok(self.instead_of(SyntaxError::new(at, message)))
                }
            },
        }
    }

    fn function(&mut self, name: &Text, at: usize) -> Result<Expr, SyntaxError> {
        let Some(spec) = FUNCTIONS.iter().find(|spec| spec.name == name) else {
            let names = FUNCTIONS.iter().map(|spec| spec.name);
            let mistake = self.instead_of(SyntaxError::new(at, unknown("function", name, names)));
            // They may have mistakes of their own.
            self.arguments()?;
            return Ok(mistake);
        };
        let written = self.arguments()?;
        let call = format!("function `{name}`");
        let bound = Arguments::bind(&call, at, spec.params, false, written);
        let built = bound.and_then(|mut arguments| Ok((spec.build)(&mut arguments, self.compiler)?));
        Ok(match built {
            Ok(FunctionNode::Expr(expr)) => expr,
            Ok(FunctionNode::Function(function)) => Expr::Call(spec.name, Box::new(function)),
            Err(mistakes) => self.instead_of_call(mistakes),
        })
    }

    fn array(&mut self) -> Result<Expr, SyntaxError> {
        let mut elements = Vec::new();
        let in_match = std::mem::replace(&mut self.in_match, false);
        while !self.accept("]")? {
            elements.push(self.expression()?);
            if !self.accept(",")? {
                self.expect("]", "or `,` in the array")?;
                break;
            }
        }
        self.in_match = in_match;
        let literals = elements.iter().map(|element| match element {
            Expr::Literal(value) => Some(value.clone()),
            _ => None,
        });
        Ok(match literals.collect::<Option<Vec<Value>>>() {
            Some(values) => Expr::Literal(values.into()),
            None => Expr::Array(elements.into()),
        })
    }

    fn object(&mut self) -> Result<Expr, SyntaxError> {
        let mut members = Vec::new();
        let in_match = std::mem::replace(&mut self.in_match, false);
        while !self.accept("}")? {
            let at = self.peek()?.start;
            let name = self.expression()?;
            if let Expr::Literal(literal) = &name
                && !matches!(literal, Value::Text(_))
            {
                self.note(SyntaxError::new(at, "the name of a member must be a string"));
            }
            self.expect(":", "after the member's name")?;
            members.push((name, self.expression()?));
            if !self.accept(",")? {
                self.expect("}", "or `,` in the object")?;
                break;
            }
        }
        self.in_match = in_match;
        let literals = members.iter().map(|member| match member {
            (Expr::Literal(Value::Text(name)), Expr::Literal(value)) => Some((name.clone(), value.clone())),
            _ => None,
        });
        Ok(match literals.collect::<Option<Object>>() {
            Some(object) => Expr::Literal(object.into()),
            None => Expr::Object(members.into()),
        })
    }

    fn if_expression(&mut self) -> Result<Expr, SyntaxError> {
        let in_match = std::mem::replace(&mut self.in_match, false);
        let mut branches = Vec::new();
        let mut otherwise = None;
        loop {
            let condition = self.expression()?;
            branches.push((condition, self.braced_branch()?));
            if !self.next_is_name("else")? {
                break;
            }
            self.take()?;
            if !self.next_is_name("if")? {
                otherwise = Some(self.braced_branch()?);
                break;
            }
            self.take()?;
        }
        self.in_match = in_match;
        Ok(Expr::If(Box::new(IfExpr {
            branches: branches.into(),
            otherwise,
        })))
    }

    fn braced_branch(&mut self) -> Result<Expr, SyntaxError> {
        self.expect("{", "before the branch")?;
        let branch = self.expression()?;
        self.expect("}", "after the branch, which is one expression")?;
        Ok(branch)
    }

    fn match_expression(&mut self) -> Result<Expr, SyntaxError> {
        let outer = std::mem::replace(&mut self.in_match, false);
        let subject = if self.next_is("{")? {
            None
        } else {
            Some(self.expression()?)
        };
        self.expect("{", "before the cases of the match")?;
        self.in_match = true;
        let mut arms = Vec::new();
        while !self.accept("}")? {
            let pattern = self.pattern()?;
            self.expect("=>", "after the case")?;
            arms.push((pattern, self.expression()?));
            let next = self.peek()?;
            let separated = next.on_new_line || matches!(next.token, Token::Sign("}"));
            if !self.accept(",")? && !separated {
                let next = self.take()?;
                let found = next.token.show();
                return Err(SyntaxError::new(
                    next.start,
                    format!("expected a line break, `,` or `}}` after the case, found {found}"),
                ));
            }
        }
        self.in_match = outer;
        Ok(Expr::Match(Box::new(MatchExpr {
            subject,
            arms: arms.into(),
        })))
    }

    fn pattern(&mut self) -> Result<MatchPattern, SyntaxError> {
        if self.next_is_name("_")? && self.second_is("=>") {
            self.take()?;
            return Ok(MatchPattern::Any);
        }
        Ok(match self.expression()? {
            Expr::Literal(value) => MatchPattern::Equal(value),
            condition => MatchPattern::When(condition),
        })
    }
}
