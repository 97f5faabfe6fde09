//! Turns source text into tokens, one at a time and on demand. An interpolation's expression ends in the middle of a
//! text that is not a mapping, and the lexer must not read beyond that end.

use thalweg_record::{Text, Value, json};

use crate::error::SyntaxError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Name(Text),
    Text(Text),
    Number(Value),
    /// `$name`
    Variable(Text),
    /// `@name`, `@"name"`, or `@` alone for all metadata.
    Meta(Option<Text>),
    Sign(&'static str),
    End,
}

impl Token {
    /// Formats the token for error messages.
    pub fn show(&self) -> String {
        match self {
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a string".to_owned(),
            Token::Number(_) => "a number".to_owned(),
            Token::Variable(name) => format!("`${name}`"),
            Token::Meta(Some(name)) => format!("`@{name}`"),
            Token::Meta(None) => "`@`".to_owned(),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SpannedToken {
    pub token: Token,
    pub start: usize,
    pub end: usize,
    /// Whether a line break precedes this token.
    pub on_new_line: bool,
}

/// Longer signs come before their prefixes.
const SIGNS: [&str; 27] = [
    "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "=", "!", "<", ">", "|", "+", "-", "*", "/", "%", "(", ")", "[",
    "]", "{", "}", ",", ".", ":",
];

#[derive(Clone, Debug)]
pub(crate) struct Lexer<'s> {
    source: &'s str,
    pub at: usize,
}

impl<'s> Lexer<'s> {
    pub fn new(source: &'s str, at: usize) -> Lexer<'s> {
        Lexer { source, at }
    }

    pub fn next(&mut self) -> Result<SpannedToken, SyntaxError> {
        let on_new_line = self.skip_space();
        let start = self.at;
        let token = match self.peek() {
            None => Token::End,
            Some('"') => Token::Text(self.string()?),
            Some('0'..='9') => Token::Number(self.number()?),
            Some('a'..='z' | 'A'..='Z' | '_') => Token::Name(self.word().into()),
            Some('$') => {
                self.at += 1;
                match self.word() {
                    "" => return Err(SyntaxError::new(start, "expected a variable's name after `$`")),
                    name => Token::Variable(name.into()),
                }
            }
            Some('@') => {
                self.at += 1;
                match self.peek() {
                    Some('"') => Token::Meta(Some(self.string()?)),
                    _ => Token::Meta(Some(self.word()).filter(|name| !name.is_empty()).map(Text::new)),
                }
            }
            Some(other) => self.sign(other)?,
        };
        Ok(SpannedToken {
            token,
            start,
            end: self.at,
            on_new_line,
        })
    }

    /// Reads a path segment after a dot: a name that may start with a digit, or a name in quotes.
    pub fn segment(&mut self) -> Result<(Text, bool), SyntaxError> {
        self.skip_space();
        match self.peek() {
            Some('"') => Ok((self.string()?, true)),
            _ => match self.word() {
                "" => {
                    let message = "expected a field, a method or `(` after `.`; names with other characters than letters, \
                                   digits and `_` go in quotes, as in this.\"foo-bar\"";
                    Err(SyntaxError::new(self.at, message))
                }
                word => Ok((word.into(), false)),
            },
        }
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or_default()
    }

    /// Skips white space and comments. Returns whether there was a line break.
    pub fn skip_space(&mut self) -> bool {
        let mut on_new_line = false;
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            let space = rest.len() - trimmed.len();
            on_new_line |= rest.get(..space).is_some_and(|space| space.contains('\n'));
            self.at += space;
            if !trimmed.starts_with('#') {
                return on_new_line;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn word(&mut self) -> &'s str {
        let rest = self.rest();
        let length = rest
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || *b == b'_')
            .count();
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    fn sign(&mut self, found: char) -> Result<Token, SyntaxError> {
        let rest = self.rest();
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            self.at += sign.len();
            return Ok(Token::Sign(sign));
        }
        let message = match found {
            '\'' => "strings are written in double quotes".to_owned(),
            '&' => "unexpected `&`; the logical operator is `&&`".to_owned(),
            ';' => "unexpected `;`; statements are separated by line breaks".to_owned(),
            other => format!("unexpected character {other:?}"),
        };
        Err(SyntaxError::new(self.at, message))
    }

    /// Reads digits, a fraction if a digit follows the dot (`5.floor()` is a method call), and an exponent.
    fn number(&mut self) -> Result<Value, SyntaxError> {
        let start = self.at;
        let digits = |at: usize| {
            let rest = self.source.get(at..).unwrap_or_default();
            rest.bytes().take_while(u8::is_ascii_digit).count()
        };
        let mut end = start + digits(start);
        let byte = |at: usize| self.source.as_bytes().get(at).copied();
        if byte(end) == Some(b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
        }
        if let Some(b'e' | b'E') = byte(end) {
            let sign = usize::from(matches!(byte(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign);
            end += if exponent > 0 { 1 + sign + exponent } else { 0 };
        }
        let text = self.source.get(start..end).unwrap_or_default();
        self.at = end;
        let follows = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_');
        let value = json::parse(text.as_bytes()).ok().filter(|_| follows.is_none());
        let value = match value {
            // A literal is used in calculations, so its digits need not be preserved.
            Some(Value::Decimal(text)) if text.contains(['.', 'e', 'E']) => {
                text.parse().ok().filter(|n: &f64| n.is_finite()).map(Value::F64)
            }
            value => value,
        };
        value.ok_or_else(|| SyntaxError::new(start, "this is not a number; numbers are written as 5, 0.5 or 1e6"))
    }

    fn string(&mut self) -> Result<Text, SyntaxError> {
        let start = self.at;
        if let Some(raw) = self.rest().strip_prefix("\"\"\"") {
            let Some(length) = raw.find("\"\"\"") else {
                return Err(SyntaxError::new(start, "the string has no closing \"\"\""));
            };
            self.at += length + 6;
            return Ok(Text::new(raw.get(..length).unwrap_or_default()));
        }
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let plain = rest.find(['"', '\\', '\n']).unwrap_or(rest.len());
            text.push_str(rest.get(..plain).unwrap_or_default());
            self.at += plain;
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(text.into());
                }
                Some('\\') => text.push(self.escape()?),
                _ => {
                    let message = "the string has no closing quote on its line; a text of several lines goes between \
                                   \"\"\" and \"\"\"";
                    return Err(SyntaxError::new(start, message));
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let start = self.at;
        let unknown = || {
            let message = "unknown escape in a string; a backslash itself is written `\\\\`, and a text between \"\"\" and \
                           \"\"\" has no escapes";
            SyntaxError::new(start, message)
        };
        self.at += 1;
        let escaped = self.peek().ok_or_else(unknown)?;
        self.at += escaped.len_utf8();
        Ok(match escaped {
            '"' | '\\' | '/' | '\'' => escaped,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            // Beyond ASCII, `\x` would name single bytes of a character; `\u` names the character.
            'x' => self.code(2).filter(char::is_ascii).ok_or_else(unknown)?,
            'U' => self.code(8).ok_or_else(unknown)?,
            'u' => self.utf16().ok_or_else(unknown)?,
            _ => return Err(unknown()),
        })
    }

    fn code(&mut self, digits: usize) -> Option<char> {
        char::from_u32(self.hex(digits)?)
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text = self.rest().get(..digits)?;
        let value = text
            .bytes()
            .all(|b| b.is_ascii_hexdigit())
            .then(|| u32::from_str_radix(text, 16).ok())??;
        self.at += digits;
        Some(value)
    }

    /// Reads what follows `\u`: four digits, or a surrogate pair as in JSON.
    fn utf16(&mut self) -> Option<char> {
        let high = self.hex(4)?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        if !self.rest().starts_with("\\u") {
            return None;
        }
        self.at += 2;
        let low = self.hex(4).filter(|low| (0xDC00..0xE000).contains(low))?;
        char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    }
}
