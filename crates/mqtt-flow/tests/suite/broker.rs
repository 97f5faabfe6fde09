//! A mosquitto per test: its own folder, port and process, which ends with the test. Requires Debian's `mosquitto` and
//! `mosquitto-clients`, and fails without them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::world::until;

const PATIENCE: Duration = Duration::from_secs(30);
/// Debian puts it where only root's path leads.
const MOSQUITTO: &str = "/usr/sbin/mosquitto";

pub struct Broker {
    folder: TempDir,
    pub port: u16,
    settings: String,
    process: Option<Child>,
    log: Arc<Mutex<String>>,
}

impl Broker {
    pub fn start() -> Broker {
        Broker::with("")
    }

    /// With further settings.
    pub fn with(settings: &str) -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let mut broker = Broker {
            folder,
            port: 0,
            settings: settings.to_owned(),
            process: None,
            log: Arc::default(),
        };
        broker.run();
        broker
    }

    pub fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Everything that it has logged since its last start.
    pub fn log(&self) -> String {
        self.log.lock().clone()
    }

    fn run(&mut self) {
        let start = Instant::now();
        loop {
            // Another process may have taken the port meanwhile; a broker that starts again keeps its own.
            if self.port == 0 {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                self.port = listener.local_addr().unwrap().port();
            }
            if self.try_run() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "mosquitto does not start: {}", self.log());
        }
    }

    fn try_run(&mut self) -> bool {
        let config = self.folder.path().join("mosquitto.conf");
        let folder = self.folder.path().display();
        let text = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {folder}/\nlog_dest stderr\n\
             log_type all\nmax_queued_messages 0\n{}\n",
            self.port, self.settings
        );
        std::fs::write(&config, text).unwrap();
        let mut process = Command::new(MOSQUITTO)
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the test needs mosquitto; install it with: cargo xtask tools");
        let (stderr, log) = (process.stderr.take().unwrap(), self.log.clone());
        self.process = Some(process);
        log.lock().clear();
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = log.lock();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let start = Instant::now();
        loop {
            if self.log().contains(" running\n") {
                return true;
            }
            if reading.is_finished() || start.elapsed() > PATIENCE {
                self.kill();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends in order: what it has for sessions is on disk.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let pid = process.id().to_string();
        let start = Instant::now();
        let mut asked = None::<Instant>;
        while process.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "mosquitto does not end");
            // It forgets a signal that comes while its start ends.
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_millis(200)) {
                asked = Some(Instant::now());
                let _ = Command::new("kill").args(["-TERM", &pid]).status();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    pub fn start_again(&mut self) {
        self.run();
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments);
        command
    }

    pub fn publish(&self, arguments: &[&str]) {
        let status = self.client("mosquitto_pub", arguments).status();
        let status = status.expect("the test needs mosquitto-clients; install it with: cargo xtask tools");
        assert!(status.success(), "mosquitto_pub {arguments:?}");
    }

    /// Publishes each text to a topic, with QoS 1.
    pub fn publish_each(&self, topic: &str, qos: &str, texts: &[String]) {
        use std::io::Write as _;
        let mut publisher = self.client("mosquitto_pub", &["-t", topic, "-q", qos, "-l"]);
        let mut publisher = publisher.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = publisher.stdin.take().unwrap();
        for text in texts {
            writeln!(stdin, "{text}").unwrap();
        }
        drop(stdin);
        assert!(publisher.wait().unwrap().success());
    }

    /// A subscriber that is subscribed when this returns; each message is a line.
    pub fn subscribe(&self, id: &str, arguments: &[&str]) -> Subscriber {
        // The broker may have been told of this client before.
        let told = format!("Sending SUBACK to {id}\n");
        let before = self.log().matches(&told).count();
        let mut process = self
            .client("mosquitto_sub", &["-i", id])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, kept) = (process.stdout.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                kept.lock().push(line);
            }
        });
        until("the client is subscribed", || {
            self.log().matches(&told).count() > before
        });
        Subscriber { process, lines }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A mosquitto_sub.
pub struct Subscriber {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber {
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    pub fn wait_for(&self, count: usize) -> Vec<String> {
        until("all messages are at the subscriber", || {
            self.lines.lock().len() >= count
        });
        self.lines()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
