//! `postrider check` for schema registries: whether one answers, accepts the login, and has the subjects. Nothing is
//! registered.

use super::registry::{Registry, RegistryProblem, RegistrySettings};
use postrider_core::finding::Finding;
use postrider_sinks::worker_thread;

/// Subjects that are asked for.
const SUBJECTS_MAX: usize = 50;

/// The findings.
pub(super) fn check(settings: RegistrySettings, subjects: &[String]) -> Vec<Finding> {
    let asked = worker_thread::ask(|| findings(settings, subjects));
    asked.unwrap_or_else(|unanswered| {
        vec![Finding::error("registry_unreachable", format!("the schema registry: {unanswered}"))]
    })
}

async fn findings(settings: RegistrySettings, subjects: &[String]) -> Vec<Finding> {
    let mut registry = Registry::new(settings);
    if let Err(problem) = registry.greet().await {
        return vec![of_problem(&problem, "")];
    }
    let mut findings =
        vec![Finding::ok("registry", format!("connected to schema registry {}", registry.url()))];
    for subject in subjects.iter().take(SUBJECTS_MAX) {
        findings.push(match registry.latest(subject).await {
            Ok(schema) => {
                let what = format!("subject {subject:?} has schema {}", schema.id.id);
                Finding::ok("schema", what)
            }
            Err(problem) => of_problem(&problem, subject),
        });
    }
    findings
}

fn of_problem(problem: &RegistryProblem, subject: &str) -> Finding {
    match problem {
        RegistryProblem::Away { reason, hint } => {
            Finding::error("registry_unreachable", reason.clone())
                .why(format!("nothing is published until it can be asked; {hint}"))
        }
        RegistryProblem::Refused(words) if subject.is_empty() => {
            // An older registry, which answers and does not know this request.
            Finding::ok("registry", format!("the schema registry answers: {words}"))
        }
        RegistryProblem::Refused(words) => {
            // Not a warning: the destinations have parking.dead_topic among them, which needs none.
            Finding::info("schema_missing", format!("subject {subject:?}: {words}")).why(
                "events of the subject are parked until it has a schema; records of parking.dead_topic need none",
            )
        }
    }
}
