//! A configuration that is checked, and mended by the lines that `check` prints: in the database as an administrator,
//! in the file, and by a shell in which `postrider` is the binary under test.

use crate::server::{Client, brokers};
use crate::sink_caller::alter;
use crate::topic::{Topic, create_topic};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A configuration file in a directory of its own.
pub(crate) struct Patient {
    dir: TempDir,
    /// The administrator's login.
    admin: String,
}

/// What one look said.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) code: Option<i32>,
    pub(crate) findings: Vec<Value>,
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{} {}: {}", finding["severity"], finding["id"], finding["what"])?;
        }
        write!(f, "exit {:?}", self.code)
    }
}

impl Checked {
    /// The finding of this name, that is not about something being well.
    pub(crate) fn find(&self, id: &str) -> Option<&Value> {
        self.findings.iter().find(|finding| finding["id"] == id && finding["severity"] != "ok")
    }

    /// Names of what is of one of these severities.
    pub(crate) fn ids(&self, severities: &[&str]) -> Vec<&str> {
        let is =
            |finding: &&Value| severities.iter().any(|severity| finding["severity"] == *severity);
        self.findings.iter().filter(is).filter_map(|finding| finding["id"].as_str()).collect()
    }

    /// The finding, which must be of this severity and say something.
    pub(crate) fn expect(&self, id: &str, severity: &str) -> &Value {
        let finding = self.find(id).unwrap_or_else(|| panic!("no {id}: {self}"));
        assert_eq!(finding["severity"], severity, "{finding:#}");
        assert!(finding["what"].as_str().is_some_and(|what| what.len() > 5), "{finding:#}");
        assert!(finding["why"].as_str().is_some_and(|why| why.len() > 5), "{finding:#}");
        finding
    }
}

/// The lines that fix a finding.
pub(crate) fn fixes(finding: &Value) -> &[Value] {
    finding["fix"].as_array().expect("an array")
}

impl Patient {
    pub(crate) fn new(config: &str, admin: &str) -> Self {
        let patient = Self { dir: TempDir::new().expect("a directory"), admin: admin.to_owned() };
        patient.write(config);
        patient
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("postrider.toml")
    }

    pub(crate) fn write(&self, config: &str) {
        fs::write(self.file(), config).expect("a configuration");
    }

    pub(crate) fn config(&self) -> String {
        fs::read_to_string(self.file()).expect("a configuration")
    }

    /// `postrider check --json`, and what it said.
    pub(crate) fn check(&self, more: &[&str]) -> Checked {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.arg("-c").arg(self.file()).args(["check", "--json"]).args(more);
        let output = command.stdin(Stdio::null()).output().expect("postrider");
        let said = String::from_utf8_lossy(&output.stdout);
        let findings = serde_json::from_str(&said).unwrap_or_else(|error| {
            panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr))
        });
        Checked { code: output.status.code(), findings }
    }

    /// Executes every line that fixes a finding. None of them may want a restart.
    pub(crate) async fn fix(&self, finding: &Value) {
        let lines = fixes(finding);
        assert!(!lines.is_empty(), "nothing fixes it: {finding:#}");
        for fix in lines {
            assert_eq!(fix["restart"], false, "{finding:#}");
            self.execute(fix).await;
        }
    }

    /// Executes one line where it belongs.
    pub(crate) async fn execute(&self, fix: &Value) {
        let text = |name: &str| fix[name].as_str().expect("a text");
        let line = text("line").replace("://ADMIN@", "://postgres@");
        let line = line.as_str();
        match text("kind") {
            "sql" => {
                let admin = Client::connect(&self.admin).await.expect("an administrator");
                admin.batch(line).await;
            }
            "config" => self.edit(line, text("table"), text("edit")),
            "shell" if line.starts_with("kafka-") => kafka_command(line).await,
            "shell" => {
                let output = self.shell(line);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{line}: {}\n{said}", output.status);
            }
            other => panic!("a kind of line that nobody knows: {other}"),
        }
    }

    fn shell(&self, line: &str) -> Output {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_postrider"));
        let folder = binary.parent().expect("a folder").display().to_string();
        let path = std::env::var_os("PATH").unwrap_or_default();
        Command::new("sh")
            .args(["-c", line])
            .env("PATH", format!("{folder}:{}", path.to_string_lossy()))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("a shell")
    }

    /// Edits the file's text as a person does: the header is looked for, and the line is put below it, at the end with
    /// a header of its own, or on top.
    fn edit(&self, line: &str, table: &str, edit: &str) {
        let text = self.config();
        let mut lines: Vec<&str> = text.lines().collect();
        let header = format!("[{table}]");
        let below = || {
            let at = lines.iter().position(|line| line.trim() == header);
            at.unwrap_or_else(|| panic!("no {header} in\n{text}")) + 1
        };
        match edit {
            "add" => lines.insert(below(), line),
            "replace" => {
                let key = line.split(" =").next().expect("a key");
                let (start, is_it) = (below(), |line: &&str| line.starts_with(&format!("{key} =")));
                let at = lines[start..].iter().position(is_it).expect("the present line");
                lines[start + at] = line;
            }
            "new_table" => lines.extend([header.as_str(), line]),
            "top" => lines.insert(0, line),
            other => panic!("nobody says where it belongs ({other:?}): {line}\n{text}"),
        }
        let edited = lines.join("\n");
        edited.parse::<toml::Table>().unwrap_or_else(|error| panic!("{error}\n{edited}"));
        self.write(&edited);
    }
}

/// What Kafka's own scripts would do, which are not part of a test's servers.
async fn kafka_command(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name);
        at.and_then(|at| words.get(at + 1)).copied().unwrap_or_else(|| panic!("no {name}: {line}"))
    };
    assert_eq!(after("--bootstrap-server"), brokers());
    match words[0] {
        "kafka-topics.sh" => {
            assert!(words.contains(&"--create"), "{line}");
            let number = |name| after(name).parse::<i32>().expect("a number");
            assert_eq!(number("--replication-factor"), 1, "as many as there are brokers");
            create_topic(&brokers(), after("--topic"), number("--partitions"), &[]).await;
        }
        "kafka-configs.sh" => {
            let (name, value) = after("--add-config").split_once('=').expect("a setting");
            let topic = Topic { brokers: brokers(), name: after("--entity-name").to_owned() };
            alter(&topic, name, value).await;
        }
        other => panic!("{other}: {line}"),
    }
}
