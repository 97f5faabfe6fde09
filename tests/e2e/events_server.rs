//! The event store as a separate process, over every kind of storage, as its clients see it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use thalweg_tests::postgres::Database;
use thalweg_tests::{Api, Process, eventually, thalweg};

/// For `default`, on servers that require a token.
pub(crate) const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";

/// The storage of a server, and its durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// In memory, without access control.
    TestMode,
    /// In memory, with the rules of production.
    Memory,
    Interval,
    Os,
    Fsync,
    /// A separate database.
    Postgres,
}

impl Backend {
    /// The storage and durability in the terms of `sys.health`.
    pub fn told(self) -> (&'static str, &'static str) {
        match self {
            Backend::TestMode | Backend::Memory => ("memory", "memory"),
            Backend::Interval => ("log", "interval"),
            Backend::Os => ("log", "os"),
            Backend::Fsync => ("log", "fsync"),
            Backend::Postgres => ("postgres", "fsync"),
        }
    }
}

/// Creates a test of each function for each of the listed kinds of server, so that a failure names the kind.
macro_rules! for_backends {
    ($backends:tt $($test:ident),+ $(,)?) => { $(
        $crate::events_server::for_backends!(@each $test $backends);
    )+ };
    (@each $test:ident [$($name:ident $backend:ident),+]) => {
        mod $test {
            use crate::events_server::{Backend, Events};
            $(
                #[test]
                fn $name() {
                    super::$test(Events::of(Backend::$backend));
                }
            )+
        }
    };
}

/// Tests for every server.
macro_rules! for_every_backend {
    ($($test:ident),+ $(,)?) => {
        $crate::events_server::for_backends!(
            [
                in_test_mode TestMode, in_memory Memory, with_interval Interval, with_os Os, with_fsync Fsync,
                on_postgres Postgres
            ]
            $($test),+
        );
    };
}

/// Tests that need tokens: in test mode there are none.
macro_rules! for_backends_with_tokens {
    ($($test:ident),+ $(,)?) => {
        $crate::events_server::for_backends!(
            [in_memory Memory, with_interval Interval, with_os Os, with_fsync Fsync, on_postgres Postgres]
            $($test),+
        );
    };
}

/// Tests that need messages that outlive the process.
macro_rules! for_lasting_backends {
    ($($test:ident),+ $(,)?) => {
        $crate::events_server::for_backends!(
            [with_interval Interval, with_os Os, with_fsync Fsync, on_postgres Postgres]
            $($test),+
        );
    };
}

pub(crate) use {for_backends, for_backends_with_tokens, for_every_backend, for_lasting_backends};

pub(crate) struct Events {
    pub process: Process,
    pub address: String,
    pub api: Api,
    pub folder: TempDir,
    pub backend: Backend,
    flags: Vec<String>,
    /// Dropped after the process, which ends first.
    database: Option<Database>,
}

impl Events {
    pub fn of(backend: Backend) -> Events {
        Events::with(backend, &[])
    }

    /// With more flags.
    pub fn with(backend: Backend, more: &[&str]) -> Events {
        let database = (backend == Backend::Postgres).then(Database::create);
        let url = database.as_ref().map(Database::url).unwrap_or_default();
        let own: Vec<&str> = match backend {
            Backend::TestMode => vec!["--test-mode"],
            Backend::Memory => vec!["--data-dir", "data", "--durability", "memory", "--token", TOKEN],
            Backend::Interval | Backend::Os | Backend::Fsync => {
                let (_, durability) = backend.told();
                let kept = ["--data-dir", "data", "--durability", durability];
                [&kept[..], &["--token", TOKEN, "--min-free", "0"]].concat()
            }
            Backend::Postgres => vec!["--db-url", &url, "--token", TOKEN],
        };
        let flags = [&own, more].concat();
        Events {
            database,
            ..Events::start_as(backend, tempfile::tempdir().unwrap(), &flags)
        }
    }

    /// Stores nothing, and has no access control.
    pub fn in_memory() -> Events {
        Events::of(Backend::TestMode)
    }

    pub fn on_disk() -> Events {
        Events::of(Backend::Fsync)
    }

    /// On the embedded engine with these flags only.
    pub fn start_in(folder: TempDir, flags: &[&str]) -> Events {
        Events::start_as(Backend::Fsync, folder, flags)
    }

    /// The same with a limit on open files.
    pub fn limited(folder: TempDir, files: u32, flags: &[&str]) -> Events {
        let mut shell = Command::new("sh");
        let line = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        shell.args(["-c", &line]).arg(thalweg::binary());
        Events::start_by(shell, Backend::Fsync, folder, flags)
    }

    fn start_as(backend: Backend, folder: TempDir, flags: &[&str]) -> Events {
        Events::start_by(Command::new(thalweg::binary()), backend, folder, flags)
    }

    fn start_by(mut command: Command, backend: Backend, folder: TempDir, flags: &[&str]) -> Events {
        command
            .args(["events", "serve", "--port", "0"])
            .args(flags)
            .current_dir(folder.path());
        thalweg::with_wall_clock(&mut command, folder.path()).unwrap();
        let mut process = Process::start("events", folder.path(), &mut command).unwrap();
        let address = eventually(|| {
            process.check_running()?;
            // In either format of the log.
            let log = process.stderr().replace("\"address\":\"", "address=").replace('"', " ");
            let address = log.split("address=").nth(1);
            let address = address.and_then(|rest| rest.split_whitespace().next());
            let port = address.and_then(|address| address.rsplit(':').next());
            port.map(str::to_owned)
                .ok_or_else(|| anyhow::anyhow!("it does not say where it listens"))
        });
        let address = format!("127.0.0.1:{}", address.unwrap());
        Events {
            api: Api::at_root(&address),
            address,
            process,
            folder,
            backend,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            database: None,
        }
    }

    /// Killed, and restarted on the same data.
    pub fn again(mut self) -> Events {
        self.process.kill().unwrap();
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        Events {
            database: self.database,
            ..Events::start_as(self.backend, self.folder, &flags)
        }
    }

    /// Status and text, without the trailing newline.
    pub fn rpc(&self, call: &str) -> (u16, String) {
        let answer = self
            .api
            .send("POST", "/rpc", &[("authorization", &format!("Bearer {TOKEN}"))], call);
        let text = answer
            .text
            .strip_suffix('\n')
            .expect("a newline ends every answer")
            .to_owned();
        (answer.status, text)
    }

    pub fn call(&self, call: Value) -> Value {
        let (status, text) = self.rpc(&call.to_string());
        assert_eq!(status, 200, "{call}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Error code and message.
    pub fn refusal(&self, call: &str) -> (u16, String, String) {
        let (status, text) = self.rpc(call);
        let json: Value = serde_json::from_str(&text).unwrap();
        let of = |name: &str| json["error"][name].as_str().unwrap_or_default().to_owned();
        (status, of("code"), of("message"))
    }

    /// The events of an import, in order.
    pub fn import(&self, query: &str, lines: &(impl AsRef<[u8]> + ?Sized)) -> Vec<Value> {
        let answer = self
            .api
            .send("POST", &format!("/import?token={TOKEN}{query}"), &[], lines);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let told = answer.text.split_terminator("\n\n");
        told.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

/// A token of `namespace` with identical digits.
pub(crate) fn token(namespace: &str, digit: char) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::from("ns_");
    for bytes in namespace.as_bytes().chunks(3) {
        let bits = bytes.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        for place in 0..=bytes.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text.push('_');
    text.extend(std::iter::repeat_n(digit, 64));
    text
}

/// Status and body of a call with a token.
pub(crate) fn as_token(events: &Events, token: &str, call: &Value) -> (u16, Value) {
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    let answer = events.api.send("POST", "/rpc", &headers, &call.to_string());
    assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
    (answer.status, answer.json)
}

/// Each call is refused with its message.
pub(crate) fn invalid(events: &Events, table: &[(Value, &str)]) {
    for (call, message) in table {
        let expected = (400, "INVALID_REQUEST".to_owned(), (*message).to_owned());
        assert_eq!(events.refusal(&call.to_string()), expected, "{call}");
    }
}

/// A line of an import.
pub(crate) fn record(stream: &str, position: u64, global: u64) -> String {
    serde_json::json!({"stream": stream, "type": "t", "pos": position, "gpos": global, "data": {"n": global},
        "meta": null, "time": "2026-01-15T10:00:00.5Z"})
    .to_string()
        + "\n"
}

/// The output of `/subscribe`, piece by piece.
pub(crate) struct Pokes {
    stream: BufReader<TcpStream>,
    pub head: String,
}

impl Pokes {
    pub fn open(events: &Events, query: &str) -> Pokes {
        Pokes::open_with(events, query, "")
    }

    /// With more headers, each including its line end.
    pub fn open_with(events: &Events, query: &str, headers: &str) -> Pokes {
        let mut stream = TcpStream::connect(&events.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "GET /subscribe?{query} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{headers}\r\n"
        )
        .unwrap();
        let mut pokes = Pokes {
            stream: BufReader::new(stream),
            head: String::new(),
        };
        while !pokes.head.ends_with("\r\n\r\n") {
            let head = &mut pokes.head;
            assert!(pokes.stream.read_line(head).unwrap() > 0, "{head}");
        }
        assert!(pokes.head.starts_with("HTTP/1.1 200 "), "{}", pokes.head);
        assert!(
            pokes.head.contains("content-type: text/event-stream\r\n"),
            "{}",
            pokes.head
        );
        assert_eq!(pokes.chunk(), ": ready\n\n");
        pokes
    }

    /// One chunk of the body, as sent; empty at its proper end.
    pub fn chunk(&mut self) -> String {
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let len = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(len);
        String::from_utf8(chunk).unwrap()
    }

    /// Everything until the connection ends.
    pub fn end(&mut self) -> String {
        let mut rest = String::new();
        // A connection may also be reset.
        let _ = self.stream.read_to_string(&mut rest);
        rest
    }

    /// One event, from as many chunks as it has.
    pub fn event(&mut self) -> String {
        let mut event = self.chunk();
        while !event.is_empty() && !event.ends_with("\n\n") {
            event += &self.chunk();
        }
        event
    }
}

pub(crate) fn poke(stream: &str, position: u64, global: u64) -> String {
    format!(
        "event: poke\nid: {global}\ndata: {{\"stream\":\"{stream}\",\"position\":{position},\"globalPosition\":{global}}}\n\n"
    )
}
