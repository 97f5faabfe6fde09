//! Records on their way into the log. The caller encodes them once, and they are not decoded again until they are read.

use smallvec::SmallVec;

use crate::error::{LogError, Result};
use crate::format::frame::{BODY_MAX, FrameFlags, FrameKind};
use crate::format::record::{self, KEY_MAX, PROPERTIES_MAX, RecordRef};
use crate::ids::{Micros, Offset, PartitionId};

/// Maximum number of records and of bytes in a submission.
pub const SUBMISSION_RECORDS_MAX: usize = 10_000;
pub const SUBMISSION_BYTES_MAX: usize = BODY_MAX;

/// Maximum encoded size of a record. It leaves room in a frame for the offset delta that a rewrite adds.
const RECORD_MAX: usize = BODY_MAX - 16;

/// Records for one partition.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub(crate) body: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) flags: FrameFlags,
    pub(crate) base_time: Micros,
    pub(crate) max_time: Micros,
    pub(crate) expected: Option<Offset>,
    /// The number of offsets that they occupy. `None`: one per record.
    pub(crate) span: Option<u32>,
}

impl Records {
    pub fn new() -> Records {
        Records::default()
    }

    /// Preallocates `bytes` for the encoded records.
    pub fn with_capacity(bytes: usize) -> Records {
        Records {
            body: Vec::with_capacity(bytes),
            ..Records::default()
        }
    }

    pub fn push(&mut self, record: &RecordRef<'_>) -> Result<()> {
        within("a key", record.key.map_or(0, <[u8]>::len), KEY_MAX)?;
        within("the properties", record.properties.as_bytes().len(), PROPERTIES_MAX)?;
        within("a batch of records", self.count as usize + 1, SUBMISSION_RECORDS_MAX)?;
        let len = self.body.len();
        record.encode(&mut self.body);
        let fits = within("a record", self.body.len() - len, RECORD_MAX)
            .and_then(|()| within("a batch", self.body.len(), SUBMISSION_BYTES_MAX));
        if let Err(error) = fits {
            self.body.truncate(len);
            return Err(error);
        }
        self.flags |= record.flags();
        if self.count == 0 {
            (self.base_time, self.max_time) = (record.time, record.time);
        }
        self.base_time = self.base_time.min(record.time);
        self.max_time = self.max_time.max(record.time);
        self.count += 1;
        Ok(())
    }

    /// Adds all records of `push` or, if it fails, none.
    pub(crate) fn push_together(&mut self, push: &mut dyn FnMut(&mut Records) -> Result<()>) -> Result<()> {
        let (len, count, flags) = (self.body.len(), self.count, self.flags);
        let times = (self.base_time, self.max_time);
        let pushed = push(self);
        if pushed.is_err() {
            self.body.truncate(len);
            (self.count, self.flags) = (count, flags);
            (self.base_time, self.max_time) = times;
        }
        pushed
    }

    /// Stores the records only if the first one gets this offset; otherwise the append fails with
    /// [`LogError::OffsetTaken`]. A caller that assigns numbers can thus submit the next batch before the last one is
    /// confirmed: if one is refused, so are all later ones.
    #[must_use]
    pub fn expecting(mut self, first: Offset) -> Records {
        self.expected = Some(first);
        self
    }

    /// Makes the records occupy `offsets` offsets, with the delta of each record selecting its own. The other offsets
    /// are empty, as after a rewrite. This is for storing records of another log under their old offsets. Fails if the
    /// deltas do not increase or reach `offsets`.
    pub fn covering(mut self, offsets: u32) -> Result<Records> {
        let mut next = 0;
        for record in record::records(&self.body) {
            let delta = record.ok().and_then(|record| record.delta);
            let own = delta
                .filter(|delta| (next..offsets).contains(delta))
                .ok_or(LogError::TooLarge {
                    what: "the offset of a record within its batch",
                    size: delta.map_or(usize::MAX, |delta| delta as usize),
                    limit: offsets as usize,
                })?;
            next = own + 1;
        }
        self.flags |= FrameFlags::OFFSET_DELTAS;
        self.span = Some(offsets);
        Ok(self)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn bytes(&self) -> usize {
        self.body.len()
    }
}

fn within(what: &'static str, size: usize, limit: usize) -> Result<()> {
    if size > limit {
        return Err(LogError::TooLarge { what, size, limit });
    }
    Ok(())
}

/// Records of one or more partitions that are stored together or not at all.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    // Usually one part, which needs no allocation.
    pub(crate) parts: SmallVec<[(PartitionId, FrameKind, Records); 1]>,
    pub(crate) frees: bool,
}

impl WriteBatch {
    /// A batch of messages, which is refused while the disk is full.
    pub fn of(partition: PartitionId, records: Records) -> WriteBatch {
        WriteBatch::default().and(partition, records)
    }

    pub fn and(self, partition: PartitionId, records: Records) -> WriteBatch {
        self.and_of(FrameKind::Data, partition, records)
    }

    /// Adds records of any kind. All kinds except [`FrameKind::Data`] are accepted until the disk has no space at all.
    pub fn and_of(mut self, kind: FrameKind, partition: PartitionId, records: Records) -> WriteBatch {
        self.parts.push((partition, kind, records));
        self
    }

    /// Marks a batch that frees space, such as a deletion. On a full disk it may use the reserve of the commit file.
    /// The reserve is small, so this is not for frequent operations. Everything journaled for its partitions goes into
    /// the same block; a part without records requests only that.
    pub fn freeing(mut self) -> WriteBatch {
        self.frees = true;
        self
    }

    /// Whether the batch has only messages. Batches that free space must be accepted while the disk is full.
    pub(crate) fn only_messages(&self) -> bool {
        self.parts.iter().all(|(_, kind, _)| *kind == FrameKind::Data)
    }

    pub(crate) fn check(&self) -> Result<usize> {
        let bytes: usize = self.parts.iter().map(|(_, _, records)| records.bytes()).sum();
        let records: usize = self.parts.iter().map(|(_, _, records)| records.len()).sum();
        within("a submission", bytes, SUBMISSION_BYTES_MAX)?;
        within("a submission of records", records, SUBMISSION_RECORDS_MAX)?;
        Ok(bytes)
    }
}
