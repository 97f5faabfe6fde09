//! The bytes of a request, within limits: how many, how fast, and how many of all requests together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::{RETRY_MIN, Refusal};

/// Bytes of one permit.
const UNIT: usize = 1024;

/// What all requests that are not stored yet may take.
pub struct Room {
    units: Arc<Semaphore>,
    max: usize,
}

/// The part of one request; it is free again when this is dropped.
#[derive(Default)]
pub struct Held {
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Room {
    pub fn new(bytes: usize) -> Room {
        let max = (bytes / UNIT).clamp(1, u32::MAX as usize);
        Room {
            units: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    pub fn used(&self) -> usize {
        (self.max - self.units.available_permits().min(self.max)) * UNIT
    }

    /// Has so many bytes more held; not, if there is no room for them.
    pub fn hold(&self, held: &mut Held, bytes: usize) -> Result<(), Refusal> {
        let has = held.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        held.bytes += bytes;
        let more = held.bytes.div_ceil(UNIT).saturating_sub(has);
        if more == 0 {
            return Ok(());
        }
        let units = u32::try_from(more).unwrap_or(u32::MAX);
        let more = self.units.clone().try_acquire_many_owned(units);
        let more = more.map_err(|_| Refusal::pressure(RETRY_MIN))?;
        match &mut held.permit {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// All of a body. What it says of its length decides nothing but that it is too long.
pub async fn read(
    body: Body,
    bytes_max: usize,
    within: Duration,
    room: &Room,
    held: &mut Held,
) -> Result<Bytes, Refusal> {
    let whole = async {
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(Refusal::too_large(bytes_max));
        }
        let mut body = std::pin::pin!(body);
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let frame = frame.map_err(|error| Refusal::malformed(format!("the request ended early: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            room.hold(held, data.len())?;
            if first.len() + all.len() + data.len() > bytes_max {
                return Err(Refusal::too_large(bytes_max));
            }
            match (first.is_empty(), all.is_empty()) {
                // Most requests come in one piece.
                (true, true) => first = data,
                (false, true) => {
                    all.extend_from_slice(&first);
                    all.extend_from_slice(&data);
                    first = Bytes::new();
                }
                _ => all.extend_from_slice(&data),
            }
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    };
    match tokio::time::timeout(within, whole).await {
        Ok(read) => read,
        Err(_) => Err(Refusal::too_slow(within)),
    }
}
