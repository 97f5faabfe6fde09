//! The cost of a message in a parcel, in nanoseconds and bytes, for tags that repeat each second and for others.
//!
//! `codec [--runs 5] [word ...]`: only rows whose name has one of the words. It shows the median over all seconds of
//! the runs, and the fastest second, which other load on the machine affects least.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use thalweg_record::codec::MessageEncoder;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, ValueQuality};

const TAGS: usize = 50_000;
const PARCEL_MESSAGES: usize = 15_000;
/// Each second every tag has a message.
const SECONDS: usize = 20;

/// The order of tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Same,
    /// Another order each second.
    Any,
    /// Each message has a map that no other message has, like those of a broker.
    OnlyOnce,
    /// The same, with maps that are also used elsewhere.
    OnlyOnceHeld,
}

const ROWS: [(&str, Order); 4] = [
    ("same order", Order::Same),
    ("any order", Order::Any),
    ("new maps", Order::OnlyOnce),
    ("new maps, held", Order::OnlyOnceHeld),
];

fn map(tag: usize) -> Arc<MetaMap> {
    let (line, machine) = (tag / 1000, tag / 20);
    let node = format!("ns=2;s=Plant.Line{line}.Machine{machine}.Tag{tag}");
    let own = [
        ("opcua_attr_nodeid", node.clone()),
        ("opcua_node_id", node),
        ("opcua_tag_name", format!("Tag{tag}")),
        ("opcua_attr_browsename", format!("Tag{tag}")),
        ("opcua_tag_path", format!("Plant.Line{line}.Machine{machine}")),
        (
            "umh_topic",
            format!("umh.v1.plant.line{line}.machine{machine}._raw.tag{tag}"),
        ),
    ];
    let shared = (0..12).map(|n| {
        let text = match n % 3 {
            0 => "float64".to_owned(),
            1 => format!("what all tags say, number {n}, of some length"),
            _ => format!("line {line}, which is shared by a thousand tags"),
        };
        (Text::from(format!("opcua_attr_shared_{n:02}")), text.into())
    });
    let own = own.map(|(key, text)| (Text::new_static(key), text.into()));
    Arc::new(MetaMap::new(own.into_iter().chain(shared), Some(tag as u64)))
}

fn message(map: &Arc<MetaMap>, n: usize) -> Message {
    let time = Ticks(17_000_000_000_000_000 + n as i64 * 200);
    let stamps = ValueQuality {
        source_time: time,
        server_time: time,
        status: 0,
    };
    Message::new(
        Payload::Value(Value::F64(n as f64 * 0.1)),
        Metadata::stamped(map.clone(), stamps),
    )
}

/// Adds the nanoseconds for each message in each second, and returns the bytes.
fn run(order: Order, spent: &mut Vec<f64>) -> f64 {
    let maps: Vec<_> = (0..TAGS).map(map).collect();
    let (mut encoder, mut bytes, mut held) = (MessageEncoder::default(), 0, Vec::new());
    let mut random = 1_u64;
    for second in 0..SECONDS {
        let tag = |n: usize| match order {
            Order::Any => {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                &maps[(random >> 33) as usize % TAGS]
            }
            _ => &maps[n],
        };
        let shared: Vec<_> = (0..TAGS).map(tag).collect();
        let messages: Vec<_> = (0..TAGS)
            .map(|n| match order {
                Order::OnlyOnce | Order::OnlyOnceHeld => message(&map(n), n),
                _ => message(shared[n], n),
            })
            .collect();
        held = match order {
            Order::OnlyOnceHeld => messages
                .iter()
                .map(|message| message.meta.shared_map().clone())
                .collect(),
            _ => held,
        };
        let start = Instant::now();
        for messages in messages.chunks(PARCEL_MESSAGES) {
            for message in messages {
                let _ = encoder.push(message);
            }
            bytes += black_box(encoder.finish()).len();
        }
        // Cached definitions were seen twice.
        if second >= 2 {
            spent.push(start.elapsed().as_nanos() as f64 / TAGS as f64);
        }
    }
    bytes as f64 / (TAGS * SECONDS) as f64
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let (mut runs, mut words) = (5, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--runs" => runs = args.next().and_then(|n| n.parse().ok()).unwrap_or(runs),
            _ => words.push(arg),
        }
    }
    println!(
        "{:<20}{:>14}{:>10}{:>18}",
        "", "ns / message", "fastest", "bytes / message"
    );
    for (name, order) in ROWS {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let (mut spent, mut bytes) = (Vec::new(), 0.0);
        for _ in 0..runs.max(1) {
            bytes = run(order, &mut spent);
        }
        spent.sort_by(f64::total_cmp);
        if let (Some(median), Some(fastest)) = (spent.get(spent.len() / 2), spent.first()) {
            println!("{name:<20}{median:>14.0}{fastest:>10.0}{bytes:>18.1}");
        }
    }
}
