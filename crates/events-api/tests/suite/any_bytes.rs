//! The fuzz entry points accept any bytes: valid calls with some bytes changed.

use serde_json::Value;
use thalweg_events_api::{EventsApiOptions, fuzz};
use thalweg_log::disk::sim::Random;

use crate::face::Face;

const CALLS: [&str; 7] = [
    r#"["stream.write","s-1",{"type":"t","data":{"a":[1.5e3]}},{"id":"0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819","expectedVersion":-1}]"#,
    r#"["stream.append","s-1",[{"type":"t","data":{}}],{"expectedVersion":"any"}]"#,
    r#"["category.get","s",{"position":1,"batchSize":-1,"correlation":"c","consumerGroup":{"member":0,"size":2},"types":["t"]}]"#,
    r#"["ns.create","a",{"token":"ns_YQ_0000000000000000000000000000000000000000000000000000000000000000","metadata":{}}]"#,
    r#"["ns.streams",{"prefix":"s","cursor":"","limit":5}]"#,
    r#"["sub.create","x",{"category":"s","from":"start","strategy":"roundRobin"}]"#,
    r#"["retention.set",{"category":"s"},{"$maxAge":5,"maxCount":null}]"#,
];
const LINE: &str =
    r#"{"id":"","stream":"s","type":"t","pos":0,"gpos":1,"data":{},"meta":null,"time":"2026-01-15T10:00:00Z"}"#;
const QUERY: &str =
    "category=c&consumer=1&size=2&position=5&types=A,B&correlation=d&lastEventId=7&data=true&catchup=true";

/// Replaces, removes or duplicates some bytes.
fn changed(text: &str, random: &mut Random) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] = random.number() as u8,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, bytes[at]),
        }
    }
    bytes
}

#[tokio::test]
async fn whatever_comes_is_answered_in_json_or_in_a_sentence() {
    let options = EventsApiOptions {
        test_mode: true,
        ..EventsApiOptions::default()
    };
    let face = Face::with(options).await;
    let mut random = Random::new(7);
    for _ in 0..300 {
        for call in CALLS {
            let call = changed(call, &mut random);
            let (status, body) = fuzz::call(&face.server, &call).await;
            let json = serde_json::from_slice::<Value>(&body);
            assert!(json.is_ok(), "{status} {}", String::from_utf8_lossy(&body));
        }
        let lines = [changed(LINE, &mut random), b"\n".to_vec(), changed(LINE, &mut random)].concat();
        fuzz::lines(&lines, random.below(lines.len() as u64) as usize).await;
        let (status, body) = fuzz::import(&face.server, &lines).await;
        assert!(
            status == 200 && body.starts_with(b"data: {"),
            "{status} {}",
            String::from_utf8_lossy(&body)
        );
        let query = String::from_utf8_lossy(&changed(QUERY, &mut random)).into_owned();
        if let Some((status, first)) = fuzz::subscribe(&face.server, &query).await {
            assert!(
                matches!(status, 200 | 400 | 404) && !first.is_empty(),
                "{status} {query}"
            );
        }
    }
}
