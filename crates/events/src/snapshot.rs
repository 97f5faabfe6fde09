//! Snapshots: the state of a stream at a version, stored beside its messages so that a reader need not start at the
//! first one. There is one per stream. A new snapshot replaces it unless its version is lower, so a slow concurrent
//! writer loses whenever it arrives. A snapshot of messages that were cleared since is ignored.

use bytes::Bytes;
use thalweg_kit::varint;
use thalweg_log::Micros;
use thalweg_log::format::{FieldReader, FieldWriter};

use crate::error::{EventsError, Result};
use crate::store::Namespace;

/// The encoding while the namespace has never been cleared; the second one contains the generation from its watermark.
const FORM: u8 = 1;
const FORM_CLEARED: u8 = 2;
const CONFLICTS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last stream version that it covers.
    pub version: u64,
    pub kind: String,
    /// JSON without whitespace between tokens.
    pub data: String,
    /// When it was stored.
    pub time: Micros,
}

/// The outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutSnapshotOutcome {
    /// The version of the current snapshot.
    pub version: u64,
    pub stored: bool,
}

fn document(stream: &str) -> String {
    format!("snapshot/{stream}")
}

/// Stores a snapshot. Durable when it returns.
pub async fn put(namespace: &dyn Namespace, stream: &str, snapshot: &Snapshot) -> Result<PutSnapshotOutcome> {
    let name = document(stream);
    for _ in 0..CONFLICTS_MAX {
        let known = namespace.document(&name).await?;
        let revision = known.as_ref().map_or(0, |known| known.revision);
        let cleared = namespace.watch().borrow().cleared;
        // A snapshot in an unknown form can be recreated from the messages.
        let version = known
            .and_then(|known| Snapshot::decode(&known.content))
            .filter(|(_, made)| *made >= cleared)
            .map(|(known, _)| known.version);
        if let Some(version) = version.filter(|version| *version > snapshot.version) {
            return Ok(PutSnapshotOutcome { version, stored: false });
        }
        let content = snapshot.encode(cleared);
        if namespace.put_document(&name, Some(&content), revision).await?.is_some() {
            return Ok(PutSnapshotOutcome {
                version: snapshot.version,
                stored: true,
            });
        }
    }
    Err(EventsError::Unavailable(format!(
        "too many callers write the snapshot of stream '{stream}' at once: try again"
    )))
}

pub async fn get(namespace: &dyn Namespace, stream: &str) -> Result<Option<Snapshot>> {
    let Some(known) = namespace.document(&document(stream)).await? else {
        return Ok(None);
    };
    let Some((snapshot, made)) = Snapshot::decode(&known.content) else {
        return Err(EventsError::Damaged(format!(
            "the snapshot of stream '{stream}' has a form that this version does not know: put it again"
        )));
    };
    let cleared = namespace.watch().borrow().cleared;
    Ok(Some(snapshot).filter(|_| made >= cleared))
}

impl Snapshot {
    /// Form 1, or form 2 with the generation of the namespace (varint) · version (varint) · time 8 · type (varint
    /// length, bytes) · data.
    fn encode(&self, cleared: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(40 + self.kind.len() + self.data.len());
        match cleared {
            0 => out.push(FORM),
            _ => {
                out.push(FORM_CLEARED);
                varint::put(&mut out, cleared);
            }
        }
        varint::put(&mut out, self.version);
        FieldWriter(&mut out).i64(self.time);
        varint::put(&mut out, self.kind.len() as u64);
        out.extend_from_slice(self.kind.as_bytes());
        out.extend_from_slice(self.data.as_bytes());
        out
    }

    fn decode(content: &Bytes) -> Option<(Snapshot, u64)> {
        let mut take = FieldReader(content);
        let (cleared, rest) = match take.u8()? {
            FORM => (0, take.0),
            FORM_CLEARED => varint::take(take.0)?,
            _ => return None,
        };
        let (version, rest) = varint::take(rest)?;
        take.0 = rest;
        let time = take.i64()?;
        let (len, rest) = varint::take(take.0)?;
        let (kind, data) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let snapshot = Snapshot {
            version,
            kind: std::str::from_utf8(kind).ok()?.to_owned(),
            data: std::str::from_utf8(data).ok()?.to_owned(),
            time,
        };
        Some((snapshot, cleared))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_double::NamespaceDouble;

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
        let namespace = NamespaceDouble::new("a");
        assert_eq!(get(&namespace, "cart-1").await.unwrap(), None);
        for (version, kept, stored) in [(3, 3, true), (7, 7, true), (5, 7, false), (7, 7, true)] {
            let expected = PutSnapshotOutcome { version: kept, stored };
            assert_eq!(put(&namespace, "cart-1", &of(version)).await.unwrap(), expected);
            assert_eq!(get(&namespace, "cart-1").await.unwrap(), Some(of(kept)));
        }
        assert_eq!(get(&namespace, "cart-2").await.unwrap(), None);
    }

    #[tokio::test]
    async fn none_of_messages_that_were_removed_is_left_or_in_the_way() {
        let namespace = NamespaceDouble::new("a");
        for _ in 0..2 {
            assert!(put(&namespace, "cart-1", &of(7)).await.unwrap().stored);
            namespace.clear().await.unwrap();
            assert_eq!(get(&namespace, "cart-1").await.unwrap(), None);
            assert!(put(&namespace, "cart-1", &of(2)).await.unwrap().stored);
            assert!(!put(&namespace, "cart-1", &of(1)).await.unwrap().stored);
            assert_eq!(get(&namespace, "cart-1").await.unwrap(), Some(of(2)));
        }
    }

    #[tokio::test]
    async fn who_is_overtaken_looks_again() {
        let namespace = NamespaceDouble::new("a");
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
            (version, time, cleared) in any::<(u64, i64, u64)>(),
            kind in ".{0,40}",
            data in ".{0,100}",
            noise in any::<Vec<u8>>(),
        ) {
            let snapshot = Snapshot { version, kind, data, time };
            for cleared in [0, cleared] {
                let written = snapshot.encode(cleared).into();
                prop_assert_eq!(Snapshot::decode(&written), Some((snapshot.clone(), cleared)));
            }
            let _ = Snapshot::decode(&noise.into());
        }
    }
}
