//! Logins: by password, token, nkey or credentials file. Secrets are read from their files at each connection.

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;
use postrider_core::secret_file::{SecretFile, SecretFileError};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the sink logs in.
#[derive(Clone, Default)]
pub(super) enum NatsLogin {
    /// Without a login, or by the client's certificate.
    #[default]
    Open,
    /// User and password.
    Password(String, SecretFile),
    /// A token.
    Token(SecretFile),
    /// The seed of a user's nkey.
    Nkey(SecretFile),
    /// A file with a JWT and the seed of its nkey, as `nsc` writes it.
    Credentials(SecretFile),
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Password(..) => "Password",
            Self::Token(_) => "Token",
            Self::Nkey(_) => "Nkey",
            Self::Credentials(_) => "Credentials",
        })
    }
}

/// Why there is nothing to log in with.
#[derive(Debug)]
pub(super) enum LoginError {
    File(SecretFileError),
    /// The file is no seed of a user's nkey.
    Seed,
    /// The file has no JWT, or no seed.
    Credentials,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Seed => f.write_str("the file of nkey_file has no seed of a user's nkey (SU…)"),
            Self::Credentials => {
                f.write_str("the file of credentials_file has no JWT with the seed of an nkey")
            }
        }
    }
}

/// What one connection logs in with.
pub(super) struct Prepared {
    auth: Auth,
    key: Option<KeyPair>,
    used: AtomicBool,
}

impl NatsLogin {
    /// Reads the secrets.
    ///
    /// # Errors
    /// A file that can't be read, or has something else.
    pub(super) fn prepare(&self) -> Result<Arc<Prepared>, LoginError> {
        let mut auth = Auth::new();
        let mut key = None;
        match self {
            Self::Open => {}
            Self::Password(user, file) => {
                auth.username = Some(user.clone());
                auth.password = Some(file.read().map_err(LoginError::File)?);
            }
            Self::Token(file) => auth.token = Some(file.read().map_err(LoginError::File)?),
            Self::Nkey(file) => {
                let seed = file.read().map_err(LoginError::File)?;
                let pair = KeyPair::from_seed(seed.trim()).map_err(|_secret| LoginError::Seed)?;
                auth.nkey = Some(pair.public_key());
                key = Some(pair);
            }
            Self::Credentials(file) => {
                let text = file.read().map_err(LoginError::File)?;
                let (jwt, seed) = credentials(&text).ok_or(LoginError::Credentials)?;
                let pair = KeyPair::from_seed(seed).map_err(|_secret| LoginError::Credentials)?;
                auth.jwt = Some(jwt.to_owned());
                key = Some(pair);
            }
        }
        Ok(Arc::new(Prepared { auth, key, used: AtomicBool::new(false) }))
    }
}

impl Prepared {
    /// The answer to a server's challenge, once. The client would connect again by itself after a lost connection and
    /// send what it still holds, behind what was lost: without a second login it ends instead.
    ///
    /// # Errors
    /// The login was used.
    pub(super) fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        if self.used.swap(true, Ordering::Relaxed) {
            return Err(AuthError::new("this client connects once"));
        }
        let mut auth = self.auth.clone();
        if let Some(key) = &self.key {
            let unsigned = |_secret| AuthError::new("the nkey could not sign");
            auth.signature = Some(key.sign(nonce).map_err(unsigned)?);
        }
        Ok(auth)
    }
}

/// JWT and seed: the first line of each of two blocks.
fn credentials(text: &str) -> Option<(&str, &str)> {
    let block = |name: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find(|line| {
            line.starts_with("---") && line.contains("BEGIN") && line.contains(name)
        })?;
        lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with("---"))
    };
    Some((block("USER JWT")?, block("NKEY SEED")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_have_a_token_and_a_seed() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\n\
                    *** IMPORTANT ***\n-----BEGIN USER NKEY SEED-----\nSUAX\n------END USER NKEY SEED------\n";
        assert_eq!(credentials(text), Some(("eyJ0", "SUAX")));
        assert_eq!(credentials("eyJ0"), None);
    }

    #[test]
    fn login_is_used_once_and_never_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        std::fs::write(&path, "geheim\n").expect("a file");
        let login = NatsLogin::Password("relay".to_owned(), SecretFile::new(path.clone()));
        let prepared = login.prepare().expect("a login");
        let auth = prepared.answer(b"").expect("the first answer");
        assert_eq!(auth.password.as_deref(), Some("geheim"));
        assert!(prepared.answer(b"").is_err(), "the client must not connect again by itself");
        assert!(!format!("{login:?}").contains("geheim"));
        std::fs::write(&path, "neu\n").expect("a file");
        let auth = login.prepare().expect("a login").answer(b"").expect("an answer");
        assert_eq!(auth.password.as_deref(), Some("neu"), "read again");
    }

    #[test]
    fn nkey_signs_the_challenge() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seed");
        let pair = KeyPair::new_user();
        std::fs::write(&path, pair.seed().expect("a seed")).expect("a file");
        let login = NatsLogin::Nkey(SecretFile::new(path.clone()));
        let auth = login.prepare().expect("a login").answer(b"nonce").expect("an answer");
        assert_eq!(auth.nkey, Some(pair.public_key()));
        pair.verify(b"nonce", &auth.signature.expect("a signature")).expect("its signature");
        std::fs::write(&path, "nonsense").expect("a file");
        assert!(matches!(login.prepare(), Err(LoginError::Seed)));
    }
}
