//! Reads of the lake's files without a thread of the runtime: the store of the library would start one for each.

use std::fmt::{Debug, Display, Formatter};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// The local file system, read on a thread that is waited for.
#[derive(Default)]
pub struct InlineReads(LocalFileSystem);

impl InlineReads {
    /// Runs where there is no runtime, so that the library reads in place.
    fn apart<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(|| futures::executor::block_on(work())).join().unwrap())
    }
}

impl Debug for InlineReads {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("InlineReads")
    }
}

impl Display for InlineReads {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("files")
    }
}

fn read_only() -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: "a write".to_owned(),
        implementer: "InlineReads".to_owned(),
    }
}

#[async_trait]
impl ObjectStore for InlineReads {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (mut result, bytes) = InlineReads::apart(async || {
            let result = self.0.get_opts(location, options).await?;
            let (meta, range) = (result.meta.clone(), result.range.clone());
            let attributes = result.attributes.clone();
            let bytes: Bytes = result.bytes().await?;
            Ok::<_, object_store::Error>((
                GetResult {
                    payload: GetResultPayload::Stream(futures::stream::empty().boxed()),
                    meta,
                    range,
                    attributes,
                },
                bytes,
            ))
        })?;
        result.payload = GetResultPayload::Stream(futures::stream::once(async { Ok(bytes) }).boxed());
        Ok(result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        InlineReads::apart(async || self.0.get_ranges(location, ranges).await)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let mut all = InlineReads::apart(async || self.0.list(prefix).collect::<Vec<_>>().await);
        // A folder has no order of its own.
        all.sort_by_key(|entry| entry.as_ref().ok().map(|meta| meta.location.clone()));
        futures::stream::iter(all).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut list = InlineReads::apart(async || self.0.list_with_delimiter(prefix).await)?;
        list.objects.sort_by_key(|meta| meta.location.clone());
        list.common_prefixes.sort();
        Ok(list)
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        locations.and_then(|_| async { Err(read_only()) }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}
