//! Statements: assignments to `root`, metadata and variables, and `if` blocks of them.

use thalweg_record::Text;

use super::Parser;
use crate::Compiler;
use crate::error::SyntaxError;
use crate::expr::Expr;
use crate::lexer::{Lexer, Token};
use crate::limits::NESTING_MAX;
use crate::path::{Path, PathSegment, is_plain};
use crate::statement::Statement;

/// Parses a whole mapping: statements, or one expression that becomes `root`.
pub(crate) fn parse(compiler: &Compiler, source: &str, in_place: bool) -> Result<Vec<Statement>, SyntaxError> {
    if matches!(Lexer::new(source, 0).next()?.token, Token::End) {
        return Err(SyntaxError::new(0, "the mapping is empty; write `root = this`"));
    }
    let fault = match Parser::new(compiler, source, 0, in_place).mapping() {
        Ok(statements) => return Ok(statements),
        Err(fault) => fault,
    };
    match Parser::new(compiler, source, 0, in_place).single_expression() {
        Ok(statement) => Ok(vec![statement]),
        // Both attempts failed: report the one that got further.
        Err(other) => Err(if other.at > fault.at { other } else { fault }),
    }
}

impl Parser<'_> {
    fn mapping(mut self) -> Result<Vec<Statement>, SyntaxError> {
        let statements = self.statements()?;
        let next = self.take()?;
        match next.token {
            Token::End => Ok(statements),
            other => Err(SyntaxError::new(next.start, format!("unexpected {}", other.show()))),
        }
    }

    fn single_expression(mut self) -> Result<Statement, SyntaxError> {
        let value = self.whole_expression()?;
        let next = self.take()?;
        let message = match next.token {
            Token::End => {
                let given = value.is_given(self.in_place);
                return Ok(Statement::Root {
                    path: Path::default(),
                    value,
                    given,
                    line: 1,
                });
            }
            Token::Sign("=") => match value {
                Expr::This(path) => format!(
                    "`this` is the input and cannot be assigned to: write `{} = ...`",
                    path.show("root")
                ),
                Expr::Meta(key) | Expr::NewMeta(key) => format!("metadata is set with `meta {key} = ...`"),
                _ => "only root, root.<path>, meta <key> and let <name> can be assigned to".to_owned(),
            },
            Token::Sign("[") => "a value is not indexed with brackets; write `.index(0)`".to_owned(),
            other => format!(
                "unexpected {} after the expression; in a mapping of several lines each assigns something, as in \
                 `root.a = this.b`",
                other.show()
            ),
        };
        Err(SyntaxError::new(next.start, message))
    }

    /// Parses statements up to a closing brace or the end.
    fn statements(&mut self) -> Result<Vec<Statement>, SyntaxError> {
        let mut statements = Vec::new();
        loop {
            let next = self.peek()?;
            if matches!(next.token, Token::End | Token::Sign("}")) {
                return Ok(statements);
            }
            if !statements.is_empty() && !next.on_new_line {
                let (at, found) = (next.start, next.token.show());
                return Err(SyntaxError::new(
                    at,
                    format!("expected an operator or a line break, found {found}"),
                ));
            }
            statements.push(self.statement()?);
        }
    }

    fn statement(&mut self) -> Result<Statement, SyntaxError> {
        let next = self.peek()?.clone();
        let (at, name) = (next.start, next.token);
        let Token::Name(name) = name else {
            return Err(SyntaxError::new(
                at,
                format!("expected a statement such as `root.a = this.b`, found {}", name.show()),
            ));
        };
        match name.as_str() {
            "root" => {
                self.take()?;
                self.root_assignment(at)
            }
            "meta" if !self.second_is("(") => {
                self.take()?;
                self.meta_assignment(at)
            }
            "let" => {
                self.take()?;
                self.let_assignment(at)
            }
            "if" => {
                self.take()?;
                self.nested(Parser::if_statement)
            }
            "map" | "import" => Err(SyntaxError::new(
                at,
                format!("`{name}` is not part of this language subset"),
            )),
            _ if self.second_is("=") => {
                let message = format!("cannot assign to `{name}`: write `root.{name} = ...` or `let {name} = ...`");
                Err(SyntaxError::new(at, message))
            }
            _ => Err(SyntaxError::new(
                at,
                format!("expected a statement such as `root.a = this.b`, found `{name}`"),
            )),
        }
    }

    fn line(&self, at: usize) -> usize {
        self.source.get(..at).unwrap_or_default().matches('\n').count() + 1
    }

    fn root_assignment(&mut self, at: usize) -> Result<Statement, SyntaxError> {
        let mut path = Path::default();
        while self.accept(".")? {
            let (name, _) = self.lexer.segment()?;
            path.push(PathSegment::new(name));
            if path.0.len() > NESTING_MAX {
                return Err(SyntaxError::new(
                    at,
                    format!("a path is longer than the limit of {NESTING_MAX} fields"),
                ));
            }
        }
        let target = path.show("root");
        self.expect("=", &format!("after `{target}`"))?;
        let value = self.whole_expression()?;
        Ok(Statement::Root {
            given: value.is_given(self.in_place),
            path,
            value,
            line: self.line(at),
        })
    }

    fn meta_assignment(&mut self, at: usize) -> Result<Statement, SyntaxError> {
        let next = self.peek()?.clone();
        let key = match next.token {
            Token::Name(key) | Token::Text(key) => {
                self.take()?;
                Some(key)
            }
            _ => None,
        };
        if key.as_ref().is_some_and(Text::is_empty) {
            return Err(SyntaxError::new(next.start, "a metadata key cannot be empty"));
        }
        let next = self.peek()?;
        if !matches!(next.token, Token::Sign("=")) {
            let (at, found) = (next.start, next.token.show());
            let message = format!(
                "expected `=` after the metadata key, found {found}; keys with other characters than letters, digits and \
                 `_` go in quotes, as in meta \"foo.bar\" = 1"
            );
            return Err(SyntaxError::new(at, message));
        }
        self.take()?;
        let value = self.whole_expression()?;
        let line = self.line(at);
        Ok(Statement::Meta { key, value, line })
    }

    fn let_assignment(&mut self, at: usize) -> Result<Statement, SyntaxError> {
        let next = self.take()?;
        let name = match next.token {
            Token::Name(name) | Token::Text(name) if is_plain(&name) => name,
            other => {
                let found = other.show();
                let message =
                    format!("expected a variable's name of letters, digits and `_` after `let`, found {found}");
                return Err(SyntaxError::new(next.start, message));
            }
        };
        self.expect("=", "after the variable's name")?;
        let value = self.whole_expression()?;
        let known = self.variables.iter().position(|known| *known == name);
        let slot = known.unwrap_or_else(|| {
            self.variables.push(name);
            self.variables.len() - 1
        });
        Ok(Statement::Let {
            slot,
            given: value.is_given(self.in_place),
            value,
            line: self.line(at),
        })
    }

    /// Parses what follows `if`.
    fn if_statement(&mut self) -> Result<Statement, SyntaxError> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let line = self.line(self.lexer.at);
            let condition = self.whole_expression()?;
            branches.push((condition, self.block()?, line));
            if !self.next_is_name("else")? {
                break;
            }
            self.take()?;
            if !self.next_is_name("if")? {
                otherwise = self.block()?;
                break;
            }
            self.take()?;
        }
        Ok(Statement::If { branches, otherwise })
    }

    fn block(&mut self) -> Result<Vec<Statement>, SyntaxError> {
        self.expect("{", "before the statements")?;
        let statements = self.statements()?;
        self.expect("}", "after the statements")?;
        Ok(statements)
    }
}
