//! The collector: the cost of a message from input to acknowledgement, stage by stage.

use std::path::Path;

use anyhow::Result;

use super::Effort;
use super::plant;
use super::report::{Row, Stage};
use super::under_test::{Plant, UnderTest};
use crate::shell::binary_under_test;

/// A message like those of an OPC UA input: a number with the metadata of its tag.
const GENERATE: &str = r#"
input:
  generate:
    interval: ""
    batch_size: 1000
    mapping: |
      root = counter()
      meta opcua_tag_name = "Temperature"
      meta opcua_tag_group = "Line1.Oven"
      meta opcua_tag_path = "Line1.Oven"
      meta opcua_tag_type = "number"
      meta opcua_attr_nodeid = "ns=3;s=Line1.Oven.Temperature"
      meta opcua_attr_browsename = "Temperature"
      meta opcua_attr_nodeclass = "NodeClassVariable"
      meta opcua_attr_accesslevel = "AccessLevelTypeCurrentRead"
      meta opcua_attr_datatype = "uint32"
      meta opcua_attr_statuscode = "The operation succeeded. StatusGood (0x0)"
      meta opcua_source_timestamp = "2031-05-06T07:08:09.123456Z"
      meta opcua_server_timestamp = "2031-05-06T07:08:09.123456Z"
"#;

/// The typical script: static metadata in, static metadata out.
const STATIC: &str = r#"
        defaults: |
          msg.meta.location_path = "enterprise.site.area";
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
"#;

/// Pure JavaScript on the value.
const PURE: &str = r#"
        defaults: |
          msg.meta.location_path = "enterprise.site.area";
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          msg.payload = msg.payload * 0.1 + 32;
          return msg;
"#;

/// More than most scripts use: a closure, a loop over keys, a regular expression, the cache.
const LONG: &str = r#"
        defaults: |
          const parts = msg.meta.opcua_attr_nodeid.split(";s=").pop().split(".");
          let depth = 0;
          for (const key of Object.keys(msg.meta)) { if (/^opcua_attr_/.test(key)) { depth += 1; } }
          cache.set("last", msg.payload);
          msg.meta.location_path = ["enterprise", ...parts.slice(0, -1)].join(".");
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = parts.map(part => part.trim())[parts.length - 1];
          msg.meta.attributes = depth;
          return msg;
"#;

/// Stages after `tag_processor`: of every value one point is passed on, one is computed, one is remembered.
const LATER_STAGES: [(&str, &str); 3] = [
    ("opcua_downsampler_drop", "    - downsampler: {}\n"),
    (
        "opcua_stream_processor_drop",
        "    - stream_processor:
        mode: timeseries
        model: {name: oven, version: v1}
        output_topic: umh.v1.enterprise.site.area
        sources: {first: umh.v1.enterprise.site.area._raw.FastUInt1}
        mapping: {fahrenheit: first * 1.8 + 32}\n",
    ),
    ("opcua_topic_browser_drop", "    - topic_browser: {}\n"),
];

/// A message of ten values.
const CLASSIC: &str = r#"
input:
  generate:
    interval: ""
    batch_size: 1000
    mapping: |
      root.timestamp_ms = 1717083000000
      root.temperature = counter()
      root.pressure = 1.25
      root.state = "running"
      root.wind.speed = 12
      root.wind.from = 270
      root.motor.torque = 40.5
      root.motor.speed = 1450
      root.motor.current = 3.75
      root.count = 17
      root.ok = true
      meta umh_topic = "umh.v1.enterprise.site.area._historian.weather"
pipeline:
  processors:
    - classic_to_core: {target_data_contract: _raw}
output:
  drop: {}
"#;

/// Rows with this in their name use QuickJS.
const QUICKJS: &str = "scripting: {engine: quickjs}\n";

/// A pipeline with the typical script.
pub fn static_script() -> String {
    format!("pipeline:\n  processors:\n    - tag_processor:{STATIC}")
}

/// `later` are further processors, after the script.
fn yaml(input: &str, script: Option<&str>, later: &str) -> String {
    let pipeline = script
        .map(|script| format!("\npipeline:\n  processors:\n    - tag_processor:{script}{later}"))
        .unwrap_or_default();
    format!("{input}{pipeline}\noutput:\n  drop: {{}}\n")
}

const TAGS: f64 = 10_000.0;

/// The separate cost of each part of a message's path.
pub const STAGES: [Stage; 13] = [
    Stage {
        name: "generate -> drop (flow runtime and mapping)",
        with: "generate_drop",
        without: None,
    },
    Stage {
        name: "  tag_processor, static script",
        with: "tag_processor_static",
        without: Some("generate_drop"),
    },
    Stage {
        name: "  tag_processor, pure script on the value",
        with: "tag_processor_pure",
        without: Some("generate_drop"),
    },
    Stage {
        name: "  tag_processor, long script",
        with: "tag_processor_long",
        without: Some("generate_drop"),
    },
    Stage {
        name: "  tag_processor, long script in QuickJS",
        with: "tag_processor_quickjs",
        without: Some("generate_drop"),
    },
    Stage {
        name: "opcua -> drop (bytes of the socket to message)",
        with: "opcua_drop",
        without: None,
    },
    Stage {
        name: "  tag_processor, static script",
        with: "opcua_tag_processor_drop",
        without: Some("opcua_drop"),
    },
    Stage {
        name: "  tag_processor, pure script on the value",
        with: "opcua_pure_drop",
        without: Some("opcua_drop"),
    },
    Stage {
        name: "  the same in QuickJS",
        with: "opcua_quickjs_drop",
        without: Some("opcua_drop"),
    },
    Stage {
        name: "    downsampler after the static script",
        with: "opcua_downsampler_drop",
        without: Some("opcua_tag_processor_drop"),
    },
    Stage {
        name: "    stream_processor, most values no source",
        with: "opcua_stream_processor_drop",
        without: Some("opcua_tag_processor_drop"),
    },
    Stage {
        name: "    topic_browser",
        with: "opcua_topic_browser_drop",
        without: Some("opcua_tag_processor_drop"),
    },
    Stage {
        name: "generate -> classic_to_core -> drop, of one value",
        with: "classic_to_core_drop",
        without: None,
    },
];

fn engine(row: &str) -> &'static str {
    if row.contains("quickjs") { QUICKJS } else { "" }
}

pub fn run(effort: Effort, only: Option<&str>) -> Result<Vec<Row>> {
    let binary = binary_under_test()?;
    let wanted = |name: &str| only.is_none_or(|word| name.contains(word));
    let mut rows = Vec::new();
    let generated = [
        ("generate_drop", None),
        ("tag_processor_static", Some(STATIC)),
        ("tag_processor_pure", Some(PURE)),
        ("tag_processor_long", Some(LONG)),
        ("tag_processor_quickjs", Some(LONG)),
    ];
    for (name, script) in generated.into_iter().filter(|(name, _)| wanted(name)) {
        println!("measuring {name}");
        let file = format!("{}{}", engine(name), yaml(GENERATE, script, ""));
        rows.push(UnderTest::start(&binary, &file)?.measure(name, effort)?);
    }
    if wanted("classic_to_core_drop") {
        println!("measuring classic_to_core_drop");
        rows.push(UnderTest::start(&binary, CLASSIC)?.measure("classic_to_core_drop", effort)?);
    }
    let collected = [
        ("opcua_drop", None),
        ("opcua_tag_processor_drop", Some(STATIC)),
        ("opcua_pure_drop", Some(PURE)),
        ("opcua_quickjs_drop", Some(PURE)),
    ];
    for (name, script) in collected.into_iter().filter(|(name, _)| wanted(name)) {
        rows.push(collected_row(&binary, effort, name, script, "")?);
    }
    for (name, later) in LATER_STAGES.into_iter().filter(|(name, _)| wanted(name)) {
        rows.push(collected_row(&binary, effort, name, Some(STATIC), later)?);
    }
    rows.extend(plant::run(&binary, effort, wanted)?);
    Ok(rows)
}

/// 10,000 tags, each changing ten times per second: enough to measure, and no more than one core can sustain.
fn collected_row(binary: &Path, effort: Effort, name: &str, script: Option<&str>, later: &str) -> Result<Row> {
    println!("measuring {name}");
    let fast_nodes = TAGS.to_string();
    let arguments = ["--slow-nodes", "0", "--fast-nodes", &fast_nodes, "--fast-rate", "0.1"];
    let plant = Plant::start(binary, &arguments)?;
    let input = format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    subscribeEnabled: true\n",
        plant.endpoint
    );
    let file = format!("{}{}", engine(name), yaml(&input, script, later));
    let mut collector = UnderTest::start(binary, &file)?;
    collector.wait_until("thalweg_opcua_items_monitored", TAGS)?;
    // Filtered or remembered messages cost as much as output messages.
    collector.measure_by("thalweg_flow_in_total", name, effort)
}
