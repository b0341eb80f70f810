//! Templates: `{field}` is a field's text, `{a|b}` the first of them that is not NULL, `{{` and `}}` are braces.
//!
//! Compiled once; one that is a single field or plain text costs nothing at run time.

use super::debezium::{self, Place};
use super::span::{Extent, FieldId, Row, Span};

/// A compiled template.
#[derive(Debug, Default)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// Fields are written as Debezium does in this place; `None`: as PostgreSQL renders them.
    place: Option<Place>,
}

#[derive(Debug)]
enum Piece {
    /// Plain text, in the fixed text.
    Text(Extent),
    /// The first of these that is not NULL.
    Field(Vec<FieldId>),
}

/// One piece of a template's text.
enum Token<'t> {
    Text(char),
    Field(&'t str),
}

/// Why a template can't be compiled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateError {
    Syntax(&'static str),
    Unknown(String),
}

fn tokens(text: &str) -> impl Iterator<Item = Result<Token<'_>, &'static str>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut chars = rest.chars();
        let first = chars.next()?;
        let after = chars.as_str();
        let (token, left) = match first {
            '{' | '}' if after.starts_with(first) => (Ok(Token::Text(first)), after.get(1..)),
            '{' => match after.split_once('}') {
                Some((name, left)) => (Ok(Token::Field(name)), Some(left)),
                None => (Err("\"{\" without \"}\"; a brace itself is written \"{{\""), None),
            },
            '}' => (Err("\"}\" without \"{\"; a brace itself is written \"}}\""), None),
            other => (Ok(Token::Text(other)), Some(after)),
        };
        rest = left.unwrap_or_default();
        Some(token)
    })
}

/// The names a template mentions; none where it can't be read.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    tokens(text)
        .filter_map(|token| match token {
            Ok(Token::Field(names)) => Some(names.split('|').map(str::trim)),
            Ok(Token::Text(_)) | Err(_) => None,
        })
        .flatten()
}

/// A piece of a template before its names are looked up.
pub(super) enum Raw {
    Text(String),
    Field(Vec<String>),
}

/// A template in pieces; `None` where it can't be read.
pub(super) fn pieces(text: &str) -> Option<Vec<Raw>> {
    let mut pieces = Vec::new();
    for token in tokens(text) {
        match token.ok()? {
            Token::Text(char) => match pieces.last_mut() {
                Some(Raw::Text(text)) => text.push(char),
                Some(Raw::Field(_)) | None => pieces.push(Raw::Text(char.to_string())),
            },
            Token::Field(names) => {
                pieces.push(Raw::Field(
                    names.split('|').map(|name| name.trim().to_owned()).collect(),
                ));
            }
        }
    }
    Some(pieces)
}

impl Template {
    /// Compiles `text`, putting its plain parts into `fixed`.
    pub(super) fn compile(
        text: &str,
        fixed: &mut String,
        field: impl Fn(&str) -> Option<FieldId>,
    ) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        for token in tokens(text) {
            match token.map_err(TemplateError::Syntax)? {
                Token::Text(char) => {
                    let start = fixed.len();
                    fixed.push(char);
                    let len = char.len_utf8();
                    match pieces.last_mut() {
                        Some(Piece::Text(extent)) => extent.len += len,
                        Some(Piece::Field(_)) | None => {
                            pieces.push(Piece::Text(Extent { start, len }));
                        }
                    }
                }
                Token::Field(names) => {
                    let known = |name: &str| {
                        field(name.trim()).ok_or_else(|| TemplateError::Unknown(name.to_owned()))
                    };
                    pieces
                        .push(Piece::Field(names.split('|').map(known).collect::<Result<_, _>>()?));
                }
            }
        }
        Ok(Self { pieces, place: None })
    }

    /// One field alone.
    pub(super) fn field(field: FieldId) -> Self {
        Self { pieces: vec![Piece::Field(vec![field])], place: None }
    }

    /// The same, with its fields as Debezium writes them in `place`.
    pub(super) fn written_in(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The text for `row`: where it lies, or the field that is NULL.
    #[inline]
    pub(super) fn fill(
        &self,
        row: &Row<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        match self.pieces.as_slice() {
            [] => Ok(Span::Fixed(Extent { start: 0, len: 0 })),
            [Piece::Text(extent)] => Ok(Span::Fixed(*extent)),
            [Piece::Field(ids)] => self.value(ids, row, scratch),
            _ => self.join(row, fixed, scratch),
        }
    }

    /// The text of its fields alone, without its own.
    pub(super) fn fill_fields(
        &self,
        row: &Row<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        let mut fields = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(ids) => Some(ids),
            Piece::Text(_) => None,
        });
        match (fields.next(), fields.next()) {
            (None, _) => self.fill(row, fixed, scratch),
            (Some(ids), None) => self.value(ids, row, scratch),
            (Some(_), Some(_)) => {
                let start = scratch.len();
                for piece in &self.pieces {
                    if let Piece::Field(ids) = piece {
                        self.append(ids, row, scratch)?;
                    }
                }
                Ok(Span::since(start, scratch))
            }
        }
    }

    /// One field.
    #[inline]
    fn value(
        &self,
        ids: &[FieldId],
        row: &Row<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        let (field, extent) = first(ids, row)?;
        Ok(match self.place {
            None => Span::Row(extent),
            Some(place) => debezium::text(row, field, place, scratch),
        })
    }

    /// One field among other text.
    fn append(&self, ids: &[FieldId], row: &Row<'_>, scratch: &mut Vec<u8>) -> Result<(), FieldId> {
        match self.value(ids, row, scratch)? {
            Span::Row(extent) => scratch.extend_from_slice(row.at(extent)),
            // It has been written there.
            Span::Scratch(_) | Span::Null | Span::Fixed(_) => {}
        }
        Ok(())
    }

    fn join(&self, row: &Row<'_>, fixed: &str, scratch: &mut Vec<u8>) -> Result<Span, FieldId> {
        let start = scratch.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(extent) => scratch.extend_from_slice(extent.of(fixed.as_bytes())),
                Piece::Field(ids) => self.append(ids, row, scratch)?,
            }
        }
        Ok(Span::since(start, scratch))
    }
}

fn first(ids: &[FieldId], row: &Row<'_>) -> Result<(FieldId, Extent), FieldId> {
    let found = ids.iter().find_map(|id| Some((*id, row.extent(*id)?)));
    // A template always names at least one field, so the last is there.
    found.ok_or_else(|| ids.last().copied().unwrap_or_default())
}
