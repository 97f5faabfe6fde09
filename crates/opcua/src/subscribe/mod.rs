//! The subscriptions of a session: creation in chunks, continuous publishing, recovery after a connection loss.

pub(crate) mod create;
pub(crate) mod publish;
pub(crate) mod recover;
pub(crate) mod retransmission;
pub(crate) mod sequence;
pub(crate) mod subscription;

pub(crate) use create::{CreateOutcome, FilterStrategy};
pub(crate) use publish::PublishRequester;
pub(crate) use subscription::{Subscription, SubscriptionSettings};
