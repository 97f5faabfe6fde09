//! The table of queue errors: for each kind the code, the HTTP status, when to retry, and the meaning. The order is
//! that of the statuses.

thalweg_kit::error_kinds! {
    /// The kinds of queue errors. Every interface reports the same kind for the same situation.
    pub enum QueueErrorKind {
        InvalidConfig = "invalid_config", 400, Never,
            "The request or its settings break a rule; correct what the message names.";
        NotAuthenticated = "not_authenticated", 401, Never,
            "The request has no valid credentials; send a token of `auth.tokens` or a user of `auth.users_file`.";
        NotAuthorized = "not_authorized", 403, Never,
            "The login may not do this; give it the role or the queue that the message names.";
        QueueNotFound = "queue_not_found", 404, Never,
            "There is no queue of this name; create it, or set `queues.auto_create`.";
        GroupNotFound = "group_not_found", 404, Never,
            "The queue has no group of this name; create it, or join it as a consumer.";
        MessageNotFound = "message_not_found", 404, Never,
            "The message never existed or is no longer retained; look for it among the dead letters.";
        QueueExists = "queue_exists", 409, Never,
            "There is a queue of this name already; change it with PUT or PATCH.";
        GroupExists = "group_exists", 409, Never,
            "There is a group of this name already; delete it first to make another one.";
        LeaseLost = "lease_lost", 409, Never,
            "The lease ended before the message was settled; settle within `visibility_timeout`, or extend the lease.";
        NotLeased = "not_leased", 409, Never,
            "The message is delayed or was never delivered; wait until it can be claimed.";
        Gone = "gone", 409, Never,
            "The message is settled already, or the receipt is void after a deletion, a seek or a crash; claim again.";
        OffsetGap = "offset_gap", 410, Never,
            "Messages of this range were removed or are lost; continue at the offset that the message names.";
        MessageTooLarge = "message_too_large", 413, Never,
            "The message, or the request as a whole, exceeds a limit; send smaller parts, or raise it.";
        DurabilityUnavailable = "durability_unavailable", 422, Never,
            "The disks of the log do not offer this durability; choose another one.";
        QueueFull = "queue_full", 429, After(1),
            "The queue has reached its limit; let consumers catch up, or raise the limit that the message names.";
        TooManyPending = "too_many_pending", 429, After(1),
            "Too much is in progress, such as leases of the consumer or bodies being read; settle or finish some.";
        RateLimited = "rate_limited", 429, Computed,
            "Too many requests came in a short time; send fewer.";
        QuotaExceeded = "quota_exceeded", 429, After(30),
            "There are as many queues, groups, partitions or consumers as are allowed; remove some, or raise it.";
        Corrupt = "corrupt", 500, Never,
            "Stored data is damaged or cannot be read; inspect it with `thalweg log check`.";
        NewerFormat = "newer_format", 500, Never,
            "A newer version wrote the stored data; run that version.";
        LogPoisoned = "log_poisoned", 503, After(5),
            "A write to the log failed, and the log accepts nothing more; restart the process, which checks the log.";
        Paused = "paused", 503, After(30),
            "The queue or the group is paused; resume it.";
        Fenced = "fenced", 503, After(1),
            "Another writer was first, and nothing was stored; send the request again.";
        UnknownOutcome = "unknown_outcome", 503, After(1),
            "The messages may or may not be stored; send the request again with the same dedup-id.";
        DiskFull = "disk_full", 507, After(30),
            "The disk of the log is full; free some space.";
    }
}
