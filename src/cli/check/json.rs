//! Findings for programs: an array, one object a finding, with fields that stay.

use super::Report;
use serde_json::{Value, json};

pub(super) fn render(reports: &[Report]) -> String {
    let findings: Vec<Value> = reports
        .iter()
        .flat_map(|report| {
            report.findings.iter().map(|finding| {
                json!({
                    "pipeline": report.pipeline,
                    "id": finding.id,
                    "severity": finding.severity,
                    "what": finding.what,
                    "why": finding.why,
                    "mend": finding.mend,
                })
            })
        })
        .collect();
    format!("{:#}", Value::Array(findings))
}
