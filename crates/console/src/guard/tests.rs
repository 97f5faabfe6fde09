use super::*;
use thalweg_config::{AuthConfig, TokenConfig, TokenSecret};
use thalweg_http::auth::Logins;

const LOCAL: &str = "127.0.0.1:5000";
const OTHER: &str = "192.0.2.9:5000";

fn guard(trust: ClientTrust) -> Arc<AccessGuard> {
    AccessGuard::new(None, trust, Arc::new(OriginPolicy::of_own_machine("127.0.0.1:4195")))
}

fn request(peer: &str, method: Method, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri("/x");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    parts.extensions.insert(Peer(peer.parse().unwrap()));
    parts
}

async fn status(guard: &AccessGuard, request: Parts, access: Access, of_reference: bool) -> u16 {
    match guard.judge(&request, AccessRequirement { access, of_reference }).await {
        Ok(_) => 200,
        Err(AccessRefusal(kind, _)) => kind.facts().status,
    }
}

#[tokio::test]
async fn without_a_login_other_hosts_get_only_the_paths_of_the_reference() {
    use Access::{Admin, Open, Own, ReadWrite};
    let cases = [
        // trust, peer, access, of the reference, status
        (ClientTrust::ThisMachine, LOCAL, Admin, false, 200),
        (ClientTrust::ThisMachine, LOCAL, ReadWrite, false, 200),
        (ClientTrust::ThisMachine, OTHER, Open, true, 200),
        (ClientTrust::ThisMachine, OTHER, ReadWrite, true, 200),
        (ClientTrust::ThisMachine, OTHER, Admin, true, 403),
        (ClientTrust::ThisMachine, OTHER, ReadWrite, false, 403),
        (ClientTrust::ThisMachine, OTHER, Open, false, 403),
        (ClientTrust::ThisMachine, LOCAL, Own, false, 200),
        (ClientTrust::ThisMachine, OTHER, Own, false, 403),
        (ClientTrust::Everyone, OTHER, Own, false, 200),
        (ClientTrust::Everyone, OTHER, Admin, false, 200),
    ];
    for (trust, peer, access, of_reference, expected) in cases {
        let found = status(&guard(trust), request(peer, Method::GET, &[]), access, of_reference).await;
        assert_eq!(found, expected, "{trust:?} {peer} {access:?} {of_reference}");
    }
}

#[tokio::test]
async fn requests_through_a_proxy_on_this_machine_are_not_local() {
    for header in ["X-Forwarded-For", "Forwarded", "Via"] {
        let passed_on = request(LOCAL, Method::GET, &[(header, "198.51.100.1")]);
        assert_eq!(
            status(&guard(ClientTrust::ThisMachine), passed_on, Access::ReadWrite, false).await,
            403,
            "{header}"
        );
    }
}

#[tokio::test]
async fn a_foreign_name_that_points_here_is_refused_without_a_login() {
    let cases = [
        ("localhost:4195", 200),
        ("127.0.0.1:4195", 200),
        ("[::1]:4195", 200),
        ("[::1]", 200),
        ("thalweg:4195", 200),
        ("x.localhost", 200),
        ("localhost.", 200),
        ("evil.example:4195", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ];
    for (host, expected) in cases {
        let named = request(LOCAL, Method::GET, &[("Host", host)]);
        assert_eq!(
            status(&guard(ClientTrust::ThisMachine), named, Access::ReadWrite, false).await,
            expected,
            "{host}"
        );
    }
    let named = request(LOCAL, Method::GET, &[("Host", "evil.example")]);
    assert_eq!(
        status(&guard(ClientTrust::ThisMachine), named, Access::Open, true).await,
        200
    );
}

#[tokio::test]
async fn a_listener_that_is_open_to_everyone_answers_to_every_name() {
    let guard = guard(ClientTrust::Everyone);
    let named = request(LOCAL, Method::GET, &[("Host", "evil.example:4195")]);
    assert_eq!(status(&guard, named, Access::ReadWrite, false).await, 200);
}

#[tokio::test]
async fn in_the_clear_other_hosts_get_only_the_paths_of_the_reference_even_with_a_login() {
    let logins = auth(&[("r", &[Role::Read])]);
    let guard = AccessGuard::new(logins.credentials(), ClientTrust::Unencrypted, Arc::default());
    let bearer = [("Authorization", "Bearer r")];
    let by_proxy = [("Authorization", "Bearer r"), ("X-Forwarded-For", "198.51.100.1")];
    let nothing: [(&str, &str); 0] = [];
    let cases = [
        (OTHER, &bearer[..], Access::ReadWrite, true, 200),
        (OTHER, &nothing, Access::ReadWrite, true, 401),
        (OTHER, &nothing, Access::Open, true, 200),
        (OTHER, &bearer, Access::ReadWrite, false, 403),
        (OTHER, &bearer, Access::Own, false, 403),
        (LOCAL, &bearer, Access::ReadWrite, false, 200),
        (LOCAL, &by_proxy, Access::ReadWrite, false, 200),
    ];
    for (peer, headers, access, of_reference, expected) in cases {
        let found = status(&guard, request(peer, Method::GET, headers), access, of_reference).await;
        assert_eq!(found, expected, "{peer} {headers:?} {access:?} {of_reference}");
    }
}

fn auth(tokens: &[(&str, &[Role])]) -> Logins {
    use sha2::Digest;
    let token = |(name, roles): &(&str, &[Role])| TokenConfig {
        name: (*name).to_owned(),
        secret: TokenSecret::Sha256(sha2::Sha256::digest(name).into()),
        roles: roles.to_vec(),
        pos: thalweg_config::Pos::WHOLE_FILE,
    };
    let auth = AuthConfig {
        tokens: tokens.iter().map(token).collect(),
        ..AuthConfig::default()
    };
    Logins::load(&auth, None).unwrap()
}

#[tokio::test]
async fn with_a_login_each_request_needs_its_role_wherever_it_comes_from() {
    let logins = auth(&[("r", &[Role::Read]), ("w", &[Role::Write]), ("a", &[Role::Admin])]);
    let guard = AccessGuard::new(logins.credentials(), ClientTrust::Nobody, Arc::default());
    let cases = [
        // token, method, access, status
        (None, Method::GET, Access::Open, 200),
        (None, Method::GET, Access::ReadWrite, 401),
        (None, Method::GET, Access::Admin, 401),
        (Some("x"), Method::GET, Access::ReadWrite, 401),
        (Some("r"), Method::GET, Access::ReadWrite, 200),
        (Some("r"), Method::HEAD, Access::ReadWrite, 200),
        (Some("r"), Method::POST, Access::ReadWrite, 403),
        (Some("r"), Method::POST, Access::Read, 200),
        (Some("w"), Method::POST, Access::Read, 200),
        (Some("r"), Method::GET, Access::Admin, 403),
        (Some("w"), Method::POST, Access::ReadWrite, 200),
        (Some("w"), Method::GET, Access::ReadWrite, 200),
        (Some("w"), Method::GET, Access::Admin, 403),
        (Some("a"), Method::GET, Access::Admin, 200),
        (Some("a"), Method::GET, Access::ReadWrite, 200),
        (Some("a"), Method::POST, Access::ReadWrite, 200),
    ];
    for (token, method, access, expected) in cases {
        let header = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = header.iter().map(|value| ("Authorization", value.as_str())).collect();
        for peer in [LOCAL, OTHER] {
            let sent = request(peer, method.clone(), &headers);
            assert_eq!(
                status(&guard, sent, access, true).await,
                expected,
                "{token:?} {method} {access:?} {peer}"
            );
        }
    }
}
