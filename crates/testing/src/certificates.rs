//! Certificate authorities, and the certificates that they sign.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};

/// A certificate authority.
#[derive(Debug)]
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// The certificate without its CA.
    pub cert: String,
    /// The private key.
    pub key: String,
}

impl Ca {
    /// Creates an authority with a new key.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("there are no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("the system has random numbers");
        Self(CertifiedIssuer::self_signed(params, key).expect("the parameters are valid"))
    }

    /// Returns the certificate of the authority in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the private key of the authority in PEM.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// Signs a certificate for servers and clients with these DNS names and IP addresses. `change` adjusts
    /// its parameters.
    ///
    /// # Panics
    /// If a name or a parameter is invalid.
    #[must_use]
    pub fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.distinguished_name.push(DnType::CommonName, "leaf");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ClientAuth, ServerAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("the system has random numbers");
        let cert = params.signed_by(&key, &self.0).expect("the parameters are valid");
        Leaf { cert: cert.pem(), key: key.serialize_pem() }
    }

    /// Signs a certificate for the loopback address.
    #[must_use]
    pub fn loopback(&self) -> Leaf {
        self.sign(&["127.0.0.1", "localhost"], |_| ())
    }

    /// Signs a certificate of a client with a URI name.
    #[must_use]
    pub fn client(&self, uri: &str) -> Leaf {
        self.sign(&[], |params| add_uri(params, uri))
    }

    /// Returns a revocation list in PEM that names these serial numbers.
    ///
    /// # Panics
    /// If the parameters are invalid.
    #[must_use]
    pub fn revoke(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.0).expect("the parameters are valid");
        list.pem().expect("the list can be encoded")
    }
}

impl Leaf {
    /// Writes the certificate and the key to the files `NAME.pem` and `NAME.key`, and returns their paths.
    /// Each file is replaced atomically, the certificate first.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let paths = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        for (path, content) in [(&paths.0, &self.cert), (&paths.1, &self.key)] {
            let new = path.with_extension("new");
            fs::write(&new, content).expect("the directory is writable");
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&new, mode).expect("the file is own");
            fs::rename(&new, path).expect("the directory is writable");
        }
        paths
    }
}

/// Lets a certificate expire after this time.
pub fn expire_in(params: &mut CertificateParams, left: Duration) {
    params.not_after = (SystemTime::now() + left).into();
}

/// Adds a URI name to a certificate.
///
/// # Panics
/// If the name is not ASCII.
pub fn add_uri(params: &mut CertificateParams, uri: &str) {
    let uri = uri.try_into().expect("the name is ASCII");
    params.subject_alt_names.push(SanType::URI(uri));
}
