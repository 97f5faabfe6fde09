//! Trust on first use: the certificate that a server showed first is remembered in the data folder, and no other is
//! accepted until the operator removes the memory.
//!
//! The memory is the certificate's SHA-256. The certificate itself is kept beside it, for connections to a server that
//! does not show it before; it counts only while its SHA-256 is the one that is remembered.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::kept_file::{Readers, keep};
use super::sha256_hex;

/// Two small files per endpoint address in `keys/`, so that two inputs of one server agree.
pub(super) struct Pins {
    folder: PathBuf,
}

/// What a file says of the certificate that was seen first.
#[derive(Debug, PartialEq, Eq)]
enum Memory {
    Nothing,
    /// A file without content, as versions that did not sync it leave it at a power cut.
    Emptied,
    Digest(String),
    Damaged,
}

impl Pins {
    pub fn new(keys: &Path) -> Pins {
        Pins {
            folder: keys.join("opcua-servers"),
        }
    }

    /// For the address of an endpoint; each kind of file has its ending.
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

    /// The certificate that the server showed before.
    pub fn certificate_of(&self, url: &str) -> Option<Vec<u8>> {
        let der = std::fs::read(self.certificate_file(url)).ok()?;
        let memory = Memory::read(&self.digest_file(url)).ok()?;
        (memory == Memory::Digest(sha256_hex(&der))).then_some(der)
    }

    /// Remembers the first certificate; refuses another. The error is one sentence with the cure.
    pub fn check(&self, url: &str, der: &[u8]) -> Result<(), String> {
        let got = sha256_hex(der);
        let file = self.digest_file(url);
        let shown = file.display();
        let memory = Memory::read(&file);
        match memory.map_err(|error| format!("the remembered certificate {shown} cannot be read: {error}"))? {
            Memory::Digest(known) if known == got => {}
            Memory::Digest(known) => {
                return Err(format!(
                    "the server at {url} shows another certificate than before: expected {known}, got {got}; if it was renewed on purpose, remove {shown} or set serverCertificateFingerprint"
                ));
            }
            Memory::Damaged => {
                return Err(format!(
                    "the file {shown}, which remembers the certificate of the server at {url}, is damaged: it holds no SHA-256; if {got} is the server's certificate, remove the file to have it remembered again, or set serverCertificateFingerprint"
                ));
            }
            Memory::Nothing => self.remember(url, &got, "it is the first one seen")?,
            Memory::Emptied => {
                let why = format!("{shown}, which remembered the one before, is empty, perhaps since a power cut");
                self.remember(url, &got, &why)?;
            }
        }
        self.keep_certificate(url, der);
        Ok(())
    }

    fn remember(&self, url: &str, digest: &str, why: &str) -> Result<(), String> {
        let file = self.digest_file(url);
        keep(&file, format!("{digest}\n").as_bytes(), Readers::All).map_err(|error| {
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

    /// The connection does without it, so failing to keep it fails nothing.
    fn keep_certificate(&self, url: &str, der: &[u8]) {
        let file = self.certificate_file(url);
        if std::fs::read(&file).is_ok_and(|kept| kept == der) {
            return;
        }
        if let Err(error) = keep(&file, der, Readers::All) {
            tracing::warn!(
                endpoint = url,
                "the server's certificate cannot be kept as {}: {error}; without it the server must answer discovery; make the folder writable",
                file.display()
            );
        }
    }
}

impl Memory {
    fn read(file: &Path) -> io::Result<Memory> {
        match std::fs::read(file) {
            Ok(bytes) => Ok(Memory::of(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Memory::Nothing),
            Err(error) => Err(error),
        }
    }

    fn of(bytes: &[u8]) -> Memory {
        const DIGITS: usize = 64;
        // A file that has got its length before its content reads as zeros.
        if bytes.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
            return Memory::Emptied;
        }
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        match text.len() == DIGITS && text.chars().all(|c| c.is_ascii_hexdigit()) {
            true => Memory::Digest(text),
            false => Memory::Damaged,
        }
    }
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
