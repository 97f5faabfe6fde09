//! Apache Kafka as a separate process: one node that is broker and controller. It starts in about two seconds, so tests
//! share one where they can.

use std::net::TcpListener;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use futures::executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;

use crate::client::{Client, tool};

/// Longer than a start takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// It needs little memory here.
const JAVA: [&str; 4] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
];
/// The broker ends with the pipe that the tests hold, and its folder is removed, however the tests end: nothing stays
/// behind.
const UNTIL_STDIN_ENDS: &str = r#"folder=$1; shift
"$@" & broker=$!
cat >/dev/null
kill -9 $broker; wait $broker 2>/dev/null
rm -rf "$folder""#;

pub struct ApacheKafka {
    client: Client,
    admin: AdminClient<DefaultClientContext>,
    ports: [u16; 2],
    folder: PathBuf,
    child: Child,
}

impl ApacheKafka {
    /// The broker that tests share: each test has its own topics and groups.
    pub fn shared() -> &'static ApacheKafka {
        static SHARED: OnceLock<ApacheKafka> = OnceLock::new();
        SHARED.get_or_init(ApacheKafka::start)
    }

    pub fn start() -> ApacheKafka {
        // It is removed when the broker ends.
        let folder = tempfile::Builder::new().prefix("kafka-").tempdir().unwrap().keep();
        let ports = free_ports();
        let address = format!("127.0.0.1:{}", ports[0]);
        let child = launch(&folder, ports);
        let admin = ClientConfig::new()
            .set("bootstrap.servers", &address)
            .set("reconnect.backoff.max.ms", "200")
            .create()
            .unwrap();
        let kafka = ApacheKafka {
            client: Client { address },
            admin,
            ports,
            folder,
            child,
        };
        kafka.wait_until_it_answers();
        kafka
    }

    /// Starts another cluster, without topics and groups, at the same address.
    pub fn rebuild_empty(&mut self) {
        self.stop();
        self.child = launch(&self.folder, self.ports);
        self.wait_until_it_answers();
    }

    /// Returns when the broker has the topic, which may be a moment after its controller.
    pub fn create(&self, topic: &str, partitions: i32) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        self.unless_done(|| {
            block_on(self.admin.create_topics([&new], &options()))
                .unwrap()
                .remove(0)
        });
        let begun = Instant::now();
        while !self.has_partitions(topic, partitions) {
            assert!(begun.elapsed() < PATIENCE, "{topic}: the broker does not have it");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the broker tells all partitions of the topic, with their leader.
    fn has_partitions(&self, topic: &str, partitions: i32) -> bool {
        let Ok(metadata) = self.admin.inner().fetch_metadata(Some(topic), Duration::from_secs(10)) else {
            return false;
        };
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        found.is_some_and(|found| {
            let led = found.partitions().iter().filter(|partition| partition.leader() >= 0);
            found.error().is_none() && led.count() == usize::try_from(partitions).unwrap()
        })
    }

    /// Returns when the broker has applied the deletion. Its controller answers earlier, and until then the broker
    /// accepts records into the old topic, even if another one of that name has been created: they are lost with it.
    pub fn delete(&self, topic: &str) {
        self.unless_done(|| {
            block_on(self.admin.delete_topics(&[topic], &options()))
                .unwrap()
                .remove(0)
        });
        let begun = Instant::now();
        while self.has(topic) {
            assert!(begun.elapsed() < PATIENCE, "{topic}: the broker still has it");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the broker knows the topic; also true if it does not answer.
    fn has(&self, topic: &str) -> bool {
        let Ok(metadata) = self.admin.inner().fetch_metadata(Some(topic), Duration::from_secs(10)) else {
            return true;
        };
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = found.map(|found| found.error().map(RDKafkaErrorCode::from));
        !matches!(error, None | Some(Some(RDKafkaErrorCode::UnknownTopicOrPartition)))
    }

    /// Deletes a topic and creates one of the same name.
    pub fn recreate(&self, topic: &str, partitions: i32) {
        self.delete(topic);
        self.create(topic, partitions);
    }

    /// Adds partitions up to this number.
    pub fn grow(&self, topic: &str, partitions: i32) {
        let new = NewPartitions::new(topic, usize::try_from(partitions).unwrap());
        self.unless_done(|| {
            block_on(self.admin.create_partitions([&new], &options()))
                .unwrap()
                .remove(0)
        });
    }

    /// Retries, because a broker may lag behind its own controller for a moment.
    fn unless_done(&self, act: impl Fn() -> Result<String, (String, RDKafkaErrorCode)>) {
        let begun = Instant::now();
        loop {
            match act() {
                Ok(_) => return,
                Err((topic, error)) => assert!(begun.elapsed() < PATIENCE, "{topic}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it coordinates groups, which is the last capability it gains.
    fn wait_until_it_answers(&self) {
        let begun = Instant::now();
        while let Err(told) = self.attempt(&["committed", "-group", "none"], "") {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(
                begun.elapsed() < PATIENCE,
                "Apache Kafka does not answer ({told}); it says: {log}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for ApacheKafka {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Deref for ApacheKafka {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(Duration::from_secs(10)))
        .request_timeout(Some(Duration::from_secs(10)))
}

fn free_ports() -> [u16; 2] {
    // Both at once, or the second could equal the first.
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Starts a broker in a folder that is created for it.
fn launch(folder: &Path, ports: [u16; 2]) -> Child {
    std::fs::create_dir_all(folder).unwrap();
    let settings = folder.join("server.properties");
    std::fs::write(&settings, properties(folder, ports)).unwrap();
    let formatted = java("kafka.tools.StorageTool")
        .args(["format", "--cluster-id", &cluster_id(), "--config"])
        .arg(&settings)
        .output()
        .expect("java is not installed; install it with: cargo xtask tools");
    let told = [formatted.stdout, formatted.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(
        formatted.status.success(),
        "the broker's storage cannot be formatted: {told}"
    );
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let broker = java("kafka.Kafka");
    Command::new("sh")
        .args(["-c", UNTIL_STDIN_ENDS, "sh"])
        .arg(folder)
        .arg(broker.get_program())
        .args(broker.get_args())
        .arg(&settings)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn java(class: &str) -> Command {
    let jars = tool("THALWEG_TEST_APACHE_KAFKA", "apache-kafka/jars").join("*");
    let mut java = Command::new("java");
    java.args(JAVA).arg("-cp").arg(jars).arg(class);
    java
}

fn properties(folder: &Path, [broker, controller]: [u16; 2]) -> String {
    let data = folder.join("data").display().to_string();
    format!(
        "process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2000000
"
    )
}

/// Each cluster has its own id.
fn cluster_id() -> String {
    static MADE: AtomicU64 = AtomicU64::new(1);
    let id = u128::from(std::process::id()) << 64 | u128::from(MADE.fetch_add(1, Ordering::Relaxed));
    BASE64_URL_SAFE_NO_PAD.encode(id.to_be_bytes())
}
