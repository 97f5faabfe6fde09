//! Values on their whole path: every type from each server, and its extremes through scripts into the table.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Thalweg, eventually};

use crate::opcua::{SECURE, flow, items_add_up, messages, newest, stop_and_account};

/// Name of the node, payload, `opcua_tag_type`, `opcua_attr_datatype`.
type Expected<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Values of both foreign servers.
const COMMON: [Expected; 24] = [
    ("Boolean", "true", "bool", "bool"),
    ("SByte", "-128", "number", "int8"),
    ("Byte", "255", "number", "byte"),
    ("Int16", "-32768", "number", "int16"),
    ("UInt16", "65535", "number", "uint16"),
    ("Int32", "-2147483648", "number", "int32"),
    ("UInt32", "4294967295", "number", "uint32"),
    ("Int64", "-9223372036854775808", "number", "ns=0;i=8"),
    ("UInt64", "18446744073709551615", "number", "ns=0;i=9"),
    ("Float", "0.5", "number", "float32"),
    ("Double", "0.1", "number", "float64"),
    ("DoubleNaN", "NaN", "number", "float64"),
    ("DoubleInf", "+Inf", "number", "float64"),
    ("String", "\"Grüße\"", "string", "string"),
    (
        "Guid",
        "{\"Data1\":1922444177,\"Data2\":64117,\"Data3\":19174,\"Data4\":\"jSi0BNx9r2M=\"}",
        "string",
        "ns=0;i=14",
    ),
    ("ByteString", "\"AQID\"", "string", "ns=0;i=15"),
    ("XmlElement", "\"<a/>\"", "string", "ns=0;i=16"),
    ("StatusCode", "2147549184", "string", "ns=0;i=19"),
    (
        "LocalizedText",
        "{\"EncodingMask\":3,\"Locale\":\"en\",\"Text\":\"text\"}",
        "string",
        "ns=0;i=21",
    ),
    ("Range", "{\"Low\":0,\"High\":100}", "string", "ns=0;i=884"),
    ("Int32Array", "[1,2,3]", "string", "int32"),
    ("StringArray", "[\"a\",\"b\"]", "string", "string"),
    ("DoubleArray", "[0.5,1.5]", "string", "float64"),
    ("Matrix", "[[1,2,3],[4,5,6]]", "string", "int32"),
];

fn collect_types(
    server: &Server,
    root: &str,
    security: &str,
    expected: &[Expected],
) -> BTreeMap<String, (String, Value)> {
    let more = format!("    subscribeEnabled: true\n{security}");
    let mut thalweg = Thalweg::start(&flow(server, root, &more)).unwrap();
    let mut seen = BTreeMap::new();
    eventually(|| {
        seen = newest(&thalweg);
        let missing: Vec<&str> = expected
            .iter()
            .map(|e| e.0)
            .filter(|name| !seen.contains_key(*name))
            .collect();
        anyhow::ensure!(
            missing.is_empty(),
            "no value yet of {missing:?}; {:?}",
            thalweg.request("/ready")
        );
        Ok(())
    })
    .unwrap();
    let wrong: Vec<String> = expected
        .iter()
        .filter_map(|&(name, payload, tag_type, data_type)| {
            let (got, meta) = &seen[name];
            let found = (got.as_str(), &meta["opcua_tag_type"], &meta["opcua_attr_datatype"]);
            (found != (payload, &tag_type.into(), &data_type.into()))
                .then(|| format!("{name}: {found:?} is not {:?}", (payload, tag_type, data_type)))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    items_add_up(&thalweg);
    let details = thalweg.node("input").unwrap().to_string();
    let encrypted = details.contains("SignAndEncrypt") && details.contains("Basic256Sha256");
    assert_eq!(encrypted, !security.is_empty(), "{details}");
    stop_and_account(&mut thalweg);
    seen
}

fn assert_metadata(meta: &Value, expected: &[(&str, &str)]) {
    for (key, text) in expected {
        assert_eq!(meta[key], *text, "{key} of {meta}");
    }
    for key in ["opcua_source_timestamp", "opcua_server_timestamp"] {
        let time = meta[key].as_str().unwrap();
        assert!(
            time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.',
            "{key} {time}"
        );
    }
}

/// All keys of a value, in their exact form.
fn constant<'a>(name: &'a str, node_id: &'a str, group: &'a str, access: &'a str) -> [(&'a str, &'a str); 9] {
    [
        ("opcua_attr_nodeid", node_id),
        ("opcua_attr_nodeclass", "NodeClassVariable"),
        ("opcua_attr_browsename", name),
        ("opcua_attr_accesslevel", access),
        ("opcua_attr_statuscode", "The operation succeeded. StatusGood (0x0)"),
        ("opcua_tag_name", name),
        ("opcua_tag_group", group),
        ("opcua_tag_path", group),
        ("opcua_attr_description", "A tenth"),
    ]
}

/// A foreign server: the common values, those that name its own namespace, and all metadata.
fn every_type_of(kind: Kind, namespace: u16, date: &str, access: &str) {
    let server = Server::start(kind, &["--port", "0"]).unwrap();
    let node_id = format!("\"ns={namespace};s=Target\"");
    let expanded = format!("{{\"NodeID\":\"ns={namespace};i=7\",\"NamespaceURI\":\"\",\"ServerIndex\":0}}");
    let qualified = format!("{{\"NamespaceIndex\":{namespace},\"Name\":\"name\"}}");
    let own: [Expected; 6] = [
        ("DateTime", date, "string", "time.Time"),
        ("NodeId", &node_id, "string", "ns=0;i=17"),
        ("ExpandedNodeId", &expanded, "string", "ns=0;i=18"),
        ("QualifiedName", &qualified, "string", "ns=0;i=20"),
        ("ByteArray", "\"AH//\"", "string", "byte"),
        ("EmptyArray", "[]", "string", "float64"),
    ];
    let expected: Vec<Expected> = COMMON.into_iter().chain(own).collect();
    for security in ["", SECURE] {
        let seen = collect_types(&server, &format!("ns={namespace};s=Plant"), security, &expected);
        let node_id = format!("ns={namespace};s=Types.Double");
        assert_metadata(&seen["Double"].1, &constant("Double", &node_id, "Plant.Types", access));
    }
}

#[test]
fn every_type_of_asyncua_in_the_clear_and_encrypted() {
    let date = "\"2031-05-06T07:08:09.123456Z\"";
    every_type_of(Kind::Asyncua, 2, date, "AccessLevelTypeCurrentRead");
}

#[test]
fn every_type_of_node_opcua_in_the_clear_and_encrypted() {
    every_type_of(Kind::NodeOpcua, 1, "\"2031-05-06T07:08:09.123Z\"", "AccessLevelType(3)");
}

#[test]
fn every_type_of_the_simulator_in_the_clear_and_encrypted() {
    let server = Server::start(
        Kind::Simulator,
        &["--port", "0", "--types", "--user", "operator:secret", "--auto-accept"],
    )
    .unwrap();
    let expected = [
        ("Boolean", "true", "bool", "bool"),
        ("SByte", "-128", "number", "int8"),
        ("Byte", "255", "number", "byte"),
        ("Int64", "-9223372036854775808", "number", "ns=0;i=8"),
        ("Int64Max", "9223372036854775807", "number", "ns=0;i=8"),
        ("UInt64", "18446744073709551615", "number", "ns=0;i=9"),
        ("Float", "0.1", "number", "float32"),
        ("FloatNaN", "NaN", "number", "float32"),
        ("Double", "0.1", "number", "float64"),
        ("DoubleInfinity", "+Inf", "number", "float64"),
        ("DoubleNegativeInfinity", "-Inf", "number", "float64"),
        (
            "String",
            "\"Füllstand \\\"Tank 1\\\"\\n\\t\u{1F600}\"",
            "string",
            "string",
        ),
        ("StringEmpty", "\"\"", "string", "string"),
        ("NodeId", "\"i=2258\"", "string", "ns=0;i=17"),
        ("NodeIdString", "\"ns=3;s=OpcPlc\"", "string", "ns=0;i=17"),
        (
            "QualifiedName",
            "{\"NamespaceIndex\":3,\"Name\":\"Name\"}",
            "string",
            "ns=0;i=20",
        ),
        ("BooleanArray", "[true,false]", "string", "bool"),
        (
            "Int64Array",
            "[-9223372036854775808,9223372036854775807]",
            "string",
            "ns=0;i=8",
        ),
        ("UInt64Array", "[0,18446744073709551615]", "string", "ns=0;i=9"),
    ];
    for security in ["", SECURE] {
        let seen = collect_types(&server, "ns=3;s=Types", security, &expected);
        let (enumeration, meta) = &seen["Enumeration"];
        assert_eq!((enumeration.as_str(), &meta["opcua_tag_type"]), ("3", &"number".into()));
        let all = constant("Int64", "ns=3;s=TypesInt64", "Types", "AccessLevelTypeCurrentRead");
        assert_metadata(&seen["Int64"].1, &all[..8]);
    }
}

/// Into the table, through a typical script.
const TO_TABLE: &str = "\
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"plant\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
output:
  lake: {table: tags}
";

fn to_table(server: &Server, node: &str) -> String {
    format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"{node}\"]\n    subscribeEnabled: true\n{TO_TABLE}",
        server.endpoint
    )
}

#[test]
fn a_string_of_ten_megabytes_arrives_whole_in_the_table() {
    for (kind, node) in [
        (Kind::Asyncua, "ns=2;s=Types.Big"),
        (Kind::NodeOpcua, "ns=1;s=Types.Big"),
    ] {
        let server = Server::start(kind, &["--port", "0", "--big", "10000000"]).unwrap();
        let mut thalweg = Thalweg::start(&to_table(&server, node)).unwrap();
        eventually(|| {
            let rows =
                thalweg.sql("select length(value_text) as n, quality from tags where tag = 'umh.v1.plant._raw.Big'")?;
            anyhow::ensure!(
                rows.len() == 1 && rows[0]["n"] == 10_000_000,
                "{kind:?}: {rows:?} {:?}",
                thalweg.request("/ready")
            );
            Ok(())
        })
        .unwrap();
        // A row can be read a moment before its message counts as out.
        let balance = eventually(|| {
            let balance = thalweg.balance()?;
            anyhow::ensure!(balance.out == 1, "{balance:?}");
            Ok(balance)
        })
        .unwrap();
        assert_eq!((balance.dropped, balance.filtered), (0, 0), "{balance:?}");
        thalweg.stop().unwrap();
    }
}

/// They have no JSON form, so a script's result cannot contain them: each is counted and named, and the others pass.
#[test]
fn not_a_number_and_infinity_are_dropped_by_name_and_lose_nothing_else() {
    let server = Server::start(Kind::Asyncua, &["--port", "0"]).unwrap();
    let mut thalweg = Thalweg::start(&to_table(&server, "ns=2;s=Types")).unwrap();
    eventually(|| {
        let rows = thalweg.sql("select tag, value from tags where tag like '%.Double'")?;
        anyhow::ensure!(rows.len() == 1 && rows[0]["value"] == 0.1, "{rows:?}");
        Ok(())
    })
    .unwrap();
    // The first values of the variables may come in several answers.
    let balance = eventually(|| {
        let balance = thalweg.balance()?;
        anyhow::ensure!(balance.entered > 2 && balance.in_flight == 0, "{balance:?}");
        Ok(balance)
    })
    .unwrap();
    assert_eq!((balance.dropped, balance.out), (2, balance.entered - 2), "{balance:?}");
    let dropped = thalweg.metric("thalweg_flow_dropped_total", "invalid_value").unwrap();
    assert_eq!(dropped, 2.0);
    let none = thalweg
        .sql("select count(*) as n from tags where tag like '%NaN' or tag like '%Inf'")
        .unwrap();
    assert_eq!(none[0]["n"], 0);
    thalweg.stop().unwrap();
    let log = thalweg.process.stdout();
    assert!(log.contains("invalid_value") && log.contains("NaN"), "{log}");
}

/// A tag that is bad and has no value is a row with its status, directly and through a script that would compute with
/// the missing value.
#[test]
fn a_bad_tag_without_a_value_is_a_row_with_its_status() {
    let server = Server::start(Kind::Simulator, &["--port", "0", "--types", "--fast-nodes", "1"]).unwrap();
    let input = format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=3;s=TypesBadWithoutValue\", \"ns=3;s=TypesDouble\"]\n    \
         subscribeEnabled: true\n",
        server.endpoint
    );
    let script = TO_TABLE.replace(
        "return msg;",
        "msg.payload = msg.payload * 2 + 1;\n          return msg;",
    );
    for (output, value) in [("output:\n  lake: {table: tags}\n", 0.1), (&script, 1.2)] {
        let mut thalweg = Thalweg::start(&format!("{input}{output}")).unwrap();
        let rows = eventually(|| {
            let rows = thalweg.sql(
                "select attr_opcua_tag_name as name, quality, value, value_text, value_type from tags order by 1",
            )?;
            anyhow::ensure!(rows.len() == 2, "{rows:?}");
            Ok(rows)
        })
        .unwrap();
        let (bad, good) = (&rows[0], &rows[1]);
        assert_eq!(
            (&bad["name"], &bad["value_type"]),
            (&"BadWithoutValue".into(), &"null".into())
        );
        assert_eq!(
            bad["quality"].to_string().trim_matches('"'),
            0x8031_0000_u32.to_string()
        );
        assert!(bad["value"].is_null() && bad["value_text"].is_null(), "{bad}");
        let balance = thalweg.balance().unwrap();
        assert_eq!((balance.dropped, balance.filtered), (0, 0), "{balance:?}");
        assert_eq!(
            (&good["name"], good["value"].as_f64()),
            (&"Double".into(), Some(value)),
            "{good}"
        );
        thalweg.stop().unwrap();
    }
}

/// Directly from the input, the table stores them unchanged.
#[test]
fn the_table_holds_not_a_number_and_infinity() {
    let server = Server::start(Kind::Asyncua, &["--port", "0"]).unwrap();
    let yaml = format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=2;s=Types\"]\n    subscribeEnabled: true\noutput:\n  lake: {{table: tags}}\n",
        server.endpoint
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    eventually(|| {
        let rows = thalweg.sql(
            "select attr_opcua_tag_name as name, isnan(value) as nan, value = 'Infinity'::double as inf, \
             value_int from tags where attr_opcua_tag_name in ('DoubleNaN', 'DoubleInf', 'Int64') order by 1",
        )?;
        anyhow::ensure!(rows.len() == 3, "{rows:?}");
        assert_eq!(rows[0]["inf"], true, "{rows:?}");
        assert_eq!(rows[1]["nan"], true, "{rows:?}");
        assert_eq!(
            rows[2]["value_int"].to_string().trim_matches('"'),
            "-9223372036854775808",
            "{rows:?}"
        );
        Ok(())
    })
    .unwrap();
    assert!(messages(&thalweg).is_empty());
    let balance = thalweg.balance().unwrap();
    assert_eq!(balance.dropped, 0);
    thalweg.stop().unwrap();
}
