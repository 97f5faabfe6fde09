//! `POST /import`: messages with their places, a line each, and how far it is while they still come.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use thalweg_events::json::{self, Json, Kind};
use thalweg_events::{EventsError, Import, MessageId, Namespace, time};
use tokio::sync::watch;

use crate::auth::{Need, authenticate};
use crate::problem::{Problem, Result};
use crate::write::{number, text};
use crate::{Server, query_value};

/// A batch ends at each multiple of so many records, or with so many bytes.
const BATCH: u64 = 1000;
const BATCH_BYTES: usize = 24 << 20;
/// A line may have this beyond the largest message.
const LINE_MORE: usize = 1 << 20;
const ID_BYTES_MAX: usize = 255;

/// What ends an import before its end.
struct Failed {
    code: &'static str,
    message: String,
    /// From 1; 0 where it is of no line.
    line: u64,
}

/// How far it is; only the newest is told.
#[derive(Clone, Default)]
struct Progress {
    imported: u64,
    global: u64,
    /// The last event.
    end: Option<String>,
}

pub(crate) async fn answer(server: Arc<Server>, request: Request) -> Response<Body> {
    match begin(&server, request).await {
        Ok(response) => response,
        Err(problem) => problem.answer(),
    }
}

async fn begin(server: &Arc<Server>, request: Request) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let token = query_value(parts.uri.query(), "token");
    let store = server.store.as_ref();
    let caller = authenticate(store, server.options.test_mode, &parts.headers, token.as_deref()).await?;
    if parts.method != Method::POST {
        return Err(Problem {
            status: StatusCode::METHOD_NOT_ALLOWED,
            ..Problem::invalid("Only POST method allowed")
        });
    }
    caller.may(Need::Write)?;
    let namespace = caller.namespace()?.clone();
    if query_value(parts.uri.query(), "force").as_deref() == Some("true") {
        namespace
            .clear()
            .await
            .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "CLEAR_FAILED", error.to_string()))?;
    }
    let (tell, told) = watch::channel(Progress::default());
    let line_max = server.options.message_bytes_max + LINE_MORE;
    // As long as the client sends, whether it reads or not.
    tokio::spawn(run(namespace, body.into_data_stream(), line_max, tell));
    let events = stream::unfold(Some(told), |told| async move {
        let mut told = told?;
        let progress = match told.changed().await {
            Ok(()) => told.borrow_and_update().clone(),
            Err(_) => return None,
        };
        let mut out = String::from("data: ");
        let next = match progress.end {
            Some(end) => {
                out.push_str(&end);
                None
            }
            None => {
                out.push_str("{\"imported\":");
                number(&mut out, progress.imported);
                out.push_str(",\"gpos\":");
                number(&mut out, progress.global);
                out.push('}');
                Some(told)
            }
        };
        out.push_str("\n\n");
        Some((Ok::<_, Infallible>(Bytes::from(out)), next))
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

async fn run(namespace: Arc<dyn Namespace>, body: BodyDataStream, line_max: usize, tell: watch::Sender<Progress>) {
    let began = Instant::now();
    let mut lines = Lines {
        body,
        buffer: BytesMut::new(),
        searched: 0,
        line_max,
        number: 0,
        ended: false,
    };
    let end = match import(namespace.as_ref(), &mut lines, &tell).await {
        Ok(imported) => format!(
            "{{\"done\":true,\"imported\":{imported},\"elapsed\":\"{:.1}s\"}}",
            began.elapsed().as_secs_f64()
        ),
        Err(failed) => {
            let mut out = String::from("{\"error\":");
            text(&mut out, failed.code);
            out.push_str(",\"message\":");
            text(&mut out, &failed.message);
            if failed.line > 0 {
                out.push_str(",\"line\":");
                number(&mut out, failed.line);
            }
            out.push('}');
            out
        }
    };
    tell.send_modify(|progress| progress.end = Some(end));
    // A client that reads only at the end has to get there.
    while let Some(Ok(_)) = lines.body.next().await {}
}

async fn import(
    namespace: &dyn Namespace,
    lines: &mut Lines,
    tell: &watch::Sender<Progress>,
) -> std::result::Result<u64, Failed> {
    let (mut batch, mut places, mut bytes, mut imported) = (Vec::new(), Vec::new(), 0, 0);
    loop {
        let line = lines.next().await?;
        if let Some(line) = &line {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            batch.push(record(line, lines.number)?);
            places.push(lines.number);
            bytes += line.len();
        }
        let count = imported + batch.len() as u64;
        let is_full = count.is_multiple_of(BATCH) || bytes + lines.line_max > BATCH_BYTES;
        if !batch.is_empty() && (is_full || line.is_none()) {
            store(namespace, &batch, &places).await?;
            imported = count;
            let global = batch.last().map_or(0, |last: &Import| last.global);
            (batch, bytes) = (Vec::new(), 0);
            places.clear();
            if imported.is_multiple_of(BATCH) {
                tell.send_modify(|progress| (progress.imported, progress.global) = (imported, global));
            }
        }
        if line.is_none() {
            return Ok(imported);
        }
    }
}

async fn store(namespace: &dyn Namespace, batch: &[Import], places: &[u64]) -> std::result::Result<(), Failed> {
    namespace.import(batch).await.map_err(|error| match error {
        EventsError::Taken { what, record } => Failed {
            code: "POSITION_EXISTS",
            message: what,
            line: places.get(record).copied().unwrap_or(0),
        },
        other => Failed {
            code: "IMPORT_FAILED",
            message: other.to_string(),
            line: 0,
        },
    })
}

/// A line as a message.
fn record(line: &[u8], n: u64) -> std::result::Result<Import, Failed> {
    let mut compacted = String::with_capacity(line.len());
    json::compact(line, &mut compacted).map_err(|error| Failed {
        code: "INVALID_JSON",
        message: format!("malformed JSON at line {n}: {error}"),
        line: n,
    })?;
    let json = Json::new(&compacted);
    let wrong = |what: &str| Failed {
        code: "INVALID_RECORD",
        message: format!("invalid record at line {n}: {what}"),
        line: n,
    };
    if json.kind() != Kind::Object {
        return Err(wrong("it is no object"));
    }
    let required = |name: &str| {
        let value = json.get(name).and_then(Json::string).filter(|value| !value.is_empty());
        value.ok_or_else(|| wrong(&format!("{name} is required")))
    };
    let whole = |name: &str, least: i64| {
        let value = json.get(name).and_then(Json::integer).filter(|value| *value >= least);
        value
            .map(i64::unsigned_abs)
            .ok_or_else(|| wrong(&format!("{name} must be a number from {least} on")))
    };
    let object = |name: &str| match json.get(name) {
        None => Ok(None),
        Some(value) if value.is_null() => Ok(None),
        Some(value) if value.kind() == Kind::Object => Ok(Some(value.text().to_owned())),
        Some(_) => Err(wrong(&format!("{name} must be an object"))),
    };
    let id = match json.get("id") {
        None => None,
        Some(id) => Some(id.string().ok_or_else(|| wrong("id must be a string"))?),
    };
    if id.as_ref().is_some_and(|id| id.len() > ID_BYTES_MAX) {
        return Err(wrong("id exceeds 255 bytes"));
    }
    let moment = required("time")?;
    Ok(Import {
        id: id.filter(|id| !id.is_empty()).map(|id| MessageId::of(&id)),
        stream: required("stream")?.into_owned(),
        kind: required("type")?.into_owned(),
        position: whole("pos", 0)?,
        global: whole("gpos", 1)?,
        data: object("data")?.unwrap_or_else(|| "{}".to_owned()),
        metadata: object("meta")?,
        time: time::parse(&moment).ok_or_else(|| wrong("time must be RFC 3339"))?,
    })
}

/// Of a body, as it comes.
struct Lines {
    body: BodyDataStream,
    buffer: BytesMut,
    /// So much of the buffer has no end of a line.
    searched: usize,
    line_max: usize,
    /// Of the line that was given last, from 1.
    number: u64,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> std::result::Result<Option<Bytes>, Failed> {
        let failed = |message: &str, line| Failed {
            code: "READ_ERROR",
            message: message.to_owned(),
            line,
        };
        loop {
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(len) = fresh.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + len + 1).freeze();
                self.searched = 0;
                self.number += 1;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > self.line_max {
                let message = format!("a line exceeds {} bytes", self.line_max);
                return Err(failed(&message, self.number + 1));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.buffer).freeze();
                self.searched = 0;
                self.number += 1;
                return Ok((!rest.is_empty()).then_some(rest));
            }
            match self.body.next().await {
                Some(Ok(more)) => self.buffer.extend_from_slice(&more),
                Some(Err(_)) => return Err(failed("the request ended early", 0)),
                None => self.ended = true,
            }
        }
    }
}
