//! OPC UA status codes: their text in metadata and logs, and the meaning of some of them for a client.

use opcua::types::{StatusCode, SubStatusCode};

const SEVERITY: u32 = 0xC000_0000;
const BAD: u32 = 0x8000_0000;
const OVERFLOW: u32 = 0x0000_0080;
/// The reserved half of the info type.
const INFO_RESERVED: u32 = 0x0000_0800;
const CODE: u32 = 0xFFFF_0000;

/// `<sentence> <name> (0x<HEX>)`, with all bits in the number and without those of the info part in the name; a code
/// that the specification does not list: `0x<HEX>`.
pub(crate) fn text(status: u32) -> String {
    match SubStatusCode::from_value(status & CODE) {
        Some(known) => format!("{} Status{} (0x{status:X})", known.description().trim(), known.name()),
        None => format!("0x{status:X}"),
    }
}

/// Returns the name of the code alone, for metric labels and lists.
pub(crate) fn name(status: u32) -> String {
    match SubStatusCode::from_value(status & CODE) {
        Some(known) => known.name().to_owned(),
        None => format!("0x{status:X}"),
    }
}

pub(crate) fn is_bad(status: u32) -> bool {
    status & SEVERITY >= BAD
}

/// Good whatever the info bits say.
pub(crate) fn is_good(status: u32) -> bool {
    status & SEVERITY == 0
}

/// Returns whether values were lost in the server's queue just before or after this one. Some servers set the bit
/// without the info type that it requires.
pub(crate) fn is_overflow(status: u32) -> bool {
    status & (INFO_RESERVED | OVERFLOW) == OVERFLOW
}

pub(crate) fn is_one_of(status: u32, codes: &[StatusCode]) -> bool {
    codes.iter().any(|code| code.bits() == status & CODE)
}

/// Errors after which the same call with fewer operations may succeed.
pub(crate) fn says_too_large(status: u32) -> bool {
    const CODES: [StatusCode; 5] = [
        StatusCode::BadTooManyOperations,
        StatusCode::BadRequestTooLarge,
        StatusCode::BadResponseTooLarge,
        StatusCode::BadEncodingLimitsExceeded,
        StatusCode::BadTcpMessageTooLarge,
    ];
    is_one_of(status, &CODES)
}

/// The subset caused by the number of operations or the size of the request, regardless of the response.
pub(crate) fn says_request_too_large(status: u32) -> bool {
    is_one_of(
        status,
        &[StatusCode::BadTooManyOperations, StatusCode::BadRequestTooLarge],
    )
}

/// Errors of whole calls that concern the state of the server, regardless of the request.
pub(crate) fn says_later(status: u32) -> bool {
    const CODES: [StatusCode; 4] = [
        StatusCode::BadServerHalted,
        StatusCode::BadServerTooBusy,
        StatusCode::BadShutdown,
        StatusCode::BadTcpServerTooBusy,
    ];
    is_one_of(status, &CODES)
}

/// Returns whether the server aborted a call that took too long; part of it may have been done.
pub(crate) fn says_timed_out(status: u32) -> bool {
    is_one_of(status, &[StatusCode::BadRequestTimeout, StatusCode::BadTimeout])
}

/// Returns whether the number of concurrent calls should be reduced, too.
pub(crate) fn says_too_many(status: u32) -> bool {
    is_one_of(status, &[StatusCode::BadTooManyOperations])
}

/// Errors that concern the filter of a monitored item and not the item.
pub(crate) fn says_no_filter(status: u32) -> bool {
    const CODES: [StatusCode; 4] = [
        StatusCode::BadFilterNotAllowed,
        StatusCode::BadMonitoredItemFilterUnsupported,
        StatusCode::BadMonitoredItemFilterInvalid,
        StatusCode::BadDeadbandFilterInvalid,
    ];
    is_one_of(status, &CODES)
}

/// Errors of a monitored item that may be caused by its parameters, such as the sampling interval: none that refers to
/// the node, its access rights or the capacity of the server.
pub(crate) fn says_parameters_refused(status: u32) -> bool {
    const CODES: [StatusCode; 7] = [
        StatusCode::BadConfigurationError,
        StatusCode::BadInternalError,
        StatusCode::BadInvalidArgument,
        StatusCode::BadNotImplemented,
        StatusCode::BadNotSupported,
        StatusCode::BadOutOfRange,
        StatusCode::BadUnexpectedError,
    ];
    is_one_of(status, &CODES) || says_no_filter(status)
}

/// Returns whether a subscription or the server accepts no more monitored items.
pub(crate) fn says_full(status: u32) -> bool {
    is_one_of(status, &[StatusCode::BadTooManyMonitoredItems])
}

/// Returns whether the session is gone and a new one is needed.
pub(crate) fn says_session_gone(status: u32) -> bool {
    const CODES: [StatusCode; 4] = [
        StatusCode::BadSessionIdInvalid,
        StatusCode::BadSessionClosed,
        StatusCode::BadSessionNotActivated,
        StatusCode::BadSecureChannelIdInvalid,
    ];
    is_one_of(status, &CODES)
}

/// Returns whether the subscription is gone.
pub(crate) fn says_no_subscription(status: u32) -> bool {
    const CODES: [StatusCode; 2] = [StatusCode::BadSubscriptionIdInvalid, StatusCode::BadNoSubscription];
    is_one_of(status, &CODES)
}

/// Errors of one read or write that a retry would get again, because of the node, its type, its access rights or the
/// value. All others are temporary: a device that is not connected, a server without resources.
pub(crate) fn says_never(status: u32) -> bool {
    const CODES: [StatusCode; 18] = [
        StatusCode::BadAttributeIdInvalid,
        StatusCode::BadDataEncodingInvalid,
        StatusCode::BadDataEncodingUnsupported,
        StatusCode::BadIndexRangeInvalid,
        StatusCode::BadIndexRangeNoData,
        StatusCode::BadInvalidArgument,
        StatusCode::BadNodeIdInvalid,
        StatusCode::BadNodeIdUnknown,
        StatusCode::BadNotImplemented,
        StatusCode::BadNotReadable,
        StatusCode::BadNotSupported,
        StatusCode::BadNotWritable,
        StatusCode::BadOutOfRange,
        StatusCode::BadSecurityModeInsufficient,
        StatusCode::BadSyntaxError,
        StatusCode::BadTypeMismatch,
        StatusCode::BadUserAccessDenied,
        StatusCode::BadWriteNotSupported,
    ];
    is_one_of(status, &CODES)
}

/// Errors after which a client must not reconnect at once.
pub(crate) fn says_wait(status: u32) -> bool {
    const CODES: [StatusCode; 2] = [StatusCode::BadUserAccessDenied, StatusCode::BadTooManySessions];
    is_one_of(status, &CODES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_sentence_name_and_number() {
        assert_eq!(text(0), "The operation succeeded. StatusGood (0x0)");
        assert_eq!(
            text(0x8001_0000),
            "An unexpected error occurred. StatusBadUnexpectedError (0x80010000)"
        );
        assert!(text(0x8034_0000).ends_with(" StatusBadNodeIdUnknown (0x80340000)"));
        assert_eq!(text(0xBEEF_0000), "0xBEEF0000");
    }

    #[test]
    fn info_bits_take_no_status_its_name_and_change_no_severity() {
        // Overflow, limit and historian bits, and a changed structure.
        for info in [0x480, 0x80, 0x100, 0x401, 0x8000, 0xFFFF] {
            let good = format!("The operation succeeded. StatusGood (0x{info:X})");
            assert_eq!(text(info), good);
            assert!(is_good(info) && !is_bad(info));
            let uncertain = text(0x4090_0000 | info);
            let tail = format!(" StatusUncertainLastUsableValue (0x{:X})", 0x4090_0000 | info);
            assert!(uncertain.ends_with(&tail), "{uncertain}");
            assert!(!is_good(0x4090_0000 | info) && !is_bad(0x4090_0000 | info));
            let bad = text(0x8031_0000 | info);
            assert!(bad.ends_with(&format!(" StatusBadNoCommunication (0x{:X})", 0x8031_0000 | info)));
            assert!(!is_good(0x8031_0000 | info) && is_bad(0x8031_0000 | info));
            assert_eq!(text(0xBEEF_0000 | info), format!("0x{:X}", 0xBEEF_0000 | info));
        }
    }

    #[test]
    fn every_listed_code_has_a_sentence() {
        for code in (0..0x400u32).flat_map(|sub| [sub << 16, 0x4000_0000 | sub << 16, 0x8000_0000 | sub << 16]) {
            let text = text(code);
            assert!(
                text.starts_with("0x") || (text.contains(" Status") && text.ends_with(&format!("(0x{code:X})"))),
                "{text}"
            );
        }
    }

    #[test]
    fn overflow_is_told_with_and_without_its_info_type() {
        assert!(is_overflow(0x480) && is_overflow(0x80));
        assert!(!is_overflow(0x880) && !is_overflow(0x400) && !is_overflow(0));
        assert!(is_bad(0x8000_0000) && is_bad(0xC000_0000) && !is_bad(0x4000_0000));
    }
}
