//! `kprobectl auth`: who you are to the daemon, and what roles allow.
//!
//! Owns the questions and their exit codes. It never decides: the daemon does, by the same function as
//! for a real call.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kprobed_client::api::check_access_request::Object;
use kprobed_client::api::{CheckAccessRequest, CheckAccessResponse, GetCallerResponse};
use kprobed_document::json::json;
use serde_json::Value;

use super::connection::connect;
use super::documents::{self, Declared};
use super::probe_selection::{labels, pair};
use super::{Exit, Failure, input};
use crate::global::Global;
use crate::output::{Cell, Column, Output, Row, Table, Tone};

/// Arguments of `auth`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/auth.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    question: Question,
}

impl Arguments {
    /// Whether it prints a list.
    pub(crate) fn prints_list(&self) -> bool {
        matches!(&self.question, Question::CanI(CanI { file, .. }) if !file.is_empty())
    }
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show who the daemon takes you for, your roles, and the methods that you may call
    Whoami,
    /// Ask whether you, or another principal, may call a method
    #[command(name = "can-i")]
    CanI(CanI),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/auth-can-i.txt").trim_end())]
struct CanI {
    /// The method of the API; `kprobectl auth whoami` lists them
    #[arg(default_value = "CreateProbe")]
    method: String,
    /// The definition that the call is about
    definition: Vec<String>,
    /// The probe, or the event of the host, that the call is about: GROUP/EVENT
    #[arg(long, value_name = "NAME", conflicts_with = "definition")]
    name: Option<String>,
    /// Ask about the probes that these documents describe, as for `apply`
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["definition", "name"])]
    file: Vec<PathBuf>,
    /// The documents, once they are read.
    #[arg(skip)]
    declared: Vec<Declared>,
    /// Label of the probe; may be given more than once
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Another principal: `user:NAME`, `uid:N`, `group:NAME`, `gid:N`, `uri:URI`, `dns:NAME`; repeat it for each of
    /// its names
    #[arg(long = "as", value_name = "PRINCIPAL")]
    names: Vec<String>,
}

/// An answer, and the definition, the name or the method that it is about.
struct Answer {
    about: String,
    response: CheckAccessResponse,
}

impl Row for Answer {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ALLOWED", |answer| {
            if answer.response.allowed { ("yes", Tone::Good) } else { ("no", Tone::Doubtful) }.into()
        }),
        Column::new("ABOUT", |answer| Cell::text(&answer.about)),
        Column::new("READS", |answer| Cell::text(answer.response.reads.join(","))),
        Column::sentence("REASON", |answer| Cell::text(&answer.response.reason)),
    ];

    fn name(&self) -> String {
        self.about.clone()
    }

    fn json(&self) -> io::Result<Value> {
        let mut value = json(&self.response)?;
        value["about"] = self.about.as_str().into();
        Ok(value)
    }
}

impl Arguments {
    /// Reads the documents, once for all hosts.
    pub(crate) async fn read_files(&mut self) -> Result<(), Failure> {
        match &mut self.question {
            Question::CanI(CanI { file, declared, .. }) if !file.is_empty() => {
                *declared = documents::read(file, false).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments.question {
        Question::Whoami => {
            whoami(&connect(global).await?.caller().await?, output)?;
            Ok(Exit::Success)
        }
        Question::CanI(arguments) => can_i(global, arguments, output).await,
    }
}

async fn can_i(global: &Global, arguments: CanI, output: &mut Output) -> Result<Exit, Failure> {
    let CanI { method, definition, name, file, declared, labels: given, names } = arguments;
    let whole = CheckAccessRequest { names, method, labels: labels(&given)?, ..Default::default() };
    let mut asked = Vec::new();
    if !file.is_empty() {
        for one in declared {
            let document = one.entry.document;
            let labels = document.labels.into_iter().collect();
            let object = Some(Object::Definition(document.definition));
            asked.push((document.name, CheckAccessRequest { object, labels, ..whole.clone() }));
        }
    } else if let Some(name) = name {
        let object = Some(Object::Name(name.clone()));
        asked.push((name, CheckAccessRequest { object, ..whole }));
    } else if definition.is_empty() {
        asked.push((whole.method.clone(), whole));
    } else {
        let text = input::definition(&definition).await?;
        let object = Some(Object::Definition(text.clone()));
        asked.push((text, CheckAccessRequest { object, ..whole }));
    }
    let client = connect(global).await?;
    let mut answers = Vec::new();
    for (about, request) in asked {
        answers.push(Answer { about, response: client.check_access(request).await? });
    }
    if let [Answer { response, .. }] = &answers[..] {
        if !output.message_structured(response)? {
            let answer = if response.allowed { "yes" } else { "no" };
            output.line(&format!("{answer}: {}", response.reason))?;
            if !response.reads.is_empty() {
                output.line(&format!("it reads {}", response.reads.join(", ")))?;
            }
        }
    } else {
        output.rows(&answers)?;
    }
    Ok(if answers.iter().all(|one| one.response.allowed) { Exit::Success } else { Exit::Refused })
}

fn whoami(caller: &GetCallerResponse, output: &mut Output) -> io::Result<()> {
    if output.message_structured(caller)? {
        return Ok(());
    }
    let listed = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    output.line(&format!("Principal:  {}", caller.principal))?;
    output.line(&format!("Names:      {}", listed(&caller.names)))?;
    output.line(&format!("Roles:      {}", listed(&caller.roles)))?;
    output.line(&format!("Methods:    {}", listed(&caller.methods)))?;
    output.line("")?;
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
    output.table(&table)
}
