//! The connection limit of a running process, and its response to one more connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use thalweg_tests::{Thalweg, eventually};

const EVENTS: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\nevents: {}\n";

/// The first line of the response, and the connection, which stays open.
fn ask(address: &str, request: &str) -> Result<(String, TcpStream)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request.as_bytes())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok((String::from_utf8_lossy(&head).into_owned(), stream))
}

/// A subscriber of all messages.
fn listen(address: &str, token: &str) -> Result<(String, TcpStream)> {
    ask(
        address,
        &format!("GET /subscribe?all=true HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"),
    )
}

fn call(token: &str, call: &str) -> String {
    let length = call.len();
    format!("POST /rpc HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{call}")
}

fn resident(thalweg: &Thalweg) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", thalweg.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn says(thalweg: &Thalweg, line: &str) {
    eventually(|| {
        let log = thalweg.process.stdout();
        ensure!(log.contains(line), "no {line:?} in {log}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn whoever_is_refused_a_connection_or_a_stream_stands_in_the_log_and_probes_are_let_in() {
    let mut thalweg = Thalweg::start(&format!("http: {{max_connections: 20}}\n{EVENTS}")).unwrap();
    thalweg.wait_ready().unwrap();
    let (address, token) = (thalweg.address().unwrap(), thalweg.first_token().unwrap());
    let create = call(&token, r#"["sub.create","jobs",{"category":"jobs"}]"#);
    assert_eq!(ask(&address, &create).unwrap().0, "HTTP/1.1 200");
    // Nine of ten may be streams.
    let (mut streams, mut refused) = (Vec::new(), 0);
    for _ in 0..19 {
        let (head, stream) = listen(&address, &token).unwrap();
        match head.as_str() {
            "HTTP/1.1 200" => streams.push(stream),
            "HTTP/1.1 503" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((streams.len(), refused), (18, 1));
    says(
        &thalweg,
        "the maximum number of event streams is open, and another one was refused; raise max_connections of the \
         listener",
    );
    // The others wait for a message.
    let fetch = call(&token, r#"["sub.fetch","jobs",{"waitMs":30000}]"#);
    let _waiting: [TcpStream; 2] = std::array::from_fn(|_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(fetch.as_bytes()).unwrap();
        stream
    });
    eventually(|| {
        let (status, _) = thalweg.request("/api/v1/status")?;
        ensure!(status == 503, "{status}");
        Ok(())
    })
    .unwrap();
    says(
        &thalweg,
        "all connections are in use, and only probes are accepted; raise max_connections of the listener",
    );
    for probe in ["/ping", "/ready", "/metrics"] {
        assert_eq!(thalweg.request(probe).unwrap().0, 200, "{probe}");
    }
    drop(streams);
    eventually(|| {
        let (status, _) = thalweg.request("/api/v1/status")?;
        ensure!(status == 200, "{status}");
        Ok(())
    })
    .unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
#[allow(clippy::print_stdout, reason = "the memory of a stream is printed for developers")]
fn ten_thousand_listen_within_200_mb_and_probes_are_answered() {
    const LISTENERS: usize = 10_000;
    let mut thalweg = Thalweg::start(EVENTS).unwrap();
    thalweg.wait_ready().unwrap();
    let (address, token) = (thalweg.address().unwrap(), thalweg.first_token().unwrap());
    let before = resident(&thalweg);
    let streams: Vec<TcpStream> = (0..LISTENERS)
        .map(|number| {
            let (head, stream) = listen(&address, &token).unwrap();
            assert_eq!(head, "HTTP/1.1 200", "listener {number}");
            stream
        })
        .collect();
    let (with_them, streams_open) = (resident(&thalweg), streams.len());
    println!(
        "{streams_open} streams of events take {} bytes each, {} MB of the process in all",
        with_them.saturating_sub(before) / LISTENERS as u64,
        with_them / 1_000_000
    );
    assert!(with_them < 200_000_000, "{before} bytes before, {with_them} with them");
    for probe in ["/ping", "/ready", "/metrics"] {
        assert_eq!(thalweg.request(probe).unwrap().0, 200, "{probe}");
    }
    drop(streams);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}
