//! Functions and disassembly: tables, JSON and YAML.

use std::io;

use kprobed_client::api::{CodeInstruction, DisassembleFunctionResponse, Function};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::data::{arming, hex};
use super::style::Tone;
use super::table::{Cell, Table};

/// An instruction, for programs.
#[derive(Serialize)]
struct CodeView<'a> {
    function: &'a str,
    module: &'a str,
    #[serde(flatten)]
    instruction: Json,
    /// The bytes of `code`, as disassemblers print them.
    code_hex: String,
}

impl<'a> CodeView<'a> {
    fn new(function: &'a Function, one: &CodeInstruction) -> Self {
        Self {
            function: &function.name,
            module: &function.module,
            instruction: Json::full(one),
            code_hex: hex(&one.code, ""),
        }
    }
}

impl Output {
    /// Prints functions: one line or one document each, as JSON and YAML.
    pub(crate) fn functions(&mut self, functions: &[Function]) -> io::Result<()> {
        let mut table = Table::new(&["FUNCTION", "MODULE", "SIZE", "TRACEABLE", "BLACKLISTED", "PLACE"]);
        for one in functions {
            if self.structured_stream(&Json::full(one))? {
                continue;
            }
            let answer = |yes, good| match (yes, yes == good) {
                (true, true) => Cell::text("yes"),
                (true, false) => Cell::toned("yes", Tone::Bad),
                (false, true) => Cell::text("no"),
                (false, false) => Cell::toned("no", Tone::Bad),
            };
            table.row(vec![
                Cell::text(&one.name),
                Cell::text(&one.module),
                Cell::number(one.size_bytes),
                answer(one.traceable, true),
                answer(one.blacklisted, false),
                Cell::text(&one.place),
            ]);
        }
        if self.is_structured() { Ok(()) } else { self.table(&table) }
    }

    /// Prints the code of a function: one line or one document for each instruction, as JSON and
    /// YAML.
    pub(crate) fn disassembly(&mut self, answer: &DisassembleFunctionResponse) -> io::Result<()> {
        let Some(function) = &answer.function else { return Ok(()) };
        if self.is_structured() {
            for one in &answer.instructions {
                self.structured_stream(&CodeView::new(function, one))?;
            }
        } else {
            self.code_table(answer)?;
        }
        if answer.instructions.is_empty() {
            self.note(&format!("the code of `{}` cannot be read", function.name));
        }
        if answer.omitted_bytes > 0 {
            self.note(&format!("{} bytes at the end are not shown", answer.omitted_bytes));
        }
        Ok(())
    }

    fn code_table(&mut self, answer: &DisassembleFunctionResponse) -> io::Result<()> {
        let wide = self.is_wide();
        let mut headings = vec!["OFFSET", "CODE", "INSTRUCTION", "PROBE"];
        headings.extend(wide.then_some("WHY"));
        let mut table = Table::new(&headings);
        for one in &answer.instructions {
            let asked = answer.offset > 0 && holds(one, answer.offset);
            let tone = match (asked, one.probeable) {
                (true, true) => Tone::Strong,
                (true, false) => Tone::Bad,
                (false, true) => Tone::Plain,
                (false, false) => Tone::Faint,
            };
            let mark = if asked { ">" } else { "" };
            let mut cells = vec![
                Cell::toned(format!("{mark}+{}", one.offset), tone).right(),
                Cell::toned(hex(&one.code, " "), tone),
                Cell::toned(&one.text, tone),
                Cell::toned(remark(one), tone),
            ];
            cells.extend(wide.then(|| Cell::toned(&one.refusal, tone)));
            table.row(cells);
        }
        self.table(&table)
    }
}

fn holds(instruction: &CodeInstruction, offset: u32) -> bool {
    let length = instruction.code.len().max(1);
    offset.checked_sub(instruction.offset).is_some_and(|inside| (inside as usize) < length)
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
