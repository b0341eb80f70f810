//! The binary without servers: exit codes, what goes to which stream, secrets.

use crate::private::free_port;
use crate::relay::postrider;
use std::process::Output;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A pipeline of a database that nobody serves.
fn nobody() -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:{}\"\n[pipelines.a]\n\
         source.url = \"postgresql://postrider:hush-hush@127.0.0.1:{}/app\"\n\
         outbox.table = \"outbox\"\nsink.kind = \"discard\"\n",
        free_port(),
        free_port()
    )
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn help_is_a_result_and_wrong_usage_is_not() {
    let help = postrider("", &["--help"]);
    assert_eq!(code(&help), Some(0));
    assert!(text(&help.stdout).contains("Usage: postrider"));
    let wrong = postrider("", &["nonsense"]);
    assert_eq!(code(&wrong), Some(2));
    assert_eq!(text(&wrong.stdout), "");
    assert!(text(&wrong.stderr).contains("nonsense"));
}

#[test]
fn every_mistake_of_a_configuration_is_told_before_anything_is_touched() {
    for command in ["check", "setup", "run", "status"] {
        let output = postrider("[admin]\nlisten = 1\n[pipelines.a]\nmode = \"pull\"\n", &[command]);
        assert_eq!(code(&output), Some(2), "{command}");
        assert_eq!(text(&output.stdout), "");
        let errors = text(&output.stderr);
        for place in
            [":2:1: admin.listen: ", ":4:1: pipelines.a.mode: ", "a.source.url: is missing"]
        {
            assert!(errors.contains(place), "{place}\n{errors}");
        }
    }
}

#[test]
fn what_does_not_answer_is_not_well_and_no_secret_is_told() {
    let config = nobody();
    let commands =
        [("check", "could not"), ("setup", "could not"), ("status", "no Postrider answers at")];
    for (command, words) in commands {
        let output = postrider(&config, &[command]);
        assert_eq!(code(&output), Some(1), "{command}");
        let told = text(&output.stderr) + &text(&output.stdout);
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("hush"), "{told}");
    }
}
