//! Parts of a stream name: its category, its id, and the consumer group member that owns it.

use md5::{Digest as _, Md5};

/// The name up to the first `-`, or the whole name.
pub fn category(stream: &str) -> &str {
    stream.split_once('-').map_or(stream, |(category, _)| category)
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
                    .filter(|number| {
                        GroupMember {
                            number: *number,
                            of: size,
                        }
                        .owns(&stream)
                    })
                    .collect();
                assert_eq!(owners, [number], "{cardinal} of {size}");
            }
        }
        let alone = GroupMember { number: 0, of: 1 };
        assert!(!alone.owns("account") && !alone.owns("account-"));
    }
}
