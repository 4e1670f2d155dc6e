//! Types of a function: tables, JSON and YAML.

use std::io;

use kprobed_client::api::{
    DescribeFunctionResponse, FunctionDescription, MemberDescription, ParameterDescription,
    StructureDescription,
};
use serde::Serialize;

use super::Output;
use super::table::{Cell, Table};

/// A description, as JSON and YAML.
#[derive(Serialize)]
struct DescriptionView<'a> {
    function: Option<FunctionView<'a>>,
    structure: Option<StructureView<'a>>,
}

/// A function, as JSON and YAML.
#[derive(Serialize)]
struct FunctionView<'a> {
    name: &'a str,
    module: Option<&'a str>,
    prototype: &'a str,
    return_type: &'a str,
    return_fetch_type: Option<&'a str>,
    parameters: Vec<ParameterView<'a>>,
    other_prototypes: &'a [String],
}

/// A parameter, as JSON and YAML.
#[derive(Serialize)]
struct ParameterView<'a> {
    name: Option<&'a str>,
    c_type: &'a str,
    argument: Option<&'a str>,
    fetch_type: Option<&'a str>,
    has_members: bool,
}

/// A structure, as JSON and YAML.
#[derive(Serialize)]
struct StructureView<'a> {
    c_type: &'a str,
    size_bytes: u64,
    members: Vec<MemberView<'a>>,
}

/// A member, as JSON and YAML.
#[derive(Serialize)]
struct MemberView<'a> {
    name: &'a str,
    path: &'a str,
    c_type: &'a str,
    offset_bytes: u64,
    bit_offset: Option<u32>,
    bits: Option<u32>,
    size_bytes: u64,
    fetch_type: &'a str,
    has_members: bool,
}

fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

impl<'a> FunctionView<'a> {
    fn new(function: &'a FunctionDescription) -> Self {
        Self {
            name: &function.name,
            module: known(&function.module),
            prototype: &function.prototype,
            return_type: &function.return_type,
            return_fetch_type: known(&function.return_fetch_type),
            parameters: function.parameters.iter().map(ParameterView::new).collect(),
            other_prototypes: &function.other_prototypes,
        }
    }
}

impl<'a> ParameterView<'a> {
    fn new(parameter: &'a ParameterDescription) -> Self {
        Self {
            name: known(&parameter.name),
            c_type: &parameter.c_type,
            argument: known(&parameter.argument),
            fetch_type: known(&parameter.fetch_type),
            has_members: parameter.has_members,
        }
    }
}

impl<'a> StructureView<'a> {
    fn new(structure: &'a StructureDescription) -> Self {
        Self {
            c_type: &structure.c_type,
            size_bytes: structure.size_bytes,
            members: structure.members.iter().map(MemberView::new).collect(),
        }
    }
}

impl<'a> MemberView<'a> {
    fn new(member: &'a MemberDescription) -> Self {
        Self {
            name: &member.name,
            path: &member.path,
            c_type: &member.c_type,
            offset_bytes: member.offset_bytes,
            bit_offset: member.bits.map(|_| member.bit_offset),
            bits: member.bits,
            size_bytes: member.size_bytes,
            fetch_type: &member.fetch_type,
            has_members: member.has_members,
        }
    }
}

impl Output {
    /// Prints a function, or the structure that was asked for.
    pub(crate) fn description(&mut self, answer: &DescribeFunctionResponse) -> io::Result<()> {
        let view = DescriptionView {
            function: answer.function.as_ref().map(FunctionView::new),
            structure: answer.structure.as_ref().map(StructureView::new),
        };
        if self.structured(&view)? {
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
