//! A Prometheus of a test's own, which scrapes relays and evaluates rules, and its HTTP API.

use crate::private::free_port;
use crate::relay::http_get;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of Debian's package prometheus: what `scripts/test` has fetched, else the system's.
fn tool(name: &str) -> PathBuf {
    let fetched = root().join("target/tools/usr/bin").join(name);
    if fetched.exists() { fetched } else { PathBuf::from(name) }
}

/// Runs promtool in the repository.
pub(crate) fn promtool(args: &[&str]) -> Output {
    let program = tool("promtool");
    let output = Command::new(&program).args(args).current_dir(root()).output();
    output.unwrap_or_else(|error| {
        panic!("{}: {error}; scripts/test fetches it (Debian: prometheus)", program.display())
    })
}

/// Seconds since 1970, as Prometheus writes times.
pub(crate) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}

/// One series of an answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Series {
    pub(crate) labels: BTreeMap<String, String>,
    /// Time, in seconds since 1970, and value.
    pub(crate) samples: Vec<(f64, f64)>,
}

impl Series {
    /// A label, empty if there is none.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Ended when dropped.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
    scrape: Duration,
    _dir: TempDir,
}

impl Prometheus {
    /// Scrapes the admin endpoints at these ports, and evaluates `rules` as often; the text is that of a file of rules.
    pub(crate) fn start(targets: &[u16], scrape: Duration, rules: &str) -> Self {
        let program = tool("prometheus");
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("rules.yml"), rules).expect("the rules");
        let targets: Vec<String> =
            targets.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        let config = format!(
            "global: {{ scrape_interval: {0}ms, scrape_timeout: {0}ms, evaluation_interval: {0}ms }}\n\
             rule_files: [rules.yml]\nscrape_configs:\n  - job_name: postrider\n    \
             static_configs: [ {{ targets: [ {1} ] }} ]\n",
            scrape.as_millis(),
            targets.join(", ")
        );
        fs::write(dir.path().join("prometheus.yml"), config).expect("a configuration");
        let port = free_port();
        let child = Command::new(&program)
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { child, port, scrape, _dir: dir }
    }

    /// Time between two scrapes.
    pub(crate) fn scrape(&self) -> Duration {
        self.scrape
    }

    /// What the API answers.
    async fn data(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let mut path = format!("/api/v1/{path}?");
        for (name, value) in parameters {
            write!(path, "{name}={}&", escaped(value)).expect("a String");
        }
        let (code, body) = http_get(self.port, &path).await?;
        let mut answer: Value =
            serde_json::from_str(&body).map_err(|error| format!("{code} {error}: {body}"))?;
        if answer["status"] == "success" { Ok(answer["data"].take()) } else { Err(body) }
    }

    /// The alerts that fire, by name, and the pipeline or the intake that each is about.
    pub(crate) async fn firing(&self) -> Result<Vec<(String, String)>, String> {
        let data = self.data("alerts", &[]).await?;
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing").map(|alert| {
            let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default();
            let of = if label("pipeline").is_empty() { label("intake") } else { label("pipeline") };
            (label("alertname").to_owned(), of.to_owned())
        });
        Ok(firing.collect())
    }

    /// The value of a query now, series by series.
    pub(crate) async fn query(&self, query: &str) -> Result<Vec<Series>, String> {
        let data = self.data("query", &[("query", query)]).await?;
        Ok(series(&data))
    }

    /// The values of a query from one time to another.
    pub(crate) async fn over(
        &self,
        query: &str,
        from: SystemTime,
        to: SystemTime,
    ) -> Result<Vec<Series>, String> {
        let [start, end] = [from, to].map(|time| format!("{:.3}", seconds(time)));
        let step = format!("{:.3}", self.scrape.as_secs_f64());
        let parameters = [("query", query), ("start", &start), ("end", &end), ("step", &step)];
        let data = self.data("query_range", &parameters).await?;
        Ok(series(&data))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The series of an answer, without samples that are no number.
fn series(data: &Value) -> Vec<Series> {
    let sample = |pair: &Value| {
        let value: f64 = pair[1].as_str()?.parse().ok()?;
        (!value.is_nan()).then_some((pair[0].as_f64()?, value))
    };
    let one = |result: &Value| {
        let labels = result["metric"].as_object().cloned().unwrap_or_default();
        let labels = labels
            .into_iter()
            .map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned()));
        let several = result["values"].as_array().cloned().unwrap_or_default();
        let samples = several.iter().chain(result.get("value")).filter_map(sample).collect();
        Series { labels: labels.collect(), samples }
    };
    let results = data["result"].as_array().cloned().unwrap_or_default();
    results.iter().map(one).filter(|series| !series.samples.is_empty()).collect()
}

/// A value in the query of a URL.
fn escaped(value: &str) -> String {
    value.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("a String");
        }
        text
    })
}
