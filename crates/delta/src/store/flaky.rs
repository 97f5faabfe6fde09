//! A test object store that fails as network stores do: it refuses requests, loses the response of a request that it
//! executed, or executes a request after the caller gave up. One seed decides all of that.

use std::fmt::{Debug, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::StorePath;

/// The faults of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    None,
    /// One in `n` calls fails, before or after it is executed.
    OneOf(u64),
    /// The store does not respond.
    Down,
    /// A put of a commit fails at once and is executed only after [`Flaky::let_go`].
    LateCommits,
    /// Existing names are overwritten.
    Overwrites,
    /// Every call is refused with this code.
    Refused(&'static str),
    /// Each call yields once before and once after it is executed.
    Slow,
}

/// Clones share the store.
#[derive(Clone)]
pub struct Flaky {
    inner: Arc<InMemory>,
    faults: Arc<Mutex<Faults>>,
    random: Arc<AtomicU64>,
    late: watch::Sender<bool>,
    /// The number of calls, and of failed calls.
    pub calls: Arc<AtomicU64>,
    pub failed: Arc<AtomicU64>,
}

impl Flaky {
    pub fn new(seed: u64) -> Flaky {
        Flaky {
            inner: Arc::default(),
            faults: Arc::new(Mutex::new(Faults::None)),
            random: Arc::new(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)),
            late: watch::Sender::new(false),
            calls: Arc::default(),
            failed: Arc::default(),
        }
    }

    pub fn set(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    /// Executes the delayed commits.
    pub fn let_go(&self) {
        self.late.send_replace(true);
    }

    /// The actual content.
    pub fn truth(&self) -> Arc<InMemory> {
        self.inner.clone()
    }

    fn next(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x
    }

    /// Whether this call fails, and if so whether it is executed nevertheless.
    fn fate(&self) -> Result<(), (Error, bool)> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let faults = *self.faults.lock();
        let fate = match faults {
            Faults::OneOf(n) if self.next().is_multiple_of(n) => {
                Err((lost("answers 503 (SlowDown)"), self.next().is_multiple_of(2)))
            }
            Faults::Down => Err((lost("does not answer"), false)),
            Faults::Refused(code) => Err((refused(code), false)),
            _ => Ok(()),
        };
        if fate.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        fate
    }

    async fn call<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate() {
            Ok(()) if *self.faults.lock() == Faults::Slow => {
                tokio::task::yield_now().await;
                let done = work.await;
                tokio::task::yield_now().await;
                done
            }
            Ok(()) => work.await,
            Err((error, true)) => {
                let _ = work.await;
                Err(error)
            }
            Err((error, false)) => Err(error),
        }
    }
}

/// The error text of object store clients.
fn lost(what: &str) -> Error {
    Error::Generic {
        store: "S3",
        source: format!("Error performing PUT http://store/lake in 12.3ms - the store {what}").into(),
    }
}

fn refused(code: &str) -> Error {
    let body = format!(
        "Error performing PUT http://store/lake in 1.5ms - Server returned non-2xx status code: 403 Forbidden: \
         <?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>It is not there.</Message></Error>"
    );
    match code {
        "NoSuchBucket" => Error::NotFound {
            path: "lake".to_owned(),
            source: body.into(),
        },
        _ => Error::PermissionDenied {
            path: "lake".to_owned(),
            source: body.into(),
        },
    }
}

/// Drops the future when it has to wait more than `waits` times, and returns `None`.
pub async fn left_after<F: Future>(waits: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut waited = 0;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending if waited == waits => std::task::Poll::Ready(None),
        std::task::Poll::Pending => {
            waited += 1;
            std::task::Poll::Pending
        }
    })
    .await
}

impl Debug for Flaky {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flaky")
    }
}

impl Display for Flaky {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flaky")
    }
}

#[async_trait]
impl ObjectStore for Flaky {
    async fn put_opts(&self, location: &StorePath, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let faults = *self.faults.lock();
        if faults == Faults::Overwrites {
            options.mode = PutMode::Overwrite;
        }
        let is_commit = location.as_ref().contains("_delta_log/0");
        if faults == Faults::LateCommits && is_commit && options.mode == PutMode::Create {
            let (inner, location, mut late) = (self.inner.clone(), location.clone(), self.late.subscribe());
            tokio::spawn(async move {
                let _ = late.wait_for(|late| *late).await;
                let _ = inner.put_opts(&location, payload, options).await;
            });
            return Err(lost("is late"));
        }
        self.call(self.inner.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &StorePath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.call(self.inner.put_multipart_opts(location, options)).await?;
        Ok(Box::new(FlakyUpload {
            store: self.clone(),
            upload,
        }))
    }

    async fn get_opts(&self, location: &StorePath, options: GetOptions) -> Result<GetResult> {
        self.call(self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &StorePath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.call(self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<StorePath>>) -> BoxStream<'static, Result<StorePath>> {
        match self.fate() {
            Ok(()) => self.inner.delete_stream(locations),
            Err((error, _)) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&StorePath>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.fate() {
            Ok(()) if *self.faults.lock() == Faults::Slow => {
                let listed = self.inner.list(prefix);
                futures::stream::once(tokio::task::yield_now())
                    .flat_map(|()| futures::stream::empty())
                    .chain(listed)
                    .boxed()
            }
            Ok(()) => self.inner.list(prefix),
            Err((error, _)) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&StorePath>) -> Result<ListResult> {
        self.call(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> Result<()> {
        self.call(self.inner.copy_opts(from, to, options)).await
    }
}

#[derive(Debug)]
struct FlakyUpload {
    store: Flaky,
    upload: Box<dyn MultipartUpload>,
}

#[async_trait]
impl MultipartUpload for FlakyUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (store, part) = (self.store.clone(), self.upload.put_part(payload));
        Box::pin(async move { store.call(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let store = self.store.clone();
        store.call(self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        let store = self.store.clone();
        store.call(self.upload.abort()).await
    }
}
