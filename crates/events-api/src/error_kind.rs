//! The table of errors of the event API: for each kind the code, the HTTP status, when to retry, and the meaning. The
//! codes are those of EventoDB. The order is that of the statuses.

thalweg_kit::error_kinds! {
    /// The kinds of errors of the event API. A kind with status 200 ends an import whose answer has begun; it is in the
    /// last event of that answer.
    pub enum EventsApiErrorKind {
        InvalidJson = "INVALID_JSON", 200, Never,
            "A line of the import is not JSON; correct the line that the message names.";
        InvalidRecord = "INVALID_RECORD", 200, Never,
            "A line of the import is no valid message; correct the line that the message names.";
        ReadError = "READ_ERROR", 200, Never,
            "A line is too long, the compression is damaged, or the request ended early; send the remaining lines again.";
        ImportFailed = "IMPORT_FAILED", 200, Later,
            "The store, the token or the server ended the import; the imported messages stay, so send the remaining lines again.";
        InvalidRequest = "INVALID_REQUEST", 400, Never,
            "The request breaks a rule; correct what the message names.";
        AuthRequired = "AUTH_REQUIRED", 401, Never,
            "The request has no token; send one as `Authorization: Bearer` or as `?token=`.";
        AuthInvalidToken = "AUTH_INVALID_TOKEN", 401, Never,
            "The token does not have the form of a token; send it as it was issued.";
        AuthUnauthorized = "AUTH_UNAUTHORIZED", 403, Never,
            "The token is unknown, revoked or expired, or lacks the scope that the message names; use another one.";
        NotFound = "NOT_FOUND", 404, Never,
            "There is no such path; calls go to `/rpc`.";
        MethodNotFound = "METHOD_NOT_FOUND", 404, Never,
            "There is no such call; correct the name of the method.";
        NamespaceNotFound = "NAMESPACE_NOT_FOUND", 404, Never,
            "There is no such namespace; create it with `ns.create`.";
        SubscriptionNotFound = "SUBSCRIPTION_NOT_FOUND", 404, Never,
            "There is no such subscription; create it with `sub.create`.";
        HttpMethod = "INVALID_REQUEST", 405, Never,
            "The path accepts another HTTP method; use the one that the message names.";
        NamespaceExists = "NAMESPACE_EXISTS", 409, Never,
            "There is a namespace of this name already; use it, or choose another name.";
        StreamVersionConflict = "STREAM_VERSION_CONFLICT", 409, Never,
            "The stream does not have the expected version; read what was added, and decide again.";
        MessageIdConflict = "MESSAGE_ID_CONFLICT", 409, Never,
            "Another message has this id; write the message with a new one.";
        StreamDeleted = "STREAM_DELETED", 409, Never,
            "The stream is deleted and accepts no messages; write to another one.";
        PositionExists = "POSITION_EXISTS", 409, Never,
            "A position or an id of the import is taken; import into an empty namespace.";
        SubscriptionExists = "SUBSCRIPTION_EXISTS", 409, Never,
            "There is a subscription of this name already; change it with `sub.update`.";
        SubscriptionFull = "SUBSCRIPTION_FULL", 409, Never,
            "The subscription has too many parked messages; replay or discard some.";
        PayloadTooLarge = "PAYLOAD_TOO_LARGE", 413, Never,
            "The request body is too large; send it in parts.";
        UnsupportedEncoding = "UNSUPPORTED_ENCODING", 415, Never,
            "The body is compressed in a way that the server does not read; send it as gzip, as zstd or uncompressed.";
        InternalError = "INTERNAL_ERROR", 500, Later,
            "A bug in the program ended the request; the log of the process has the reason; report it.";
        BackendError = "BACKEND_ERROR", 500, Later,
            "The store failed, or its data is damaged; the message and the log of the server say where.";
        ClearFailed = "CLEAR_FAILED", 500, Later,
            "The namespace could not be emptied for the import; send the import again.";
        Unsupported = "UNSUPPORTED", 501, Never,
            "This kind of store cannot do that; the message names an alternative.";
        Unavailable = "UNAVAILABLE", 503, After(1),
            "The store is recovering, read-only, unreachable or stopping; send the request again.";
        RulesFull = "RULES_FULL", 507, Never,
            "Retention rules and deletions use all of their memory; raise it, or delete a namespace.";
        NamespacesFull = "NAMESPACES_FULL", 507, Never,
            "Namespaces and tokens use all of their memory; delete or revoke some, or raise it.";
    }
}
