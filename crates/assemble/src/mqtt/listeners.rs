//! The listeners of the section `mqtt`, and the rule on which of them need TLS and a login.

use std::net::SocketAddr;
use std::path::PathBuf;

use thalweg_config::{Diagnostics, Fields, ListenerNames, Node, Pos, Protection, exposure, kind, literal_address};
use thalweg_mqtt::{CertificateIdentity, ClientAuth, ListenerKind, MqttListenerSettings, MqttServer};
use thalweg_mqtt_wire::ProtocolVersion;

use super::section::MqttSection;

/// The listener of a section that names none.
const USUAL_ADDRESS: &str = "127.0.0.1:1883";
const VERSIONS: [ProtocolVersion; 3] = [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5];

/// A listener, and where it is in the file.
#[derive(Clone, Debug)]
pub(crate) struct MqttListenerSection {
    pub settings: MqttListenerSettings,
    /// The position of its address.
    pub pos: Pos,
    /// The files that it names, with their positions.
    files: Vec<(PathBuf, Pos)>,
}

impl MqttListenerSection {
    /// On a loopback address, where neither TLS nor a login is needed.
    fn usual(pos: Pos) -> MqttListenerSection {
        MqttListenerSection {
            settings: MqttListenerSettings::new(ListenerKind::Tcp, USUAL_ADDRESS),
            pos,
            files: Vec::new(),
        }
    }
}

/// Reads `listeners`. An empty list is one: the broker is there for flows only.
pub(super) fn read_listeners(fields: &mut Fields<'_>) -> Vec<MqttListenerSection> {
    let diags = fields.diags();
    let Some(node) = fields.node_or("listeners", kind::LIST, "one of kind tcp at 127.0.0.1:1883") else {
        return vec![MqttListenerSection::usual(fields.pos())];
    };
    match node.expect_seq() {
        Ok(items) => items.iter().map(|item| read_listener(item, diags)).collect(),
        Err(message) => {
            diags.error(&node, message);
            Vec::new()
        }
    }
}

fn read_listener(node: &Node, diags: &Diagnostics) -> MqttListenerSection {
    let mut fields = Fields::new(node, diags);
    let kinds = ListenerKind::ALL.map(ListenerKind::name);
    let name = fields.required_one_of("kind", &kinds);
    let kind = ListenerKind::ALL.into_iter().find(|kind| Some(kind.name()) == name);
    let address = fields.required_string("address");
    let port = address.rsplit_once(':').map(|(_, port)| port);
    if fields.has("address") && port.is_none_or(|port| port.parse::<u16>().is_err()) {
        fields.error("address", format!("expected host:port such as {USUAL_ADDRESS}"));
    }
    let mut settings = MqttListenerSettings::new(kind.unwrap_or(ListenerKind::Tcp), address);
    read_tls(&mut fields, &mut settings);
    let path = fields.string("path", "/mqtt");
    if !path.starts_with('/') {
        fields.error("path", "a path begins with \"/\", for example /mqtt");
    }
    settings.path = path;
    settings.origins = fields.string_list("origins");
    settings.proxy_protocol = fields.bool("proxy_protocol", false);
    let most = fields.int_in("max_connections", 0, 0..=10_000_000);
    settings.max_connections = usize::try_from(most).unwrap_or(usize::MAX);
    settings.versions = read_versions(&mut fields);
    if let Some(kind) = kind {
        check_kind(&fields, kind, &settings);
    }
    let pos = fields.pos_of("address");
    let files = [
        ("cert_file", &settings.cert_file),
        ("key_file", &settings.key_file),
        ("client_ca_file", &settings.client_ca_file),
        ("crl_file", &settings.crl_file),
    ];
    let files = files
        .into_iter()
        .filter_map(|(field, file)| Some((file.clone()?, fields.pos_of(field))));
    let files = files.collect();
    fields.finish();
    MqttListenerSection { settings, pos, files }
}

fn read_tls(fields: &mut Fields<'_>, settings: &mut MqttListenerSettings) {
    let mut file = |name| {
        fields
            .opt_string(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    settings.cert_file = file("cert_file");
    settings.key_file = file("key_file");
    settings.client_ca_file = file("client_ca_file");
    settings.crl_file = file("crl_file");
    let words = ClientAuth::ALL.map(ClientAuth::name);
    let word = fields.one_of("client_auth", &words, ClientAuth::None.name());
    let found = ClientAuth::ALL.into_iter().find(|own| own.name() == word);
    settings.client_auth = found.unwrap_or(ClientAuth::None);
    let words = CertificateIdentity::ALL.map(CertificateIdentity::name);
    let word = fields.one_of("identity", &words, CertificateIdentity::CommonName.name());
    let found = CertificateIdentity::ALL.into_iter().find(|own| own.name() == word);
    settings.identity = found.unwrap_or(CertificateIdentity::CommonName);
}

fn read_versions(fields: &mut Fields<'_>) -> Vec<ProtocolVersion> {
    let names = VERSIONS.map(ProtocolVersion::name);
    let default = format!("[{}]", names.join(", "));
    let Some(node) = fields.node_or("versions", kind::TEXT_LIST, &default) else {
        return VERSIONS.to_vec();
    };
    let mut versions = Vec::new();
    match node.expect_seq() {
        Err(message) => fields.diags().error(&node, message),
        Ok([]) => fields.error("versions", format!("name at least one of {}", names.join(", "))),
        Ok(items) => {
            for item in items {
                let text = item.scalar_text().unwrap_or_default();
                // YAML has no zero at the end of a number.
                let text = if text == "5" { "5.0" } else { text };
                match VERSIONS.into_iter().find(|version| version.name() == text) {
                    Some(version) => versions.push(version),
                    None => fields.diags().error(item, item.expected(&kind::one_of(&names))),
                }
            }
        }
    }
    versions
}

/// What a kind needs, and what has no effect on it.
fn check_kind(fields: &Fields<'_>, kind: ListenerKind, settings: &MqttListenerSettings) {
    let name = kind.name();
    let tls_fields = [
        "cert_file",
        "key_file",
        "client_auth",
        "client_ca_file",
        "crl_file",
        "identity",
    ];
    if kind.has_tls() {
        for (field, file) in [("cert_file", &settings.cert_file), ("key_file", &settings.key_file)] {
            if file.is_none() {
                let missing = format!("a listener of kind {name} needs cert_file and key_file; add {field}");
                fields.error("kind", missing);
            }
        }
    }
    let without_effect = |field: &str, kinds: &str| {
        if fields.has(field) {
            fields.error(field, format!("it is of {kinds}, and the kind is {name}; remove it"));
        }
    };
    if !kind.has_tls() {
        tls_fields.iter().for_each(|field| without_effect(field, "tls and wss"));
    }
    if !kind.is_websocket() {
        ["path", "origins"]
            .iter()
            .for_each(|field| without_effect(field, "ws and wss"));
    }
    let checks_clients = settings.client_auth != ClientAuth::None;
    if kind.has_tls() && checks_clients && settings.client_ca_file.is_none() {
        fields.error(
            "client_auth",
            "it needs client_ca_file, the authorities of the clients' certificates",
        );
    }
    if kind.has_tls() && !checks_clients {
        for field in ["client_ca_file", "crl_file", "identity"]
            .into_iter()
            .filter(|field| fields.has(field))
        {
            fields.error(field, "it has no effect without client_auth: optional or required");
        }
    }
}

impl MqttSection {
    /// Reports listeners that other hosts reach without TLS and a login. Host names are checked once they are bound.
    pub fn verify(&self, diagnostics: &Diagnostics) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let Some(address) = literal_address(&listener.settings.address) else {
                continue;
            };
            if let Err(text) = self.check_exposure(index, address) {
                diagnostics.error_at(listener.pos, text);
            }
        }
        // Files of settings that are wrong would be told of twice.
        let listeners = self.listeners.iter().enumerate().filter(|_| !diagnostics.has_errors());
        for (index, listener) in listeners {
            let Err(error) = MqttServer::verify(index, &listener.settings) else {
                continue;
            };
            let is_absent = |(file, _): &&(PathBuf, Pos)| !file.exists();
            match listener.files.iter().find(is_absent) {
                Some((_, pos)) => diagnostics.absent_at(*pos, error, ""),
                None => diagnostics.error_at(listener.pos, error),
            }
        }
    }

    /// Whether a listener may serve an address. The error is one sentence with the cure.
    pub fn check_exposure(&self, index: usize, address: SocketAddr) -> Result<(), String> {
        let Some(listener) = self.listeners.get(index) else {
            return Ok(());
        };
        let settings = &listener.settings;
        let protection = Protection {
            has_tls: settings.kind.has_tls(),
            has_login: self.needs_login || settings.client_auth == ClientAuth::Required,
            is_insecure: self.is_insecure,
        };
        exposure(address.ip(), protection).map_err(|exposed| {
            let with_tls = match settings.kind {
                ListenerKind::Tcp | ListenerKind::Tls => ListenerKind::Tls,
                ListenerKind::Ws | ListenerKind::Wss => ListenerKind::Wss,
            };
            let login = match self.broker.anonymous {
                true => "mqtt.anonymous: false with auth.tokens or auth.users_file",
                false => "auth.tokens or auth.users_file",
            };
            let names = ListenerNames {
                address: format!("mqtt.listeners[{index}].address"),
                tls: format!("kind: {} with cert_file and key_file", with_tls.name()),
                login: format!("{login}, or client_auth: required"),
                insecure: "mqtt.insecure: true".to_owned(),
            };
            exposed.explain(address, &names)
        })
    }
}
