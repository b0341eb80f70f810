//! The programs that the pages show in five languages, those of docs/sql/consumers.md, docs/sql/inbox-programs.md and
//! docs/formats/claim-check.md: how each is compiled and started, and what it has written.

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
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where `need_languages` of the scripts puts drivers and compilers.
fn tools() -> PathBuf {
    root().join("target/tools")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The languages of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    Python,
    Java,
    TypeScript,
    Go,
    Rust,
}

impl Language {
    pub(crate) const ALL: [Self; 5] =
        [Self::Python, Self::Java, Self::TypeScript, Self::Go, Self::Rust];
}

/// The same program in each language.
pub(crate) struct Programs {
    /// Its folder in `tests/consumers`.
    folder: &'static str,
    /// Its file, without the ending.
    name: &'static str,
    /// Classes in Java; the first one is the program.
    classes: &'static [&'static str],
    /// What they need, below the directory of the tools.
    jars: &'static str,
    /// The example of the package that is the program in Rust.
    example: &'static str,
    /// Languages whose programs are compiled, once in this process.
    built: [OnceLock<()>; 5],
}

/// The programs of docs/sql/consumers.md: they poll, work and commit.
pub(crate) static GROUPS: Programs = Programs {
    folder: "groups",
    name: "consumer",
    classes: &["Consumer", "LongWork"],
    jars: "java/postgresql.jar",
    example: "group_consumer",
    built: [const { OnceLock::new() }; 5],
};

/// The programs of docs/sql/inbox-programs.md.
pub(crate) static INBOX: Programs = Programs {
    folder: "inbox",
    name: "consumer",
    classes: &["Consumer"],
    jars: "java/postgresql.jar",
    example: "inbox_consumer",
    built: [const { OnceLock::new() }; 5],
};

/// The programs of docs/formats/claim-check.md.
pub(crate) static CLAIMS: Programs = Programs {
    folder: "claims",
    name: "reader",
    classes: &["Reader"],
    jars: "java-s3/*",
    example: "claim_reader",
    built: [const { OnceLock::new() }; 5],
};

impl Programs {
    /// Compiles the program in one language.
    pub(crate) async fn build(&'static self, language: Language) {
        let build = move || self.built[language as usize].get_or_init(|| self.compile(language));
        tokio::task::spawn_blocking(build).await.expect("a compiler");
    }

    fn sources(&self) -> PathBuf {
        root().join("tests/consumers").join(self.folder)
    }

    /// Where a compiled program is.
    fn built(&self, language: &str) -> PathBuf {
        root().join(format!("target/consumers/{}-{language}", self.folder))
    }

    /// Beside `node_modules`, where both the compiler and node look for the driver.
    fn typescript(&self) -> PathBuf {
        tools().join(self.folder)
    }

    fn compile(&self, language: Language) {
        fs::create_dir_all(root().join("target/consumers")).expect("a directory");
        match language {
            Language::Python => {}
            Language::Java => {
                let driver = text(&tools().join(self.jars));
                let file = |class: &&str| text(&self.sources().join(format!("{class}.java")));
                run(Command::new("javac")
                    .args(["-Xlint:all", "-Werror", "-cp", &driver, "-d"])
                    .arg(self.built("java"))
                    .args(self.classes.iter().map(file)));
            }
            Language::TypeScript => {
                fs::create_dir_all(self.typescript()).expect("a directory");
                let source = self.typescript().join(format!("{}.ts", self.name));
                fs::copy(self.sources().join(format!("{}.ts", self.name)), &source)
                    .expect("a copy");
                let compiler = tools().join("node_modules/typescript/bin/tsc");
                run(Command::new("node")
                    .arg(compiler)
                    .args(["--strict", "--noUncheckedIndexedAccess", "--target", "ES2022"])
                    .args(["--module", "nodenext", "--skipLibCheck", "--typeRoots"])
                    .arg(tools().join("node_modules/@types"))
                    .arg(source));
            }
            Language::Go => {
                let program = text(&self.built("go"));
                run(Command::new("go")
                    .args(["build", "-o", &program, "."])
                    .current_dir(self.sources().join("go")));
            }
            Language::Rust => {
                // With the profile of this test, so that the dependencies are compiled already.
                let folder = rust_folder();
                let profile = folder.file_name().and_then(|name| name.to_str());
                let profile = profile.filter(|name| *name != "debug").unwrap_or("dev");
                run(Command::new(env!("CARGO"))
                    .args(["build", "--quiet", "--locked", "--example", self.example])
                    .args(["--profile", profile])
                    .current_dir(root()));
            }
        }
    }

    /// What runs the program, which is compiled.
    pub(crate) fn consumer(&self, language: Language) -> Command {
        match language {
            Language::Python => self.python(&format!("{}.py", self.name)),
            Language::Java => self.java(self.classes.first().expect("a class")),
            Language::TypeScript => {
                let mut command = Command::new("node");
                command.arg(self.typescript().join(format!("{}.js", self.name)));
                command
            }
            Language::Go => Command::new(self.built("go")),
            Language::Rust => Command::new(rust_folder().join("examples").join(self.example)),
        }
    }

    /// A program in Python, by the name of its file.
    pub(crate) fn python(&self, name: &str) -> Command {
        let mut command = Command::new(tools().join("python/bin/python3"));
        command.arg(self.sources().join(name)).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// A program in Java, by the name of its class; leases of `LongWork` are short.
    pub(crate) fn java(&self, class: &str) -> Command {
        let driver = text(&tools().join(self.jars));
        let classes = text(&self.built("java"));
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dvisibility=2", "-cp"]);
        command.args([&format!("{classes}:{driver}"), class]);
        command
    }
}

/// The folder of the binaries of this build, such as `target/debug`.
fn rust_folder() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_postrider"));
    program.parent().expect("a folder").to_owned()
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}; scripts/test installs what is missing");
}

/// A running program.
pub(crate) struct Process {
    child: Child,
    name: String,
    dir: TempDir,
}

impl Process {
    /// Starts a program with these arguments, and this on its standard input.
    pub(crate) fn spawn(mut command: Command, url: &str, arguments: &[&str], input: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let create = |name| File::create(dir.path().join(name)).expect("a file");
        let (log, out) = (create("log"), create("out"));
        fs::write(dir.path().join("in"), input).expect("its input");
        let input = File::open(dir.path().join("in")).expect("its input");
        command.args(arguments).env("DATABASE_URL", url);
        command.stdin(input).stdout(out).stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{command:?}: {error}; scripts/test installs what is missing")
        });
        Self { child, name: arguments.join(" "), dir }
    }

    /// What it has written to standard output.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.dir.path().join("out")).unwrap_or_default()
    }

    /// What it has written to standard error.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits until its log has this word.
    pub(crate) async fn await_log(&self, word: &str) {
        let what = format!("{word} in the log of {}", self.name);
        let look =
            || async { if self.log().contains(word) { Ok(()) } else { Err("it is not there") } };
        await_or_dump(&what, SOON, look, || self.log()).await;
    }

    /// The most memory that it has had, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        memory_kib(self.child.id()).1
    }

    /// kill -9; what it has written to standard output.
    pub(crate) async fn kill(mut self) -> String {
        signal(self.child.id(), Signal::Kill);
        exit_of(&mut self.child, SOON).await;
        self.output()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        assert!(signal(self.child.id(), Signal::Term), "{} has ended: {}", self.name, self.log());
    }

    /// Waits for its end after [`Self::terminate`], which is soon and with exit code 0.
    pub(crate) async fn ended(mut self) {
        let status = exit_of(&mut self.child, STOP_MAX).await;
        assert_eq!(status.code(), Some(0), "{}: {}", self.name, self.log());
    }

    /// Waits until it has done all of its input, and ends with exit code 0.
    pub(crate) async fn finishes(mut self) {
        assert_eq!(self.gives_up().await, Some(0), "{}: {}", self.name, self.log());
    }

    /// Waits until it ends by itself; its exit code.
    pub(crate) async fn gives_up(&mut self) -> Option<i32> {
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
