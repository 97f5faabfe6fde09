//! A small broker as a separate process (`tests/brokers/kafka`). It starts immediately; for features it lacks there is
//! [`apache`](crate::apache).

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::client::{Client, program};
pub use crate::client::{numbered, spread};

pub struct Broker {
    client: Client,
    arguments: Vec<String>,
    child: Child,
    _folder: TempDir,
}

impl Broker {
    pub fn start(arguments: &[&str]) -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data").display().to_string();
        let mut all = vec!["broker".to_owned(), "-data".to_owned(), data];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let (child, address) = spawn(&all, "0");
        Broker {
            client: Client { address },
            arguments: all,
            child,
            _folder: folder,
        }
    }

    /// Starts it with topics of one partition each.
    pub fn with_topics(topics: &str) -> Broker {
        Broker::start(&["-topics", topics])
    }

    /// Simulates a power cut.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts it at the same address, with the records it had acknowledged.
    pub fn restart(&mut self) {
        let port = self.address.rsplit(':').next().unwrap().to_owned();
        (self.child, _) = spawn(&self.arguments, &port);
    }
}

impl Deref for Broker {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(arguments: &[String], port: &str) -> (Child, String) {
    let mut child = Command::new(program())
        .args(arguments)
        .args(["-port", port])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .strip_prefix("listening ")
        .expect("the broker says where it listens");
    (child, address.to_owned())
}
