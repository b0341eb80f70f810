//! The client of a schema registry with Confluent's interface: the latest version of a subject, looking a schema up,
//! registering one, and the schemas that it refers to.

use super::framing::{SchemaId, uuid_bytes};
use crate::https::{HttpsClient, HttpsConnectError, HttpsError, HttpsRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use postrider_core::secret_file::SecretFile;
use postrider_sinks::tls::TlsFiles;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

/// The largest answer. Unit: bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The schemas that one schema refers to, directly and through others.
const REFERENCES_MAX: usize = 200;

/// Words of a registry that are repeated. Unit: bytes.
const WORDS_BYTES_MAX: usize = 240;

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/vnd.schemaregistry.v1+json");

/// How the registry knows the relay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum RegistryLogin {
    #[default]
    None,
    Bearer(SecretFile),
    Basic {
        username: String,
        password: SecretFile,
    },
}

/// What a registry is reached with.
#[derive(Clone, Debug)]
pub(super) struct RegistrySettings {
    /// In the order in which they are tried. Without a slash at the end.
    pub(super) urls: Vec<String>,
    pub(super) login: RegistryLogin,
    pub(super) tls: TlsFiles,
    /// For a request with its answer.
    pub(super) timeout: Duration,
}

/// The language of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SchemaKind {
    Avro,
    JsonSchema,
    Protobuf,
    /// One that this client does not know.
    Other,
}

impl SchemaKind {
    /// The name in the registry's interface.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Avro => "AVRO",
            Self::JsonSchema => "JSON",
            Self::Protobuf => "PROTOBUF",
            Self::Other => "another type",
        }
    }

    fn of_name(name: &str) -> Self {
        let known = [Self::Avro, Self::JsonSchema, Self::Protobuf];
        known.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Other)
    }
}

/// A schema of the registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegisteredSchema {
    pub(super) id: SchemaId,
    pub(super) kind: SchemaKind,
    pub(super) text: String,
    /// The schemas that it refers to, by the names that it has for them. Each stands behind those that it refers to
    /// itself.
    pub(super) references: Vec<ReferencedSchema>,
}

/// A schema that another one refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ReferencedSchema {
    pub(super) name: String,
    pub(super) text: String,
}

/// Why there is no schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RegistryProblem {
    /// The registry does not answer, or not to this client. It says nothing about the subject: the event waits.
    Away {
        /// In one line, without secrets.
        reason: String,
        hint: &'static str,
    },
    /// The registry has answered that it has no such schema, or refuses it. In the registry's own words.
    Refused(String),
}

const URL_HINT: &str =
    "start the registry, or correct format.registry.url; requests are repeated automatically";
const LOGIN_HINT: &str = "correct format.registry.token_file, or username and password_file, or give this user the \
                          right to the subject";
const TLS_HINT: &str = "let the host in format.registry.url be a name of the registry's certificate, and \
                        format.registry.ca_file the authority that signed it";
const FILES_HINT: &str = "correct the files of format.registry";
const SERVER_HINT: &str = "look into the registry's log; requests are repeated automatically";
const MODE_HINT: &str = "set the registry's mode to READWRITE, or register = false";

/// The client. One request at a time.
#[derive(Debug)]
pub(super) struct Registry {
    client: HttpsClient,
    settings: RegistrySettings,
    /// The URL that has answered last.
    current: usize,
}

impl Registry {
    pub(super) fn new(settings: RegistrySettings) -> Self {
        let client = HttpsClient::new(settings.tls.clone(), settings.timeout);
        Self { client, settings, current: 0 }
    }

    /// The newest version of a subject.
    ///
    /// # Errors
    /// [`RegistryProblem`].
    pub(super) async fn latest(
        &mut self,
        subject: &str,
    ) -> Result<RegisteredSchema, RegistryProblem> {
        let path = format!("/subjects/{}/versions/latest", escaped(subject));
        let answer = self.ask(Method::GET, &path, None).await?;
        self.schema_of(&answer).await
    }

    /// The id of a schema that a subject has.
    ///
    /// # Errors
    /// [`RegistryProblem`].
    pub(super) async fn look_up(
        &mut self,
        subject: &str,
        kind: SchemaKind,
        text: &str,
    ) -> Result<RegisteredSchema, RegistryProblem> {
        let path = format!("/subjects/{}", escaped(subject));
        let answer = self.ask(Method::POST, &path, Some(&body(kind, text))).await?;
        self.schema_of(&answer).await
    }

    /// Adds a schema to a subject, unless the subject has it.
    ///
    /// # Errors
    /// [`RegistryProblem`].
    pub(super) async fn register(
        &mut self,
        subject: &str,
        kind: SchemaKind,
        text: &str,
    ) -> Result<RegisteredSchema, RegistryProblem> {
        let path = format!("/subjects/{}/versions", escaped(subject));
        self.ask(Method::POST, &path, Some(&body(kind, text))).await?;
        // Answers of registries differ in what they have beside the id.
        match self.look_up(subject, kind, text).await {
            // Another node of the registry, which has not read it yet.
            Err(RegistryProblem::Refused(words)) => {
                let reason = format!("it does not have the schema that it has registered: {words}");
                Err(self.away(reason, SERVER_HINT))
            }
            found => found,
        }
    }

    /// Whether the registry answers and accepts the login.
    ///
    /// # Errors
    /// [`RegistryProblem`].
    pub(super) async fn greet(&mut self) -> Result<(), RegistryProblem> {
        self.ask(Method::GET, "/schemas/types", None).await.map(drop)
    }

    /// The URL that has answered last.
    pub(super) fn url(&self) -> &str {
        self.settings.urls.get(self.current).map_or("", String::as_str)
    }

    async fn schema_of(&mut self, answer: &Value) -> Result<RegisteredSchema, RegistryProblem> {
        let strange = |what: &str| self.away(format!("its answer has no {what}"), URL_HINT);
        let id = answer.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| strange("id"))?;
        let text = answer.get("schema").and_then(Value::as_str);
        let text = text.ok_or_else(|| strange("schema"))?.to_owned();
        let kind = answer.get("schemaType").and_then(Value::as_str);
        let guid = answer.get("guid").and_then(Value::as_str).and_then(uuid_bytes);
        let references = self.references(answer).await?;
        Ok(RegisteredSchema {
            id: SchemaId { id, guid },
            kind: kind.map_or(SchemaKind::Avro, SchemaKind::of_name),
            text,
            references,
        })
    }

    /// The schemas that an answer refers to, the innermost first.
    async fn references(
        &mut self,
        answer: &Value,
    ) -> Result<Vec<ReferencedSchema>, RegistryProblem> {
        // Each with whether those that it refers to are behind it on the stack already.
        let mut stack: Vec<(PendingReference, Option<String>)> =
            of_answer(answer).into_iter().rev().map(|reference| (reference, None)).collect();
        let (mut known, mut found) = (HashSet::new(), Vec::new());
        while let Some((reference, text)) = stack.pop() {
            if let Some(text) = text {
                found.push(ReferencedSchema { name: reference.name, text });
                continue;
            }
            if !known.insert(reference.name.clone()) {
                continue;
            }
            if known.len() > REFERENCES_MAX {
                let words = format!("the schema refers to more than {REFERENCES_MAX} others");
                return Err(RegistryProblem::Refused(words));
            }
            let path =
                format!("/subjects/{}/versions/{}", escaped(&reference.subject), reference.version);
            let answer = self.ask(Method::GET, &path, None).await?;
            let Some(text) = answer.get("schema").and_then(Value::as_str) else {
                return Err(self.away("its answer has no schema".to_owned(), URL_HINT));
            };
            stack.push((reference, Some(text.to_owned())));
            stack.extend(of_answer(&answer).into_iter().rev().map(|inner| (inner, None)));
        }
        Ok(found)
    }

    fn away(&self, reason: impl std::fmt::Display, hint: &'static str) -> RegistryProblem {
        RegistryProblem::Away { reason: format!("schema registry {}: {reason}", self.url()), hint }
    }

    /// Sends a request to the URL that has answered last, or else to the others.
    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&str>,
    ) -> Result<Value, RegistryProblem> {
        let mut last = None;
        for _ in 0..self.settings.urls.len().max(1) {
            match self.ask_one(method.clone(), path, body).await {
                Err(problem @ RegistryProblem::Away { .. }) => {
                    last = Some(problem);
                    self.current = (self.current + 1) % self.settings.urls.len().max(1);
                }
                answered => return answered,
            }
        }
        Err(last.unwrap_or_else(|| self.away("it has no URL", URL_HINT)))
    }

    async fn ask_one(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
    ) -> Result<Value, RegistryProblem> {
        let url: Uri = format!("{}{path}", self.url())
            .parse()
            .map_err(|_invalid| self.away("it has no URL that can be used", URL_HINT))?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, MEDIA_TYPE);
        if body.is_some() {
            headers.insert(CONTENT_TYPE, MEDIA_TYPE);
        }
        if let Some(login) = self.authorization()? {
            headers.insert(AUTHORIZATION, login);
        }
        let request = HttpsRequest {
            method,
            url,
            headers,
            body: body.map_or_else(Bytes::new, |body| Bytes::from(body.to_owned())),
            timeout: self.settings.timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let answer = self.client.send(request).await.map_err(|error| self.not_answered(&error))?;
        let document: Option<Value> = serde_json::from_slice(&answer.body).ok();
        if answer.status.is_success() {
            return document.ok_or_else(|| self.away("its answer is no JSON", URL_HINT));
        }
        let media = answer.headers.get(CONTENT_TYPE).and_then(|media| media.to_str().ok());
        Err(self.refused(answer.status, document.as_ref(), media))
    }

    /// Read for each request, because secrets are renewed while the process runs.
    fn authorization(&self) -> Result<Option<HeaderValue>, RegistryProblem> {
        let (text, file) = match &self.settings.login {
            RegistryLogin::None => return Ok(None),
            RegistryLogin::Bearer(file) => {
                (file.read().map(|token| format!("Bearer {}", token.trim())), file)
            }
            RegistryLogin::Basic { username, password } => {
                let encoded = |secret| STANDARD.encode(format!("{username}:{secret}"));
                (password.read().map(|secret| format!("Basic {}", encoded(secret))), password)
            }
        };
        let text = text.map_err(|error| self.away(error, FILES_HINT))?;
        let mut header = HeaderValue::from_str(&text).map_err(|_invalid| {
            let path = file.path().display();
            self.away(format!("\"{path}\" has characters that a header can't have"), FILES_HINT)
        })?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    fn not_answered(&self, error: &HttpsError) -> RegistryProblem {
        let hint = match error {
            HttpsError::Connect(connect) => match &**connect {
                HttpsConnectError::Files(_) => FILES_HINT,
                error if error.is_certificate() => TLS_HINT,
                HttpsConnectError::Tls(_)
                | HttpsConnectError::Resolve(_)
                | HttpsConnectError::Tcp(_)
                | HttpsConnectError::Late(_) => URL_HINT,
            },
            HttpsError::Late(_) | HttpsError::Lost(_) | HttpsError::TooLarge { .. } => URL_HINT,
        };
        self.away(error, hint)
    }

    /// What an answer that is no success means: by its status and the registry's own code, never by its words.
    fn refused(
        &self,
        status: StatusCode,
        document: Option<&Value>,
        media: Option<&str>,
    ) -> RegistryProblem {
        let code = document.and_then(|document| document.get("error_code")?.as_u64());
        let message = document.and_then(|document| document.get("message")?.as_str());
        let words = plain_words(message.unwrap_or_default());
        let number = status.as_u16();
        let shown = if let Some(code) = code {
            format!("HTTP {number}, code {code}: {words}")
        } else {
            // A page of a proxy, or of another program.
            let media = media.map_or_else(String::new, |media| format!(", {}", plain_words(media)));
            format!("HTTP {number}{media}")
        };
        match (status, code) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                self.away(format!("it does not accept the login: {shown}"), LOGIN_HINT)
            }
            // The subject, or the whole registry, may only be read now.
            (StatusCode::UNPROCESSABLE_ENTITY, Some(42205)) => {
                self.away(format!("it accepts no schemas: {shown}"), MODE_HINT)
            }
            // Registries answer a path that they do not have with code 404, and a subject or version that they do not
            // have with a code of five digits.
            (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST, Some(10_000..))
            | (StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY, Some(_)) => {
                RegistryProblem::Refused(shown)
            }
            (status, _) if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                self.away(format!("it fails: {shown}"), SERVER_HINT)
            }
            (_, _) => self.away(format!("it answers as no registry does: {shown}"), URL_HINT),
        }
    }
}

/// A reference that is not resolved yet.
struct PendingReference {
    name: String,
    subject: String,
    version: u64,
}

fn of_answer(answer: &Value) -> Vec<PendingReference> {
    let text = |value: &Value, member: &str| Some(value.get(member)?.as_str()?.to_owned());
    let reference = |value: &Value| {
        Some(PendingReference {
            name: text(value, "name")?,
            subject: text(value, "subject")?,
            version: value.get("version")?.as_u64()?,
        })
    };
    let all = answer.get("references").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(reference).collect()
}

fn body(kind: SchemaKind, text: &str) -> String {
    match kind {
        // Old registries know no other type, and not this member.
        SchemaKind::Avro => json!({ "schema": text }).to_string(),
        SchemaKind::JsonSchema | SchemaKind::Protobuf | SchemaKind::Other => {
            json!({ "schema": text, "schemaType": kind.name() }).to_string()
        }
    }
}

/// A subject in a path.
fn escaped(subject: &str) -> String {
    let mut escaped = String::with_capacity(subject.len());
    for byte in subject.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _written = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// The registry's words in one line, shortened.
fn plain_words(message: &str) -> String {
    let end = message.floor_char_boundary(WORDS_BYTES_MAX);
    let shown = message.get(..end).unwrap_or_default();
    let mut words: String = shown.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if end < message.len() {
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests;
