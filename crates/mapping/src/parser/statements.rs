//! Statements: assignments to `root`, metadata and variables, and `if` blocks of them. One that cannot be understood is
//! left out (`recovery`).

use thalweg_record::Text;

use super::recovery::is_assignment;
use super::{MISTAKES_MAX, Parser};
use crate::Compiler;
use crate::error::SyntaxError;
use crate::expr::Expr;
use crate::lexer::{Lexer, Token};
use crate::limits::NESTING_MAX;
use crate::path::{Path, PathSegment, is_plain};
use crate::statement::Statement;

/// Parses a whole mapping: statements, or one expression that becomes `root`. The error has all mistakes.
pub(crate) fn parse(compiler: &Compiler, source: &str, in_place: bool) -> Result<Vec<Statement>, Vec<SyntaxError>> {
    if let Ok(Token::End) = Lexer::new(source, 0).next().map(|first| first.token) {
        let empty = SyntaxError::new(0, "the mapping is empty; write `root = this`");
        return Err(vec![empty]);
    }
    let mut parser = Parser::new(compiler, source, 0, in_place);
    let statements = parser.mapping();
    let mut mistakes = parser.mistakes;
    if let (Some(statements), true) = (statements, mistakes.is_empty()) {
        return Ok(statements);
    }
    let mut single = Parser::new(compiler, source, 0, in_place);
    let expression = single.single_expression();
    match (expression, parser.broken_at) {
        (Ok(statement), _) if single.mistakes.is_empty() => Ok(vec![statement]),
        (_, None) => Err(mistakes),
        (Ok(_), Some(_)) => Err(single.mistakes),
        // Both attempts failed: what the one that got further found is more likely what was meant.
        (Err(fault), Some(broken_at)) if single.mistakes.iter().chain([&fault]).all(|found| found.at > broken_at) => {
            mistakes.retain(|mistake| mistake.at > fault.at);
            mistakes.extend(single.mistakes);
            mistakes.push(fault);
            Err(mistakes)
        }
        (Err(_), Some(_)) => Err(mistakes),
    }
}

impl Parser<'_> {
    /// Parses all statements. A fault that ends it is recorded like any other.
    fn mapping(&mut self) -> Option<Vec<Statement>> {
        let mut all = Vec::new();
        loop {
            let parsed = self.statements().and_then(|statements| Ok((statements, self.take()?)));
            match parsed {
                Ok((statements, next)) => {
                    all.extend(statements);
                    match next.token {
                        Token::End => return Some(all),
                        // The brace may belong to what was left out.
                        _ if self.broken_at.is_some() => {}
                        other => {
                            self.broken_at = Some(next.start);
                            let message = format!("unexpected {}", other.show());
                            self.note(SyntaxError::new(next.start, message));
                        }
                    }
                }
                Err(fault) => {
                    self.broken_at.get_or_insert(fault.at);
                    self.mistakes.push(fault);
                    return None;
                }
            }
        }
    }

    fn single_expression(&mut self) -> Result<Statement, SyntaxError> {
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
            Token::Sign("=") => not_assignable(&value),
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
        // The statement before, and whether the next one needs a line break after it.
        let (mut start, mut follows) = (None, false);
        loop {
            // Enough are known; the last one stands for the end of the reading.
            if self.mistakes.len() >= MISTAKES_MAX
                && let Some(last) = self.mistakes.pop()
            {
                return Err(last);
            }
            let from = self.lexer.at;
            let next = match self.peek() {
                Ok(next) => next.clone(),
                Err(fault) => {
                    self.recover(from, start.unwrap_or(from), fault)?;
                    follows = false;
                    continue;
                }
            };
            if matches!(next.token, Token::End | Token::Sign("}")) {
                return Ok(statements);
            }
            let mut misplaced = None;
            if follows && !next.on_new_line {
                let message = format!("expected an operator or a line break, found {}", next.token.show());
                let fault = SyntaxError::new(next.start, message);
                match &next.token {
                    Token::Name(name) if matches!(name.as_str(), "root" | "meta" | "let" | "if") => self.note(fault),
                    _ => misplaced = Some(fault),
                }
            } else {
                start = Some(next.start);
            }
            follows = true;
            match misplaced.map_or_else(|| self.statement(), Err) {
                Ok(statement) => statements.push(statement),
                Err(fault) => {
                    let start = start.unwrap_or(next.start);
                    self.recover(start, start, fault)?;
                    follows = false;
                }
            }
        }
    }

    fn statement(&mut self) -> Result<Statement, SyntaxError> {
        let next = self.peek()?.clone();
        let (at, name) = (next.start, next.token);
        let rest = self.source.get(at..).unwrap_or_default();
        if matches!(name, Token::Meta(_)) && is_assignment(rest) {
            return self.assignment_to_value();
        }
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
            "this" if is_assignment(rest) => self.assignment_to_value(),
            _ if self.second_is("=") => {
                let message = format!("cannot assign to `{name}`: write `root.{name} = ...` or `let {name} = ...`");
                self.note(SyntaxError::new(at, message));
                self.take()?;
                self.left_out_assignment()
            }
            _ => Err(SyntaxError::new(
                at,
                format!("expected a statement such as `root.a = this.b`, found `{name}`"),
            )),
        }
    }

    /// Parses `value = expression`, which is a mistake.
    fn assignment_to_value(&mut self) -> Result<Statement, SyntaxError> {
        let value = self.postfix()?;
        let next = self.peek()?;
        let mistake = SyntaxError::new(next.start, not_assignable(&value));
        if !matches!(next.token, Token::Sign("=")) {
            return Err(mistake);
        }
        self.note(mistake);
        self.left_out_assignment()
    }

    /// Parses the rest of an assignment whose target is a mistake.
    fn left_out_assignment(&mut self) -> Result<Statement, SyntaxError> {
        self.expect("=", "before the value")?;
        let value = self.whole_expression()?;
        Ok(Statement::Root {
            path: Path::default(),
            value,
            given: false,
            line: 1,
        })
    }

    /// The line of a place. It is counted from the place that was asked for before, so that all lines of a text cost as
    /// much as reading it.
    fn line(&mut self, at: usize) -> usize {
        let (known_at, known_line) = self.line;
        let between = self.source.get(known_at.min(at)..known_at.max(at)).unwrap_or_default();
        let breaks = between.matches('\n').count();
        let line = match at >= known_at {
            true => known_line + breaks,
            false => known_line.saturating_sub(breaks),
        };
        self.line = (at, line);
        line
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
            self.note(SyntaxError::new(next.start, "a metadata key cannot be empty"));
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
        let value = self.whole_expression();
        let slot = self.slot(name);
        let value = value?;
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
        // The brace may be in what was left out.
        if self.broken_at.is_none() || self.next_is("}")? {
            self.expect("}", "after the statements")?;
        }
        Ok(statements)
    }
}

/// What to write instead of an assignment to a value.
fn not_assignable(value: &Expr) -> String {
    match value {
        Expr::This(path) => format!(
            "`this` is the input and cannot be assigned to: write `{} = ...`",
            path.show("root")
        ),
        Expr::Meta(key) | Expr::NewMeta(key) => format!("metadata is set with `meta {key} = ...`"),
        _ => "only root, root.<path>, meta <key> and let <name> can be assigned to".to_owned(),
    }
}
