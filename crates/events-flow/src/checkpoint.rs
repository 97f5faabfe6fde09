//! Where an input resumes after a restart: a document in the namespace that it reads. It is durable when
//! [`Checkpoint::save`] returns.

use serde::{Deserialize, Serialize};
use thalweg_events::{EventsError, Namespace};

/// The prefix of these documents; other documents have other prefixes.
const PREFIX: &str = "flow/";

pub struct Checkpoint {
    name: String,
    /// The source: `category order`.
    of: String,
    revision: u64,
    saved: Option<u64>,
    /// Values of saves since then whose outcome is unknown: the answer was lost or not awaited.
    unknown: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct CheckpointDocument {
    of: String,
    next: u64,
}

pub enum CheckpointError {
    /// Retrying may help.
    Store(EventsError),
    /// The configuration must be changed.
    Mistaken(String),
}

impl From<EventsError> for CheckpointError {
    fn from(error: EventsError) -> CheckpointError {
        CheckpointError::Store(error)
    }
}

impl Checkpoint {
    /// Reads the checkpoint of an earlier run.
    pub async fn open(namespace: &dyn Namespace, name: &str, of: String) -> Result<Checkpoint, CheckpointError> {
        let mut checkpoint = Checkpoint {
            name: name.to_owned(),
            of,
            revision: 0,
            saved: None,
            unknown: Vec::new(),
        };
        let Some(document) = namespace.document(&checkpoint.document()).await? else {
            return Ok(checkpoint);
        };
        let content: CheckpointDocument = serde_json::from_slice(&document.content)
            .map_err(|error| CheckpointError::Mistaken(format!("the checkpoint {name} is damaged: {error}")))?;
        if content.of != checkpoint.of {
            let (was, is) = (&content.of, &checkpoint.of);
            return Err(CheckpointError::Mistaken(format!(
                "the checkpoint {name} belongs to {was}, but this input reads {is}; give it another name with the \
                 field checkpoint"
            )));
        }
        (checkpoint.revision, checkpoint.saved) = (document.revision, Some(content.next));
        Ok(checkpoint)
    }

    /// `None`: there was no earlier run.
    pub fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// After an error, or when the future was dropped, the caller may save again.
    pub async fn save(&mut self, namespace: &dyn Namespace, next: u64) -> Result<(), CheckpointError> {
        let text =
            serde_json::to_vec(&self.content(next)).map_err(|error| CheckpointError::Mistaken(error.to_string()))?;
        let name = self.document();
        // The value may be stored or not until an answer arrives. A repeated value is listed once.
        if self.unknown.last() != Some(&next) {
            self.unknown.push(next);
        }
        // Each refusal is due to a different one of these values.
        for _ in 0..=self.unknown.len() {
            if let Some(revision) = namespace.put_document(&name, Some(&text), self.revision).await? {
                self.is_stored(next, revision);
                return Ok(());
            }
            // Another write came first: an own one whose answer was lost, or one of another input.
            let found = namespace.document(&name).await?;
            let own = found.as_ref().and_then(|found| self.is_own(&found.content));
            match (own, found) {
                (Some(own), Some(found)) if own == next => {
                    self.is_stored(next, found.revision);
                    return Ok(());
                }
                (Some(_), Some(found)) => self.revision = found.revision,
                _ => {
                    let shown = &self.name;
                    return Err(CheckpointError::Mistaken(format!(
                        "another input moves the checkpoint {shown}; give each input its own name with the field \
                         checkpoint"
                    )));
                }
            }
        }
        let what = format!("the checkpoint {} was not stored, because it kept changing", self.name);
        Err(EventsError::Unavailable(what).into())
    }

    fn content(&self, next: u64) -> CheckpointDocument {
        CheckpointDocument {
            of: self.of.clone(),
            next,
        }
    }

    fn is_stored(&mut self, next: u64, revision: u64) {
        (self.revision, self.saved) = (revision, Some(next));
        self.unknown.clear();
    }

    /// The position in a document, if this input may have stored it.
    fn is_own(&self, content: &[u8]) -> Option<u64> {
        let content: CheckpointDocument = serde_json::from_slice(content).ok()?;
        (content.of == self.of && self.unknown.contains(&content.next)).then_some(content.next)
    }

    fn document(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// The limit of a checkpoint's name, so that the document's name is not too long.
pub const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use thalweg_events::test_double::NamespaceDouble;

    use super::*;

    async fn opened(namespace: &NamespaceDouble) -> Checkpoint {
        let opened = Checkpoint::open(namespace, "c", "category order".to_owned()).await;
        opened.ok().unwrap()
    }

    fn message(failed: Result<(), CheckpointError>) -> String {
        match failed {
            Ok(()) => String::new(),
            Err(CheckpointError::Store(error)) => format!("store: {error}"),
            Err(CheckpointError::Mistaken(what)) => format!("mistaken: {what}"),
        }
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_no_other_input() {
        for lost in 1..4 {
            let namespace = NamespaceDouble::new("a");
            let mut checkpoint = opened(&namespace).await;
            namespace.lose_answers(lost);
            for next in 0..lost as u64 {
                assert!(message(checkpoint.save(&namespace, next).await).starts_with("store: "));
            }
            // The flow has advanced meanwhile.
            assert_eq!(message(checkpoint.save(&namespace, 10).await), "");
            assert_eq!(opened(&namespace).await.saved(), Some(10));
        }
    }

    #[tokio::test]
    async fn another_input_is_told_from_an_own_write_also_after_a_lost_answer() {
        let namespace = NamespaceDouble::new("a");
        let (mut one, mut other) = (opened(&namespace).await, opened(&namespace).await);
        namespace.lose_answers(1);
        assert!(message(one.save(&namespace, 3).await).starts_with("store: "));
        let refused = message(other.save(&namespace, 7).await);
        assert!(
            refused.starts_with("mistaken: another input moves the checkpoint c"),
            "{refused}"
        );
        assert_eq!(message(one.save(&namespace, 4).await), "");
    }

    /// Drops the save at each of its awaits, in every order of awaited and dropped saves.
    #[tokio::test]
    async fn a_save_that_nobody_waits_for_leaves_the_next_one_right() {
        for case in 0..10_000_u64 {
            let namespace = NamespaceDouble::new("a");
            let mut checkpoint = opened(&namespace).await;
            let (mut case, mut last) = (case, None);
            for next in 1..6_u64 {
                let mut polls = case % 6;
                case /= 6;
                if polls % 2 == 0 {
                    namespace.lose_answers(usize::from(polls == 2));
                }
                let mut save = Box::pin(checkpoint.save(&namespace, next));
                let saved = poll_fn(|context| match save.as_mut().poll(context) {
                    Poll::Ready(saved) => Poll::Ready(Some(saved)),
                    Poll::Pending if polls == 0 => Poll::Ready(None),
                    Poll::Pending => {
                        polls -= 1;
                        Poll::Pending
                    }
                });
                if let Some(saved) = saved.await {
                    let what = message(saved);
                    assert!(!what.starts_with("mistaken"), "{what}");
                    last = what.is_empty().then_some(next).or(last);
                }
            }
            namespace.lose_answers(0);
            let stored = opened(&namespace).await.saved();
            assert!(stored >= last, "{stored:?} behind {last:?}");
            assert_eq!(message(checkpoint.save(&namespace, 9).await), "");
            assert_eq!(opened(&namespace).await.saved(), Some(9));
        }
    }
}
