//! Reads records, one a line, and prints each whose effect is to happen.

use std::collections::{HashMap, HashSet};
use std::io::BufRead;

// docs: begin
/// What this consumer has seen. Keep both tables in the database of its effects.
#[derive(Default)]
pub struct Inbox {
    /// Aggregate to highest position.
    highest: HashMap<String, String>,
    /// Aggregate, history and id, of the last days.
    ids: HashSet<[String; 3]>,
}

impl Inbox {
    /// Whether the effect of this record is to happen. Call it in the effect's transaction.
    pub fn is_new(&mut self, aggregate: &str, headers: &HashMap<&str, &str>) -> bool {
        let position = headers.get("position");
        if let Some(position) = position {
            let highest = self.highest.entry(aggregate.to_owned()).or_default();
            if *position <= highest.as_str() {
                return false;
            }
            *highest = (*position).to_owned();
        }
        let history = position.map_or_else(|| headers["history"], |position| &position[..8]);
        self.ids.insert([aggregate, history, headers["id"]].map(str::to_owned))
    }
}
// docs: end

fn main() {
    let mut inbox = Inbox::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let parts: Vec<&str> = line.split('\t').collect();
        let fields = ["id", "position", "history"];
        let named = fields.into_iter().zip(parts[1..4].iter().copied());
        let headers = named.filter(|(_, text)| !text.is_empty()).collect();
        if inbox.is_new(parts[0], &headers) {
            println!("{}\t{}", parts[0], parts[4]);
        }
    }
}
