//! Determines the length of a data value by the text of the specification (part 6, 5.2.2), and whether the library
//! misreads it. It is a third implementation, without values, so that the two decoders are not only compared with each
//! other.

use super::{RESERVED_FIRST, RESERVED_LAST};
use crate::value::types;

/// State of the walk over a data value.
#[derive(Debug, Default)]
pub(super) struct Wire {
    rest_at: usize,
    /// The library reads nothing of a value with a reserved type number, and no dimensions of an array without
    /// elements, so it reads everything after them at the wrong position.
    pub library_is_lost: bool,
    depth: u32,
}

const DEPTH_MAX: u32 = 32;

type Walked = Option<()>;

impl Wire {
    /// Returns the number of bytes that a data value takes; `None` if it ends too early or contains something
    /// undefined.
    pub fn data_value(bytes: &[u8]) -> (Wire, Option<usize>) {
        let mut wire = Wire::default();
        let walked = wire.data_value_of(bytes);
        let length = walked.map(|()| wire.rest_at);
        (wire, length)
    }

    fn skip(&mut self, bytes: &[u8], count: usize) -> Walked {
        let end = self.rest_at.checked_add(count).filter(|end| *end <= bytes.len())?;
        self.rest_at = end;
        Some(())
    }

    fn byte(&mut self, bytes: &[u8]) -> Option<u8> {
        let byte = bytes.get(self.rest_at).copied();
        self.rest_at += 1;
        byte
    }

    /// Reads a length; a negative one counts as zero.
    fn length(&mut self, bytes: &[u8]) -> Option<usize> {
        let at = self.rest_at;
        self.skip(bytes, 4)?;
        let length = i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
        Some(usize::try_from(length).unwrap_or(0))
    }

    fn counted(&mut self, bytes: &[u8]) -> Walked {
        let length = self.length(bytes)?;
        self.skip(bytes, length)
    }

    fn deeper(&mut self, bytes: &[u8], walk: fn(&mut Wire, &[u8]) -> Walked) -> Walked {
        self.depth += 1;
        let walked = if self.depth > DEPTH_MAX {
            None
        } else {
            walk(self, bytes)
        };
        self.depth -= 1;
        walked
    }

    fn data_value_of(&mut self, bytes: &[u8]) -> Walked {
        let mask = self.byte(bytes)?;
        if mask & 1 != 0 {
            self.variant(bytes)?;
        }
        for (bit, size) in [(2, 4), (4, 8), (16, 2), (8, 8), (32, 2)] {
            if mask & bit != 0 {
                self.skip(bytes, size)?;
            }
        }
        Some(())
    }

    fn variant(&mut self, bytes: &[u8]) -> Walked {
        let mask = self.byte(bytes)?;
        let kind = mask & 0x3F;
        if mask & 0x80 == 0 {
            return match kind {
                0 => Some(()),
                kind => self.scalar(bytes, kind),
            };
        }
        self.library_is_lost |= kind > types::DIAGNOSTIC_INFO;
        let length = self.length(bytes).filter(|_| kind <= RESERVED_LAST)?;
        for _ in 0..length {
            self.scalar(bytes, kind)?;
        }
        if mask & 0x40 != 0 {
            self.library_is_lost |= length == 0;
            let dimensions = self.length(bytes)?;
            self.skip(bytes, dimensions.checked_mul(4)?)?;
        }
        Some(())
    }

    fn scalar(&mut self, bytes: &[u8], kind: u8) -> Walked {
        match kind {
            types::BOOLEAN | types::SBYTE | types::BYTE => self.skip(bytes, 1),
            types::INT16 | types::UINT16 => self.skip(bytes, 2),
            types::INT32 | types::UINT32 | types::FLOAT | types::STATUS_CODE => self.skip(bytes, 4),
            types::INT64 | types::UINT64 | types::DOUBLE | types::DATE_TIME => self.skip(bytes, 8),
            types::GUID => self.skip(bytes, 16),
            types::STRING | types::BYTE_STRING | types::XML_ELEMENT => self.counted(bytes),
            types::NODE_ID => {
                let encoding = self.byte(bytes)?;
                self.identifier(bytes, encoding)
            }
            types::EXPANDED_NODE_ID => {
                let encoding = self.byte(bytes)?;
                self.identifier(bytes, encoding & 0x3F)?;
                if encoding & 0x80 != 0 {
                    self.counted(bytes)?;
                }
                self.skip(bytes, if encoding & 0x40 != 0 { 4 } else { 0 })
            }
            types::QUALIFIED_NAME => {
                self.skip(bytes, 2)?;
                self.counted(bytes)
            }
            types::LOCALIZED_TEXT => {
                let mask = self.byte(bytes)?;
                (0..(mask & 3).count_ones()).try_for_each(|_| self.counted(bytes))
            }
            types::EXTENSION_OBJECT => self.deeper(bytes, Wire::extension_object),
            types::DATA_VALUE => self.deeper(bytes, Wire::data_value_of),
            types::VARIANT => self.deeper(bytes, Wire::variant),
            types::DIAGNOSTIC_INFO => self.deeper(bytes, Wire::diagnostic_info),
            RESERVED_FIRST..=RESERVED_LAST => {
                self.library_is_lost = true;
                self.counted(bytes)
            }
            // No decoder can know how to read these.
            kind => {
                self.library_is_lost |= kind > types::DIAGNOSTIC_INFO;
                None
            }
        }
    }

    fn identifier(&mut self, bytes: &[u8], encoding: u8) -> Walked {
        match encoding {
            0 => self.skip(bytes, 1),
            1 => self.skip(bytes, 3),
            2 => self.skip(bytes, 6),
            3 | 5 => {
                self.skip(bytes, 2)?;
                self.counted(bytes)
            }
            4 => self.skip(bytes, 18),
            _ => None,
        }
    }

    fn extension_object(&mut self, bytes: &[u8]) -> Walked {
        let encoding = self.byte(bytes)?;
        self.identifier(bytes, encoding)?;
        match self.byte(bytes)? {
            0 => Some(()),
            1 | 2 => self.counted(bytes),
            _ => None,
        }
    }

    fn diagnostic_info(&mut self, bytes: &[u8]) -> Walked {
        let mask = self.byte(bytes)?;
        let numbers = (mask & 0x0F).count_ones() as usize;
        self.skip(bytes, numbers * 4)?;
        if mask & 0x10 != 0 {
            self.counted(bytes)?;
        }
        self.skip(bytes, if mask & 0x20 != 0 { 4 } else { 0 })?;
        match mask & 0x40 {
            0 => Some(()),
            _ => self.deeper(bytes, Wire::diagnostic_info),
        }
    }
}
