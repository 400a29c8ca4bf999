//! The section `[secrets]`: the keys with which secrets are sealed.

use std::{env, path::PathBuf};

use chancery_model::{TypeUrl, types};
use chancery_secrets::{KekSource, Secrets};

use super::section::section;

/// The variable in which systemd names the directory with the credentials of a service.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

section! {
    /// The section `[secrets]`.
    pub struct SecretsSection {
        /// The file with key-encryption keys, which encrypt the keys of secrets: 32 bytes in base64
        /// per line. The first key encrypts, and all keys decrypt. Other users must not be able to
        /// read the file. The file is read again when it changes.
        key_file: String;
        /// The name of the systemd credential with such keys (LoadCredential=NAME:PATH,
        /// LoadCredentialEncrypted=NAME:PATH).
        credential: String;
        /// The UNIX socket of a Kubernetes KMS plugin (KMSv2), which encrypts and decrypts the keys
        /// of secrets. If several sources are set, kms_socket encrypts, or else credential. All
        /// decrypt.
        kms_socket: String;
        /// Whether a replica without key_file, credential and kms_socket refuses resources with
        /// secrets. If false, such a replica stores them unencrypted, until the cluster has keys.
        require: bool;
    }
}

impl SecretsSection {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let rule = "is a path; give the name of a credential";
        self.credential.contains('/').then(|| ("credential", rule.to_owned())).into_iter().collect()
    }

    /// Returns why this process cannot read the credential, if one is set. An operator's command has none of the
    /// credentials of the unit.
    pub(crate) fn missing_directory(&self) -> Option<&'static str> {
        let is_missing =
            !self.credential.is_empty() && env::var_os(CREDENTIALS_DIRECTORY).is_none();
        is_missing.then_some(
            "needs systemd, which sets CREDENTIALS_DIRECTORY; start the server as its service, or set secrets.key_file",
        )
    }

    fn sources(&self) -> Vec<(&'static str, KekSource)> {
        let given = |text: &String| (!text.is_empty()).then(|| PathBuf::from(text));
        let credential = given(&self.credential).and_then(|name| {
            let directory = env::var_os(CREDENTIALS_DIRECTORY)?;
            Some(KekSource::File(PathBuf::from(directory).join(name)))
        });
        let kms = given(&self.kms_socket).map(KekSource::Kms);
        let file = given(&self.key_file).map(KekSource::File);
        let all = [("kms_socket", kms), ("credential", credential), ("key_file", file)];
        all.into_iter().filter_map(|(key, source)| Some((key, source?))).collect()
    }

    /// Returns the key and the reason for each file that cannot be used.
    pub(crate) fn unusable_files(&self) -> Vec<(&'static str, String)> {
        let check = |(key, source)| {
            let checked = Secrets::new(vec![source], false, has_secrets).check_files();
            Some((key, checked.err()?.to_string()))
        };
        self.sources().into_iter().filter_map(check).collect()
    }

    /// Returns the keys of the replica.
    pub fn keys(&self) -> Secrets {
        let sources = self.sources().into_iter().map(|(_, source)| source).collect();
        Secrets::new(sources, self.require, has_secrets)
    }
}

/// Returns whether a resource is sealed: a secret of SDS, or one with the value of a sensitive field.
fn has_secrets(type_url: &TypeUrl, body: &[u8]) -> bool {
    let mut has_secrets = types::is_secret(type_url);
    if !has_secrets {
        chancery_admin::secret_values(type_url, body, &mut |value| {
            has_secrets |= !value.is_empty()
        });
    }
    has_secrets
}
