//! A ledger file as the other side.

use super::*;
use crate::server::{Database, brokers};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const HEAD: &str = "{\"ledger\": \"postrider\", \"version\": 1}\n";

#[tokio::test]
async fn a_ledger_is_compared_without_a_database() {
    let pipeline = published(Version::Pg17, "verify_ledger", 40).await;
    let records = pipeline.topic.read_all().await;
    let mut lines = HEAD.to_owned();
    let mut ids: Vec<u32> =
        records.iter().map(|record| record.header("id").unwrap().parse().unwrap()).collect();
    ids.sort_unstable();
    for id in &ids {
        let key =
            records.iter().find(|record| record.header("id") == Some(id.to_string().as_str()));
        let key = key.and_then(ReadRecord::key_text).expect("a key");
        writeln!(lines, "{{\"id\": \"{id}\", \"key\": \"{key}\"}}").expect("a String");
    }
    writeln!(lines, "{{\"id\": \"900\", \"outcome\": \"rolled_back\"}}").expect("a String");
    writeln!(lines, "{{\"id\": \"901\", \"outcome\": \"unknown\"}}").expect("a String");
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("ledger");
    fs::write(&file, &lines).expect("a ledger");
    let args = ["--ledger", file.to_str().expect("a path")];
    // No database answers there.
    let config = pipeline.config.replace(&pipeline.url, "postgresql://nobody@127.0.0.1:1/none");
    assert_ne!(config, pipeline.config);
    let (code, value) = verify(&config, &args);
    let expected = counts(&[("published", 40), ("rolled_back", 1), ("outcome_unknown", 1)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    assert_eq!((&value["source"]["kind"], &value["order"]), (&"ledger".into(), &"source".into()));

    // An event that was rolled back is in the topic, one that was committed is not, and two have changed places.
    let (first, second) = neighbours(&records, 5);
    let first = records[first].header("id").unwrap().to_owned();
    let second = records[second].header("id").unwrap().to_owned();
    let planted = lines
        .replace("\"id\": \"901\", \"outcome\": \"unknown\"", "\"id\": \"902\"")
        .replacen("{\"id\": \"1\",", "{\"outcome\": \"rolled_back\", \"id\": \"1\",", 1)
        .replace(&format!("\"{first}\", "), "\"swap\", ")
        .replace(&format!("\"{second}\", "), &format!("\"{first}\", "))
        .replace("\"swap\", ", &format!("\"{second}\", "));
    fs::write(&file, planted).expect("a ledger");
    let (code, value) = verify(&config, &args);
    assert_eq!(code, Some(1), "{value:#}");
    let expected =
        [("published", 40), ("rolled_back", 1), ("lost", 1), ("unexpected", 1), ("swapped", 1)];
    assert_eq!(found(&value), counts(&expected), "{value:#}");
    assert_eq!(value["examples"]["lost"][0]["id"], "902");
    assert_eq!(value["examples"]["unexpected"][0]["id"], "1");
}

#[tokio::test]
async fn ledger_of_a_demo_balances_with_its_topic() {
    let database = Database::create(Version::Pg18, "verify_demo").await;
    let (url, brokers, dir) = (database.url(), brokers(), TempDir::new().expect("a directory"));
    let file = dir.path().join("ledger");
    let file = file.to_str().expect("a path").to_owned();
    let (demo_url, demo_brokers, ledger) = (url.clone(), brokers.clone(), file.clone());
    let demo = tokio::task::spawn_blocking(move || {
        Command::new(env!("CARGO_BIN_EXE_postrider"))
            .args(["demo", "--seconds", "3", "--rate", "200", "--kill", "1"])
            .args(["--brokers", &demo_brokers, "--ledger", &ledger])
            .env("POSTRIDER_DEMO_URL", &demo_url)
            .output()
            .expect("postrider")
    });
    let output = demo.await.expect("a thread");
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{page}{}", String::from_utf8_lossy(&output.stderr));
    let kept = page.split("kept topic ").nth(1).and_then(|rest| rest.split(',').next());
    let topic = Topic { brokers: brokers.clone(), name: kept.expect("a topic").to_owned() };
    let config = format!(
        "[pipelines.p]\nsource.url = \"{url}\"\noutbox.table = \"public.outbox\"\nsink.brokers = \"{brokers}\"\n"
    );
    let (code, value) = verify(&config, &["--ledger", &file]);
    let findings = found(&value);
    assert_eq!(code, Some(0), "{value:#}");
    assert!(findings["published"] > 100, "{value:#}");
    assert_eq!(findings.get("lost"), None);
    // One line less of what was committed: its record has no event.
    let text = fs::read_to_string(&file).expect("a ledger");
    let first = text.lines().position(|line| line.contains("\"committed\"")).expect("an event");
    let without = text.lines().enumerate().filter(|(at, _)| *at != first).map(|(_, line)| line);
    let without: Vec<&str> = without.collect();
    fs::write(&file, without.join("\n")).expect("a ledger");
    let (_, value) = verify(&config, &["--ledger", &file]);
    assert!(found(&value)["not_in_source"] >= 1, "{value:#}");
    topic.delete().await;
}
