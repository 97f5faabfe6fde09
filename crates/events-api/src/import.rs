//! `POST /import`: messages with their positions, one per line, with progress events while the body still arrives. Full
//! batches are stored at once, so an import needs the same memory however long it is. Only the newest progress is sent,
//! so a client that does not read blocks nothing.

mod lines;
mod record;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, Response};
use bytes::Bytes;
use futures::stream;
use thalweg_events::{EventsError, ImportRecord, Namespace};
use thalweg_http::body::{ROOM_PATIENCE, drain};
use thalweg_http::compression::{body_coding, decoded_pieces};
use thalweg_kit::clock;
use tokio::sync::watch;

use crate::auth::{RequiredScope, admit};
use crate::error_kind::EventsApiErrorKind;
use crate::json_text::{number, text};
use crate::problem::{Problem, Result};
use crate::{EventsApiServer, log_answer, query_value};
use lines::LineReader;
use record::{bytes_of, record};

/// A batch ends at each multiple of this many records, or at this many bytes.
const BATCH: u64 = 1000;
const BATCH_BYTES: usize = 24 << 20;
/// A line may be this much longer than the largest message.
const LINE_MORE: usize = 1 << 20;

/// Short enough for fuzz inputs to exceed it.
const CHECKED_LINE_MAX: usize = 1024;

/// Why an import ended early.
#[derive(Debug, PartialEq, Eq)]
struct ImportError {
    kind: EventsApiErrorKind,
    message: String,
    /// From 1; 0 if the error belongs to no line.
    line: u64,
}

/// The progress; only the newest is sent.
#[derive(Clone, Default)]
struct Progress {
    imported: u64,
    global: u64,
    /// The last event.
    end: Option<String>,
}

pub(crate) async fn answer(server: Arc<EventsApiServer>, request: Request) -> Response<Body> {
    let method = request.method().clone();
    let response = match begin(&server, request).await {
        Ok(response) => response,
        Err(problem) => server.refuse(&problem),
    };
    log_answer(&method, "/import", &response);
    response
}

async fn begin(server: &Arc<EventsApiServer>, request: Request) -> Result<Response<Body>> {
    let (parts, mut body) = request.into_parts();
    let caller = admit(server, &parts, &Method::POST).await?;
    caller.may(RequiredScope::Write)?;
    let namespace = caller.namespace()?.clone();
    let coding = body_coding(&parts.headers)?;
    let waiting = async {
        let memory = server.memory.for_import(ROOM_PATIENCE).await;
        if memory.is_none() {
            drain(&mut body).await;
        }
        memory.ok_or_else(Problem::no_room)
    };
    let memory = tokio::select! {
        memory = waiting => memory?,
        () = server.stopping.cancelled() => return Err(Problem::stopping()),
    };
    if query_value(parts.uri.query(), "force").as_deref() == Some("true") {
        clear(server, &namespace).await?;
    }
    let (tell, told) = watch::channel(Progress::default());
    let body = match coding {
        None => body,
        Some(coding) => decoded_pieces(coding, body),
    };
    let lines = LineReader::new(body.into_data_stream(), server.options.message_bytes_max + LINE_MORE);
    let (own, ended) = (server.clone(), caller.ended());
    // Runs while the client sends, whether it reads or not.
    tokio::spawn(async move {
        run(own, namespace, lines, ended, tell).await;
        drop(memory);
    });
    let events = stream::unfold(told, |mut told| async move {
        // The channel closes only when the body has been read to its end, so a client that sends everything before it
        // reads gets the last event too.
        told.changed().await.ok()?;
        let event = event(&told.borrow_and_update());
        Some((Ok::<_, Infallible>(event), told))
    });
    let mut response = Response::new(Body::from_stream(events));
    for (name, value) in [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Runs to its end even if the client disconnects meanwhile.
async fn clear(server: &EventsApiServer, namespace: &Arc<dyn Namespace>) -> Result<()> {
    let (namespace, running) = (namespace.clone(), server.running.token());
    let cleared = tokio::spawn(async move {
        let cleared = namespace.clear().await;
        drop(running);
        cleared
    });
    let failed = |why: String| Problem::new(EventsApiErrorKind::ClearFailed, why);
    match cleared.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn event(progress: &Progress) -> Bytes {
    let mut out = String::from("data: ");
    match &progress.end {
        Some(end) => out.push_str(end),
        None => {
            out.push_str("{\"imported\":");
            number(&mut out, progress.imported);
            out.push_str(",\"gpos\":");
            number(&mut out, progress.global);
            out.push('}');
        }
    }
    out.push_str("\n\n");
    Bytes::from(out)
}

async fn run(
    server: Arc<EventsApiServer>,
    namespace: Arc<dyn Namespace>,
    mut lines: LineReader,
    ended: impl Future<Output = ()>,
    tell: watch::Sender<Progress>,
) {
    let began = clock::now();
    let mut importing = Importer {
        server: &server,
        namespace: namespace.as_ref(),
        tell: &tell,
        batch: Vec::new(),
        places: Vec::new(),
        bytes: 0,
        read: 0,
        imported: 0,
    };
    let stopped = |message: &str| ImportError {
        kind: EventsApiErrorKind::ImportFailed,
        message: message.to_owned(),
        line: 0,
    };
    let mut ended = std::pin::pin!(ended);
    let outcome = loop {
        // A batch that is being stored is completed; only reading is abandoned.
        let line = tokio::select! {
            line = lines.next() => line,
            () = server.stopping.cancelled() => Err(stopped("the server is shutting down")),
            () = &mut ended => Err(stopped("the token is no longer valid")),
        };
        let done = match line {
            Ok(line) => importing.take(line.as_deref(), lines.number()).await,
            // Complete lines are stored: they are valid, and a client that has left does not send them again.
            Err(failed) if failed.line == 0 => importing.store().await.and(Err(failed)),
            Err(failed) => Err(failed),
        };
        match done {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(failed) => break Err(failed),
        }
    };
    let (imported, read) = (importing.imported, importing.read);
    let end = match outcome {
        Ok(()) => format!(
            "{{\"done\":true,\"imported\":{imported},\"elapsed\":\"{:.1}s\",\"read\":{read}}}",
            began.elapsed().as_secs_f64()
        ),
        Err(failed) => {
            server.meters.refused(failed.kind.facts().code);
            // The client may have left; then only this log entry says how far the import came.
            tracing::warn!(
                namespace = namespace.name(),
                imported,
                read,
                line = failed.line,
                reason = failed.message,
                "an import ended early; the imported messages stay"
            );
            failed.told(Some((imported, read)))
        }
    };
    tell.send_modify(|progress| progress.end = Some(end));
    tokio::select! {
        () = lines.discard_rest() => {}
        () = server.stopping.cancelled() => {}
    }
}

impl ImportError {
    /// Includes the numbers of imported and read records if the import had begun.
    fn told(&self, imported: Option<(u64, u64)>) -> String {
        let mut out = String::from("{\"error\":");
        text(&mut out, self.kind.facts().code);
        out.push_str(",\"message\":");
        text(&mut out, &self.message);
        if let Some((imported, read)) = imported {
            out.push_str(",\"imported\":");
            number(&mut out, imported);
            out.push_str(",\"read\":");
            number(&mut out, read);
        }
        if self.line > 0 {
            out.push_str(",\"line\":");
            number(&mut out, self.line);
        }
        out.push('}');
        out
    }
}

/// For the fuzz targets: how each line is read, or its error.
pub(crate) async fn check_lines(pieces: &[&[u8]]) -> Vec<String> {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)))
        .collect();
    let mut lines = LineReader::new(
        Body::from_stream(stream::iter(pieces)).into_data_stream(),
        CHECKED_LINE_MAX,
    );
    let mut found = Vec::new();
    loop {
        let read = match lines.next().await {
            Ok(None) => return found,
            Ok(Some(line)) => record(&line, lines.number(), CHECKED_LINE_MAX),
            Err(failed) => {
                found.push(failed.told(None));
                return found;
            }
        };
        found.push(read.map_or_else(|failed| failed.told(None), |record| bytes_of(&record).to_string()));
    }
}

struct Importer<'a> {
    server: &'a EventsApiServer,
    namespace: &'a dyn Namespace,
    tell: &'a watch::Sender<Progress>,
    batch: Vec<ImportRecord>,
    /// The line number of each record.
    places: Vec<u64>,
    bytes: usize,
    /// Records, including invalid ones.
    read: u64,
    imported: u64,
}

impl Importer<'_> {
    /// Takes the next line. At the end, `None`, stores what is left.
    async fn take(&mut self, line: Option<&[u8]>, number: u64) -> std::result::Result<bool, ImportError> {
        let Some(line) = line else {
            self.store().await?;
            return Ok(true);
        };
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(false);
        }
        self.read += 1;
        let record = record(line, number, self.server.options.message_bytes_max)?;
        let bytes = bytes_of(&record);
        if self.bytes + bytes > BATCH_BYTES {
            self.store().await?;
        }
        self.batch.push(record);
        self.places.push(number);
        self.bytes += bytes;
        if (self.imported + self.batch.len() as u64).is_multiple_of(BATCH) {
            self.store().await?;
        }
        Ok(false)
    }

    async fn store(&mut self) -> std::result::Result<(), ImportError> {
        let Some(global) = self.batch.last().map(|last| last.global) else {
            return Ok(());
        };
        let running = self.server.running.token();
        let stored = self.namespace.import(&self.batch).await;
        drop(running);
        stored.map_err(|error| match error {
            EventsError::Taken { what, record } => ImportError {
                kind: EventsApiErrorKind::PositionExists,
                message: what,
                line: self.places.get(record).copied().unwrap_or(0),
            },
            other => ImportError {
                kind: EventsApiErrorKind::ImportFailed,
                message: other.to_string(),
                line: 0,
            },
        })?;
        self.imported += self.batch.len() as u64;
        let counts = self.server.meters.of(self.namespace.name());
        counts.imported(self.batch.len() as u64);
        self.batch.clear();
        self.places.clear();
        self.bytes = 0;
        if self.imported.is_multiple_of(BATCH) {
            let imported = self.imported;
            self.tell
                .send_modify(|progress| (progress.imported, progress.global) = (imported, global));
        }
        Ok(())
    }
}
