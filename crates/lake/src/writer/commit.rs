//! The thread that commits generations, one after the other, and answers for them.

use std::sync::Arc;
use std::time::Instant;

use super::shared::{Buffered, Committed, Sealed, Shared};
use crate::attributes::Bindings;
use crate::commit::{Committer, EncodedFile, Rows, Stop, unix_ms};
use crate::delta::schema::TableSchema;
use crate::error::AppendError;
use crate::metrics::LakeMetrics;
use crate::rows::slots::Source;
use crate::tags::schema::TABLE;
use crate::tags::{Encoder, FileOptions, Generation};

/// What a generation is to the one that commits it.
struct Encoding<'a> {
    rows: &'a Generation,
    files: FileOptions,
}

impl Rows for Encoding<'_> {
    fn names(&self, bindings: &Bindings) -> Vec<(Source, &str)> {
        let unresolved = self.rows.series.iter().filter(|series| !series.is_resolved(bindings));
        let attributes = unresolved.flat_map(|series| &series.attributes);
        attributes.map(|(name, _)| (Source::Attr, name.as_str())).collect()
    }

    fn encode(&self, schema: &TableSchema, bindings: &Bindings) -> Result<(Vec<EncodedFile>, u64), String> {
        let encoder = Encoder::new(self.rows, schema, bindings, self.files);
        let files = encoder.encode(unix_ms()).map_err(|error| error.to_string())?;
        Ok((files, encoder.overflow_values()))
    }
}

/// Runs until the other thread has ended and its last generation is committed.
pub(super) fn run(mut committer: Committer, shared: &Arc<Shared>, files: FileOptions, metrics: &LakeMetrics) {
    let _end = End(shared);
    publish(&committer, shared, None);
    while let Some(sealed) = next(shared) {
        let rows = Encoding {
            rows: &sealed.rows,
            files,
        };
        let outcome = committer.commit(&rows, &[]);
        if let Err(Stop::Failed(error)) = outcome {
            shared.fail(error);
            return;
        }
        if outcome.is_ok() {
            publish(&committer, shared, Some(unix_ms()));
        }
        // Whoever hears that its rows are stored finds them counted as such.
        let mut state = shared.lock();
        state.committing = false;
        state.sealed = Buffered::default();
        state.last_commit_end = Some(Instant::now());
        drop(state);
        shared.notify();
        match outcome {
            Err(Stop::Rows(error)) => {
                tracing::error!(table = TABLE, rows = sealed.rows.rows(), "{error}");
                for waiter in sealed.waiters {
                    let _ = waiter.done.send(Err(error.clone()));
                }
            }
            _ => {
                let visibility = metrics.visibility_seconds.with_label_values(&[TABLE]);
                for waiter in sealed.waiters {
                    visibility.observe(waiter.since.elapsed().as_secs_f64());
                    waiter.stored();
                }
            }
        }
    }
}

fn next(shared: &Shared) -> Option<Sealed> {
    let mut state = shared.lock();
    loop {
        if let Some(sealed) = state.handed.take() {
            return Some(sealed);
        }
        if state.rows_ended || state.failure.is_some() {
            return None;
        }
        shared.wait(&mut state, None);
    }
}

fn publish(committer: &Committer, shared: &Shared, committed_unix_ms: Option<i64>) {
    let snapshot = &committer.snapshot;
    let committed = Committed {
        version: snapshot.version,
        rows: snapshot.rows,
        bytes: snapshot.bytes,
        files: snapshot.files_by_level().into_iter().collect(),
        promoted_columns: committer.bindings.columns().len() as u64,
        last_commit_unix_ms: committed_unix_ms,
    };
    shared.lock().committed = committed;
}

/// However the thread ends, nobody waits for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // After a failure this changes nothing; after an orderly end nothing waits.
        self.0.fail(AppendError::Stopped);
    }
}
