//! The verification of client certificates on the ports for clients and operators.

use std::{collections::BTreeMap, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use crate::spiffe::{self, BadIdentity, Names};

/// The maximum number of certificates that a client may send.
const CHAIN_MAX: usize = 10;

/// A certificate that the chain verification alone would accept, or would not explain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadCertificate {
    #[error("it is self-signed")]
    SelfSigned,
    #[error("the client sent {0} certificates, at most {CHAIN_MAX} are allowed")]
    LongChain(usize),
    #[error("{0}")]
    Identity(BadIdentity),
}

/// Verifies the chain to a CA and the revocation list by `chain`, then the names by [`spiffe`], then whether the CA may
/// sign for the trust domain.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    /// Accepts the certificates of all CAs.
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    /// `None` if each CA may sign for each trust domain.
    pub(crate) trust_domains: Option<TrustDomains>,
}

/// The CAs that may sign for trust domains.
#[derive(Debug)]
pub(crate) struct TrustDomains {
    /// The verifiers by trust domain. An ID of another trust domain is refused.
    pub(crate) by_name: BTreeMap<Arc<str>, Arc<dyn ClientCertVerifier>>,
    /// The verifier of certificates without a SPIFFE ID.
    pub(crate) without_id: Arc<dyn ClientCertVerifier>,
}

impl TrustDomains {
    /// Returns the verifier of a certificate with these names.
    fn verifier(&self, names: &Names) -> Option<&dyn ClientCertVerifier> {
        match &names.spiffe_id {
            Some(id) => self.by_name.get(spiffe::trust_domain(id)).map(|verifier| &**verifier),
            None => Some(&*self.without_id),
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let n_certificates = intermediates.len() + 1;
        if n_certificates > CHAIN_MAX {
            return Err(refused(BadCertificate::LongChain(n_certificates)));
        }
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now);
        let verified = verified.map_err(|error| match error {
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            ) if is_self_signed(end_entity) => refused(BadCertificate::SelfSigned),
            error => error,
        })?;
        let names = spiffe::check(end_entity);
        let names = names.map_err(|error| refused(BadCertificate::Identity(error)))?;
        match &self.trust_domains {
            Some(domains) => domains
                .verifier(&names)
                .ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?
                .verify_client_cert(end_entity, intermediates, now),
            None => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

pub(crate) fn refused(reason: BadCertificate) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}

fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.issuer() == certificate.subject())
}
