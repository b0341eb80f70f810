//! The password file (manual, 34.16): `host:port:database:user:password`, one a line, the first that fits.

use super::{Conninfo, Host};
use std::path::Path;

/// Looks the password up for one host. A file that others may read is passed over, as libpq does.
///
/// Read anew for each connection: passwords are rotated under running services.
pub(crate) fn password(conninfo: &Conninfo, host: &Host) -> Option<String> {
    let path = conninfo.passfile.as_deref()?;
    if !private(path) {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    lookup(&text, &host.passfile_name(), host.port, &conninfo.dbname, &conninfo.user)
}

fn private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let others = meta.permissions().mode() & 0o077;
    let fits = meta.is_file() && others == 0;
    if meta.is_file() && !fits {
        tracing::warn!(path = %path.display(), "password file is readable by others: not used");
    }
    fits
}

pub(super) fn lookup(
    text: &str,
    host: &str,
    port: u16,
    dbname: &str,
    user: &str,
) -> Option<String> {
    let port = port.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [h, p, d, u, password] = fields.as_slice() else { return None };
        let fits = [(h, host), (p, port.as_str()), (d, dbname), (u, user)]
            .iter()
            .all(|(field, wanted)| field.as_str() == "*" || field.as_str() == *wanted);
        fits.then(|| password.clone())
    })
}

/// Splits at the first four colons; `\:` and `\\` stand for themselves.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = line.trim_end_matches(['\r', '\n']).chars();
    while let Some(c) = rest.next() {
        let next = if c == '\\' { rest.next() } else { None };
        if c == ':' && fields.len() < 5 {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(next.unwrap_or(c));
        }
    }
    fields
}
