//! `retention.*`: which messages of a stream, or of each stream of a category, can be read.

use std::borrow::Cow;

use thalweg_events::json::{Json, JsonKind};
use thalweg_events::names::is_category;
use thalweg_events::{Retention, RetentionTarget};

use super::{RpcCall, RpcResponse};
use crate::args::{CallArgs, CallOptions, stream_within};
use crate::auth::RequiredScope;
use crate::json_text::number;
use crate::problem::{Problem, Result};

const SECOND: i64 = 1_000_000;
const TARGET: &str = "streamName must be a non-empty string or an object with a category";

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match name {
        "set" => set(call).await,
        "get" => get(call).await,
        _ => return None,
    })
}

/// A stream by its name, or a category.
enum RuleTarget<'a> {
    Stream(Cow<'a, str>),
    Category(Cow<'a, str>),
}

impl<'a> RuleTarget<'a> {
    fn read(args: CallArgs<'a>) -> Result<RuleTarget<'a>> {
        let wrong = || Problem::invalid(TARGET);
        let json = args.get(0).ok_or_else(wrong)?;
        let target = match json.kind() {
            JsonKind::String => RuleTarget::Stream(json.string().filter(|name| !name.is_empty()).ok_or_else(wrong)?),
            JsonKind::Object => RuleTarget::Category(json.get("category").and_then(Json::string).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        let (RuleTarget::Stream(name) | RuleTarget::Category(name)) = &target;
        stream_within(name)?;
        match &target {
            // A rule for a category that cannot exist would never be noticed.
            RuleTarget::Category(name) if !is_category(name) => Err(Problem::invalid("category must not contain '-'")),
            _ => Ok(target),
        }
    }

    fn of(&self) -> RetentionTarget<'_> {
        match self {
            RuleTarget::Stream(name) => RetentionTarget::Stream(name),
            RuleTarget::Category(name) => RetentionTarget::Category(name),
        }
    }
}

/// Parts that are not named stay as they are; `null` for a part, or for all of them, clears.
async fn set(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(2, "retention.set requires at least 2 arguments: streamName and options")?;
    let target = RuleTarget::read(args)?;
    let clears = args.get(1).is_some_and(Json::is_null);
    let change = match clears {
        true => RetentionChange::default(),
        false => RetentionChange::read(args.options(1)?)?,
    };
    call.caller.may(RequiredScope::Write)?;
    let namespace = call.caller.namespace()?;
    let action = Problem::of("set retention");
    let rule = match clears {
        true => Retention::default(),
        false => {
            let known = namespace.retention(target.of()).await.map_err(&action)?;
            change.of(known.unwrap_or_default())
        }
    };
    let rule = (rule != Retention::default()).then(|| rule.bounded());
    namespace.set_retention(target.of(), rule).await.map_err(&action)?;
    Ok(RpcResponse::Text(told(rule)))
}

async fn get(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "retention.get requires 1 argument: streamName")?;
    let target = RuleTarget::read(call.args)?;
    call.caller.may(RequiredScope::Read)?;
    let rule = call.caller.namespace()?.retention(target.of()).await;
    Ok(RpcResponse::Text(told(rule.map_err(Problem::of("get retention"))?)))
}

/// For each part: whether it is named, and its new value.
#[derive(Debug, Default, PartialEq, Eq)]
struct RetentionChange {
    max_age: Option<Option<i64>>,
    max_count: Option<Option<u64>>,
    truncate_before: Option<Option<u64>>,
}

impl RetentionChange {
    fn read(options: CallOptions<'_>) -> Result<RetentionChange> {
        let named = |name: &str, other: &str| options.get(name).or_else(|| options.get(other));
        let whole = |json: Json<'_>, told: &str, least: i64| match json {
            null if null.is_null() => Ok(None),
            json => {
                let number = json.integer().filter(|number| *number >= least);
                let wrong = || Problem::invalid(format!("options.{told} must be a number >= {least}"));
                number.map(|number| Some(number.unsigned_abs())).ok_or_else(wrong)
            }
        };
        Ok(RetentionChange {
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
        let options = CallOptions::of(Json::new(r#"{"$maxCount":5,"maxAge":null}"#));
        let change = RetentionChange::read(options).unwrap();
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
