//! The second client (`tests/brokers/kafka`), which works with any broker.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Returns a file or folder of a tool that the tests need. Tests are never skipped: a missing tool fails the test and
/// says what to do.
pub fn tool(variable: &str, below_cache: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        Some(cache?.join("thalweg").join(below_cache))
    });
    let path = path.filter(|path| path.exists());
    path.expect("the test needs a Kafka broker; install it with: cargo xtask tools")
}

pub fn program() -> PathBuf {
    tool("THALWEG_TEST_KAFKA", "kafka/kafka")
}

pub struct Client {
    /// `host:port` of the broker.
    pub address: String,
}

impl Client {
    /// Each record is `{"key", "value", "headers", "partition"}`.
    pub fn produce(&self, topic: &str, records: &[Value]) {
        self.produce_compressed(topic, "none", records);
    }

    pub fn try_to_produce(&self, topic: &str, records: &[Value]) -> Result<String, String> {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        self.attempt(&["produce", "-topic", topic], &lines)
    }

    pub fn produce_compressed(&self, topic: &str, compression: &str, records: &[Value]) {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        self.client(&["produce", "-topic", topic, "-compression", compression], &lines);
    }

    /// Deletes the first records of a topic's first partition.
    pub fn delete_before(&self, topic: &str, offset: i64) {
        self.client(&["delete", "-topic", topic, "-before", &offset.to_string()], "");
    }

    /// Waits for the first records of a topic.
    pub fn consume(&self, topic: &str, count: usize) -> Vec<Value> {
        let printed = self.client(&["consume", "-topic", topic, "-count", &count.to_string()], "");
        printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn values(&self, topic: &str, count: usize) -> Vec<String> {
        let records = self.consume(topic, count);
        records
            .iter()
            .map(|record| record["value"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Returns the committed offset of each partition, in their order.
    pub fn committed(&self, group: &str) -> Vec<i64> {
        let printed = self.client(&["committed", "-group", group], "");
        let lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["offset"].as_i64().unwrap()).collect()
    }

    fn client(&self, arguments: &[&str], input: &str) -> String {
        let printed = self.attempt(arguments, input);
        printed.unwrap_or_else(|told| panic!("{arguments:?}: {told}"))
    }

    /// `Err` describes the failure.
    pub fn attempt(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut child = Command::new(program())
            .args(arguments)
            .args(["-addresses", &self.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

/// Records with these values, and varying keys.
pub fn numbered(range: std::ops::Range<usize>) -> Vec<Value> {
    range
        .map(|n| json!({"key": format!("k{}", n % 7), "value": n.to_string()}))
        .collect()
}

/// Distributes records over this many partitions in turn.
pub fn spread(partitions: usize, mut records: Vec<Value>) -> Vec<Value> {
    for (n, record) in records.iter_mut().enumerate() {
        record["partition"] = (n % partitions).into();
    }
    records
}
