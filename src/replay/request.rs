//! What a person asks for, and the form in which a row keeps it for `--resume`.

use crate::event::{PgTime, Position};
use crate::lsn::Lsn;
use serde_json::{Value, json};

/// What is to be published again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Where it begins.
    pub from: From,
    /// Where it ends; `None` with what is committed when it begins.
    pub until: Option<Until>,
    /// Only events of these ids; empty for any.
    pub ids: Vec<String>,
    /// Only events of this aggregate, type and id.
    pub aggregate: Option<(String, String)>,
    /// The topic; `None` for each event's own.
    pub to: Option<String>,
    /// Whether events of aggregates that have parked events are published too.
    pub include_parked: bool,
    /// Where events are read from.
    pub source: SourceChoice,
}

/// Where a replay begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// At a bookmark.
    Bookmark(String),
    /// At a position: everything that commits at it or later, of its own transaction from the ordinal on.
    Lsn {
        /// The position.
        at: Position,
        /// The timeline it was seen on, where that is known.
        timeline: Option<u32>,
    },
    /// With what was committed at this time or later (in the table: with rows of this time or later).
    Since(PgTime),
    /// Wherever there is something.
    Anywhere,
}

/// Where a replay ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Before what commits at it or later.
    Lsn(Lsn),
    /// Before what was committed at this time or later.
    Time(PgTime),
}

/// Where events are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SourceChoice {
    /// The log where a bookmark reaches back far enough, else the table.
    #[default]
    Auto,
    /// The log.
    Wal,
    /// The table.
    Table,
}

impl Request {
    /// As the row keeps it.
    pub(super) fn to_json(&self) -> String {
        let from = match &self.from {
            From::Bookmark(name) => json!({"bookmark": name}),
            From::Lsn { at, timeline } => {
                json!({"lsn": at.commit_lsn.to_string(), "ordinal": at.ordinal, "timeline": timeline})
            }
            From::Since(time) => json!({"since": time.micros}),
            From::Anywhere => Value::Null,
        };
        let until = self.until.map(|until| match until {
            Until::Lsn(lsn) => json!({"lsn": lsn.to_string()}),
            Until::Time(time) => json!({"time": time.micros}),
        });
        let source = match self.source {
            SourceChoice::Auto => "auto",
            SourceChoice::Wal => "wal",
            SourceChoice::Table => "table",
        };
        json!({
            "from": from,
            "until": until,
            "ids": self.ids,
            "aggregate": self.aggregate.as_ref().map(|(kind, id)| [kind, id]),
            "to": self.to,
            "include_parked": self.include_parked,
            "source": source,
        })
        .to_string()
    }

    /// From what a row keeps; `None` where that is of another version, or was changed by hand.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let time = |value: &Value| Some(PgTime { micros: value.as_i64()? });
        let from = &value["from"];
        let from = if let Some(name) = from["bookmark"].as_str() {
            From::Bookmark(name.to_owned())
        } else if let Some(lsn) = from["lsn"].as_str() {
            let at = Position { commit_lsn: lsn.parse().ok()?, ordinal: from["ordinal"].as_u64()? };
            let timeline = from["timeline"].as_u64().and_then(|number| u32::try_from(number).ok());
            From::Lsn { at, timeline }
        } else if from.is_object() {
            From::Since(time(&from["since"])?)
        } else {
            From::Anywhere
        };
        let until = &value["until"];
        let until = if until.is_null() {
            None
        } else if let Some(lsn) = until["lsn"].as_str() {
            Some(Until::Lsn(lsn.parse().ok()?))
        } else {
            Some(Until::Time(time(&until["time"])?))
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let aggregate = &value["aggregate"];
        Some(Self {
            from,
            until,
            ids: value["ids"].as_array()?.iter().map(text).collect::<Option<_>>()?,
            aggregate: text(&aggregate[0]).zip(text(&aggregate[1])),
            to: text(&value["to"]),
            include_parked: value["include_parked"].as_bool()?,
            source: match value["source"].as_str()? {
                "auto" => SourceChoice::Auto,
                "wal" => SourceChoice::Wal,
                "table" => SourceChoice::Table,
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_everything_that_was_asked_for() {
        let lsn = |text: &str| text.parse::<Lsn>().unwrap();
        let at = Position { commit_lsn: lsn("0/1A2B3C8"), ordinal: 5 };
        let plain = Request {
            from: From::Anywhere,
            until: None,
            ids: Vec::new(),
            aggregate: None,
            to: None,
            include_parked: false,
            source: SourceChoice::Auto,
        };
        let whole = Request {
            from: From::Bookmark("b".to_owned()),
            until: Some(Until::Time(PgTime { micros: -7 })),
            ids: vec!["1".to_owned(), "ü\"".to_owned()],
            aggregate: Some(("order".to_owned(), "a:b".to_owned())),
            to: Some("again".to_owned()),
            include_parked: true,
            source: SourceChoice::Table,
        };
        let of = |from: From| Request { from, source: SourceChoice::Wal, ..plain.clone() };
        let until = Request { until: Some(Until::Lsn(lsn("1/2"))), ..plain.clone() };
        let all = [
            of(From::Lsn { at, timeline: Some(2) }),
            of(From::Since(PgTime { micros: 9 })),
            until,
            whole,
            plain.clone(),
        ];
        for request in all {
            assert_eq!(Request::from_json(&request.to_json()).as_ref(), Some(&request));
        }
        assert_eq!(Request::from_json("{}"), None);
    }
}
