//! Expired tokens are forgotten, so that short-lived ones can be created forever; valid tokens never are.

use super::catalog::{EXPIRED_KEPT, forget_expired};
use super::test_support::closed;
use super::tests::{Chance, Disks};
use super::*;

fn token(number: u32, expires_at: Option<Micros>) -> NewToken {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&number.to_be_bytes());
    NewToken {
        digest: TokenDigest::from_bytes(digest),
        scopes: Scopes::ALL,
        description: String::new(),
        expires_at,
    }
}

fn known(store: &EmbeddedStore) -> Vec<String> {
    let opened = store.inner.opened(DEFAULT).unwrap();
    opened.tokens.iter().map(|live| live.admitted.id.clone()).collect()
}

fn id(number: u32) -> String {
    TokenEntry::new(token(number, None), 0).id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lived_tokens_are_forgotten_while_the_store_is_open_and_when_it_is_opened_again() {
    const COUNT: u32 = 1000;
    let disks = Disks::new();
    let store = disks.open_with(Durability::Os).await;
    let before = known(&store).len();
    store.create_token(DEFAULT, token(0, None)).await.unwrap();
    for number in 1..=COUNT {
        let long_ago = i64::from(number / 3);
        store
            .create_token(DEFAULT, token(number, Some(long_ago)))
            .await
            .unwrap();
    }
    let ends_later = token(COUNT + 1, Some(Micros::MAX));
    store.create_token(DEFAULT, ends_later).await.unwrap();
    let is_right = |known: &[String]| {
        assert_eq!(known.len(), before + 2 + EXPIRED_KEPT);
        for number in [0, COUNT + 1]
            .into_iter()
            .chain(COUNT - EXPIRED_KEPT as u32 + 1..=COUNT)
        {
            assert!(known.contains(&id(number)), "{number}");
        }
    };
    is_right(&known(&store));
    closed(store).await;
    let again = disks.open_with(Durability::Os).await;
    is_right(&known(&again));
    closed(again).await;
}

#[test]
fn of_tokens_that_have_ended_the_newest_stay_and_of_the_others_all() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    for seed in 1..=number("THALWEG_SIM_SEEDS", 200) {
        let mut chance = Chance(seed << 8 | 1);
        let (now, mut tokens) = (1_000, Vec::new());
        for number in 0..chance.below(400) as u32 {
            // Many expire at the same moment.
            let end = (!chance.one_in(4)).then(|| 900 + chance.below(130) as i64);
            tokens.push(TokenEntry::new(token(number, end), 0));
        }
        let ids = |tokens: &[TokenEntry], has_ended: bool| -> Vec<(Option<Micros>, String)> {
            let chosen = tokens.iter().filter(|token| token.has_expired(now) == has_ended);
            chosen.map(|token| (token.expires_at, token.id.clone())).collect()
        };
        let (valid, mut ended) = (ids(&tokens, false), ids(&tokens, true));
        forget_expired(&mut tokens, now, |token| token);
        assert_eq!(ids(&tokens, false), valid, "seed {seed}");
        // By expiry; those of the same moment in the order of creation.
        ended.sort_by_key(|(end, _)| *end);
        let wanted = ended.split_off(ended.len().saturating_sub(EXPIRED_KEPT));
        let mut left = ids(&tokens, true);
        left.sort_by_key(|(end, _)| *end);
        assert_eq!(left, wanted, "seed {seed}");
    }
}
