//! URLs: the receiver's, and those of destinations, with the rules for their names. And the addresses that events must
//! not choose.

use hyper::Uri;
use postrider_core::sink::NameRule;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

const PATH_BYTES_MAX: usize = 1_000;
const URL_BYTES_MAX: usize = 2_000;

/// What the topic of an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TopicUse {
    /// Segments of the path below the URL.
    Path,
    /// Nothing: all events go to one URL.
    Ignore,
    /// The whole URL.
    Url,
}

impl TopicUse {
    pub(super) const WORDS: [&str; 3] = ["path", "ignore", "url"];
    const ALL: [Self; 3] = [Self::Path, Self::Ignore, Self::Url];

    pub(super) fn of(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or(Self::Path)
    }

    pub(super) fn name(self) -> &'static str {
        let index = Self::ALL.iter().position(|word| *word == self);
        index.and_then(|index| Self::WORDS.get(index)).copied().unwrap_or_default()
    }

    /// The rule for names of destinations.
    pub(super) const fn names(self) -> NameRule {
        match self {
            Self::Path => PATHS,
            Self::Ignore => NAMES,
            Self::Url => URLS,
        }
    }
}

const PATHS: NameRule = NameRule {
    allows: is_path,
    owner: "the HTTP sink",
    words: "segments with / between them, none of them empty, . or .., of at most 1,000 bytes",
};

const NAMES: NameRule = NameRule { owner: "the HTTP sink", ..NameRule::ANY };

const URLS: NameRule = NameRule {
    allows: is_url,
    owner: "the HTTP sink",
    words: "a URL with http or https and a host, without user, fragment and white space, of at most 2,000 bytes",
};

/// `url`: scheme, host and path, without query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Base {
    uri: Uri,
}

impl Base {
    /// # Errors
    /// What is wrong with it, as a fragment without its text, which may have a password.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let uri = parse(text)?;
        if uri.query().is_some() {
            return Err("has a query, and only a path can be continued by the topic");
        }
        Ok(Self { uri })
    }

    /// Without a slash at the end.
    pub(super) fn shown(&self) -> String {
        self.uri.to_string().trim_end_matches('/').to_owned()
    }

    /// Whether the host is this machine.
    pub(super) fn is_of_this_machine(&self) -> bool {
        self.uri.host() == Some("localhost")
            || literal_address(&self.uri).is_some_and(|address| address.is_loopback())
    }

    /// The URL as it is.
    fn whole(&self) -> Uri {
        self.uri.clone()
    }
}

/// Where requests of a destination go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) uri: Uri,
    /// Scheme, host and port.
    pub(super) host: Rc<str>,
}

impl Target {
    /// None if the topic is no name of a destination.
    pub(super) fn of((topic_use, base): (TopicUse, Option<&Base>), topic: &str) -> Option<Self> {
        let uri = match (topic_use, base) {
            (TopicUse::Url, _) => parse(topic).ok()?,
            (TopicUse::Ignore, Some(base)) => base.whole(),
            (TopicUse::Path, Some(base)) => {
                let path = encoded_path(topic)?;
                format!("{}/{path}", base.shown()).parse().ok()?
            }
            (TopicUse::Path | TopicUse::Ignore, None) => return None,
        };
        Self::at(uri)
    }

    /// The receiver itself.
    pub(super) fn base(base: &Base) -> Option<Self> {
        Self::at(base.whole())
    }

    fn at(uri: Uri) -> Option<Self> {
        let host = format!("{}://{}", uri.scheme_str()?, uri.authority()?);
        Some(Self { uri, host: host.into() })
    }
}

/// A URL that requests may go to.
///
/// # Errors
/// What is wrong with it, as a fragment.
pub(super) fn parse(text: &str) -> Result<Uri, &'static str> {
    if text.len() > URL_BYTES_MAX {
        return Err("has more than 2,000 bytes");
    }
    if text.contains('#') || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has white space, a fragment, or characters that are not encoded");
    }
    let uri: Uri = text.parse().map_err(|_invalid| "is no URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("does not begin with http:// or https://");
    }
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') {
        return Err("has a user: logins have keys of their own");
    }
    // The parser takes any text for a port.
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or(":");
    let has_port = port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if authority.host().is_empty() || !(port.is_empty() || has_port) {
        return Err("has no host, or a port that is no number");
    }
    if uri.path().split('/').any(|segment| matches!(decoded_dots(segment), "." | "..")) {
        return Err("has a path with . or ..");
    }
    Ok(uri)
}

/// `.` and `..`, also where their dots are encoded.
fn decoded_dots(segment: &str) -> &str {
    match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
        "." => ".",
        ".." => "..",
        _ => segment,
    }
}

/// Whether a topic can be a URL.
pub(super) fn is_url(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| parse(name).is_ok())
}

/// Whether a topic can be continued as a path.
pub(super) fn is_path(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| encoded_path(name).is_some())
}

/// The segments of a path, percent-encoded. None if one is empty, or leads elsewhere.
fn encoded_path(topic: &str) -> Option<String> {
    let has_bad = topic.split('/').any(|segment| matches!(segment, "" | "." | ".."));
    if has_bad || topic.len() > PATH_BYTES_MAX {
        return None;
    }
    let mut path = String::with_capacity(topic.len());
    for byte in topic.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            path.push(char::from(byte));
        } else {
            push_encoded(&mut path, byte);
        }
    }
    Some(path)
}

/// Adds `%XX`.
pub(super) fn push_encoded(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    text.push('%');
    for digit in [byte >> 4, byte & 15] {
        text.push(DIGITS.get(usize::from(digit)).copied().unwrap_or('0'));
    }
}

/// The address in a URL's host, if it is one.
pub(super) fn literal_address(uri: &Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether an address belongs to this machine, its link or a private network, or to no host at all.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    // This network; shared addresses (RFC 6598); protocol assignments; benchmarks; class E.
    let reserved = first == 0
        || (first == 100 && (64..128).contains(&second))
        || (first == 192 && second == 0 && third == 0)
        || (first == 198 && (18..20).contains(&second))
        || first >= 240;
    reserved
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let [first, second, ..] = segments;
    let low = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    // Addresses that lead to one of IPv4: mapped and compatible, NAT64 (the local prefix too), 6to4.
    let inner = match segments {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, lower]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, lower]
        | [0x2002, high, lower, ..] => Some(low(high, lower)),
        _ => None,
    };
    inner.is_some_and(is_private_v4)
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || (first & 0xfe00) == 0xfc00
        || (first & 0xffc0) == 0xfe80
        || (first & 0xffc0) == 0xfec0
        || (first, second, segments[2]) == (0x64, 0xff9b, 1)
        // Teredo, and documentation.
        || (first, second) == (0x2001, 0)
        || (first, second) == (0x2001, 0xdb8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_continues_the_path_and_never_leaves_it() {
        for (topic, path) in [
            ("orders", Some("orders")),
            ("a/b", Some("a/b")),
            ("a b", Some("a%20b")),
            ("a\r\nHost: x", Some("a%0D%0AHost%3A%20x")),
            ("é", Some("%C3%A9")),
            ("%2e%2e", Some("%252e%252e")),
            ("a?b#c", Some("a%3Fb%23c")),
            ("a\\..\\b", Some("a%5C..%5Cb")),
            ("user@host:1", Some("user%40host%3A1")),
            ("...", Some("...")),
            ("", None),
            ("/", None),
            ("//host/a", None),
            ("a//b", None),
            ("a/", None),
            ("..", None),
            ("a/../b", None),
            ("./a", None),
        ] {
            assert_eq!(encoded_path(topic).as_deref(), path, "{topic:?}");
        }
        assert!(is_path("x".repeat(1_000).as_bytes()) && !is_path("x".repeat(1_001).as_bytes()));
        assert!(!is_path(b"a\xff"));
    }

    #[test]
    fn urls_have_a_host_and_nothing_hidden() {
        for url in ["http://a", "https://a.example:8443/b/c?d=e", "http://[::1]:80/", "HTTP://a/"] {
            assert!(is_url(url.as_bytes()), "{url}");
        }
        for url in [
            "",
            "a",
            "/a",
            "//a/b",
            "ftp://a/b",
            "file:///etc/passwd",
            "http://",
            "http:///a",
            "http://u:p@a/",
            "http://a@b/",
            "http://a:x/",
            "http://a:/",
            "http://a:99999/",
            "http://a/ b",
            "http://a/#b",
            "http://a/\r\nb",
            "http://a/../b",
            "http://a/%2e%2E/b",
            "http://é/",
        ] {
            assert!(!is_url(url.as_bytes()), "{url:?}");
        }
        assert!(Base::parse("http://a/b?c").is_err());
        assert_eq!(Base::parse("http://a:1/b/").unwrap().shown(), "http://a:1/b");
        assert_eq!(Base::parse("http://a").unwrap().shown(), "http://a");
    }

    #[test]
    fn addresses_that_events_must_not_choose() {
        for private in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001:db8::1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2a00::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
