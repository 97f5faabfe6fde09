//! Goes on after a statement that cannot be understood: from the statement, over its lines, to the next line that begins
//! another one. Only lines that are indented no deeper count, because deeper ones are likely the rest of the statement.

use super::{MISTAKES_MAX, Parser};
use crate::error::SyntaxError;
use crate::lexer::{SpannedToken, Token};

impl Parser<'_> {
    /// Records the fault of a statement that began at `start`, reads its tokens again from `from` on, and puts the next
    /// statement, the closing brace of the block or the end next. Returns the fault when no more is to be read.
    pub(super) fn recover(&mut self, from: usize, start: usize, fault: SyntaxError) -> Result<(), SyntaxError> {
        self.broken_at.get_or_insert(fault.at);
        if self.is_beyond_limits || self.mistakes.len() + 1 >= MISTAKES_MAX {
            return Err(fault);
        }
        self.note(fault);
        self.in_match = false;
        let column = self.column(start);
        self.lexer.at = from;
        // The first token is part of the statement.
        let (mut is_first, mut after_let) = (true, false);
        loop {
            match self.lexer.next() {
                Ok(next) if matches!(next.token, Token::End) => {
                    self.peeked = Some(next);
                    return Ok(());
                }
                Ok(next) => {
                    if !is_first && next.on_new_line && self.begins_statement(&next, column) {
                        self.peeked = Some(next);
                        return Ok(());
                    }
                    // Later statements may use the variable.
                    if let (Token::Name(name), true) = (&next.token, after_let) {
                        self.slot(name.clone());
                    }
                    after_let = matches!(&next.token, Token::Name(name) if name == "let");
                }
                Err(_) => self.skip_line(),
            }
            is_first = false;
        }
    }

    /// After what is no token: on to the end of the line, or of all if a text of several lines does not end.
    fn skip_line(&mut self) {
        let rest = self.lexer.rest();
        let length = match rest.starts_with("\"\"\"") {
            true => rest.len(),
            false => rest.find('\n').unwrap_or(rest.len()),
        };
        self.lexer.at += length;
    }

    /// Whether a statement begins here, or the block around a statement of this column ends.
    fn begins_statement(&self, next: &SpannedToken, column: usize) -> bool {
        let own = self.column(next.start);
        let rest = self.source.get(next.start..).unwrap_or_default();
        match &next.token {
            Token::Sign("}") => own < column,
            Token::Name(name) if matches!(name.as_str(), "if" | "map" | "import") => own <= column,
            Token::Name(_) | Token::Meta(_) => own <= column && is_assignment(rest),
            _ => false,
        }
    }

    /// The number of bytes before a place in its line.
    fn column(&self, at: usize) -> usize {
        let before = self.source.get(..at).unwrap_or_default();
        at - before.rfind('\n').map_or(0, |newline| newline + 1)
    }
}

/// Whether a line begins with an assignment, by its form alone.
pub(super) fn is_assignment(text: &str) -> bool {
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '"' | '@' | '$' | '-' | '~' | ' ' | '\t');
    let after = text.trim_start_matches(is_path).strip_prefix('=');
    after.is_some_and(|value| !value.starts_with(['=', '>']))
}
