use std::path::Path;

use opcua::core::RequestMessage;
use thalweg_config::{Diagnostics, Fields, Node};

use super::*;
use crate::fake_server::{FakeServer, endpoints, fault, open_endpoint};
use crate::test_log::Log;

fn connector(url: &str, fields: &str, folder: &Path) -> Connector {
    let node = Node::parse(&format!("endpoint: {url}\n{fields}")).unwrap();
    let diagnostics = Diagnostics::new("flow.yaml");
    let config = ConnectionConfig::parse(&mut Fields::new(&node, &diagnostics)).unwrap();
    Connector::with_keys_in(folder, config)
}

/// A server with one open endpoint.
async fn open_server() -> FakeServer {
    FakeServer::start(|request| match request {
        RequestMessage::GetEndpoints(_) => endpoints(vec![open_endpoint("opc.tcp://elsewhere:1/ua", "")]),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn an_unsecured_connection_warns_once_whatever_led_to_it() {
    let folder = tempfile::tempdir().unwrap();
    for (fields, part) in [
        ("", "the server offers nothing better"),
        ("securityMode: None", "the server offers nothing better"),
        (
            "directConnect: true",
            "the server was not asked what it offers; if it offers security, write\nsecurityMode: SignAndEncrypt\n",
        ),
    ] {
        let server = open_server().await;
        let (log, _guard) = Log::record();
        let connector = connector(&server.url, fields, folder.path());
        for _ in 0..2 {
            connector.connect("test").await.unwrap();
        }
        assert_eq!(
            log.count("the connection is not encrypted, "),
            1,
            "{fields}: {}",
            log.text()
        );
        assert!(log.text().contains(part), "{fields}: {}", log.text());
    }
}

#[tokio::test]
async fn what_the_server_offers_for_another_login_is_named_too() {
    let server = FakeServer::start(|request| {
        let RequestMessage::GetEndpoints(_) = request else {
            return None;
        };
        let mut secured = open_endpoint("opc.tcp://x:1", "");
        secured.security_mode = MessageSecurityMode::SignAndEncrypt;
        secured.security_policy_uri = SecurityPolicy::Basic256Sha256.to_uri().into();
        for token in secured.user_identity_tokens.iter_mut().flatten() {
            token.token_type = opcua::types::UserTokenType::UserName;
        }
        endpoints(vec![open_endpoint("opc.tcp://x:1", ""), secured])
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (log, _guard) = Log::record();
    connector(&server.url, "", folder.path()).connect("test").await.unwrap();
    let text = log.text();
    assert!(
        text.contains("not for anonymous login (it accepts user name)"),
        "{text}"
    );
    assert!(
        text.contains("\nsecurityMode: SignAndEncrypt\nsecurityPolicy: Basic256Sha256"),
        "{text}"
    );
}

#[tokio::test]
async fn the_only_endpoint_may_name_a_discovery_url_that_knows_more() {
    let server = FakeServer::start(|request| {
        let RequestMessage::GetEndpoints(request) = request else {
            return None;
        };
        let asked = request.endpoint_url.as_ref();
        if asked.ends_with("/more") {
            return endpoints(vec![
                open_endpoint("opc.tcp://inside:4840/first", ""),
                open_endpoint("opc.tcp://inside:4840/second", ""),
            ]);
        }
        // Its host is unknown here; only the path counts.
        endpoints(vec![open_endpoint(
            "opc.tcp://inside:4840/only",
            "opc.tcp://inside:4840/more",
        )])
    })
    .await;
    let url = EndpointUrl::parse(&server.url).unwrap();
    let urls: Vec<String> = discover(&url)
        .await
        .unwrap()
        .into_iter()
        .map(|offer| offer.url)
        .collect();
    assert_eq!(
        urls,
        [format!("{}/first", server.url), format!("{}/second", server.url)]
    );
    assert_eq!(server.count("GetEndpoints"), 2);
}

#[tokio::test]
async fn a_discovery_url_that_does_not_answer_leaves_the_one_endpoint() {
    let server = FakeServer::start(|request| {
        let RequestMessage::GetEndpoints(request) = request else {
            return None;
        };
        match request.endpoint_url.as_ref().ends_with("/more") {
            true => Some(fault(StatusCode::BadServiceUnsupported)),
            false => endpoints(vec![open_endpoint(
                "opc.tcp://inside:1/only",
                "opc.tcp://inside:1/more",
            )]),
        }
    })
    .await;
    let found = discover(&EndpointUrl::parse(&server.url).unwrap()).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].url, format!("{}/only", server.url));
}

#[tokio::test]
async fn a_server_that_refuses_discovery_is_opened_directly_but_never_with_less_security_than_wanted() {
    let server = FakeServer::start(|request| match request {
        RequestMessage::GetEndpoints(_) => Some(fault(StatusCode::BadServiceUnsupported)),
        _ => None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (log, _guard) = Log::record();
    connector(&server.url, "", folder.path()).connect("test").await.unwrap();
    assert!(log.text().contains("the endpoint is opened directly"), "{}", log.text());
    assert_eq!(server.count("ActivateSession"), 1);
    let secured = connector(&server.url, "securityMode: Sign", folder.path());
    let error = secured.connect("test").await.err().unwrap();
    assert!(
        error.text.contains("BadServiceUnsupported") && error.text.contains("trusted/"),
        "{error}"
    );
    assert_eq!(server.count("ActivateSession"), 1);
}

/// A secured connection requires a known certificate: the only trusted one, or one remembered from an earlier
/// connection.
#[tokio::test]
async fn a_server_that_refuses_discovery_is_opened_directly_where_its_certificate_is_known() {
    let server = FakeServer::start(|request| match request {
        RequestMessage::GetEndpoints(_) => Some(fault(StatusCode::BadServiceUnsupported)),
        _ => None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let der = trusted_certificate(folder.path()).await;
    let wish = "securityMode: Sign\nsecurityPolicy: Basic256Sha256";
    let trusting = format!("{wish}\ntrustFolder: {}", folder.path().display());
    let remembering = connector(&server.url, wish, folder.path());
    assert!(remembering.offer().await.is_err(), "nothing is remembered yet");
    let shown = ServerCertificate {
        chain: der.clone(),
        url: server.url.clone(),
        host: "127.0.0.1".to_owned(),
        application_uri: String::new(),
        policy: SecurityPolicy::Basic256Sha256,
    };
    remembering.trust.check(&shown).unwrap();
    for known in [connector(&server.url, &trusting, folder.path()), remembering] {
        let (log, _guard) = Log::record();
        let offer = known.offer().await.unwrap();
        assert_eq!(
            (offer.mode, offer.policy),
            (MessageSecurityMode::Sign, SecurityPolicy::Basic256Sha256)
        );
        assert_eq!((&offer.certificate, &offer.url), (&der, &server.url));
        assert!(log.text().contains("the endpoint is opened directly"), "{}", log.text());
    }
    // The policy to use is unknown.
    let without = format!("securityMode: Sign\ntrustFolder: {}", folder.path().display());
    let error = connector(&server.url, &without, folder.path())
        .offer()
        .await
        .unwrap_err();
    assert!(error.text.contains("that takes securityPolicy"), "{error}");
    // If a fingerprint is required, a remembered certificate is not trusted.
    let pinned = format!(
        "{wish}\nserverCertificateFingerprint: {}",
        crate::security::sha256_hex(b"x")
    );
    assert!(connector(&server.url, &pinned, folder.path()).offer().await.is_err());
}

#[tokio::test]
async fn a_server_that_counts_attempts_is_given_time() {
    for (refused, code, wait) in [
        ("CreateSession", StatusCode::BadTooManySessions, true),
        ("ActivateSession", StatusCode::BadUserAccessDenied, true),
        ("ActivateSession", StatusCode::BadInternalError, false),
    ] {
        let server = FakeServer::start(move |request| match request {
            RequestMessage::GetEndpoints(_) => endpoints(vec![open_endpoint("opc.tcp://x:1", "")]),
            other if other.type_name() == refused => Some(fault(code)),
            _ => None,
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let error = connector(&server.url, "", folder.path())
            .connect("test")
            .await
            .err()
            .unwrap();
        assert_eq!((error.wait, error.unreachable), (wait, false), "{error}");
        assert!(error.text.contains(&status::text(code.bits())), "{error}");
        // An attempt every second would exhaust what the server has left.
        let (second, timeout) = (Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(error.pause(second, timeout), if wait { timeout } else { second });
        assert_eq!(error.pause(timeout * 6, timeout), timeout * 6);
    }
}

/// Puts a server's certificate into a trust folder, as an operator would.
async fn trusted_certificate(folder: &Path) -> Vec<u8> {
    let der = certificate(&folder.join("other")).await;
    std::fs::create_dir_all(folder.join("trusted")).unwrap();
    std::fs::write(folder.join("trusted/server.der"), &der).unwrap();
    der
}

/// A certificate that is generated there.
async fn certificate(keys: &Path) -> Vec<u8> {
    let certificates = ClientCertificates::new(None, keys);
    let own = certificates.for_policy(SecurityPolicy::Basic256Sha256).await.unwrap();
    own.pair.der
}

/// The fake server closes a secured connection, as many servers do that cannot decrypt its first message.
#[tokio::test]
async fn a_direct_connection_that_fails_with_a_trusted_certificate_asks_for_the_real_one() {
    let folder = tempfile::tempdir().unwrap();
    let trusted = trusted_certificate(folder.path()).await;
    let real = certificate(&folder.path().join("real")).await;
    let shown = std::sync::Arc::new(parking_lot::Mutex::new(real.clone()));
    let to_show = shown.clone();
    let server = FakeServer::start(move |request| match request {
        RequestMessage::GetEndpoints(_) => {
            let mut open = open_endpoint("opc.tcp://elsewhere:1/ua", "");
            open.server_certificate = to_show.lock().clone().into();
            endpoints(vec![open])
        }
        _ => None,
    })
    .await;
    let fields = format!(
        "directConnect: true\nsecurityPolicy: Basic256Sha256\ntrustFolder: {}",
        folder.path().display()
    );
    let connector = connector(&server.url, &fields, &folder.path().join("keys"));
    let error = connector.connect("test").await.err().unwrap();
    let digest = crate::security::sha256_hex(&real);
    assert!(
        error.text.starts_with(&format!(
            "server certificate {digest} is not trusted; move it from rejected/"
        )),
        "{error}"
    );
    let kept = folder.path().join("rejected").join(format!("{digest}.der"));
    assert_eq!(std::fs::read(kept).unwrap(), real);
    assert_eq!(server.count("GetEndpoints"), 1);
    // If it is the real certificate, the connection fails for another reason.
    *shown.lock() = trusted;
    let error = connector.connect("test").await.err().unwrap();
    assert!(!error.text.contains("is not trusted"), "{error}");
    assert_eq!(server.count("GetEndpoints"), 2);
    // An unreachable server is not asked.
    drop(server);
    let error = connector.connect("test").await.err().unwrap();
    assert!(error.unreachable && !error.text.contains("cannot query"), "{error}");
}

#[tokio::test]
async fn a_direct_connection_needs_no_discovery_for_a_certificate_that_is_trusted() {
    let server = open_server().await;
    let folder = tempfile::tempdir().unwrap();
    let der = trusted_certificate(folder.path()).await;
    let fields = format!(
        "directConnect: true\nsecurityPolicy: Basic256Sha256\ntrustFolder: {}",
        folder.path().display()
    );
    let offer = connector(&server.url, &fields, folder.path()).offer().await.unwrap();
    assert_eq!(
        (offer.mode, offer.policy),
        (MessageSecurityMode::SignAndEncrypt, SecurityPolicy::Basic256Sha256)
    );
    assert_eq!((offer.certificate, offer.url), (der, server.url.clone()));
    assert!(!offer.application_uri.is_empty());
    assert_eq!(server.count("GetEndpoints"), 0);
}

#[tokio::test]
async fn a_direct_connection_without_a_known_certificate_asks_for_it_alone() {
    let server = FakeServer::start(|request| match request {
        RequestMessage::GetEndpoints(_) => {
            let mut shown = open_endpoint("opc.tcp://elsewhere:1/other", "");
            shown.server_certificate = vec![0x30, 1, 7].into();
            endpoints(vec![shown])
        }
        _ => None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let wish = "directConnect: true\nsecurityMode: Sign\nsecurityPolicy: Basic256Sha256";
    let offer = connector(&server.url, wish, folder.path()).offer().await.unwrap();
    // The path, the mode and the policy of the only announced endpoint are not used.
    assert_eq!(
        (offer.mode, offer.policy),
        (MessageSecurityMode::Sign, SecurityPolicy::Basic256Sha256)
    );
    assert_eq!((offer.certificate, offer.url), (vec![0x30, 1, 7], server.url.clone()));
    drop(server);
    let gone = connector("opc.tcp://127.0.0.1:1", wish, folder.path());
    let error = tokio::time::timeout(Duration::from_secs(30), gone.offer())
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        error.unreachable && error.text.contains("trusted/ of the trustFolder"),
        "{error}"
    );
}

#[tokio::test]
async fn a_password_that_goes_out_readable_is_told_at_each_connect() {
    let server = FakeServer::start(|request| {
        let RequestMessage::GetEndpoints(_) = request else {
            return None;
        };
        let mut open = open_endpoint("opc.tcp://x:1", "");
        for token in open.user_identity_tokens.iter_mut().flatten() {
            token.token_type = opcua::types::UserTokenType::UserName;
        }
        endpoints(vec![open])
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (log, _guard) = Log::record();
    let connector = connector(&server.url, "username: operator\npassword: secret", folder.path());
    for attempt in 1..3 {
        connector.connect("test").await.unwrap();
        assert_eq!(
            log.count("the password is sent in plain text"),
            attempt,
            "{}",
            log.text()
        );
    }
    assert!(!log.text().contains("secret"), "{}", log.text());
}

/// A direct connection learns the login options only when the session is created; the encryption certificate may come
/// with its issuers.
#[tokio::test]
async fn a_password_is_encrypted_also_where_nobody_was_asked_before() {
    let folder = tempfile::tempdir().unwrap();
    let der = trusted_certificate(folder.path()).await;
    let chain = [der.clone(), der].concat();
    let sent = std::sync::Arc::new(parking_lot::Mutex::new(None));
    let keep = sent.clone();
    let server = FakeServer::start(move |request| match request {
        RequestMessage::CreateSession(_) => {
            let mut open = open_endpoint("opc.tcp://x:1", "");
            open.server_certificate = chain.clone().into();
            for token in open.user_identity_tokens.iter_mut().flatten() {
                token.token_type = opcua::types::UserTokenType::UserName;
                token.security_policy_uri = SecurityPolicy::Basic256Sha256.to_uri().into();
            }
            let response = opcua::types::CreateSessionResponse {
                response_header: crate::fake_server::good(),
                session_id: NodeId::new(1, 1u32),
                authentication_token: NodeId::new(1, 2u32),
                revised_session_timeout: 10_000.0,
                server_nonce: vec![9; 32].into(),
                server_endpoints: Some(vec![open]),
                ..opcua::types::CreateSessionResponse::default()
            };
            Some(response.into())
        }
        RequestMessage::ActivateSession(request) => {
            let token = request
                .user_identity_token
                .inner_as::<opcua::types::UserNameIdentityToken>();
            *keep.lock() = token.cloned();
            None
        }
        _ => None,
    })
    .await;
    let (log, _guard) = Log::record();
    let fields = "directConnect: true\nusername: operator\npassword: secret";
    connector(&server.url, fields, folder.path())
        .connect("test")
        .await
        .unwrap();
    let token = sent.lock().take().unwrap();
    assert_eq!(token.user_name.as_ref(), "operator");
    assert!(!token.encryption_algorithm.is_empty() && token.password.as_ref().len() == 256);
    assert!(!log.text().contains("sent in plain text"), "{}", log.text());
}
