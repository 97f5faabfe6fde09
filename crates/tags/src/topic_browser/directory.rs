//! The topics of all `topic_browser`s of the process over HTTP, page by page.

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::RwLock;
use serde::Deserialize;
use thalweg_flow::Component;
use thalweg_kit::blocking;
use thalweg_record::{Object, Text, Value, json};
use thalweg_telemetry::{Access, HttpRoutes, Mount};

use super::BrowserState;
use super::event::{TopicEvent, id_text};
use crate::topic;

const TOPICS: &str = "/api/v1/topics";
/// Default and maximum number of entries of a page.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// All `topic_browser`s of the process. The assembly creates one directory and serves it; its route also shows browsers
/// that are added later.
#[derive(Default)]
pub struct TopicDirectory {
    browsers: BrowserList,
}

type BrowserList = Arc<RwLock<Vec<BrowserEntry>>>;

struct BrowserEntry {
    /// Its flow if the file has several, and its label or its path in the configuration.
    processor: String,
    /// Topics of a flow that has ended are gone with it.
    shared: Weak<BrowserState>,
}

impl TopicDirectory {
    /// Replaces an earlier run of the same processor.
    pub(super) fn add(&self, component: &Component, shared: &Arc<BrowserState>) {
        let title = component.title();
        let processor = match &component.id.flow {
            Some(flow) => format!("{flow}/{title}"),
            None => title.to_owned(),
        };
        let mut browsers = self.browsers.write();
        browsers.retain(|known| known.processor != processor);
        browsers.push(BrowserEntry {
            processor,
            shared: Arc::downgrade(shared),
        });
    }

    /// The page as JSON. Written directly, because another value type would not keep every digit of numbers.
    pub(super) fn page(&self, page: &PageQuery) -> String {
        let (offset, limit) = (page.offset.unwrap_or(0), page.limit.unwrap_or(LIMIT).min(LIMIT_MAX));
        let (mut total, mut items) = (0, Vec::new());
        for listed in self.browsers.read().iter() {
            let is_wanted = page.processor.as_ref().is_none_or(|wanted| *wanted == listed.processor);
            let Some(shared) = listed.shared.upgrade().filter(|_| is_wanted) else {
                continue;
            };
            let mut topics = shared.gathered.lock().topics();
            let shown = sorted_part(&mut topics, offset.saturating_sub(total), limit - items.len());
            items.extend(shown.iter().map(|newest| topic_view(&listed.processor, newest)));
            total += topics.len();
        }
        let count = |n: usize| Value::U64(n as u64);
        json::to_string(&object([
            ("total", count(total)),
            ("offset", count(offset)),
            ("limit", count(limit)),
            ("items", items.into()),
        ]))
    }
}

/// The parameters of a request.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    /// One processor by its label or path; all if not given.
    pub processor: Option<String>,
    pub offset: Option<usize>,
    pub limit: Option<usize>,
}

/// The `count` topics from index `first` on, in name order. The others are only partitioned, because a page shows few
/// of very many topics.
fn sorted_part(topics: &mut [Arc<TopicEvent>], first: usize, count: usize) -> &[Arc<TopicEvent>] {
    let by_name = |a: &Arc<TopicEvent>, b: &Arc<TopicEvent>| a.topic.cmp(&b.topic);
    let mut part = topics;
    if first > 0 {
        if first >= part.len() {
            return &[];
        }
        part.select_nth_unstable_by(first, by_name);
        part = part.get_mut(first..).unwrap_or_default();
    }
    if count < part.len() {
        part.select_nth_unstable_by(count, by_name);
        part = part.get_mut(..count).unwrap_or_default();
    }
    part.sort_unstable_by(by_name);
    part
}

fn topic_view(processor: &str, newest: &TopicEvent) -> Value {
    let text = |text: &str| Value::text(text);
    let mut members = vec![
        ("processor", text(processor)),
        ("id", Value::text(id_text(newest.id))),
        ("topic", Value::Text(newest.topic.clone())),
    ];
    if let Ok((place, name)) = topic::parts(&newest.topic) {
        members.push(("level0", text(place.level0())));
        members.push((
            "sublevels",
            place.sublevels().map(Value::from).collect::<Vec<_>>().into(),
        ));
        members.push(("contract", text(place.contract)));
        if !place.path.is_empty() {
            members.push(("virtual_path", text(place.path)));
        }
        members.push(("name", text(name)));
    }
    let metadata = newest.message.meta.iter();
    let metadata = metadata.map(|(key, text)| (Text::from(key), Value::text(text.as_ref())));
    let (value, timestamp_ms) = newest.last();
    members.push(("metadata", metadata.collect::<Object>().into()));
    members.push(("value", value));
    members.push(("timestamp_ms", Value::I64(timestamp_ms)));
    object(members)
}

fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let members = members.into_iter();
    let members = members.map(|(name, value)| (Text::new_static(name), value));
    members.collect::<Object>().into()
}

impl HttpRoutes for TopicDirectory {
    fn mounts(&self) -> Vec<Mount> {
        let state = Arc::new(TopicDirectory {
            browsers: self.browsers.clone(),
        });
        vec![Mount {
            router: Router::new().route(TOPICS, get(topics)).with_state(state),
            access: Access::ReadWrite,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![(
            TOPICS.to_owned(),
            "The topics of topic_browser processors with their latest event, page by page: ?processor=, ?offset=, \
             ?limit="
                .to_owned(),
        )]
    }
}

/// Scanning very many topics takes longer than a task may block the runtime.
pub(super) async fn topics(State(directory): State<Arc<TopicDirectory>>, Query(page): Query<PageQuery>) -> Response {
    match blocking::spawn(move || directory.page(&page)).await {
        Ok(page) => ([(CONTENT_TYPE, "application/json")], page).into_response(),
        // It panicked, or the process is stopping.
        Err(_ended) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_record::{Message, Payload};

    use super::super::event::EventContent;
    use super::*;

    #[test]
    fn a_topic_does_not_keep_what_its_newest_message_came_in() {
        let batch = bytes::Bytes::from(vec![b'1'; 1000]);
        let message = Message::new(Payload::Raw(batch.slice(..1)), Default::default());
        let event = TopicEvent::new(message, "topic".into(), 0, EventContent::Relational, 0);
        assert!(batch.is_unique() && matches!(&event.message.payload, Payload::Raw(bytes) if bytes == "1"));
    }

    proptest! {
        #[test]
        fn a_part_is_what_it_is_of_all_in_order(
            names in prop::collection::vec("[a-c]{0,4}", 0..40),
            first in 0usize..50,
            count in 0usize..50,
        ) {
            let event = |name: &String| {
                let message = Message::new(Payload::Value(Value::Null), Default::default());
                Arc::new(TopicEvent::new(message, name.as_str().into(), 0, EventContent::Relational, 0))
            };
            let mut topics: Vec<Arc<TopicEvent>> = names.iter().map(event).collect();
            let part: Vec<String> = sorted_part(&mut topics, first, count)
                .iter()
                .map(|event| event.topic.to_string())
                .collect();
            let mut all = names;
            all.sort();
            let expected: Vec<String> = all.into_iter().skip(first).take(count).collect();
            prop_assert_eq!(part, expected);
        }
    }
}
