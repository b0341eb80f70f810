//! `postrider doctor`: what the running process says, beside the findings of `check`.

use crate::await_that::SOON;
use crate::handover::drop_slot;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::Version;
use serde_json::Value;

/// The exit status, and the finding with this id: severity and description.
fn found(config: &str, id: &str) -> (Option<i32>, String, String) {
    let output = postrider(config, &["doctor", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let all: Vec<Value> =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(all.iter().any(|finding| finding["id"] == "server_version"), "as check: {said}");
    let one = all.iter().find(|finding| finding["id"] == id);
    let one = one.unwrap_or_else(|| panic!("no {id}: {said}"));
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (
        output.status.code(),
        text("severity"),
        format!("{} {} {}", text("what"), text("why"), one["fix"]),
    )
}

/// The configuration with the address at which the process listens.
fn listening(config: &str, relay: &Relay) -> String {
    let (host, port) = relay.admin_address();
    format!("{config}\n[admin]\nlisten = \"{host}:{port}\"\n")
}

#[tokio::test]
async fn doctor_says_whether_the_process_runs_and_what_it_does() {
    let pipeline = Pipeline::shared(Version::Pg18, "doctor").await;
    let config = &pipeline.config;
    let (code, severity, said) = found(config, "process");
    assert_eq!((code, severity.as_str()), (Some(1), "error"), "{said}");
    assert!(said.contains(" run\""), "{said}");

    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    // Without its address: what the database knows.
    let (code, severity, said) = found(config, "process");
    assert_eq!((code, severity.as_str()), (Some(0), "info"), "{said}");
    let config = listening(config, &relay);
    let (code, severity, said) = found(&config, "state");
    assert_eq!((code, severity.as_str()), (Some(0), "ok"), "{said}");
    assert!(said.contains("streams"), "{said}");
    let (_, severity, said) = found(&config, "failover_hosts");
    assert_eq!(severity, "info", "{said}");

    postrider_ok(&config, &["pause", &pipeline.name]);
    relay.await_state("paused", SOON).await;
    let (code, severity, said) = found(&config, "state");
    assert_eq!((code, severity.as_str()), (Some(0), "warning"), "{said}");
    assert!(said.contains("postrider resume"), "{said}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn doctor_names_the_halt_of_the_process() {
    let pipeline = Pipeline::shared(Version::Pg17, "doctorhalt").await;
    let config = pipeline.with_line("source", "on_slot_lost = \"halt\"");
    drop_slot(&pipeline).await;
    let relay = Relay::spawn(&config);
    relay.await_state("halted", SOON).await;
    let (code, severity, said) = found(&listening(&config, &relay), "state");
    assert_eq!((code, severity.as_str()), (Some(1), "error"), "{said}");
    assert!(said.contains("PR002"), "{said}");
    assert_eq!(relay.terminate(SOON).await.code, Some(3));
}
