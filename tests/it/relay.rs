//! The real binary: its configuration, its output, its admin endpoint, its end.

use crate::await_that::await_or_dump;
use crate::private::{Signal, exit_of, free_port, signal};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one request to the admin endpoint may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// The program.
const POSTRIDER: &str = env!("CARGO_BIN_EXE_postrider");

/// A pipeline's configuration, without `[admin]`; further TOML (tables of the pipeline) goes behind it.
pub(crate) fn pipeline(name: &str, url: &str, table: &str, topic: &str, brokers: &str) -> String {
    format!(
        "[pipelines.{name}]\n\
         [pipelines.{name}.source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
         [pipelines.{name}.outbox]\ntable = \"{table}\"\n\
         [pipelines.{name}.route]\ntopic = \"{topic}\"\n\
         [pipelines.{name}.sink]\nkind = \"kafka\"\nbrokers = \"{brokers}\"\n"
    )
}

/// Runs `postrider -c CONFIG ARGS…` to its end.
pub(crate) fn postrider(config: &str, args: &[&str]) -> Output {
    program(Path::new(POSTRIDER), config, args)
}

/// The same with another program in its place: that of an older version.
pub(crate) fn program(program: &Path, config: &str, args: &[&str]) -> Output {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("postrider.toml");
    fs::write(&file, config).expect("a configuration");
    Command::new(program)
        .arg("-c")
        .arg(&file)
        .args(args)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("postrider")
}

/// As [`postrider`], and fails with what it wrote unless it ended well; its standard output.
pub(crate) fn postrider_ok(config: &str, args: &[&str]) -> String {
    let output = postrider(config, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "postrider {args:?}: {}\n{errors}{said}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8 on standard output")
}

/// Runs `postrider -c CONFIG ARGS…` at a terminal of its own, where somebody types these lines: its exit code and
/// what the terminal shows.
pub(crate) fn postrider_at_a_terminal(
    config: &str,
    args: &[&str],
    typed: &str,
) -> (Option<i32>, String) {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("postrider.toml"), config).expect("a configuration");
    let words: Vec<String> = [env!("CARGO_BIN_EXE_postrider"), "-c", "postrider.toml"]
        .iter()
        .chain(args)
        .map(|word| format!("'{word}'"))
        .collect();
    // util-linux: runs a command at a pseudo-terminal, and gives back its exit code.
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--echo", "never", "--command"]).arg(words.join(" "));
    command.arg("/dev/null").current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("script, of util-linux");
    child.stdin.take().expect("a terminal").write_all(typed.as_bytes()).expect("typed");
    let output = child.wait_with_output().expect("what it shows");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n"))
}

/// One `postrider run`. Killed when dropped.
pub(crate) struct Relay {
    child: Child,
    dir: TempDir,
    admin_port: u16,
}

impl Relay {
    /// Starts `postrider inbox run` with this configuration.
    pub(crate) fn spawn_intake(config: &str) -> Self {
        Self::spawn_intake_at(config, free_port())
    }

    /// The same with the admin endpoint at a port of the test's choice.
    pub(crate) fn spawn_intake_at(config: &str, admin_port: u16) -> Self {
        let (command, run) = (Command::new(POSTRIDER), &["inbox", "run"]);
        Self::start_as(command, config, (admin_port, run), &[], &[])
    }

    /// Starts it with this configuration, to which `[admin]` with a free port is added.
    pub(crate) fn spawn(config: &str) -> Self {
        Self::spawn_with(config, &[], &[])
    }

    /// The same with further arguments behind `run`, and environment variables.
    pub(crate) fn spawn_with(config: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start(Command::new(POSTRIDER), config, free_port(), args, env)
    }

    /// The same in a process that may have at most this many descriptors.
    pub(crate) fn spawn_with_descriptors(config: &str, most: u32) -> Self {
        // util-linux: sets the limit, and becomes the program.
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={most}:{most}")).arg(POSTRIDER);
        Self::start(command, config, free_port(), &[], &[])
    }

    /// The same with the admin endpoint at a port of the test's choice.
    pub(crate) fn spawn_at(config: &str, admin_port: u16, args: &[&str]) -> Self {
        Self::start(Command::new(POSTRIDER), config, admin_port, args, &[])
    }

    /// Another program in its place: the one that is released, or that of an older version.
    pub(crate) fn spawn_program(program: impl AsRef<OsStr>, config: &str, args: &[&str]) -> Self {
        Self::start(Command::new(program), config, free_port(), args, &[])
    }

    fn start(
        command: Command,
        config: &str,
        admin_port: u16,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        Self::start_as(command, config, (admin_port, &["run"]), args, env)
    }

    fn start_as(
        mut command: Command,
        config: &str,
        (admin_port, run): (u16, &[&str]),
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let dir = TempDir::new().expect("a directory");
        let file = dir.path().join("postrider.toml");
        let config = format!("{config}\n[admin]\nlisten = \"127.0.0.1:{admin_port}\"\n");
        fs::write(&file, config).expect("a configuration");
        let output = |name: &str| File::create(dir.path().join(name)).expect("an output file");
        let child = command
            .arg("-c")
            .arg(&file)
            .args(run)
            .args(args)
            .envs(env.iter().copied())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("postrider");
        Self { child, dir, admin_port }
    }

    /// Where its admin endpoint listens.
    pub(crate) fn admin_address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.admin_port)
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything on standard error so far.
    pub(crate) fn stderr(&self) -> String {
        self.output("stderr")
    }

    /// Everything on standard output so far.
    pub(crate) fn stdout(&self) -> String {
        self.output("stdout")
    }

    fn output(&self, name: &str) -> String {
        let path: PathBuf = self.dir.path().join(name);
        let mut text = Vec::new();
        match File::open(&path).and_then(|mut file| file.read_to_end(&mut text)) {
            Ok(_) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    /// `GET path` of the admin endpoint: status code and body.
    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String), String> {
        http_get(self.admin_port, path).await
    }

    /// `/status`, parsed.
    pub(crate) async fn status(&self) -> Result<Value, String> {
        let (_, body) = self.get("/status").await?;
        serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
    }

    /// Waits for `/status` to be as `wanted` says.
    pub(crate) async fn await_status(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let look = || async {
            let status = self.status().await?;
            if wanted(&status) { Ok(status) } else { Err(status.to_string()) }
        };
        await_or_dump(what, deadline, look, || self.stderr()).await
    }

    /// Waits until some pipeline is in this state (`streaming`, `broker_down` …).
    pub(crate) async fn await_state(&self, state: &str, deadline: Duration) -> Value {
        self.await_status(&format!("state {state}"), deadline, |status| has_state(status, state))
            .await
    }

    /// Waits until standard error holds `text`.
    pub(crate) async fn await_log(&self, text: &str, deadline: Duration) {
        let look = || async {
            let log = self.stderr();
            if log.contains(text) { Ok(()) } else { Err("no such line") }
        };
        await_or_dump(&format!("{text:?} in the log"), deadline, look, || self.stderr()).await;
    }

    /// Resident memory now, and the most it ever was, in KiB.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        memory_kib(self.pid())
    }

    /// Processor time used so far, in clock ticks (10 ms on every Linux we know).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }

    /// Freezes, thaws, asks to end, or kills.
    pub(crate) fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    /// SIGTERM, and its exit code.
    pub(crate) async fn terminate(self, deadline: Duration) -> Ended {
        self.signal(Signal::Term);
        self.ended(deadline).await
    }

    /// kill -9, and waits until it is gone.
    pub(crate) async fn kill(self) -> Ended {
        self.signal(Signal::Kill);
        self.ended(Duration::from_secs(10)).await
    }

    /// Waits for its end.
    pub(crate) async fn ended(mut self, deadline: Duration) -> Ended {
        let status = exit_of(&mut self.child, deadline).await;
        Ended { code: status.code(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

/// Resident memory of a process now, and the most it ever was, in KiB.
pub(crate) fn memory_kib(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// What is left of a relay.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            // Beside the failure, where the test's own output is captured.
            #[expect(clippy::print_stderr, reason = "the log of a failed test")]
            {
                eprintln!("--- postrider run, standard error ---\n{}", self.stderr());
            }
        }
    }
}

/// Whether `state` is the value of a member `state` somewhere in the status.
fn has_state(status: &Value, state: &str) -> bool {
    match status {
        Value::Array(items) => items.iter().any(|item| has_state(item, state)),
        Value::Object(members) => members.iter().any(|(name, value)| {
            (name == "state" && value.as_str() == Some(state)) || has_state(value, state)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// HTTP/1.0 by hand, so that the answer has no chunks: one request, the answer read to its end.
pub(crate) async fn http_get(port: u16, path: &str) -> Result<(u16, String), String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(REQUEST_DEADLINE, exchange)
        .await
        .map_err(|elapsed| format!("GET {path}: {elapsed} after {REQUEST_DEADLINE:?}"))?
        .map_err(|error| format!("GET {path}: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without a body")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or_else(|| format!("no status in {head:?}"))?, body.to_owned()))
}
