//! The table of libpq's parameter names (manual, 34.1.2), their environment variables (34.15), and what we do with
//! each.

/// What becomes of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Support {
    /// It is applied.
    Applied,
    /// It makes no difference here, and is passed over.
    Ignored,
    /// It would make a difference that we can't make, so it is an error.
    Refused(&'static str),
}

/// One parameter.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) env: Option<&'static str>,
    pub(super) support: Support,
}

const fn key(name: &'static str, env: &'static str, support: Support) -> Key {
    Key { name, env: Some(env), support }
}

const fn bare(name: &'static str, support: Support) -> Key {
    Key { name, env: None, support }
}

use Support::{Applied, Ignored, Refused};

const NO_GSS: Support = Refused("Kerberos and GSSAPI are not supported");

/// Every name libpq knows, up to PostgreSQL 18.
pub(super) const KEYS: &[Key] = &[
    key("host", "PGHOST", Applied),
    key("hostaddr", "PGHOSTADDR", Applied),
    key("port", "PGPORT", Applied),
    key("dbname", "PGDATABASE", Applied),
    key("user", "PGUSER", Applied),
    key("password", "PGPASSWORD", Applied),
    key("passfile", "PGPASSFILE", Applied),
    key("options", "PGOPTIONS", Applied),
    key("application_name", "PGAPPNAME", Applied),
    bare("fallback_application_name", Applied),
    key("connect_timeout", "PGCONNECT_TIMEOUT", Applied),
    key("target_session_attrs", "PGTARGETSESSIONATTRS", Applied),
    key("load_balance_hosts", "PGLOADBALANCEHOSTS", Applied),
    key("sslmode", "PGSSLMODE", Applied),
    key("sslnegotiation", "PGSSLNEGOTIATION", Applied),
    key("sslrootcert", "PGSSLROOTCERT", Applied),
    key("sslcert", "PGSSLCERT", Applied),
    key("sslkey", "PGSSLKEY", Applied),
    key("sslsni", "PGSSLSNI", Applied),
    key("channel_binding", "PGCHANNELBINDING", Applied),
    bare("keepalives", Applied),
    bare("keepalives_idle", Applied),
    bare("keepalives_interval", Applied),
    bare("keepalives_count", Applied),
    bare("tcp_user_timeout", Applied),
    // Never negotiated by TLS 1.3, and switched off everywhere since OpenSSL 1.1.
    key("sslcompression", "PGSSLCOMPRESSION", Ignored),
    // Always UTF-8: the decoder depends on it.
    key("client_encoding", "PGCLIENTENCODING", Ignored),
    // TLS 1.2 is rustls' oldest, which is libpq's default too.
    key("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Applied),
    key("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Applied),
    key("gssencmode", "PGGSSENCMODE", Applied),
    key("krbsrvname", "PGKRBSRVNAME", Ignored),
    key("gsslib", "PGGSSLIB", Ignored),
    key("gssdelegation", "PGGSSDELEGATION", NO_GSS),
    key("sslcrl", "PGSSLCRL", Refused("revocation lists are not supported")),
    key("sslcrldir", "PGSSLCRLDIR", Refused("revocation lists are not supported")),
    key("sslcertmode", "PGSSLCERTMODE", Refused("leave out sslcert to send no certificate")),
    bare("sslpassword", Refused("the key must not be encrypted; protect its file instead")),
    key("requiressl", "PGREQUIRESSL", Refused("write sslmode=require instead")),
    key("requirepeer", "PGREQUIREPEER", Refused("the peer's user is not looked at")),
    key("require_auth", "PGREQUIREAUTH", Refused("write channel_binding=require instead")),
    key("service", "PGSERVICE", Refused("service files are not read")),
    key("servicefile", "PGSERVICEFILE", Ignored),
    bare("replication", Refused("it is set by Postrider itself")),
    bare("scram_client_key", Refused("give the password")),
    bare("scram_server_key", Refused("give the password")),
    bare("oauth_issuer", Refused("OAuth is not supported")),
    bare("oauth_client_id", Refused("OAuth is not supported")),
    bare("oauth_client_secret", Refused("OAuth is not supported")),
    bare("oauth_scope", Refused("OAuth is not supported")),
    bare("sslkeylogfile", Refused("session keys are never written to a file")),
    bare("min_protocol_version", Ignored),
    bare("max_protocol_version", Ignored),
];

/// The entry of a name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name nearest to a misspelt one.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let names = KEYS.iter().filter(|key| key.support == Applied).map(|key| key.name);
    names
        .map(|known| (strsim::osa_distance(name, known), known))
        .filter(|(distance, _)| *distance <= 3)
        .min()
        .map(|(_, known)| known)
}
