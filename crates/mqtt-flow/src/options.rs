//! The fields that input and output share: brokers, client, login, will and TLS.

use std::path::PathBuf;
use std::time::Duration;

use thalweg_config::{Fields, kind};
use thalweg_http::pem;
use thalweg_http::tls_client::ClientTls;
use thalweg_kit::random;
use thalweg_mqtt_wire::{ProtocolVersion, QoS, topic};

use crate::broker_url::BrokerUrl;

/// How to reach a broker, and who this client is.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    pub urls: Vec<BrokerUrl>,
    pub client_id: String,
    /// Each start has a client id of its own.
    pub has_suffix: bool,
    pub connect_timeout: Duration,
    pub will: Option<WillOptions>,
    pub user: String,
    pub password: String,
    /// Seconds; 0 is off.
    pub keep_alive: u16,
    pub tls: TlsOptions,
    pub version: ProtocolVersion,
}

/// The message that the broker publishes if the connection is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WillOptions {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retained: bool,
}

#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Also brokers whose URL begins with `tcp://`, `mqtt://` or `ws://`.
    pub is_everywhere: bool,
    skip_cert_verify: bool,
    root_cas: String,
    root_cas_file: String,
    certificate: Option<ClientCertificate>,
}

#[derive(Clone, Debug)]
struct ClientCertificate {
    cert: String,
    key: String,
    cert_file: String,
    key_file: String,
}

/// The longest text of the protocol.
const TEXT_BYTES_MAX: usize = 65_535;
const SUFFIX_LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
const SUFFIX_LEN: usize = 21;
/// With it an id has 23 characters, which every broker takes.
const OWN_SUFFIX_LEN: usize = 16;

/// Reads the shared fields.
pub fn read(fields: &mut Fields<'_>) -> BrokerOptions {
    let urls = urls(fields);
    let client_id = fields.string("client_id", "");
    check_text(fields, "client_id", &client_id);
    let suffix = fields.opt_one_of("dynamic_client_id_suffix", &["nanoid"]);
    let connect_timeout = fields.duration("connect_timeout", "30s");
    if connect_timeout.is_zero() {
        fields.error("connect_timeout", "expected a time above 0");
    }
    let will = will(fields);
    let (user, password) = (fields.string("user", ""), fields.string("password", ""));
    check_text(fields, "user", &user);
    if user.is_empty() && !password.is_empty() {
        fields.error("password", "a password needs user");
    }
    let keep_alive = fields.int_in("keepalive", 30, 0..=i64::from(u16::MAX));
    let tls = tls(fields);
    let version = match fields.one_of("version", &["5.0", "3.1.1"], "5.0") {
        "3.1.1" => ProtocolVersion::V3_1_1,
        _ => ProtocolVersion::V5,
    };
    BrokerOptions {
        urls,
        client_id,
        has_suffix: suffix.is_some(),
        connect_timeout,
        will,
        user,
        password,
        keep_alive: u16::try_from(keep_alive).unwrap_or_default(),
        tls,
        version,
    }
}

/// Reads the brokers: `urls`, whose entries may list several with commas, or `broker`.
fn urls(fields: &mut Fields<'_>) -> Vec<BrokerUrl> {
    let given = fields.node("urls", kind::TEXT_OR_LIST);
    let entries = match given.as_ref().and_then(|node| node.as_str()) {
        Some(_) => vec![fields.string("urls", "")],
        None => fields.string_list("urls"),
    };
    if fields.opt_one_of("broker", &["local"]).is_some() {
        fields.error(
            "broker",
            "this version reaches the broker of the process through its listener only; set urls, such as [\"tcp://127.0.0.1:1883\"]",
        );
        return Vec::new();
    }
    let listed = entries.iter().flat_map(|entry| entry.split(','));
    let listed: Vec<&str> = listed.map(str::trim).filter(|url| !url.is_empty()).collect();
    if listed.is_empty() {
        fields.error("urls", "no broker is set; set a list such as [\"tcp://broker:1883\"]");
    }
    let read = listed.into_iter().map(BrokerUrl::parse);
    read.filter_map(|url| url.map_err(|error| fields.error("urls", error)).ok())
        .collect()
}

/// Texts of the protocol have a length of two bytes, and no null character.
fn check_text(fields: &Fields<'_>, name: &str, text: &str) {
    if text.len() > TEXT_BYTES_MAX {
        fields.error(
            name,
            format!("it has {} bytes; at most {TEXT_BYTES_MAX} are possible", text.len()),
        );
    }
    if text.contains('\0') {
        fields.error(name, "it contains the character U+0000, which MQTT does not have");
    }
}

/// Reads a QoS.
pub fn qos(fields: &mut Fields<'_>, default: i64) -> QoS {
    let number = fields.int_in("qos", default, 0..=2);
    u8::try_from(number).ok().and_then(QoS::of).unwrap_or_default()
}

fn will(fields: &mut Fields<'_>) -> Option<WillOptions> {
    let mut will = fields.opt_fields("will")?;
    let is_enabled = will.bool("enabled", false);
    let qos = qos(&mut will, 0);
    let retained = will.bool("retained", false);
    let (topic, payload) = (will.string("topic", ""), will.string("payload", ""));
    if is_enabled && !topic::is_name(&topic) {
        will.error("topic", "a will needs a topic without the wildcards + and #");
    }
    check_text(&will, "topic", &topic);
    if payload.len() > TEXT_BYTES_MAX {
        will.error(
            "payload",
            format!("it has {} bytes; at most {TEXT_BYTES_MAX} are possible", payload.len()),
        );
    }
    will.finish();
    is_enabled.then_some(WillOptions {
        topic,
        payload,
        qos,
        retained,
    })
}

fn tls(fields: &mut Fields<'_>) -> TlsOptions {
    let Some(mut tls) = fields.opt_fields("tls") else {
        return TlsOptions::default();
    };
    let is_everywhere = tls.bool("enabled", false);
    let skip_cert_verify = tls.bool("skip_cert_verify", false);
    let (root_cas, root_cas_file) = (tls.string("root_cas", ""), tls.string("root_cas_file", ""));
    if !root_cas.is_empty()
        && let Err(error) = pem::certificates_of_text(&root_cas)
    {
        tls.error("root_cas", error);
    }
    let listed = tls.list("client_certs");
    if listed.len() > 1 {
        tls.error("client_certs", "a client uses one certificate; keep only one");
    }
    let certificate = listed.first().map(|node| Fields::new(node, tls.diags()));
    let certificate = certificate.map(client_certificate);
    tls.finish();
    TlsOptions {
        is_everywhere,
        skip_cert_verify,
        root_cas,
        root_cas_file,
        certificate,
    }
}

fn client_certificate(mut fields: Fields<'_>) -> ClientCertificate {
    let read = ClientCertificate {
        cert: fields.string("cert", ""),
        key: fields.string("key", ""),
        cert_file: fields.string("cert_file", ""),
        key_file: fields.string("key_file", ""),
    };
    let password = fields.string("password", "");
    if !password.is_empty() {
        fields.error(
            "password",
            "a key with a password cannot be read; write it without one, with: openssl pkey -in key.pem -out plain.pem",
        );
    }
    if !fields.diags().is_describing() {
        for (text, file, name, file_name) in [
            (&read.cert, &read.cert_file, "cert", "cert_file"),
            (&read.key, &read.key_file, "key", "key_file"),
        ] {
            if text.is_empty() == file.is_empty() {
                fields.error(name, format!("give one of {name} and {file_name}"));
            }
        }
    }
    fields.finish();
    read
}

impl TlsOptions {
    /// Reads the files that are named. Blocks.
    pub fn client(&self) -> Result<ClientTls, String> {
        let file = |path: &str| pem::certificates(&PathBuf::from(path)).map_err(|error| error.to_string());
        let trusted = match (self.root_cas.is_empty(), self.root_cas_file.is_empty()) {
            (false, _) => {
                Some(pem::certificates_of_text(&self.root_cas).map_err(|error| format!("root_cas: {error}"))?)
            }
            (true, false) => Some(file(&self.root_cas_file)?),
            (true, true) => None,
        };
        let own = match &self.certificate {
            None => None,
            Some(own) => {
                let chain = match own.cert.is_empty() {
                    true => file(&own.cert_file)?,
                    false => pem::certificates_of_text(&own.cert).map_err(|error| format!("cert: {error}"))?,
                };
                let key = match own.key.is_empty() {
                    true => pem::private_key(&PathBuf::from(&own.key_file)).map_err(|error| error.to_string())?,
                    false => pem::private_key_of_text(&own.key).map_err(|error| format!("key: {error}"))?,
                };
                Some((chain, key))
            }
        };
        Ok(ClientTls {
            skips_verification: self.skip_cert_verify,
            trusted,
            own,
        })
    }
}

impl BrokerOptions {
    /// The client id of this run. One is made if none is set, so that a session can be found again after a lost connection.
    pub fn client_id_of_run(&self) -> Result<String, String> {
        let (prefix, len) = match (self.client_id.is_empty(), self.has_suffix) {
            (true, _) => ("thalweg", OWN_SUFFIX_LEN),
            (false, true) => (self.client_id.as_str(), SUFFIX_LEN),
            (false, false) => return Ok(self.client_id.clone()),
        };
        let mut random = vec![0; len];
        random::fill(&mut random).map_err(|error| format!("no client id can be made: {error}"))?;
        let letters = random.iter().map(|byte| SUFFIX_LETTERS[usize::from(byte & 63)]);
        Ok(prefix.chars().chain(letters.map(char::from)).collect())
    }
}

#[cfg(test)]
mod tests;
