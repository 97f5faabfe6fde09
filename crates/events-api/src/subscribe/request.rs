//! Parses the address and headers of a subscriber.

use axum::http::HeaderName;
use axum::http::request::Parts;
use thalweg_events::names::{GroupMember, is_category};

use crate::args::TYPES_MAX;
use crate::query_value;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Contains the value of [`TYPES_MAX`].
const TOO_MANY_TYPES: &str = "types must have at most 255 entries";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SubscribeRequest {
    pub of: SubscribeTarget,
    /// The first position for a stream, and the first global position otherwise.
    pub position: u64,
    /// The global position after which the subscription resumes, in place of `position`.
    pub resumed: Option<u64>,
    /// With `all`: also sends what was stored before.
    pub catchup: bool,
    pub filter: MessageFilter,
    /// Whole messages instead of pokes.
    pub data: bool,
    /// Of the waiting pokes, sends only the newest of each stream.
    pub coalesce: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubscribeTarget {
    Stream(Box<str>),
    Category(Box<str>),
    All,
    /// The request can match nothing.
    Nothing,
}

/// Which of these messages are sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MessageFilter {
    /// Empty: any type.
    pub types: Vec<String>,
    pub correlation: Option<Box<str>>,
    pub member: Option<GroupMember>,
}

impl MessageFilter {
    pub fn passes(&self, kind: &str, correlation: Option<&str>, group: Option<u64>) -> bool {
        (self.types.is_empty() || self.types.iter().any(|wanted| wanted == kind))
            && (self.correlation.is_none() || self.correlation.as_deref() == correlation)
            && self
                .member
                .is_none_or(|member| group.is_some_and(|hash| member.owns_hash(hash)))
    }
}

impl SubscribeRequest {
    /// Errors are returned as the client shows them.
    pub fn read(request: &Parts) -> Result<SubscribeRequest, &'static str> {
        let query = request.uri.query();
        // An empty value counts as absent.
        let value = |name: &str| query_value(query, name).filter(|value| !value.is_empty());
        let is_true = |name: &str| value(name).as_deref() == Some("true");
        let (stream, category, all) = (value("stream"), value("category"), is_true("all"));
        if stream.is_none() && category.is_none() && !all {
            return Err("Either 'stream', 'category', or 'all=true' parameter required");
        }
        if all && (stream.is_some() || category.is_some()) {
            return Err("Cannot combine 'all' with 'stream' or 'category'");
        }
        if stream.is_some() && category.is_some() {
            return Err("Cannot specify both 'stream' and 'category'");
        }
        let position = value("position").map(|value| position(&value));
        let position = position
            .map_or(Some(0), |parsed| parsed)
            .ok_or("Invalid position parameter")?;
        let consumer = natural(value("consumer"), "Invalid consumer parameter")?;
        let size = natural(value("size"), "Invalid size parameter")?;
        let member = match (consumer, size) {
            (0, 0) => None,
            (number, of) => {
                let member = GroupMember::new(number, of);
                Some(member.ok_or("Invalid consumer group: member must be < size")?)
            }
        };
        let correlation = value("correlation").map(String::into_boxed_str);
        let of = match (stream, category) {
            // A correlation is a category, too.
            _ if correlation.as_ref().is_some_and(|name| !is_category(name)) => SubscribeTarget::Nothing,
            (None, Some(category)) if !is_category(&category) => SubscribeTarget::Nothing,
            (Some(stream), _) => SubscribeTarget::Stream(stream.into()),
            (None, Some(category)) => SubscribeTarget::Category(category.into()),
            (None, None) => SubscribeTarget::All,
        };
        let header = request.headers.get(LAST_EVENT_ID);
        let header = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let types = value("types").unwrap_or_default();
        let types = types.split(',').filter(|kind| !kind.is_empty());
        if types.clone().nth(TYPES_MAX).is_some() {
            return Err(TOO_MANY_TYPES);
        }
        Ok(SubscribeRequest {
            filter: MessageFilter {
                types: types.map(str::to_owned).collect(),
                correlation,
                member: member.filter(|_| matches!(of, SubscribeTarget::Category(_))),
            },
            of,
            position,
            // Some clients send an invalid header; then the parameter in the address counts.
            resumed: header.or_else(|| value("lastEventId")?.trim().parse().ok()),
            catchup: is_true("catchup"),
            data: is_true("data"),
            coalesce: is_true("coalesce"),
        })
    }
}

/// Negative positions mean the first position.
fn position(value: &str) -> Option<u64> {
    let signed = value.parse::<i64>().map(|value| value.max(0).unsigned_abs());
    signed.or_else(|_| value.parse()).ok()
}

fn natural(value: Option<String>, wrong: &'static str) -> Result<u64, &'static str> {
    let parsed = value.map_or(Ok(0), |value| value.parse::<i64>());
    parsed.ok().and_then(|value| u64::try_from(value).ok()).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn read(query: &str, last_event_id: Option<&str>) -> Result<SubscribeRequest, &'static str> {
        let mut request = Request::builder().uri(format!("/subscribe?{query}"));
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        SubscribeRequest::read(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn mistakes_are_told_in_their_order() {
        let required = "Either 'stream', 'category', or 'all=true' parameter required";
        for (query, message) in [
            ("", required),
            ("all=1", required),
            ("stream=&category=", required),
            (
                "all=true&stream=s&position=x",
                "Cannot combine 'all' with 'stream' or 'category'",
            ),
            (
                "stream=s&category=c&position=x",
                "Cannot specify both 'stream' and 'category'",
            ),
            ("stream=s&position=x&consumer=x", "Invalid position parameter"),
            ("stream=s&position=1.5", "Invalid position parameter"),
            ("category=c&consumer=x&size=x", "Invalid consumer parameter"),
            ("category=c&consumer=-1&size=2", "Invalid consumer parameter"),
            ("category=c&consumer=3&size=-2", "Invalid size parameter"),
            (
                "category=c&consumer=2&size=2",
                "Invalid consumer group: member must be < size",
            ),
            ("category=c&consumer=1", "Invalid consumer group: member must be < size"),
        ] {
            assert_eq!(read(query, None).unwrap_err(), message, "{query}");
        }
    }

    /// Each type is compared with every message that is read, for every caller with read access.
    #[test]
    fn types_are_bounded() {
        let of = |count: usize| read(&format!("all=true&types={}", vec!["T"; count].join(",")), None);
        assert_eq!(of(TYPES_MAX).unwrap().filter.types.len(), TYPES_MAX);
        assert_eq!(of(TYPES_MAX + 1).unwrap_err(), TOO_MANY_TYPES);
        assert!(TOO_MANY_TYPES.contains(&TYPES_MAX.to_string()));
    }

    #[test]
    fn a_group_is_one_only_with_a_size_and_in_a_category() {
        for (query, member) in [
            ("category=c&size=2", Some((0, 2))),
            ("category=c&consumer=1&size=2", Some((1, 2))),
            ("category=c&consumer=0", None),
            ("category=c&size=0", None),
            ("stream=c-1&consumer=1&size=2", None),
        ] {
            let member = member.map(|(number, of)| GroupMember { number, of });
            assert_eq!(read(query, None).unwrap().filter.member, member, "{query}");
        }
    }

    #[test]
    fn any_position_is_taken_and_a_bad_header_hides_no_parameter() {
        for (query, expected) in [("-7", 0), ("0", 0), ("18446744073709551615", u64::MAX)] {
            assert_eq!(
                read(&format!("all=true&position={query}"), None).unwrap().position,
                expected
            );
        }
        for (query, header, expected) in [
            ("all=true", None, None),
            ("all=true", Some("7"), Some(7)),
            ("all=true&lastEventId=9", Some("7"), Some(7)),
            ("all=true&lastEventId=9", Some("seven"), Some(9)),
            ("all=true&lastEventId=nine", Some("seven"), None),
            ("all=true&lastEventId=18446744073709551615", None, Some(u64::MAX)),
        ] {
            assert_eq!(read(query, header).unwrap().resumed, expected, "{query} {header:?}");
        }
    }

    #[test]
    fn values_are_decoded_as_forms_are_and_taken_as_they_are_where_they_are_not_encoded() {
        for (query, stream) in [("stream=a+b%2Bc", "a b+c"), ("stream=a:b/é", "a:b/é")] {
            let query = query.replace('é', "%C3%A9");
            assert_eq!(read(&query, None).unwrap().of, SubscribeTarget::Stream(stream.into()));
        }
        let wanted = read("category=c&types=A,,B&correlation=d&data=true&coalesce=true", None).unwrap();
        assert_eq!(wanted.filter.types, ["A", "B"]);
        assert!(wanted.data && wanted.coalesce && !wanted.catchup);
        for query in ["category=a-b", "all=true&correlation=a-b", "stream=s&correlation=a-b"] {
            assert_eq!(read(query, None).unwrap().of, SubscribeTarget::Nothing, "{query}");
        }
    }
}
