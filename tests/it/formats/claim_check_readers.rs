//! The programs of docs/formats/claim-check.md: they read the payloads of records that a pipeline has published, and
//! refuse what is not the payload.

use super::claims::{Claims, text};
use crate::await_that::SOON;
use crate::private::PrivateSeaweed;
use crate::programs::{CLAIMS, Language, root};
use crate::server::Version;
use std::path::Path;
use std::process::{Output, Stdio};

/// Runs a program with these arguments.
async fn read(language: Language, claims: &Claims, arguments: &[&str]) -> Output {
    let mut command = CLAIMS.consumer(language);
    command.args(arguments).stdin(Stdio::null());
    command.env("AWS_ENDPOINT_URL", claims.store.endpoint()).env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", "reader").env("AWS_DEFAULT_REGION", "us-east-1");
    command.env("AWS_SECRET_ACCESS_KEY", PrivateSeaweed::SECRET);
    let run = move || command.output().expect("the program");
    tokio::task::spawn_blocking(run).await.expect("an end")
}

#[tokio::test]
async fn programs_of_the_page_read_payloads_and_refuse_others() {
    let claims = Claims::start(Version::Pg17, "claims_readers").await;
    let relay = claims.run();
    claims.insert("a", &text("large", 3_000_000)).await;
    let found = claims.await_payloads(1).await;
    let (record, payload) = &found[0];
    let header = |name: &str| record.header(name).expect("a reference").to_owned();
    let names = ["claim-check-url", "claim-check-size", "claim-check-sha256"];
    let [url, size, digest] = names.map(header);
    let key = url.strip_prefix("s3://shop/").expect("the bucket");
    for language in Language::ALL {
        CLAIMS.build(language).await;
        let output = read(language, &claims, &[&url, &size, &digest]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{language:?}: {said}");
        assert!(output.stdout == *payload, "{language:?}: another payload");
        // A size or a digest that is not that of the object.
        for arguments in [[&url, "3", &digest], [&url, &size, "abc"]] {
            let output = read(language, &claims, &arguments).await;
            assert!(!output.status.success(), "{language:?}: {arguments:?}");
            assert!(output.stdout.is_empty(), "{language:?}: {arguments:?}");
        }
    }
    claims.store.delete("shop", key).await;
    for language in Language::ALL {
        let output = read(language, &claims, &[&url, &size, &digest]).await;
        assert!(!output.status.success() && output.stdout.is_empty(), "{language:?}");
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What the page shows is what is run.
#[test]
fn page_shows_the_programs_that_are_tested() {
    let text = |path: &str| std::fs::read_to_string(root().join(Path::new(path))).expect("a file");
    let page = text("docs/formats/claim-check.md");
    for (language, name) in [
        ("java", "Reader.java"),
        ("python", "reader.py"),
        ("go", "go/main.go"),
        ("typescript", "reader.ts"),
        ("rust", "reader.rs"),
    ] {
        let program = text(&format!("tests/consumers/claims/{name}"));
        let shown = program.split_once("// docs: begin\n").map_or(&*program, |(_, shown)| shown);
        assert!(
            page.contains(&format!("```{language}\n{shown}```\n")),
            "docs/formats/claim-check.md shows {name} as it is"
        );
    }
}
