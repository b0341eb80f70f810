use super::{lookup, *};

fn with_env(text: &str, env: &[(&str, &str)]) -> Result<Conninfo, ConninfoError> {
    Conninfo::parse(text, &|name| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

fn parse(text: &str) -> Result<Conninfo, ConninfoError> {
    with_env(text, &[("USER", "ann"), ("HOME", "/home/ann")])
}

/// The settings that both forms of a connection string have, in one line.
fn line(conninfo: &Conninfo) -> String {
    format!(
        "{} at {} as {} password {}",
        conninfo.dbname,
        conninfo.hosts(),
        conninfo.user,
        conninfo.password.as_ref().map_or("none", Secret::reveal),
    )
}

#[test]
fn both_forms_are_parsed_as_libpq_does() {
    for (text, expected) in [
        ("", "ann at /var/run/postgresql/.s.PGSQL.5432 as ann password none"),
        ("postgresql://", "ann at /var/run/postgresql/.s.PGSQL.5432 as ann password none"),
        ("postgres://localhost", "ann at localhost:5432 as ann password none"),
        ("postgresql://localhost:5433/shop", "shop at localhost:5433 as ann password none"),
        ("postgresql://bob@h/shop", "shop at h:5432 as bob password none"),
        ("postgresql://bob:s%40cr%25t@h/shop", "shop at h:5432 as bob password s@cr%t"),
        ("postgresql://bob:a:b@h", "bob at h:5432 as bob password a:b"),
        ("postgresql://[::1]:6/d", "d at [::1]:6 as ann password none"),
        ("postgresql://a:1,b,[::2]:3/d", "d at a:1, b:5432, [::2]:3 as ann password none"),
        ("postgresql:///d?host=/tmp&port=7", "d at /tmp/.s.PGSQL.7 as ann password none"),
        ("postgresql://%2Ftmp%2Fx/d", "d at /tmp/x/.s.PGSQL.5432 as ann password none"),
        ("postgresql://h?user=eve&dbname=d", "d at h:5432 as eve password none"),
        ("host=h user=bob", "bob at h:5432 as bob password none"),
        (" host = h  dbname = 'my db' ", "my db at h:5432 as ann password none"),
        (r"password='it\'s \\ it' host=h", r"ann at h:5432 as ann password it's \ it"),
        (r"password=a\ b host=h", "ann at h:5432 as ann password a b"),
        ("host=a,b port=1,2", "ann at a:1, b:2 as ann password none"),
        ("host=a,b port=9", "ann at a:9, b:9 as ann password none"),
        ("host=n hostaddr=127.0.0.1", "ann at n (127.0.0.1):5432 as ann password none"),
        ("hostaddr=::1", "ann at [::1]:5432 as ann password none"),
        ("host=h host=i password=''", "ann at i:5432 as ann password none"),
        ("host=@abstract", "ann at @abstract/.s.PGSQL.5432 as ann password none"),
    ] {
        assert_eq!(parse(text).map(|c| line(&c)).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn errors_name_the_parameter_and_never_show_the_value() {
    for (text, expected) in [
        ("postgresql://h:x/", "connection parameter \"port\": expected a number from 1 to 65535"),
        ("host=h port=0", "connection parameter \"port\": expected a number from 1 to 65535"),
        (
            "host=a,b port=1,2,3",
            "connection parameter \"port\": expected one port, or as many as there are hosts",
        ),
        (
            "hostaddr=example.org",
            "connection parameter \"hostaddr\": expected IP addresses (names belong into \"host\")",
        ),
        ("sslmod=require", "unknown connection parameter \"sslmod\", did you mean \"sslmode\"?"),
        ("colour=red", "unknown connection parameter \"colour\""),
        (
            "sslmode=on",
            "connection parameter \"sslmode\": expected disable, allow, prefer, require, verify-ca \
             or verify-full",
        ),
        (
            "sslmode=require sslrootcert=system",
            "connection parameter \"sslmode\": expected verify-full, since sslrootcert is \
             \"system\"",
        ),
        (
            "sslcrl=/x",
            "connection parameter \"sslcrl\" can't be used: revocation lists are not supported",
        ),
        (
            "connect_timeout=soon",
            "connection parameter \"connect_timeout\": expected whole seconds",
        ),
        (
            "postgresql://u:hunter2%zz@h",
            "the connection string is not well formed: \"%\" is not followed by two hexadecimal \
             digits (write %25 for itself)",
        ),
        (
            "password=correct horse battery",
            "the connection string is not well formed: a name is not followed by \"=\" (quote \
             values with spaces)",
        ),
        (
            "password='hunter2",
            "the connection string is not well formed: a quoted value is not closed",
        ),
        (
            "mysql://root:hunter2@h/shop",
            "the connection string is not well formed: it begins with postgresql:// or is \
             key=value pairs",
        ),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
        assert!(!format!("{error:?}{error}").contains("hunter2"));
    }
    assert_eq!(with_env("host=h", &[]).unwrap_err(), ConninfoError::Missing { key: "user" });
}

#[test]
fn the_environment_fills_what_is_not_written() {
    let env = [
        ("PGHOST", "envhost"),
        ("PGPORT", "77"),
        ("PGUSER", "envuser"),
        ("PGPASSWORD", "envpass"),
        ("PGDATABASE", "envdb"),
        ("PGSSLMODE", "verify-full"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGCONNECT_TIMEOUT", "1"),
    ];
    let conninfo = with_env("user=me", &env).unwrap();
    assert_eq!(line(&conninfo), "envdb at envhost:77 as me password envpass");
    assert_eq!(conninfo.ssl.mode, SslMode::VerifyFull);
    assert_eq!(conninfo.target_session_attrs, TargetSessionAttrs::ReadWrite);
    assert_eq!(conninfo.connect_timeout, Duration::from_secs(2), "1 counts as 2");
    let error = with_env("user=me", &[("PGSSLCRL", "/x")]).unwrap_err();
    assert!(matches!(error, ConninfoError::Unsupported { key: "sslcrl", .. }));
}

#[test]
fn without_sslmode_tls_is_used_if_offered() {
    assert_eq!(parse("host=h").unwrap().ssl.mode, SslMode::Prefer);
    assert_eq!(parse("sslrootcert=system").unwrap().ssl.mode, SslMode::VerifyFull);
    assert_eq!(parse("postgresql://h?ssl=true").unwrap().ssl.mode, SslMode::Require);
}

#[test]
fn debug_shows_no_password() {
    let conninfo = parse("postgresql://bob:hunter2@h/d").unwrap();
    assert!(!format!("{conninfo:?}").contains("hunter2"));
    assert!(line(&conninfo).ends_with("hunter2"));
}

#[test]
fn the_first_matching_line_of_the_password_file_counts() {
    let text = "# comment\nh:5432:d:bob:one\n*:*:*:bob:t\\:w\\\\o\nlocalhost:*:*:*:three\n";
    for (host, user, expected) in [
        ("h", "bob", Some("one")),
        ("i", "bob", Some("t:w\\o")),
        ("localhost", "eve", Some("three")),
        ("h", "eve", None),
    ] {
        assert_eq!(lookup(text, host, 5432, "d", user).as_deref(), expected, "{host} {user}");
    }
}

#[test]
fn any_text_is_a_connection_string_or_an_error() {
    let memory = fuzzing::Memory { base: 64 << 10, each: 200 };
    fuzzing::hammer(&fuzzing::lines("conninfo"), memory, |input| {
        let text = String::from_utf8_lossy(input);
        match Conninfo::parse(&text, &|_| None) {
            Ok(conninfo) => {
                assert!((1..=HOSTS_MAX).contains(&conninfo.hosts.len()));
                assert!(!format!("{conninfo:?}").is_empty());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        drop(masked(&text, Some("***")));
    });
}
