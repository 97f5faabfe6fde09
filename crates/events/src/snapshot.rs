//! Snapshots: what a stream came to at a version, kept beside its messages so that a reader need not start from the first.
//! There is one per stream. A later one takes its place unless it is of a lower version: of several that write at the same
//! time the slow one loses, whenever it comes.

use bytes::Bytes;
use thalweg_log::Micros;
use thalweg_log::format::{Put, Take, varint};

use crate::error::{EventsError, Result};
use crate::store::Namespace;

const FORM: u8 = 1;
const CONFLICTS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the stream, the last that it covers.
    pub version: u64,
    pub kind: String,
    /// JSON, without white space between its parts.
    pub data: String,
    /// When it was stored.
    pub time: Micros,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of the snapshot that the stream has now.
    pub version: u64,
    pub stored: bool,
}

fn document(stream: &str) -> String {
    format!("snapshot/{stream}")
}

/// Durable when it returns.
pub async fn put(namespace: &dyn Namespace, stream: &str, snapshot: &Snapshot) -> Result<Kept> {
    let name = document(stream);
    let content = snapshot.encode();
    for _ in 0..CONFLICTS_MAX {
        let known = namespace.document(&name).await?;
        let revision = known.as_ref().map_or(0, |known| known.revision);
        // One in an unknown form can be made again from the messages.
        let version = known
            .and_then(|known| Snapshot::decode(&known.content))
            .map(|known| known.version);
        if let Some(version) = version.filter(|version| *version > snapshot.version) {
            return Ok(Kept { version, stored: false });
        }
        if namespace.put_document(&name, Some(&content), revision).await?.is_some() {
            return Ok(Kept {
                version: snapshot.version,
                stored: true,
            });
        }
    }
    Err(EventsError::Unavailable(format!(
        "the snapshot of stream '{stream}' is written by too many at once: try again"
    )))
}

pub async fn get(namespace: &dyn Namespace, stream: &str) -> Result<Option<Snapshot>> {
    let Some(known) = namespace.document(&document(stream)).await? else {
        return Ok(None);
    };
    let snapshot = Snapshot::decode(&known.content);
    snapshot.map(Some).ok_or_else(|| {
        EventsError::Damaged(format!(
            "the snapshot of stream '{stream}' is in no form that this version knows: put it anew"
        ))
    })
}

impl Snapshot {
    /// Form 1 · version (varint) · time 8 · type (varint length, bytes) · data.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.kind.len() + self.data.len());
        out.push(FORM);
        varint::put(&mut out, self.version);
        Put(&mut out).i64(self.time);
        varint::put(&mut out, self.kind.len() as u64);
        out.extend_from_slice(self.kind.as_bytes());
        out.extend_from_slice(self.data.as_bytes());
        out
    }

    fn decode(content: &Bytes) -> Option<Snapshot> {
        let mut take = Take(content);
        if take.u8()? != FORM {
            return None;
        }
        let (version, rest) = varint::take(take.0)?;
        take.0 = rest;
        let time = take.i64()?;
        let (len, rest) = varint::take(take.0)?;
        let (kind, data) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        Some(Snapshot {
            version,
            kind: std::str::from_utf8(kind).ok()?.to_owned(),
            data: std::str::from_utf8(data).ok()?.to_owned(),
            time,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_double::Double;

    fn of(version: u64) -> Snapshot {
        Snapshot {
            version,
            kind: "Cart".into(),
            data: format!("{{\"v\":{version}}}"),
            time: 5,
        }
    }

    #[tokio::test]
    async fn the_newest_is_kept_and_an_older_one_that_comes_late_is_not() {
        let namespace = Double::new("a");
        assert_eq!(get(&namespace, "cart-1").await.unwrap(), None);
        for (version, kept, stored) in [(3, 3, true), (7, 7, true), (5, 7, false), (7, 7, true)] {
            let expected = Kept { version: kept, stored };
            assert_eq!(put(&namespace, "cart-1", &of(version)).await.unwrap(), expected);
            assert_eq!(get(&namespace, "cart-1").await.unwrap(), Some(of(kept)));
        }
        assert_eq!(get(&namespace, "cart-2").await.unwrap(), None);
    }

    #[tokio::test]
    async fn who_is_overtaken_looks_again() {
        let namespace = Double::new("a");
        namespace.overtake(3);
        let stored = put(&namespace, "cart-1", &of(1)).await.unwrap();
        assert!(stored.stored);
        namespace.overtake(1000);
        let given_up = put(&namespace, "cart-1", &of(2)).await.unwrap_err();
        assert!(matches!(given_up, EventsError::Unavailable(_)), "{given_up}");
    }

    proptest! {
        #[test]
        fn a_snapshot_is_read_as_it_was_written(
            (version, time) in any::<(u64, i64)>(),
            kind in ".{0,40}",
            data in ".{0,100}",
            noise in any::<Vec<u8>>(),
        ) {
            let snapshot = Snapshot { version, kind, data, time };
            prop_assert_eq!(Snapshot::decode(&snapshot.encode().into()), Some(snapshot));
            let _ = Snapshot::decode(&noise.into());
        }
    }
}
