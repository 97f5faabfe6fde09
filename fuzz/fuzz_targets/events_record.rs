//! Any bytes as what events have in the log and beside it: messages, documents, subscriptions. What is read of them is written
//! as something that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_events::subscription::Subscription;

fuzz_target!(|bytes: &[u8]| {
    thalweg_events::fuzz::record(bytes);
    if let Some(subscription) = Subscription::decode(bytes) {
        let encoded = subscription.encode();
        let again = Subscription::decode(&encoded).expect("what is written can be read");
        assert_eq!(again.encode(), encoded);
    }
});
