//! Namespaces and tokens.

use std::sync::Arc;

use super::{Suite, all, create, data, refused, soon, write};
use crate::DEFAULT;
use crate::error::EventsError;
use crate::store::{NewNamespace, NewToken, Scopes, Store};
use crate::time;
use crate::token::{Token, new_token};

pub async fn run(suite: &Suite) {
    namespaces(suite).await;
    isolation(suite).await;
    tokens(suite).await;
    ended(suite).await;
}

/// Rules 10 and 15.
async fn namespaces(suite: &Suite) {
    let mut store = suite.open().await;
    let name = suite.unused_name(&store).await;
    assert!(matches!(
        store.namespace(&name).await.err().unwrap(),
        EventsError::NamespaceNotFound(_)
    ));
    assert!(matches!(
        refused(store.delete(&name).await),
        EventsError::NamespaceNotFound(_)
    ));
    for _ in 0..2 {
        create(&store, &name).await;
        let (token, _) = new_token(&name).unwrap();
        let new = NewNamespace {
            name: name.clone(),
            description: String::new(),
            metadata: None,
            digest: *token.digest(),
            scopes: Scopes::ALL,
        };
        assert!(
            matches!(refused(store.create(new).await), EventsError::NamespaceExists(_)),
            "10"
        );
        assert!(
            store.authorize(&token).await.unwrap().is_none(),
            "11: nothing came of what was refused"
        );
        let namespace = store.namespace(&name).await.unwrap();
        for _ in 0..3 {
            write(&namespace, "a-1", "T", "{}").await;
        }
        assert_eq!(all(&namespace).await.len(), 3, "10: created again it is empty at first");
        let created = namespace.info().await.unwrap().created_at;
        drop(namespace);
        store = suite.again(store).await;
        let namespace = store.namespace(&name).await.unwrap();
        assert_eq!(
            namespace.info().await.unwrap().created_at,
            created,
            "15: one stored value"
        );
        let names: Vec<String> = store
            .namespaces()
            .await
            .unwrap()
            .iter()
            .map(|one| one.name().to_owned())
            .collect();
        assert!(names.contains(&name), "10");
        let mut watch = namespace.watch();
        drop(namespace);
        assert_eq!(
            store.delete(&name).await.unwrap(),
            3,
            "10: how many messages went with it"
        );
        soon("14: the watch ends", async { while watch.changed().await.is_ok() {} }).await;
        assert!(store.namespace(&name).await.is_err(), "10");
        store = suite.again(store).await;
        assert!(store.namespace(&name).await.is_err(), "15: it stays deleted");
    }
    if store.namespace(DEFAULT).await.is_err() {
        create(&store, DEFAULT).await;
    }
    assert!(
        matches!(refused(store.delete(DEFAULT).await), EventsError::NamespaceKept),
        "10"
    );
}

/// Rule 10.
async fn isolation(suite: &Suite) {
    let store = suite.open().await;
    let base = suite.unused_name(&store).await;
    let names = ["-", "_", "%", "ü", " "].map(|last| format!("{base}{last}x"));
    for name in &names {
        create(&store, name).await;
    }
    for name in &names {
        let namespace = store.namespace(name).await.unwrap();
        let done = write(&namespace, "s-1", "T", &format!("{name:?}")).await;
        assert_eq!(
            (done.first_position, done.first_global),
            (0, 1),
            "10: each has its own positions"
        );
    }
    for name in &names {
        let namespace = store.namespace(name).await.unwrap();
        assert_eq!(
            data(&all(&namespace).await),
            [format!("{name:?}")],
            "10: each has its own messages"
        );
        assert_eq!(namespace.info().await.unwrap().messages, 1, "10");
    }
    assert_eq!(store.delete(&names[0]).await.unwrap(), 1);
    let left = store.namespace(&names[1]).await.unwrap();
    assert_eq!(all(&left).await.len(), 1, "10: another stays");
}

/// Rules 11 and 15.
async fn tokens(suite: &Suite) {
    let mut store = suite.open().await;
    let name = suite.unused_name(&store).await;
    let first = Token::parse(&create(&store, &name).await).unwrap();
    let grant = store.authorize(&first).await.unwrap().unwrap();
    assert_eq!(
        (grant.namespace.name(), grant.scopes),
        (name.as_str(), Scopes::READ_WRITE),
        "11"
    );
    drop(grant);
    nothing_is_granted(&store, &name).await;
    let scopes = Scopes {
        read: true,
        ..Scopes::default()
    };
    let (second, _) = new_token(&name).unwrap();
    let new = |expires_at| NewToken {
        digest: *second.digest(),
        scopes,
        description: "of a reader".to_owned(),
        expires_at,
    };
    let end = time::now() + 3_600_000_000;
    let made = store.create_token(&name, new(Some(end))).await.unwrap();
    assert_eq!(
        (made.scopes, made.description.as_str(), made.expires_at),
        (scopes, "of a reader", Some(end)),
        "11"
    );
    store = suite.again(store).await;
    let grant = store.authorize(&second).await.unwrap().unwrap();
    assert_eq!((grant.scopes, grant.expires_at), (scopes, Some(end)), "11, 15");
    drop(grant);
    let listed = store.tokens(&name).await.unwrap();
    assert_eq!(listed.len(), 2, "11: oldest first");
    assert_eq!(listed[1], made, "11");
    let other = suite.unused_name(&store).await;
    assert!(matches!(
        refused(store.tokens(&other).await),
        EventsError::NamespaceNotFound(_)
    ));
    assert!(matches!(
        refused(store.create_token(&other, new(None)).await),
        EventsError::NamespaceNotFound(_)
    ));
    // The same digest again replaces the scopes and adds no second token.
    let wider = NewToken {
        scopes: Scopes::ALL,
        ..new(Some(end))
    };
    store.create_token(&name, wider).await.unwrap();
    assert_eq!(store.tokens(&name).await.unwrap().len(), 2, "11: its digest is known");
    assert_eq!(
        store.authorize(&second).await.unwrap().unwrap().scopes,
        Scopes::ALL,
        "11"
    );
    let (late, _) = new_token(&name).unwrap();
    let expired = NewToken {
        digest: *late.digest(),
        ..new(Some(time::now() - 1))
    };
    store.create_token(&name, expired).await.unwrap();
    assert!(store.authorize(&late).await.unwrap().is_none(), "11: it has expired");
    assert_eq!(
        store.tokens(&name).await.unwrap().len(),
        2,
        "11: only valid ones are listed"
    );
    assert!(!store.revoke_token(&name, "no such id").await.unwrap(), "11");
    assert!(store.revoke_token(&name, &listed[0].id).await.unwrap(), "11");
    assert!(store.authorize(&first).await.unwrap().is_none(), "11: revoked");
    store = suite.again(store).await;
    assert!(store.authorize(&first).await.unwrap().is_none(), "15: it stays revoked");
    assert!(
        store.authorize(&second).await.unwrap().is_some(),
        "11: another stays valid"
    );
}

/// Rule 11: the answer is the same whatever is wrong.
async fn nothing_is_granted(store: &Arc<dyn Store>, name: &str) {
    for name in [name, "no such namespace", "\0", "' OR true --"] {
        let (token, _) = new_token(name).unwrap();
        assert!(store.authorize(&token).await.unwrap().is_none(), "11: {name:?}");
    }
}

/// Rule 11: grants end.
async fn ended(suite: &Suite) {
    let store = suite.open().await;
    let name = suite.unused_name(&store).await;
    let first = Token::parse(&create(&store, &name).await).unwrap();
    let (second, _) = new_token(&name).unwrap();
    let new = NewToken {
        digest: *second.digest(),
        scopes: Scopes::ALL,
        description: String::new(),
        expires_at: None,
    };
    let id = store.create_token(&name, new).await.unwrap().id;
    let mut one = store.authorize(&first).await.unwrap().unwrap().valid;
    let mut other = store.authorize(&second).await.unwrap().unwrap().valid;
    assert!(store.revoke_token(&name, &id).await.unwrap());
    soon("11: a grant ends when its token is revoked", async {
        while other.changed().await.is_ok() {}
    })
    .await;
    assert!(one.has_changed().is_ok(), "11: another token's grant goes on");
    store.delete(&name).await.unwrap();
    soon("11: a grant ends with the namespace", async {
        while one.changed().await.is_ok() {}
    })
    .await;
    assert!(store.authorize(&first).await.unwrap().is_none(), "11");
    create(&store, &name).await;
    assert!(
        store.authorize(&first).await.unwrap().is_none(),
        "11: also when it is created again"
    );
}
