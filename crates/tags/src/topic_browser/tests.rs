//! Scenarios: from YAML and messages to bundles and mass balance; and the wire form, byte by byte and parsed again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message as _;
use thalweg_record::{AckResult, BalanceCounts, FlowBalance, MetaMap, Metadata, Payload, Value, json};
use thalweg_telemetry::HttpRoutes as _;

use axum::extract::{Query, State};
use axum::http::StatusCode;

use super::bundle::{BundleEvent, BundleTopic, PayloadFormat, RelationalPayload, ScalarType};
use super::directory::PageQuery;
use super::event::id_text;
use super::*;
use crate::tag_processor::tests::with_config;

/// A bundle as a consumer reads it.
#[derive(Clone, PartialEq, prost::Message)]
struct Bundle {
    #[prost(message, optional, tag = "1")]
    topics: Option<Topics>,
    #[prost(message, optional, tag = "2")]
    events: Option<Events>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Topics {
    #[prost(btree_map = "string, message", tag = "1")]
    entries: BTreeMap<String, BundleTopic>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Events {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<BundleEvent>,
}

/// The bytes of a bundle, from its text.
fn bytes_of(text: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.split('\n').collect();
    let [start, hex, data_end, time, end] = lines.as_slice() else {
        panic!("{} lines", lines.len());
    };
    assert_eq!(
        (*start, *data_end, *end),
        ("STARTSTARTSTART", "ENDDATAENDDATAENDDATA", "ENDENDENDEND")
    );
    assert!(time.parse::<i64>().unwrap() > 1_700_000_000_000);
    assert!(hex.len() % 2 == 0 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn decoded(message: &Message) -> (BTreeMap<String, BundleTopic>, Vec<BundleEvent>) {
    let bundle = Bundle::decode(bytes_of(&message.bytes()).as_slice()).unwrap();
    (bundle.topics.unwrap().entries, bundle.events.unwrap().entries)
}

fn limits(yaml: &str) -> BrowserLimits {
    let yaml = format!("  - topic_browser: {yaml}\n");
    with_config(&yaml, |node, context| read(node, context)).unwrap()
}

/// Instances of one processor, in one flow.
struct Run {
    spec: TopicBrowserSpec,
    browsers: Vec<TopicBrowser>,
    balance: Arc<FlowBalance>,
    outcomes: Arc<Mutex<Vec<AckResult>>>,
}

impl Run {
    fn on_threads(yaml: &str, threads: usize) -> Run {
        let spec = TopicBrowserSpec {
            limits: limits(yaml),
            directory: Arc::default(),
            shared: Mutex::default(),
        };
        let browser = |_| spec.browser(StageContext::for_tests("topic_browser"));
        Run {
            browsers: (0..threads).map(browser).collect(),
            spec,
            balance: Arc::default(),
            outcomes: Arc::default(),
        }
    }

    fn new(yaml: &str) -> Run {
        Run::on_threads(yaml, 1)
    }

    fn batch_on(&mut self, thread: usize, messages: Vec<Message>) -> Vec<Batch> {
        let outcomes = self.outcomes.clone();
        let ack = Ack::enter(&self.balance, messages.len(), move |outcome| {
            outcomes.lock().push(outcome)
        });
        let mut out = Vec::new();
        self.browsers[thread].process(Batch::new(messages, ack), &mut out);
        self.checked(out)
    }

    fn batch(&mut self, messages: Vec<Message>) -> Vec<Batch> {
        self.batch_on(0, messages)
    }

    fn checked(&self, out: Vec<Batch>) -> Vec<Batch> {
        assert!(out.iter().all(|batch| batch.len() == 1 && batch.ack.count() == 1));
        assert!(self.balance.snapshot().adds_up());
        out
    }

    fn flush_on(&mut self, thread: usize) -> Vec<Batch> {
        let mut out = Vec::new();
        self.browsers[thread].flush(&mut out);
        self.checked(out)
    }

    fn flush(&mut self) -> Vec<Batch> {
        self.flush_on(0)
    }

    fn counts(&self) -> BalanceCounts {
        self.balance.snapshot()
    }

    fn counters(&self) -> &TopicBrowserMetrics {
        &self.browsers[0].shared.counters
    }
}

/// The only bundle, delivered.
fn delivered(mut out: Vec<Batch>) -> Message {
    let mut batch = out.pop().unwrap();
    assert!(out.is_empty());
    batch.ack.delivered();
    batch.messages.pop().unwrap()
}

fn topic(name: &str) -> String {
    format!("umh.v1.acme._raw.{name}")
}

fn sample(name: &str, value: impl Into<Value>, time_ms: i64) -> Message {
    let value = value.into();
    let mut message = Message::new(Payload::Sample { value, time_ms }, Default::default());
    message.meta.set(key::UMH_TOPIC, topic(name));
    message
}

fn names(topics: &BTreeMap<String, BundleTopic>) -> Vec<&str> {
    let mut names: Vec<&str> = topics.values().map(|topic| topic.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Times of the samples among events.
fn times(events: &[BundleEvent]) -> Vec<i64> {
    events
        .iter()
        .map(|event| event.series.as_ref().unwrap().timestamp_ms)
        .collect()
}

#[test]
fn the_wire_form_is_the_documented_one() {
    let mut run = Run::new("{}");
    let mut message = Message::raw(r#"{"value":1.5,"timestamp_ms":1000}"#);
    for (key, text) in [
        ("umh_topic", "umh.v1.acme._raw.temp"),
        ("kafka_timestamp_ms", "7"),
        ("bridged_by", "gw"),
    ] {
        message.meta.set(key, text);
    }
    assert!(run.batch(vec![message]).is_empty());
    let bundle = delivered(run.flush());
    // The xxHash64 of "acme\0_raw\0temp\0".
    let id: &[u8] = b"\x0a\x10c05887292cd937ce";
    let [first, second, third]: [&[u8]; 3] = [
        b"\x10\x0a\x0abridged_by\x12\x02gw",
        b"\x17\x0a\x12kafka_timestamp_ms\x12\x017",
        b"\x22\x0a\x09umh_topic\x12\x15umh.v1.acme._raw.temp",
    ];
    let expected: Vec<u8> = [
        b"\x0a\x77\x0a\x75", // map of topics, its only entry
        id,
        b"\x12\x61\x0a\x04acme\x1a\x04_raw\x2a\x04temp",
        &[b"\x32", first, b"\x32", second, b"\x32", third].concat(),
        b"\x12\xa3\x01\x0a\xa0\x01", // events, the only one
        id,
        b"\x10\x01", // a series
        b"\x2a\x72",
        &[b"\x0a", first, b"\x0a", second, b"\x0a", third].concat(),
        b"\x12\x21{\"value\":1.5,\"timestamp_ms\":1000}",
        b"\x32\x02gw\x38\x07",                                           // bridged by, produced at
        b"\x52\x10\x08\x01\x12\x09\x09\0\0\0\0\0\0\xf8\x3f\x28\xe8\x07", // a number, its value and time
    ]
    .concat();
    assert_eq!(bytes_of(&bundle.bytes()), expected);
}

#[test]
fn ids_are_those_that_consumers_compute() {
    let id = |topic: &str| id_text(id_of(topic::parts(topic).unwrap()));
    assert_eq!(id("umh.v1.acme._raw.temp"), "c05887292cd937ce");
    assert_eq!(
        id("umh.v1.acme.plant.line4._historian_v2.motor.axis.speed"),
        "24a4a664cfb9811b"
    );
}

#[test]
fn scalars_are_series_and_other_objects_are_relational() {
    let mut run = Run::new("{max_events_per_topic_per_interval: 20}");
    let raw = |text: &str| {
        let mut message = Message::raw(text.to_owned());
        message.meta.set(key::UMH_TOPIC, topic("t"));
        message
    };
    let order = r#"{"order": 7, "value": 1, "timestamp_ms": 2}"#;
    run.batch(vec![
        sample("t", 0.0, 1),
        sample("t", false, -2),
        sample("t", "", 3),
        sample("t", 9_007_199_254_740_993_i64, 4),
        sample("t", Value::F32(0.1), 4),
        raw(r#"{"timestamp_ms": 5, "value": "on"}"#),
        raw(order),
        raw(r#"{"value": [1], "timestamp_ms": 6}"#),
        raw(r#"{"value": null, "timestamp_ms": 7}"#),
        raw(r#"{"value": 1, "timestamp_ms": "later"}"#),
    ]);
    let (_, events) = decoded(&delivered(run.flush()));
    let scalar = |at: usize| {
        let series = events[at].series.clone().unwrap();
        assert_eq!(events[at].format(), PayloadFormat::Series);
        (
            series.scalar(),
            series.number,
            series.truth,
            series.text,
            series.timestamp_ms,
        )
    };
    assert_eq!(scalar(0), (ScalarType::Number, Some(0.0), None, None, 1));
    assert_eq!(scalar(1), (ScalarType::Truth, None, Some(false), None, -2));
    assert_eq!(scalar(2), (ScalarType::Text, None, None, Some(String::new()), 3));
    assert_eq!(
        scalar(3).1,
        Some(9_007_199_254_740_992.0),
        "a double; the payload has all digits"
    );
    let payload = &events[3].raw.as_ref().unwrap().payload;
    assert_eq!(&payload[..], br#"{"value":9007199254740993,"timestamp_ms":4}"#);
    assert_eq!(scalar(4).1, Some(0.1), "the double that the payload's digits name");
    let payload = &events[4].raw.as_ref().unwrap().payload;
    assert_eq!(&payload[..], br#"{"value":0.1,"timestamp_ms":4}"#);
    assert_eq!(scalar(5).3.as_deref(), Some("on"));
    for event in &events[6..] {
        assert_eq!(
            (event.format(), event.series.is_none()),
            (PayloadFormat::Relational, true)
        );
    }
    let json = order.as_bytes().into();
    assert_eq!(events[6].relational, Some(RelationalPayload { json }));
}

#[test]
fn a_source_hears_of_an_event_when_its_bundle_was_delivered() {
    let mut run = Run::new("{}");
    assert!(run.batch(vec![sample("a", 1.0, 1), sample("b", 1.0, 1)]).is_empty());
    assert!(run.batch(vec![sample("c", 1.0, 1)]).is_empty());
    assert!(run.outcomes.lock().is_empty());
    assert_eq!(run.counts().in_flight, 3);
    let mut out = run.flush();
    assert!(run.outcomes.lock().is_empty(), "the bundle is on its way");
    assert_eq!(
        (run.counts().in_flight, run.counts().filtered(FilterReason::Bundled)),
        (1, 2)
    );
    out.pop().unwrap().ack.delivered();
    assert_eq!(*run.outcomes.lock(), [AckResult::Acked, AckResult::Acked]);
    assert_eq!((run.counts().out, run.counts().in_flight), (1, 0));
    run.batch(vec![sample("a", 2.0, 2)]);
    drop(run.flush());
    assert_eq!(
        run.outcomes.lock().last(),
        Some(&AckResult::Nacked),
        "a bundle that is lost loses its events"
    );
}

#[test]
fn newer_events_replace_older_ones_which_are_done_with_then() {
    let mut run = Run::new("{max_events_per_topic_per_interval: 2}");
    run.batch(vec![sample("a", 1.0, 1)]);
    run.batch(vec![sample("a", 1.0, 2), sample("b", 1.0, 9)]);
    assert!(run.outcomes.lock().is_empty());
    run.batch(vec![sample("a", 1.0, 3)]);
    assert_eq!(
        *run.outcomes.lock(),
        [AckResult::Acked],
        "nobody waits for the first one any more"
    );
    run.batch((4..10).map(|time| sample("a", 1.0, time)).collect());
    let (topics, events) = decoded(&delivered(run.flush()));
    assert_eq!(names(&topics), ["a", "b"]);
    assert_eq!(times(&events), [9, 8, 9], "b's, then the newest two of a");
    assert_eq!(run.counts().filtered(FilterReason::Bundled), 9);
    let counters = run.counters();
    assert_eq!((counters.processed.get(), counters.emitted.get()), (10, 3));
    assert_eq!((counters.overwritten.get(), counters.not_emitted.get()), (7, 7));
}

#[test]
fn threads_gather_into_one_bundle_and_the_first_one_makes_it() {
    let mut run = Run::on_threads("{emit_interval: 10s}", 3);
    for (thread, name) in ["a", "b", "c"].into_iter().enumerate() {
        assert!(run.batch_on(thread, vec![sample(name, 1.0, 1)]).is_empty());
    }
    let due = run.browsers[0].next_tick().unwrap();
    assert!(run.browsers.iter().all(|browser| browser.next_tick() == Some(due)));
    let mut out = Vec::new();
    run.browsers[2].tick(due - Duration::from_millis(1), &mut out);
    assert!(out.is_empty());
    run.browsers[2].tick(due, &mut out);
    run.browsers[1].tick(due, &mut out);
    let (topics, events) = decoded(&delivered(out));
    assert_eq!((names(&topics), events.len()), (vec!["a", "b", "c"], 3));
    assert_eq!(run.outcomes.lock().len(), 3);
    assert_eq!(run.browsers[0].next_tick(), Some(due + Duration::from_secs(10)));
    assert!(run.flush_on(1).is_empty(), "the end of a flow has nothing new to tell");
}

#[test]
fn an_interval_without_messages_tells_all_topics_too() {
    let mut run = Run::new("{emit_interval: 10s}");
    assert_eq!(run.browsers[0].next_tick(), None, "no topic is known");
    run.batch(vec![sample("a", 1.0, 1), sample("b", 1.0, 1)]);
    let mut due = run.browsers[0].next_tick().unwrap();
    for events in [2, 0, 0] {
        let mut out = Vec::new();
        run.browsers[0].tick(due, &mut out);
        let (topics, found) = decoded(&delivered(run.checked(out)));
        assert_eq!((names(&topics), found.len()), (vec!["a", "b"], events));
        due += Duration::from_secs(10);
        assert_eq!(run.browsers[0].next_tick(), Some(due));
    }
    let counts = run.counts();
    assert_eq!(
        (counts.out, counts.in_flight),
        (1, 0),
        "bundles of nothing are no message of the source"
    );
    assert_eq!(run.counters().emitted.get(), 2);
}

#[test]
fn one_worker_makes_all_bundles_so_that_none_overtakes_another() {
    assert!(Run::new("{}").spec.joins_series());
}

#[test]
fn a_bundle_has_all_topics_with_what_they_said_last() {
    let mut run = Run::new("{}");
    run.batch(vec![sample("a", 1.0, 1), sample("b", 1.0, 1)]);
    delivered(run.flush());
    let mut changed = sample("b", 2.0, 2);
    changed.meta.set("unit", "K");
    run.batch(vec![changed]);
    let (topics, events) = decoded(&delivered(run.flush()));
    assert_eq!((names(&topics), times(&events)), (vec!["a", "b"], vec![2]));
    assert!(topics.contains_key(&events[0].id));
    let b = &topics[&events[0].id];
    assert_eq!(b.metadata.get("unit").map(String::as_str), Some("K"));
    assert_eq!(
        (b.level0.as_str(), &b.sublevels[..], &b.virtual_path),
        ("acme", &[][..], &None)
    );
}

#[test]
fn the_least_recently_used_topic_is_forgotten_when_there_are_too_many() {
    let mut run = Run::new("{lru_size: 2}");
    run.batch(vec![sample("a", 1.0, 1), sample("b", 1.0, 1)]);
    delivered(run.flush());
    run.batch(vec![sample("a", 1.0, 2), sample("c", 1.0, 2)]);
    let (topics, _) = decoded(&delivered(run.flush()));
    assert_eq!(names(&topics), ["a", "c"]);
    // A third topic within an interval: those with events are emitted first, so that none is lost.
    let out = run.batch(vec![sample("a", 1.0, 3), sample("b", 1.0, 3), sample("c", 1.0, 3)]);
    let (topics, events) = decoded(&delivered(out));
    assert_eq!((names(&topics), events.len()), (vec!["a", "b"], 2));
    let (topics, events) = decoded(&delivered(run.flush()));
    assert_eq!((names(&topics), events.len()), (vec!["b", "c"], 1));
}

#[test]
fn a_full_buffer_goes_out_before_its_time() {
    let mut run = Run::new("{max_buffer_size: 3, max_events_per_topic_per_interval: 2}");
    let out = run.batch(
        (0..8)
            .map(|time| sample(&format!("t{}", time / 2), 1.0, time))
            .collect(),
    );
    let sent: Vec<Vec<i64>> = out
        .into_iter()
        .map(|batch| times(&decoded(&delivered(vec![batch])).1))
        .collect();
    assert_eq!(sent, [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(times(&decoded(&delivered(run.flush())).1), [6, 7]);
    assert_eq!(run.counters().not_emitted.get(), 0);
    let heavy = |name: &str| sample(name, "x".repeat(20 << 20).as_str(), 1);
    assert_eq!(
        run.batch(vec![heavy("a"), heavy("b")]).len(),
        1,
        "bytes are bounded, too"
    );
}

/// A message with so much metadata that few of them fit.
fn heavy(name: &str, header: &str) -> Message {
    let map = MetaMap::new([("header".into(), header.into())], None);
    let mut message = sample(name, 1.0, 1);
    message.meta = Metadata::shared(Arc::new(map));
    message.meta.set(key::UMH_TOPIC, topic(name));
    message
}

#[test]
fn topics_are_forgotten_when_their_metadata_takes_too_much() {
    let mut run = Run::new("{}");
    let header = "x".repeat(1 << 20);
    let shared = run.browsers[0].shared.clone();
    for n in 0..100 {
        run.batch(vec![heavy(&format!("t{n}"), &header)]);
        let taken = shared.gathered.lock().take(Instant::now());
        taken.held.into_iter().for_each(|held| held.ack.delivered());
    }
    // Each has the text, and once more for the bundle.
    assert_eq!(shared.gathered.lock().topics().len(), 63);
}

#[test]
fn events_leave_early_when_their_metadata_takes_too_much() {
    let mut run = Run::new("{}");
    let header = "x".repeat(4 << 20);
    let made: usize = (0..8)
        .map(|n| run.batch(vec![heavy(&format!("t{n}"), &header)]))
        .map(|out| out.into_iter().map(|batch| batch.ack.delivered()).count())
        .sum();
    assert_eq!(made, 2, "32 MiB are three of them");
    delivered(run.flush());
}

#[test]
fn what_is_no_event_of_a_topic_is_dropped_with_its_reason() {
    let unnamed = Message::raw(r#"{"value": 1, "timestamp_ms": 1}"#);
    let with = |topic: &str, payload: &str| {
        let mut message = Message::raw(payload.to_owned());
        message.meta.set(key::UMH_TOPIC, topic);
        message
    };
    for (message, reason) in [
        (unnamed, DropReason::MissingField),
        (with("umh.v1.acme.temp", "{}"), DropReason::InvalidTopic),
        (with(&topic("a"), "21.5"), DropReason::InvalidPayload),
        (with(&topic("a"), "text"), DropReason::InvalidPayload),
        (sample("a", f64::NAN, 1), DropReason::InvalidValue),
    ] {
        let mut run = Run::new("{}");
        run.batch(vec![message, sample("b", 1.0, 1)]);
        assert_eq!(run.counts().dropped(reason), 1, "{reason}: {}", run.counts());
        assert_eq!(run.counters().failed.get(), 1);
        assert_eq!(decoded(&delivered(run.flush())).1.len(), 1, "the other goes on");
    }
}

#[test]
fn events_that_no_thread_will_emit_are_given_up() {
    let mut run = Run::on_threads("{}", 2);
    run.batch(vec![sample("a", 1.0, 1), sample("b", 1.0, 1)]);
    let not_emitted = run.counters().not_emitted.clone();
    run.browsers.clear();
    assert_eq!(*run.outcomes.lock(), [AckResult::Nacked]);
    let counts = run.counts();
    assert_eq!((counts.dropped(DropReason::Shutdown), counts.in_flight), (2, 0));
    assert_eq!(not_emitted.get(), 2);
    let mut again = run.spec.browser(StageContext::for_tests("topic_browser"));
    let mut out = Vec::new();
    again.flush(&mut out);
    assert!(out.is_empty(), "the next run begins anew");
}

#[test]
fn topics_are_shown_page_by_page() {
    let mut run = Run::new("{}");
    let mut deep = sample("speed", 1.5, 3);
    deep.meta
        .set(key::UMH_TOPIC, "umh.v1.acme.plant.line4._historian_v2.motor.axis.speed");
    run.batch(vec![sample("b", Value::U64(u64::MAX), 1), sample("a", "x", 2), deep]);
    let directory = &run.spec.directory;
    let page = |offset, limit| {
        let page = directory.page(&PageQuery {
            offset,
            limit,
            ..PageQuery::default()
        });
        checked_json(page)
    };
    let path = "root.pipeline.processors.topic_browser";
    let a = format!(
        r#"{{"processor":"{path}","id":"{}","topic":"umh.v1.acme._raw.a","level0":"acme","sublevels":[],"contract":"_raw","name":"a","metadata":{{"umh_topic":"umh.v1.acme._raw.a"}},"value":"x","timestamp_ms":2}}"#,
        id_text(id_of(topic::parts(&topic("a")).unwrap())),
    );
    assert_eq!(
        page(None, Some(1)),
        format!(r#"{{"total":3,"offset":0,"limit":1,"items":[{a}]}}"#)
    );
    let rest = page(Some(1), None);
    assert!(
        rest.starts_with(r#"{"total":3,"offset":1,"limit":100,"items":[{"#),
        "{rest}"
    );
    for part in [
        r#""value":18446744073709551615,"#,
        r#""level0":"acme","sublevels":["plant","line4"],"contract":"_historian_v2","virtual_path":"motor.axis","name":"speed""#,
        r#""value":1.5,"timestamp_ms":3"#,
    ] {
        assert!(rest.contains(part), "{part} in {rest}");
    }
    assert_eq!(page(Some(3), None), r#"{"total":3,"offset":3,"limit":100,"items":[]}"#);
    assert!(page(None, Some(1_000_000)).contains(r#""limit":10000,"#));
    let other = PageQuery {
        processor: Some("other".to_owned()),
        ..PageQuery::default()
    };
    assert!(directory.page(&other).starts_with(r#"{"total":0,"#));
    let declared: Vec<String> = directory.endpoints().into_iter().map(|(path, _)| path).collect();
    assert_eq!(declared, ["/api/v1/topics"]);
    drop(run.flush());
    let directory = run.spec.directory.clone();
    drop(run);
    assert!(
        directory.page(&PageQuery::default()).starts_with(r#"{"total":0,"#),
        "a flow that has ended has none"
    );
}

/// A page of many topics must not block the connections of the process.
#[test]
fn pages_are_made_beside_the_runtime() {
    let mut run = Run::new("{}");
    run.batch(vec![sample("a", 1.0, 1)]);
    let shared = run.browsers[0].shared.clone();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        let guard = shared.gathered.lock();
        locked.send(()).unwrap();
        let _ = released.recv_timeout(Duration::from_secs(10));
        drop(guard);
    });
    is_locked.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = directory::topics(State(run.spec.directory.clone()), Query(PageQuery::default()));
    let answered = runtime.spawn(answer);
    let is_answered = runtime.block_on(async {
        tokio::task::yield_now().await;
        answered.is_finished()
    });
    assert!(!is_answered, "the request waits, and the runtime does not");
    release.send(()).unwrap();
    busy.join().unwrap();
    let response = runtime.block_on(answered).unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    delivered(run.flush());
}

/// Checks that the text is JSON, and returns it.
fn checked_json(text: String) -> String {
    json::parse(text.as_bytes()).unwrap();
    text
}

#[test]
fn mistakes_are_told_at_their_place() {
    for (yaml, error) in [
        ("{lru_size: 0}", "lru_size"),
        ("{max_buffer_size: 0}", "max_buffer_size"),
        (
            "{max_events_per_topic_per_interval: many}",
            "max_events_per_topic_per_interval",
        ),
        ("{emit_interval: 0s}", "an interval is more than 0"),
        ("{emit_interval: 1000h}", "at most 24h"),
        ("{emit_intervall: 1s}", "did you mean \"emit_interval\"?"),
    ] {
        let yaml = format!("  - topic_browser: {yaml}\n");
        let errors = with_config(&yaml, |node, context| read(node, context)).err().unwrap();
        assert!(errors.iter().any(|text| text.contains(error)), "{yaml}: {errors:?}");
    }
    let defaults = BrowserLimits {
        topics_max: 50_000,
        events_per_topic_max: 1,
        events_max: 10_000,
        interval: Duration::from_secs(1),
    };
    assert_eq!(limits("{}"), defaults);
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i32>().prop_map(|number| Value::F64(number.into())),
        any::<bool>().prop_map(Value::Bool),
        "\\PC{0,8}".prop_map(|text| Value::from(text.as_str())),
    ]
}

proptest! {
    /// For any messages on any threads, and any memory limit: bundles contain the newest events of each topic in order,
    /// each with its topic; what is not in them was overwritten; and the mass balance holds.
    #[test]
    fn bundles_hold_what_went_in(
        sent in prop::collection::vec((0u8..6, scalar(), 0usize..3, prop::bool::weighted(0.1)), 0..60),
        per_topic in 1usize..4, buffer in 1usize..8, lru in 1usize..8,
    ) {
        let yaml = format!(
            "{{max_events_per_topic_per_interval: {per_topic}, max_buffer_size: {buffer}, lru_size: {lru}}}"
        );
        let mut run = Run::on_threads(&yaml, 3);
        let mut bundles = Vec::new();
        for (time, (name, value, thread, flush)) in sent.iter().enumerate() {
            bundles.extend(run.batch_on(*thread, vec![sample(&format!("t{name}"), value.clone(), time as i64)]));
            if *flush { bundles.extend(run.flush_on(*thread)); }
        }
        bundles.extend(run.flush());
        let emitted = bundles.len() as u64;
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        let mut found = 0;
        for bundle in bundles {
            let (topics, events) = decoded(&delivered(vec![bundle]));
            prop_assert!(topics.len() <= lru && events.len() <= buffer);
            for event in events {
                found += 1;
                let series = event.series.clone().unwrap();
                let (name, value, _, _) = &sent[series.timestamp_ms as usize];
                prop_assert_eq!(&topics[&event.id].name, &format!("t{name}"));
                let got = match series.scalar() {
                    ScalarType::Number => Value::F64(series.number.unwrap()),
                    ScalarType::Truth => Value::Bool(series.truth.unwrap()),
                    _ => Value::from(series.text.as_deref().unwrap()),
                };
                prop_assert_eq!(&got, value);
                prop_assert!(last.insert(event.id, series.timestamp_ms).is_none_or(|before| before < series.timestamp_ms));
            }
        }
        for name in 0..6 {
            let newest = sent.iter().rposition(|(sent, ..)| *sent == name).map(|at| at as i64);
            let id = id_text(id_of(topic::parts(&topic(&format!("t{name}"))).unwrap()));
            prop_assert_eq!(last.get(&id).copied(), newest, "the newest event of each topic is emitted");
        }
        let counters = run.counters();
        prop_assert_eq!(found, counters.emitted.get());
        prop_assert_eq!(sent.len() as u64, counters.emitted.get() + counters.not_emitted.get());
        let counts = run.counts();
        prop_assert!(counts.adds_up() && counts.in_flight == 0 && counts.out == emitted);
        prop_assert_eq!(run.outcomes.lock().len(), sent.len());
    }
}
