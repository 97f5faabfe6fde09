//! Limits the nesting of constructs that the parser tries in two ways.
//!
//! `CAST(…)` may be a cast or a function of that name. The parser tries one, and after an error inside it the other, so
//! each level at least doubles the time until an error is reported: thirty levels take minutes. `ARRAY[…]` is similar.
//! They are counted in the tokens before parsing.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::QueryError;

const DEPTH_MAX: usize = 8;

/// Keywords that begin a construct but may also be the name of a function.
const AMBIGUOUS: [Keyword; 27] = [
    Keyword::ARRAY,
    Keyword::BOX,
    Keyword::CASE,
    Keyword::CAST,
    Keyword::CEIL,
    Keyword::CIRCLE,
    Keyword::CONVERT,
    Keyword::EXISTS,
    Keyword::EXTRACT,
    Keyword::FLOOR,
    Keyword::INTERVAL,
    Keyword::LAMBDA,
    Keyword::LINE,
    Keyword::LSEG,
    Keyword::MATCH,
    Keyword::NOT,
    Keyword::OVERLAY,
    Keyword::PATH,
    Keyword::POINT,
    Keyword::POLYGON,
    Keyword::POSITION,
    Keyword::SAFE_CAST,
    Keyword::STRUCT,
    Keyword::SUBSTR,
    Keyword::SUBSTRING,
    Keyword::TRIM,
    Keyword::TRY_CAST,
];

/// Refuses a text with too many of them nested.
pub fn check(sql: &str) -> Result<(), QueryError> {
    // The parser reports invalid tokens.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize() else {
        return Ok(());
    };
    let (mut open, mut depth, mut is_ambiguous) = (Vec::new(), 0, false);
    for token in tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket => {
                depth += usize::from(is_ambiguous);
                open.push(is_ambiguous);
                if depth > DEPTH_MAX {
                    return Err(QueryError::parse(format!(
                        "more than {DEPTH_MAX} of CAST, NOT, EXTRACT, TRIM and their like are nested; write casts as value::type, or \
                         split it into several queries"
                    )));
                }
            }
            Token::RParen | Token::RBracket => depth -= usize::from(open.pop().unwrap_or(false)),
            _ => {}
        }
        is_ambiguous = matches!(token, Token::Word(word) if AMBIGUOUS.contains(&word.keyword));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::parse;

    /// Without the limit each level doubled the time.
    #[test]
    fn an_error_in_nested_constructs_is_told_whatever_they_are() {
        let words = AMBIGUOUS.map(|word| format!("{word:?}("));
        let others = [
            "(",
            "[",
            "abs(",
            "coalesce(1, ",
            "x -> (",
            "{a: ",
            "map {1: ",
            "case when ",
            "(select ",
            "not ",
            "array[",
            "row(",
        ];
        for open in words.iter().map(String::as_str).chain(others) {
            for depth in [DEPTH_MAX, 45, 2_000] {
                for innermost in ["1 as", "from", "1", "((", ""] {
                    for start in ["select ", "select * from "] {
                        let sql = format!("{start}{}{innermost}", open.repeat(depth));
                        let refused = parse(&sql).is_err();
                        assert!(refused || depth == DEPTH_MAX || open == "not ", "{sql:.200}");
                    }
                }
            }
        }
    }

    #[test]
    fn constructs_side_by_side_are_not_counted_and_neither_are_functions() {
        let casts = vec!["cast(trim(substr(a, 1, 2)) as int)"; 500].join(", ");
        let functions = format!("{}a{}", "upper(".repeat(30), ")".repeat(30));
        for sql in [format!("select {casts} from t"), format!("select {functions}")] {
            assert!(parse(&sql).is_ok(), "{:?}", parse(&sql));
        }
    }
}
