//! `stdout`: messages to the standard output, acknowledged when the pipe or terminal took them.

use std::io::{self, Write};
use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::Message;

use super::codec::Codec;
use super::writer::{Destination, Writer};
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::output::{Output, WriteError};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

struct Spec(Codec);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let codec = Codec::read(&mut fields);
    fields.finish();
    Some(Arc::new(Spec(codec)))
}

impl OutputSpec for Spec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let writer = Writer::start("stdout", StandardOutput);
        let writer = writer
            .map_err(|error| BuildError::new(format!("cannot start a thread for the standard output: {error}")))?;
        Ok(Arc::new(Stdout {
            codec: self.0.clone(),
            writer,
        }))
    }
}

struct Stdout {
    codec: Codec,
    writer: Writer<Vec<u8>>,
}

impl Output for Stdout {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let mut bytes = Vec::new();
        messages
            .iter()
            .for_each(|message| self.codec.encode(message, &mut bytes));
        self.writer.write(bytes)
    }
}

struct StandardOutput;

impl Destination for StandardOutput {
    type Job = Vec<u8>;

    fn write(&mut self, bytes: &Vec<u8>) -> io::Result<()> {
        io::stdout().lock().write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }

    fn describe(&self) -> String {
        "the standard output".to_owned()
    }
}
