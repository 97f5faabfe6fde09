//! Measures the cost of the simulator. The program starts itself again as the simulator (`serve`), connects one client,
//! browses the `Fast` and `Wide` folders, monitors every fast node the way the collector does, and prints CPU time and
//! memory of both processes. Usage: `measure <fast nodes> <seconds between changes> <seconds to measure> [wide nodes]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opcua::client::{ClientBuilder, IdentityToken, MonitoredItemMap, OnSubscriptionNotificationCore, Session};
use opcua::types::{
    BrowseDescription, BrowseDirection, ByteString, DataChangeFilter, DataChangeNotification, DataChangeTrigger,
    DeadbandType, EndpointDescription, ExtensionObject, MessageSecurityMode, MonitoredItemCreateRequest,
    MonitoringMode, MonitoringParameters, NodeId, NotificationMessage, ReferenceTypeId, StatusCode, TimestampsToReturn,
    UserTokenPolicy,
};
use thalweg_simulator::SimulatorOptions;

/// The allocator of the `thalweg` program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ITEMS_PER_SUBSCRIPTION: u32 = 10_000;
const ITEMS_PER_CALL: u32 = 1_000;
const NODES_PER_PAGE: u32 = 10_000;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", nodes, rate, wide] => serve(nodes, rate, wide).await,
        [nodes, rate, seconds] => measure(nodes, rate, seconds, "0").await,
        [nodes, rate, seconds, wide] => measure(nodes, rate, seconds, wide).await,
        _ => println!("usage: measure <fast nodes> <seconds between changes> <seconds to measure> [wide nodes]"),
    }
}

async fn serve(nodes: &str, rate: &str, wide: &str) {
    let options = SimulatorOptions {
        port: 0,
        slow_nodes: 0,
        fast_nodes: nodes.parse().unwrap(),
        fast_rate: rate.parse().unwrap(),
        wide: wide.parse().unwrap(),
        max_references_per_node: NODES_PER_PAGE,
        secure: false,
        pki_dir: std::env::temp_dir().join("thalweg-simulator-measure"),
        ..SimulatorOptions::default()
    };
    let mut simulator = thalweg_simulator::start(options).await.unwrap();
    println!("{}", simulator.ready_line());
    simulator.wait().await.unwrap();
}

/// The simulator's process, killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(nodes: &str, rate: &str, seconds: &str, wide: &str) {
    let started = Instant::now();
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["serve", nodes, rate, wide])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = Server(child);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = |at: usize| line.split_whitespace().nth(at).unwrap().to_owned();
    let (endpoint, stats_url) = (address(1), address(3));
    let id = server.0.id();
    println!("start: {:.2} s, {} MB", started.elapsed().as_secs_f64(), memory_mb(id));

    let session = connect(&endpoint).await;
    for folder in ["Fast", "Wide"] {
        browse(&session, folder, id).await;
    }
    let received = Arc::new(AtomicU64::new(0));
    subscribe(&session, nodes.parse().unwrap(), &received, id).await;

    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = Sample::take(id, &stats_url, &received).await;
    tokio::time::sleep(Duration::from_secs_f64(seconds.parse().unwrap())).await;
    let after = Sample::take(id, &stats_url, &received).await;
    before.compare(&after);
    println!(
        "memory: simulator {} MB, client {} MB",
        memory_mb(id),
        memory_mb(std::process::id())
    );
}

async fn connect(endpoint: &str) -> Arc<Session> {
    let mut client = ClientBuilder::new()
        .application_name("measure")
        .application_uri("urn:measure")
        .pki_dir(std::env::temp_dir().join("thalweg-simulator-measure-client"))
        .max_array_length(10_000_000)
        .max_message_size(1 << 30)
        .max_chunk_count(100_000)
        .request_timeout(Duration::from_secs(60))
        .client()
        .unwrap();
    let endpoint: EndpointDescription = (
        endpoint,
        "None",
        MessageSecurityMode::None,
        UserTokenPolicy::anonymous(),
    )
        .into();
    let (session, event_loop) = client
        .connect_to_matching_endpoint(endpoint, IdentityToken::Anonymous)
        .await
        .unwrap();
    event_loop.spawn();
    assert!(session.wait_for_connection().await);
    session
}

async fn browse(session: &Session, folder: &str, server: u32) {
    let (clock, cpu) = (Instant::now(), cpu_seconds(server));
    let request = BrowseDescription {
        node_id: NodeId::new(3, folder),
        browse_direction: BrowseDirection::Forward,
        reference_type_id: ReferenceTypeId::HierarchicalReferences.into(),
        include_subtypes: true,
        node_class_mask: 0,
        result_mask: 63,
    };
    let mut page = session.browse(&[request], 0, None).await.unwrap().remove(0);
    let mut count = 0;
    loop {
        count += page.references.as_ref().map_or(0, Vec::len);
        let point: ByteString = page.continuation_point;
        if point.is_null_or_empty() {
            break;
        }
        page = session.browse_next(false, &[point]).await.unwrap().remove(0);
    }
    if count > 0 {
        let cpu = cpu_seconds(server) - cpu;
        let each = cpu * 1e6 / count as f64;
        println!(
            "browse {folder}: {count} nodes in {:.2} s, simulator {each:.2} us per node",
            clock.elapsed().as_secs_f64()
        );
    }
}

struct Count(Arc<AtomicU64>);

impl OnSubscriptionNotificationCore for Count {
    fn on_subscription_notification(&mut self, message: NotificationMessage, _: MonitoredItemMap<'_>) {
        for data in message.notification_data.into_iter().flatten() {
            if let Some(changes) = data.inner_as::<DataChangeNotification>() {
                let items = changes.monitored_items.as_ref().map_or(0, Vec::len);
                self.0.fetch_add(items as u64, Ordering::Relaxed);
            }
        }
    }
}

async fn subscribe(session: &Session, nodes: u32, received: &Arc<AtomicU64>, server: u32) {
    let (clock, cpu) = (Instant::now(), cpu_seconds(server));
    for first in (1..=nodes).step_by(ITEMS_PER_SUBSCRIPTION as usize) {
        let callback = Count(Arc::clone(received));
        let interval = Duration::from_millis(100);
        let subscription = session
            .create_subscription(interval, 500, 50, 10_000, 0, true, callback)
            .await
            .unwrap();
        let last = nodes.min(first + ITEMS_PER_SUBSCRIPTION - 1);
        for from in (first..=last).step_by(ITEMS_PER_CALL as usize) {
            let items = (from..=last.min(from + ITEMS_PER_CALL - 1)).map(item).collect();
            let created = session
                .create_monitored_items(subscription, TimestampsToReturn::Both, items)
                .await
                .unwrap();
            assert!(created.iter().all(|item| item.result.status_code == StatusCode::Good));
        }
    }
    let each = (cpu_seconds(server) - cpu) * 1e6 / f64::from(nodes.max(1));
    println!(
        "subscribe: {nodes} items in {:.2} s, simulator {each:.2} us per item",
        clock.elapsed().as_secs_f64()
    );
}

fn item(number: u32) -> MonitoredItemCreateRequest {
    MonitoredItemCreateRequest {
        item_to_monitor: NodeId::new(3, format!("FastUInt{number}")).into(),
        monitoring_mode: MonitoringMode::Reporting,
        requested_parameters: MonitoringParameters {
            client_handle: number,
            sampling_interval: 0.0,
            filter: ExtensionObject::from_message(DataChangeFilter {
                trigger: DataChangeTrigger::StatusValue,
                deadband_type: DeadbandType::Absolute as u32,
                deadband_value: 0.0,
            }),
            queue_size: 10,
            discard_oldest: true,
        },
    }
}

/// The values that are compared over the measured time.
struct Sample {
    at: Instant,
    received: u64,
    published: u64,
    lost: u64,
    behind_seconds: f64,
    server_cpu: f64,
    client_cpu: f64,
}

impl Sample {
    async fn take(server: u32, stats_url: &str, received: &AtomicU64) -> Sample {
        let stats = fetch(stats_url).await;
        let fast = &stats["groups"]["fast"];
        Sample {
            at: Instant::now(),
            received: received.load(Ordering::Relaxed),
            published: fast["published"].as_u64().unwrap(),
            lost: fast["lost_overflow"].as_u64().unwrap(),
            behind_seconds: fast["behind_seconds"].as_f64().unwrap(),
            server_cpu: cpu_seconds(server),
            client_cpu: cpu_seconds(std::process::id()),
        }
    }

    fn compare(&self, after: &Sample) {
        let wall = (after.at - self.at).as_secs_f64();
        let published = (after.published - self.published) as f64;
        let (server, client) = (after.server_cpu - self.server_cpu, after.client_cpu - self.client_cpu);
        println!(
            "{wall:.1} s: published {:.0}/s, received {:.0}/s, lost {}, behind {:.2} s",
            published / wall,
            (after.received - self.received) as f64 / wall,
            after.lost,
            after.behind_seconds,
        );
        println!(
            "simulator {:.3} us per value ({:.2} of a core), client {:.3} us per value; since start published {} received {}",
            server * 1e6 / published,
            server / wall,
            client * 1e6 / published,
            after.published,
            after.received,
        );
    }
}

async fn fetch(url: &str) -> serde_json::Value {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// User and system time of a process, from fields 14 and 15 of its `stat`.
fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn memory_mb(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}
