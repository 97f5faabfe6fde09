use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc as channel;

use serde_json::{Value, json};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{
    ClaimRequest, DeadLetterFilter, DeadLetterSelection, MessageId, NewMessage, Queues, QueuesOptions, SystemClock,
};

use super::*;

/// How the test server reacts to a request.
enum Reply {
    Status(u16),
    Redirect,
    /// Accepts the request and does not answer until the test continues.
    Hang(channel::Receiver<()>),
    Close,
}

/// A server that answers requests in order with the given replies, and returns each body.
fn server(replies: Vec<Reply>) -> (String, channel::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/dead", listener.local_addr().unwrap());
    let (seen, bodies) = channel::channel();
    std::thread::spawn(move || {
        for reply in replies {
            let (mut stream, _) = listener.accept().unwrap();
            let body = body(&mut stream);
            let _ = seen.send(body);
            let line = match reply {
                Reply::Status(status) => format!("HTTP/1.1 {status} x"),
                Reply::Redirect => "HTTP/1.1 307 x\r\nlocation: /elsewhere".to_owned(),
                Reply::Hang(until) => {
                    let _ = until.recv();
                    continue;
                }
                Reply::Close => continue,
            };
            let _ = write!(stream, "{line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (url, bodies)
}

fn body(stream: &mut TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

struct Place {
    queues: Queues,
    webhooks: Arc<Webhooks>,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn open() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let options = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            min_free_bytes: Some(0),
            spare: 1,
            ..LogOptions::default()
        };
        let disk = Arc::new(FolderDisk::open(folder.path()).unwrap());
        let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
        let options = QueuesOptions {
            durability: Durability::Os,
            auto_create: false,
            memory_bytes: u64::MAX,
            dedup_bytes: u64::MAX,
            state_bytes: u64::MAX,
        };
        let queues = Queues::open(log, Arc::new(SystemClock), options).await.unwrap();
        let webhooks = Webhooks::new(&Metrics::new(false), thalweg_queue_api::message_json);
        queues.listen_for_dead_letters(webhooks.clone());
        Place {
            queues,
            webhooks,
            _folder: folder,
        }
    }

    async fn queue(&self, name: &str, webhook: &str) -> Arc<Queue> {
        let mut settings = QueueSettings {
            partitions: 1,
            groups: vec![GroupSettings::new("g", GroupMode::Work)],
            ..QueueSettings::default()
        };
        settings.dlq.webhook = Some(webhook.into());
        self.queues.create(name, settings).await.unwrap()
    }

    fn count(&self, vec: &IntCounterVec, labels: &[&str]) -> u64 {
        vec.with_label_values(labels).get()
    }

    async fn posted(&self, queue: &str) -> (u64, u64) {
        let meters = &self.webhooks.meters;
        while self.webhooks.waiting.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(10)).await;
        }
        (self.count(&meters.sent, &[queue]), self.count(&meters.failed, &[queue]))
    }
}

/// Produces messages that a consumer rejects.
async fn die(queue: &Arc<Queue>, texts: &[&str]) {
    let messages = texts.iter().map(|text| NewMessage::of((*text).to_owned())).collect();
    queue.produce_all(messages).await.unwrap();
    let group = queue.group("g").unwrap();
    let want = ClaimRequest {
        max: 10_000,
        ..ClaimRequest::default()
    };
    let claimed = queue.claim(&group, "c", MemberKind::Http, want).await.unwrap();
    let verdicts = claimed
        .iter()
        .map(|delivery| {
            let reason = Some("no such pump".into());
            (queue.receipt(delivery), thalweg_queue::SettleAction::Reject { reason })
        })
        .collect();
    let settled = queue.settle(&group, verdicts, true).await.unwrap();
    assert_eq!(settled.settled as usize, texts.len());
}

fn told(bodies: &channel::Receiver<Value>) -> String {
    let body = bodies.recv_timeout(Duration::from_secs(60)).unwrap();
    body["text"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_posted_as_the_query_shows_it_and_again_until_it_is_taken() {
    let place = Place::open().await;
    let (url, bodies) = server(vec![
        Reply::Status(500),
        Reply::Close,
        Reply::Status(204),
        Reply::Status(200),
    ]);
    let queue = place.queue("pumps", &url).await;
    die(&queue, &["a", "b"]).await;
    let first = bodies.recv_timeout(Duration::from_secs(60)).unwrap();
    let properties = &first["properties"];
    assert_eq!(
        (&first["id"], &first["text"]),
        (&json!("dlq.pumps:0:0"), &json!("a")),
        "{first}"
    );
    for (name, value) in [
        ("queue", "pumps"),
        ("group", "g"),
        ("reason", "rejected"),
        ("detail", "no such pump"),
    ] {
        assert_eq!(properties[format!("x-dlq-{name}")], value, "{first}");
    }
    // Order is kept, however long the first letter takes.
    assert_eq!([told(&bodies), told(&bodies), told(&bodies)], ["a", "a", "b"]);
    assert_eq!(place.posted("pumps").await, (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_absent_or_leads_elsewhere_is_given_up_and_the_queue_goes_on() {
    let place = Place::open().await;
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (elsewhere, bodies) = server(vec![
        Reply::Redirect,
        Reply::Redirect,
        Reply::Redirect,
        Reply::Status(200),
    ]);
    let (absent, moved) = (
        place.queue("absent", &nobody).await,
        place.queue("moved", &elsewhere).await,
    );
    die(&absent, &["a"]).await;
    die(&moved, &["b"]).await;
    for queue in [&absent, &moved] {
        assert_eq!(
            (queue.depth(), place.posted(queue.name()).await),
            (0, (0, 1)),
            "{}",
            queue.name()
        );
        let letters = queue
            .dead_page(&DeadLetterFilter::default(), None, 10)
            .await
            .unwrap()
            .letters;
        assert_eq!(letters.len(), 1, "the letter stays");
    }
    // The same request three times, and none to another path.
    assert_eq!([told(&bodies), told(&bodies), told(&bodies)], ["b", "b", "b"]);
    assert!(bodies.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_hangs_holds_up_nothing_and_what_does_not_fit_is_counted() {
    let place = Place::open().await;
    let (go_on, until) = channel::channel();
    let (slow, bodies) = server(vec![Reply::Hang(until)]);
    let (quick, others) = server((0..3).map(|_| Reply::Status(200)).collect());
    let (hanging, well) = (place.queue("hanging", &slow).await, place.queue("well", &quick).await);
    die(&hanging, &["first"]).await;
    assert_eq!(told(&bodies), "first");
    // The queue itself works as before, and so does another queue.
    for _ in 0..(WAITING_MAX + 50) / 50 {
        die(&hanging, &["more"; 50]).await;
    }
    die(&well, &["a", "b", "c"]).await;
    assert_eq!([told(&others), told(&others), told(&others)], ["a", "b", "c"]);
    assert_eq!(hanging.depth(), 0);
    let meters = &place.webhooks.meters;
    assert_eq!(place.count(&meters.dropped, &["hanging", "overflow"]), 50);
    assert_eq!(place.count(&meters.sent, &["hanging"]), 0);
    assert!(place.webhooks.waiting.load(Ordering::Relaxed) > WAITING_MAX as u64);
    drop(go_on);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_gone_before_its_turn_is_not_posted_and_a_removed_queue_is_not_counted() {
    let place = Place::open().await;
    let (go_on, until) = channel::channel();
    let (url, bodies) = server(vec![Reply::Hang(until), Reply::Status(200)]);
    let queue = place.queue("q", &url).await;
    die(&queue, &["a", "b"]).await;
    assert_eq!(told(&bodies), "a");
    let second = MessageId {
        queue: "dlq.q".into(),
        partition: 0,
        offset: 1,
    };
    assert_eq!(
        queue.purge_dead(&DeadLetterSelection::Ids(vec![second])).await.unwrap(),
        1
    );
    drop(go_on);
    assert_eq!(place.posted("q").await, (1, 0));
    let meters = &place.webhooks.meters;
    assert_eq!(place.count(&meters.dropped, &["q", "gone"]), 1);
    let (metrics, told) = (Metrics::default(), meters.clone());
    metrics.tell(&SENT, move |to| told.tell(to));
    let figures = || metrics.text().lines().filter(|line| !line.starts_with('#')).count();
    assert!(figures() >= 2);
    place.queues.remove("q", true).await.unwrap();
    assert_eq!(figures(), 0);
}
