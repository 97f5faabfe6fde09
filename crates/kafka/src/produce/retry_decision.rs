//! Decides what happens to a record that a broker did not accept.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use thalweg_record::DropReason;

use crate::link::reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// A retry may succeed.
    Again(String),
    /// A request was rejected because of this record or another in it; a resend alone shows which.
    Together(DropReason, String),
    Refused(DropReason, String),
    /// The topic does not exist or must not be written to; records of other topics are unaffected.
    Topic(String),
    /// This client accepts no records any more.
    ClientLost(String),
}

pub fn fate(error: &KafkaError) -> RetryDecision {
    let why = reason(error);
    let Some(code) = error.rdkafka_error_code() else {
        // A topic with a zero byte in its name.
        return RetryDecision::Refused(DropReason::OutputRejected, why);
    };
    match code {
        // MessageBatchTooLarge is for a request whose records exceed a segment of the topic's log together.
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            RetryDecision::Together(DropReason::TooLarge, why)
        }
        // Older brokers do not say which record it is.
        Code::InvalidMessage
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => RetryDecision::Together(DropReason::OutputRejected, why),
        Code::InvalidTopic | Code::InvalidArgument => RetryDecision::Refused(DropReason::OutputRejected, why),
        Code::Fatal | Code::OutOfOrderSequenceNumber | Code::InvalidProducerEpoch | Code::ProducerFenced => {
            RetryDecision::ClientLost(why)
        }
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed => RetryDecision::Topic(why),
        // Missing leaders or too few replicas: an operator or the cluster can fix them.
        _ => RetryDecision::Again(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_can_cure_is_tried_again() {
        let of = |code| fate(&KafkaError::MessageProduction(code));
        for code in [Code::NotEnoughReplicas, Code::QueueFull, Code::MessageTimedOut] {
            assert!(matches!(of(code), RetryDecision::Again(_)), "{code}");
        }
        for code in [
            Code::UnknownTopicOrPartition,
            Code::UnknownTopic,
            Code::UnknownPartition,
            Code::TopicAuthorizationFailed,
        ] {
            assert!(matches!(of(code), RetryDecision::Topic(_)), "{code}");
        }
    }

    #[test]
    fn what_no_broker_takes_is_refused() {
        let of = |code| fate(&KafkaError::MessageProduction(code));
        for code in [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge] {
            assert!(
                matches!(of(code), RetryDecision::Together(DropReason::TooLarge, _)),
                "{code}"
            );
        }
        for code in [Code::InvalidRecord, Code::InvalidTimestamp, Code::PolicyViolation] {
            assert!(
                matches!(of(code), RetryDecision::Together(DropReason::OutputRejected, _)),
                "{code}"
            );
        }
        assert!(matches!(
            of(Code::InvalidTopic),
            RetryDecision::Refused(DropReason::OutputRejected, _)
        ));
        assert!(matches!(of(Code::Fatal), RetryDecision::ClientLost(_)));
    }
}
