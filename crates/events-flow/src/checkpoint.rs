//! Where an input goes on after a restart: a document in the namespace that it reads. Durable when [`Checkpoint::save`] returns.

use serde::{Deserialize, Serialize};
use thalweg_events::{EventsError, Namespace};

/// Documents of inputs, beside those of others.
const PREFIX: &str = "flow/";

pub struct Checkpoint {
    name: String,
    /// What is read: `category order`.
    of: String,
    revision: u64,
    saved: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    of: String,
    next: u64,
}

pub enum Failed {
    /// Trying again may help.
    Store(EventsError),
    /// Somebody has to change the configuration.
    Mistaken(String),
}

impl From<EventsError> for Failed {
    fn from(error: EventsError) -> Failed {
        Failed::Store(error)
    }
}

impl Checkpoint {
    /// Finds out where an earlier run has come to.
    pub async fn open(namespace: &dyn Namespace, name: &str, of: String) -> Result<Checkpoint, Failed> {
        let mut checkpoint = Checkpoint {
            name: name.to_owned(),
            of,
            revision: 0,
            saved: None,
        };
        let Some(document) = namespace.document(&checkpoint.document()).await? else {
            return Ok(checkpoint);
        };
        let content: Content = serde_json::from_slice(&document.content)
            .map_err(|error| Failed::Mistaken(format!("the checkpoint {name} is damaged: {error}")))?;
        if content.of != checkpoint.of {
            let (was, is) = (&content.of, &checkpoint.of);
            return Err(Failed::Mistaken(format!(
                "the checkpoint {name} is of {was}, and this input reads {is}; give it another name with the field checkpoint"
            )));
        }
        (checkpoint.revision, checkpoint.saved) = (document.revision, Some(content.next));
        Ok(checkpoint)
    }

    /// `None`: there was no earlier run.
    pub fn saved(&self) -> Option<u64> {
        self.saved
    }

    pub async fn save(&mut self, namespace: &dyn Namespace, next: u64) -> Result<(), Failed> {
        let content = Content {
            of: self.of.clone(),
            next,
        };
        let text = serde_json::to_vec(&content).map_err(|error| Failed::Mistaken(error.to_string()))?;
        let (name, shown) = (self.document(), &self.name);
        if let Some(revision) = namespace.put_document(&name, Some(&text), self.revision).await? {
            (self.revision, self.saved) = (revision, Some(next));
            return Ok(());
        }
        // A write whose answer was lost is our own.
        let found = namespace.document(&name).await?;
        match found.filter(|found| found.content == text) {
            Some(own) => {
                (self.revision, self.saved) = (own.revision, Some(next));
                Ok(())
            }
            None => Err(Failed::Mistaken(format!(
                "another input moves the checkpoint {shown}; give each a name of its own with the field checkpoint"
            ))),
        }
    }

    fn document(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// What a name may have, so that the document's is not too long.
pub const NAME_BYTES_MAX: usize = 255;
