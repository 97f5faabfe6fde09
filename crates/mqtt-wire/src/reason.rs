//! Reason codes of MQTT 5.0 and the return codes of 3.1.1.

/// A reason code. Codes from 0x80 on are failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReasonCode {
    /// Also "normal disconnection" and "granted QoS 0".
    Success = 0x00,
    GrantedQoS1 = 0x01,
    GrantedQoS2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    ReAuthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8a,
    ServerShuttingDown = 0x8b,
    BadAuthenticationMethod = 0x8c,
    KeepAliveTimeout = 0x8d,
    SessionTakenOver = 0x8e,
    TopicFilterInvalid = 0x8f,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9a,
    QoSNotSupported = 0x9b,
    UseAnotherServer = 0x9c,
    ServerMoved = 0x9d,
    SharedSubscriptionsNotSupported = 0x9e,
    ConnectionRateExceeded = 0x9f,
    MaximumConnectTime = 0xa0,
    SubscriptionIdentifiersNotSupported = 0xa1,
    WildcardSubscriptionsNotSupported = 0xa2,
}

use ReasonCode::*;

/// All codes with their names as the standard spells them, in ascending order.
const CODES: [(ReasonCode, &str); 43] = [
    (Success, "Success"),
    (GrantedQoS1, "Granted QoS 1"),
    (GrantedQoS2, "Granted QoS 2"),
    (DisconnectWithWill, "Disconnect with Will Message"),
    (NoMatchingSubscribers, "No matching subscribers"),
    (NoSubscriptionExisted, "No subscription existed"),
    (ContinueAuthentication, "Continue authentication"),
    (ReAuthenticate, "Re-authenticate"),
    (UnspecifiedError, "Unspecified error"),
    (MalformedPacket, "Malformed Packet"),
    (ProtocolError, "Protocol Error"),
    (ImplementationSpecificError, "Implementation specific error"),
    (UnsupportedProtocolVersion, "Unsupported Protocol Version"),
    (ClientIdentifierNotValid, "Client Identifier not valid"),
    (BadUserNameOrPassword, "Bad User Name or Password"),
    (NotAuthorized, "Not authorized"),
    (ServerUnavailable, "Server unavailable"),
    (ServerBusy, "Server busy"),
    (Banned, "Banned"),
    (ServerShuttingDown, "Server shutting down"),
    (BadAuthenticationMethod, "Bad authentication method"),
    (KeepAliveTimeout, "Keep Alive timeout"),
    (SessionTakenOver, "Session taken over"),
    (TopicFilterInvalid, "Topic Filter invalid"),
    (TopicNameInvalid, "Topic Name invalid"),
    (PacketIdentifierInUse, "Packet Identifier in use"),
    (PacketIdentifierNotFound, "Packet Identifier not found"),
    (ReceiveMaximumExceeded, "Receive Maximum exceeded"),
    (TopicAliasInvalid, "Topic Alias invalid"),
    (PacketTooLarge, "Packet too large"),
    (MessageRateTooHigh, "Message rate too high"),
    (QuotaExceeded, "Quota exceeded"),
    (AdministrativeAction, "Administrative action"),
    (PayloadFormatInvalid, "Payload format invalid"),
    (RetainNotSupported, "Retain not supported"),
    (QoSNotSupported, "QoS not supported"),
    (UseAnotherServer, "Use another server"),
    (ServerMoved, "Server moved"),
    (SharedSubscriptionsNotSupported, "Shared Subscriptions not supported"),
    (ConnectionRateExceeded, "Connection rate exceeded"),
    (MaximumConnectTime, "Maximum connect time"),
    (
        SubscriptionIdentifiersNotSupported,
        "Subscription Identifiers not supported",
    ),
    (
        WildcardSubscriptionsNotSupported,
        "Wildcard Subscriptions not supported",
    ),
];

impl ReasonCode {
    /// `None` for a number that the standard does not define.
    pub fn of(number: u8) -> Option<ReasonCode> {
        let found = CODES.binary_search_by_key(&number, |(code, _)| *code as u8).ok()?;
        CODES.get(found).map(|(code, _)| *code)
    }

    #[inline]
    pub fn number(self) -> u8 {
        self as u8
    }

    #[inline]
    pub fn is_failure(self) -> bool {
        self.number() >= 0x80
    }

    /// The name that the standard gives it.
    pub fn name(self) -> &'static str {
        let found = CODES.binary_search_by_key(&self.number(), |(code, _)| *code as u8);
        found.ok().and_then(|at| CODES.get(at)).map_or("", |(_, name)| name)
    }

    /// The return code of a CONNACK of 3.1 and 3.1.1. `None`: they have none, and the connection is only closed.
    pub fn connack_v3(self) -> Option<u8> {
        match self {
            Success => Some(0),
            UnsupportedProtocolVersion => Some(1),
            ClientIdentifierNotValid => Some(2),
            UnspecifiedError
            | ImplementationSpecificError
            | ServerUnavailable
            | ServerBusy
            | ServerShuttingDown
            | QuotaExceeded
            | UseAnotherServer
            | ServerMoved
            | ConnectionRateExceeded => Some(3),
            BadUserNameOrPassword => Some(4),
            NotAuthorized | Banned | BadAuthenticationMethod => Some(5),
            _ => None,
        }
    }
}

/// The codes that each packet may carry, by the side that sends it.
pub mod allowed {
    use super::ReasonCode::{self, *};

    pub const CONNACK: &[ReasonCode] = &[
        Success,
        UnspecifiedError,
        MalformedPacket,
        ProtocolError,
        ImplementationSpecificError,
        UnsupportedProtocolVersion,
        ClientIdentifierNotValid,
        BadUserNameOrPassword,
        NotAuthorized,
        ServerUnavailable,
        ServerBusy,
        Banned,
        BadAuthenticationMethod,
        TopicNameInvalid,
        PacketTooLarge,
        QuotaExceeded,
        PayloadFormatInvalid,
        RetainNotSupported,
        QoSNotSupported,
        UseAnotherServer,
        ServerMoved,
        ConnectionRateExceeded,
    ];
    /// Of PUBACK and PUBREC.
    pub const PUBACK: &[ReasonCode] = &[
        Success,
        NoMatchingSubscribers,
        UnspecifiedError,
        ImplementationSpecificError,
        NotAuthorized,
        TopicNameInvalid,
        PacketIdentifierInUse,
        QuotaExceeded,
        PayloadFormatInvalid,
    ];
    /// Of PUBREL and PUBCOMP.
    pub const PUBREL: &[ReasonCode] = &[Success, PacketIdentifierNotFound];
    pub const SUBACK: &[ReasonCode] = &[
        Success,
        GrantedQoS1,
        GrantedQoS2,
        UnspecifiedError,
        ImplementationSpecificError,
        NotAuthorized,
        TopicFilterInvalid,
        PacketIdentifierInUse,
        QuotaExceeded,
        SharedSubscriptionsNotSupported,
        SubscriptionIdentifiersNotSupported,
        WildcardSubscriptionsNotSupported,
    ];
    pub const UNSUBACK: &[ReasonCode] = &[
        Success,
        NoSubscriptionExisted,
        UnspecifiedError,
        ImplementationSpecificError,
        NotAuthorized,
        TopicFilterInvalid,
        PacketIdentifierInUse,
    ];
    const DISCONNECT_BOTH: [ReasonCode; 13] = [
        Success,
        UnspecifiedError,
        MalformedPacket,
        ProtocolError,
        ImplementationSpecificError,
        TopicNameInvalid,
        ReceiveMaximumExceeded,
        TopicAliasInvalid,
        PacketTooLarge,
        MessageRateTooHigh,
        QuotaExceeded,
        AdministrativeAction,
        PayloadFormatInvalid,
    ];
    const DISCONNECT_SERVER: [ReasonCode; 15] = [
        NotAuthorized,
        ServerBusy,
        ServerShuttingDown,
        BadAuthenticationMethod,
        KeepAliveTimeout,
        SessionTakenOver,
        TopicFilterInvalid,
        RetainNotSupported,
        QoSNotSupported,
        UseAnotherServer,
        ServerMoved,
        SharedSubscriptionsNotSupported,
        ConnectionRateExceeded,
        MaximumConnectTime,
        SubscriptionIdentifiersNotSupported,
    ];

    /// Whether a client may send this code in DISCONNECT.
    pub fn disconnect_of_client(code: ReasonCode) -> bool {
        code == DisconnectWithWill || DISCONNECT_BOTH.contains(&code)
    }

    /// Whether a server may send this code in DISCONNECT.
    pub fn disconnect_of_server(code: ReasonCode) -> bool {
        let is_own = DISCONNECT_SERVER.contains(&code) || code == WildcardSubscriptionsNotSupported;
        is_own || DISCONNECT_BOTH.contains(&code)
    }
}
