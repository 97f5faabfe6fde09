//! Why TLS or the logins of a listener cannot be set up.

use std::path::PathBuf;

use crate::pem::PemFileError;

/// One sentence with the cure. It begins with the setting that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    #[error("{key}: cannot read {path}: {error}; correct the path or the file's permissions")]
    Unreadable {
        key: &'static str,
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{keys}: {problem}")]
    Tls { keys: String, problem: String },
    #[error("{problem}")]
    Auth { problem: String },
}

impl ProtectionError {
    /// The setting of the file that cannot be read. `None`: the content is wrong.
    pub fn unreadable_key(&self) -> Option<&'static str> {
        match self {
            ProtectionError::Unreadable { key, .. } => Some(*key),
            ProtectionError::Tls { .. } | ProtectionError::Auth { .. } => None,
        }
    }

    /// `key` names the file, `keys` all settings that its content concerns.
    pub(crate) fn of_pem_file(key: &'static str, keys: &str, error: PemFileError) -> ProtectionError {
        match error {
            PemFileError::Unreadable { path, error, .. } => ProtectionError::Unreadable { key, path, error },
            wrong => ProtectionError::Tls {
                keys: keys.to_owned(),
                problem: wrong.to_string(),
            },
        }
    }
}
