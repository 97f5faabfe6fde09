//! Reads request bodies within limits on their size, their duration, and the bytes of all requests together.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use thalweg_telemetry::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::Refusal;

const UNIT: usize = 1024;
/// The server reads and discards at most this much of a refused request before it answers.
const DRAINED_BYTES: usize = 128 << 20;
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// Memory limit for all requests that are not stored yet.
pub struct InflightBudget {
    units: Arc<Semaphore>,
    max: usize,
    /// Bytes reserved now.
    told: IntGauge,
}

/// The share of one request. Dropping it frees the bytes.
pub struct InflightReservation {
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
    told: IntGauge,
}

impl Drop for InflightReservation {
    fn drop(&mut self) {
        self.told.sub(signed(self.bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl InflightBudget {
    pub fn new(bytes: usize, told: IntGauge) -> InflightBudget {
        let max = (bytes / UNIT).clamp(1, u32::MAX as usize);
        InflightBudget {
            units: Arc::new(Semaphore::new(max)),
            max,
            told,
        }
    }

    /// Reserves nothing yet; the request grows its reservation with [`hold`](Self::hold).
    pub fn enter(&self) -> InflightReservation {
        InflightReservation {
            permit: None,
            bytes: 0,
            told: self.told.clone(),
        }
    }

    pub fn max(&self) -> usize {
        self.max * UNIT
    }

    pub fn used(&self) -> usize {
        (self.max - self.units.available_permits().min(self.max)) * UNIT
    }

    /// Reserves more bytes for a request. Returns `false` if the budget has no room for them.
    pub fn hold(&self, held: &mut InflightReservation, bytes: usize) -> bool {
        let has = held.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = (held.bytes + bytes).div_ceil(UNIT).saturating_sub(has);
        let units = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(more) = self.units.clone().try_acquire_many_owned(units) else {
            return false;
        };
        held.bytes += bytes;
        self.told.add(signed(bytes));
        match &mut held.permit {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

impl InflightReservation {
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Reads a whole body and asks `hold` to reserve room for each piece. A declared length counts only if it exceeds the
/// limit.
pub async fn read(
    body: Body,
    bytes_max: usize,
    within: Duration,
    hold: impl FnMut(usize) -> Result<(), Refusal>,
) -> Result<Bytes, Refusal> {
    let mut body = std::pin::pin!(body);
    match tokio::time::timeout(within, gather(body.as_mut(), bytes_max, hold)).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(refusal)) => {
            // A sender that still sends after that finds the connection closed.
            let _ = tokio::time::timeout(DRAINED_WITHIN, drain(body)).await;
            Err(refusal)
        }
        Err(_) => Err(Refusal::too_slow(within)),
    }
}

async fn gather(
    mut body: Pin<&mut Body>,
    bytes_max: usize,
    mut hold: impl FnMut(usize) -> Result<(), Refusal>,
) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Refusal::too_large(bytes_max));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|error| Refusal::malformed(format!("the request ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        hold(data.len())?;
        if first.len() + all.len() + data.len() > bytes_max {
            return Err(Refusal::too_large(bytes_max));
        }
        match (first.is_empty(), all.is_empty()) {
            // Most requests arrive in one piece.
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
}

/// Reads and discards the rest of a body. A sender that is answered while it still sends may see the closed connection
/// first, take its request for lost, and resend it for ever.
async fn drain(mut body: Pin<&mut Body>) {
    let mut left = DRAINED_BYTES;
    while let Some(Ok(frame)) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}
