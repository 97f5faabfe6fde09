//! Limits the nesting of constructs that the parser tries in two ways, and of CASE in conditions of CASE.
//!
//! `CAST(…)` may be a cast or a function of that name. The parser tries one, and after an error inside it the other, so
//! each level at least doubles the time until an error is reported: thirty levels take minutes. `ARRAY[…]` is similar.
//! And the planner looks at the condition of a CASE twice to know whether its result can be NULL (`Expr::nullable`), at each level.
//! They are counted in the tokens before parsing.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::QueryError;

const DEPTH_MAX: usize = 8;
/// How many CASE may be open in whose conditions the next one stands. Planning takes a hundredth of a second here.
const CONDITIONS_MAX: usize = 10;

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
    let mut conditions = OpenConditions::default();
    for token in tokens {
        if let Token::Word(word) = &token {
            conditions.read(word.keyword)?;
        }
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

/// The CASE that are open.
#[derive(Default)]
struct OpenConditions {
    /// For each, whether the next token is in one of its conditions.
    cases: Vec<bool>,
    count: usize,
}

impl OpenConditions {
    fn read(&mut self, keyword: Keyword) -> Result<(), QueryError> {
        match keyword {
            Keyword::CASE => self.cases.push(false),
            Keyword::WHEN => self.set(true),
            Keyword::THEN | Keyword::ELSE => self.set(false),
            Keyword::END => {
                self.set(false);
                self.cases.pop();
            }
            _ => {}
        }
        match self.count > CONDITIONS_MAX {
            false => Ok(()),
            true => Err(QueryError::parse(format!(
                "more than {CONDITIONS_MAX} CASE are nested, each in a condition of the one around it; compute the inner ones in a \
                 subquery"
            ))),
        }
    }

    fn set(&mut self, is_condition: bool) {
        if let Some(case) = self.cases.last_mut() {
            self.count = self.count + usize::from(is_condition) - usize::from(*case);
            *case = is_condition;
        }
    }
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

    /// Without the limit each level doubled the time of planning.
    #[test]
    fn cases_in_conditions_of_each_other_are_counted() {
        let nested = |of: &str, times: usize| (0..times).fold("k".to_owned(), |inner, _| of.replace("{}", &inner));
        let condition = "CASE WHEN {} > 1 THEN k ELSE 0 END";
        for (expr, is_refused) in [
            (nested(condition, CONDITIONS_MAX), false),
            (nested(condition, CONDITIONS_MAX + 1), true),
            (nested("CASE WHEN k > 1 THEN {} ELSE 0 END", 30), false),
            (nested("CASE WHEN k > 1 THEN 0 ELSE {} END", 30), false),
            (vec!["CASE WHEN k > 1 THEN 0 END"; 200].join(", "), false),
        ] {
            let told = parse(&format!("select {expr} from t")).map_err(|error| error.message);
            assert_eq!(told.is_err(), is_refused, "{expr}: {told:?}");
            assert!(told.is_ok() || told.unwrap_err().contains("compute the inner ones"));
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
