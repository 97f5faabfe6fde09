//! Compiles the text of a schema to rules. An unsupported part is an error with its position.

use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::{Condition, CountLimits, DEPTH_MAX, JsonType, Keywords, Rule, Schema};

/// Keywords that do not affect validation.
const NOTES: [&str; 15] = [
    "$comment",
    "$id",
    "$schema",
    "$defs",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    // An annotation by default in the drafts.
    "format",
    "readOnly",
    "title",
    "writeOnly",
];

/// Maximum parts of a schema; referenced parts count where they are defined.
const PARTS_MAX: usize = 10_000;

pub fn schema(text: &str) -> Result<Schema, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let mut compiler = SchemaCompiler {
        document: &document,
        numbers: HashMap::new(),
        named: Vec::new(),
        parts: 0,
        depth: 0,
    };
    let root = compiler.rule(&document, "#")?;
    let named = compiler.named.into_iter();
    Ok(Schema {
        root,
        // Each is set by the call that added it.
        named: named.map(|rule| rule.unwrap_or(Rule::Never)).collect(),
    })
}

struct SchemaCompiler<'d> {
    document: &'d Value,
    /// Numbers of the referenced parts.
    numbers: HashMap<String, usize>,
    named: Vec<Option<Rule>>,
    parts: usize,
    depth: usize,
}

impl SchemaCompiler<'_> {
    fn rule(&mut self, value: &Value, place: &str) -> Result<Rule, String> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(format!("it has more than {PARTS_MAX} parts"));
        }
        // The nesting of the text is limited, but a chain of references is not.
        if self.depth >= DEPTH_MAX {
            return Err(format!(
                "{place}: parts are nested more than {DEPTH_MAX} deep, references included; make it flatter"
            ));
        }
        self.depth += 1;
        let rule = match value {
            Value::Bool(true) => Ok(Rule::Always),
            Value::Bool(false) => Ok(Rule::Never),
            Value::Object(members) => self
                .keywords(members, place)
                .map(|keywords| Rule::All(Box::new(keywords))),
            _ => Err(format!("{place}: a schema is an object, true or false")),
        };
        self.depth -= 1;
        rule
    }

    fn keywords(&mut self, members: &Map<String, Value>, place: &str) -> Result<Keywords, String> {
        let mut out = Keywords::default();
        for (name, value) in members {
            let place = format!("{place}/{name}");
            if !self.keyword(&mut out, members, name, value, &place)? && !NOTES.contains(&name.as_str()) {
                return Err(format!("{place}: the keyword is not understood"));
            }
        }
        Ok(out)
    }

    /// Returns `false` for an unknown keyword.
    fn keyword(
        &mut self,
        out: &mut Keywords,
        members: &Map<String, Value>,
        name: &str,
        value: &Value,
        place: &str,
    ) -> Result<bool, String> {
        match name {
            "type" => out.types = Some(types(value, place)?),
            "enum" => out.allowed = Some(array(value, place)?.clone()),
            "const" => out.allowed = Some(vec![value.clone()]),
            "$ref" => out.reference = Some(self.reference(value, place)?),
            "pattern" => out.pattern = Some(pattern(text(value, place)?, place)?),
            "allOf" => out.all_of = self.rules(value, place)?,
            "anyOf" => out.any_of = Some(self.rules(value, place)?),
            "oneOf" => out.one_of = Some(self.rules(value, place)?),
            "not" => out.not = Some(self.rule(value, place)?),
            "if" => out.condition = Some(self.condition(value, members, place)?),
            // Read with their `if`.
            "then" | "else" => {}
            _ => return Ok(limit(out, name, value, place)? || self.parts_of(out, members, name, value, place)?),
        }
        Ok(true)
    }

    /// Keywords for members and items.
    fn parts_of(
        &mut self,
        out: &mut Keywords,
        members: &Map<String, Value>,
        name: &str,
        value: &Value,
        place: &str,
    ) -> Result<bool, String> {
        match name {
            "required" => {
                let names = array(value, place)?
                    .iter()
                    .map(|name| text(name, place).map(str::to_owned));
                out.members.required = names.collect::<Result<_, _>>()?;
            }
            "properties" => out.members.named = self.rules_by_name(value, place)?.into_iter().collect(),
            "patternProperties" => {
                let rules = self.rules_by_name(value, place)?.into_iter();
                let matching = rules.map(|(name, rule)| Ok((pattern(&name, place)?, rule)));
                out.members.matching = matching.collect::<Result<_, String>>()?;
            }
            "additionalProperties" => out.members.others = Some(self.rule(value, place)?),
            "propertyNames" => out.members.names = Some(self.rule(value, place)?),
            "prefixItems" => out.items.first = self.rules(value, place)?,
            // Before `prefixItems` existed, a list here meant the first items.
            "items" if value.is_array() => out.items.first = self.rules(value, place)?,
            "items" => out.items.others = Some(self.rule(value, place)?),
            "additionalItems" if members.get("items").is_some_and(Value::is_array) => {
                out.items.others = Some(self.rule(value, place)?);
            }
            "additionalItems" => {}
            "uniqueItems" => out.items.are_unique = value == &Value::Bool(true),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn rules(&mut self, value: &Value, place: &str) -> Result<Vec<Rule>, String> {
        let values = array(value, place)?.iter().enumerate();
        values
            .map(|(index, value)| self.rule(value, &format!("{place}/{index}")))
            .collect()
    }

    fn rules_by_name(&mut self, value: &Value, place: &str) -> Result<Vec<(String, Rule)>, String> {
        let members = expected(value.as_object(), place, "an object")?.iter();
        members
            .map(|(name, value)| Ok((name.clone(), self.rule(value, &format!("{place}/{name}"))?)))
            .collect()
    }

    fn condition(&mut self, when: &Value, members: &Map<String, Value>, place: &str) -> Result<Condition, String> {
        let when = self.rule(when, place)?;
        let mut branch = |name| members.get(name).map(|value| self.rule(value, place)).transpose();
        Ok(Condition {
            when,
            then: branch("then")?,
            otherwise: branch("else")?,
        })
    }

    /// Returns the number of a referenced part. It is compiled once, even if it refers to itself.
    fn reference(&mut self, value: &Value, place: &str) -> Result<usize, String> {
        let target = text(value, place)?;
        if let Some(number) = self.numbers.get(target) {
            return Ok(*number);
        }
        let outside = || format!("{place}: \"{target}\" is not a place in this schema");
        let pointer = target.strip_prefix('#').ok_or_else(outside)?;
        let document = self.document;
        let found = document.pointer(pointer).ok_or_else(outside)?;
        let number = self.named.len();
        self.numbers.insert(target.to_owned(), number);
        self.named.push(None);
        let rule = self.rule(found, target)?;
        if let Some(room) = self.named.get_mut(number) {
            *room = Some(rule);
        }
        Ok(number)
    }
}

/// Keywords with a number. Returns `false` for others.
fn limit(out: &mut Keywords, name: &str, value: &Value, place: &str) -> Result<bool, String> {
    let (count, is_least) = match name {
        "minLength" => (&mut out.length, true),
        "maxLength" => (&mut out.length, false),
        "minProperties" => (&mut out.members.count, true),
        "maxProperties" => (&mut out.members.count, false),
        "minItems" => (&mut out.items.count, true),
        "maxItems" => (&mut out.items.count, false),
        _ => return number(out, name, value, place),
    };
    let CountLimits { min, max } = count;
    let number = expected(value.as_u64(), place, "a whole number")?;
    *(if is_least { min } else { max }) = Some(number);
    Ok(true)
}

fn number(out: &mut Keywords, name: &str, value: &Value, place: &str) -> Result<bool, String> {
    let limit = match name {
        "minimum" => &mut out.number.minimum,
        "maximum" => &mut out.number.maximum,
        "exclusiveMinimum" => &mut out.number.above,
        "exclusiveMaximum" => &mut out.number.below,
        "multipleOf" => &mut out.number.multiple_of,
        _ => return Ok(false),
    };
    // Draft 4 has `true` here.
    let number = expected(value.as_f64(), place, "a number")?;
    let legal = Some(number).filter(|number| name != "multipleOf" || *number > 0.0);
    *limit = Some(expected(legal, place, "a number above 0")?);
    Ok(true)
}

fn types(value: &Value, place: &str) -> Result<Vec<JsonType>, String> {
    let of = |value: &Value| match text(value, place)? {
        "null" => Ok(JsonType::Null),
        "boolean" => Ok(JsonType::Boolean),
        "integer" => Ok(JsonType::Integer),
        "number" => Ok(JsonType::Number),
        "string" => Ok(JsonType::Text),
        "array" => Ok(JsonType::Array),
        "object" => Ok(JsonType::Object),
        other => Err(format!("{place}: there is no type \"{other}\"")),
    };
    match value {
        Value::Array(all) => all.iter().map(of).collect(),
        one => Ok(vec![of(one)?]),
    }
}

fn pattern(text: &str, place: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|_| format!("{place}: the pattern \"{text}\" is not understood"))
}

fn text<'v>(value: &'v Value, place: &str) -> Result<&'v str, String> {
    expected(value.as_str(), place, "text")
}

fn array<'v>(value: &'v Value, place: &str) -> Result<&'v Vec<Value>, String> {
    expected(value.as_array(), place, "a list")
}

fn expected<T>(found: Option<T>, place: &str, what: &str) -> Result<T, String> {
    found.ok_or_else(|| format!("{place}: expected {what}"))
}
