//! TLS: certificates are checked as `sslmode` asks, a client may log in by its own, and a stream runs over it.

use super::*;

#[tokio::test]
async fn certificates_are_checked_as_sslmode_asks() {
    let guarded = Guarded::start(Version::Pg15).await;
    let (root, other) = (guarded.file("root.crt"), guarded.file("other.crt"));
    let (cert, key) = (guarded.file("client.crt"), guarded.file("client.key"));
    let tls = Some(SourceErrorKind::Tls);
    let settings = Some(SourceErrorKind::Settings);
    for (login, refused) in [
        (format!("sslmode=verify-full sslrootcert={root}"), None),
        (format!("sslmode=verify-full sslrootcert={root} host=db.test"), None),
        (format!("sslmode=verify-full sslrootcert={root} host=elsewhere.test"), tls.clone()),
        (format!("sslmode=verify-ca sslrootcert={root} host=elsewhere.test"), None),
        (format!("sslmode=verify-ca sslrootcert={other}"), tls.clone()),
        (format!("sslmode=verify-full sslrootcert={other}"), tls.clone()),
        (format!("sslmode=require sslrootcert={other}"), tls.clone()),
        ("sslmode=require".to_owned(), None),
        ("sslmode=verify-full".to_owned(), settings.clone()),
        ("sslmode=verify-full sslrootcert=/nowhere".to_owned(), settings.clone()),
        (format!("sslmode=require ssl_min_protocol_version=TLSv1.3 sslcert={cert}"), settings),
        ("sslmode=require ssl_max_protocol_version=TLSv1.2".to_owned(), None),
    ] {
        let error = guarded.log_in(&format!("user=postgres {login}")).await.err();
        assert_eq!(error.as_ref().map(|e| e.kind().clone()), refused, "{login}: {error:?}");
    }
    let certified = format!("user=certified sslmode=verify-full sslrootcert={root}");
    let with_key = format!("{certified} sslcert={cert} sslkey={key}");
    guarded.log_in(&with_key).await.expect("a client certificate is enough");
    let stranger = [guarded.file("other.crt"), guarded.file("other.key")];
    let stranger = format!("{certified} sslcert={} sslkey={}", stranger[0], stranger[1]);
    let refused = guarded.log_in(&stranger).await.expect_err("another authority's");
    assert_eq!(*refused.kind(), SourceErrorKind::Tls, "{refused}");
    let without = guarded.log_in(&certified).await.expect_err("no certificate");
    assert_eq!(without.sqlstate().map(|s| s.to_string()).as_deref(), Some("28000"));
}

#[tokio::test]
async fn a_certificate_that_is_its_own_root_is_enough() {
    let guarded = Guarded::start(Version::Pg15).await;
    openssl(
        guarded.certificates.path(),
        "req -x509 -newkey rsa:2048 -nodes -keyout own.key -out own.crt -days 2 -subj /CN=own \
         -addext subjectAltName=IP:127.0.0.1",
    );
    for file in ["own.crt", "own.key"] {
        let to = guarded.server.data().join(file);
        fs::copy(guarded.file(file), &to).expect("a copy");
        guarded.server.hand_over(&to);
    }
    let client = guarded.server.connect().await;
    client.batch("alter system set ssl_cert_file = 'own.crt'").await;
    client.batch("alter system set ssl_key_file = 'own.key'").await;
    guarded.server.reload();
    let own = guarded.file("own.crt");
    let login = format!("user=scram {PASSWORD} channel_binding=require sslrootcert={own}");
    let full = format!("{login} sslmode=verify-full");
    await_that("the new certificate", SOON, || guarded.log_in(&full)).await;
    let elsewhere = format!("{login} host=elsewhere.test");
    guarded.log_in(&format!("{elsewhere} sslmode=verify-ca")).await.expect("the name is not asked");
    let error = guarded.log_in(&format!("{elsewhere} sslmode=verify-full")).await;
    assert_eq!(*error.expect_err("another name").kind(), SourceErrorKind::Tls);
}

#[tokio::test]
async fn a_stream_runs_over_tls_too() {
    let guarded = Guarded::start(Version::Pg18).await;
    let client = guarded.server.connect().await;
    outbox(&client, "s").await;
    let root = guarded.file("root.crt");
    let url = guarded.tcp(&format!(
        "user=tls_only {PASSWORD} sslmode=verify-full sslrootcert={root} sslnegotiation=direct"
    ));
    let mut wal = stream(&url, &start("s")).await.expect("a stream");
    let sql = "insert into outbox select repeat('x', 1000) from generate_series(1, 10000)";
    client.batch(sql).await;
    let mut seen = Seen::default();
    seen.read(&mut wal, false, |seen| !seen.ends.is_empty()).await;
    assert_eq!((seen.rows, seen.bytes), (10_000, 10_000_000));
    wal.confirm(seen.last_end());
    wal.stop(SOON).await.expect("an end in good order");
    assert_eq!(confirmed(&client, "s").await, seen.last_end().lsn());
}
