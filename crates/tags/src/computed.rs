//! `_initialMetadata` and `_incomingKeys`: the original metadata of a message, for scripts only.
//!
//! Both are computed when a script reads them. Neither leaves the processor, even if a message already had such a key.

use thalweg_record::{Metadata, json};
use thalweg_script::ComputedKey;

const INITIAL_METADATA: &str = "_initialMetadata";
const INCOMING_KEYS: &str = "_incomingKeys";

pub(crate) const KEYS: &[ComputedKey] = &[
    ComputedKey {
        name: INITIAL_METADATA,
        compute: |origin| {
            let mut text = String::with_capacity(1024);
            text.push('{');
            for (key, value) in incoming(origin) {
                if text.len() > 1 {
                    text.push(',');
                }
                json::write_string(key, &mut text);
                text.push(':');
                json::write_string(&value, &mut text);
            }
            text.push('}');
            text
        },
    },
    ComputedKey {
        name: INCOMING_KEYS,
        compute: |origin| incoming(origin).map(|(key, _)| key).collect::<Vec<_>>().join(","),
    },
];

fn incoming(origin: &Metadata) -> impl Iterator<Item = (&str, std::borrow::Cow<'_, str>)> {
    origin.iter().filter(|(key, _)| !is_computed(key))
}

pub(crate) fn is_computed(key: &str) -> bool {
    key == INITIAL_METADATA || key == INCOMING_KEYS
}
