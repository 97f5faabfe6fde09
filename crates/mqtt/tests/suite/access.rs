//! Who may connect, publish and subscribe.

use std::path::Path;

use thalweg_config::{AuthConfig, Pos, Role, TokenConfig, TokenSecret};
use thalweg_mqtt::{AclAction, AclRule, AclSubject, DeniedV3Publish, MqttSettings};
use thalweg_mqtt_wire::{Packet, ProtocolVersion, QoS, ReasonCode};

use crate::support::{ConnectSpec, TestBroker, TestClient, WillSpec};

/// Logins whose names are their secrets, with a role each.
fn logins(folder: &Path, names: &[(&str, Role)]) -> AuthConfig {
    let token = |(name, role): &(&str, Role)| {
        let file = folder.join(name);
        std::fs::write(&file, format!("secret-of-{name}")).unwrap();
        TokenConfig {
            name: (*name).to_owned(),
            secret: TokenSecret::File(file),
            roles: vec![*role],
            pos: Pos::WHOLE_FILE,
        }
    };
    AuthConfig {
        tokens: names.iter().map(token).collect(),
        ..AuthConfig::default()
    }
}

fn rule(who: AclSubject, is_allowed: bool, action: AclAction, topics: &[&str]) -> AclRule {
    AclRule {
        who,
        is_allowed,
        action,
        topics: topics.iter().map(|topics| (*topics).to_owned()).collect(),
    }
}

async fn connect(broker: &TestBroker, name: &str, spec: ConnectSpec<'_>) -> (TestClient, ReasonCode) {
    let password = format!("secret-of-{name}");
    let login = (!name.is_empty()).then_some((name, password.as_str()));
    let (client, connack) = broker.connect(&ConnectSpec { login, ..spec }).await;
    (client, connack.reason)
}

const ALL: [(&str, Role); 3] = [("reader", Role::Read), ("writer", Role::Write), ("chief", Role::Admin)];

#[test]
fn only_who_has_a_login_connects_and_roles_say_what_it_may_do() {
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::with_logins(MqttSettings::default(), logins(folder.path(), &ALL));
    broker.run(async {
        for (version, unknown, wrong) in [
            (
                ProtocolVersion::V5,
                ReasonCode::NotAuthorized,
                ReasonCode::BadUserNameOrPassword,
            ),
            (
                ProtocolVersion::V3_1_1,
                ReasonCode::NotAuthorized,
                ReasonCode::BadUserNameOrPassword,
            ),
        ] {
            let spec = ConnectSpec {
                version,
                client_id: "x",
                clean_start: true,
                ..ConnectSpec::stored()
            };
            assert_eq!(connect(&broker, "", spec).await.1, unknown);
            for login in [
                ("writer", "wrong"),
                ("nobody", "secret-of-writer"),
                ("", "secret"),
                ("writer", ""),
            ] {
                let (_, connack) = broker
                    .connect(&ConnectSpec {
                        login: Some(login),
                        ..spec
                    })
                    .await;
                assert_eq!((connack.reason, connack.session_present), (wrong, false), "{login:?}");
            }
            // A token without a name.
            let login = Some(("", "secret-of-writer"));
            assert_eq!(
                broker.connect(&ConnectSpec { login, ..spec }).await.1.reason,
                ReasonCode::Success
            );
        }
        let spec = |client_id| ConnectSpec {
            client_id,
            ..ConnectSpec::stored()
        };
        let (mut reader, _) = connect(&broker, "reader", spec("r")).await;
        let (mut writer, _) = connect(&broker, "writer", spec("w")).await;
        assert_eq!(reader.subscribe("a", QoS::AtLeastOnce).await, ReasonCode::GrantedQoS1);
        assert_eq!(
            reader.subscribe("$SYS/#", QoS::AtMostOnce).await,
            ReasonCode::NotAuthorized
        );
        assert_eq!(
            reader.publish("a", "1", QoS::AtLeastOnce).await,
            ReasonCode::NotAuthorized
        );
        assert_eq!(writer.publish("a", "2", QoS::AtLeastOnce).await, ReasonCode::Success);
        assert_eq!(reader.take().await.1, "2");
        let (mut chief, _) = connect(&broker, "chief", spec("c")).await;
        assert_eq!(chief.subscribe("$SYS/#", QoS::AtMostOnce).await, ReasonCode::Success);
        // A will that its client may not publish.
        let will = Some(WillSpec {
            topic: "a",
            payload: "x",
            qos: QoS::AtMostOnce,
            retain: false,
            delay: 0,
        });
        let (_, code) = connect(&broker, "reader", ConnectSpec { will, ..spec("v") }).await;
        assert_eq!(code, ReasonCode::NotAuthorized);
    });
}

#[test]
fn anonymous_clients_are_let_in_if_the_operator_wants_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings = MqttSettings {
        anonymous: true,
        ..MqttSettings::default()
    };
    let broker = TestBroker::with_logins(settings, logins(folder.path(), &ALL));
    broker.run(async {
        let (mut client, code) = connect(
            &broker,
            "",
            ConnectSpec {
                client_id: "x",
                ..ConnectSpec::stored()
            },
        )
        .await;
        assert_eq!(code, ReasonCode::Success);
        client.subscribe("a", QoS::AtLeastOnce).await;
        assert_eq!(client.publish("a", "1", QoS::AtMostOnce).await, ReasonCode::Success);
        client.take().await;
        assert_eq!(
            client.subscribe("$SYS/#", QoS::AtMostOnce).await,
            ReasonCode::NotAuthorized
        );
    });
}

#[test]
fn a_session_belongs_to_the_user_that_made_it() {
    let folder = tempfile::tempdir().unwrap();
    for is_bound in [true, false] {
        let settings = MqttSettings {
            client_id_binding: is_bound,
            ..MqttSettings::default()
        };
        let broker = TestBroker::with_logins(settings, logins(folder.path(), &ALL));
        broker.run(async {
            let spec = ConnectSpec {
                client_id: "s",
                ..ConnectSpec::stored()
            };
            let (mut owner, _) = connect(&broker, "writer", spec).await;
            owner.subscribe("a", QoS::AtLeastOnce).await;
            let (_, code) = connect(&broker, "chief", spec).await;
            match is_bound {
                true => {
                    assert_eq!(code, ReasonCode::NotAuthorized);
                    // The other session is untouched.
                    assert_eq!(owner.publish("a", "1", QoS::AtMostOnce).await, ReasonCode::Success);
                    assert_eq!(owner.take().await.1, "1");
                    owner.disconnect().await;
                    assert_eq!(connect(&broker, "chief", spec).await.1, ReasonCode::NotAuthorized);
                }
                false => {
                    assert_eq!(code, ReasonCode::Success);
                    owner.end().await;
                }
            }
        });
    }
}

#[test]
fn rules_decide_over_publishes_subscriptions_and_each_delivery() {
    let folder = tempfile::tempdir().unwrap();
    let acl = vec![
        rule(
            AclSubject::Role("write".to_owned()),
            false,
            AclAction::Subscribe,
            &["plant/secret/#"],
        ),
        rule(
            AclSubject::User("writer".to_owned()),
            true,
            AclAction::Publish,
            &["plant/#"],
        ),
        rule(
            AclSubject::Role("read".to_owned()),
            true,
            AclAction::Subscribe,
            &["plant/#"],
        ),
        rule(AclSubject::Client("p".to_owned()), true, AclAction::All, &["own/%u/%c"]),
    ];
    for v3_denied_publish in [DeniedV3Publish::Acknowledge, DeniedV3Publish::Close] {
        let settings = MqttSettings {
            acl: Some(acl.clone()),
            v3_denied_publish,
            ..MqttSettings::default()
        };
        let broker = TestBroker::with_logins(settings, logins(folder.path(), &ALL));
        broker.run(async {
            let spec = |client_id| ConnectSpec {
                client_id,
                ..ConnectSpec::stored()
            };
            let (mut publisher, _) = connect(&broker, "writer", spec("p")).await;
            for (topic, expected) in [
                ("plant/a", ReasonCode::NoMatchingSubscribers),
                ("own/writer/p", ReasonCode::NoMatchingSubscribers),
                ("own/writer/q", ReasonCode::NotAuthorized),
                ("elsewhere", ReasonCode::NotAuthorized),
            ] {
                assert_eq!(
                    publisher.publish(topic, "x", QoS::AtLeastOnce).await,
                    expected,
                    "{topic}"
                );
            }
            publisher.retain("plant/secret/retained", "hidden").await;
            publisher.retain("plant/retained", "shown").await;
            let (mut subscriber, _) = connect(&broker, "writer", spec("s")).await;
            assert_eq!(
                subscriber.subscribe("plant/secret/a", QoS::AtLeastOnce).await,
                ReasonCode::NotAuthorized
            );
            assert_eq!(
                subscriber.subscribe("elsewhere/#", QoS::AtLeastOnce).await,
                ReasonCode::NotAuthorized
            );
            // Allowed in part: each delivery is checked, retained, live, stored and shared.
            assert_eq!(
                subscriber.subscribe("plant/#", QoS::AtLeastOnce).await,
                ReasonCode::GrantedQoS1
            );
            assert_eq!(subscriber.take().await.1, "shown");
            assert_eq!(
                subscriber.subscribe("$share/g/plant/#", QoS::AtLeastOnce).await,
                ReasonCode::GrantedQoS1
            );
            publisher.publish("plant/secret/b", "hidden", QoS::AtLeastOnce).await;
            publisher.publish("plant/b", "shown", QoS::AtLeastOnce).await;
            assert_eq!(subscriber.take().await.1, "shown");
            assert_eq!(subscriber.take().await.1, "shown");
            subscriber.silence().await;
            subscriber.disconnect().await;
            publisher.publish("plant/secret/c", "hidden", QoS::AtLeastOnce).await;
            publisher.publish("plant/c", "stored", QoS::AtLeastOnce).await;
            let (mut subscriber, _) = connect(&broker, "writer", spec("s")).await;
            assert_eq!(subscriber.take().await.1, "stored");
            assert_eq!(subscriber.take().await.1, "stored");
            subscriber.silence().await;
            // 3.1.1 has no code for a publish that is denied.
            let version = ProtocolVersion::V3_1_1;
            let (mut old, _) = connect(&broker, "writer", ConnectSpec { version, ..spec("old") }).await;
            match v3_denied_publish {
                DeniedV3Publish::Acknowledge => {
                    old.publish("elsewhere", "x", QoS::AtLeastOnce).await;
                    old.publish("elsewhere", "x", QoS::ExactlyOnce).await;
                    old.publish("plant/d", "x", QoS::AtLeastOnce).await;
                }
                DeniedV3Publish::Close => {
                    old.publish_as(1, "elsewhere", "x", QoS::AtLeastOnce, false).await;
                    assert!(old.end().await.is_empty());
                }
            }
        });
    }
}

#[test]
fn a_login_that_is_removed_ends_its_connections() {
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::with_logins(MqttSettings::default(), logins(folder.path(), &ALL));
    broker.run(async {
        let (mut client, _) = connect(
            &broker,
            "writer",
            ConnectSpec {
                client_id: "w",
                ..ConnectSpec::stored()
            },
        )
        .await;
        std::fs::write(folder.path().join("writer"), "another").unwrap();
        let Some(Packet::Disconnect(told)) = client.end().await.pop() else {
            panic!("no DISCONNECT")
        };
        assert_eq!(told.reason, ReasonCode::NotAuthorized);
    });
}
