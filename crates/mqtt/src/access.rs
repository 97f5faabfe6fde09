//! Who a client is, and what it may publish and subscribe to (specification section 8).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_config::Role;
use thalweg_http::auth::{Authorizer, LoginFailure};
use thalweg_mqtt_wire::{Connect, ReasonCode, topic};
use tokio_util::sync::CancellationToken;

use crate::listener::PeerIdentity;
use crate::settings::{AclAction, AclRule, AclSubject, MqttSettings};

/// Decisions about topics that a connection remembers.
const REMEMBERED: usize = 1024;

/// What a connected client may do.
pub(crate) struct ClientAccess {
    /// Empty: it has no name.
    pub user: Box<str>,
    client_id: Box<str>,
    roles: Vec<Role>,
    rules: Option<Arc<Vec<AclRule>>>,
    /// The login was revoked.
    pub ended: Option<CancellationToken>,
    /// May it publish to a topic, may it read one.
    remembered: Mutex<HashMap<Box<str>, [Option<bool>; 2]>>,
}

/// How much of what a filter matches may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterAccess {
    Nothing,
    /// Each message must be checked.
    Some,
    Everything,
}

impl ClientAccess {
    /// Finds out who sent a CONNECT.
    pub async fn of(
        logins: &Authorizer,
        settings: &MqttSettings,
        rules: Option<Arc<Vec<AclRule>>>,
        connect: &Connect,
        peer: &PeerIdentity,
        client_id: &str,
    ) -> Result<ClientAccess, ReasonCode> {
        let of = |user: &str, roles: &[Role], ended: Option<CancellationToken>| ClientAccess {
            user: user.into(),
            client_id: client_id.into(),
            roles: roles.to_vec(),
            rules: rules.clone(),
            ended,
            remembered: Mutex::default(),
        };
        // The name in a verified certificate counts. A user that has a login has its roles.
        if let Some(user) = &peer.user {
            return Ok(match logins.user(user) {
                Some(login) => of(user, &login.roles, Some(login.ended)),
                None => of(user, &[Role::Read, Role::Write], None),
            });
        }
        let name = connect.user_name.as_deref();
        let password = connect.password.as_deref().unwrap_or_default();
        if name.is_none() && password.is_empty() {
            return match (logins.has_logins(), settings.anonymous) {
                (false, _) => Ok(of("", &[Role::Admin], None)),
                (true, true) => Ok(of("", &[Role::Read, Role::Write], None)),
                (true, false) => Err(ReasonCode::NotAuthorized),
            };
        }
        // A password that is no text is none of ours.
        let password = std::str::from_utf8(password).map_err(|_| ReasonCode::BadUserNameOrPassword)?;
        match logins.log_in(name.unwrap_or_default(), password).await {
            // There are no logins: a name is only a name.
            None => Ok(of(name.unwrap_or_default(), &[Role::Admin], None)),
            Some(Ok(login)) => Ok(of(&login.name, &login.roles, Some(login.ended))),
            Some(Err(LoginFailure::Wrong)) => Err(ReasonCode::BadUserNameOrPassword),
            Some(Err(LoginFailure::Busy)) => Err(ReasonCode::ServerBusy),
        }
    }

    /// The client id, which may have been assigned.
    pub fn set_client_id(&mut self, client_id: &str) {
        self.client_id = client_id.into();
    }

    /// Whether the client may do anything at all.
    pub fn is_allowed_anything(&self) -> bool {
        match &self.rules {
            None => !self.roles.is_empty(),
            Some(rules) => rules.iter().any(|rule| rule.is_allowed && self.is_subject(&rule.who)),
        }
    }

    fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|own| own.includes(role))
    }

    pub fn may_publish(&self, topic: &str) -> bool {
        match &self.rules {
            None => self.has(Role::Write),
            Some(_) => self.remembered(topic, 0, || self.decide(topic, AclAction::Publish)),
        }
    }

    /// Whether the client may get messages of a topic.
    pub fn may_read(&self, topic: &str) -> bool {
        match &self.rules {
            None if topic.starts_with("$SYS") => self.has(Role::Admin),
            None => self.has(Role::Read),
            Some(_) => self.remembered(topic, 1, || self.decide(topic, AclAction::Subscribe)),
        }
    }

    /// How much of what a filter matches the client may get.
    pub fn filter(&self, filter: &str) -> FilterAccess {
        let Some(rules) = &self.rules else {
            return match self.may_read(filter) {
                true => FilterAccess::Everything,
                false => FilterAccess::Nothing,
            };
        };
        let (mut allows, mut denies) = (false, false);
        for rule in rules.iter().filter(|rule| self.applies(rule, AclAction::Subscribe)) {
            let topics = || rule.topics.iter().filter_map(|topics| self.resolved(topics));
            if topics().any(|topics| covers(&topics, filter)) {
                *(if rule.is_allowed { &mut allows } else { &mut denies }) = true;
                return access(allows, denies);
            }
            if topics().any(|topics| overlaps(&topics, filter)) {
                *(if rule.is_allowed { &mut allows } else { &mut denies }) = true;
            }
        }
        access(allows, true)
    }

    fn remembered(&self, topic: &str, index: usize, decide: impl FnOnce() -> bool) -> bool {
        let mut remembered = self.remembered.lock();
        if let Some(known) = remembered
            .get(topic)
            .and_then(|both| both.get(index).copied().flatten())
        {
            return known;
        }
        let decision = decide();
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        if let Some(place) = remembered.entry(topic.into()).or_default().get_mut(index) {
            *place = Some(decision);
        }
        decision
    }

    /// The first rule that matches decides; without one the answer is no.
    fn decide(&self, topic: &str, action: AclAction) -> bool {
        let rules = self.rules.iter().flat_map(|rules| rules.iter());
        let mut matching = rules.filter(|rule| {
            let topics = || rule.topics.iter().filter_map(|topics| self.resolved(topics));
            self.applies(rule, action) && topics().any(|topics| topic::matches(&topics, topic))
        });
        matching.next().is_some_and(|rule| rule.is_allowed)
    }

    fn applies(&self, rule: &AclRule, action: AclAction) -> bool {
        (rule.action == AclAction::All || rule.action == action) && self.is_subject(&rule.who)
    }

    fn is_subject(&self, who: &AclSubject) -> bool {
        match who {
            AclSubject::User(user) => !user.is_empty() && **user == *self.user,
            AclSubject::Client(client_id) => **client_id == *self.client_id,
            AclSubject::Anonymous => self.user.is_empty(),
            AclSubject::Role(role) => Role::parse(role).is_some_and(|role| self.has(role)),
        }
    }

    /// The filter of a rule with the names of this client. `None`: a name could be mistaken for more than a level.
    fn resolved(&self, topics: &str) -> Option<String> {
        let mut resolved = topics.to_owned();
        for (place, name) in [("%u", &self.user), ("%c", &self.client_id)] {
            if !topics.contains(place) {
                continue;
            }
            if name.is_empty() || name.contains(['/', '+', '#']) {
                return None;
            }
            // A name that looks like a place is not one.
            resolved = resolved.split(place).collect::<Vec<_>>().join(name);
        }
        Some(resolved)
    }
}

fn access(allows: bool, denies: bool) -> FilterAccess {
    match (allows, denies) {
        (true, false) => FilterAccess::Everything,
        (true, true) => FilterAccess::Some,
        (false, _) => FilterAccess::Nothing,
    }
}

/// Whether every topic that `inner` matches is matched by `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    // A wildcard in the first level matches nothing that begins with `$`.
    if inner.starts_with('$') && outer.starts_with(['+', '#']) {
        return false;
    }
    let (mut outer, mut inner) = (outer.split('/'), inner.split('/'));
    loop {
        match (outer.next(), inner.next()) {
            (Some("#"), _) => return true,
            (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

/// Whether some topic is matched by both filters.
fn overlaps(one: &str, other: &str) -> bool {
    let is_apart = |reserved: &str, wild: &str| reserved.starts_with('$') && wild.starts_with(['+', '#']);
    if is_apart(one, other) || is_apart(other, one) {
        return false;
    }
    let (mut one, mut other) = (one.split('/').peekable(), other.split('/').peekable());
    loop {
        match (one.next(), other.next()) {
            (Some("#"), _) | (_, Some("#")) => return true,
            (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "+" || b == "+" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn access_of(user: &str, rules: Vec<(AclSubject, bool, AclAction, &str)>) -> ClientAccess {
        let rules = rules.into_iter().map(|(who, is_allowed, action, topics)| AclRule {
            who,
            is_allowed,
            action,
            topics: vec![topics.to_owned()],
        });
        ClientAccess {
            user: user.into(),
            client_id: "c1".into(),
            roles: vec![Role::Write],
            rules: Some(Arc::new(rules.collect())),
            ended: None,
            remembered: Mutex::default(),
        }
    }

    fn of_role(role: &str) -> AclSubject {
        AclSubject::Role(role.to_owned())
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_none_denies() {
        let access = access_of(
            "u1",
            vec![
                (of_role("write"), false, AclAction::All, "plant/secret/#"),
                (
                    AclSubject::User("u1".to_owned()),
                    true,
                    AclAction::Publish,
                    "plant/%u/+",
                ),
                (of_role("read"), true, AclAction::Subscribe, "plant/#"),
                (of_role("admin"), true, AclAction::All, "#"),
                (AclSubject::Client("c1".to_owned()), true, AclAction::All, "own/%c"),
            ],
        );
        for (topic, publishes, reads) in [
            ("plant/u1/a", true, true),
            ("plant/u2/a", false, true),
            ("plant/secret/a", false, false),
            ("own/c1", true, true),
            ("elsewhere", false, false),
        ] {
            // Twice, because decisions are remembered.
            for _ in 0..2 {
                assert_eq!(
                    (access.may_publish(topic), access.may_read(topic)),
                    (publishes, reads),
                    "{topic}"
                );
            }
        }
        for (filter, expected) in [
            ("plant/a/#", FilterAccess::Everything),
            ("plant/#", FilterAccess::Some),
            ("plant/+/a", FilterAccess::Some),
            ("plant/secret/+", FilterAccess::Nothing),
            ("#", FilterAccess::Some),
            ("elsewhere/#", FilterAccess::Nothing),
        ] {
            assert_eq!(access.filter(filter), expected, "{filter}");
        }
    }

    #[test]
    fn names_that_are_more_than_a_level_match_no_place() {
        for user in ["a/b", "+", "#", "x/#", ""] {
            let access = access_of(user, vec![(of_role("write"), true, AclAction::All, "plant/%u")]);
            assert!(
                !access.may_publish(&format!("plant/{user}")) && !access.may_publish("plant/anything"),
                "{user}"
            );
        }
        let access = access_of("%c", vec![(of_role("write"), true, AclAction::All, "plant/x%u")]);
        assert!(access.may_publish("plant/x%c") && !access.may_publish("plant/xc1"));
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "+", "", "$s"]);
        let filter = (prop::collection::vec(level, 1..4), any::<bool>()).prop_map(|(mut levels, has_rest)| {
            if has_rest {
                levels.push("#");
            }
            levels.join("/")
        });
        filter.prop_filter("a filter is not empty", |filter| !filter.is_empty())
    }

    proptest! {
        /// Against all topics of few letters, with the empty one that nobody publishes to.
        #[test]
        fn filters_cover_and_overlap_as_their_topics_do(one in filter(), other in filter()) {
            let levels = ["a", "b", "", "$s", "z"];
            let mut topics: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
            let mut longest = topics.clone();
            for _ in 0..4 {
                longest = longest.iter().flat_map(|topic| levels.iter().map(move |level| format!("{topic}/{level}"))).collect();
                topics.extend(longest.iter().cloned());
            }
            let both = topics.iter().filter(|topic| topic::matches(&other, topic));
            let (mut all, mut any) = (true, false);
            for topic in both {
                let is_in = topic::matches(&one, topic);
                (all, any) = (all && is_in, any || is_in);
            }
            if covers(&one, &other) {
                prop_assert!(all, "{} does not cover {}", one, other);
            }
            prop_assert_eq!(overlaps(&one, &other), any, "{} and {}", one, other);
        }
    }
}
