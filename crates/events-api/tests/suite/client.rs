//! An HTTP client on raw bytes: the boundaries of chunks matter here.

use std::collections::BTreeMap;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

pub struct Client(pub BufReader<TcpStream>);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

/// A response whose body need not be text.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Client {
    pub async fn connect(address: &str) -> Client {
        Client(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Sends a request and reads the complete response.
    pub async fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.begin(method, path, headers, body).await;
        self.answer().await
    }

    /// Sends a request.
    pub async fn begin(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.write(head.as_bytes()).await;
        // A server that refuses the request may close before everything is sent.
        let _ = self.0.get_mut().write_all(body).await;
    }

    pub async fn answer(&mut self) -> Answer {
        let RawAnswer { status, headers, body } = self.raw_answer().await;
        Answer {
            status,
            headers,
            text: String::from_utf8(body).unwrap(),
        }
    }

    pub async fn raw_answer(&mut self) -> RawAnswer {
        let (status, headers) = self.head().await;
        let mut body = Vec::new();
        if let Some(len) = headers.get("content-length") {
            body.resize(len.parse().unwrap(), 0);
            self.0.read_exact(&mut body).await.unwrap();
        } else {
            while let Some(chunk) = self.piece().await {
                body.extend_from_slice(&chunk);
            }
        }
        RawAnswer { status, headers, body }
    }

    pub async fn head(&mut self) -> (u16, BTreeMap<String, String>) {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).await.unwrap() > 0, "closed after {lines:?}");
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines[1..].iter().map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        (status, headers.collect())
    }

    /// A chunk of a body, which is text; `None` at its proper end.
    pub async fn chunk(&mut self) -> Option<String> {
        self.piece().await.map(|chunk| String::from_utf8(chunk).unwrap())
    }

    /// A chunk of a body; `None` at its proper end.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        let mut size = String::new();
        assert!(self.0.read_line(&mut size).await.unwrap() > 0, "the body is cut off");
        let len = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        self.0.read_exact(&mut chunk).await.unwrap();
        chunk.truncate(len);
        (len > 0).then_some(chunk)
    }

    /// Whether the server closes without a response.
    pub async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.is_ok_and(|len| len == 0)
    }
}

/// The events of `/subscribe`, chunk by chunk.
pub struct Pokes(pub Client);

impl Pokes {
    pub async fn open(address: &str, query: &str, headers: &str) -> Pokes {
        let mut client = Client::connect(address).await;
        client
            .write(format!("GET /subscribe?{query} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes())
            .await;
        let (status, head) = client.head().await;
        assert_eq!(status, 200, "{head:?}");
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-cache"),
            ("access-control-allow-origin", "*"),
            ("transfer-encoding", "chunked"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(head[name], value);
        }
        assert_eq!(client.chunk().await.as_deref(), Some(": ready\n\n"));
        Pokes(client)
    }

    /// The next event that is not a heartbeat.
    pub async fn next(&mut self) -> String {
        loop {
            match self.0.chunk().await.expect("the body has ended") {
                heartbeat if heartbeat == ": hb\n\n" => {}
                chunk => return chunk,
            }
        }
    }

    /// The global position of the next event.
    pub async fn global(&mut self) -> u64 {
        let chunk = self.next().await;
        let id = chunk.split("\nid: ").nth(1).and_then(|rest| rest.split('\n').next());
        id.expect(&chunk).parse().unwrap()
    }

    pub async fn globals(&mut self, count: usize) -> Vec<u64> {
        let mut globals = Vec::new();
        for _ in 0..count {
            globals.push(self.global().await);
        }
        globals
    }

    /// Reads until the body has ended properly.
    pub async fn end(&mut self) {
        while self.0.chunk().await.is_some() {}
    }
}

pub fn poke(stream: &str, position: u64, global: u64) -> String {
    format!(
        "event: poke\nid: {global}\ndata: {{\"stream\":\"{stream}\",\"position\":{position},\"globalPosition\":{global}}}\n\n"
    )
}
