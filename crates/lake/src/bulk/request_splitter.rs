//! Splits a request of any length into smaller requests: its groups are repeated fields, so a few of them form a
//! request, too.

use std::io::{BufRead, Read as _};

use super::error::BulkError;
use thalweg_kit::wire::FieldKey;

/// The size of a part.
const PART_BYTES: usize = 1 << 20;

/// Reads the fields of one message.
pub(super) struct RequestSplitter<R> {
    from: R,
    /// The offset of the current part.
    begin: u64,
    at: u64,
    field_bytes_max: usize,
}

impl<R: BufRead> RequestSplitter<R> {
    /// `field_bytes_max` limits a single field.
    pub fn new(from: R, field_bytes_max: usize) -> RequestSplitter<R> {
        RequestSplitter {
            from,
            begin: 0,
            at: 0,
            field_bytes_max,
        }
    }

    /// The offset of the last part.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Reads the next complete fields. Returns false at the end.
    pub fn next(&mut self, part: &mut Vec<u8>) -> Result<bool, BulkError> {
        part.clear();
        self.begin = self.at;
        while part.len() < PART_BYTES && self.field(part)? {}
        Ok(!part.is_empty())
    }

    fn field(&mut self, part: &mut Vec<u8>) -> Result<bool, BulkError> {
        let Some(key) = self.number(part)? else {
            return Ok(false);
        };
        let key = FieldKey::try_from(key).unwrap_or_default();
        match key & 7 {
            0 => drop(self.number(part)?.ok_or_else(|| self.cut())?),
            1 => self.copy(8, part)?,
            5 => self.copy(4, part)?,
            2 => {
                let len = self.number(part)?.ok_or_else(|| self.cut())?;
                if len > self.field_bytes_max as u64 {
                    let limit = self.field_bytes_max >> 20;
                    return Err(self.malformed(format!(
                        "a group of {len} bytes is larger than {limit} MiB; if this is an OTLP file, its writer can send \
                         smaller requests"
                    )));
                }
                self.copy(len, part)?;
            }
            _ => return Err(self.malformed("no field of a request begins like this; is it an OTLP file?".to_owned())),
        }
        Ok(true)
    }

    /// `None` at the end of the file.
    fn number(&mut self, part: &mut Vec<u8>) -> Result<Option<u64>, BulkError> {
        let mut number = 0;
        for index in 0..10 {
            let Some(&byte) = self.from.fill_buf()?.first() else {
                return if index == 0 { Ok(None) } else { Err(self.cut()) };
            };
            self.from.consume(1);
            self.at += 1;
            part.push(byte);
            if index == 9 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(Some(number));
            }
        }
        Err(self.malformed("a number has more than 64 bits".to_owned()))
    }

    /// A claimed length never causes an allocation.
    fn copy(&mut self, len: u64, part: &mut Vec<u8>) -> Result<(), BulkError> {
        let copied = (&mut self.from).take(len).read_to_end(part)? as u64;
        self.at += copied;
        match copied == len {
            true => Ok(()),
            false => Err(self.cut()),
        }
    }

    fn cut(&self) -> BulkError {
        let begin = self.at;
        BulkError::Malformed {
            offset: begin,
            what: "it is cut off within a field".to_owned(),
        }
    }

    fn malformed(&self, what: String) -> BulkError {
        BulkError::Malformed { offset: self.at, what }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(key: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![key << 3 | 2];
        let mut len = body.len();
        while len >= 0x80 {
            out.push(len as u8 | 0x80);
            len >>= 7;
        }
        out.push(len as u8);
        out.extend_from_slice(body);
        out
    }

    fn parts(bytes: &[u8]) -> Result<Vec<Vec<u8>>, BulkError> {
        let mut frames = RequestSplitter::new(std::io::BufReader::with_capacity(7, bytes), 4 << 20);
        let (mut all, mut part) = (Vec::new(), Vec::new());
        while frames.next(&mut part)? {
            assert_eq!(frames.begin() as usize, all.iter().map(Vec::len).sum::<usize>());
            all.push(part.clone());
        }
        Ok(all)
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        let number = |tenth: u8| [&[8][..], &[0xff; 9], &[tenth]].concat();
        assert_eq!(parts(&number(1)).unwrap(), [number(1)]);
        for bytes in [number(2), number(0x7f), number(0x81)] {
            let error = parts(&bytes).unwrap_err().to_string();
            assert!(error.contains("more than 64 bits"), "{error}");
        }
    }

    proptest! {
        /// The parts form the file, and each of them is a valid request.
        #[test]
        fn parts_together_are_the_file(sizes in prop::collection::vec((1u8..4, 0usize..600_000), 0..8)) {
            let bytes: Vec<u8> = sizes.iter().flat_map(|(key, size)| field(*key, &vec![7; *size])).collect();
            let parts = parts(&bytes).unwrap();
            prop_assert_eq!(parts.concat(), bytes);
            for part in parts {
                prop_assert_eq!(self::parts(&part).unwrap().concat(), part);
            }
        }
    }

    #[test]
    fn a_cut_is_told_with_its_place_and_nothing_large_is_believed() {
        let whole = [field(1, &[0; 300]), field(1, &[1; 20])].concat();
        for cut in 1..whole.len() {
            let error = parts(&whole[..cut]);
            // A cut between two fields cannot be detected.
            let is_between = cut == field(1, &[0; 300]).len();
            assert_eq!(error.is_ok(), is_between, "{cut}");
        }
        let error = parts(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]).unwrap_err().to_string();
        assert!(
            error.starts_with("otlp.malformed: byte 6: a group of 34359738367 bytes"),
            "{error}"
        );
        let error = parts(b"\x0bxx").unwrap_err().to_string();
        assert!(error.contains("no field of a request begins like this"), "{error}");
    }
}
