//! `kprobectl describe`: parameters, return type, structures and code of a function.

use std::io;

use clap::Args;
use kprobed_client::api::{
    CheckProbeResponse, CodeInstruction, DescribeFunctionRequest, DescribeFunctionResponse,
    DisassembleFunctionResponse, Function, FunctionDescription, MemberDescription, ProbeKind,
    StructureDescription,
};
use kprobed_document::json::json;
use serde_json::Value;
use tonic::Code;

use super::check::exit_of;
use super::connection::connect;
use super::definitions::checked;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Row, Table, Tone, arming, covers, hex, one_line};

/// Arguments of `describe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/describe.txt"))]
pub(crate) struct Arguments {
    /// A function, as FUNCTION or MODULE:FUNCTION; for --code also with `+OFFSET`, or an address in it. Or a system
    /// call (`openat`), or an event of the host (GROUP/EVENT)
    function: String,
    /// List the members of a structure, or of the elements of an array: a parameter, `$retval`, or a path such as
    /// `file->f_inode`
    #[arg(conflicts_with = "code")]
    path: Option<String>,
    /// Show the instructions, and where a probe can be placed
    #[arg(long)]
    pub(crate) code: bool,
    /// Show where a return probe can be placed [default: an entry probe]
    #[arg(long, requires = "code")]
    r#return: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.code {
        return code(global, arguments, output).await;
    }
    if let Some(("struct" | "union" | "enum", name)) = arguments.function.split_once(' ') {
        let message = format!("`{name}` is a type, and no function");
        let hint = "`kprobectl describe FUNCTION PARAMETER` lists the members of what a parameter points to, as in \
                    `describe vfs_read file`";
        return Err(Failure::usage(message, hint));
    }
    let client = connect(global).await?;
    let meant = checked(&client, &arguments.function).await?;
    let is_event = meant.spec.as_ref().is_some_and(|spec| spec.kind() == ProbeKind::Event);
    if is_event || arguments.function.contains('/') {
        // Whether an event of the host can be recorded, and its fields.
        output.check(&arguments.function, &meant)?;
        return Ok(exit_of(Some(&meant)));
    }
    let (module, function) = function(&arguments.function, &meant);
    let path = arguments.path.unwrap_or_default();
    let path_is_empty = path.is_empty();
    let answer = match client.describe_function(DescribeFunctionRequest { function, module, path }).await {
        Ok(answer) => answer,
        Err(error) => {
            let name = &arguments.function;
            // Without an answer there is none to the next question either.
            let is_unknown = path_is_empty && error.rpc().is_some_and(|rpc| rpc.code == Code::NotFound);
            let is_probe = is_unknown && client.get_probe(name).await.is_ok();
            let hint = is_probe.then(|| format!("`kprobectl get {name}` shows the probe of that name"));
            return Err(Failure::from(error).with_hint(hint));
        }
    };
    if let [line] = meant.lines.as_slice() {
        output.remark(&format!("a probe of `{}` is `{line}`", arguments.function));
    }
    types(&answer, output)?;
    Ok(Exit::Success)
}

/// Module and name of the function that an argument means. The name of a system call means its function.
fn function(argument: &str, meant: &CheckProbeResponse) -> (String, String) {
    let place = match meant.lines.as_slice() {
        // `p PLACE ARGUMENTS`
        [line] => line.split(' ').nth(1).unwrap_or(argument),
        _ => argument,
    };
    let place = place.split('+').next().unwrap_or(place);
    let (module, function) = place.split_once(':').unwrap_or(("", place));
    (module.to_owned(), function.to_owned())
}

async fn code(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let kind = if arguments.r#return { ProbeKind::Return } else { ProbeKind::Entry };
    let answer = client.disassemble_function(&arguments.function, kind).await?;
    let DisassembleFunctionResponse { function: Some(function), offset, instructions, omitted_bytes, .. } =
        answer
    else {
        let message = format!("{} functions are named `{}`", answer.candidates.len(), arguments.function);
        return Err(Failure::new(Exit::Refused, message, answer.candidates.iter().map(candidate)));
    };
    let listed = |instruction: CodeInstruction| {
        let is_asked = offset > 0 && covers(instruction.offset, &instruction.code, offset);
        ListedInstruction { instruction, is_asked }
    };
    let listed: Vec<_> = instructions.into_iter().map(listed).collect();
    output.rows(&listed)?;
    if listed.is_empty() {
        output.note(&format!("the code of `{}` cannot be read", function.name));
    }
    if omitted_bytes > 0 {
        output.note(&format!("{omitted_bytes} bytes at the end are not shown"));
    }
    Ok(Exit::Success)
}

/// Prints the types of a function, or of the structure that was requested.
fn types(answer: &DescribeFunctionResponse, output: &mut Output) -> io::Result<()> {
    if output.message_structured(answer)? {
        return Ok(());
    }
    match (&answer.structure, &answer.function) {
        (Some(StructureDescription { c_type, size_bytes, members }), _) => {
            output.line(&format!("{}, {size_bytes} bytes", one_line(c_type)))?;
            output.line("")?;
            output.rows(members)
        }
        (None, Some(function)) => prototype(function, output),
        (None, None) => Ok(()),
    }
}

fn prototype(function: &FunctionDescription, output: &mut Output) -> io::Result<()> {
    output.line(&one_line(&function.prototype))?;
    if !function.module.is_empty() {
        output.line(&format!("of module {}", one_line(&function.module)))?;
    }
    output.line("")?;
    let mut table = Table::new(&["PARAMETER", "ARGUMENT", "FETCHED AS", "C TYPE"]);
    let mut row = |cells: [&str; 4]| table.row(cells.map(Cell::text).into());
    for parameter in &function.parameters {
        row([&parameter.name, &parameter.argument, &parameter.fetch_type, &parameter.c_type]);
    }
    let argument = if function.return_fetch_type.is_empty() { "" } else { "$retval" };
    row(["", argument, &function.return_fetch_type, &function.return_type]);
    output.table(&table)?;
    for other in &function.other_prototypes {
        output.note(&format!("there is another function of this name: {}", one_line(other)));
    }
    let count = function.same_name as usize;
    if count > 1 + function.other_prototypes.len() {
        output.note(&format!("{count} functions have this name, and BTF does not say which of them this is"));
    }
    Ok(())
}

impl MessageRow for MemberDescription {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("OFFSET", |member| Cell::number(member.offset_bytes)),
        Column::new("MEMBER", |member| Cell::text(&member.path)),
        Column::new("FETCHED AS", |member| Cell::text(&member.fetch_type)),
        Column::new("C TYPE", |member| match member.bits {
            Some(bits) => Cell::text(format!("{}:{bits}", member.c_type)),
            None => Cell::text(&member.c_type),
        }),
        Column::wide("SIZE", |member| Cell::number(member.size_bytes)),
    ];
}

/// An instruction, and whether it holds the byte that was asked about.
struct ListedInstruction {
    instruction: CodeInstruction,
    is_asked: bool,
}

impl Row for ListedInstruction {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("OFFSET", |listed| {
            let mark = if listed.is_asked { ">" } else { "" };
            listed.cell(format!("{mark}+{}", listed.instruction.offset)).right()
        }),
        Column::new("CODE", |listed| listed.cell(hex(&listed.instruction.code))),
        Column::new("INSTRUCTION", |listed| listed.cell(&listed.instruction.text)),
        Column::new("PROBE", |listed| listed.cell(remark(&listed.instruction))),
        Column::wide("WHY", |listed| listed.cell(&listed.instruction.refusal)),
    ];

    fn name(&self) -> String {
        format!("+{}", self.instruction.offset)
    }

    fn json(&self) -> io::Result<Value> {
        Ok(json(&self.instruction)?)
    }
}

impl ListedInstruction {
    fn cell(&self, text: impl AsRef<str>) -> Cell {
        let tone = match (self.is_asked, self.instruction.probeable) {
            (true, true) => Tone::Strong,
            (true, false) => Tone::Bad,
            (false, true) => Tone::Plain,
            (false, false) => Tone::Faint,
        };
        Cell::toned(text, tone)
    }
}

/// How a probe would be armed, or what forbids it, and what is there already.
fn remark(one: &CodeInstruction) -> String {
    let mut words = vec![arming(one.arming()).unwrap_or(&one.rule)];
    words.extend(one.entry.then_some("(entry)"));
    words.extend(one.probes.iter().map(String::as_str));
    if one.probed && one.probes.is_empty() {
        words.push("(probed)");
    }
    words.join(" ")
}

/// How to name one of several functions.
fn candidate(function: &Function) -> String {
    let place = match function.place.as_str() {
        "" => "only its address names it",
        place => &format!("write `{place}`"),
    };
    let module = match function.module.as_str() {
        "" => String::new(),
        module => format!(" of module {module}"),
    };
    format!("{place}: {} bytes{module}", function.size_bytes)
}
