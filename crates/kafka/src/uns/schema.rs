//! JSON schemas of contracts: compiled once, then applied to messages.
//!
//! This supports the keywords that constrain one value (types, limits, members, items, alternatives, references within
//! the schema), with the meaning that drafts 6 to 2020-12 share. A schema with any other keyword is rejected as a
//! whole, because a partial check would accept messages that the rest forbids. For why this is not a library, see
//! `docs/decisions/120-contract-schemas.md`.

mod compile;
mod number;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use number::{is_integer, is_multiple};

/// Maximum depth of nested references; a deeper schema is rejected.
const DEPTH_MAX: usize = 200;

pub struct Schema {
    root: Rule,
    /// Referenced rules, by number.
    named: Vec<Rule>,
}

/// A schema, or a part of one.
enum Rule {
    Always,
    Never,
    All(Box<Keywords>),
}

#[derive(Default)]
struct Keywords {
    types: Option<Vec<JsonType>>,
    allowed: Option<Vec<Value>>,
    reference: Option<usize>,
    number: Numbers,
    /// In characters.
    length: CountLimits,
    pattern: Option<Regex>,
    members: Members,
    items: Items,
    all_of: Vec<Rule>,
    any_of: Option<Vec<Rule>>,
    one_of: Option<Vec<Rule>>,
    not: Option<Rule>,
    condition: Option<Condition>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonType {
    Null,
    Boolean,
    Integer,
    Number,
    Text,
    Array,
    Object,
}

#[derive(Default)]
struct Numbers {
    minimum: Option<f64>,
    maximum: Option<f64>,
    above: Option<f64>,
    below: Option<f64>,
    multiple_of: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct CountLimits {
    min: Option<u64>,
    max: Option<u64>,
}

#[derive(Default)]
struct Members {
    count: CountLimits,
    required: Vec<String>,
    named: BTreeMap<String, Rule>,
    matching: Vec<(Regex, Rule)>,
    others: Option<Rule>,
    names: Option<Rule>,
}

#[derive(Default)]
struct Items {
    count: CountLimits,
    first: Vec<Rule>,
    others: Option<Rule>,
    are_unique: bool,
}

struct Condition {
    when: Rule,
    then: Option<Rule>,
    otherwise: Option<Rule>,
}

/// The position and description of a violation.
struct Violation {
    path: Vec<String>,
    what: String,
}

type ValidationResult = Result<(), Violation>;

fn wrong(what: impl Into<String>) -> ValidationResult {
    Err(Violation {
        path: Vec::new(),
        what: what.into(),
    })
}

impl Schema {
    pub fn parse(text: &str) -> Result<Schema, String> {
        compile::schema(text)
    }

    /// `Err` describes the position and the violation: `fields.value: expected number, got text`.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.rule(&self.root, value, 0).map_err(|Violation { mut path, what }| {
            path.reverse();
            let colon = if path.is_empty() { "" } else { ": " };
            format!("{}{colon}{what}", path.join("."))
        })
    }

    fn rule(&self, rule: &Rule, value: &Value, depth: usize) -> ValidationResult {
        let keywords = match rule {
            Rule::Always => return Ok(()),
            Rule::Never => return wrong("no value is allowed here"),
            Rule::All(keywords) => keywords,
        };
        if depth > DEPTH_MAX {
            return wrong(format!(
                "references of the schema are followed at most {DEPTH_MAX} deep"
            ));
        }
        let depth = depth + 1;
        keywords.kind(value)?;
        match value {
            Value::Number(number) => keywords.number.check(number)?,
            Value::String(text) => keywords.text(text)?,
            Value::Array(items) => self.items(&keywords.items, items, depth)?,
            Value::Object(members) => self.members(&keywords.members, members, depth)?,
            Value::Null | Value::Bool(_) => {}
        }
        if let Some(named) = keywords.reference.and_then(|number| self.named.get(number)) {
            self.rule(named, value, depth)?;
        }
        self.alternatives(keywords, value, depth)
    }

    fn alternatives(&self, keywords: &Keywords, value: &Value, depth: usize) -> ValidationResult {
        for rule in &keywords.all_of {
            self.rule(rule, value, depth)?;
        }
        let holds = |rule: &Rule| self.rule(rule, value, depth).is_ok();
        if let Some(rules) = &keywords.any_of
            && !rules.iter().any(holds)
        {
            return wrong(format!("none of {} alternatives matches", rules.len()));
        }
        if let Some(rules) = &keywords.one_of {
            let count = rules.iter().filter(|rule| holds(rule)).count();
            if count != 1 {
                return wrong(format!(
                    "{count} of {} alternatives match, exactly one must",
                    rules.len()
                ));
            }
        }
        if keywords.not.as_ref().is_some_and(holds) {
            return wrong("it matches the schema of \"not\"");
        }
        let Some(condition) = &keywords.condition else {
            return Ok(());
        };
        let branch = match holds(&condition.when) {
            true => &condition.then,
            false => &condition.otherwise,
        };
        branch.as_ref().map_or(Ok(()), |rule| self.rule(rule, value, depth))
    }

    fn members(&self, rules: &Members, members: &serde_json::Map<String, Value>, depth: usize) -> ValidationResult {
        rules.count.check(members.len() as u64, "members")?;
        if let Some(missing) = rules.required.iter().find(|name| !members.contains_key(*name)) {
            return wrong(format!("\"{missing}\" is missing"));
        }
        for (name, value) in members {
            let inside = |result: ValidationResult| {
                result.map_err(|mut wrong| {
                    wrong.path.push(name.clone());
                    wrong
                })
            };
            if let Some(rule) = &rules.names {
                inside(self.rule(rule, &Value::String(name.clone()), depth))?;
            }
            let named = rules.named.get(name);
            let matching = rules.matching.iter().filter(|(pattern, _)| pattern.is_match(name));
            let mut known = named.into_iter().chain(matching.map(|(_, rule)| rule)).peekable();
            if known.peek().is_none() {
                match &rules.others {
                    Some(Rule::Never) => return inside(wrong("the schema does not allow this member")),
                    Some(rule) => inside(self.rule(rule, value, depth))?,
                    None => {}
                }
            }
            for rule in known {
                inside(self.rule(rule, value, depth))?;
            }
        }
        Ok(())
    }

    fn items(&self, rules: &Items, items: &[Value], depth: usize) -> ValidationResult {
        rules.count.check(items.len() as u64, "items")?;
        for (index, item) in items.iter().enumerate() {
            let rule = rules.first.get(index).or(rules.others.as_ref());
            let checked = rule.map_or(Ok(()), |rule| self.rule(rule, item, depth));
            checked.map_err(|mut wrong| {
                wrong.path.push(index.to_string());
                wrong
            })?;
        }
        let repeats =
            |(index, item): (usize, &Value)| items.iter().skip(index + 1).any(|other| number::is_same(item, other));
        if rules.are_unique && items.iter().enumerate().any(repeats) {
            return wrong("two items are equal");
        }
        Ok(())
    }
}

impl Keywords {
    fn kind(&self, value: &Value) -> ValidationResult {
        if let Some(types) = &self.types
            && !types.iter().any(|kind| kind.is_of(value))
        {
            let names: Vec<&str> = types.iter().map(|kind| kind.name()).collect();
            return wrong(format!(
                "expected {}, got {}",
                names.join(" or "),
                JsonType::of(value).name()
            ));
        }
        match &self.allowed {
            Some(allowed) if !allowed.iter().any(|one| number::is_same(one, value)) => {
                let shown: Vec<String> = allowed.iter().take(5).map(Value::to_string).collect();
                wrong(format!("{value} is not one of {}", shown.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn text(&self, text: &str) -> ValidationResult {
        self.length.check(text.chars().count() as u64, "characters")?;
        match &self.pattern {
            Some(pattern) if !pattern.is_match(text) => wrong(format!("\"{text}\" does not match {pattern}")),
            _ => Ok(()),
        }
    }
}

impl Numbers {
    fn check(&self, number: &serde_json::Number) -> ValidationResult {
        let value = number.as_f64().unwrap_or(f64::NAN);
        let broken = [
            (self.minimum.filter(|limit| value < *limit), "less than"),
            (self.maximum.filter(|limit| value > *limit), "more than"),
            (self.above.filter(|limit| value <= *limit), "not more than"),
            (self.below.filter(|limit| value >= *limit), "not less than"),
            (
                self.multiple_of.filter(|step| !is_multiple(value, *step)),
                "not a multiple of",
            ),
        ];
        match broken.into_iter().find_map(|(limit, how)| Some((limit?, how))) {
            Some((limit, how)) => wrong(format!("{number} is {how} {limit}")),
            None => Ok(()),
        }
    }
}

impl CountLimits {
    fn check(self, count: u64, of: &str) -> ValidationResult {
        match (self.min, self.max) {
            (Some(min), _) if count < min => wrong(format!("{count} {of}, at least {min} are needed")),
            (_, Some(max)) if count > max => wrong(format!("{count} {of}, at most {max} are allowed")),
            _ => Ok(()),
        }
    }
}

impl JsonType {
    fn of(value: &Value) -> JsonType {
        match value {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Number(_) => JsonType::Number,
            Value::String(_) => JsonType::Text,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    fn is_of(self, value: &Value) -> bool {
        match (self, value) {
            (JsonType::Integer, Value::Number(number)) => is_integer(number),
            _ => self == JsonType::of(value),
        }
    }

    /// The name in schemas.
    fn name(self) -> &'static str {
        match self {
            JsonType::Null => "null",
            JsonType::Boolean => "boolean",
            JsonType::Integer => "integer",
            JsonType::Number => "number",
            JsonType::Text => "string",
            JsonType::Array => "array",
            JsonType::Object => "object",
        }
    }
}

#[cfg(test)]
mod tests;
