//! Reads an Arrow stream from another process as rows while it arrives.
//!
//! The stream is complete only with its end mark, so a truncated answer is an error, never a shorter answer.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};

use crate::error::QueryError;
use crate::print::RowStream;

/// The end of an Arrow stream: a continuation mark and a length of zero.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Returns once the columns are known. An error of `bytes` is one sentence.
pub async fn rows(bytes: BoxStream<'static, Result<Bytes, String>>) -> Result<RowStream, QueryError> {
    let mut received = ArrowStreamReceiver {
        bytes,
        decoder: StreamDecoder::new(),
        ready: VecDeque::new(),
        last: Vec::new(),
    };
    let schema = loop {
        if let Some(schema) = received.decoder.schema() {
            break schema;
        }
        if !received.more().await? {
            return Err(cut_off("it ended before its columns"));
        }
    };
    let batches = stream::try_unfold(received, |mut received| async move {
        loop {
            if let Some(batch) = received.ready.pop_front() {
                return Ok(Some((batch, received)));
            }
            if !received.more().await? {
                return match received.last == END {
                    true => Ok(None),
                    false => Err(cut_off("it has no end mark")),
                };
            }
        }
    });
    Ok(RowStream {
        schema,
        batches: batches.boxed(),
    })
}

fn cut_off(why: &str) -> QueryError {
    QueryError::execute(format!("the answer was cut off: {why}"))
}

struct ArrowStreamReceiver {
    bytes: BoxStream<'static, Result<Bytes, String>>,
    decoder: StreamDecoder,
    ready: VecDeque<RecordBatch>,
    /// The last bytes received.
    last: Vec<u8>,
}

impl ArrowStreamReceiver {
    /// Returns `false` at the end of the stream.
    async fn more(&mut self) -> Result<bool, QueryError> {
        let Some(next) = self.bytes.next().await else {
            return Ok(false);
        };
        let bytes = next.map_err(|why| cut_off(&why))?;
        self.last
            .extend_from_slice(bytes.get(bytes.len().saturating_sub(END.len())..).unwrap_or_default());
        let older = self.last.len().saturating_sub(END.len());
        self.last.drain(..older);
        let mut buffer = Buffer::from(bytes);
        while !buffer.is_empty() {
            let decoded = self.decoder.decode(&mut buffer);
            let broken = |error: ArrowError| cut_off(&error.to_string());
            match decoded.map_err(broken)? {
                Some(batch) => self.ready.push_back(batch),
                None => break,
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use futures::TryStreamExt as _;

    use super::*;
    use crate::format::{RowFormat, RowWriter};

    fn sent(batches: usize) -> Vec<u8> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let mut writer = RowWriter::new(RowFormat::Arrow, &batch.schema()).unwrap();
        let mut bytes: Vec<u8> = (0..batches).flat_map(|_| writer.write(&batch).unwrap()).collect();
        bytes.extend(writer.finish().unwrap());
        bytes
    }

    async fn received(bytes: &[u8], piece: usize) -> Result<usize, QueryError> {
        let pieces: Vec<_> = bytes
            .chunks(piece)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let rows = rows(stream::iter(pieces).boxed()).await?;
        assert_eq!(rows.schema.fields().len(), 1);
        let batches: Vec<RecordBatch> = rows.batches.try_collect().await?;
        Ok(batches.iter().map(RecordBatch::num_rows).sum())
    }

    #[tokio::test]
    async fn rows_arrive_however_their_bytes_are_cut_and_a_part_is_no_answer() {
        for batches in [0, 3] {
            let bytes = sent(batches);
            for piece in [1, 7, 1000, bytes.len()] {
                assert_eq!(received(&bytes, piece).await.unwrap(), batches * 1000, "{piece}");
            }
            for len in [0, 10, bytes.len() / 2, bytes.len() - 8, bytes.len() - 1] {
                let error = received(&bytes[..len], 64).await.unwrap_err();
                assert!(error.message.starts_with("the answer was cut off"), "{len}: {error}");
            }
        }
    }
}
