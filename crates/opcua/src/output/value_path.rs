//! Where a mapping finds its value in a message.

use std::sync::Arc;

use thalweg_record::{Object, Payload, Value, json};

/// `valueFrom`: a member of the payload, otherwise a path into it such as `setpoints.0.speed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValuePath(String);

impl ValuePath {
    pub fn new(name: String) -> ValuePath {
        ValuePath(name)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn find<'v>(&self, object: &'v Object) -> Option<&'v Value> {
        if let Some(member) = object.get(&self.0) {
            return Some(member);
        }
        let (first, rest) = self.0.split_once('.')?;
        rest.split('.').try_fold(object.get(first)?, |value, step| match value {
            Value::Object(object) => object.get(step),
            Value::Array(values) => values.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }
}

/// Returns a payload as an object; `None` if it is none.
pub(super) fn object(payload: &Payload) -> Option<Arc<Object>> {
    let object = |value| match value {
        Value::Object(object) => Some(object),
        _ => None,
    };
    match payload {
        Payload::Raw(bytes) => object(json::parse(bytes).ok()?),
        Payload::Value(value) => object(value.clone()),
        Payload::Sample { value, time_ms } => {
            let mut sample = Object::with_capacity(2);
            sample.push_new("value", value.clone());
            sample.push_new("timestamp_ms", Value::I64(*time_ms));
            Some(Arc::new(sample))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(payload: &str, field: &str) -> Option<String> {
        let object = object(&Payload::Raw(payload.to_owned().into()))?;
        ValuePath::new(field.to_owned()).find(&object).map(json::to_string)
    }

    #[test]
    fn a_member_comes_before_a_path_and_a_path_leads_through_objects_and_arrays() {
        let payload = r#"{"a": {"b": [1, {"c": 2}], "": 3}, "a.b": 4, "x": null}"#;
        for (field, value) in [
            ("a.b", Some("4")),
            ("a.b.0", Some("1")),
            ("a.b.1.c", Some("2")),
            ("a.b.2", None),
            ("x", Some("null")),
            ("x.y", None),
            ("a.", Some("3")),
            ("b", None),
        ] {
            assert_eq!(found(payload, field).as_deref(), value, "{field}");
        }
    }

    #[test]
    fn only_objects_have_fields() {
        for payload in ["7", "[1]", "\"a\"", "null", "", "{\"a\": 1", "{\"a\": 1} x"] {
            assert!(object(&Payload::Raw(payload.into())).is_none(), "{payload}");
        }
        assert!(object(&Payload::Value(Value::Null)).is_none());
    }

    #[test]
    fn a_sample_has_its_value_and_its_time() {
        let value = Value::U64(u64::MAX);
        let sample = Payload::Sample {
            value: value.clone(),
            time_ms: 5,
        };
        let object = object(&sample).unwrap();
        let of = |name: &str| ValuePath::new(name.to_owned()).find(&object).cloned();
        assert_eq!((of("value"), of("timestamp_ms")), (Some(value), Some(Value::I64(5))));
    }
}
