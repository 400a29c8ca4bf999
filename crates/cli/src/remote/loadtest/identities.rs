//! Certificates of the clients of a load test, signed by the CA of the fleet.

use std::{fs, path::Path};

use chancery_fleet_load::Identities;
use chancery_tls::{ClientTls, ClientTlsFiles};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::failure::Failure;

/// Returns the identities of clients, each with a certificate for its node ID: the common name, and the URI
/// `spiffe://loadtest/ID`. `ca_of_server` is the CA of the server.
///
/// # Errors
/// Fails if a file is unusable.
pub(super) fn identities(
    ca: &Path,
    key: &Path,
    ca_of_server: Option<&Path>,
) -> Result<Identities, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", path.display())))
    };
    let wrong = |path: &Path, error: rcgen::Error| {
        Failure::new(format_args!("{} is unusable: {error}", path.display()))
    };
    let signing = KeyPair::from_pem(&read(key)?).map_err(|error| wrong(key, error))?;
    let issuer = Issuer::from_ca_cert_pem(&read(ca)?, signing).map_err(|error| wrong(ca, error))?;
    let dir = tempfile::tempdir().map_err(Failure::new)?;
    let ca_of_server = ca_of_server.map(Path::to_owned);
    Ok(Box::new(move |id| {
        let text = |error: &dyn std::fmt::Display| format!("certificate of {id}: {error}");
        let (cert, key) = sign(&issuer, id).map_err(|error| text(&error))?;
        let paths = ["cert", "key"].map(|name| dir.path().join(name));
        for (path, content) in paths.iter().zip([cert, key]) {
            fs::write(path, content).map_err(|error| text(&error))?;
        }
        let [cert, key] = paths;
        let files = ClientTlsFiles { ca: ca_of_server.clone(), cert_and_key: Some((cert, key)) };
        ClientTls::new(&files).map_err(|error| text(&error))
    }))
}

/// Returns a certificate for a node ID and its key.
fn sign(issuer: &Issuer<'_, KeyPair>, id: &str) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, id);
    params.subject_alt_names = vec![SanType::URI(format!("spiffe://loadtest/{id}").try_into()?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}
