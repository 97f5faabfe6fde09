//! `GET /api/v1/events/backup`: a consistent snapshot of everything, produced as fast as the client reads it. A body
//! that is cut off, or that lacks its last frame, is not a backup.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response};
use bytes::Bytes;
use futures::stream;
use thalweg_events::{BackupPieces, EventsError};
use thalweg_http::compression::accepted_coding;
use thalweg_kit::byte_budget::ByteReservation;

use crate::EventsApiServer;
use crate::auth::admit;
use crate::problem::{Problem, Result};

pub(crate) const PATH: &str = "/api/v1/events/backup";

/// A backup that is being sent to a client.
struct BackupDownload {
    pieces: Box<dyn BackupPieces>,
    /// Resolves when the token is no longer valid or the server stops.
    ended: Pin<Box<dyn Future<Output = &'static str> + Send>>,
    _memory: ByteReservation,
}

pub(crate) async fn answer(server: Arc<EventsApiServer>, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    match begin(&server, &parts).await {
        Ok(response) => server.encoded(accepted_coding(&parts.headers), response),
        Err(problem) => server.refuse(&problem),
    }
}

async fn begin(server: &Arc<EventsApiServer>, request: &Parts) -> Result<Response<Body>> {
    let caller = admit(server, request, &Method::GET).await?;
    caller.may(server.admin())?;
    let (revoked, stopping) = (caller.ended(), server.stopping.clone());
    let begun = async {
        let memory = server.memory.for_backup().await;
        let pieces = server.store()?.backup().await;
        Ok::<_, Problem>((memory, pieces.map_err(Problem::of("make a backup"))?))
    };
    let (memory, pieces) = tokio::select! {
        begun = begun => begun?,
        () = server.stopping.cancelled() => return Err(Problem::stopping()),
    };
    let sending = BackupDownload {
        pieces,
        ended: Box::pin(async move {
            tokio::select! {
                () = revoked => "the token is no longer valid",
                () = stopping.cancelled() => "the server is shutting down",
            }
        }),
        _memory: memory,
    };
    let pieces = stream::try_unfold(sending, |mut sending| async move {
        Ok::<_, EventsError>(sending.piece().await?.map(|piece| (piece, sending)))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    for (name, value) in [
        (CONTENT_TYPE, "application/octet-stream"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_DISPOSITION, "attachment; filename=\"events.backup\""),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

impl BackupDownload {
    /// An error cuts the body off.
    async fn piece(&mut self) -> std::result::Result<Option<Bytes>, EventsError> {
        let piece = tokio::select! {
            piece = self.pieces.next() => piece,
            why = &mut self.ended => Err(EventsError::Unavailable(why.to_owned())),
        };
        if let Err(error) = &piece {
            tracing::warn!(reason = %error, "a backup was cut off");
        }
        piece
    }
}
