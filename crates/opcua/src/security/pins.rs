//! Trust on first use: the certificate that a server showed first is remembered in the data folder, and no other is
//! accepted until the operator removes the record.
//!
//! The record is the certificate's SHA-256. The certificate itself is stored beside it, for connections to a server
//! that does not show it first; it counts only if its SHA-256 equals the record, or the record is empty.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::durable_file::keep;
use super::sha256_hex;

/// Two small files per endpoint address in `keys/`, so that two inputs of one server agree.
pub(super) struct Pins {
    folder: PathBuf,
}

/// The recorded fingerprint of the first certificate.
#[derive(Debug, PartialEq, Eq)]
enum PinRecord {
    Nothing,
    /// An empty file, as left by a power loss under versions that did not sync it.
    Emptied,
    Digest(String),
    Damaged,
}

/// The decision about an accepted certificate.
enum PinDecision {
    Remembered,
    Remember { why: String },
}

impl Pins {
    pub fn new(keys: &Path) -> Pins {
        Pins {
            folder: keys.join("opcua-servers"),
        }
    }

    /// Returns the file for an endpoint address; each kind of file has its extension.
    fn file(&self, url: &str, ending: &str) -> PathBuf {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let address = rest.split('/').next().unwrap_or(rest);
        let readable: String = address
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .take(60)
            .collect();
        let hash = xxh3_64(address.as_bytes()) as u32;
        self.folder.join(format!("{readable}-{hash:08x}.{ending}"))
    }

    fn digest_file(&self, url: &str) -> PathBuf {
        self.file(url, "sha256")
    }

    fn certificate_file(&self, url: &str) -> PathBuf {
        self.file(url, "der")
    }

    /// Returns the certificate that the server showed before.
    pub fn certificate_of(&self, url: &str) -> Option<Vec<u8>> {
        let der = self.kept_certificate(url).ok()??;
        match PinRecord::read(&self.digest_file(url)).ok()? {
            PinRecord::Digest(digest) => (digest == sha256_hex(&der)).then_some(der),
            PinRecord::Emptied => Some(der),
            PinRecord::Nothing | PinRecord::Damaged => None,
        }
    }

    /// Remembers the first certificate and rejects another. The error is one sentence with the remedy.
    pub fn check(&self, url: &str, der: &[u8]) -> Result<(), String> {
        let got = sha256_hex(der);
        if let PinDecision::Remember { why } = self.verdict(url, &got)? {
            self.remember(url, &got, &why)?;
        }
        self.keep_certificate(url, der);
        Ok(())
    }

    /// Accepts only the remembered certificate.
    pub fn check_again(&self, url: &str, der: &[u8]) -> Result<(), String> {
        match self.verdict(url, &sha256_hex(der))? {
            PinDecision::Remembered => Ok(()),
            PinDecision::Remember { .. } => Err(format!(
                "the certificate of the server at {url} is no longer remembered, since {} was removed or emptied; the next connection counts as the first one and checks the certificate anew",
                self.digest_file(url).display()
            )),
        }
    }

    fn verdict(&self, url: &str, got: &str) -> Result<PinDecision, String> {
        let file = self.digest_file(url);
        let shown = file.display();
        let unreadable = |file: &Path, error: io::Error| {
            format!(
                "the remembered certificate {} cannot be read: {error}; make the file readable",
                file.display()
            )
        };
        let another = |known: &str| {
            format!(
                "the server at {url} shows another certificate than before: expected {known}, got {got}; if it was renewed on purpose, remove {shown} or set serverCertificateFingerprint"
            )
        };
        match PinRecord::read(&file).map_err(|error| unreadable(&file, error))? {
            PinRecord::Digest(known) if known == got => Ok(PinDecision::Remembered),
            PinRecord::Digest(known) => Err(another(&known)),
            PinRecord::Damaged => Err(format!(
                "the file {shown}, which remembers the certificate of the server at {url}, is damaged: it contains no SHA-256; if {got} is the server's certificate, remove the file to have it remembered again, or set serverCertificateFingerprint"
            )),
            PinRecord::Nothing => Ok(PinDecision::Remember {
                why: "it is the first one seen".to_owned(),
            }),
            PinRecord::Emptied => {
                let kept = self.certificate_file(url);
                let digest = self.kept_certificate(url).map_err(|error| unreadable(&kept, error))?;
                let why = match digest.map(|der| sha256_hex(&der)) {
                    Some(known) if known != got => return Err(another(&known)),
                    Some(_) => format!(
                        "it equals the certificate in {}; the file {shown} with its SHA-256 is empty, perhaps since a power cut",
                        kept.display()
                    ),
                    None => format!(
                        "the file {shown} with the SHA-256 of the earlier certificate is empty, perhaps since a power cut"
                    ),
                };
                Ok(PinDecision::Remember { why })
            }
        }
    }

    /// Returns `None` also for a file that a power loss has emptied.
    fn kept_certificate(&self, url: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.certificate_file(url)) {
            Ok(der) => Ok(Some(der).filter(|der| !is_blank(der))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remember(&self, url: &str, digest: &str, why: &str) -> Result<(), String> {
        let file = self.digest_file(url);
        keep(&file, format!("{digest}\n").as_bytes()).map_err(|error| {
            format!(
                "the server's certificate cannot be remembered in {}: {error}; make the folder writable",
                file.display()
            )
        })?;
        tracing::warn!(
            endpoint = url,
            certificate = digest,
            "accepted the server's certificate because {why}; from now on only this one is accepted. To pin it, write serverCertificateFingerprint: {digest}"
        );
        Ok(())
    }

    /// The connection works without it, so a failure to store it is only logged.
    fn keep_certificate(&self, url: &str, der: &[u8]) {
        let file = self.certificate_file(url);
        if std::fs::read(&file).is_ok_and(|kept| kept == der) {
            return;
        }
        if let Err(error) = keep(&file, der) {
            tracing::warn!(
                endpoint = url,
                "the server's certificate cannot be stored as {}: {error}; without it the server must answer discovery; make the folder writable",
                file.display()
            );
        }
    }
}

impl PinRecord {
    fn read(file: &Path) -> io::Result<PinRecord> {
        match std::fs::read(file) {
            Ok(bytes) => Ok(PinRecord::of(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PinRecord::Nothing),
            Err(error) => Err(error),
        }
    }

    fn of(bytes: &[u8]) -> PinRecord {
        const DIGITS: usize = 64;
        if is_blank(bytes) {
            return PinRecord::Emptied;
        }
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        match text.len() == DIGITS && text.chars().all(|c| c.is_ascii_hexdigit()) {
            true => PinRecord::Digest(text),
            false => PinRecord::Damaged,
        }
    }
}

/// After a power loss, a file may have its length but no content, and then reads as zeros.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_log::Log;

    const URL: &str = "opc.tcp://plc:4840/ua";

    #[test]
    fn another_certificate_than_the_first_is_refused_until_the_memory_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path());
        assert!(pins.certificate_of(URL).is_none());
        pins.check(URL, b"first").unwrap();
        pins.check("opc.tcp://plc:4840/another/path", b"first").unwrap();
        let error = pins.check(URL, b"second").unwrap_err();
        assert!(error.contains(&format!("expected {}", sha256_hex(b"first"))), "{error}");
        assert_eq!(pins.certificate_of(URL).as_deref(), Some(&b"first"[..]));
        std::fs::remove_file(pins.digest_file(URL)).unwrap();
        assert!(pins.certificate_of(URL).is_none());
        pins.check(URL, b"second").unwrap();
        assert_eq!(pins.certificate_of(URL).as_deref(), Some(&b"second"[..]));
        assert!(pins.check(URL, b"first").is_err());
    }

    #[test]
    fn a_memory_that_a_power_cut_has_emptied_is_no_other_certificate() {
        let zeros = [0; 65];
        for emptied in [&b""[..], b"\n", &zeros] {
            let folder = tempfile::tempdir().unwrap();
            let pins = Pins::new(folder.path());
            pins.check(URL, b"first").unwrap();
            std::fs::write(pins.digest_file(URL), emptied).unwrap();
            std::fs::write(pins.certificate_file(URL), emptied).unwrap();
            let (log, _guard) = Log::record();
            pins.check(URL, b"second").unwrap();
            assert!(
                log.text().contains("is empty, perhaps since a power cut"),
                "{}",
                log.text()
            );
            assert!(pins.check(URL, b"first").is_err());
        }
    }

    #[test]
    fn the_certificate_beside_an_emptied_memory_is_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path());
        pins.check(URL, b"first").unwrap();
        std::fs::write(pins.digest_file(URL), b"").unwrap();
        let error = pins.check(URL, b"second").unwrap_err();
        assert!(error.contains("another certificate than before"), "{error}");
        assert!(error.contains(&sha256_hex(b"first")), "{error}");
        assert_eq!(pins.certificate_of(URL).as_deref(), Some(&b"first"[..]));
        pins.check(URL, b"first").unwrap();
        let memory = std::fs::read_to_string(pins.digest_file(URL)).unwrap();
        assert_eq!(memory.trim(), sha256_hex(b"first"), "it is written again");
        // An unreadable certificate may be another one.
        std::fs::write(pins.digest_file(URL), b"").unwrap();
        std::fs::remove_file(pins.certificate_file(URL)).unwrap();
        std::fs::create_dir(pins.certificate_file(URL)).unwrap();
        let error = pins.check(URL, b"second").unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
    }

    #[test]
    fn what_was_accepted_before_takes_no_place_in_a_memory_that_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path());
        pins.check(URL, b"first").unwrap();
        pins.check_again(URL, b"first").unwrap();
        assert!(pins.check_again(URL, b"second").is_err());
        std::fs::remove_file(pins.digest_file(URL)).unwrap();
        let error = pins.check_again(URL, b"first").unwrap_err();
        assert!(error.contains("is no longer remembered"), "{error}");
        pins.check(URL, b"second").unwrap();
    }

    #[test]
    fn a_torn_memory_is_said_to_be_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path());
        pins.check(URL, b"first").unwrap();
        let file = pins.digest_file(URL);
        for torn in [&sha256_hex(b"first").into_bytes()[..20], b"\xff\xfe"] {
            std::fs::write(&file, torn).unwrap();
            let error = pins.check(URL, b"first").unwrap_err();
            assert!(
                error.contains("is damaged") && error.contains("remove the file"),
                "{error}"
            );
            assert!(!error.contains("another certificate"), "{error}");
            assert!(error.contains(&file.display().to_string()), "{error}");
            assert_eq!(pins.certificate_of(URL), None);
        }
    }
}
