//! `kprobectl lines`: the lines of a source that can be probed, definitions by source, and indexes; and
//! `kprobectl vars`: the variables at a place, and how a probe reads them.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{CodeInstruction, ProbeKind};
use kprobed_document::document_of;
use kprobed_lines::{Argument, Definition, LinesError, Listing, MadeOfLine, Place, Target, Visible};
use serde_json::{Value, json};

use super::connection::connect;
use super::definitions::note_lines;
use super::{Exit, Failure};
use crate::global::{Format, Global};
use crate::lines::{Build, DebugFiles, LineProblem, Places, keep, shared};
use crate::output::{Cell, Column, Output, Row, Tone, arming};

/// Arguments of `lines`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/lines.txt"))]
pub(crate) struct Arguments {
    /// FUNC, FUNC:FIRST-LAST or FILE:FIRST-LAST, with `MODULE:` before it for a module
    #[arg(value_name = "RANGE", required_unless_present_any = ["definitions", "make_index", "port"])]
    range: Option<String>,
    /// Print the kernel's lines of this definition; may be given more than once
    #[arg(short = 'D', long = "definition", value_name = "DEFINITION", conflicts_with = "range")]
    definitions: Vec<String>,
    /// Print the definition of this probe for the running kernel: that of the same source line
    #[arg(long, value_name = "NAME", conflicts_with_all = ["range", "definitions", "make_index"])]
    port: Option<String>,
    /// Make an index of this file or package
    #[arg(long, value_name = "FILE", conflicts_with_all = ["range", "definitions"])]
    pub(crate) make_index: Option<PathBuf>,
    /// Where to write the index [default: where commands of this user look for it]
    #[arg(long, value_name = "FILE", requires = "make_index")]
    to: Option<PathBuf>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments {
        Arguments { make_index: Some(path), to, .. } => make_index(path, to, output).await?,
        Arguments { range: Some(range), .. } => list(global, &range, output).await?,
        Arguments { port: Some(name), .. } => port(global, &name, output).await?,
        Arguments { definitions, .. } => print_definitions(global, &definitions, output).await?,
    }
    Ok(Exit::Success)
}

async fn make_index(path: PathBuf, to: Option<PathBuf>, output: &mut Output) -> Result<(), Failure> {
    let made = tokio::task::spawn_blocking(move || {
        let files = DebugFiles::of(&path)?;
        let build_id = hex::encode(files.identity()?.build_id);
        let nowhere = || {
            let error =
                LinesError::new(format!("an index of `{}` has no place by build id here", path.display()));
            error.hint("name a file: `--to FILE`")
        };
        let to = to.or_else(|| Places::of_user().index(&build_id)).ok_or_else(nowhere)?;
        let index = files.index()?;
        keep(&to, &index)?;
        Ok::<_, LinesError>((to, index.len(), build_id))
    });
    let made = made.await.map_err(|broken| LinesError::new(format!("making the index ended: {broken}")))?;
    let (to, bytes, build_id) = made?;
    output.note(&format!("{} MiB, build {build_id}", bytes.div_ceil(1 << 20)));
    Ok(output.path(&to)?)
}

async fn print_definitions(
    global: &Global,
    definitions: &[String],
    output: &mut Output,
) -> Result<(), Failure> {
    let host = host(global).await?;
    for text in definitions {
        let Some(read) = Definition::by_source(text) else {
            print_definition(text, text, output)?;
            continue;
        };
        let lines = match &host {
            Some(client) => global.lines.of(client, &read?).await?,
            None => global.lines.offline(read?).await?,
        };
        for line in &lines {
            print_definition(text, &line.definition, output)?;
        }
        note_lines(text, &lines, output);
    }
    Ok(())
}

/// Prints a line for the kernel, and for programs also what it was made of.
fn print_definition(written: &str, definition: &str, output: &mut Output) -> io::Result<()> {
    let is_printed = output.structured_stream(&json!({ "written": written, "definition": definition }))?;
    if is_printed { Ok(()) } else { output.line(definition) }
}

/// Prints the definition of a probe for the running kernel: by its source line, or what the daemon offers.
async fn port(global: &Global, name: &str, output: &mut Output) -> Result<(), Failure> {
    let client = connect(global).await?;
    let mut probe = client.get_probe(name).await?;
    let by_line = match (MadeOfLine::read(&probe.definition), probe.name.split_once('/')) {
        (Some(made), Some(names)) => global.lines.port(&client, made, names).await,
        _ => Err(LinesError::new(format!("the definition of `{name}` does not keep a source line")).into()),
    };
    let change = probe.meaning_change.as_ref();
    let offered = change.map(|change| change.offered_definition.clone()).filter(|line| !line.is_empty());
    probe.definition = match (by_line, offered) {
        (Ok(line), _) => {
            line.remarks.iter().for_each(|remark| output.note(remark));
            line.definition
        }
        (Err(LineProblem::Lines(error)), Some(offered)) => {
            output.note(&error.to_string());
            output.note("carried by the instructions before the place, which the daemon has compared");
            offered
        }
        (Err(problem), _) => return Err(problem.into()),
    };
    if output.is_structured() {
        output.structured(&serde_json::to_value(document_of(&probe)).map_err(io::Error::from)?)?;
    } else {
        output.line(&probe.definition)?;
        let name = &probe.name;
        output.hint(&format!("arm it: `kprobectl lines --port {name} -o yaml | kprobectl apply -f -`"));
    }
    Ok(())
}

/// The daemon. With files of debug information, the command does without one that does not answer.
async fn host(global: &Global) -> Result<Option<Client>, Failure> {
    match connect(global).await {
        Ok(client) => Ok(Some(client)),
        Err(_) if global.lines.has_files() && global.client.is_none() => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn list(global: &Global, range: &str, output: &mut Output) -> Result<(), Failure> {
    let listing = Listing::parse(range)?;
    let host = host(global).await?;
    let build = build(global, host.as_ref(), listing.module.as_deref(), &listing.target).await?;
    let (mut rows, path) = global
        .lines
        .ask(&build, move |info, sources| {
            let places = info.listing(&listing)?;
            let path = places.first().map(|place| place.source.file.clone()).unwrap_or_default();
            let text =
                |place: &Place| sources.line(&place.source.file, place.source.line).unwrap_or_default();
            let rows = places.into_iter().map(|place| ListedLine { text: text(&place), place, code: None });
            Ok((rows.collect::<Vec<_>>(), path))
        })
        .await?;
    if let Some(client) = &host {
        look_at_code(client, &mut rows, output).await;
    }
    if !output.is_structured() {
        output.note(&format!("lines of {path}, build {}", build.id));
    }
    Ok(output.rows(&rows)?)
}

/// The build whose debug information is asked: that of the host, or of a file without a host.
async fn build(
    global: &Global,
    host: Option<&Client>,
    module: Option<&str>,
    target: &Target,
) -> Result<Build, Failure> {
    Ok(match host {
        Some(client) => global.lines.build(client, module, target).await?,
        None => global.lines.build_of_file(module)?,
    })
}

/// Functions whose code is looked at for one listing, at most.
const FUNCTIONS_MAX: usize = 32;

/// The functions of places, in their order, of which the code is looked at, and how many are left out.
#[expect(single_use_lifetimes, reason = "`impl Trait` needs a name for it")]
fn functions<'a>(places: impl Iterator<Item = &'a str>) -> (Vec<String>, usize) {
    let mut found: Vec<String> = Vec::new();
    for (function, _) in places.filter_map(|place| place.rsplit_once('+')) {
        if !found.iter().any(|known| known == function) {
            found.push(function.to_owned());
        }
    }
    let left_out = found.len().saturating_sub(FUNCTIONS_MAX);
    found.truncate(FUNCTIONS_MAX);
    (found, left_out)
}

/// Adds what the daemon says of the instructions. Without its answer the lines are shown as they are, and why.
async fn look_at_code(client: &Client, rows: &mut [ListedLine], output: &mut Output) {
    let (functions, left_out) = functions(rows.iter().map(|row| row.place.text.as_str()));
    let mut known: HashMap<String, Vec<CodeInstruction>> = HashMap::new();
    let mut unknown = Vec::new();
    for function in functions {
        match client.disassemble_function(&function, ProbeKind::Entry).await {
            Ok(answer) => drop(known.insert(function, answer.instructions)),
            Err(error) => unknown.push((function, error)),
        }
    }
    if let Some((function, error)) = unknown.first() {
        let others = unknown.len() - 1;
        let others = if others > 0 { format!(", nor of {others} more functions") } else { String::new() };
        output.note(&format!("PROBE of `{function}` is not known{others}: {error}"));
    }
    if left_out > 0 {
        output.remark(&format!(
            "PROBE is of the first {FUNCTIONS_MAX} functions: name fewer lines to see it of the other {left_out}"
        ));
    }
    for row in rows {
        let Some((function, offset)) = row.place.text.rsplit_once('+') else { continue };
        let offset: u32 = offset.parse().unwrap_or(u32::MAX);
        let code = known.get(function).into_iter().flatten();
        row.code = code.clone().find(|instruction| instruction.offset == offset).cloned();
    }
}

/// A place of a line.
struct ListedLine {
    place: Place,
    text: String,
    /// The instruction there, if the daemon was asked.
    code: Option<CodeInstruction>,
}

impl ListedLine {
    /// How a probe would be armed, or what forbids it.
    fn armed(&self) -> &str {
        self.code.as_ref().map_or("", |code| arming(code.arming()).unwrap_or(&code.rule))
    }
}

impl Row for ListedLine {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("LINE", |row| match row.place.relative_line {
            Some(line) => Cell::text(format!("{}:{line}", row.place.function)),
            None => Cell::text(format!("{}:{}", row.place.source.file, row.place.source.line)),
        }),
        Column::new("PLACE", |row| Cell::text(&row.place.text)),
        Column::optional("IN", |row| Cell::text(row.place.inlined_into.as_deref().unwrap_or_default())),
        Column::optional("PROBE", |row| {
            let is_refused = row.code.as_ref().is_some_and(|code| !code.probeable);
            Cell::toned(row.armed(), if is_refused { Tone::Faint } else { Tone::Plain })
        }),
        Column::wide("FILE", |row| {
            Cell::text(format!("{}:{}", row.place.source.file, row.place.source.line))
        }),
        Column::sentence("SOURCE", |row| Cell::text(row.text.trim())),
    ];

    fn json(&self) -> io::Result<Value> {
        Ok(json!({
            "file": self.place.source.file,
            "line": self.place.source.line,
            "function": self.place.function,
            "relative_line": self.place.relative_line,
            "place": self.place.text,
            "inlined_into": self.place.inlined_into,
            "shares": self.place.shares.iter().map(|line| format!("{}:{}", line.file, line.line)).collect::<Vec<_>>(),
            "probeable": self.code.as_ref().map(|code| code.probeable),
            "arming": self.code.as_ref().and_then(|code| arming(code.arming())),
            "rule": self.code.as_ref().map(|code| &code.rule).filter(|rule| !rule.is_empty()),
            "text": Some(&self.text).filter(|text| !text.is_empty()),
        }))
    }
}

/// Arguments of `vars`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/vars.txt"))]
pub(crate) struct VarsArguments {
    /// FUNC, FUNC:LINE, FILE:LINE or a pattern, with `MODULE:` before it for a module
    #[arg(value_name = "PLACE")]
    place: String,
}

pub(crate) async fn vars(
    global: &Global,
    arguments: VarsArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_not_looked_at_are_counted() {
        let places: Vec<String> = (0..FUNCTIONS_MAX + 3)
            .flat_map(|number| [format!("f{number}+0"), format!("f{number}+4")])
            .collect();
        let (found, left_out) = functions(places.iter().map(String::as_str));
        assert_eq!((found.len(), left_out), (FUNCTIONS_MAX, 3));
        assert_eq!(found.first().map(String::as_str), Some("f0"));
        assert_eq!(functions(["f+0", "f+8", "g+1"].into_iter()), (vec!["f".to_owned(), "g".to_owned()], 0));
    }
}
