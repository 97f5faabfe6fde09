//! TLS: who is trusted, and who this client is.

use std::path::PathBuf;

use thalweg_http::tls_client::test_server::TestIdentity;

use super::broker::Broker;
use super::world::{World, until};

struct TlsWorld {
    broker: Broker,
    world: World,
    folder: tempfile::TempDir,
    server: TestIdentity,
    client: TestIdentity,
}

impl TlsWorld {
    /// A broker with TLS that asks clients for a certificate, or not.
    fn new(asks_clients: bool) -> TlsWorld {
        let folder = tempfile::tempdir().unwrap();
        let names = ["-addext", "subjectAltName=IP:127.0.0.1"];
        let server = TestIdentity::new(folder.path(), "server", "127.0.0.1", &names);
        let client = TestIdentity::new(folder.path(), "client", "gauge-7", &[]);
        let show = |path: &PathBuf| path.display().to_string();
        let mut settings = format!(
            "certfile {}\nkeyfile {}\n",
            show(&server.certificate),
            show(&server.key)
        );
        if asks_clients {
            let ca = show(&client.certificate);
            settings += &format!("cafile {ca}\nrequire_certificate true\nuse_identity_as_username true\n");
        }
        TlsWorld {
            broker: Broker::with(&settings),
            world: World::new(),
            folder,
            server,
            client,
        }
    }

    fn flow(&self, scheme: &str, tls: &str) -> String {
        let port = self.broker.port;
        format!(
            "input: {{mqtt: {{urls: [\"{scheme}://127.0.0.1:{port}\"], topics: [a], tls: {{{tls}}}}}}}\noutput: {{kept: {{}}}}\n"
        )
    }

    fn connects(&self, scheme: &str, tls: &str) {
        let running = self.world.start(&self.flow(scheme, tls));
        until("the flow is subscribed", || running.trouble().is_empty());
        self.world.stop(running);
    }

    fn trouble(&self, scheme: &str, tls: &str, told: &str) {
        let running = self.world.start(&self.flow(scheme, tls));
        until(told, || running.trouble().contains(told));
        self.world.stop(running);
    }
}

#[test]
fn a_broker_is_trusted_as_its_fields_say() {
    let world = TlsWorld::new(false);
    let file = world.server.certificate.display().to_string();
    let inline = std::fs::read_to_string(&file).unwrap().replace('\n', "\\n");
    world.connects("ssl", &format!("root_cas_file: \"{file}\""));
    world.connects("mqtts", &format!("root_cas: \"{inline}\""));
    world.connects("tls", "skip_cert_verify: true");
    world.connects("tcp", &format!("enabled: true, root_cas_file: \"{file}\""));
    world.trouble("ssl", "", "TLS failed: invalid peer certificate");
    let other = world.client.certificate.display();
    world.trouble(
        "ssl",
        &format!("root_cas_file: \"{other}\""),
        "TLS failed: invalid peer certificate",
    );
    world.trouble(
        "tcp",
        "",
        "check that the port is the one for MQTT and whether it wants TLS",
    );
    let missing = world.folder.path().join("missing.pem");
    let told = format!("cannot read the certificates in {}", missing.display());
    world.trouble("ssl", &format!("root_cas_file: \"{}\"", missing.display()), &told);
}

#[test]
fn a_client_shows_its_certificate() {
    let world = TlsWorld::new(true);
    let file = world.server.certificate.display();
    let (certificate, key) = (world.client.certificate.display(), world.client.key.display());
    let own = format!("client_certs: [{{cert_file: \"{certificate}\", key_file: \"{key}\"}}]");
    world.connects("ssl", &format!("root_cas_file: \"{file}\", {own}"));
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap().replace('\n', "\\n");
    let (certificate, key) = (read(&world.client.certificate), read(&world.client.key));
    let own = format!("client_certs: [{{cert: \"{certificate}\", key: \"{key}\"}}]");
    world.connects("ssl", &format!("root_cas_file: \"{file}\", {own}"));
    world.trouble("ssl", &format!("root_cas_file: \"{file}\""), "ssl://127.0.0.1");
    assert!(world.broker.log().contains("u'gauge-7'"), "{}", world.broker.log());
}
