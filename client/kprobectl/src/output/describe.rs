//! Types of a function: tables, JSON and YAML.

use std::io;

use kprobed_client::api::{DescribeFunctionResponse, FunctionDescription, StructureDescription};
use kprobed_document::json::Json;

use super::Output;
use super::table::{Cell, Table};

impl Output {
    /// Prints a function, or the structure that was requested.
    pub(crate) fn description(&mut self, answer: &DescribeFunctionResponse) -> io::Result<()> {
        if self.structured(&Json::full(answer))? {
            return Ok(());
        }
        match (&answer.structure, &answer.function) {
            (Some(structure), _) => self.structure(structure),
            (None, Some(function)) => self.function(function),
            (None, None) => Ok(()),
        }
    }

    fn function(&mut self, function: &FunctionDescription) -> io::Result<()> {
        self.line(&super::data::one_line(&function.prototype))?;
        if !function.module.is_empty() {
            self.line(&format!("of module {}", super::data::one_line(&function.module)))?;
        }
        self.line("")?;
        let mut table = Table::new(&["PARAMETER", "ARGUMENT", "FETCHED AS", "C TYPE"]);
        for parameter in &function.parameters {
            table.row(vec![
                Cell::text(&parameter.name),
                Cell::text(&parameter.argument),
                Cell::text(&parameter.fetch_type),
                Cell::text(&parameter.c_type),
            ]);
        }
        table.row(vec![
            Cell::text(""),
            Cell::text(if function.return_fetch_type.is_empty() { "" } else { "$retval" }),
            Cell::text(&function.return_fetch_type),
            Cell::text(&function.return_type),
        ]);
        self.table(&table)?;
        for other in &function.other_prototypes {
            self.note(&format!("there is another function of this name: {}", super::data::one_line(other)));
        }
        Ok(())
    }

    fn structure(&mut self, structure: &StructureDescription) -> io::Result<()> {
        let c_type = super::data::one_line(&structure.c_type);
        self.line(&format!("{c_type}, {} bytes", structure.size_bytes))?;
        self.line("")?;
        let wide = self.is_wide();
        let mut headings = vec!["OFFSET", "MEMBER", "FETCHED AS", "C TYPE"];
        if wide {
            headings.push("SIZE");
        }
        let mut table = Table::new(&headings);
        for member in &structure.members {
            let c_type = match member.bits {
                Some(bits) => format!("{}:{bits}", member.c_type),
                None => member.c_type.clone(),
            };
            let mut cells = vec![
                Cell::number(member.offset_bytes),
                Cell::text(&member.path),
                Cell::text(&member.fetch_type),
                Cell::text(c_type),
            ];
            if wide {
                cells.push(Cell::number(member.size_bytes));
            }
            table.row(cells);
        }
        self.table(&table)
    }
}
