use super::*;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A registry that answers each path with what is written here, and the requests that it has read.
struct Canned {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    fn new(answers: &[(&str, u16, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/path", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<(String, u16, String)> = answers
            .iter()
            .map(|(path, status, body)| ((*path).to_owned(), *status, (*body).to_owned()))
            .collect();
        let of_thread = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap() == 0 {
                        break;
                    }
                    if let Some(number) = line.to_lowercase().strip_prefix("content-length: ") {
                        length = number.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let answer = answers.iter().find(|(path, ..)| head.contains(path.as_str()));
                let (_, status, text) = answer.cloned().unwrap_or_default();
                let length = text.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{text}"
                );
                of_thread.lock().unwrap().push(head + &String::from_utf8(body).unwrap());
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        Self { url, seen }
    }

    fn registry(&self) -> Registry {
        self.with_login(RegistryLogin::None)
    }

    fn with_login(&self, login: RegistryLogin) -> Registry {
        let (urls, tls) = (vec![self.url.clone()], TlsFiles::default());
        Registry::new(RegistrySettings { urls, login, tls, timeout: Duration::from_secs(10) })
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn the_latest_schema_comes_with_all_that_it_refers_to() {
    let guid = "89791762-2336-4186-9674-299b90a802e2";
    let latest = format!(
        r#"{{"subject": "a b-value", "id": 7, "version": 2, "schema": "S", "schemaType": "PROTOBUF", "guid": "{guid}",
            "references": [{{"name": "x", "subject": "X", "version": 1}},
            {{"name": "y", "subject": "Y", "version": 3}}]}}"#
    );
    let of_x =
        r#"{"id": 1, "schema": "SX", "references": [{"name": "y", "subject": "Y", "version": 3}]}"#;
    let canned = Canned::new(&[
        ("GET /path/subjects/a%20b-value/versions/latest ", 200, &latest),
        ("GET /path/subjects/X/versions/1 ", 200, of_x),
        ("GET /path/subjects/Y/versions/3 ", 200, r#"{"id": 2, "schema": "SY"}"#),
    ]);
    let found = canned.registry().latest("a b-value").await.unwrap();
    assert_eq!(found.id, SchemaId { id: 7, guid: uuid_bytes(guid) });
    assert_eq!((found.kind, &*found.text), (SchemaKind::Protobuf, "S"));
    // Each behind those that it needs, and once.
    let names: Vec<_> = found.references.iter().map(|one| (&*one.name, &*one.text)).collect();
    assert_eq!(names, [("y", "SY"), ("x", "SX")]);
    assert_eq!(canned.seen().len(), 3);
}

#[tokio::test]
async fn a_schema_is_registered_and_looked_up_with_its_type() {
    let canned = Canned::new(&[
        ("POST /path/subjects/s/versions ", 200, r#"{"id": 5}"#),
        ("POST /path/subjects/s ", 200, r#"{"id": 5, "schema": "S", "schemaType": "JSON"}"#),
    ]);
    let mut registry = canned.registry();
    let found = registry.register("s", SchemaKind::JsonSchema, "{\"a\": 1}").await.unwrap();
    assert_eq!((found.id.id, found.kind), (5, SchemaKind::JsonSchema));
    let seen = canned.seen();
    assert!(seen[0].ends_with(r#"{"schema":"{\"a\": 1}","schemaType":"JSON"}"#), "{}", seen[0]);
    assert!(seen[0].contains("application/vnd.schemaregistry.v1+json"), "{}", seen[0]);
    registry.look_up("s", SchemaKind::Avro, "\"int\"").await.unwrap();
    assert!(canned.seen()[2].ends_with(r#"{"schema":"\"int\""}"#), "{}", canned.seen()[2]);
}

/// Another node, which has not read it yet.
#[tokio::test]
async fn a_schema_that_was_registered_and_is_not_found_is_waited_for() {
    let canned = Canned::new(&[
        ("POST /path/subjects/s/versions ", 200, r#"{"id": 5}"#),
        ("POST /path/subjects/s ", 404, r#"{"error_code": 40403, "message": "Schema not found"}"#),
    ]);
    let problem = canned.registry().register("s", SchemaKind::Avro, "\"int\"").await.unwrap_err();
    assert!(matches!(problem, RegistryProblem::Away { .. }), "{problem:?}");
}

/// Which answers are about the subject, and which about the registry.
#[tokio::test]
async fn answers_are_judged_by_status_and_code() {
    for (status, body, is_refused) in [
        (404, r#"{"error_code": 40401, "message": "Subject 's' not found."}"#, true),
        (404, r#"{"error_code": 40403, "message": "Schema not found"}"#, true),
        (409, r#"{"error_code": 409, "message": "incompatible"}"#, true),
        (422, r#"{"error_code": 42201, "message": "no schema"}"#, true),
        (422, r#"{"error_code": 42205, "message": "Subject s is in read-only mode"}"#, false),
        (404, "<html>", false),
        // A path that the program does not have: `url` is wrong.
        (404, r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#, false),
        (400, r#"{"error_code": 400, "message": "HTTP 400 Bad Request"}"#, false),
        (401, r#"{"error_code": 401, "message": "Unauthorized"}"#, false),
        (403, r#"{"error_code": 40301, "message": "Denied"}"#, false),
        (429, r#"{"error_code": 42901, "message": "slow down"}"#, false),
        (500, r#"{"error_code": 50001, "message": "store"}"#, false),
        (503, "", false),
        (301, "", false),
        (200, "<html>", false),
        (200, "{}", false),
    ] {
        let canned = Canned::new(&[("GET", status, body)]);
        let problem = canned.registry().latest("s").await.unwrap_err();
        let found = matches!(problem, RegistryProblem::Refused(_));
        assert_eq!(found, is_refused, "{status} {body}: {problem:?}");
    }
    let words = "a\nb".repeat(1000);
    let body = serde_json::json!({"error_code": 40401, "message": words}).to_string();
    let canned = Canned::new(&[("GET", 404, &body)]);
    let RegistryProblem::Refused(words) = canned.registry().latest("s").await.unwrap_err() else {
        panic!("refused");
    };
    assert!(words.starts_with("HTTP 404, code 40401: a b") && words.len() < 300, "{words}");
}

#[tokio::test]
async fn the_login_is_read_for_each_request_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "hush\n").unwrap();
    let secret = SecretFile::new(file.clone());
    let canned = Canned::new(&[("GET", 401, "{}")]);
    let mut registry = canned.with_login(RegistryLogin::Bearer(secret.clone()));
    let problem = registry.latest("s").await.unwrap_err();
    assert!(!format!("{problem:?}{registry:?}").contains("hush"), "{problem:?}");
    std::fs::write(&file, "second").unwrap();
    registry.latest("s").await.unwrap_err();
    let username = "relay".to_owned();
    let mut registry = canned.with_login(RegistryLogin::Basic { username, password: secret });
    registry.latest("s").await.unwrap_err();
    std::fs::remove_file(&file).unwrap();
    let problem = registry.latest("s").await.unwrap_err();
    assert!(matches!(problem, RegistryProblem::Away { hint, .. } if hint == FILES_HINT));
    let seen = canned.seen();
    for (request, login) in
        seen.iter().zip(["Bearer hush", "Bearer second", "Basic cmVsYXk6c2Vjb25k"])
    {
        assert!(request.contains(&format!("authorization: {login}\r\n")), "{request}");
    }
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn the_second_url_is_asked_if_the_first_does_not_answer() {
    let canned = Canned::new(&[("GET", 200, r#"{"id": 1, "schema": "S"}"#)]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let mut registry = canned.registry();
    registry.settings.urls.insert(0, first);
    assert_eq!(registry.latest("s").await.unwrap().id.id, 1);
    assert_eq!(registry.url(), canned.url);
}
