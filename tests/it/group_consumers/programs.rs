//! The programs of docs/sql/consumers.md: how each is compiled and started, and what it wrote to standard error.

use crate::await_that::{SOON, await_or_dump};
use crate::private::{Signal, exit_of, signal};
use crate::relay::memory_kib;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// How long a program may take to end after SIGTERM. It waits at most one second where nothing is to be read.
const STOP_MAX: Duration = Duration::from_secs(15);

/// The repository.
pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where the sources are.
pub(super) fn sources() -> PathBuf {
    root().join("tests/consumers/groups")
}

/// Where `need_languages` of the scripts puts drivers and compilers.
fn tools() -> PathBuf {
    root().join("target/tools")
}

/// Where compiled programs are.
fn built() -> PathBuf {
    root().join("target/consumers")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The languages of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    Python,
    Java,
    TypeScript,
    Go,
    Rust,
}

impl Language {
    pub(super) const ALL: [Self; 5] =
        [Self::Python, Self::Java, Self::TypeScript, Self::Go, Self::Rust];

    /// Compiles its programs, once in this process.
    pub(super) async fn build(self) {
        static BUILT: [OnceLock<()>; 5] = [const { OnceLock::new() }; 5];
        let build = move || BUILT[self as usize].get_or_init(|| self.compile());
        tokio::task::spawn_blocking(build).await.expect("a compiler");
    }

    fn compile(self) {
        fs::create_dir_all(built()).expect("a directory");
        match self {
            Self::Python => {}
            Self::Java => {
                let classes = text(&built().join("groups-java"));
                let driver = text(&tools().join("java/postgresql.jar"));
                let files = ["Consumer.java", "LongWork.java"];
                let files = files.map(|name| text(&sources().join(name)));
                run(Command::new("javac")
                    .args(["-Xlint:all", "-Werror", "-cp", &driver, "-d", &classes])
                    .args(files));
            }
            Self::TypeScript => {
                // Beside node_modules, where both the compiler and node look for the driver.
                let folder = tools().join("groups");
                fs::create_dir_all(&folder).expect("a directory");
                let source = folder.join("consumer.ts");
                fs::copy(sources().join("consumer.ts"), &source).expect("a copy");
                let compiler = tools().join("node_modules/typescript/bin/tsc");
                run(Command::new("node")
                    .arg(compiler)
                    .args(["--strict", "--noUncheckedIndexedAccess", "--target", "ES2022"])
                    .args(["--module", "nodenext", "--skipLibCheck"])
                    .arg(source));
            }
            Self::Go => {
                let program = text(&built().join("groups-go"));
                run(Command::new("go")
                    .args(["build", "-o", &program, "."])
                    .current_dir(sources().join("go")));
            }
            Self::Rust => {
                // With the profile of this test, so that the dependencies are compiled already.
                let folder = rust_folder();
                let profile = folder.file_name().and_then(|name| name.to_str());
                let profile = profile.filter(|name| *name != "debug").unwrap_or("dev");
                run(Command::new(env!("CARGO"))
                    .args(["build", "--quiet", "--locked", "--example", "group_consumer"])
                    .args(["--profile", profile])
                    .current_dir(root()));
            }
        }
    }

    /// The program that polls, works and commits.
    pub(super) fn consumer(self) -> Command {
        match self {
            Self::Python => python("consumer.py"),
            Self::Java => java("Consumer"),
            Self::TypeScript => {
                let mut command = Command::new("node");
                command.arg(tools().join("groups/consumer.js"));
                command
            }
            Self::Go => Command::new(built().join("groups-go")),
            Self::Rust => Command::new(rust_folder().join("examples/group_consumer")),
        }
    }
}

/// The folder of the binaries of this build, such as `target/debug`.
fn rust_folder() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_postrider"));
    program.parent().expect("a folder").to_owned()
}

/// A program in Python, by the name of its file.
pub(super) fn python(name: &str) -> Command {
    let mut command = Command::new(tools().join("python/bin/python3"));
    command.arg(sources().join(name)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A program in Java, by the name of its class; leases of `LongWork` are short.
pub(super) fn java(class: &str) -> Command {
    let driver = text(&tools().join("java/postgresql.jar"));
    let classes = text(&built().join("groups-java"));
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dvisibility=2", "-cp"]);
    command.args([&format!("{classes}:{driver}"), class]);
    command
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}; scripts/test installs what is missing");
}

/// A running program.
pub(super) struct Process {
    child: Child,
    name: String,
    dir: TempDir,
}

impl Process {
    /// Starts a program as a consumer of this name.
    pub(super) fn spawn(mut command: Command, url: &str, group: &str, name: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let log = File::create(dir.path().join("log")).expect("a log");
        command.args([group, name]).env("DATABASE_URL", url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{command:?}: {error}; scripts/test installs what is missing")
        });
        Self { child, name: name.to_owned(), dir }
    }

    /// What it has written to standard error.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits until its log has this word.
    pub(super) async fn await_log(&self, word: &str) {
        let what = format!("{word} in the log of {}", self.name);
        let look =
            || async { if self.log().contains(word) { Ok(()) } else { Err("it is not there") } };
        await_or_dump(&what, SOON, look, || self.log()).await;
    }

    /// The most memory that it has had, in KiB.
    pub(super) fn peak_kib(&self) -> u64 {
        memory_kib(self.child.id()).1
    }

    /// kill -9.
    pub(super) async fn kill(mut self) {
        signal(self.child.id(), Signal::Kill);
        exit_of(&mut self.child, SOON).await;
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        assert!(signal(self.child.id(), Signal::Term), "{} has ended: {}", self.name, self.log());
    }

    /// Waits for its end after [`Self::terminate`], which is soon and with exit code 0.
    pub(super) async fn ended(mut self) {
        let status = exit_of(&mut self.child, STOP_MAX).await;
        assert_eq!(status.code(), Some(0), "{}: {}", self.name, self.log());
    }

    /// Waits until it ends by itself; its exit code.
    pub(super) async fn gives_up(&mut self) -> Option<i32> {
        exit_of(&mut self.child, SOON).await.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let log = self.log();
            let last: Vec<&str> = log.lines().rev().take(20).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("--- log of {}:\n{}\n", self.name, last.join("\n")).as_bytes(),
            ));
        }
    }
}
