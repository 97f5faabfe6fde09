//! `SIMILAR TO` as a regular expression. The library uses the pattern as one without a translation, so `%` and `_` would
//! be letters, `.` any letter, and a part of a text would be enough.

use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::{BinaryExpr, Like};
use datafusion::logical_expr::{Expr, Operator};

/// The comparison with a constant pattern.
pub fn comparison(like: Like, pattern: Option<&str>) -> Result<Expr> {
    let pattern = match pattern {
        None => None,
        Some(pattern) => match regex(pattern, like.escape_char.unwrap_or('\\')) {
            Ok(regex) => Some(regex),
            Err(why) => return plan_err!("the pattern '{pattern}' of SIMILAR TO {why}"),
        },
    };
    let operator = match like.negated {
        true => Operator::RegexNotMatch,
        false => Operator::RegexMatch,
    };
    let pattern = Expr::Literal(ScalarValue::Utf8(pattern), None);
    Ok(Expr::BinaryExpr(BinaryExpr::new(
        like.expr,
        operator,
        Box::new(pattern),
    )))
}

/// Translates a pattern of the SQL standard.
fn regex(pattern: &str, escape: char) -> std::result::Result<String, &'static str> {
    let mut regex = String::from(r"\A(?s:");
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter == escape => literal(letters.next().ok_or("ends with its escape character")?, &mut regex),
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            '(' => regex.push_str("(?:"),
            '|' | '*' | '+' | '?' | ')' | '{' | '}' => regex.push(letter),
            '[' => class(&mut letters, escape, &mut regex)?,
            letter => literal(letter, &mut regex),
        }
    }
    regex.push_str(r")\z");
    Ok(regex)
}

fn literal(letter: char, regex: &mut String) {
    regex.push_str(&regex::escape(letter.encode_utf8(&mut [0; 4])));
}

/// Letters in brackets: single ones, ranges, and classes such as `[:alpha:]`.
fn class(letters: &mut std::str::Chars<'_>, escape: char, regex: &mut String) -> std::result::Result<(), &'static str> {
    const UNCLOSED: &str = "has a [ without its ]";
    regex.push('[');
    let mut is_first = true;
    loop {
        match letters.next().ok_or(UNCLOSED)? {
            '^' if is_first => {
                regex.push('^');
                continue;
            }
            ']' if !is_first => break,
            letter if letter == escape => literal(letters.next().ok_or(UNCLOSED)?, regex),
            '[' if letters.as_str().starts_with(':') => {
                let (name, after) = letters.as_str().split_once(":]").ok_or(UNCLOSED)?;
                regex.push('[');
                regex.push_str(name);
                regex.push_str(":]");
                *letters = after.chars();
            }
            '-' => regex.push('-'),
            letter => literal(letter, regex),
        }
        is_first = false;
    }
    regex.push(']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts_as_the_standard_says() {
        for (pattern, matching, other) in [
            ("%x%", vec!["x", "axb", "a\nx"], vec!["ab", ""]),
            ("a_", vec!["ab", "aü"], vec!["a", "abc"]),
            ("a.c", vec!["a.c"], vec!["abc"]),
            ("a(b|c)+", vec!["ab", "abcb"], vec!["a", "xab"]),
            ("b|cd", vec!["b", "cd"], vec!["bd", "ab"]),
            ("a{2,3}", vec!["aa", "aaa"], vec!["a", "aaaa"]),
            ("[a-c^]x?", vec!["a", "bx", "^"], vec!["d"]),
            ("[^a]%", vec!["b", "ba"], vec!["a", ""]),
            ("[[:digit:]_]+", vec!["12", "1_"], vec!["1a"]),
            ("[]a]", vec!["]", "a"], vec!["b"]),
            ("[a&&b]", vec!["&", "a"], vec!["c"]),
            (r"50\%", vec!["50%"], vec!["500"]),
            ("^a$", vec!["^a$"], vec!["a"]),
            ("", vec![""], vec!["a"]),
        ] {
            let compiled = regex::Regex::new(&regex(pattern, '\\').unwrap()).unwrap();
            for text in matching {
                assert!(compiled.is_match(text), "{text:?} similar to {pattern:?}");
            }
            for text in other {
                assert!(!compiled.is_match(text), "{text:?} not similar to {pattern:?}");
            }
        }
        assert!(regex::Regex::new(&regex("a#%", '#').unwrap()).unwrap().is_match("a%"));
        assert!(regex("[a", '\\').is_err());
        assert!(regex(r"a\", '\\').is_err());
    }
}
