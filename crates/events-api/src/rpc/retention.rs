//! `retention.*`: which messages of a stream, or of each stream of a category, can be read.

use std::borrow::Cow;

use thalweg_events::json::{Json, Kind};
use thalweg_events::{Retention, RetentionOf};

use super::{Answer, Call};
use crate::args::{Args, Options, stream_within};
use crate::auth::Need;
use crate::problem::{Problem, Result};
use crate::write::number;

const SECOND: i64 = 1_000_000;
const TARGET: &str = "streamName must be a non-empty string or an object with a category";

pub(super) async fn call(name: &str, call: Call<'_>) -> Option<Result<Answer>> {
    Some(match name {
        "set" => set(call).await,
        "get" => get(call).await,
        _ => return None,
    })
}

/// A stream by its name, or a category.
enum Target<'a> {
    Stream(Cow<'a, str>),
    Category(Cow<'a, str>),
}

impl<'a> Target<'a> {
    fn read(args: Args<'a>) -> Result<Target<'a>> {
        let wrong = || Problem::invalid(TARGET);
        let json = args.get(0).ok_or_else(wrong)?;
        let target = match json.kind() {
            Kind::String => Target::Stream(json.string().filter(|name| !name.is_empty()).ok_or_else(wrong)?),
            Kind::Object => Target::Category(json.get("category").and_then(Json::string).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        let (Target::Stream(name) | Target::Category(name)) = &target;
        stream_within(name)?;
        match &target {
            // A rule for what cannot be would never be noticed.
            Target::Category(name) if name.contains('-') => Err(Problem::invalid("category must not contain '-'")),
            _ => Ok(target),
        }
    }

    fn of(&self) -> RetentionOf<'_> {
        match self {
            Target::Stream(name) => RetentionOf::Stream(name),
            Target::Category(name) => RetentionOf::Category(name),
        }
    }
}

/// Parts that are not named stay as they are; `null` in place of one, or of all, clears.
async fn set(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(2, "retention.set requires at least 2 arguments: streamName and options")?;
    let target = Target::read(args)?;
    let clears = args.get(1).is_some_and(Json::is_null);
    let change = match clears {
        true => Change::default(),
        false => Change::read(args.options(1)?)?,
    };
    call.caller.may(Need::Write)?;
    let namespace = call.caller.namespace()?;
    let action = Problem::of("set retention");
    let rule = match clears {
        true => Retention::default(),
        false => {
            let known = namespace.retention(target.of()).await.map_err(&action)?;
            change.of(known.unwrap_or_default())
        }
    };
    let rule = (rule != Retention::default()).then_some(rule);
    namespace.set_retention(target.of(), rule).await.map_err(&action)?;
    Ok(Answer::Text(told(rule)))
}

async fn get(call: Call<'_>) -> Result<Answer> {
    call.args.at_least(1, "retention.get requires 1 argument: streamName")?;
    let target = Target::read(call.args)?;
    call.caller.may(Need::Read)?;
    let rule = call.caller.namespace()?.retention(target.of()).await;
    Ok(Answer::Text(told(rule.map_err(Problem::of("get retention"))?)))
}

/// Of each part: whether it is named, and what it is to be.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    max_age: Option<Option<i64>>,
    max_count: Option<Option<u64>>,
    truncate_before: Option<Option<u64>>,
}

impl Change {
    fn read(options: Options<'_>) -> Result<Change> {
        let named = |name: &str, other: &str| options.get(name).or_else(|| options.get(other));
        let whole = |json: Json<'_>, told: &str, least: i64| match json {
            null if null.is_null() => Ok(None),
            json => {
                let number = json.integer().filter(|number| *number >= least);
                let wrong = || Problem::invalid(format!("options.{told} must be a number from {least} on"));
                number.map(|number| Some(number.unsigned_abs())).ok_or_else(wrong)
            }
        };
        Ok(Change {
            max_age: named("maxAge", "$maxAge").map(age).transpose()?,
            max_count: named("maxCount", "$maxCount")
                .map(|json| whole(json, "maxCount", 1))
                .transpose()?,
            truncate_before: named("truncateBefore", "$tb")
                .map(|json| whole(json, "truncateBefore", 0))
                .transpose()?,
        })
    }

    fn of(&self, known: Retention) -> Retention {
        Retention {
            max_age: self.max_age.unwrap_or(known.max_age),
            max_count: self.max_count.unwrap_or(known.max_count),
            truncate_before: self.truncate_before.unwrap_or(known.truncate_before),
        }
    }
}

/// Seconds, or a number with a unit.
fn age(json: Json<'_>) -> Result<Option<i64>> {
    if json.is_null() {
        return Ok(None);
    }
    let seconds = match json.string() {
        Some(text) => {
            let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (digits, unit) = text.split_at(at);
            let seconds = match unit {
                "s" => Some(1),
                "m" => Some(60),
                "h" => Some(60 * 60),
                "d" => Some(24 * 60 * 60),
                "w" => Some(7 * 24 * 60 * 60),
                _ => None,
            };
            let number = digits.parse::<i64>().ok();
            number
                .zip(seconds)
                .map(|(number, seconds)| number.saturating_mul(seconds))
        }
        None => json.integer(),
    };
    let seconds = seconds.filter(|seconds| *seconds > 0);
    let wrong = || Problem::invalid("options.maxAge must be a positive number of seconds or a text like \"7d\"");
    seconds
        .map(|seconds| Some(seconds.saturating_mul(SECOND)))
        .ok_or_else(wrong)
}

fn told(rule: Option<Retention>) -> String {
    let Some(rule) = rule else { return "null".to_owned() };
    let mut out = String::new();
    let age = rule.max_age.map(|micros| (micros / SECOND).unsigned_abs());
    for (name, part) in [
        ("{\"maxAge\":", age),
        (",\"maxCount\":", rule.max_count),
        (",\"truncateBefore\":", rule.truncate_before),
    ] {
        out.push_str(name);
        match part {
            Some(part) => number(&mut out, part),
            None => out.push_str("null"),
        }
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_seconds_or_a_number_with_a_unit() {
        for (json, expected) in [
            ("7", Some(Some(7))),
            ("7.9", Some(Some(7))),
            ("\"7d\"", Some(Some(7 * 86400))),
            ("\"90m\"", Some(Some(5400))),
            ("\"2w\"", Some(Some(14 * 86400))),
            ("\"36h\"", Some(Some(36 * 3600))),
            ("\"1s\"", Some(Some(1))),
            ("null", Some(None)),
            ("0", None),
            ("-1", None),
            ("\"7\"", None),
            ("\"d\"", None),
            ("\"7y\"", None),
            ("\"-7d\"", None),
            ("true", None),
        ] {
            let found = age(Json::new(json)).ok().map(|age| age.map(|micros| micros / SECOND));
            assert_eq!(found, expected, "{json}");
        }
        assert_eq!(
            age(Json::new("\"9223372036854775807w\"")),
            Ok(Some(i64::MAX)),
            "for ever"
        );
    }

    #[test]
    fn what_is_not_named_stays_and_null_clears() {
        let options = Options::of(Json::new(r#"{"$maxCount":5,"maxAge":null}"#));
        let change = Change::read(options).unwrap();
        let known = Retention {
            max_age: Some(1),
            max_count: Some(2),
            truncate_before: Some(3),
        };
        let expected = Retention {
            max_age: None,
            max_count: Some(5),
            truncate_before: Some(3),
        };
        assert_eq!(change.of(known), expected);
    }
}
