//! `bench events`: the event store as a separate server, under the load of the reference system's profile and under writers
//! alone. The load is in this process, through real sockets with keep-alive, one request at a time on each.

mod closed;
mod open;

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::Effort;
use super::environment;
use super::report::{self, Row};
use super::under_test::Costs;
use crate::shell::binary_under_test;

const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";
/// As in the reference system's profile: streams of one category, shared by all connections; writes per read; bytes of a write;
/// messages of a read.
const STREAMS: u64 = 100;
const WRITES_PER_READ: u64 = 10;
const BODY: usize = 299;
const READ: usize = 10;
const BATCH: usize = 1000;

/// Messages of the category that is read, and of one page.
const CATEGORY: u64 = 10_000_000;
const CATEGORY_QUICK: u64 = 200_000;
const PAGE: usize = 1000;
/// Duration of the measurement that all indexes must keep up with.
const BATCH_SECONDS: f64 = 60.0;

/// The requests of a connection.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Mix,
    Write,
    /// `/health`, which touches nothing: the cost of HTTP alone on this machine at this moment.
    Health,
    Batch,
    /// Pages of a category, at random positions.
    Category,
    /// One of them writes, the others are notified.
    Fanout,
}

impl Load {
    /// The responses are so short that a thread per connection would cost more than the measured work.
    fn is_many_at_once(self) -> bool {
        matches!(self, Load::Mix | Load::Write | Load::Health)
    }
}

/// Name, durability, connections, load.
const ROWS: [(&str, &str, usize, Load); 11] = [
    ("http_health", "fsync", 10, Load::Health),
    ("load_mix_memory", "memory", 10, Load::Mix),
    ("load_mix_os", "os", 10, Load::Mix),
    ("load_mix_fsync", "fsync", 10, Load::Mix),
    ("write_fsync_1", "fsync", 1, Load::Write),
    ("write_fsync_10", "fsync", 10, Load::Write),
    ("write_fsync_100", "fsync", 100, Load::Write),
    ("write_fsync_1000", "fsync", 1000, Load::Write),
    ("batch_append_fsync", "fsync", 4, Load::Batch),
    ("category_read", "fsync", 4, Load::Category),
    ("sse_fanout_1000", "fsync", 1001, Load::Fanout),
];

pub fn run(effort: Effort, only: Option<&str>) -> Result<Vec<Row>> {
    let binary = binary_under_test()?;
    let wanted = |name: &str| only.is_none_or(|word| name.contains(word));
    let mut rows = Vec::new();
    for (name, durability, connections, load) in ROWS.into_iter().filter(|(name, ..)| wanted(name)) {
        println!("measuring {name}");
        rows.push(measure(&binary, name, durability, connections, load, effort)?);
    }
    if wanted(open::IDLE) {
        println!("measuring {}", open::IDLE);
        rows.push(open::idle(&binary, effort)?);
    }
    if wanted(open::EXIT) {
        println!("measuring {}", open::EXIT);
        rows.push(open::exit(&binary, effort)?);
    }
    println!(
        "\nhttp_health: the cost of HTTP alone; load_mix: {WRITES_PER_READ} writes of {BODY} bytes for a read of {READ} messages, {STREAMS} streams; batch_append: \
         one op is one of {BATCH} messages, for {BATCH_SECONDS} s, all indexes built; category_read: one op is one of {PAGE} \
         messages, of {CATEGORY} in the category ({CATEGORY_QUICK} with --quick); sse_fanout: one op is one poke to one of 1,000 \
         subscribers, its time from the begin of the write; sse_idle: one op is one poke to one of 10,000, its time from the answer \
         to the last of all, p99 the worst; exit: one op is one end of the server from SIGTERM on; {:.0} s each of the others; CPU, bytes and allocs are the server's",
        effort.seconds()
    );
    report::print("events", &rows, &environment::bench_folder());
    Ok(rows)
}

/// `thalweg events serve`, in its own folder.
pub struct Server {
    child: Child,
    pub port: u16,
    folder: TempDir,
}

impl Server {
    pub fn start(binary: &Path, durability: &str) -> Result<Server> {
        let below = environment::bench_folder();
        if let Some(refused) = environment::refused(&below) {
            bail!(refused);
        }
        std::fs::create_dir_all(&below)?;
        Server::start_in(binary, durability, tempfile::tempdir_in(&below)?)
    }

    /// In the same folder.
    pub fn killed_and_started(mut self, binary: &Path, durability: &str) -> Result<Server> {
        self.child.kill()?;
        self.child.wait()?;
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir()?);
        Server::start_in(binary, durability, folder)
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .context("no VmRSS")?
            .parse()?;
        Ok(kib << 10)
    }

    fn start_in(binary: &Path, durability: &str, folder: TempDir) -> Result<Server> {
        let mut command = Command::new(binary);
        command.args(["events", "serve", "--port=0", "--token", TOKEN, "--min-free=0"]);
        match durability {
            "memory" => command.arg("--test-mode"),
            mode => command.args(["--data-dir=data", "--durability", mode]),
        };
        let mut child = command.current_dir(folder.path()).stderr(Stdio::piped()).spawn()?;
        let mut log = BufReader::new(child.stderr.take().context("no log")?);
        let (mut line, mut all) = (String::new(), String::new());
        let port = loop {
            line.clear();
            ensure!(log.read_line(&mut line)? > 0, "the server did not start:\n{all}");
            all.push_str(&line);
            let address = line
                .split("address=")
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next());
            if let Some(port) = address.and_then(|address| address.rsplit(':').next()) {
                break port.parse()?;
            }
        };
        // Nobody reads on: its output would block it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Server { child, port, folder })
    }

    pub fn costs(&self) -> Result<Costs> {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let text = ureq::get(url).call()?.body_mut().read_to_string()?;
        let value = |name: &str| -> f64 {
            let line = text
                .lines()
                .find(|line| line.starts_with(name) && line.as_bytes().get(name.len()) == Some(&b' '));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
                .unwrap_or(f64::NAN)
        };
        Ok(Costs {
            cpu_seconds: value("process_cpu_seconds_total"),
            bytes: value("thalweg_process_allocated_bytes_total"),
            allocations: value("thalweg_process_allocations_total"),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A kept-alive connection with minimal cost of its own: the machine is for the server.
pub struct Connection {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    pub fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream: BufReader::new(stream),
            line: String::new(),
            body: Vec::new(),
        })
    }

    /// Body of the last response.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn call(&mut self, request: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(request)?;
        let (mut len, mut is_ok) = (0, false);
        loop {
            self.line.clear();
            ensure!(
                self.stream.read_line(&mut self.line)? > 0,
                "the server closed a connection"
            );
            is_ok |= self.line.starts_with("HTTP/1.1 200 ");
            if let Some(value) = self.line.strip_prefix("content-length: ") {
                len = value.trim().parse()?;
            }
            if self.line == "\r\n" {
                break;
            }
        }
        self.body.resize(len, 0);
        self.stream.read_exact(&mut self.body)?;
        ensure!(is_ok, "refused: {}", String::from_utf8_lossy(&self.body));
        Ok(())
    }
}

pub fn request(body: &str) -> Vec<u8> {
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Requests for each stream, built before the measurement.
struct Requests {
    writes: Vec<Vec<u8>>,
    reads: Vec<Vec<u8>>,
    batches: Vec<Vec<u8>>,
    pages: Vec<Vec<u8>>,
    health: Vec<Vec<u8>>,
}

impl Requests {
    /// `messages`: number of messages of the category that is read.
    fn new(messages: u64) -> Requests {
        let names = || (0..STREAMS).map(|n| format!("account-{n}"));
        let message = |len: usize| {
            let text = "x".repeat(len.saturating_sub(46));
            format!(r#"{{"type":"Deposited","data":{{"amount":12345,"text":"{text}"}}}}"#)
        };
        let write = |name: String| {
            let frame = format!(r#"["stream.write","{name}",]"#).len();
            request(&format!(r#"["stream.write","{name}",{}]"#, message(BODY - frame)))
        };
        let batch = |name: String| {
            let messages = vec![message(256); BATCH].join(",");
            request(&format!(r#"["stream.append","{name}",[{messages}]]"#))
        };
        let read = |name: String| request(&format!(r#"["stream.get","{name}",{{"batchSize":{READ}}}]"#));
        Requests {
            writes: names().map(write).collect(),
            reads: names().map(read).collect(),
            batches: names().take(4).map(batch).collect(),
            pages: (0..1000)
                .map(|n| {
                    let from = 1 + n * messages / 1001;
                    request(&format!(
                        r#"["category.get","account",{{"position":{from},"batchSize":{PAGE}}}]"#
                    ))
                })
                .collect(),
            health: vec![b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n".to_vec()],
        }
    }

    /// The request chosen by a number, and its weight.
    fn choose(&self, load: Load, n: u64) -> Option<(&Vec<u8>, u64)> {
        let pick = |all: &'_ Vec<Vec<u8>>| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % all.len();
        let (all, ops) = match load {
            Load::Mix if n.is_multiple_of(WRITES_PER_READ + 1) => (&self.reads, 1),
            Load::Mix | Load::Write => (&self.writes, 1),
            Load::Health => (&self.health, 1),
            Load::Batch => (&self.batches, BATCH as u64),
            Load::Category => (&self.pages, PAGE as u64),
            // Counted by the subscribers, which are notified.
            Load::Fanout => (&self.writes, 0),
        };
        Some((all.get(pick(all))?, ops))
    }
}

/// Connections that send the next request as soon as they get a response.
struct Asking<'a> {
    load: Load,
    requests: &'a Requests,
    /// Per connection, the number that selects its request.
    next: Vec<u64>,
    stop: &'a AtomicBool,
    counting: &'a AtomicBool,
    done: &'a AtomicU64,
    times: Vec<u32>,
}

impl<'a> closed::Load<'a> for Asking<'a> {
    fn next(&mut self, connection: usize) -> Option<&'a [u8]> {
        let n = self.next.get_mut(connection).filter(|_| !self.stop.load(Relaxed))?;
        *n += 1;
        self.requests
            .choose(self.load, *n)
            .map(|(request, _)| request.as_slice())
    }

    fn answered(&mut self, began: Instant) {
        self.done.fetch_add(1, Relaxed);
        if self.counting.load(Relaxed) {
            self.times.push(nanos(began));
        }
    }
}

fn nanos(began: Instant) -> u32 {
    u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// Writes this many messages into the category.
fn fill(server: &Server, requests: &Requests, messages: u64) -> Result<()> {
    let mut connection = Connection::open(server.port)?;
    for n in 0..messages.div_ceil(BATCH as u64) {
        let (request, _) = requests.choose(Load::Batch, n).context("no request")?;
        connection.call(request)?;
        if n % 1000 == 999 {
            println!("  {} of {messages} messages written", (n + 1) * BATCH as u64);
        }
    }
    Ok(())
}

/// A subscriber that is notified of every message.
struct Subscriber {
    stream: BufReader<TcpStream>,
    line: String,
}

impl Subscriber {
    fn open(port: u16) -> Result<Subscriber> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut subscriber = Subscriber {
            stream: BufReader::with_capacity(4096, stream),
            line: String::new(),
        };
        let head = format!("GET /subscribe?all=true&token={TOKEN} HTTP/1.1\r\nhost: bench\r\n\r\n");
        subscriber.stream.get_mut().write_all(head.as_bytes())?;
        while !subscriber.line.starts_with(": ready") {
            subscriber.next_line()?;
            let line = &subscriber.line;
            ensure!(
                !line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.1 200 "),
                "refused: {line}"
            );
        }
        Ok(subscriber)
    }

    /// `false` when nothing came for a while.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        loop {
            match self.stream.read_line(&mut self.line) {
                Ok(0) => bail!("a subscription has ended"),
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.line.is_empty() {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the next line announces a message.
    fn is_poked(&mut self) -> Result<bool> {
        Ok(self.next_line()? && self.line.starts_with("event: poke"))
    }
}

fn measure(binary: &Path, name: &str, durability: &str, connections: usize, load: Load, effort: Effort) -> Result<Row> {
    let server = Server::start(binary, durability)?;
    let messages = if effort.is_quick() { CATEGORY_QUICK } else { CATEGORY };
    let requests = Requests::new(messages);
    if load == Load::Category {
        fill(&server, &requests, messages)?;
    }
    let (stop, counting, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    // Start times of the writes of which the first subscriber was not notified yet.
    let written: Mutex<VecDeque<Instant>> = Mutex::default();
    let subscribed = AtomicU64::new(0);
    let told = |number: usize| -> Result<Vec<u32>> {
        let (mut subscriber, mut times) = (Subscriber::open(server.port)?, Vec::new());
        subscribed.fetch_add(1, Relaxed);
        while !stop.load(Relaxed) {
            if !subscriber.is_poked()? {
                continue;
            }
            done.fetch_add(1, Relaxed);
            if number == 1
                && let Some(began) = written
                    .lock()
                    .map_err(|_| anyhow::anyhow!("a writer has died"))?
                    .pop_front()
                && counting.load(Relaxed)
            {
                times.push(nanos(began));
            }
        }
        Ok(times)
    };
    let worker = |number: usize| -> Result<Vec<u32>> {
        if load == Load::Fanout && number > 0 {
            return told(number);
        }
        if load.is_many_at_once() {
            let mut asking = Asking {
                load,
                requests: &requests,
                next: (0..connections as u64).collect(),
                stop: &stop,
                counting: &counting,
                done: &done,
                times: Vec::new(),
            };
            closed::run(server.port, connections, &mut asking)?;
            return Ok(asking.times);
        }
        let (mut connection, mut times) = (Connection::open(server.port)?, Vec::new());
        // No subscriber misses a message.
        while load == Load::Fanout && subscribed.load(Relaxed) + 1 < connections as u64 && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut n = number as u64;
        while !stop.load(Relaxed) {
            n += 1;
            let (request, ops) = requests.choose(load, n).context("no request")?;
            let began = Instant::now();
            if load == Load::Fanout {
                written
                    .lock()
                    .map_err(|_| anyhow::anyhow!("a subscriber has died"))?
                    .push_back(began);
            }
            connection.call(request)?;
            done.fetch_add(ops, Relaxed);
            if counting.load(Relaxed) && load != Load::Fanout {
                times.push(nanos(began));
            }
        }
        Ok(times)
    };
    let seconds = match load {
        Load::Batch if !effort.is_quick() => BATCH_SECONDS,
        _ => effort.seconds(),
    };
    std::thread::scope(|scope| -> Result<Row> {
        let worker = &worker;
        let threads = if load.is_many_at_once() { 1 } else { connections };
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let thread = std::thread::Builder::new().stack_size(128 << 10);
                thread.spawn_scoped(scope, move || worker(number))
            })
            .collect::<std::io::Result<_>>()?;
        // A thousand connections take a while, and requests come after the last one.
        let begins_late = load == Load::Fanout || load.is_many_at_once();
        while begins_late && done.load(Relaxed) == 0 && !workers.iter().any(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
        let begun = (server.costs()?, done.load(Relaxed), Instant::now());
        counting.store(true, Relaxed);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (seconds, ops) = (begun.2.elapsed().as_secs_f64(), (done.load(Relaxed) - begun.1) as f64);
        let (after, before) = (server.costs()?, begun.0);
        stop.store(true, Relaxed);
        let mut times: Vec<u32> = Vec::new();
        for worker in workers {
            let ended = worker
                .join()
                .map_err(|_| anyhow::anyhow!("a connection's thread has died"))?;
            times.extend(ended?);
        }
        times.sort_unstable();
        ensure!(
            ops > 0.0 && !times.is_empty(),
            "{name}: nothing was done in the measured time"
        );
        let at = |part: f64| {
            times
                .get((times.len() as f64 * part) as usize)
                .map(|nanos| f64::from(*nanos))
        };
        let more = [
            ("p999_ns", at(0.999)),
            ("seconds", Some(seconds)),
            ("connections", Some(connections as f64)),
        ];
        let more = more.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        Ok(Row {
            name: name.to_owned(),
            ops_per_second: ops / seconds,
            wall_ns_per_op: seconds * 1e9 / ops,
            cpu_ns_per_op: (after.cpu_seconds - before.cpu_seconds) * 1e9 / ops,
            bytes_per_op: (after.bytes - before.bytes) / ops,
            allocs_per_op: (after.allocations - before.allocations) / ops,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            more: more.chain([("durability".to_owned(), durability.into())]).collect(),
        })
    })
}
