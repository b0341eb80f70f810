//! The two answers to a server's certificate: look at nothing, or at chain and (for `verify-full`) name.
//!
//! Either way the server must prove that it has the certificate's key, or channel binding would bind to nothing.

use std::sync::Arc;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{
    VerifierBuilderError, WebPkiServerVerifier, verify_server_name,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme,
};
use x509_cert::der::Decode;

/// Takes any certificate: `sslmode` `prefer` and `require`.
#[derive(Debug)]
pub(super) struct Unverified(WebPkiSupportedAlgorithms);

impl Unverified {
    pub(super) fn new(provider: &Arc<CryptoProvider>) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Takes a certificate signed by one of the roots: `verify-ca`, and with the name `verify-full`.
#[derive(Debug)]
pub(super) struct Verified {
    webpki: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
    with_name: bool,
}

impl Verified {
    pub(super) fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
        with_name: bool,
    ) -> Result<Self, VerifierBuilderError> {
        let store = Arc::new(super::root_store(&roots));
        let webpki =
            WebPkiServerVerifier::builder_with_provider(store, Arc::clone(provider)).build()?;
        Ok(Self { webpki, roots, with_name })
    }
}

impl Verified {
    /// A certificate that is itself the root, as `openssl req -x509` makes them: libpq takes it, webpki by itself
    /// does not, since it says that it is an authority.
    fn verify_root(
        &self,
        certificate: &CertificateDer<'_>,
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = x509_cert::Certificate::from_der(certificate);
        let wrong = |error| Error::InvalidCertificate(error);
        let validity =
            parsed.map_err(|error| wrong(CertificateError::Other(OtherError(Arc::new(error)))))?;
        let validity = validity.tbs_certificate.validity;
        let seconds = now.as_secs();
        if seconds < validity.not_before.to_unix_duration().as_secs() {
            return Err(wrong(CertificateError::NotValidYet));
        }
        if seconds > validity.not_after.to_unix_duration().as_secs() {
            return Err(wrong(CertificateError::Expired));
        }
        if self.with_name {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.roots.iter().any(|root| root == end_entity) {
            return self.verify_root(end_entity, server_name, now);
        }
        let verdict = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verdict {
            // The name is looked at last, when the chain has been found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.with_name => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
