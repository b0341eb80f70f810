//! The broker's side: away, not letting us in, and topics that would not take our records.

use super::acl::allow;
use super::patient::Patient;
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, free_port};
use crate::server::{Version, brokers};
use crate::sink_caller::alter;
use rdkafka_sys::rd_kafka_AclOperation_t as Operation;

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
        patient.fix(finding).await;
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

/// A broker that wants a login, and gives a right at a time.
#[tokio::test]
async fn a_refused_login_and_missing_rights_are_told_without_the_password() {
    let sasl = free_port();
    let kafka = PrivateKafka::start_on(|port, controller| {
        let listeners = format!(
            "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{sasl}"
        );
        format!(
            "listeners={listeners}\nadvertised.listeners={listeners}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
             SASL_PLAINTEXT:SASL_PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n\
             listener.name.sasl_plaintext.plain.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"right\";\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             super.users=User:ANONYMOUS\n"
        )
    })
    .await;
    let pipeline = Pipeline::to_broker(Version::Pg18, &kafka.brokers(), "check_sasl").await;
    let secured = |password: &str| {
        let properties = format!(
            "properties = {{ \"security.protocol\" = \"SASL_PLAINTEXT\", \"sasl.mechanism\" = \"PLAIN\", \
             \"sasl.username\" = \"relay\", \"sasl.password\" = \"{password}\" }}"
        );
        let brokers = format!("\"{}\"", kafka.brokers());
        pipeline.with_line("sink", &properties).replace(&brokers, &format!("\"127.0.0.1:{sasl}\""))
    };
    let patient = Patient::new(&secured("hush-hush"), &pipeline.url);
    let checked = patient.check(&[]);
    checked.expect("broker_login", "error");
    assert!(!format!("{checked:?}").contains("hush-hush"), "{checked}");

    patient.write(&secured("right"));
    // It may not even see the topic.
    let finding = patient.check(&[]).expect("topic_write", "error").to_string();
    assert!(
        finding.contains("kafka-acls.sh") && finding.contains("client.properties"),
        "{finding}"
    );
    let may = |operation| allow(&kafka.brokers(), "User:relay", &pipeline.topic.name, operation);
    may(Operation::RD_KAFKA_ACL_OPERATION_DESCRIBE);
    let checked = await_that("the topic is seen", SOON, || async {
        let checked = patient.check(&[]);
        let finding = checked.find("topic_write").ok_or("no finding")?;
        let seen = finding["what"].as_str().is_some_and(|what| what.contains("may not write"));
        if seen { Ok(checked) } else { Err("a right is yet to reach the broker") }
    })
    .await;
    checked.expect("topic_config", "info");
    may(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
    may(Operation::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS);
    let checked = await_that("all rights are there", SOON, || async {
        let checked = patient.check(&[]);
        let wanting = ["topic_write", "topic_config"].iter().any(|id| checked.find(id).is_some());
        if wanting { Err(checked.to_string()) } else { Ok(checked) }
    })
    .await;
    assert_eq!(checked.ids(&["error"]), Vec::<&str>::new(), "{checked}");
    assert_eq!(checked.code, Some(0), "{checked}");
}
