//! The brokers and how to connect to them: the fields that all components share, as settings of the client.

use std::path::Path;

use rdkafka::ClientConfig;
use thalweg_config::{Fields, Node, kind};

const PORT: u16 = 9092;
const LISTED: &str = "localhost:9092";

/// Reads `addresses` (or `seed_brokers`), `client_id`, `rack_id`, `tls` and `sasl` of the components `kafka`.
pub fn read(fields: &mut Fields<'_>) -> ClientConfig {
    let (name, other) = match fields.has("addresses") || !fields.has("seed_brokers") {
        true => ("addresses", "seed_brokers"),
        false => ("seed_brokers", "addresses"),
    };
    let listed = addresses(fields, name);
    // The field is read even if absent, because only fields that were read count as valid names.
    if fields.node(other, kind::TEXT_OR_LIST).is_some() {
        fields.error(
            other,
            format!("it is an alias of {name}, which is also set; remove one of them"),
        );
    }
    if listed.is_empty() {
        fields.error(name, format!("no broker is set; set a list such as [\"{LISTED}\"]"));
    }
    let mut client = client(&listed);
    client.set("client.id", fields.string("client_id", "thalweg"));
    if let Some(rack) = fields.opt_string("rack_id") {
        client.set("client.rack", rack);
    }
    let encrypted = tls(fields, &mut client);
    let authenticated = sasl(fields, &mut client);
    let protocol = match (encrypted, authenticated) {
        (false, false) => "plaintext",
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    client.set("security.protocol", protocol);
    client
}

/// Reads the comma list `broker_address` of the components `uns`.
pub fn read_unencrypted(fields: &mut Fields<'_>) -> ClientConfig {
    let listed = split(&fields.string("broker_address", LISTED));
    check(fields, "broker_address", &listed);
    if listed.is_empty() {
        fields.error(
            "broker_address",
            format!("no broker is set; set host:port, such as {LISTED}"),
        );
    }
    let mut client = client(&listed);
    client.set("client.id", "thalweg");
    client
}

/// The host of the first broker.
pub fn first_host(client: &ClientConfig) -> &str {
    let listed = client.get("bootstrap.servers").unwrap_or_default();
    let first = listed.split(',').next().unwrap_or_default();
    first.rsplit_once(':').map_or(first, |(host, _)| host)
}

fn client(listed: &[String]) -> ClientConfig {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", listed.join(","))
        // Reconnect soon after a broker comes back.
        .set("reconnect.backoff.ms", "100")
        .set("reconnect.backoff.max.ms", "2000")
        // Brokers close idle connections; that need not be logged.
        .set("log.connection.close", "false");
    client
}

/// Reads a list or one text; each entry may contain several addresses, separated by commas.
fn addresses(fields: &mut Fields<'_>, name: &str) -> Vec<String> {
    let given = fields.node(name, kind::TEXT_OR_LIST);
    let single = given.is_some_and(|node| node.as_str().is_some());
    let entries = match single {
        true => vec![fields.required_string(name)],
        false => fields.string_list(name),
    };
    let listed: Vec<String> = entries.iter().flat_map(|entry| split(entry)).collect();
    check(fields, name, &listed);
    listed
}

fn split(list: &str) -> Vec<String> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| with_port(entry.trim_start_matches("tcp://")))
        .collect()
}

fn with_port(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, _)) if !host.is_empty() && !address.ends_with(']') => address.to_owned(),
        _ => format!("{address}:{PORT}"),
    }
}

fn check(fields: &Fields<'_>, name: &str, listed: &[String]) {
    for address in listed {
        let port = address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) || address.contains(['/', ' ']) {
            fields.error(name, format!("expected host:port, got \"{address}\""));
        }
    }
}

/// Returns whether TLS is enabled.
fn tls(fields: &mut Fields<'_>, client: &mut ClientConfig) -> bool {
    let Some(mut tls) = fields.opt_fields("tls") else {
        return false;
    };
    let enabled = tls.bool("enabled", false);
    let unchecked = tls.bool("skip_cert_verify", false);
    let (inline, file) = (tls.string("root_cas", ""), tls.string("root_cas_file", ""));
    let certificates = tls.list("client_certs");
    if certificates.len() > 1 {
        tls.error("client_certs", "a client uses one certificate; keep only one");
    }
    let certificate = certificates.first().map(|node| Fields::new(node, tls.diags()));
    if let Some(certificate) = certificate {
        client_certificate(certificate, client);
    }
    tls.finish();
    if !enabled {
        return false;
    }
    if unchecked {
        client.set("enable.ssl.certificate.verification", "false");
    }
    match (inline.is_empty(), file.is_empty()) {
        (false, _) => client.set("ssl.ca.pem", inline),
        (true, false) => client.set("ssl.ca.location", file),
        // The same default as for all other TLS clients here.
        (true, true) => client.set("ssl.ca.location", machine_authorities()),
    };
    true
}

/// Returns the file of the machine's trusted authorities, or `probe`, which searches the usual places.
fn machine_authorities() -> String {
    let named = std::env::var("SSL_CERT_FILE").ok();
    named
        .filter(|file| Path::new(file).exists())
        .unwrap_or_else(|| "probe".to_owned())
}

fn client_certificate(mut fields: Fields<'_>, client: &mut ClientConfig) {
    for (field, setting) in [
        ("cert", "ssl.certificate.pem"),
        ("key", "ssl.key.pem"),
        ("cert_file", "ssl.certificate.location"),
        ("key_file", "ssl.key.location"),
        ("password", "ssl.key.password"),
    ] {
        let text = fields.string(field, "");
        if !text.is_empty() {
            client.set(setting, text);
        }
    }
    fields.finish();
}

/// Reads a mapping, or a list of one, with the field names of either component. Returns whether SASL is enabled.
fn sasl(fields: &mut Fields<'_>, client: &mut ClientConfig) -> bool {
    let Some(node) = fields.node("sasl", kind::MAPPING_OR_LIST) else {
        return false;
    };
    let listed = node.as_seq().map(<[Node]>::to_vec);
    let node = match listed.as_deref() {
        None => node,
        Some([]) => return false,
        Some([only]) => only.clone(),
        Some(_) => {
            fields.error("sasl", "only one login method is used; keep only one");
            return false;
        }
    };
    let mut sasl = Fields::new(&node, fields.diags());
    let mechanism = sasl.one_of(
        "mechanism",
        &["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        "none",
    );
    let user = either(&mut sasl, "user", "username");
    let password = sasl.string("password", "");
    if mechanism != "none" && user.is_empty() {
        sasl.error("mechanism", "a user is needed; set user and password");
    }
    sasl.finish();
    if mechanism == "none" {
        return false;
    }
    client
        .set("sasl.mechanism", mechanism)
        .set("sasl.username", user)
        .set("sasl.password", password);
    true
}

/// Reads a text that has two names, of which at most one is given.
pub fn either(fields: &mut Fields<'_>, name: &str, other: &str) -> String {
    let (given, also) = (fields.string(name, ""), fields.string(other, ""));
    if !given.is_empty() && !also.is_empty() {
        fields.error(other, format!("{name} means the same; keep only one"));
    }
    if given.is_empty() { also } else { given }
}

/// Checks whether a text can be the name of a topic.
pub fn check_topic(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name {
        "" => Err("the name of a topic is empty".to_owned()),
        "." | ".." => Err(format!("\"{name}\" cannot be the name of a topic")),
        _ if name.len() > 249 => Err(format!(
            "the name of a topic has at most 249 characters, this one has {}",
            name.len()
        )),
        _ if !name.chars().all(legal) => Err(format!(
            "\"{name}\" cannot be the name of a topic: only letters, digits, '.', '_' and '-' are allowed"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_config::Diagnostics;

    use super::*;

    fn of(yaml: &str) -> (ClientConfig, String) {
        let (node, diagnostics) = (Node::parse(yaml).unwrap(), Diagnostics::new("t.yaml"));
        let mut fields = Fields::new(&node, &diagnostics);
        let client = read(&mut fields);
        fields.finish();
        (client, diagnostics.to_string())
    }

    fn setting<'c>(client: &'c ClientConfig, name: &str) -> &'c str {
        client.get(name).unwrap_or_default()
    }

    #[test]
    fn addresses_are_listed_in_every_form() {
        for (yaml, listed) in [
            ("addresses: [a:1, b]", "a:1,b:9092"),
            ("seed_brokers: [\"a:1, b:2\"]", "a:1,b:2"),
            ("addresses: a", "a:9092"),
            ("addresses: [\"[::1]:7\"]", "[::1]:7"),
            ("addresses: [\"[::1]\"]", "[::1]:9092"),
            ("addresses: [\"tcp://a:1\"]", "a:1"),
        ] {
            let (client, mistakes) = of(yaml);
            assert_eq!(
                (setting(&client, "bootstrap.servers"), mistakes.as_str()),
                (listed, ""),
                "{yaml}"
            );
        }
        assert_eq!(first_host(&of("addresses: [a.b:1, c]").0), "a.b");
    }

    #[test]
    fn addresses_have_two_names_of_which_one_is_given() {
        let (client, mistakes) = of("seed_brokers: [b]\naddresses: [a]");
        assert_eq!(setting(&client, "bootstrap.servers"), "a:9092");
        let expected =
            "t.yaml:1:15: seed_brokers: it is an alias of addresses, which is also set; remove one of them\n";
        assert_eq!(mistakes, expected);
        let (_, mistakes) = of("addresses: [a]\nseed_broker: [b]");
        assert!(mistakes.contains("did you mean \"seed_brokers\"?"), "{mistakes}");
    }

    #[test]
    fn tls_and_sasl_become_settings() {
        let (client, mistakes) = of(
            "addresses: [a]\ntls: {enabled: true, root_cas_file: ca.pem, client_certs: [{cert_file: c, key_file: k}]}\n\
                                     sasl: [{mechanism: SCRAM-SHA-512, username: u, password: p}]",
        );
        assert_eq!(mistakes, "");
        for (name, value) in [
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "ca.pem"),
            ("ssl.certificate.location", "c"),
            ("ssl.key.location", "k"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "u"),
            ("sasl.password", "p"),
        ] {
            assert_eq!(setting(&client, name), value, "{name}");
        }
        // The client accepts all of these names and values.
        let mut known = client.clone();
        for file in ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"] {
            known.remove(file);
        }
        known.create_native_config().unwrap();
        let (plain, _) = of("addresses: [a]\ntls: {enabled: false}\nsasl: {mechanism: none}");
        assert_eq!(setting(&plain, "security.protocol"), "plaintext");
    }

    #[test]
    fn mistakes_are_told_at_their_places() {
        for (yaml, told) in [
            (
                "client_id: x",
                "t.yaml:1:1: addresses: no broker is set; set a list such as [\"localhost:9092\"]\n",
            ),
            (
                "addresses: [\"a:b\"]",
                "t.yaml:1:12: addresses: expected host:port, got \"a:b\"\n",
            ),
            (
                "addresses: [a]\nsasl: {mechanism: PLAIN}",
                "t.yaml:2:19: sasl.mechanism: a user is needed; set user and password\n",
            ),
            (
                "addresses: [a]\nsasl: {mechanism: KERBEROS}",
                "t.yaml:2:19: sasl.mechanism: expected one of none, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, got the text \"KERBEROS\"\n",
            ),
            (
                "addresses: [a]\ntls: {enabled: true, x: 1}",
                "t.yaml:2:22: unknown field \"x\" in tls",
            ),
        ] {
            let (_, mistakes) = of(yaml);
            assert!(mistakes.starts_with(told), "{yaml}: {mistakes}");
        }
    }

    #[test]
    fn topics_have_names_that_brokers_take() {
        for good in ["umh.messages", "a-b_c.D9"] {
            assert_eq!(check_topic(good), Ok(()));
        }
        for bad in ["", ".", "a/b", "ä", &"a".repeat(250)] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
    }
}
