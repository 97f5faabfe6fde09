//! Drives an output: opens it until it succeeds and repeats each write until every message is written or permanently
//! rejected, and keeps its connection state, counters and log up to date. The output of a flow and each output of a
//! broker use it.

use std::sync::Arc;

use thalweg_kit::clock;
use thalweg_record::{DropReason, Message};
use thalweg_telemetry::{IntCounter, Timing};
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::component::Component;
use crate::connection::Connection;
use crate::metrics;
use crate::output::{OpenError, Output, OutputContext, Rejection, WriteError};

/// How long an uninterruptible step may take after the shutdown time is over.
pub(crate) const GRACE: std::time::Duration = std::time::Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct OutputMetrics {
    pub sent: IntCounter,
    batch_sent: IntCounter,
    pub error: IntCounter,
    latency: Timing,
}

impl OutputMetrics {
    pub fn new(component: &Component) -> OutputMetrics {
        OutputMetrics {
            sent: component.counter(&metrics::OUTPUT_SENT),
            batch_sent: component.counter(&metrics::OUTPUT_BATCH_SENT),
            error: component.counter(&metrics::OUTPUT_ERROR),
            latency: component.timing(&metrics::OUTPUT_LATENCY),
        }
    }

    /// The metrics of the storing end of a buffer.
    pub fn of_buffer(component: &Component) -> OutputMetrics {
        OutputMetrics {
            sent: component.counter(&metrics::BUFFER_RECEIVED),
            batch_sent: component.counter(&metrics::BUFFER_BATCH_RECEIVED),
            error: component.counter(&metrics::BUFFER_ERROR),
            latency: component.timing(&metrics::BUFFER_STORE_LATENCY),
        }
    }
}

/// Clones drive the same output.
#[derive(Clone)]
pub(crate) struct OutputDriver {
    pub output: Arc<dyn Output>,
    pub component: Component,
    pub connection: Connection,
    pub metrics: OutputMetrics,
}

/// A write in progress.
pub(crate) type WriteFuture = BoxFuture<'static, Result<(), WriteError>>;

/// Why an output is not open.
pub(crate) enum OpenFailure {
    /// The shutdown time was over first.
    GivenUp,
    /// It will never open, for this reason.
    Never(String),
}

/// A message that an output rejected permanently.
pub(crate) struct PermanentRejection {
    pub index: usize,
    pub reason: DropReason,
    pub error: String,
}

impl From<PermanentRejection> for Rejection {
    fn from(refusal: PermanentRejection) -> Rejection {
        Rejection::permanent(refusal.index, refusal.reason, refusal.error)
    }
}

impl OutputDriver {
    /// Opens the output, and retries with doubling pauses while it fails temporarily.
    pub async fn open(&self, stop: &CancellationToken) -> Result<(), OpenFailure> {
        let context = OutputContext {
            component: self.component.clone(),
            connection: self.connection.clone(),
            stop: stop.clone(),
        };
        let mut pauses = self.output.backoff();
        let attempts = async {
            loop {
                match self.output.open(&context).await {
                    Ok(()) => return Ok(()),
                    Err(OpenError::Permanent(why)) => {
                        self.connection.given_up(&why);
                        return Err(OpenFailure::Never(why));
                    }
                    Err(OpenError::Temporary(why)) => self.connection.open_failed(&why),
                }
                tokio::time::sleep(pauses.next_pause()).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(OpenFailure::GivenUp),
            opened = attempts => opened,
        }
    }

    /// Calls the output now, which fixes the place of the messages in the order.
    pub fn start(&self, messages: &Arc<Vec<Message>>) -> WriteFuture {
        self.output.write(messages.clone())
    }

    /// Completes a write and counts it; returns the permanent rejections. `Err` is the reason why the output accepts
    /// nothing any more.
    pub async fn finish(
        &self,
        write: WriteFuture,
        messages: &Arc<Vec<Message>>,
    ) -> Result<Vec<PermanentRejection>, String> {
        let start = clock::now();
        let refused = self.persist(write, messages).await?;
        self.metrics.error.inc_by(refused.len() as u64);
        self.metrics
            .sent
            .inc_by(messages.len().saturating_sub(refused.len()) as u64);
        self.metrics.batch_sent.inc();
        self.metrics.latency.observe(start.elapsed());
        Ok(refused)
    }

    /// Completes one attempt of a write and counts it, for a caller that repeats it.
    pub async fn attempt(&self, write: WriteFuture, messages: &Arc<Vec<Message>>) -> Result<(), WriteError> {
        let start = clock::now();
        let result = write.await;
        let failed = match &result {
            Ok(()) => 0,
            Err(WriteError::Some(rejections)) => rejections.len(),
            Err(WriteError::Temporary(_) | WriteError::Permanent(_)) => messages.len(),
        };
        match &result {
            Err(WriteError::Temporary(why)) => self.connection.write_failed(why),
            Err(WriteError::Permanent(why)) => self.connection.given_up(why),
            Err(WriteError::Some(rejections)) => match rejections.iter().find(|one| one.permanent.is_none()) {
                Some(rejection) => self.connection.write_failed(&rejection.error),
                None => self.connection.up(),
            },
            Ok(()) => self.connection.up(),
        }
        let written = messages.len().saturating_sub(failed);
        self.metrics.error.inc_by(failed as u64);
        self.metrics.sent.inc_by(written as u64);
        self.metrics.batch_sent.inc_by(u64::from(written > 0));
        self.metrics.latency.observe(start.elapsed());
        result
    }

    /// Repeats a write with the messages that failed temporarily, with doubling pauses, until every message is written
    /// or permanently rejected.
    pub async fn persist(
        &self,
        mut write: WriteFuture,
        messages: &Arc<Vec<Message>>,
    ) -> Result<Vec<PermanentRejection>, String> {
        let mut pauses = self.output.backoff();
        let mut refused = Vec::new();
        // The messages of the write in progress, by index in `messages`.
        let mut carried: Vec<usize> = (0..messages.len()).collect();
        loop {
            let (again, why) = match write.await {
                Ok(()) => (Vec::new(), String::new()),
                Err(WriteError::Temporary(why)) => (carried.clone(), why),
                Err(WriteError::Some(rejections)) => OutputDriver::sort_out(&carried, rejections, &mut refused),
                Err(WriteError::Permanent(why)) => {
                    self.metrics.error.inc_by(carried.len() as u64);
                    self.connection.given_up(&why);
                    return Err(why);
                }
            };
            if again.is_empty() {
                self.connection.up();
                return Ok(refused);
            }
            self.metrics.error.inc_by(again.len() as u64);
            self.connection.write_failed(&why);
            if again.len() < carried.len() {
                pauses.reset();
            }
            tokio::time::sleep(pauses.next_pause()).await;
            carried = again;
            let batch = carried.iter().filter_map(|&index| messages.get(index).cloned());
            write = self.output.write(Arc::new(batch.collect()));
        }
    }

    /// Adds permanent rejections to `refused`; returns the messages to retry, in order, and why they failed.
    fn sort_out(
        carried: &[usize],
        mut rejections: Vec<Rejection>,
        refused: &mut Vec<PermanentRejection>,
    ) -> (Vec<usize>, String) {
        rejections.sort_by_key(|rejection| rejection.index);
        rejections.dedup_by_key(|rejection| rejection.index);
        let mut again = Vec::new();
        let mut why = String::new();
        for rejection in rejections {
            let Some(&index) = carried.get(rejection.index) else {
                continue;
            };
            let error = rejection.error;
            match rejection.permanent {
                Some(reason) => refused.push(PermanentRejection { index, reason, error }),
                None => {
                    again.push(index);
                    why = error;
                }
            }
        }
        (again, why)
    }

    /// Closes the output; after the shutdown time it has only a short grace period.
    pub async fn close(&self, stop: &CancellationToken) {
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let closed = tokio::select! {
            closed = self.output.close() => closed,
            () = too_late => Err("it was not closed within shutdown_timeout".to_owned()),
        };
        if let Err(error) = closed {
            tracing::error!(component = self.component.title(), "{error}");
        }
    }
}
