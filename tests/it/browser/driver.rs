//! Chromium without a window, driven by chromedriver over WebDriver: a browser of a test's own.

use crate::await_that::{SOON, await_that};
use crate::private::{Signal, free_port, signal};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};

/// How long one command may take: a busy machine starts a browser in seconds.
const COMMAND_MAX: Duration = Duration::from_mins(1);

/// How long the driver may take to close the browser when it is ended.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// The size of the window.
const SIZE: (u32, u32) = (1280, 1000);

/// One browser at a time: each one takes some hundred megabytes.
static ONE: Mutex<()> = Mutex::const_new(());

/// The keys of WebDriver that have no character.
pub(super) const TAB: char = '\u{E004}';
pub(super) const ENTER: char = '\u{E007}';
pub(super) const SPACE: char = ' ';

/// A browser. It is closed when the value is dropped.
pub(super) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// The profile, and what the driver writes.
    dir: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Browser {
    /// Starts a browser.
    pub(super) async fn start() -> Self {
        let one = ONE.lock().await;
        let (dir, port) = (TempDir::new().expect("a directory"), free_port());
        let log = |name: &str| File::create(dir.path().join(name)).expect("an output file");
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .env("HOME", dir.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .spawn()
            .expect("chromedriver: scripts/test it browser:: installs it");
        let mut browser = Self { driver, port, session: String::new(), dir, _one: one };
        await_that("chromedriver", SOON, || async {
            let status = command(port, "GET", "/status", None).await?;
            if status["ready"] == true { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        let profile = format!("--user-data-dir={}", browser.dir.path().join("profile").display());
        let size = format!("--window-size={},{}", SIZE.0, SIZE.1);
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            // A container has no sandbox for a process of root, and a small /dev/shm.
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-background-networking", "--disable-component-update", "--no-first-run",
                "--hide-scrollbars", "--force-device-scale-factor=1", profile, size,
            ] },
        } } });
        let answer =
            command(port, "POST", "/session", Some(&capabilities)).await.expect("a browser");
        answer["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        browser
    }

    /// Sends a command of the session.
    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let path = format!("/session/{}{path}", self.session);
        command(self.port, method, &path, body).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Opens a page.
    pub(super) async fn open(&self, url: &str) {
        self.send("POST", "/url", Some(&json!({ "url": url }))).await;
    }

    /// Runs a function body in the page; what it returns.
    pub(super) async fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.send("POST", "/execute/sync", Some(&body)).await
    }

    /// The text of what has this id, as it is shown.
    pub(super) async fn text(&self, id: &str) -> String {
        let text = self.run(&format!("return document.getElementById('{id}').innerText")).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a function body returns true.
    pub(super) async fn await_true(&self, what: &str, script: &str) {
        await_that(what, SOON, || async {
            let seen = self.run(script).await;
            if seen == true {
                return Ok(());
            }
            Err(format!("{seen}: {}", self.run("return document.body.innerText").await))
        })
        .await;
    }

    /// Presses these keys, one after the other.
    pub(super) async fn press(&self, keys: &[char]) {
        let press = |key: &char| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        };
        let actions: Vec<Value> = keys.iter().flat_map(press).collect();
        let body = json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] });
        self.send("POST", "/actions", Some(&body)).await;
    }

    /// Clicks at the middle of the first element of this selector, as a person does.
    pub(super) async fn click(&self, selector: &str) {
        let find = json!({ "using": "css selector", "value": selector });
        let found = self.send("POST", "/element", Some(&find)).await;
        let id = found.as_object().and_then(|found| found.values().next()?.as_str());
        let id = id.expect("an element").to_owned();
        self.send("POST", &format!("/element/{id}/click"), Some(&json!({}))).await;
    }

    /// The colours that the system prefers: `light` or `dark`.
    pub(super) async fn prefer(&self, scheme: &str) {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        let body = json!({ "cmd": "Emulation.setEmulatedMedia", "params": media });
        self.send("POST", "/goog/cdp/execute", Some(&body)).await;
    }

    /// What the page and the browser have written to the console since the last call.
    pub(super) async fn console(&self) -> Vec<String> {
        let lines = self.send("POST", "/se/log", Some(&json!({ "type": "browser" }))).await;
        let lines = lines.as_array().cloned().unwrap_or_default();
        lines.iter().map(|line| format!("{}: {}", line["level"], line["message"])).collect()
    }

    /// A picture of the whole page, as PNG.
    pub(super) async fn picture(&self) -> Vec<u8> {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let body = json!({ "cmd": "Page.captureScreenshot", "params": whole });
        let picture = self.send("POST", "/goog/cdp/execute", Some(&body)).await;
        STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }

    /// Closes the browser, and waits until it is gone.
    pub(super) async fn close(self) {
        self.send("DELETE", "", None).await;
    }
}

impl Drop for Browser {
    /// The driver closes its browser when it is asked to end.
    fn drop(&mut self) {
        signal(self.driver.id(), Signal::Term);
        let deadline = Instant::now() + CLOSE_MAX;
        while matches!(self.driver.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default();
            #[expect(clippy::print_stderr, reason = "the log of a failed test")]
            {
                eprintln!("--- chromedriver, standard error ---\n{log}");
            }
        }
    }
}

/// One command of WebDriver; the value of its answer.
async fn command(
    port: u16,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, String> {
    let exchange = exchange(port, method, path, body);
    let answer = tokio::time::timeout(COMMAND_MAX, exchange).await;
    let answer = answer.map_err(|elapsed| format!("{method} {path}: {elapsed}"))?;
    let (status, answer) = answer.map_err(|error| format!("{method} {path}: {error}"))?;
    let value = answer["value"].clone();
    if status == 200 { Ok(value) } else { Err(format!("{method} {path}: {status} {value}")) }
}

async fn exchange(
    port: u16,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> std::io::Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
    stream.write_all(request.as_bytes()).await?;
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if line.starts_with("http/") {
            status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok((status, serde_json::from_slice(&answer).unwrap_or(Value::Null)))
}
