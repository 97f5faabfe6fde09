//! Splits a body into lines; each is in memory only until the next one. A line that is too long ends the reading.

use axum::body::BodyDataStream;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use thalweg_http::compression::DecodeError;

use super::ImportError;
use crate::error_kind::EventsApiErrorKind;

pub(super) struct LineReader {
    body: BodyDataStream,
    buffer: BytesMut,
    /// The length of the buffer's prefix that is known to have no line end.
    searched: usize,
    line_max: usize,
    /// The number of the last returned line, from 1.
    number: u64,
    ended: bool,
}

impl LineReader {
    pub fn new(body: BodyDataStream, line_max: usize) -> LineReader {
        LineReader {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            line_max,
            number: 0,
            ended: false,
        }
    }

    /// The number of the last returned line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads the rest, to the end or until the client disconnects. The limits for refused bodies are not for an import:
    /// its response has begun, and its last event is for clients that send everything before they read.
    pub async fn discard_rest(&mut self) {
        while let Some(Ok(_)) = self.body.next().await {}
    }

    /// Includes the line end if there is one. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ImportError> {
        loop {
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            let end = fresh
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|at| self.searched + at);
            let len = end.unwrap_or(self.buffer.len());
            if len > self.line_max {
                self.buffer = BytesMut::new();
                return Err(ImportError {
                    kind: EventsApiErrorKind::ReadError,
                    message: format!("line {} exceeds {} bytes", self.number + 1, self.line_max),
                    line: self.number + 1,
                });
            }
            if let Some(end) = end {
                self.searched = 0;
                self.number += 1;
                return Ok(Some(self.buffer.split_to(end + 1).freeze()));
            }
            self.searched = self.buffer.len();
            if self.ended {
                let rest = std::mem::take(&mut self.buffer).freeze();
                self.searched = 0;
                self.number += 1;
                return Ok((!rest.is_empty()).then_some(rest));
            }
            match self.body.next().await {
                Some(Ok(more)) => self.buffer.extend_from_slice(&more),
                Some(Err(error)) => {
                    let ended_early = || "the request ended early".to_owned();
                    return Err(ImportError {
                        kind: EventsApiErrorKind::ReadError,
                        message: DecodeError::of(&error).map_or_else(ended_early, DecodeError::to_string),
                        line: 0,
                    });
                }
                None => self.ended = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use futures::stream;
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]], line_max: usize) -> Result<Vec<Vec<u8>>, ImportError> {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, Infallible>(Bytes::from(piece.to_vec())))
            .collect();
        let mut lines = LineReader::new(Body::from_stream(stream::iter(pieces)).into_data_stream(), line_max);
        futures::executor::block_on(async {
            let mut all = Vec::new();
            while let Some(line) = lines.next().await? {
                all.push(line.to_vec());
            }
            Ok(all)
        })
    }

    #[test]
    fn a_line_over_the_limit_is_told_with_its_number_however_it_comes() {
        let pieces: [&[&[u8]]; 4] = [
            &[b"1234\n12345\n1\n"],
            &[b"1234\n", b"12345"],
            &[b"1234\n12", b"345\n"],
            &[b"1234\n", b"123456789"],
        ];
        for pieces in pieces {
            let failed = read(pieces, 4).unwrap_err();
            assert_eq!(
                (failed.kind, failed.line),
                (EventsApiErrorKind::ReadError, 2),
                "{pieces:?}"
            );
        }
        assert_eq!(read(&[b"1234\n1234"], 4).unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(text in "[ab\n]{0,60}", cuts in proptest::collection::vec(0..60usize, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let expected: Vec<Vec<u8>> = text.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect();
            prop_assert_eq!(read(&pieces, 100).unwrap(), expected);
        }
    }
}
