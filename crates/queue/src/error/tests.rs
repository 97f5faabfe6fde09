use std::io;
use std::sync::Arc;

use thalweg_config::{Fields, Node};
use thalweg_log::{NewerVersion, PartitionId, VersionedPart};

use super::*;

fn receipt() -> Receipt {
    "pumps:3:17:2".parse().unwrap()
}

/// One of each kind, with the row of the table in section 8 of the specification.
fn all() -> Vec<(QueueError, &'static str, u16)> {
    let queue = || SmolStr::new("pumps");
    let group = || SmolStr::new("alarms");
    vec![
        (QueueError::QueueNotFound { queue: queue() }, "queue_not_found", 404),
        (
            QueueError::GroupNotFound {
                queue: queue(),
                group: group(),
            },
            "group_not_found",
            404,
        ),
        (
            QueueError::MessageNotFound { id: receipt().id },
            "message_not_found",
            404,
        ),
        (QueueError::QueueExists { queue: queue() }, "queue_exists", 409),
        (
            QueueError::GroupExists {
                queue: queue(),
                group: group(),
            },
            "group_exists",
            409,
        ),
        (QueueError::invalid("partitions: 1 to 1000"), "invalid_config", 400),
        (
            QueueError::MessageTooLarge {
                queue: queue(),
                size: 9,
                limit: 8,
            },
            "message_too_large",
            413,
        ),
        (
            QueueError::QueueFull {
                queue: queue(),
                key: "max_depth",
                limit: 8,
            },
            "queue_full",
            429,
        ),
        (
            QueueError::TooManyPending {
                queue: queue(),
                group: group(),
                consumer: "c".into(),
                limit: 8,
            },
            "too_many_pending",
            429,
        ),
        (
            QueueError::OffsetGap {
                queue: queue(),
                partition: 3,
                from: 1,
                to: 2,
            },
            "offset_gap",
            410,
        ),
        (QueueError::LeaseLost { receipt: receipt() }, "lease_lost", 409),
        (QueueError::NotLeased { receipt: receipt() }, "not_leased", 409),
        (QueueError::Gone { receipt: receipt() }, "gone", 409),
        (QueueError::ReceiptOver { receipt: receipt() }, "gone", 409),
        (
            QueueError::Paused {
                what: "queue pumps".into(),
            },
            "paused",
            503,
        ),
        (QueueError::UnknownOutcome { queue: queue() }, "unknown_outcome", 503),
        (
            QueueError::DurabilityUnavailable {
                queue: queue(),
                durability: Durability::Fsync,
                cause: "tmpfs cannot sync".into(),
            },
            "durability_unavailable",
            422,
        ),
        (
            QueueError::NotAuthenticated {
                cause: "the token is unknown".into(),
            },
            "not_authenticated",
            401,
        ),
        (
            QueueError::NotAuthorized {
                action: "delete queue pumps".into(),
                reason: "it needs role admin".into(),
            },
            "not_authorized",
            403,
        ),
        (
            QueueError::RateLimited {
                what: "publishes",
                retry_after: Duration::from_millis(250),
            },
            "rate_limited",
            429,
        ),
        (
            QueueError::QuotaExceeded {
                what: "consumers",
                limit: 8,
            },
            "quota_exceeded",
            429,
        ),
        (
            QueueError::NoRoomForGroups {
                queue: queue(),
                limit: 8,
            },
            "quota_exceeded",
            429,
        ),
    ]
}

fn of_the_log() -> Vec<(LogError, &'static str, u16)> {
    let partition = PartitionId::new(7, 3);
    let file = || "log/1".to_owned();
    vec![
        (
            LogError::DiskFull {
                folder: "log".to_owned(),
                free_bytes: 1,
                needed_bytes: 2,
            },
            "disk_full",
            507,
        ),
        (
            LogError::Poisoned {
                cause: "fdatasync failed".into(),
            },
            "log_poisoned",
            503,
        ),
        (
            LogError::Corrupt {
                file: file(),
                position: 4096,
                expected: Default::default(),
                found: "zeros".to_owned(),
            },
            "corrupt",
            500,
        ),
        (
            LogError::Io {
                what: "cannot read",
                file: file(),
                error: Arc::new(io::Error::other("bad sector")),
            },
            "corrupt",
            500,
        ),
        (
            LogError::NewerFormat {
                file: file(),
                position: 0,
                found: NewerVersion {
                    what: VersionedPart::Frame,
                    found: 2,
                },
            },
            "newer_format",
            500,
        ),
        (
            LogError::Gap {
                partition,
                from: 1,
                to: 2,
            },
            "offset_gap",
            410,
        ),
        (
            LogError::OffsetTaken {
                partition,
                expected: 1,
                next: 2,
            },
            "fenced",
            503,
        ),
        (
            LogError::TooLarge {
                what: "a submission",
                size: 9,
                limit: 8,
            },
            "message_too_large",
            413,
        ),
        (LogError::NoPartition(partition), "queue_not_found", 404),
        (LogError::PartitionExists(partition), "queue_exists", 409),
        (LogError::Closed, "unknown_outcome", 503),
        (
            LogError::Partly {
                cause: std::sync::Arc::new(LogError::Closed),
            },
            "unknown_outcome",
            503,
        ),
        (LogError::TooManyPartitions { limit: 9 }, "quota_exceeded", 429),
        (
            LogError::DurabilityUnavailable {
                wanted: "fsync",
                offered: "`os`",
            },
            "durability_unavailable",
            422,
        ),
    ]
}

#[test]
fn every_error_has_the_code_and_the_status_of_the_specification() {
    let of_the_log = of_the_log().into_iter();
    let wrapped = of_the_log.map(|(error, code, status)| (QueueError::from(error), code, status));
    for (error, code, status) in all().into_iter().chain(wrapped) {
        assert_eq!((error.code(), error.http_status()), (code, status), "{error}");
        let told = matches!(status, 429 | 503 | 507);
        assert_eq!(error.retry_after().is_some(), told, "Retry-After of {code}");
    }
}

#[test]
fn the_table_has_no_kind_that_is_the_kind_of_no_error() {
    let own = all().into_iter().map(|(error, ..)| error.kind());
    let of_the_log = of_the_log()
        .into_iter()
        .map(|(error, ..)| QueueError::from(error).kind());
    let kinds: Vec<QueueErrorKind> = own.chain(of_the_log).collect();
    for kind in QueueErrorKind::ALL {
        assert!(kinds.contains(kind), "{kind:?}");
    }
}

#[test]
fn messages_are_one_sentence_with_the_place() {
    for (error, code, _) in all() {
        let text = error.to_string();
        assert!(!text.contains('\n') && !text.ends_with('.'), "{code}: {text}");
    }
    let full = QueueError::QueueFull {
        queue: "pumps".into(),
        key: "max_depth",
        limit: 100_000,
    };
    assert_eq!(
        full.to_string(),
        "queue pumps is full: max_depth is 100000; let consumers catch up or raise it"
    );
}

#[test]
fn all_mistakes_of_a_request_come_in_one_error() {
    let node = Node::parse("{a: 1, b: x}").unwrap();
    let diags = Diagnostics::new("body");
    assert!(QueueError::check(&diags).is_ok());
    let mut fields = Fields::new(&node, &diags);
    fields.bool("a", false);
    fields.int("b", 0);
    fields.finish();
    let error = QueueError::check(&diags).unwrap_err();
    assert_eq!(error.code(), "invalid_config");
    assert_eq!(
        error.to_string(),
        "body:1:5: a: expected true or false, got the number 1; body:1:11: b: expected a whole number, got the text \"x\""
    );
}

#[test]
fn an_error_is_no_larger_than_a_result_may_be() {
    assert!(size_of::<QueueError>() <= 112, "{}", size_of::<QueueError>());
}
