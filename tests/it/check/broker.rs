//! The broker's side: away, not letting us in, and topics that would not take our records.

use super::patient::Patient;
use crate::pipeline::Pipeline;
use crate::private::free_port;
use crate::server::{Version, brokers};
use crate::sink_caller::alter;

#[tokio::test]
async fn what_a_topic_would_refuse_is_told_and_mended() {
    let pipeline = Pipeline::shared(Version::Pg17, "check_topic").await;
    let patient = Patient::new(&pipeline.with_line("sink", ""), &pipeline.url);
    for (setting, value, id, severity) in [
        ("cleanup.policy", "compact", "topic_compact", "warning"),
        ("max.message.bytes", "5000", "topic_size", "warning"),
        ("min.insync.replicas", "2", "topic_min_insync", "error"),
    ] {
        alter(&pipeline.topic, setting, value).await;
        let checked = patient.check(&[]);
        let finding = checked.expect(id, severity);
        assert_eq!(checked.code, Some(i32::from(severity == "error")), "{checked}");
        patient.mend(finding).await;
        assert!(patient.check(&[]).find(id).is_none());
    }
    alter(&pipeline.topic, "cleanup.policy", "compact").await;
    patient.write(&pipeline.with_line("route", "key = \"\""));
    patient.check(&[]).expect("topic_compact", "error");
}

#[tokio::test]
async fn a_broker_that_is_away_or_speaks_otherwise_is_told() {
    let pipeline = Pipeline::shared(Version::Pg15, "check_broker").await;
    let nobody = format!("127.0.0.1:{}", free_port());
    let patient = Patient::new(&pipeline.config.replace(&brokers(), &nobody), &pipeline.url);
    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(1));
    let finding = checked.expect("broker_unreachable", "error");
    assert!(finding["what"].as_str().is_some_and(|what| what.contains(&nobody)), "{finding:#}");
    // The broker does not speak TLS there.
    let tls = "properties = { \"security.protocol\" = \"SSL\" }";
    patient.write(&pipeline.with_line("sink", tls));
    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(1));
    let told = ["broker_tls", "broker_unreachable"];
    assert!(told.iter().any(|id| checked.find(id).is_some()), "{checked}");
}
