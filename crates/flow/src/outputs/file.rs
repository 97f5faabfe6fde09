//! `file`: appends messages to files, and acknowledges them after the data and the names of new files are synced to
//! disk. The path may depend on the message.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message};

use super::codec::OutputCodec;
use super::files::{FileChunk, OutputFiles};
use super::writer::WriterThread;
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::output::{Output, Rejection, WriteError, all_but};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

/// Batches that share one write and its sync, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 256;

struct FileOutputSpec {
    path: Arc<Interpolation>,
    codec: OutputCodec,
}

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let path = fields.required_node("path", kind::INTERPOLATED);
    let codec = OutputCodec::read(&mut fields);
    fields.finish();
    let path = Arc::new(context.interpolation(&path?)?);
    Some(Arc::new(FileOutputSpec { path, codec }))
}

impl OutputSpec for FileOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let mut files = OutputFiles::new(self.codec == OutputCodec::Replaces);
        if let Some(path) = self.path.is_static() {
            files.open(path.as_ref()).map_err(|error| {
                BuildError::new(format!(
                    "cannot write to {path}: {error}; check that the folder exists and is writable"
                ))
            })?;
        }
        let writer = WriterThread::start(&context.component.name, files);
        let writer =
            writer.map_err(|error| BuildError::new(format!("cannot start a thread for the file output: {error}")))?;
        Ok(Arc::new(FileOutput {
            path: self.path.clone(),
            codec: self.codec.clone(),
            writer,
        }))
    }
}

struct FileOutput {
    path: Arc<Interpolation>,
    codec: OutputCodec,
    writer: WriterThread<Vec<FileChunk>>,
}

impl Output for FileOutput {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let mut parts: Vec<FileChunk> = Vec::new();
        let mut refused = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            let path = match self.path.render(&messages, index) {
                Ok(path) => path,
                Err(error) => {
                    let error = format!("no path for the message: {error}");
                    refused.push(Rejection::permanent(index, DropReason::OutputRejected, error));
                    continue;
                }
            };
            let same = parts
                .last_mut()
                .filter(|last| last.path.as_os_str() == path.as_str() && self.codec != OutputCodec::Replaces);
            match same {
                Some(part) => {
                    self.codec.encode(message, &mut part.bytes);
                    part.messages.push(index);
                }
                None => {
                    let mut bytes = Vec::new();
                    self.codec.encode(message, &mut bytes);
                    parts.push(FileChunk {
                        path: path.as_str().into(),
                        bytes,
                        messages: vec![index],
                    });
                }
            }
        }
        let write = self.writer.write(parts);
        Box::pin(async move {
            match write.await {
                Err(WriteError::Some(failed)) => refused.extend(failed),
                other => other?,
            }
            all_but(refused)
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }
}
