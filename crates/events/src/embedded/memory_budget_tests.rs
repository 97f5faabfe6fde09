//! Namespaces and tokens stay within their memory budget, but a start loads everything that is stored.

use super::test_support::{append_one, new};
use super::tests::Disks;
use super::*;

/// The namespace budget of a store with little index memory.
const BYTES_MAX: usize = 4 << 20;

fn bytes(store: &EmbeddedStore) -> usize {
    store.inner.place.namespace_memory.bytes()
}

fn named(name: &str, description: usize, metadata: usize) -> NewNamespace {
    NewNamespace {
        description: "d".repeat(description),
        metadata: (metadata > 0).then(|| format!("\"{}\"", "m".repeat(metadata))),
        ..new(name)
    }
}

fn token(number: u32, description: usize) -> NewToken {
    let mut digest = [1; 32];
    digest[..4].copy_from_slice(&number.to_be_bytes());
    NewToken {
        digest: TokenDigest::from_bytes(digest),
        scopes: Scopes::ALL,
        description: "t".repeat(description),
        expires_at: None,
    }
}

fn is_full<T: std::fmt::Debug>(told: Result<T>) -> bool {
    match told {
        Ok(_) => false,
        Err(EventsError::NamespacesFull { bytes_max }) => {
            assert_eq!(bytes_max, BYTES_MAX);
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_end_where_their_memory_does_and_one_that_goes_gives_its_own_back() {
    for (description, metadata, least) in [(1 << 20, 0, 3), (1000, 500_000, 7), (0, 0, 500)] {
        let disks = Disks::new();
        let store = disks.open_with(Durability::Os).await;
        let empty = bytes(&store);
        let mut made = 0;
        while !is_full(store.create(named(&format!("n{made}"), description, metadata)).await) {
            made += 1;
            assert!(made < 10_000, "there is no end");
        }
        assert!(
            made >= least && bytes(&store) <= BYTES_MAX,
            "{made} in {}",
            bytes(&store)
        );
        let told = store
            .create(named("more", 1 << 20, 1 << 20))
            .await
            .unwrap_err()
            .to_string();
        assert!(told.contains("have reached their limit of 4 MiB"), "{told}");
        // A refused request leaves nothing behind, and existing namespaces work.
        let partitions = store.partitions().len();
        assert_eq!(partitions, made + 1);
        let first = store.namespace("n0").await.unwrap();
        append_one(&first, "s", "{}").await;
        // A deleted namespace that is still being read does not block new ones.
        store.delete("n1").await.unwrap();
        store.create(named("n1", description, metadata)).await.unwrap();
        let before = bytes(&store);
        drop((store, first));
        let store = disks.open_with(Durability::Os).await;
        assert_eq!(bytes(&store), before);
        assert!(is_full(store.create(named("more", 1 << 20, 1 << 20)).await));
        for n in 0..made {
            store.delete(&format!("n{n}")).await.unwrap();
        }
        assert_eq!(bytes(&store), empty);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_end_where_their_memory_does_and_one_that_is_revoked_makes_room() {
    let disks = Disks::new();
    let store = disks.open_with(Durability::Os).await;
    let mut made = 0;
    while !is_full(store.create_token(DEFAULT, token(made, 4096)).await) {
        made += 1;
        assert!(made < 10_000, "there is no end");
    }
    assert!(made > 500 && bytes(&store) <= BYTES_MAX, "{made} in {}", bytes(&store));
    // Repeating a token, with the same or other scopes, uses no memory.
    let again = store.create_token(DEFAULT, token(0, 4096)).await.unwrap();
    let less = NewToken {
        scopes: Scopes::READ_WRITE,
        ..token(0, 4096)
    };
    assert_eq!(store.create_token(DEFAULT, less).await.unwrap().id, again.id);
    assert!(store.revoke_token(DEFAULT, &again.id).await.unwrap());
    store.create_token(DEFAULT, token(made, 4096)).await.unwrap();
    let before = bytes(&store);
    drop(store);
    let store = disks.open_with(Durability::Os).await;
    assert_eq!(
        (bytes(&store), store.tokens(DEFAULT).await.unwrap().len()),
        (before, made as usize + 1)
    );
}

/// Created by a version without a limit, or with more memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_there_is_memory_for_is_loaded_at_a_start_and_can_be_made_less() {
    let disks = Disks::new();
    let store = disks.open_with(Durability::Os).await;
    let mut catalog = store.inner.catalog.lock().await;
    for n in 0..8 {
        let number = catalog.new_partition(0).await.unwrap();
        let named = CatalogEntry {
            number,
            name: format!("n{n}"),
            description: "d".repeat(1 << 20),
            metadata: None,
            created_at: 0,
            tokens: vec![TokenEntry::new(token(n, 0), 0)],
        };
        catalog.store(&CatalogChange::Created(named), 0).await.unwrap();
    }
    drop(catalog);
    drop(store);
    let store = disks.open_with(Durability::Os).await;
    assert!(bytes(&store) > 2 * BYTES_MAX - (1 << 20), "{}", bytes(&store));
    for n in 0..8 {
        let namespace = store.namespace(&format!("n{n}")).await.unwrap();
        append_one(&namespace, "s", "{}").await;
    }
    assert!(is_full(store.create(new("small")).await));
    assert!(is_full(store.create_token(DEFAULT, token(99, 0)).await));
    for n in 0..5 {
        store.delete(&format!("n{n}")).await.unwrap();
    }
    store.create(new("small")).await.unwrap();
}
