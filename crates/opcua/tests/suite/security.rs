//! Logins, modes and policies that work, and one clear message for each that does not.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use opcua::types::{EndpointDescription, GetEndpointsResponse, UserTokenType};

use crate::harness::{Plant, SimulatorOptions, collect, collect_in, open, secured};
use crate::proxy::{Fate, GET_ENDPOINTS, Proxy, decode, encode};

const SUBSCRIBE: &str = "subscribeEnabled: true";

/// Returns the reason that `/ready` reports after the first failed attempt.
async fn refusal(endpoint: &str, fields: &str) -> String {
    let collector = collect(endpoint, fields).await;
    collector
        .until("a failed attempt", |c| {
            c.metrics.total("input_connection_failed") >= 1.0
        })
        .await;
    let why = collector.not_ready().unwrap();
    collector.stop().await;
    why
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mode_and_policy_delivers() {
    let plant = Plant::start(SimulatorOptions {
        user: Some(("operator".to_owned(), "secret".to_owned())),
        ..secured()
    })
    .await;
    let data = Arc::new(tempfile::tempdir().unwrap());
    let login = "username: operator, password: secret";
    for mode in ["Sign", "SignAndEncrypt"] {
        for policy in [
            "Basic256Sha256",
            "Aes128Sha256RsaOaep",
            "Aes256Sha256RsaPss",
            "Basic256",
            "Basic128Rsa15",
        ] {
            let fields = format!("{SUBSCRIBE}, {login}, securityMode: {mode}, securityPolicy: {policy}");
            let collector = collect_in(&plant.endpoint(), &fields, data.clone()).await;
            collector.until_served(10).await;
            collector.until("values", |c| c.latest().len() == 10).await;
            assert_eq!(collector.detail("security"), format!("{mode}/{policy}"));
            collector.stop().await;
        }
    }
    // With only a mode configured, the strongest policy is chosen.
    let collector = collect_in(
        &plant.endpoint(),
        &format!("{SUBSCRIBE}, {login}, securityMode: SignAndEncrypt"),
        data,
    )
    .await;
    collector.until_served(10).await;
    assert_eq!(collector.detail("security"), "SignAndEncrypt/Aes256Sha256RsaPss");
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_certificate_logs_in() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = user_certificate();
    let file = folder.path().join("user.der");
    std::fs::write(&file, &certificate).unwrap();
    let plant = Plant::start(SimulatorOptions {
        user_certificate: Some(file),
        ..secured()
    })
    .await;
    let fields = format!(
        "{SUBSCRIBE}, securityMode: SignAndEncrypt, userCertificate: {}, userPrivateKey: {}",
        STANDARD.encode(&certificate),
        STANDARD.encode(&key)
    );
    let collector = collect(&plant.endpoint(), &fields).await;
    collector.until_served(10).await;
    collector.stop().await;
    let (other, key) = user_certificate();
    let fields = format!(
        "{SUBSCRIBE}, securityMode: SignAndEncrypt, userCertificate: {}, userPrivateKey: {}",
        STANDARD.encode(other),
        STANDARD.encode(key)
    );
    let why = refusal(&plant.endpoint(), &fields).await;
    assert!(why.contains("refused the login by certificate"), "{why}");
    plant.stop().await;
}

/// Creates a certificate and its key in DER, like common tools.
fn user_certificate() -> (Vec<u8>, Vec<u8>) {
    let data = opcua::crypto::X509Data {
        key_size: 2048,
        common_name: "operator".to_owned(),
        organization: "plant".to_owned(),
        organizational_unit: String::new(),
        country: "DE".to_owned(),
        state: String::new(),
        alt_host_names: opcua::crypto::X509Data::alt_host_names("urn:operator", None, false, true, false),
        certificate_duration_days: 10,
    };
    let (certificate, key) = opcua::crypto::X509::cert_and_pkey(&data).unwrap();
    (certificate.to_der().unwrap(), key.to_der().unwrap().as_bytes().to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_login_is_one_sentence() {
    let user = Some(("operator".to_owned(), "secret".to_owned()));
    let plant = Plant::start(SimulatorOptions { user, ..secured() }).await;
    let secure = "securityMode: SignAndEncrypt, securityPolicy: Basic256Sha256";
    let why = refusal(
        &plant.endpoint(),
        &format!("{SUBSCRIBE}, {secure}, username: operator, password: wrong"),
    )
    .await;
    assert!(
        why.contains("refused the login of user \"operator\"") && why.contains("check username and password"),
        "{why}"
    );
    let why = refusal(&plant.endpoint(), &format!("{SUBSCRIBE}, {secure}")).await;
    assert!(
        why.contains("accepts anonymous login") || why.contains("anonymous"),
        "{why}"
    );
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_endpoint_is_one_sentence() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let why = refusal(&format!("opc.tcp://127.0.0.1:{port}"), SUBSCRIBE).await;
    assert!(
        why.starts_with("nothing can be reached at opc.tcp://127.0.0.1") && why.contains("check host and port"),
        "{why}"
    );
    let why = refusal("opc.tcp://no-such-host.invalid:4840", SUBSCRIBE).await;
    assert!(
        why.contains("the host \"no-such-host.invalid\"") && why.contains("use its IP address"),
        "{why}"
    );
    // A listener that is no OPC UA server.
    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = web.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = web.accept().await {
            use tokio::io::AsyncWriteExt as _;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let why = refusal(&format!("opc.tcp://{address}"), SUBSCRIBE).await;
    assert!(why.contains("answers, but not as an OPC UA server"), "{why}");
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_is_never_lowered() {
    let plant = Plant::start(open()).await;
    for wish in [
        "securityMode: Sign",
        "securityPolicy: Basic256Sha256",
        "securityMode: SignAndEncrypt, securityPolicy: Basic256Sha256",
    ] {
        let why = refusal(&plant.endpoint(), &format!("{SUBSCRIBE}, {wish}")).await;
        assert!(
            why.starts_with("no suitable endpoint found") && why.contains("None/None"),
            "{why}"
        );
    }
    plant.stop().await;
    let plant = Plant::start(SimulatorOptions {
        insecure: false,
        ..secured()
    })
    .await;
    let why = refusal(&plant.endpoint(), SUBSCRIBE).await;
    assert!(
        why.starts_with("could not connect to any endpoint without security; offered: "),
        "{why}"
    );
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_trusted_by_first_use_fingerprint_or_folder() {
    let plant = Plant::start(secured()).await;
    let data = Arc::new(tempfile::tempdir().unwrap());
    let secure = format!("{SUBSCRIBE}, securityMode: SignAndEncrypt");
    let collector = collect_in(&plant.endpoint(), &secure, data.clone()).await;
    collector.until_served(10).await;
    collector.stop().await;

    let wrong = "ab".repeat(32);
    let why = refusal(
        &plant.endpoint(),
        &format!("{secure}, serverCertificateFingerprint: {wrong}"),
    )
    .await;
    let start = format!(
        "fingerprint mismatch for endpoint {}: expected {wrong}, got ",
        plant.endpoint()
    );
    assert!(why.starts_with(&start), "{why}");
    let real = why.rsplit(' ').next().unwrap().to_owned();
    let collector = collect(
        &plant.endpoint(),
        &format!("{secure}, serverCertificateFingerprint: {real}"),
    )
    .await;
    collector.until_served(10).await;
    collector.stop().await;

    let folder = tempfile::tempdir().unwrap();
    let fields = format!("{secure}, trustFolder: \"{}\"", folder.path().display());
    let collector = collect(&plant.endpoint(), &fields).await;
    collector
        .until("a refusal", |c| {
            c.not_ready().is_some_and(|why| why.contains("is not trusted; move it"))
        })
        .await;
    let rejected = folder.path().join("rejected").join(format!("{real}.der"));
    std::fs::create_dir_all(folder.path().join("trusted")).unwrap();
    std::fs::rename(rejected, folder.path().join("trusted").join("plant.der")).unwrap();
    // The folder is read again at the next attempt, without a restart.
    collector.until_served(10).await;
    collector.stop().await;

    // A certificate other than the first one seen is rejected.
    let pki = plant.folder.path().join("pki");
    let plant = plant.restart(|_| std::fs::remove_dir_all(pki).unwrap()).await;
    let collector = collect_in(&plant.endpoint(), &secure, data).await;
    collector
        .until("a refusal", |c| {
            c.not_ready()
                .is_some_and(|why| why.contains("another certificate than before"))
        })
        .await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_trust_us_is_one_sentence() {
    let plant = Plant::start(SimulatorOptions {
        auto_accept: false,
        ..secured()
    })
    .await;
    let why = refusal(&plant.endpoint(), &format!("{SUBSCRIBE}, securityMode: SignAndEncrypt")).await;
    assert!(
        why.starts_with("the server does not accept Thalweg's certificate") && why.contains("trust it on the server"),
        "{why}"
    );
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secured_sessions_survive_cuts() {
    let plant = Plant::start(SimulatorOptions {
        cuttable: true,
        ..secured()
    })
    .await;
    let collector = collect(&plant.endpoint(), &format!("{SUBSCRIBE}, securityMode: SignAndEncrypt")).await;
    collector.until_served(10).await;
    plant.cut();
    collector
        .until("the session again", |c| {
            c.metric("reconnects_total") >= 1.0 && c.not_ready().is_none()
        })
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 10).await;
    assert_eq!(collector.detail("security"), "SignAndEncrypt/Aes256Sha256RsaPss");
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_connection_asks_nobody() {
    let plant = Plant::start(open()).await;
    let collector = collect(&plant.endpoint(), &format!("{SUBSCRIBE}, directConnect: true")).await;
    collector.until_served(10).await;
    collector.stop().await;
    plant.stop().await;
}

/// Moves the certificate that the first rejection stored in `rejected/` to `trusted/`.
fn trust_what_was_rejected(folder: &std::path::Path) -> std::path::PathBuf {
    let rejected = std::fs::read_dir(folder.join("rejected")).unwrap();
    let file = rejected.map(|entry| entry.unwrap().path()).next().unwrap();
    let trusted = folder.join("trusted").join("plant.der");
    std::fs::create_dir_all(folder.join("trusted")).unwrap();
    std::fs::rename(file, &trusted).unwrap();
    trusted
}

const NOT_TRUSTED: &str = "is not trusted; move it";

/// The server would continue the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_the_trust_in_its_server() {
    let plant = Plant::start(SimulatorOptions {
        cuttable: true,
        ..secured()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let fields = format!(
        "{SUBSCRIBE}, securityMode: SignAndEncrypt, trustFolder: \"{}\"",
        folder.path().display()
    );
    let why = refusal(&plant.endpoint(), &fields).await;
    assert!(why.contains(NOT_TRUSTED), "{why}");
    let trusted = trust_what_was_rejected(folder.path());
    let collector = collect(&plant.endpoint(), &fields).await;
    collector.until_served(10).await;
    let away = folder.path().join("away.der");
    std::fs::rename(&trusted, &away).unwrap();
    plant.cut();
    collector
        .until("a refusal", |c| {
            c.not_ready().is_some_and(|why| why.contains(NOT_TRUSTED))
        })
        .await;
    std::fs::rename(&away, &trusted).unwrap();
    collector.until("trust again", |c| c.not_ready().is_none()).await;
    collector.stop().await;
    plant.stop().await;
}

/// `trusted/` contains only the certificate of another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_connection_with_the_wrong_certificate_hears_of_the_right_one() {
    let plant = Plant::start(secured()).await;
    let folder = tempfile::tempdir().unwrap();
    let (wrong, _) = user_certificate();
    std::fs::create_dir_all(folder.path().join("trusted")).unwrap();
    std::fs::write(folder.path().join("trusted/wrong.der"), wrong).unwrap();
    let fields = format!(
        "{SUBSCRIBE}, directConnect: true, securityPolicy: Basic256Sha256, trustFolder: \"{}\"",
        folder.path().display()
    );
    let collector = collect(&plant.endpoint(), &fields).await;
    collector
        .until("a refusal", |c| {
            c.not_ready().is_some_and(|why| why.contains(NOT_TRUSTED))
        })
        .await;
    trust_what_was_rejected(folder.path());
    collector.until_served(10).await;
    collector.stop().await;
    plant.stop().await;
}

/// Discovery is not protected: anyone in between can alter the response.
fn falsify(proxy: &Proxy, change: impl Fn(&mut Vec<EndpointDescription>) + Send + 'static) {
    proxy.tell(move |request, body| {
        if request.kind != GET_ENDPOINTS {
            return Fate::Pass;
        }
        let mut response: GetEndpointsResponse = decode(body);
        change(response.endpoints.get_or_insert_default());
        Fate::Change(encode(&response))
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_on_the_way_makes_the_password_readable() {
    let (name, password) = ("operator", "not-for-everybody");
    let plant = Plant::start(SimulatorOptions {
        user: Some((name.to_owned(), password.to_owned())),
        ..secured()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    falsify(&proxy, |endpoints| {
        let tokens = endpoints
            .iter_mut()
            .flat_map(|endpoint| endpoint.user_identity_tokens.iter_mut().flatten());
        for token in tokens.filter(|token| token.token_type == UserTokenType::UserName) {
            token.security_policy_uri = "http://opcfoundation.org/UA/SecurityPolicy#None".into();
        }
    });
    let fields = format!(
        "{SUBSCRIBE}, securityMode: Sign, securityPolicy: Basic256Sha256, username: {name}, password: {password}"
    );
    let collector = collect(&proxy.endpoint(), &fields).await;
    collector
        .until("an attempt", |c| {
            c.not_ready().is_none() || c.metrics.total("input_connection_failed") >= 1.0
        })
        .await;
    // In a channel that is only signed, the user name is readable.
    assert!(proxy.overheard(name));
    assert!(!proxy.overheard(password));
    collector.until_served(10).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_on_the_way_chooses_a_weaker_policy() {
    let plant = Plant::start(secured()).await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    falsify(&proxy, |endpoints| {
        endpoints.retain(|endpoint| endpoint.security_policy_uri.as_ref().ends_with("#Basic256"));
    });
    let fields = format!("{SUBSCRIBE}, securityMode: SignAndEncrypt");
    let why = refusal(&proxy.endpoint(), &fields).await;
    assert!(
        why.contains("the server offers SignAndEncrypt/Aes256Sha256RsaPss as its signed answer says")
            && why.contains("the weaker SignAndEncrypt/Basic256:"),
        "{why}"
    );
    // An explicitly configured policy is accepted.
    let collector = collect(&proxy.endpoint(), &format!("{fields}, securityPolicy: Basic256")).await;
    collector.until_served(10).await;
    collector.stop().await;
    plant.stop().await;
}
