//! Answers about rights.

use std::io;

use kprobed_client::api::{CheckAccessResponse, GetCallerResponse};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::style::Tone;
use super::table::{Cell, Table};

/// An answer, and what it is about.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The definition, the name or the method that was asked about.
    pub(crate) about: String,
    /// The answer.
    pub(crate) response: CheckAccessResponse,
}

/// An answer, as JSON and YAML.
#[derive(Serialize)]
struct AnswerView<'a> {
    about: &'a str,
    #[serde(flatten)]
    response: Json,
}

impl Output {
    /// Prints who the caller is.
    pub(crate) fn caller(&mut self, caller: &GetCallerResponse) -> io::Result<()> {
        if self.structured(&Json::full(caller))? {
            return Ok(());
        }
        let listed = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
        self.line(&format!("Principal:  {}", caller.principal))?;
        self.line(&format!("Names:      {}", listed(&caller.names)))?;
        self.line(&format!("Roles:      {}", listed(&caller.roles)))?;
        self.line(&format!("Methods:    {}", listed(&caller.methods)))?;
        self.line("")?;
        let mut table = Table::new(&["LIMIT", "HELD", "MOST", "SET BY"]);
        for limit in &caller.limits {
            let set_by = match limit.line {
                0 => "-".to_owned(),
                line => format!("role {}, line {line}", limit.role),
            };
            table.row(vec![
                Cell::text(&limit.name),
                Cell::text(limit.held.to_string()),
                Cell::text(limit.most.map_or_else(|| "unlimited".to_owned(), |most| most.to_string())),
                Cell::text(set_by),
            ]);
        }
        self.table(&table)
    }

    /// Prints answers, one below the other.
    pub(crate) fn access(&mut self, answers: &[Answer]) -> io::Result<()> {
        let views = answers
            .iter()
            .map(|Answer { about, response }| AnswerView { about, response: Json::full(response) });
        if self.structured(&views.collect::<Vec<_>>())? {
            return Ok(());
        }
        if let [Answer { response, .. }] = answers {
            let answer = if response.allowed { "yes" } else { "no" };
            self.line(&format!("{answer}: {}", response.reason))?;
            if !response.reads.is_empty() {
                self.line(&format!("it reads {}", response.reads.join(", ")))?;
            }
            return Ok(());
        }
        let mut table = Table::new(&["ALLOWED", "ABOUT", "READS", "REASON"]);
        for Answer { about, response } in answers {
            let (word, tone) = if response.allowed { ("yes", Tone::Good) } else { ("no", Tone::Doubtful) };
            table.row(vec![
                Cell::toned(word, tone),
                Cell::text(about),
                Cell::text(response.reads.join(",")),
                Cell::text(&response.reason),
            ]);
        }
        self.table(&table)
    }
}
