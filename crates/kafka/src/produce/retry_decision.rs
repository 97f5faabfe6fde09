//! What becomes of a record that a broker did not take.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use thalweg_record::DropReason;

use crate::link::reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Sending it again may help.
    Again(String),
    /// A request was refused, for it or for a record that it was sent with; with no other one it is told which.
    Together(DropReason, String),
    Refused(DropReason, String),
    /// Its topic is not there, or must not be written to: records of other topics have nothing to do with it.
    Topic(String),
    /// No record is taken by this client any more.
    ClientLost(String),
}

pub fn fate(error: &KafkaError) -> RetryDecision {
    let why = reason(error);
    let Some(code) = error.rdkafka_error_code() else {
        // A topic with a zero byte in its name.
        return RetryDecision::Refused(DropReason::OutputRejected, why);
    };
    match code {
        // The second is of a request whose records are larger together than a segment of the topic's log.
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
        // Absent leaders, too few replicas: an operator or the cluster can end them.
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
