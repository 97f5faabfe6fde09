//! What HTTP shows of all `topic_browser`s of the process: the topics that they know, page by page.

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::RwLock;
use serde::Deserialize;
use thalweg_flow::Component;
use thalweg_record::{Object, Text, Value, json};
use thalweg_telemetry::{Access, HttpRoutes, Mount};

use super::Shared;
use super::event::{Event, id_text};
use crate::topic;

const TOPICS: &str = "/api/v1/topics";
/// Entries of a page if the request does not say, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// All `topic_browser`s of the process. The assembly makes one and serves it; its route shows those that come later, too.
#[derive(Default)]
pub struct TopicDirectory {
    browsers: Browsers,
}

type Browsers = Arc<RwLock<Vec<Listed>>>;

struct Listed {
    /// Its flow if the file has several, and its label or its path in the configuration.
    processor: String,
    /// Topics of a flow that has ended are gone with it.
    shared: Weak<Shared>,
}

impl TopicDirectory {
    /// Takes the place of an earlier run of the same processor.
    pub(super) fn add(&self, component: &Component, shared: &Arc<Shared>) {
        let title = component.title();
        let processor = match &component.id.flow {
            Some(flow) => format!("{flow}/{title}"),
            None => title.to_owned(),
        };
        let mut browsers = self.browsers.write();
        browsers.retain(|known| known.processor != processor);
        browsers.push(Listed {
            processor,
            shared: Arc::downgrade(shared),
        });
    }

    /// The page as JSON. Not by way of another type of values, since numbers keep every digit in this one.
    pub(super) fn page(&self, page: &Page) -> String {
        let (offset, limit) = (page.offset.unwrap_or(0), page.limit.unwrap_or(LIMIT).min(LIMIT_MAX));
        let (mut total, mut items) = (0, Vec::new());
        for listed in self.browsers.read().iter() {
            let is_wanted = page.processor.as_ref().is_none_or(|wanted| *wanted == listed.processor);
            let Some(shared) = listed.shared.upgrade().filter(|_| is_wanted) else {
                continue;
            };
            let mut topics = shared.gathered.lock().topics();
            topics.sort_unstable_by(|a, b| a.topic.cmp(&b.topic));
            let shown = topics
                .iter()
                .skip(offset.saturating_sub(total))
                .take(limit - items.len());
            items.extend(shown.map(|newest| topic_view(&listed.processor, newest)));
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

/// What a request may ask for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Page {
    /// One processor by its label or path; all if not given.
    pub processor: Option<String>,
    pub offset: Option<usize>,
    pub limit: Option<usize>,
}

fn topic_view(processor: &str, newest: &Event) -> Value {
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
            "The topics that topic_browser processors know and what they said last, page by page: ?processor=, \
             ?offset=, ?limit="
                .to_owned(),
        )]
    }
}

async fn topics(State(directory): State<Arc<TopicDirectory>>, Query(page): Query<Page>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], directory.page(&page))
}
