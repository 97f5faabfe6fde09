//! `thalweg events tail`: prints stored messages and then new ones, one record per line. A broken connection is resumed
//! after the last printed message, so there is neither a gap nor a repeat.

use std::io::BufReader;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::threads;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{EventsTail, TailStart};
use super::client::{EventsClient, ServerRefusal, encoded};
use super::export::newest;
use super::record::MessageRow;
use super::sse::{SseEvent, SseReader};
use crate::out;

/// A connection is replaced after this time, so that a server that vanished silently is noticed.
const RENEW: Duration = Duration::from_secs(300);
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

pub fn run(options: &EventsTail) -> Result<ExitCode> {
    let runtime = crate::runtime()?;
    let interrupted = {
        let _entered = runtime.enter();
        stopped()?
    };
    // The client blocks, and a signal must not wait for it.
    threads::spawn("signals", move || exit_after(&runtime, interrupted))
        .context("cannot start the thread that handles signals")?;
    let ended = follow(options);
    if let Err(error) = &ended {
        out::complain(format_args!("thalweg: {error:#}"));
    }
    let _whole_lines = std::io::stdout().lock();
    std::process::exit(i32::from(ended.is_err()))
}

fn exit_after(runtime: &Runtime, interrupted: impl Future<Output = ()>) {
    runtime.block_on(interrupted);
    // A line that is being written is completed.
    let _whole_lines = std::io::stdout().lock();
    std::process::exit(0)
}

fn stopped() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Returns when nobody reads any more.
fn follow(options: &EventsTail) -> Result<()> {
    let client = EventsClient::new(&options.server)?;
    let subscriber = EventsClient::with_timeout(&options.server, RENEW)?;
    let query = query(options, start(options, &client)?);
    let (mut last, mut pauses, mut connected) = (None::<u64>, PAUSES, false);
    loop {
        let ended = listen(&subscriber, &query, &mut last, &mut connected);
        match ended {
            Ok(TailEnd::NobodyReads) => return Ok(()),
            Ok(TailEnd::Renew) => pauses.reset(),
            // A wrong token or an unknown namespace fails again on each attempt, and so does a wrong address at the
            // start.
            Err(error) if is_final(&error) || !connected => return Err(error),
            Err(error) => {
                out::complain(format_args!("thalweg: {error:#}; connecting again"));
            }
        }
        threads::sleep(pauses.next_pause());
    }
}

enum TailEnd {
    NobodyReads,
    Renew,
}

fn is_final(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<ServerRefusal>();
    refused.is_some_and(|refused| (400..500).contains(&refused.status))
}

/// Where the first connection begins. The end is looked up only once, so that messages before a second connection are
/// not missed.
fn start(options: &EventsTail, client: &EventsClient) -> Result<u64> {
    match (options.from, &options.stream) {
        (TailStart::Start, _) => Ok(0),
        (TailStart::At(at), _) => Ok(at),
        (TailStart::End, Some(stream)) => {
            let version: Option<u64> = client.value(&json!(["stream.version", stream]))?;
            Ok(version.map_or(0, |version| version + 1))
        }
        (TailStart::End, None) => Ok(newest(client)? + 1),
    }
}

fn query(options: &EventsTail, position: u64) -> String {
    let of = match (&options.stream, &options.category) {
        (Some(stream), _) => format!("stream={}", encoded(stream)),
        (None, Some(category)) => format!("category={}", encoded(category)),
        (None, None) => "all=true&catchup=true".to_owned(),
    };
    let types = match options.types.is_empty() {
        true => String::new(),
        false => format!("&types={}", encoded(&options.types.join(","))),
    };
    format!("/subscribe?{of}&position={position}&data=true{types}")
}

/// Reads one connection to its end.
fn listen(client: &EventsClient, query: &str, last: &mut Option<u64>, connected: &mut bool) -> Result<TailEnd> {
    let last_id = last.map(|last| last.to_string());
    let mut headers = vec![("accept", "text/event-stream")];
    headers.extend(last_id.as_deref().map(|last| ("last-event-id", last)));
    let mut answer = client.ask("GET", query, &headers, ())?;
    *connected = true;
    let body = answer.body_mut().with_config().limit(u64::MAX).reader();
    let mut events = SseReader::new(BufReader::with_capacity(1 << 16, body));
    // An error means that the connection broke or its time was over; either way the next one continues.
    while let Ok(Some(event)) = events.next() {
        if !print(&event, last)? {
            return Ok(TailEnd::NobodyReads);
        }
    }
    Ok(TailEnd::Renew)
}

/// Returns `false` if nobody reads any more.
fn print(event: &SseEvent, last: &mut Option<u64>) -> Result<bool> {
    match event.kind.as_str() {
        "message" => {
            let row = MessageRow::parse(&event.data)?;
            let read_on = out::line(row.record())?;
            *last = Some(row.global);
            Ok(read_on)
        }
        "gap" => {
            out::complain(format_args!(
                "thalweg: messages were removed before they were read: {}",
                event.data
            ));
            Ok(true)
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::args::EventsEndpoint;

    fn options() -> EventsTail {
        EventsTail {
            server: EventsEndpoint {
                url: String::new(),
                token: None,
                token_file: None,
                ca_file: None,
            },
            stream: None,
            category: None,
            all: true,
            from: TailStart::Start,
            types: Vec::new(),
        }
    }

    #[test]
    fn all_asks_for_its_history_and_names_are_encoded() {
        assert_eq!(
            query(&options(), 7),
            "/subscribe?all=true&catchup=true&position=7&data=true"
        );
        let of_stream = EventsTail {
            stream: Some("a-1+b".to_owned()),
            types: vec!["A B".to_owned(), "C".to_owned()],
            ..options()
        };
        assert_eq!(
            query(&of_stream, 0),
            "/subscribe?stream=a-1%2Bb&position=0&data=true&types=A%20B%2CC"
        );
    }

    #[test]
    fn the_next_connection_goes_on_after_the_last_message() {
        let data = r#"["i","s-1","t",0,12,{},null,"2026-01-15T10:00:00Z"]"#;
        let event = SseEvent {
            kind: "message".to_owned(),
            id: Some("12".to_owned()),
            data: data.to_owned(),
        };
        let mut last = None;
        assert!(print(&event, &mut last).unwrap());
        assert_eq!(last, Some(12));
    }
}
