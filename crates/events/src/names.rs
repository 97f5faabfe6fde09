//! Parts of a stream name: its category, its id, and the consumer group member that owns it. Also the category that
//! correlates a message.

use std::borrow::Cow;

use md5::{Digest as _, Md5};

use crate::json::Json;

/// The name up to the first `-`, or the whole name.
pub fn category(stream: &str) -> &str {
    stream.split_once('-').map_or(stream, |(category, _)| category)
}

/// Whether streams can have this category: no category contains a `-`.
pub fn is_category(name: &str) -> bool {
    !name.contains('-')
}

/// The member of the metadata that names the stream to which a message is related.
const CORRELATION: &str = "correlationStreamName";

/// The category of the stream in `correlationStreamName` of the metadata, if that is a string.
pub fn correlation(metadata: Option<&str>) -> Option<Cow<'_, str>> {
    // A search is faster than parsing, but the key may be written with escapes.
    let metadata = metadata.filter(|text| text.contains(CORRELATION) || text.contains('\\'))?;
    Some(match Json::new(metadata).get(CORRELATION)?.string()? {
        Cow::Borrowed(stream) => Cow::Borrowed(category(stream)),
        Cow::Owned(mut stream) => {
            stream.truncate(category(&stream).len());
            Cow::Owned(stream)
        }
    })
}

/// The part of the name that distributes streams among group members: the id, which follows the first `-`, up to its
/// first `+`. `None` if it is missing or empty.
pub fn cardinal_id(stream: &str) -> Option<&str> {
    let (_, id) = stream.split_once('-')?;
    let cardinal = id.split_once('+').map_or(id, |(cardinal, _)| cardinal);
    (!cardinal.is_empty()).then_some(cardinal)
}

/// A member of a consumer group, which owns some of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub number: u64,
    /// The size of the group, greater than `number`.
    pub of: u64,
}

impl GroupMember {
    /// `None` unless `number` is less than `of`.
    pub fn new(number: u64, of: u64) -> Option<GroupMember> {
        (number < of).then_some(GroupMember { number, of })
    }

    pub fn owns(&self, stream: &str) -> bool {
        group_hash(stream).is_some_and(|hash| self.owns_hash(hash))
    }

    pub fn owns_hash(&self, hash: u64) -> bool {
        hash % self.of == self.number
    }
}

/// The absolute value of the first eight bytes of the MD5 of the cardinal id, as a signed number. This is the function
/// of Message DB, which existing consumers rely on. A stream without a cardinal id belongs to no member.
pub fn group_hash(stream: &str) -> Option<u64> {
    let digest = Md5::digest(cardinal_id(stream)?);
    let first = digest.first_chunk::<8>()?;
    Some(i64::from_be_bytes(*first).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_first_dash_and_plus() {
        for (stream, of, cardinal) in [
            ("account-123+bob", "account", Some("123")),
            ("user-profile-456", "user", Some("profile-456")),
            ("-x", "", Some("x")),
            ("account", "account", None),
            ("account-", "account", None),
            ("account-+bob", "account", None),
            ("a:b-1", "a:b", Some("1")),
        ] {
            assert_eq!((category(stream), cardinal_id(stream)), (of, cardinal), "{stream}");
        }
    }

    #[test]
    fn a_message_is_correlated_by_the_category_of_a_stream_however_it_is_written() {
        for (metadata, of) in [
            (r#"{"correlationStreamName":"order-1"}"#, Some("order")),
            (r#"{"x":1,"correlationStreamName":"order"}"#, Some("order")),
            (r#"{"\u0063orrelationStreamName":"order-1-2"}"#, Some("order")),
            (r#"{"correlationStreamName":"\u006frder-1"}"#, Some("order")),
            (r#"{"correlationStreamName":"-1"}"#, Some("")),
            (r#"{"correlationStreamName":1}"#, None),
            (r#"{"other":"order-1"}"#, None),
            ("{}", None),
        ] {
            assert_eq!(correlation(Some(metadata)).as_deref(), of, "{metadata}");
        }
        assert_eq!(correlation(None), None);
        assert!(is_category("order") && is_category("") && !is_category("order-1"));
    }

    #[test]
    fn streams_go_to_the_members_that_message_db_gives_them() {
        // Cardinal id, first eight bytes of its MD5, members of groups of 2, 3 and 4.
        for (cardinal, hash, members) in [
            ("0", -3473083983811222033_i64, [1, 1, 1]),
            ("1", -4266524885998034046, [0, 0, 2]),
            ("2", -4026655064267673757, [1, 1, 1]),
            ("3", -1383792015730482434, [0, 2, 2]),
            ("123", 2318431741638412123, [1, 1, 3]),
            ("abc", -8070080442485551184, [0, 2, 0]),
            ("profile-456", 2471379903903866105, [1, 2, 1]),
            ("é", 7412306613632936882, [0, 2, 2]),
        ] {
            let stream = format!("c-{cardinal}+rest");
            assert_eq!(group_hash(&stream), Some(hash.unsigned_abs()), "{cardinal}");
            for (size, number) in (2..).zip(members) {
                let owners: Vec<u64> = (0..size)
                    .filter(|number| GroupMember::new(*number, size).unwrap().owns(&stream))
                    .collect();
                assert_eq!(owners, [number], "{cardinal} of {size}");
            }
        }
        let alone = GroupMember { number: 0, of: 1 };
        assert!(!alone.owns("account") && !alone.owns("account-"));
        assert_eq!(GroupMember::new(2, 2), None);
    }
}
