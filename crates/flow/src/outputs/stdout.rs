//! `stdout`: writes messages to the standard output, and acknowledges them when the pipe or terminal has accepted them.

use std::io::{self, Write};
use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::Message;

use super::codec::OutputCodec;
use super::writer::{Destination, WriterThread};
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::output::{Output, WriteError};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

struct StdoutOutputSpec(OutputCodec);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let codec = OutputCodec::read(&mut fields);
    fields.finish();
    Some(Arc::new(StdoutOutputSpec(codec)))
}

impl OutputSpec for StdoutOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let writer = WriterThread::start("stdout", StandardOutput);
        let writer = writer
            .map_err(|error| BuildError::new(format!("cannot start a thread for the standard output: {error}")))?;
        Ok(Arc::new(StdoutOutput {
            codec: self.0.clone(),
            writer,
        }))
    }
}

struct StdoutOutput {
    codec: OutputCodec,
    writer: WriterThread<Vec<u8>>,
}

impl Output for StdoutOutput {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let mut bytes = Vec::new();
        messages
            .iter()
            .for_each(|message| self.codec.encode(message, &mut bytes));
        self.writer.write(bytes)
    }

    /// All waiting batches share one system call.
    fn joins(&self) -> usize {
        BATCHES_JOINED
    }
}

/// Maximum batches per write.
const BATCHES_JOINED: usize = 64;

struct StandardOutput;

impl Destination for StandardOutput {
    type Job = Vec<u8>;

    fn write(&mut self, bytes: Vec<u8>) -> Result<(), WriteError> {
        let mut out = io::stdout().lock();
        out.write_all(&bytes).and_then(|()| out.flush()).map_err(failed)
    }
}

/// A closed pipe is permanent, because its reader does not come back.
fn failed(error: io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            WriteError::Permanent("the reader of the standard output has closed it".to_owned())
        }
        _ => WriteError::Temporary(format!("cannot write to the standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_ends_the_output_and_a_full_pipe_does_not() {
        assert!(matches!(
            failed(io::ErrorKind::BrokenPipe.into()),
            WriteError::Permanent(_)
        ));
        assert!(matches!(
            failed(io::ErrorKind::WouldBlock.into()),
            WriteError::Temporary(_)
        ));
    }
}
