//! Trust on first use: the certificate that a server showed first is remembered in the data folder, and no other is
//! accepted until the operator removes the memory.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::sha256_hex;

/// One small file per endpoint address in `keys/`, so that two inputs of one server agree.
pub(super) struct Pins {
    folder: PathBuf,
}

impl Pins {
    pub fn new(keys: &Path) -> Pins {
        Pins {
            folder: keys.join("opcua-servers"),
        }
    }

    fn file(&self, address: &str) -> PathBuf {
        let readable: String = address
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .take(60)
            .collect();
        self.folder
            .join(format!("{readable}-{:08x}.sha256", xxh3_64(address.as_bytes()) as u32))
    }

    /// Remembers the first certificate; refuses another. The error is one sentence with the cure.
    pub fn check(&self, url: &str, der: &[u8]) -> Result<(), String> {
        let got = sha256_hex(der);
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let file = self.file(rest.split('/').next().unwrap_or(rest));
        match std::fs::read_to_string(&file) {
            Ok(known) if known.trim() == got => Ok(()),
            Ok(known) => Err(format!(
                "the server at {url} shows another certificate than before: expected {}, got {got}; if it was renewed on purpose, remove {} or set serverCertificateFingerprint",
                known.trim(),
                file.display()
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.remember(url, &file, &got),
            Err(error) => Err(format!(
                "the remembered certificate {} cannot be read: {error}",
                file.display()
            )),
        }
    }

    fn remember(&self, url: &str, file: &Path, digest: &str) -> Result<(), String> {
        let kept = std::fs::create_dir_all(&self.folder).and_then(|()| std::fs::write(file, format!("{digest}\n")));
        kept.map_err(|error| {
            format!(
                "the server's certificate cannot be remembered in {}: {error}; make the folder writable",
                file.display()
            )
        })?;
        tracing::warn!(
            endpoint = url,
            certificate = digest,
            "accepted the server's certificate because it is the first one seen; from now on only this one is accepted. To pin it, write serverCertificateFingerprint: {digest}"
        );
        Ok(())
    }
}
