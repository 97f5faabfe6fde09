//! Splits statements at semicolons outside of texts, names and comments.

/// Returns the complete statements, without their semicolons, and the rest.
pub fn split(text: &str) -> (Vec<String>, String) {
    let mut statements = Vec::new();
    let (mut begin, mut within) = (0, LexerState::Code);
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let next = characters.peek().map(|(_, next)| *next);
        within = match (within, character, next) {
            (LexerState::Code, ';', _) => {
                let statement = text.get(begin..at).unwrap_or_default().trim();
                if !statement.is_empty() {
                    statements.push(statement.to_owned());
                }
                begin = at + 1;
                LexerState::Code
            }
            (LexerState::Code, '\'' | '"', _) => LexerState::Quotes(character),
            (LexerState::Code, '-', Some('-')) => LexerState::Line,
            (LexerState::Code, '/', Some('*')) => {
                characters.next();
                LexerState::Block(1)
            }
            // A doubled quote ends the text and begins it again.
            (LexerState::Quotes(quote), found, _) if found == quote => LexerState::Code,
            (LexerState::Line, '\n', _) => LexerState::Code,
            (LexerState::Block(depth), '/', Some('*')) => {
                characters.next();
                LexerState::Block(depth + 1)
            }
            (LexerState::Block(depth), '*', Some('/')) => {
                characters.next();
                match depth {
                    1 => LexerState::Code,
                    depth => LexerState::Block(depth - 1),
                }
            }
            (within, _, _) => within,
        };
    }
    let rest = text.get(begin..).unwrap_or_default();
    (statements, rest.to_owned())
}

#[derive(Clone, Copy)]
enum LexerState {
    Code,
    Quotes(char),
    /// A comment to the end of the line.
    Line,
    /// A block comment, which may nest.
    Block(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semicolons_in_texts_names_and_comments_end_nothing() {
        for whole in [
            "select 1",
            "select ';', '''; '\n from t",
            "select \"a;b\"",
            "select 1 -- no; end\n + 2",
            "select /* a; /* b; */ c; */ 1",
        ] {
            assert_eq!(
                split(&format!("{whole};")),
                (vec![whole.to_owned()], String::new()),
                "{whole}"
            );
            assert_eq!(split(whole), (vec![], whole.to_owned()), "{whole}");
        }
        assert_eq!(
            split("a; b;;\n c"),
            (vec!["a".to_owned(), "b".to_owned()], "\n c".to_owned())
        );
        assert_eq!(split("select 'ü;"), (vec![], "select 'ü;".to_owned()));
    }
}
