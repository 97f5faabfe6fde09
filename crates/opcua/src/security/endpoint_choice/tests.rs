use opcua::crypto::SecurityPolicy as Policy;
use opcua::types::MessageSecurityMode as Mode;
use opcua::types::UserTokenPolicy;
use proptest::prelude::*;

use super::*;

fn token(kind: UserTokenType) -> UserTokenPolicy {
    UserTokenPolicy {
        token_type: kind,
        ..UserTokenPolicy::default()
    }
}

fn offer(mode: Mode, policy: Policy, tokens: &[UserTokenType]) -> EndpointOffer {
    let tokens = tokens.iter().map(|kind| token(*kind)).collect();
    EndpointOffer {
        tokens,
        ..EndpointOffer::assumed("opc.tcp://x:4840".to_owned(), mode, policy)
    }
}

const ANONYMOUS: &[UserTokenType] = &[UserTokenType::Anonymous];
const USER: &[UserTokenType] = &[UserTokenType::UserName];

fn user() -> Identity {
    Identity::User {
        name: "n".to_owned(),
        password: "p".to_owned(),
    }
}

fn choice(mode: Option<Mode>, policy: Option<Policy>) -> SecurityChoice {
    SecurityChoice {
        mode,
        policy: policy.map(PolicyChoice),
    }
}

fn all(tokens: &[UserTokenType]) -> Vec<EndpointOffer> {
    let mut offers = vec![offer(Mode::None, Policy::None, tokens)];
    for mode in [Mode::Sign, Mode::SignAndEncrypt] {
        for policy in [
            Policy::Basic128Rsa15,
            Policy::Basic256,
            Policy::Basic256Sha256,
            Policy::Aes128Sha256RsaOaep,
            Policy::Aes256Sha256RsaPss,
        ] {
            offers.push(offer(mode, policy, tokens));
        }
    }
    offers
}

fn chosen(offers: &[EndpointOffer], choice: &SecurityChoice, identity: &Identity) -> Result<(Mode, Policy), String> {
    choose(offers, choice, identity).map(|offer| (offer.mode, offer.policy))
}

#[test]
fn without_a_wish_only_an_open_endpoint_is_taken() {
    let anonymous = Identity::Anonymous;
    assert_eq!(
        chosen(&all(ANONYMOUS), &choice(None, None), &anonymous),
        Ok((Mode::None, Policy::None))
    );
    assert_eq!(
        chosen(&all(ANONYMOUS), &choice(Some(Mode::None), None), &anonymous),
        Ok((Mode::None, Policy::None))
    );
    let secured = &all(ANONYMOUS)[1..];
    let error = chosen(secured, &choice(None, None), &anonymous).unwrap_err();
    assert!(
        error
            .starts_with("could not connect to any endpoint without security; offered: Sign/Basic128Rsa15 (anonymous)"),
        "{error}"
    );
}

#[test]
fn one_wish_takes_the_strongest_that_fits() {
    let anonymous = Identity::Anonymous;
    let strongest = Ok((Mode::Sign, Policy::Aes256Sha256RsaPss));
    assert_eq!(
        chosen(&all(ANONYMOUS), &choice(Some(Mode::Sign), None), &anonymous),
        strongest
    );
    let by_policy = Ok((Mode::SignAndEncrypt, Policy::Basic256));
    assert_eq!(
        chosen(&all(ANONYMOUS), &choice(None, Some(Policy::Basic256)), &anonymous),
        by_policy
    );
    let only_weak = [offer(Mode::SignAndEncrypt, Policy::Basic128Rsa15, ANONYMOUS)];
    assert!(chosen(&only_weak, &choice(Some(Mode::SignAndEncrypt), None), &anonymous).is_err());
    assert!(chosen(&only_weak, &choice(None, Some(Policy::Basic128Rsa15)), &anonymous).is_ok());
}

#[test]
fn no_match_lists_the_offers_and_is_never_lowered() {
    let open = [offer(Mode::None, Policy::None, ANONYMOUS)];
    let both = choice(Some(Mode::SignAndEncrypt), Some(Policy::Basic256Sha256));
    for wish in [
        both,
        choice(Some(Mode::Sign), None),
        choice(None, Some(Policy::Basic256Sha256)),
    ] {
        let error = chosen(&open, &wish, &Identity::Anonymous).unwrap_err();
        assert!(error.starts_with("no suitable endpoint found"), "{error}");
        assert!(error.contains("offered: None/None (anonymous)"), "{error}");
    }
}

#[test]
fn the_login_must_be_accepted_there() {
    let offers = [
        all(ANONYMOUS),
        vec![offer(Mode::SignAndEncrypt, Policy::Basic256Sha256, USER)],
    ]
    .concat();
    let wish = choice(Some(Mode::SignAndEncrypt), None);
    assert_eq!(
        chosen(&offers, &wish, &user()),
        Ok((Mode::SignAndEncrypt, Policy::Basic256Sha256))
    );
    let error = chosen(&all(ANONYMOUS), &choice(None, None), &user()).unwrap_err();
    assert!(error.contains("accepts user name login"), "{error}");
    // A server that lists no logins accepts only anonymous ones.
    let silent = [offer(Mode::None, Policy::None, &[])];
    assert!(chosen(&silent, &choice(None, None), &Identity::Anonymous).is_ok());
    assert!(chosen(&silent, &choice(None, None), &user()).is_err());
}

#[test]
fn the_lines_to_paste_name_the_strongest_offer() {
    let anonymous = Identity::Anonymous;
    let text = advice(Some(&all(ANONYMOUS)), &anonymous);
    let lines = "\nsecurityMode: SignAndEncrypt\nsecurityPolicy: Aes256Sha256RsaPss";
    assert!(
        text.starts_with("though the server offers better") && text.ends_with(lines),
        "{text}"
    );
    // Only for another login.
    let text = advice(Some(&all(USER)), &anonymous);
    assert!(
        text.contains("not for anonymous login (it accepts user name)"),
        "{text}"
    );
    assert!(text.ends_with(lines), "{text}");
    // An offer for this login takes precedence over a stronger one for another.
    let offers = [all(USER), vec![offer(Mode::Sign, Policy::Basic256, ANONYMOUS)]].concat();
    let text = advice(Some(&offers), &anonymous);
    assert!(
        text.ends_with("\nsecurityMode: Sign\nsecurityPolicy: Basic256"),
        "{text}"
    );
    let open = [offer(Mode::None, Policy::None, ANONYMOUS)];
    assert!(advice(Some(&open), &anonymous).contains("offers nothing better"));
    let text = advice(None, &anonymous);
    assert!(
        text.ends_with("\nsecurityMode: SignAndEncrypt\nsecurityPolicy: Basic256Sha256"),
        "{text}"
    );
}

#[test]
fn a_direct_connection_takes_only_the_certificate_from_the_offers() {
    let shown = EndpointOffer {
        certificate: vec![1, 2, 3],
        application_uri: "urn:server".to_owned(),
        ..offer(Mode::Sign, Policy::Basic256Sha256, USER)
    };
    let url = || "opc.tcp://here:1".to_owned();
    let direct = |choice: &SecurityChoice| as_given(std::slice::from_ref(&shown), url(), choice, &Identity::Anonymous);
    // Neither the mode nor the login is among the offers.
    let wish = choice(Some(Mode::SignAndEncrypt), Some(Policy::Aes256Sha256RsaPss));
    let found = direct(&wish).unwrap();
    assert_eq!(
        (found.mode, found.policy),
        (Mode::SignAndEncrypt, Policy::Aes256Sha256RsaPss)
    );
    assert_eq!((found.url, found.certificate), (url(), vec![1, 2, 3]));
    assert_eq!(found.application_uri, "urn:server");
    assert!(direct(&choice(Some(Mode::SignAndEncrypt), None)).is_err());
    let none = [offer(Mode::None, Policy::None, ANONYMOUS)];
    let error = as_given(&none, url(), &wish, &Identity::Anonymous).unwrap_err();
    assert!(error.contains("shows no certificate"), "{error}");
    // A listed endpoint is used as it is, but at the given address.
    let listed = as_given(
        &all(ANONYMOUS),
        url(),
        &choice(Some(Mode::Sign), None),
        &Identity::Anonymous,
    )
    .unwrap();
    assert_eq!((listed.policy, listed.url), (Policy::Aes256Sha256RsaPss, url()));
}

#[test]
fn strength_follows_the_order_of_the_specification() {
    let order = [
        Policy::None,
        Policy::Basic128Rsa15,
        Policy::Basic256,
        Policy::Basic256Sha256,
        Policy::Aes128Sha256RsaOaep,
        Policy::Aes256Sha256RsaPss,
    ];
    assert!(order.windows(2).all(|pair| strength(pair[0]) < strength(pair[1])));
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![Mode::None, Mode::Sign, Mode::SignAndEncrypt])
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![
        Policy::Unknown,
        Policy::None,
        Policy::Basic128Rsa15,
        Policy::Basic256,
        Policy::Basic256Sha256,
        Policy::Aes256Sha256RsaPss,
    ])
}

proptest! {
    /// Whatever a server offers: the result has the requested mode and policy, and is unencrypted only if that was
    /// requested.
    #[test]
    fn nothing_is_ever_lowered(
        offered in prop::collection::vec((any_mode(), any_policy()), 0..8),
        mode in prop::option::of(any_mode()),
        policy in prop::option::of(any_policy().prop_filter("a choice", |p| *p != Policy::Unknown)),
    ) {
        let offers: Vec<EndpointOffer> = offered.into_iter().map(|(mode, policy)| {
            let known = if policy == Policy::Unknown { Policy::None } else { policy };
            EndpointOffer { policy, ..offer(mode, known, ANONYMOUS) }
        }).collect();
        let wish = choice(mode, policy);
        if let Ok(found) = choose(&offers, &wish, &Identity::Anonymous) {
            prop_assert_ne!(found.policy, Policy::Unknown);
            prop_assert!(mode.is_none_or(|mode| found.mode == mode));
            prop_assert!(policy.is_none_or(|policy| found.policy == policy));
            prop_assert_eq!(wish.is_none(), found.mode == Mode::None && found.policy == Policy::None);
        }
    }
}
