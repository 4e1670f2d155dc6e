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
pub(crate) struct Answered {
    /// The definition, the name or the method that was asked about.
    pub(crate) about: String,
    /// What a table of cases expects.
    pub(crate) expected: Option<bool>,
    /// The answer.
    pub(crate) response: CheckAccessResponse,
}

/// An answer, as JSON and YAML.
#[derive(Serialize)]
struct AnswerView<'a> {
    about: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<bool>,
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
    pub(crate) fn access(&mut self, answers: &[Answered]) -> io::Result<()> {
        let views = answers.iter().map(|Answered { about, expected, response }| AnswerView {
            about,
            expected: *expected,
            response: Json::full(response),
        });
        if self.structured(&views.collect::<Vec<_>>())? {
            return Ok(());
        }
        if let [Answered { expected: None, response, .. }] = answers {
            let answer = if response.allowed { "yes" } else { "no" };
            self.line(&format!("{answer}: {}", response.reason))?;
            if !response.reads.is_empty() {
                self.line(&format!("it reads {}", response.reads.join(", ")))?;
            }
            return Ok(());
        }
        let mut table = Table::new(&["ALLOWED", "EXPECTED", "ABOUT", "READS", "REASON"]);
        for Answered { about, expected, response } in answers {
            let word = |allowed: bool| if allowed { "yes" } else { "no" };
            let tone = match expected {
                Some(expected) if *expected != response.allowed => Tone::Bad,
                Some(_) => Tone::Good,
                None if response.allowed => Tone::Good,
                None => Tone::Doubtful,
            };
            table.row(vec![
                Cell::toned(word(response.allowed), tone),
                Cell::text(expected.map_or("-", word)),
                Cell::text(about),
                Cell::text(response.reads.join(",")),
                Cell::text(&response.reason),
            ]);
        }
        self.table(&table)
    }
}
