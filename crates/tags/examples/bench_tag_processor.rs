//! The cost of `tag_processor` per message: `cargo run --release -p thalweg-tags --example bench_tag_processor [PART OF
//! A NAME]`.
//!
//! OPC UA values of 1,000 tags with twelve metadata keys, in batches of 1,000, through the real processor. Prints
//! medians over rounds of wall time and of the process's CPU time, which only the processor uses.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::alloc::System;
use std::sync::Arc;
use std::time::Instant;

use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::{ComponentRegistry, ParseContext, Processor, StageContext};
use thalweg_record::{Ack, Batch, FlowBalance, Message, MetaMap, Metadata, Payload, Ticks, Value, ValueQuality};
use thalweg_telemetry::alloc::{CountingAllocator, allocated};
use thalweg_telemetry::cpu_time;

#[global_allocator]
static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);

const TAGS: u64 = 1000;

fn messages(maps: &[Arc<MetaMap>], round: u32) -> Vec<Message> {
    let message = |(i, map): (usize, &Arc<MetaMap>)| {
        let time = Ticks::from_unix_millis(1_700_000_000_000 + i64::from(round));
        let stamps = ValueQuality {
            source_time: time,
            server_time: time,
            status: 0,
        };
        Message::new(
            Payload::Value(Value::U32(round + i as u32)),
            Metadata::stamped(map.clone(), stamps),
        )
    };
    maps.iter().enumerate().map(message).collect()
}

fn maps() -> Vec<Arc<MetaMap>> {
    (0..TAGS)
        .map(|i| {
            let entries = [
                ("opcua_attr_nodeid", format!("ns=3;s=FastUInt{i}")),
                ("opcua_attr_browsename", format!("FastUInt{i}")),
                ("opcua_attr_description", "Constantly increasing value(s)".to_owned()),
                ("opcua_attr_nodeclass", "NodeClassVariable".to_owned()),
                ("opcua_attr_accesslevel", "AccessLevelType(3)".to_owned()),
                ("opcua_attr_datatype", "uint32".to_owned()),
                ("opcua_tag_name", format!("FastUInt{i}")),
                ("opcua_tag_group", "OpcPlc.Telemetry.Fast".to_owned()),
                ("opcua_tag_path", "OpcPlc.Telemetry.Fast".to_owned()),
                ("opcua_tag_type", "number".to_owned()),
            ];
            Arc::new(MetaMap::new(entries.map(|(k, v)| (k.into(), v.into())), Some(i)))
        })
        .collect()
}

fn processor(body: &str) -> Box<dyn Processor> {
    let text = format!(
        "input: {{generate: {{mapping: root = 1}}}}\npipeline:\n  processors:\n    - tag_processor:\n{body}\noutput: {{drop: {{}}}}\n"
    );
    let loaded = load(&SourceText::new("bench.yaml", text), &|_| None, &LoadOptions::default());
    let mut registry = ComponentRegistry::new();
    thalweg_tags::register(&mut registry, &Arc::default());
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let spec = context.processor(&loaded.config.flows[0].pipeline.processors[0]);
    assert!(!loaded.diagnostics.has_errors(), "{:?}", loaded.diagnostics.sorted());
    spec.unwrap().build(StageContext::for_tests("bench")).unwrap()
}

fn measure(name: &str, body: &str) {
    if std::env::args().nth(1).is_some_and(|only| !name.contains(&only)) {
        return;
    }
    let (maps, balance) = (maps(), Arc::new(FlowBalance::default()));
    let mut processor = processor(body);
    let mut costs: Vec<[f64; 4]> = Vec::new();
    for round in 0..60 {
        let messages = messages(&maps, round);
        let batch = Batch::new(messages, Ack::enter(&balance, TAGS as usize, |_| {}));
        let mut out = Vec::with_capacity(1);
        let (allocations, bytes) = allocated();
        let (start, cpu) = (Instant::now(), cpu_time());
        processor.process(batch, &mut out);
        let cpu = (cpu_time() - cpu).as_nanos() as f64 / TAGS as f64;
        let wall = start.elapsed().as_nanos() as f64 / TAGS as f64;
        let (more_allocations, more_bytes) = allocated();
        let per = |after: u64, before: u64| (after - before) as f64 / TAGS as f64;
        costs.push([cpu, wall, per(more_allocations, allocations), per(more_bytes, bytes)]);
        assert_eq!(out.iter().map(Batch::len).sum::<usize>(), TAGS as usize);
        out.into_iter().for_each(|batch| batch.ack.delivered());
    }
    let mut steady = costs.split_off(20);
    let mut median = |of: usize| {
        steady.sort_by(|a, b| a[of].total_cmp(&b[of]));
        steady[steady.len() / 2][of]
    };
    let [cpu, wall, allocations, bytes] = [0, 1, 2, 3].map(&mut median);
    println!("{name:44} {cpu:6.0} ns CPU {wall:6.0} ns {allocations:6.2} allocations {bytes:6.0} bytes per message");
}

fn main() {
    let typical = "msg.meta.location_path = \"enterprise.site.area\";\n          msg.meta.data_contract = \"_historian\";\n          \
                   msg.meta.tag_name = msg.meta.opcua_tag_name;\n          return msg;";
    measure(
        "(a) typical: three assignments",
        &format!("        defaults: |\n          {typical}\n"),
    );
    measure(
        "(b) on the value",
        "        defaults: |\n          msg.meta.location_path = 'ent'; msg.meta.data_contract = '_raw'; msg.meta.tag_name = \
         msg.meta.opcua_tag_name;\n          msg.payload = msg.payload * 2 + 1;\n          msg.meta.x = 'unit-' + \
         msg.meta.opcua_attr_datatype;\n          return msg;\n",
    );
    measure(
        "(b'') more than arithmetic",
        "        defaults: |\n          msg.meta.location_path = 'ent'; msg.meta.data_contract = '_raw'; msg.meta.tag_name = \
         msg.meta.opcua_tag_name;\n          msg.payload = msg.payload > 500 ? 500 : msg.payload + 1;\n          return msg;\n",
    );
    measure(
        "(b') metadata that changes each time",
        "        defaults: |\n          msg.meta.location_path = 'ent'; msg.meta.data_contract = '_raw'; msg.meta.tag_name = \
         msg.meta.opcua_tag_name;\n          msg.meta.x = msg.payload * 2;\n          return msg;\n",
    );
    measure(
        "(c) defaults, a condition, advanced",
        &format!(
            "        defaults: |\n          {typical}\n        conditions:\n          - if: msg.meta.opcua_tag_name.endsWith('1')\n            \
             then: |\n              msg.meta.virtual_path = 'ones';\n              return msg;\n        advancedProcessing: |\n          \
             msg.payload = msg.payload + 1;\n          return msg;\n"
        ),
    );
    measure(
        "(d) a new object with spread metadata",
        "        defaults: |\n          return {payload: msg.payload, meta: {...msg.meta, location_path: 'ent', data_contract: \
         '_raw', tag_name: msg.meta.opcua_tag_name}};\n",
    );
}
