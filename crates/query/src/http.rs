//! `POST /api/sql` and `GET /api/sql?q=`: runs SQL and streams rows.
//!
//! The status reports failures before the first byte. A later failure breaks the connection, so that a partial answer
//! never looks complete. A client that disconnects cancels its query. `wait_for=` names log positions that the query
//! has to see.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use datafusion::common::{ParamValues, ScalarValue};
use futures::{StreamExt as _, stream};
use serde_json::Value;
use thalweg_http::answer;
use thalweg_http::body::{BodyFault, BodyRules, collect};
use thalweg_kit::blocking;

use crate::engine::{Engine, Query, QueryStream};
use crate::error::QueryError;
use crate::format::{RowFormat, RowWriter};
use crate::statement::SQL_BYTES_MAX;

pub const PATH: &str = "/api/sql";
/// The text and its parameters.
const BODY_BYTES_MAX: usize = 8 * SQL_BYTES_MAX;

/// Both methods only read.
pub fn router(engine: Engine) -> Router {
    Router::new()
        // A HEAD request would cost as much as the query.
        .route(
            PATH,
            get(by_url).post(by_body).head(async || StatusCode::METHOD_NOT_ALLOWED),
        )
        .with_state(engine)
}

async fn by_url(State(engine): State<Engine>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let parameters: HashMap<String, String> = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .into_owned()
        .collect();
    let Some(sql) = parameters.get("q") else {
        return refuse(&QueryError::request(
            "the query is missing: give it as ?q= or as the body of a POST",
        ));
    };
    let asked = SqlRequest {
        query: Query::new(sql.as_str()),
        format: parameters.get("format").cloned(),
    };
    match asked.waiting_for(parameters.get("wait_for").map(String::as_str)) {
        Ok(asked) => respond(&engine, asked, &headers).await,
        Err(error) => refuse(&error),
    }
}

async fn by_body(State(engine): State<Engine>, RawQuery(query): RawQuery, headers: HeaderMap, body: Body) -> Response {
    // These bodies are small, so no budget counts them.
    let body = match collect(body, BodyRules::up_to(BODY_BYTES_MAX), ()).await {
        Ok((body, ())) => body,
        Err(fault) => {
            let message = format!("the request has more than {BODY_BYTES_MAX} bytes or is incomplete");
            return refuse(&match fault {
                BodyFault::TooLarge { .. } => QueryError::body_too_large(message),
                _ => QueryError::request(message),
            });
        }
    };
    let in_url: HashMap<String, String> = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .into_owned()
        .collect();
    let asked = SqlRequest::of(&headers, &body).and_then(|mut asked| {
        asked.format = asked.format.or_else(|| in_url.get("format").cloned());
        asked.waiting_for(in_url.get("wait_for").map(String::as_str))
    });
    match asked {
        Ok(asked) => respond(&engine, asked, &headers).await,
        Err(error) => refuse(&error),
    }
}

struct SqlRequest {
    query: Query,
    format: Option<String>,
}

impl SqlRequest {
    /// Adds log positions that the query has to see.
    fn waiting_for(self, positions: Option<&str>) -> Result<SqlRequest, QueryError> {
        match positions {
            Some(positions) => Ok(SqlRequest {
                query: self.query.waiting_for(positions)?,
                ..self
            }),
            None => Ok(self),
        }
    }

    /// Reads JSON `{"sql", "params", "format", "wait_for"}` if the media type says so, otherwise SQL text.
    fn of(headers: &HeaderMap, body: &[u8]) -> Result<SqlRequest, QueryError> {
        let text = std::str::from_utf8(body)
            .map_err(|e| QueryError::request(format!("the query is not UTF-8 at byte {}", e.valid_up_to())))?;
        let media_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if !media_type
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("application/json")
        {
            return Ok(SqlRequest {
                query: Query::new(text),
                format: None,
            });
        }
        let value: Value =
            serde_json::from_str(text).map_err(|e| QueryError::request(format!("the request is not JSON: {e}")))?;
        let known = ["sql", "params", "format", "wait_for"];
        let members = value
            .as_object()
            .ok_or_else(|| QueryError::request("the request must be a JSON object"))?;
        if let Some(unknown) = members.keys().find(|name| !known.contains(&name.as_str())) {
            let message = format!("unknown member {unknown:?}; a request has sql, params, format and wait_for");
            return Err(QueryError::request(message));
        }
        let Some(sql) = value.get("sql").and_then(Value::as_str) else {
            return Err(QueryError::request("the request must have the member sql, a text"));
        };
        let params = value.get("params").map(parameters).transpose()?.flatten();
        let format = value.get("format").and_then(Value::as_str).map(str::to_owned);
        let asked = SqlRequest {
            query: Query {
                params,
                ..Query::new(sql)
            },
            format,
        };
        match value.get("wait_for") {
            None | Some(Value::Null) => Ok(asked),
            Some(Value::String(positions)) => asked.waiting_for(Some(positions)),
            Some(_) => Err(QueryError::request(
                "wait_for must be a text: a position, or several with commas between them",
            )),
        }
    }
}

/// `[1, "a"]` for `$1`, `$2`; `{"a": 1}` for `$a`.
fn parameters(value: &Value) -> Result<Option<ParamValues>, QueryError> {
    Ok(match value {
        Value::Null => None,
        Value::Array(values) => {
            let values: Vec<ScalarValue> = values.iter().map(scalar).collect::<Result<_, _>>()?;
            Some(ParamValues::from(values))
        }
        Value::Object(values) => {
            let values: HashMap<String, ScalarValue> = values
                .iter()
                .map(|(name, value)| Ok((name.clone(), scalar(value)?)))
                .collect::<Result<_, QueryError>>()?;
            Some(ParamValues::from(values))
        }
        _ => return Err(QueryError::request("params must be a list or an object")),
    })
}

fn scalar(value: &Value) -> Result<ScalarValue, QueryError> {
    Ok(match value {
        Value::Null => ScalarValue::Null,
        Value::Bool(truth) => ScalarValue::Boolean(Some(*truth)),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), _, _) => ScalarValue::Int64(Some(integer)),
            (None, Some(integer), _) => ScalarValue::UInt64(Some(integer)),
            (None, None, float) => ScalarValue::Float64(float),
        },
        Value::String(text) => ScalarValue::Utf8(Some(text.clone())),
        Value::Array(_) | Value::Object(_) => {
            return Err(QueryError::request(
                "a parameter must be null, true, false, a number or a text",
            ));
        }
    })
}

async fn respond(engine: &Engine, asked: SqlRequest, headers: &HeaderMap) -> Response {
    let format = match format_of(asked.format.as_deref(), headers) {
        Ok(format) => format,
        Err(error) => return refuse(&error),
    };
    let answer = match engine.run(asked.query).await {
        Ok(answer) => answer,
        Err(error) => return refuse(&error),
    };
    match RowWriter::new(format, &answer.schema) {
        Ok(writer) => rows(format, answer, writer).await,
        Err(error) => refuse(&error),
    }
}

fn format_of(asked: Option<&str>, headers: &HeaderMap) -> Result<RowFormat, QueryError> {
    if let Some(name) = asked {
        return RowFormat::parse(name)
            .ok_or_else(|| QueryError::request(format!("unknown format {name:?}; use one of {}", RowFormat::NAMES)));
    }
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let formats = [RowFormat::NdJson, RowFormat::Csv, RowFormat::Arrow, RowFormat::Json];
    let wanted = accepted.flat_map(|value| value.split(',')).find_map(|part| {
        let media_type = part.split(';').next().unwrap_or_default().trim();
        formats
            .into_iter()
            .find(|format| format.media_type().eq_ignore_ascii_case(media_type))
    });
    Ok(wanted.unwrap_or(RowFormat::Json))
}

/// Waits for the first rows, so that earlier failures have their own status, then streams.
async fn rows(format: RowFormat, mut answer: QueryStream, mut writer: RowWriter) -> Response {
    let first = match answer.next().await {
        None => None,
        Some(Err(error)) => return refuse(&error),
        Some(Ok(batch)) => match written(&mut writer, &batch) {
            Ok(bytes) => Some(bytes),
            Err(error) => return refuse(&error),
        },
    };
    let Some(first) = first else {
        return match writer.finish() {
            Ok(bytes) => ([(header::CONTENT_TYPE, format.media_type())], bytes).into_response(),
            Err(error) => refuse(&error),
        };
    };
    let rest = stream::try_unfold(Some((answer, writer)), |state| async move {
        let Some((mut answer, mut writer)) = state else {
            return Ok::<_, QueryError>(None);
        };
        match answer.next().await {
            Some(batch) => {
                let bytes = written(&mut writer, &batch?)?;
                Ok(Some((bytes, Some((answer, writer)))))
            }
            None => Ok(Some((writer.finish()?, None))),
        }
    });
    let rest = rest.inspect(|bytes| {
        if let Err(error) = bytes {
            tracing::warn!("a query failed after its first rows were sent; the connection is closed: {error}");
        }
    });
    let body = stream::once(async { Ok(first) }).chain(rest);
    ([(header::CONTENT_TYPE, format.media_type())], Body::from_stream(body)).into_response()
}

/// An estimate of the least text that a value and its name take.
const VALUE_BYTES: usize = 64;

/// A batch may be megabytes of text, so other requests run meanwhile.
fn written(writer: &mut RowWriter, batch: &RecordBatch) -> Result<Vec<u8>, QueryError> {
    // Rows can share a text in memory, but it is written for each of them.
    let written = batch.num_rows() * batch.num_columns() * VALUE_BYTES;
    blocking::work(written.max(batch.get_array_memory_size()), || writer.write(batch))
}

fn refuse(error: &QueryError) -> Response {
    answer::error_object(error.kind.facts(), &error.message)
}
