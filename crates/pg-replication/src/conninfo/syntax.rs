//! The two ways a connection string is written (manual, 34.1.1): a URI, and `key = value` pairs.
//!
//! Gives pairs of name and text, and does not know what they mean. Errors say where, never what stood there: it may be
//! a piece of a password.

use super::ConninfoError;

/// Names and values, in the order written; a later one wins.
pub(super) type Pairs = Vec<(String, String)>;

/// Reads either way of writing.
pub(super) fn pairs(text: &str) -> Result<Pairs, ConninfoError> {
    let text = text.trim();
    for scheme in ["postgresql://", "postgres://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return uri(rest);
        }
    }
    let scheme = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    if text.split_once("://").is_some_and(|(name, _)| scheme(name)) {
        return Err(syntax("it begins with postgresql:// or is key=value pairs"));
    }
    key_value(text)
}

fn syntax(what: &'static str) -> ConninfoError {
    ConninfoError::Syntax { what }
}

/// `[user[:password]@][host[:port],…][/dbname][?name=value&…]`
fn uri(rest: &str) -> Result<Pairs, ConninfoError> {
    let mut pairs = Pairs::new();
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    // As libpq: the first `@` ends the login, so a literal one in the password must be written %40.
    let mut hosts_and_more = rest;
    if let Some((login, after)) = rest.split_once('@').filter(|(login, _)| !login.contains('/')) {
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        push(&mut pairs, "user", user)?;
        if let Some(password) = password {
            push(&mut pairs, "password", password)?;
        }
        hosts_and_more = after;
    } else if rest.get(..authority_end).is_some_and(|login| login.contains('@')) {
        return Err(syntax("the login of the URI is not well formed"));
    }
    let (before_query, query) =
        hosts_and_more.split_once('?').map_or((hosts_and_more, None), |(b, q)| (b, Some(q)));
    let (hosts, dbname) =
        before_query.split_once('/').map_or((before_query, None), |(h, d)| (h, Some(d)));
    if !hosts.is_empty() {
        uri_hosts(&mut pairs, hosts)?;
    }
    if let Some(dbname) = dbname.filter(|name| !name.is_empty()) {
        push(&mut pairs, "dbname", dbname)?;
    }
    for part in query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty())
    {
        let (name, value) =
            part.split_once('=').ok_or(syntax("a parameter of the URI has no \"=\""))?;
        let (name, value) = (percent_decoded(name)?, percent_decoded(value)?);
        // JDBC's spelling, which libpq takes too.
        if name == "ssl" && value == "true" {
            pairs.push(("sslmode".to_owned(), "require".to_owned()));
        } else {
            pairs.push((name, value));
        }
    }
    Ok(pairs)
}

fn push(pairs: &mut Pairs, name: &str, raw: &str) -> Result<(), ConninfoError> {
    pairs.push((name.to_owned(), percent_decoded(raw)?));
    Ok(())
}

fn uri_hosts(pairs: &mut Pairs, list: &str) -> Result<(), ConninfoError> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in list.split(',') {
        let (host, port) = if let Some(inner) = one.strip_prefix('[') {
            let (address, after) =
                inner.split_once(']').ok_or(syntax("an IPv6 address has no closing \"]\""))?;
            let port = match after.strip_prefix(':') {
                Some(port) => port,
                None if after.is_empty() => "",
                None => return Err(syntax("after an IPv6 address comes \":\" and the port")),
            };
            (address, port)
        } else {
            one.split_once(':').unwrap_or((one, ""))
        };
        hosts.push(percent_decoded(host)?);
        ports.push(percent_decoded(port)?);
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        pairs.push(("host".to_owned(), hosts.join(",")));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        pairs.push(("port".to_owned(), ports.join(",")));
    }
    Ok(())
}

fn percent_decoded(raw: &str) -> Result<String, ConninfoError> {
    let wrong = syntax("\"%\" is not followed by two hexadecimal digits (write %25 for itself)");
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong) };
        match u8::try_from(high * 16 + low) {
            Ok(0) | Err(_) => return Err(syntax("%00 is not allowed")),
            Ok(decoded) => bytes.push(decoded),
        }
    }
    String::from_utf8(bytes).map_err(|error| {
        drop(error);
        syntax("a percent-encoded part is not UTF-8")
    })
}

/// `name = value name = 'quoted value' …`, with `\` before any character to take it as it is.
fn key_value(text: &str) -> Result<Pairs, ConninfoError> {
    let mut pairs = Pairs::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.peek().is_none() {
            return Ok(pairs);
        }
        let mut name = String::new();
        while let Some(c) = rest.next_if(|c| !c.is_whitespace() && *c != '=') {
            name.push(c);
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.next() != Some('=') {
            return Err(syntax("a name is not followed by \"=\" (quote values with spaces)"));
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = rest.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match rest.next() {
                None if quoted => return Err(syntax("a quoted value is not closed")),
                None => break,
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some('\\') => value.extend(rest.next()),
                Some(c) => value.push(c),
            }
        }
        pairs.push((name, value));
    }
}
