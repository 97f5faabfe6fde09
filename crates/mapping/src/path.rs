//! Paths into documents: `a.b.0`. A path that does not exist reads as null and is not a fault.

use std::borrow::Cow;

use thalweg_record::{Text, Value};

use crate::view;

/// One segment: a member of an object, or an element of an array if the name is a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PathSegment {
    pub name: Text,
    pub index: Option<usize>,
}

impl PathSegment {
    pub fn new(name: impl Into<Text>) -> PathSegment {
        let name = name.into();
        let digits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
        let index = if digits { name.parse().ok() } else { None };
        PathSegment { name, index }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Path(pub Vec<PathSegment>);

impl Path {
    /// Parses dot notation, in which `~1` stands for a dot within a name and `~0` for a tilde.
    pub fn dotted(text: &str) -> Path {
        if text.is_empty() {
            return Path::default();
        }
        let name = |part: &str| {
            if part.contains('~') {
                Text::from(part.replace("~1", ".").replace("~0", "~"))
            } else {
                Text::new(part)
            }
        };
        Path(text.split('.').map(|part| PathSegment::new(name(part))).collect())
    }

    pub fn push(&mut self, segment: PathSegment) {
        self.0.push(segment);
    }

    /// Returns the value at the path, or null.
    pub fn read(&self, value: &Value) -> Value {
        walk(&self.0, value).map_or(Value::Null, Cow::into_owned)
    }

    pub fn exists(&self, value: &Value) -> bool {
        walk(&self.0, value).is_some()
    }

    /// Formats the path as `this.a.b`, with quotes around names that need them.
    pub fn show(&self, start: &str) -> String {
        let mut shown = start.to_owned();
        for segment in &self.0 {
            shown.push('.');
            if is_plain(&segment.name) {
                shown.push_str(&segment.name);
            } else {
                thalweg_record::json::write_string(&segment.name, &mut shown);
            }
        }
        shown
    }
}

pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(crate) fn walk<'v>(segments: &[PathSegment], value: &'v Value) -> Option<Cow<'v, Value>> {
    let mut at = value;
    for (i, segment) in segments.iter().enumerate() {
        at = match at {
            Value::Object(object) => object.get(&segment.name)?,
            Value::Array(values) => values.get(segment.index?)?,
            Value::Guid(_) | Value::Structured(_) => {
                let unfolded = view::unfold(at);
                let rest = segments.get(i..)?;
                return walk(rest, &unfolded).map(|found| Cow::Owned(found.into_owned()));
            }
            _ => return None,
        };
    }
    Some(Cow::Borrowed(at))
}
