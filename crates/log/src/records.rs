//! Records on their way into the log: encoded once, by whoever brings them, and not looked at again before they are read.

use smallvec::SmallVec;

use crate::error::{LogError, Result};
use crate::format::frame::{BODY_MAX, FrameFlags, FrameKind};
use crate::format::record::{self, KEY_MAX, PROPERTIES_MAX, RecordRef};
use crate::ids::{Micros, Offset, PartitionId};

/// Records and bytes of one submission.
pub const SUBMISSION_RECORDS_MAX: usize = 10_000;
pub const SUBMISSION_BYTES_MAX: usize = BODY_MAX;

/// Of one record as it is stored: with the offset that a rewrite gives it, it has still room in a frame.
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
    /// Offsets that they take; `None`: as many as there are records.
    pub(crate) span: Option<u32>,
}

impl Records {
    pub fn new() -> Records {
        Records::default()
    }

    /// Room for bodies of so many bytes, to be filled without growing.
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

    /// Those of `push` too, all of them or, if it fails, none.
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

    /// Only if the first of them gets this offset are they stored; else the append is refused with
    /// [`LogError::OffsetTaken`]. So whoever numbers what is stored may submit the next before it knows what became of the
    /// last: if that was refused, so is all that was numbered behind it.
    #[must_use]
    pub fn expecting(mut self, first: Offset) -> Records {
        self.expected = Some(first);
        self
    }

    /// They take so many offsets, and each says with its delta which of them is its own; under the others there is nothing, as
    /// where a rewrite has removed records. For whoever stores again, under the same offsets, what another log has had. Fails
    /// if the deltas do not rise, or go beyond `offsets`.
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
    // Mostly one, which costs no allocation.
    pub(crate) parts: SmallVec<[(PartitionId, FrameKind, Records); 1]>,
    pub(crate) frees: bool,
}

impl WriteBatch {
    /// Messages, which are refused while the disk is full.
    pub fn of(partition: PartitionId, records: Records) -> WriteBatch {
        WriteBatch::default().and(partition, records)
    }

    pub fn and(self, partition: PartitionId, records: Records) -> WriteBatch {
        self.and_of(FrameKind::Data, partition, records)
    }

    /// Records of any kind: all but [`FrameKind::Data`] are taken as long as there is a byte left.
    pub fn and_of(mut self, kind: FrameKind, partition: PartitionId, records: Records) -> WriteBatch {
        self.parts.push((partition, kind, records));
        self
    }

    /// Space becomes free by it, as by a deletion: on a full disk it may use what every commit file keeps for that. That is
    /// little, so this is not for what happens often. What was journaled for its partitions goes with it in one block; a part
    /// without records asks for that alone.
    pub fn freeing(mut self) -> WriteBatch {
        self.frees = true;
        self
    }

    /// Nothing else is in it: what frees space with its help must go on while the disk is full.
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
