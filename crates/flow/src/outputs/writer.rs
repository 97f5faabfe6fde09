//! A thread that writes for an output whose destination blocks. Writes that wait together are written together, in the
//! order in which they were handed over, and share one sync.

use std::io;
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::BoxFuture;
use crate::output::WriteError;

/// Where the bytes go. `write_all` may be called several times before one `sync`.
pub(super) trait Destination: Send + 'static {
    type Job: Send + 'static;

    /// `Err` means that none of this job and nothing after it may be acknowledged by this round.
    fn write(&mut self, job: &Self::Job) -> io::Result<()>;

    /// Makes everything written so far as durable as the output promises.
    fn sync(&mut self) -> io::Result<()>;

    /// Names the destination in errors.
    fn describe(&self) -> String;
}

struct Request<J> {
    job: J,
    reply: oneshot::Sender<Result<(), WriteError>>,
}

/// Hands jobs to the thread. The thread ends when this is dropped.
pub(super) struct Writer<J> {
    queue: mpsc::Sender<Request<J>>,
}

/// Writes that share one sync.
const ROUND_MAX: usize = 256;

impl<J: Send + 'static> Writer<J> {
    pub fn start<D: Destination<Job = J>>(name: &str, mut destination: D) -> io::Result<Writer<J>> {
        let (queue, requests) = mpsc::channel::<Request<J>>();
        std::thread::Builder::new()
            .name(format!("write-{name}"))
            .spawn(move || {
                while let Ok(first) = requests.recv() {
                    let mut round = vec![first];
                    round.extend(requests.try_iter().take(ROUND_MAX - 1));
                    run_round(&mut destination, round);
                }
            })?;
        Ok(Writer { queue })
    }

    /// The job's place in the order is fixed by this call.
    pub fn write(&self, job: J) -> BoxFuture<'static, Result<(), WriteError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.queue.send(Request { job, reply });
        Box::pin(async move {
            let gone = || WriteError::Temporary("the writing thread has ended".to_owned());
            sent.map_err(|_| gone())?;
            answer.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

fn run_round<D: Destination>(destination: &mut D, round: Vec<Request<D::Job>>) {
    let mut failure: Option<io::Error> = None;
    let mut written = 0;
    for request in &round {
        if let Err(error) = destination.write(&request.job) {
            failure = Some(error);
            break;
        }
        written += 1;
    }
    if let Err(error) = destination.sync() {
        written = 0;
        failure = Some(error);
    }
    let text = failure
        .map(|error| format!("cannot write to {}: {error}", destination.describe()))
        .unwrap_or_default();
    for (number, request) in round.into_iter().enumerate() {
        let result = if number < written {
            Ok(())
        } else {
            Err(WriteError::Temporary(text.clone()))
        };
        let _ = request.reply.send(result);
    }
}
