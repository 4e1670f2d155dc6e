//! `kprobectl vars`: the variables at a place, and how a probe reads them.

use std::io;

use clap::Args;
use kprobed_lines::{Argument, Definition, Place, Visible};
use serde_json::{Value, json};

use super::lines::{build, host};
use super::{Exit, Failure};
use crate::global::{Format, Global};
use crate::lines::shared;
use crate::output::{Cell, Column, Output, Row, Tone};

/// Arguments of `vars`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/vars.txt"))]
pub(crate) struct Arguments {
    /// FUNC, FUNC:LINE, FILE:LINE or a pattern, with `MODULE:` before it for a module
    #[arg(value_name = "PLACE")]
    place: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Definition { module, target, .. } = Definition::parse(&arguments.place)?;
    let host = host(global).await?;
    let build = build(global, host.as_ref(), module.as_deref(), &target).await?;
    let found = global
        .lines
        .ask(&build, move |info, sources| {
            let places = info.places(&target, &|path| sources.text(path))?;
            let all = places.into_iter().map(|place| Ok((info.variables(&place)?, place)));
            all.collect::<Result<Vec<_>, _>>()
        })
        .await?;
    let is_one = found.len() == 1;
    for (number, (variables, place)) in found.into_iter().enumerate() {
        // Rows for programs have their place themselves.
        if matches!(global.output, Format::Table | Format::Wide) {
            let copy =
                place.inlined_into.as_ref().map(|into| format!(", inlined into {into}")).unwrap_or_default();
            let (file, line) = (&place.source.file, place.source.line);
            if !is_one && number > 0 {
                output.line("")?;
            }
            output.line(&format!("{} ({file}:{line}{copy})", place.text))?;
        }
        if let Some(remark) = shared(&place) {
            output.remark(&remark);
        }
        let rows: Vec<_> =
            variables.into_iter().map(|visible| Variable { visible, place: place.clone() }).collect();
        output.part_of_rows(&rows, number == 0)?;
    }
    Ok(Exit::Success)
}

/// A variable at a place.
struct Variable {
    visible: Visible,
    place: Place,
}

impl Variable {
    /// What the kernel fetches; empty if nothing does.
    fn fetched(&self) -> String {
        let argument = self.visible.argument.as_ref().ok().filter(|argument| argument.objection().is_none());
        argument.map(Argument::text).unwrap_or_default()
    }

    /// Why nothing fetches it; empty if something does.
    fn reason(&self) -> String {
        let problem = match &self.visible.argument {
            Ok(argument) => argument.objection(),
            Err(error) => Some(error.clone()),
        };
        problem.map(|problem| problem.to_string()).unwrap_or_default()
    }
}

impl Row for Variable {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("VARIABLE", |row| {
            let tone = if row.fetched().is_empty() { Tone::Faint } else { Tone::Plain };
            Cell::toned(&row.visible.name, tone)
        }),
        Column::new("C TYPE", |row| Cell::text(&row.visible.ty)),
        Column::new("ARGUMENT", |row| Cell::text(row.fetched())),
        Column::wide("PLACE", |row| Cell::text(&row.place.text)),
        Column::sentence("WHY NOT", |row| Cell::text(row.reason())),
    ];

    fn json(&self) -> io::Result<Value> {
        let (fetched, reason) = (self.fetched(), self.reason());
        Ok(json!({
            "name": self.visible.name,
            "type": self.visible.ty,
            "parameter": self.visible.is_parameter,
            "argument": Some(fetched).filter(|text| !text.is_empty()),
            "reason": Some(reason).filter(|text| !text.is_empty()),
            "place": self.place.text,
            "file": self.place.source.file,
            "line": self.place.source.line,
        }))
    }
}
