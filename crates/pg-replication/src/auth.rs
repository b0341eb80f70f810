//! The login: what the server asks for, and whether we answer.
//!
//! Owns the rules of which answer is safe on which transport. SCRAM itself is `postgres-protocol`'s: it checks the
//! server's signature and caps the iteration count at 100,000. Kerberos, SSPI, LDAP-by-GSS and OAuth are not spoken.

use super::conninfo::{ChannelBinding, Conninfo, Host, passfile};
use super::error::{SourceError, SourceErrorKind};
use super::wire::{Frame, Wire};
use bytes::{Buf, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;

/// Codes of Authentication messages (manual, 54.7).
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_CONTINUE: u32 = 11;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Answers the server until it says that the login is done.
pub(super) async fn log_in(
    wire: &mut Wire,
    conninfo: &Conninfo,
    host: &Host,
) -> Result<(), SourceError> {
    let login = Login { conninfo, host, doing: format!("log in to {host}") };
    let (asked, mut body) = login.request(wire).await?;
    if asked != code::SASL && conninfo.channel_binding == ChannelBinding::Require {
        return Err(login.refused("the server does not use channel binding, which is required"));
    }
    match asked {
        code::OK => return Ok(()),
        code::CLEARTEXT => {
            if !wire.transport.is_tls() && !wire.transport.is_local() {
                let why = "the server asks for the password in the clear; use TLS";
                return Err(login.refused(why));
            }
            let password = login.password()?;
            login.answer(wire, |out| frontend::password_message(password.as_bytes(), out)).await?;
        }
        code::MD5 => {
            let password = login.password()?;
            let salt = body.try_get_u32().map_err(|error| login.broken().caused_by(error))?;
            let user = conninfo.user.as_bytes();
            let hash = md5_hash(user, password.as_bytes(), salt.to_be_bytes());
            login.answer(wire, |out| frontend::password_message(hash.as_bytes(), out)).await?;
        }
        code::SASL => login.scram(wire, &body).await?,
        _ => {
            return Err(login.refused("the server asks for a method that is not supported"));
        }
    }
    match login.request(wire).await? {
        (code::OK, _) => Ok(()),
        _ => Err(login.broken()),
    }
}

struct Login<'a> {
    conninfo: &'a Conninfo,
    host: &'a Host,
    doing: String,
}

impl Login<'_> {
    fn refused(&self, why: &'static str) -> SourceError {
        SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(why)
    }

    fn broken(&self) -> SourceError {
        SourceError::new(SourceErrorKind::Protocol, self.doing.as_str())
    }

    fn password(&self) -> Result<String, SourceError> {
        if let Some(file) = &self.conninfo.password_file {
            // Read at each login: the file may have been rotated since the process started.
            return file.read().map_err(|error| {
                SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(error)
            });
        }
        let given = self.conninfo.password.as_ref().map(|secret| secret.reveal().to_owned());
        given
            .or_else(|| passfile::password(self.conninfo, self.host))
            .ok_or_else(|| self.refused("the server asks for a password, and there is none"))
    }

    /// The next Authentication message: its code and what follows it.
    async fn request(&self, wire: &mut Wire) -> Result<(u32, bytes::Bytes), SourceError> {
        let Frame { tag, mut body } = wire.receive(&self.doing).await?;
        match (tag, body.try_get_u32()) {
            (b'R', Ok(code)) => Ok((code, body)),
            _ => Err(self.broken()),
        }
    }

    async fn answer(
        &self,
        wire: &mut Wire,
        write: impl FnOnce(&mut BytesMut) -> std::io::Result<()>,
    ) -> Result<(), SourceError> {
        let mut out = BytesMut::new();
        write(&mut out).map_err(|error| {
            SourceError::new(SourceErrorKind::Settings, self.doing.as_str()).caused_by(error)
        })?;
        wire.send(&self.doing, &out).await
    }

    /// SCRAM-SHA-256, bound to the TLS session where both sides can (RFC 5802, RFC 7677).
    async fn scram(&self, wire: &mut Wire, offered: &[u8]) -> Result<(), SourceError> {
        let offers = |name: &str| offered.split(|byte| *byte == 0).any(|m| m == name.as_bytes());
        let allowed = self.conninfo.channel_binding != ChannelBinding::Disable;
        let end_point = wire.transport.tls_server_end_point().filter(|_| allowed);
        let (mechanism, binding) = match end_point {
            Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
                (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash))
            }
            // "y": we could have. A server that did offer it then knows that somebody took the offer out.
            Some(_) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            None => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        if mechanism == sasl::SCRAM_SHA_256
            && self.conninfo.channel_binding == ChannelBinding::Require
        {
            return Err(self.refused("channel binding is required, and is not possible here"));
        }
        if !offers(mechanism) {
            return Err(self.refused("the server asks for a SASL method that is not supported"));
        }
        let password = self.password()?;
        let mut scram = ScramSha256::new(password.as_bytes(), binding);
        self.answer(wire, |out| frontend::sasl_initial_response(mechanism, scram.message(), out))
            .await?;
        let first = self.expect(wire, code::SASL_CONTINUE).await?;
        let refused = |error| {
            SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(error)
        };
        scram.update(&first).map_err(refused)?;
        self.answer(wire, |out| frontend::sasl_response(scram.message(), out)).await?;
        // The server proves that it knows the password too. Without this message there is no login.
        let last = self.expect(wire, code::SASL_FINAL).await?;
        scram.finish(&last).map_err(refused)
    }

    async fn expect(&self, wire: &mut Wire, wanted: u32) -> Result<bytes::Bytes, SourceError> {
        match self.request(wire).await? {
            (code, body) if code == wanted => Ok(body),
            _ => Err(self.refused("the server left out a step of SCRAM")),
        }
    }
}
