//! A thread that writes for an output whose destination blocks, in the order of the calls.

use std::io;

use thalweg_kit::channel::{Sender, channel};
use thalweg_kit::threads;
use tokio::sync::oneshot;

use crate::BoxFuture;
use crate::output::WriteError;

/// The destination of the writes.
pub(super) trait Destination: Send + 'static {
    type Job: Send + 'static;

    /// Writes one job and makes it as durable as the output promises.
    fn write(&mut self, job: Self::Job) -> Result<(), WriteError>;
}

struct WriterRequest<J> {
    job: J,
    reply: oneshot::Sender<Result<(), WriteError>>,
}

/// Sends jobs to the thread. The thread ends when this is dropped.
pub(super) struct WriterThread<J> {
    queue: Sender<WriterRequest<J>>,
}

impl<J: Send + 'static> WriterThread<J> {
    pub fn start<D: Destination<Job = J>>(name: &str, mut destination: D) -> io::Result<WriterThread<J>> {
        let (queue, requests) = channel::<WriterRequest<J>>();
        threads::spawn(format!("write-{name}"), move || {
            while let Ok(WriterRequest { job, reply }) = requests.recv() {
                let _given_up = reply.send(destination.write(job));
            }
        })?;
        Ok(WriterThread { queue })
    }

    /// This call fixes the job's place in the order.
    pub fn write(&self, job: J) -> BoxFuture<'static, Result<(), WriteError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.queue.send(WriterRequest { job, reply });
        Box::pin(async move {
            let gone = || WriteError::Permanent("the writing thread was stopped by an internal error".to_owned());
            sent.map_err(|_| gone())?;
            answer.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}
