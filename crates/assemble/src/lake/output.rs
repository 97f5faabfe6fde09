//! The `lake` output: batches of messages become entries of the queue `lake.<table>`, and are acknowledged when the log has them.
//!
//! All entries of one input go to one partition, in the order of their writes, so rows of a tag keep their order. A batch that
//! comes again, since its source did not hear of the answer, is an entry of its own.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext, Registry,
    Rejection, WriteError, all_but,
};
use thalweg_lake::tags::{Entry, Packer, Refused};
use thalweg_log::{SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX};
use thalweg_queue::{NewMessage, Queue};
use thalweg_record::{Message, Ticks};
use tokio::sync::OnceCell;

use super::Lake;
use crate::queues::Store;

/// Batches that share one commit of the log, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 4096;
/// Of the name of an input, for the choice of its partition.
const KEY_BYTES_MAX: usize = 256;
/// What a record has beside its value, at most.
const RECORD_BYTES: usize = 256;

pub(crate) fn register(registry: &mut Registry, lake: Arc<Lake>, store: &Arc<Store>) {
    let store = store.clone();
    registry.output("lake", move |node, context| parse(node, context, &lake, &store));
}

fn parse(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    lake: &Arc<Lake>,
    store: &Store,
) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let _only_one = fields.one_of("table", &["tags"], "tags");
    fields.finish();
    lake.want();
    store.want();
    Some(Arc::new(Spec(lake.clone())))
}

struct Spec(Arc<Lake>);

impl OutputSpec for Spec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(LakeOutput {
            lake: self.0.clone(),
            source: context.source.clone(),
            key: context.source.bytes().take(KEY_BYTES_MAX).collect(),
            packer: Mutex::default(),
            queue: OnceCell::new(),
        }))
    }
}

struct LakeOutput {
    lake: Arc<Lake>,
    /// The column `source` of messages that do not name their own.
    source: Arc<str>,
    /// Of the partition.
    key: Bytes,
    packer: Mutex<Packer>,
    queue: OnceCell<Arc<Queue>>,
}

impl Output for LakeOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let queue = self.lake.tags();
            self.queue.get_or_try_init(|| queue).await?;
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(queue) = self.queue.get().cloned() else {
            return Box::pin(std::future::ready(Err(WriteError::Temporary(
                "the table tags is not open yet".to_owned(),
            ))));
        };
        let arrival = Ticks::now().unix_nanos().unwrap_or_default();
        let packed = self.packer.lock().pack(&self.source, &messages, arrival);
        self.lake.count_refused(&packed.refused);
        let key = self.key.clone();
        Box::pin(async move {
            let mut refused: Vec<Rejection> = packed.refused.into_iter().map(rejection).collect();
            let mut stored = 0;
            let mut entries = packed.entries.into_iter().peekable();
            while entries.peek().is_some() {
                let (piece, until) = piece(&mut entries, &key);
                if let Err(error) = queue.produce_all(piece).await {
                    if stored == 0 {
                        return Err(WriteError::Temporary(format!("the lake cannot store: {error}")));
                    }
                    // Those before are stored: they do not come again.
                    refused.retain(|refused| refused.index < stored);
                    let again = |index| Rejection::temporary(index, error.to_string());
                    refused.extend((stored..messages.len()).map(again));
                    return all_but(refused);
                }
                stored = until;
            }
            all_but(refused)
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }
}

/// As many entries as the log takes at once, and where their messages end.
fn piece(entries: &mut std::iter::Peekable<impl Iterator<Item = Entry>>, key: &Bytes) -> (Vec<NewMessage>, usize) {
    let (mut piece, mut bytes, mut until) = (Vec::new(), 0, 0);
    while let Some(entry) = entries.next_if(|next| {
        let fits = bytes + next.bytes.len() + RECORD_BYTES <= SUBMISSION_BYTES_MAX;
        piece.is_empty() || (fits && piece.len() < SUBMISSION_RECORDS_MAX)
    }) {
        bytes += entry.bytes.len() + RECORD_BYTES;
        until = entry.until;
        piece.push(NewMessage {
            key: Some(key.clone()),
            ..NewMessage::of(entry.bytes)
        });
    }
    (piece, until)
}

fn rejection(refused: Refused) -> Rejection {
    Rejection::permanent(refused.index, refused.refusal.reason, refused.refusal.error)
}
