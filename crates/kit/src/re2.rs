//! Regular expressions as files of the reference system have them, in the syntax of RE2, for a library that has the same
//! syntax but for `\Q…\E`, which quotes what is between.

use std::borrow::Cow;

/// Returns the expression with quoted text escaped instead. Without `\E` the quote goes to the end. Within a class, as in
/// `[\Q]`, RE2 has no quotes, and the library refuses what is left there.
pub fn without_quotes(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains(r"\Q") {
        return Cow::Borrowed(pattern);
    }
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        let (taken, quoted) = match character {
            '\\' if rest.starts_with(r"\Q") => {
                let quoted = rest.get(2..).unwrap_or_default();
                let (quoted, end) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
                (rest.len() - end.len(), Some(quoted))
            }
            // An escaped backslash does not begin a quote.
            '\\' => (1 + rest.chars().nth(1).map_or(0, char::len_utf8), None),
            '[' => (class_len(rest), None),
            other => (other.len_utf8(), None),
        };
        let (same, after) = rest.split_at_checked(taken).unwrap_or((rest, ""));
        match quoted {
            Some(quoted) => escape(quoted, &mut out),
            None => out.push_str(same),
        }
        rest = after;
    }
    Cow::Owned(out)
}

/// The length of the class at the beginning of `text`, such as `[^]a-z]` or `[[:alpha:]_]`. A class without an end goes to
/// the end of the text.
fn class_len(text: &str) -> usize {
    let inner = text.strip_prefix('[').unwrap_or(text);
    let inner = inner.strip_prefix('^').unwrap_or(inner);
    // A bracket in the first place stands for itself.
    let mut rest = inner.strip_prefix(']').unwrap_or(inner);
    while let Some(character) = rest.chars().next() {
        let len = match character {
            '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '[' if rest.starts_with("[:") => rest.find(":]").map_or(2, |end| end + 2),
            other => other.len_utf8(),
        };
        rest = rest.get(len..).unwrap_or_default();
        if character == ']' {
            break;
        }
    }
    text.len() - rest.len()
}

/// Appends a text so that it stands for itself.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_stands_for_itself_and_everything_else_is_as_it_was() {
        for (pattern, expected) in [
            ("", ""),
            (r"umh\.v1\..*", r"umh\.v1\..*"),
            (r"\Qumh.v1.a+b\E\..*", r"umh\.v1\.a\+b\..*"),
            // To the end, and nothing.
            (r"^\Q(x", r"^\(x"),
            (r"a\Q\E*", r"a*"),
            (r"\Q", ""),
            // A quantifier after a quote is that of its last character.
            (r"\Qab\E+", r"ab+"),
            (r"\Qa\E\Q.\E$", r"a\.$"),
            // Within a quote nothing begins, and a backslash is one.
            (r"\Qa\Qb[\d\E[\d]", r"a\\Qb\[\\d[\d]"),
            // A backslash and a Q.
            (r"\\Qa.b\\E", r"\\Qa.b\\E"),
            (r"\\\Q.\E", r"\\\."),
            // Classes have no quotes.
            (r"[\Q.]\Q.\E", r"[\Q.]\."),
            (r"[]\Q][^]\Q]\Q]\E", r"[]\Q][^]\Q]\]"),
            (r"[[:alpha:]\Q]\Q-\E", r"[[:alpha:]\Q]\-"),
            (r"[\]\Q]\Q~\E", r"[\]\Q]\~"),
            (r"[\Q", r"[\Q"),
            (r"\Qä€\E\ä\Q<\E", r"ä€\ä<"),
            (r"\Qa\", r"a\\"),
            (r"\Q.\E\", r"\.\"),
        ] {
            assert_eq!(without_quotes(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn an_expression_without_quotes_is_not_copied() {
        assert!(matches!(without_quotes(r"[a-z]+\.\d"), Cow::Borrowed(_)));
    }
}
