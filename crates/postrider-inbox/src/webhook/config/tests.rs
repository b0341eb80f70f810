//! The keys of a receiver, read from a table that the test has.

use super::*;
use postrider_core::sink::KeyValue;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// A table of texts. A duration is a number of seconds, and a size a number of bytes.
struct Table {
    texts: BTreeMap<&'static str, String>,
    errors: RefCell<Vec<String>>,
}

impl Table {
    fn new(secrets: &Path, texts: &[(&'static str, &str)]) -> Self {
        let mut all = BTreeMap::from([
            ("listen", "127.0.0.1:8080".to_owned()),
            ("secret_file", secrets.display().to_string()),
        ]);
        all.extend(texts.iter().map(|(key, text)| (*key, (*text).to_owned())));
        Self { texts: all, errors: RefCell::default() }
    }

    fn parsed<T: std::str::FromStr + PartialOrd>(
        &self,
        key: &'static str,
        default: T,
        range: &RangeInclusive<T>,
    ) -> T {
        let Some(text) = self.text(key) else { return default };
        text.parse().ok().filter(|number| range.contains(number)).unwrap_or_else(|| {
            self.error(key, "out of bounds".to_owned());
            default
        })
    }
}

impl Keys for Table {
    fn is_present(&self) -> bool {
        true
    }

    fn text(&self, key: &'static str) -> Option<String> {
        self.texts.get(key).filter(|text| *text != "absent").cloned()
    }

    fn required(&self, key: &'static str, _example: &str) -> Option<String> {
        let text = self.text(key).filter(|text| !text.is_empty());
        if text.is_none() {
            self.error(key, "required".to_owned());
        }
        text
    }

    fn number(&self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32 {
        self.parsed(key, default, &range)
    }

    fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let range = range.start().as_secs()..=range.end().as_secs();
        Duration::from_secs(self.parsed(key, default.as_secs(), &range))
    }

    fn size(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.parsed(key, default, &range)
    }

    fn secret(&self, key: &'static str) -> Option<(String, SecretFile)> {
        let name = self.text(key)?;
        let file = SecretFile::new(PathBuf::from(&name));
        match file.read() {
            Ok(_) => Some((name, file)),
            Err(error) => {
                self.error(key, error.to_string());
                None
            }
        }
    }

    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn word(&self, key: &'static str, words: &[&str], _later: &[&str]) -> usize {
        let Some(text) = self.text(key) else { return 0 };
        words.iter().position(|word| *word == text).unwrap_or_else(|| {
            self.error(key, "no such word".to_owned());
            0
        })
    }

    fn flag(&self, _key: &'static str, default: bool) -> bool {
        default
    }

    fn table(&self, _key: &'static str) -> Box<dyn Keys + '_> {
        unreachable!("a receiver has no tables")
    }

    fn table_or_false(&self, _key: &'static str) -> Box<dyn Keys + '_> {
        unreachable!("a receiver has no tables")
    }

    fn entries(&self) -> Vec<KeyValue> {
        Vec::new()
    }

    fn renamed(&self, _old: &'static str, _new: &'static str) {}

    fn secret_file(&self, _path: &str, _file: &str) -> Option<(SecretFile, String)> {
        None
    }

    fn file(&self, _path: &str, file: &str, _bytes_max: usize) -> Option<String> {
        std::fs::read_to_string(file).ok()
    }

    fn warn_of_secret(&self, _path: &str, _file: &str) {}

    fn error(&self, key: &str, message: String) {
        self.errors.borrow_mut().push(format!("{key}: {message}"));
    }

    fn error_at(&self, path: &str, message: String) {
        self.error(path, message);
    }

    fn finish(&self) {}
}

/// A file with a secret that every scheme has, and what is read with these texts.
fn read(texts: &[(&'static str, &str)]) -> (WebhookConfig, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hooks");
    std::fs::write(&file, "whsec_aGVsbG8=\n").unwrap();
    let table = Table::new(&file, texts);
    let config = WebhookConfig::read(&table, "stripe");
    (config, table.errors.into_inner())
}

fn rows(config: &WebhookConfig) -> Vec<(String, String)> {
    let text = |value: &ShownValue| match value {
        ShownValue::Text(text) => text.clone(),
        ShownValue::Number(number) => number.to_string(),
        ShownValue::Boolean(yes) => yes.to_string(),
        ShownValue::Secret => "***".to_owned(),
    };
    config.values().iter().map(|row| (row.key.clone(), text(&row.value))).collect()
}

#[test]
fn keys_have_defaults_and_are_shown() {
    let (config, errors) = read(&[]);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!((config.path.as_str(), &config.scheme), ("/", &Scheme::Standard));
    let mut shown = rows(&config);
    let file = shown.remove(4);
    assert!(file.0 == "secret_file" && file.1.ends_with("hooks"), "{file:?}");
    let expected = [
        ("listen", "127.0.0.1:8080"),
        ("path", "/"),
        ("scheme", "standard"),
        ("tolerance", "300s"),
        ("body_max", "1MiB"),
        ("connections_max", "256"),
    ];
    assert_eq!(shown, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let texts = [
        ("scheme", "hmac"),
        ("signature_header", "X-Signature"),
        ("signature_prefix", "sha256="),
        ("signature_encoding", "base64"),
        ("id_header", "X-Id"),
        ("body_max", "1536"),
    ];
    let (config, errors) = read(&texts);
    assert_eq!(errors, Vec::<String>::new());
    let shown = rows(&config);
    for row in [("signature_header", "x-signature"), ("id_header", "x-id"), ("body_max", "1536B")] {
        assert!(shown.contains(&(row.0.to_owned(), row.1.to_owned())), "{row:?} in {shown:?}");
    }
    assert_eq!(read(&[("scheme", "github")]).0.scheme, Scheme::GitHub);
}

#[test]
fn mistakes_are_reported_with_their_keys() {
    for (texts, key) in [
        (&[("listen", "absent")][..], "listen"),
        (&[("listen", "localhost:8080")], "listen"),
        (&[("listen", "127.0.0.1:0")], "listen"),
        (&[("path", "hooks")], "path"),
        (&[("path", "/a?b")], "path"),
        (&[("path", "/a b")], "path"),
        (&[("scheme", "stripe")], "scheme"),
        (&[("signature_header", "x-signature")], "signature_header"),
        (&[("scheme", "github"), ("id_header", "x-id")], "id_header"),
        (&[("scheme", "github"), ("tolerance", "60")], "tolerance"),
        (&[("scheme", "hmac"), ("id_header", "x-id")], "signature_header"),
        (&[("scheme", "hmac"), ("signature_header", "x-signature")], "id_header"),
        (
            &[("scheme", "hmac"), ("signature_header", "a b"), ("id_header", "x")],
            "signature_header",
        ),
        (&[("tolerance", "0")], "tolerance"),
        (&[("body_max", "1000")], "body_max"),
        (&[("connections_max", "0")], "connections_max"),
        (&[("secret_file", "absent")], "secret_file"),
        (&[("secret_file", "no/such/file")], "secret_file"),
    ] {
        let (_, errors) = read(texts);
        assert_eq!(errors.len(), 1, "{texts:?}: {errors:?}");
        assert!(errors[0].starts_with(&format!("{key}: ")), "{texts:?}: {errors:?}");
    }
}

#[test]
fn a_file_without_a_secret_of_the_scheme_is_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hooks");
    std::fs::write(&file, "hush!\n").unwrap();
    let table = Table::new(&file, &[]);
    WebhookConfig::read(&table, "stripe");
    let errors = table.errors.into_inner();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("whsec_BASE64, in line 1") && !errors[0].contains("hush"));
}
