//! What `check` says of a column that the layout needs and the table lacks: another column where one may be meant, and
//! otherwise that only the application can fill it. No line of it invents what an event says.

use super::patient::{Patient, fixes};
use crate::pipeline::Pipeline;
use crate::server::Version;
use serde_json::Value;

/// The finding of each missing column, by the column.
fn missing(patient: &Patient, column: &str) -> Value {
    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(1), "{checked}");
    let what = format!("has no column \"{column}\"");
    let found = checked.findings.iter().filter(|finding| finding["id"] == "column_missing");
    let found =
        found.into_iter().find(|one| one["what"].as_str().unwrap_or_default().ends_with(&what));
    let finding = found.unwrap_or_else(|| panic!("{what}: {checked}")).clone();
    assert_eq!(finding["severity"], "error", "{finding}");
    finding
}

fn why(finding: &Value) -> &str {
    finding["why"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn column_that_only_the_application_can_fill_is_never_invented() {
    let pipeline = Pipeline::shared(Version::Pg17, "check_lacks").await;
    let patient = Patient::new(&pipeline.config, &pipeline.url);
    let needed = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    let drops = needed.map(|column| format!("drop column {column}")).join(", ");
    pipeline.sql.batch(&format!("alter table outbox {drops}")).await;
    for column in needed {
        let finding = missing(&patient, column);
        assert!(fixes(&finding).is_empty(), "there is no line that would be true: {finding}");
        for part in [
            "without it no row can be published (PR009)",
            &format!("pipelines.{}.outbox.columns.{column}: ", pipeline.name),
            "every column of the table has another role",
            "Otherwise the application must add the column and write it",
        ] {
            assert!(why(&finding).contains(part), "{part}: {finding}");
        }
        let text = finding.to_string().to_ascii_uppercase();
        assert!(!text.contains("ALTER TABLE") && !text.contains("DEFAULT"), "{finding}");
    }
    // A column that has no role is named, whatever it may be.
    pipeline.sql.batch("alter table outbox add \"Colour\" text, add weight int").await;
    for column in needed {
        let finding = missing(&patient, column);
        assert!(why(&finding).contains("it may be one of \"Colour\", \"weight\""), "{finding}");
        assert!(fixes(&finding).is_empty(), "{finding}");
    }
}

/// Another column that may be meant is proposed as a line of the file, and the line is right.
#[tokio::test]
async fn column_of_another_name_is_proposed_and_one_that_is_not_needed_is_left_out() {
    let cases = [
        ("alter table outbox rename event_type to kind", "event_type", "kind"),
        ("alter table outbox rename aggregate_id to agregate_id", "aggregate_id", "agregate_id"),
        ("alter table outbox rename payload to stuff", "payload", "stuff"),
        // Layout sqlgarden would fit now, and that of adr30 has another topic.
        ("alter table outbox drop column headers", "headers", ""),
        ("alter table outbox drop column created_at", "created_at", ""),
    ];
    for (change, column, proposed) in cases {
        let pipeline = Pipeline::shared(Version::Pg16, "check_other").await;
        let patient = Patient::new(&pipeline.config, &pipeline.url);
        pipeline.sql.batch(change).await;
        let finding = missing(&patient, column);
        let [fix] = fixes(&finding) else { panic!("one line: {finding}") };
        assert_eq!((&fix["kind"], &fix["restart"]), (&"config".into(), &false.into()), "{finding}");
        let line = fix["line"].as_str().unwrap_or_default();
        assert!(line.ends_with(&format!(" = \"{proposed}\"")), "{finding}");
        patient.fix(&finding).await;
        let well = patient.check(&[]);
        assert!(well.find("column_missing").is_none(), "{change}: {well}");
        assert_eq!(well.code, Some(0), "{change}: {well}");
    }
}
