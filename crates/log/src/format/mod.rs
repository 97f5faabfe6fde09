//! The format on disk, little endian. A commit file is a sequence of blocks. A block is a header, the headers of its
//! frames, their bodies, and zeros up to the next page. A body is a sequence of records of one partition, opaque to the
//! writer.

pub mod block;
pub mod footer;
pub mod frame;
pub mod newer;
pub mod record;
pub mod superblock;

/// Blocks start at multiples of this, so that a torn write cannot damage an earlier block.
pub const PAGE: usize = 4096;

pub const fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Writes fixed-width fields.
pub struct FieldWriter<'a>(pub &'a mut Vec<u8>);

impl FieldWriter<'_> {
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
}

/// Reads fixed-width fields; `None` at the end of the bytes.
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    pub fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_le_bytes)
    }
}
