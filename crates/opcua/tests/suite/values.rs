//! Every type of value and every metadata key, by subscription and by polling.

use thalweg_record::{FilterReason, Message};

use opcua::types::{DataValue, StatusCode, Variant};

use crate::harness::{Collector, Plant, SimulatorOptions, collect, collect_for, meta, open, payload};

/// Name, payload, tag type and data type of the simulator's nodes.
const EXPECTED: &[(&str, &str, &str, &str)] = &[
    ("Boolean", "true", "bool", "bool"),
    ("SByte", "-128", "number", "int8"),
    ("Byte", "255", "number", "byte"),
    ("Int16", "-32768", "number", "int16"),
    ("UInt16", "65535", "number", "uint16"),
    ("Int32", "-2147483648", "number", "int32"),
    ("UInt32", "4294967295", "number", "uint32"),
    ("Int64", "-9223372036854775808", "number", "ns=0;i=8"),
    ("Int64Max", "9223372036854775807", "number", "ns=0;i=8"),
    ("UInt64", "18446744073709551615", "number", "ns=0;i=9"),
    ("Float", "0.1", "number", "float32"),
    ("FloatNaN", "NaN", "number", "float32"),
    ("Double", "0.1", "number", "float64"),
    ("DoubleNegativeZero", "-0", "number", "float64"),
    ("DoubleNaN", "NaN", "number", "float64"),
    ("DoubleInfinity", "+Inf", "number", "float64"),
    ("DoubleNegativeInfinity", "-Inf", "number", "float64"),
    ("Enumeration", "3", "number", "ns=0;i=852"),
    ("Duration", "1500.5", "number", "ns=0;i=290"),
    (
        "String",
        "\"Füllstand \\\"Tank 1\\\"\\n\\t\u{1F600}\"",
        "string",
        "string",
    ),
    ("StringEmpty", "\"\"", "string", "string"),
    ("StringNull", "\"\"", "string", "string"),
    ("DateTime", "\"2031-05-06T07:08:09.1234567Z\"", "string", "time.Time"),
    ("DateTimeWhole", "\"2031-05-06T07:08:09Z\"", "string", "time.Time"),
    ("DateTimeMin", "\"0001-01-01T00:00:00Z\"", "string", "time.Time"),
    ("DateTimeMax", "\"9999-12-31T23:59:59Z\"", "string", "time.Time"),
    ("ByteString", "\"AAEC/f7/\"", "string", "ns=0;i=15"),
    ("ByteStringEmpty", "\"\"", "string", "ns=0;i=15"),
    ("ByteStringNull", "\"\"", "string", "ns=0;i=15"),
    ("XmlElement", "\"<a b=\\\"1\\\">&amp;</a>\"", "string", "ns=0;i=16"),
    ("NodeId", "\"i=2258\"", "string", "ns=0;i=17"),
    ("NodeIdString", "\"ns=3;s=OpcPlc\"", "string", "ns=0;i=17"),
    ("NodeIdOpaque", "\"ns=3;b=AQID\"", "string", "ns=0;i=17"),
    (
        "ExpandedNodeId",
        "{\"NodeID\":\"s=Remote\",\"NamespaceURI\":\"urn:elsewhere\",\"ServerIndex\":2}",
        "string",
        "ns=0;i=18",
    ),
    ("StatusCode", "2151415808", "string", "ns=0;i=19"),
    (
        "QualifiedName",
        "{\"NamespaceIndex\":3,\"Name\":\"Name\"}",
        "string",
        "ns=0;i=20",
    ),
    (
        "LocalizedText",
        "{\"EncodingMask\":3,\"Locale\":\"de\",\"Text\":\"Füllstand\"}",
        "string",
        "ns=0;i=21",
    ),
    ("Range", "{\"Low\":0,\"High\":100}", "string", "ns=0;i=884"),
    (
        "StructureUnknown",
        "{\"TypeID\":\"ns=3;i=5999\",\"Body\":\"3q2+7w==\"}",
        "string",
        "ns=0;i=22",
    ),
    ("BooleanArray", "[true,false]", "string", "bool"),
    ("SByteArray", "[-1,0,1]", "string", "int8"),
    ("ByteArray", "\"AH//\"", "string", "byte"),
    ("Int32Array", "[-2147483648,0,2147483647]", "string", "int32"),
    ("UInt64Array", "[0,18446744073709551615]", "string", "ns=0;i=9"),
    ("StringArray", "[\"a\",\"\",\"\"]", "string", "string"),
    ("ByteStringArray", "[\"AQI=\"]", "string", "ns=0;i=15"),
    ("EmptyArray", "[]", "string", "float64"),
    ("VariantArray", "[1,\"two\"]", "string", "ns=0;i=24"),
    ("VariantInVariant", "42", "string", "ns=0;i=24"),
    ("UncertainWithValue", "7.5", "number", "float64"),
];

fn check(messages: &std::collections::BTreeMap<String, Message>) {
    for (name, expected, tag_type, data_type) in EXPECTED {
        let message = messages.get(*name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(payload(message), *expected, "{name}");
        assert_eq!(meta(message, "opcua_tag_type"), *tag_type, "{name}");
        assert_eq!(meta(message, "opcua_attr_datatype"), *data_type, "{name}");
        assert_eq!(meta(message, "opcua_attr_nodeid"), format!("ns=3;s=Types{name}"));
        assert_eq!(meta(message, "opcua_attr_nodeclass"), "NodeClassVariable");
        assert_eq!(meta(message, "opcua_tag_group"), "OpcPlc.Types");
        assert_eq!(meta(message, "opcua_tag_path"), "OpcPlc.Types");
        let good = "The operation succeeded. StatusGood (0x0)";
        let status = meta(message, "opcua_attr_statuscode");
        assert_eq!(status == good, *name != "UncertainWithValue", "{name}: {status}");
    }
    let uncertain = &messages["UncertainWithValue"];
    assert!(meta(uncertain, "opcua_attr_statuscode").ends_with(" StatusUncertainLastUsableValue (0x40900000)"));
    // Floats are written without an exponent, however many digits that takes.
    assert_eq!(payload(&messages["DoubleTiny"]), format!("0.{}5", "0".repeat(323)));
    assert_eq!(
        payload(&messages["DoubleArray"]),
        format!("[0.1,NaN,-1{}]", "0".repeat(300))
    );
    // A structure of the server with the server's own description, and an array of them.
    assert_eq!(
        payload(&messages["Point"]),
        "{\"X\":1.5,\"Y\":-2.25,\"Label\":\"first\"}"
    );
    let points = "[{\"X\":1.5,\"Y\":-2.25,\"Label\":\"a\"},{\"X\":2.5,\"Y\":-2.25,\"Label\":\"\"}]";
    assert_eq!(payload(&messages["PointArray"]), points);
    assert!(!messages.contains_key("StructureNull"), "no value is no message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_delivers_every_type_in_its_form() {
    let plant = Plant::start(crate::harness::SimulatorOptions { types: true, ..open() }).await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector
        .until("all types", |c| {
            EXPECTED.iter().all(|(name, ..)| c.latest().contains_key(*name))
        })
        .await;
    check(&collector.latest());
    let counts = collector.stop().await;
    assert!(counts.filtered(FilterReason::NoValue) >= 1, "the nodes without a value");
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_delivers_every_type_in_its_form() {
    let plant = Plant::start(crate::harness::SimulatorOptions { types: true, ..open() }).await;
    let collector = collect(&plant.endpoint(), "pollRate: 100").await;
    collector
        .until("all types", |c| {
            EXPECTED.iter().all(|(name, ..)| c.latest().contains_key(*name))
        })
        .await;
    check(&collector.latest());
    collector
        .until("several cycles", |c| c.values_of("ns=3;s=TypesBoolean").len() >= 3)
        .await;
    assert_eq!(collector.metric("items_monitored"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

const WRITABLE: &str = "ns=3;s=TypesWritableDouble";
const ONE_NODE: &str = "nodeIDs: [\"ns=3;s=TypesWritableDouble\"], browse: {maxDepth: 0}";

fn good(value: f64) -> DataValue {
    DataValue::from(Variant::Double(value))
}

fn status_alone(status: StatusCode) -> DataValue {
    DataValue {
        status: Some(status),
        ..DataValue::default()
    }
}

/// Payloads and the last words of the status of one tag, in order of arrival.
fn story(collector: &Collector) -> Vec<String> {
    let of_one = collector.of(WRITABLE);
    let one = |message: &Message| {
        let status = meta(message, "opcua_attr_statuscode");
        format!(
            "{} {}",
            payload(message),
            status.split(" Status").last().unwrap_or_default()
        )
    };
    of_one.iter().map(one).collect()
}

/// The device of a tag comes and goes: the status and each value after it arrive, even if the value is the same.
async fn comes_and_goes(plant: &Plant, collector: &Collector) {
    let steps = [
        (good(1.5), "1.5 Good (0x0)"),
        (
            status_alone(StatusCode::BadNoCommunication),
            "null BadNoCommunication (0x80310000)",
        ),
        (good(1.5), "1.5 Good (0x0)"),
        (
            status_alone(StatusCode::BadNoCommunication),
            "null BadNoCommunication (0x80310000)",
        ),
        (good(2.5), "2.5 Good (0x0)"),
    ];
    for (set, expected) in steps {
        plant.set(WRITABLE, set);
        collector
            .until(expected, |c| story(c).last().map(String::as_str) == Some(expected))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_that_turns_bad_without_a_value_passes_as_a_status_on_request() {
    for (fields, refuse_filters) in [
        ("subscribeEnabled: true", false),
        ("subscribeEnabled: true", true),
        ("pollRate: 50", false),
    ] {
        let plant = Plant::start(SimulatorOptions {
            types: true,
            refuse_filters,
            ..open()
        })
        .await;
        let collector = collect(&plant.endpoint(), &format!("{fields}, bad_values: pass, {ONE_NODE}")).await;
        collector.until("the first value", |c| c.count() > 0).await;
        comes_and_goes(&plant, &collector).await;
        let bad = collector
            .of(WRITABLE)
            .into_iter()
            .find(|message| payload(message) == "null")
            .unwrap();
        assert_eq!(meta(&bad, "opcua_tag_type"), "number");
        assert_eq!(meta(&bad, "opcua_tag_name"), "WritableDouble");
        assert!(collector.metric("status_only_total") >= 2.0);
        let counts = collector.stop().await;
        assert_eq!(counts.filtered(FilterReason::NoValue), 0, "{fields}");
        plant.stop().await;
    }
}

/// Without a word about it, the table gets what it can store, and no other output changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_without_a_value_passes_by_itself_only_to_what_stores_it() {
    let plant = Plant::start(SimulatorOptions { types: true, ..open() }).await;
    let nested = "broker: {outputs: [{keep: {}}, {table: {}, processors: [{mapping: 'root = this'}]}]}";
    for (output, field, passes) in [
        ("table: {}", "bad_values: auto", true),
        (nested, "bad_values: auto", true),
        ("table: {}", "bad_values: drop", false),
        ("keep: {}", "bad_values: auto", false),
        ("keep: {}", "bad_values: pass", true),
    ] {
        plant.set(WRITABLE, good(0.5));
        let fields = format!("subscribeEnabled: true, {field}, {ONE_NODE}");
        let collector = collect_for(output, &plant.endpoint(), &fields);
        collector.until("the first value", |c| !story(c).is_empty()).await;
        plant.set(WRITABLE, status_alone(StatusCode::BadDeviceFailure));
        collector
            .until("the status", |c| c.metric("status_only_total") >= 1.0)
            .await;
        plant.set(WRITABLE, good(0.75));
        collector
            .until("the next value", |c| story(c).iter().any(|one| one.starts_with("0.75")))
            .await;
        let bad = story(&collector)
            .iter()
            .any(|one| one.starts_with("null BadDeviceFailure"));
        assert_eq!(bad, passes, "{output}, {field}: {:?}", story(&collector));
        let counts = collector.stop().await;
        assert_eq!(counts.filtered(FilterReason::NoValue) > 0, !passes, "{output}, {field}");
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_have_six_decimals_and_a_missing_one_is_year_one() {
    let plant = Plant::start(crate::harness::SimulatorOptions { types: true, ..open() }).await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until("values", |c| c.count() > 50).await;
    for message in collector.messages() {
        for key in ["opcua_source_timestamp", "opcua_server_timestamp"] {
            let time = meta(&message, key);
            assert!(
                time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.',
                "{key} = {time}"
            );
        }
    }
    let without = collector
        .latest()
        .into_iter()
        .find(|(_, m)| meta(m, "opcua_source_timestamp").starts_with("0001-"));
    assert!(without.is_some(), "the simulator has a node without source time");
    collector.stop().await;
    plant.stop().await;
}

/// Twenty changes of each tag come in one response: the mean of their ages is half a second above that of the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ages_are_those_of_each_value_and_not_of_the_newest_of_its_batch() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 20,
        fast_rate: 0.05,
        ..open()
    })
    .await;
    let fields = "subscribeEnabled: true, publishingInterval: 1000, queueSize: 100";
    let collector = collect(&plant.endpoint(), fields).await;
    collector.until("values", |c| c.count() > 1500).await;
    let mean = |name: &str| {
        let part = |part: &str| collector.labelled(&format!("{name}_{part}"), "");
        part("sum") / part("count")
    };
    let (newest, each) = (mean("value_age_ns"), mean("settled_age_ns"));
    assert!(each > newest + 2e8, "{each} ns, the newest {newest} ns");
    collector.stop().await;
    plant.stop().await;
}
