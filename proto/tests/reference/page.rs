//! Pages as Markdown: one for each proto, and the index.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, MethodDescriptorProto};

use crate::errors::Errors;
use crate::schema::{Kind, Schema, presence, type_of};

const NOTE: &str = "<!-- Made of the protos and of proto/guide. Change those, and renew with\n     \
                    KPROBED_RENEW=1 cargo test -p kprobed-proto --test reference -->\n";

/// The page of a proto: `event.md` for `kprobed/v1/event.proto`.
pub(crate) fn name(file: &FileDescriptorProto) -> String {
    name_of(file.name())
}

fn name_of(file: &str) -> String {
    file.trim_start_matches("kprobed/v1/").replace(".proto", ".md")
}

/// The anchor of a heading, as GitHub and most others make it.
pub(crate) fn anchor(heading: &str) -> String {
    let plain = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    plain.collect::<String>().to_lowercase().replace(' ', "-")
}

/// A link to a message, enum, service or call.
pub(crate) fn link(schema: &Schema, name: &str) -> Option<String> {
    let home = schema.home(schema.service_of(name).unwrap_or(name))?;
    Some(format!("[{name}]({}#{})", name_of(home), anchor(name)))
}

/// A comment with links for the names in backquotes that have a page, and the first words of
/// sentences left as they are.
fn linked(schema: &Schema, text: &str) -> String {
    let mut result = String::new();
    for (index, part) in text.split('`').enumerate() {
        let known = (index % 2 == 1).then(|| part.split('.').next().unwrap_or_default());
        match known.and_then(|known| schema.home(known).map(|home| (known, home))) {
            Some((known, home)) => {
                write!(result, "[`{part}`]({}#{})", name_of(home), anchor(known)).unwrap();
            }
            None if index % 2 == 1 => {
                write!(result, "`{part}`").unwrap();
            }
            None => result.push_str(part),
        }
    }
    result
}

/// A text in a cell of a table.
fn cell(schema: &Schema, text: &str) -> String {
    linked(schema, text).replace("\n\n", "<br>").replace('|', "\\|")
}

pub(crate) fn of_file(
    schema: &Schema,
    file: &FileDescriptorProto,
    errors: &Errors,
    examples: &BTreeMap<String, String>,
) -> String {
    let mut page = NOTE.to_owned();
    let title = file.service.first().map_or_else(|| titled(file), |service| service.name().to_owned());
    writeln!(page, "# {title}\n").unwrap();
    writeln!(page, "`proto/{}` · [all pages](README.md) · [errors](errors.md)\n", file.name()).unwrap();
    for (index, service) in file.service.iter().enumerate() {
        writeln!(page, "{}\n", linked(schema, schema.comment(file, Kind::Service, index))).unwrap();
        for (number, method) in service.method.iter().enumerate() {
            let comment = schema.member(file, Kind::Service, index, number);
            call(&mut page, schema, (service.name(), method), comment, errors, examples);
        }
    }
    if !file.message_type.is_empty() {
        page.push_str("## Messages\n\n");
    }
    for (index, found) in file.message_type.iter().enumerate() {
        message(&mut page, schema, file, index, found);
    }
    if !file.enum_type.is_empty() {
        page.push_str("## Enumerations\n\n");
    }
    for (index, found) in file.enum_type.iter().enumerate() {
        enumeration(&mut page, schema, file, index, found);
    }
    format!("{}\n", page.trim_end())
}

/// The title of a proto without a service.
fn titled(file: &FileDescriptorProto) -> String {
    let stem = name(file).replace(".md", "").replace('_', " ");
    format!("Messages: {stem}")
}

fn call(
    page: &mut String,
    schema: &Schema,
    (service, method): (&str, &MethodDescriptorProto),
    comment: &str,
    errors: &Errors,
    examples: &BTreeMap<String, String>,
) {
    let message = |name: &str, stream: bool| {
        let name = name.rsplit('.').next().unwrap_or_default();
        let link = link(schema, name).unwrap_or_else(|| name.to_owned());
        if stream { format!("a stream of {link}") } else { link }
    };
    writeln!(page, "## {}\n\n{}\n", method.name(), linked(schema, comment)).unwrap();
    writeln!(
        page,
        "`/kprobed.v1.{service}/{}` takes {} and returns {}.\n",
        method.name(),
        message(method.input_type(), method.client_streaming()),
        message(method.output_type(), method.server_streaming()),
    )
    .unwrap();
    let own = errors.of_call(method.name());
    if !own.is_empty() {
        let list: Vec<_> =
            own.iter().map(|reason| format!("[{reason}](errors.md#{})", anchor(reason))).collect();
        writeln!(page, "Errors, beside those of every call: {}.\n", list.join(", ")).unwrap();
    }
    if let Some(example) = examples.get(method.name()) {
        writeln!(page, "```sh\n{}\n```\n", example.trim_end()).unwrap();
    }
}

fn message(
    page: &mut String,
    schema: &Schema,
    file: &FileDescriptorProto,
    index: usize,
    found: &DescriptorProto,
) {
    writeln!(
        page,
        "### {}\n\n{}\n",
        found.name(),
        linked(schema, schema.comment(file, Kind::Message, index))
    )
    .unwrap();
    if found.field.is_empty() {
        page.push_str("It has no fields.\n\n");
        return;
    }
    let real = |field: &prost_types::FieldDescriptorProto| {
        field.oneof_index.filter(|_| !field.proto3_optional()).and_then(|oneof| usize::try_from(oneof).ok())
    };
    let mut oneofs: Vec<usize> = found.field.iter().filter_map(real).collect();
    oneofs.dedup();
    for oneof in oneofs {
        let name = found.oneof_decl[oneof].name();
        writeln!(page, "One of `{name}`: {}\n", linked(schema, schema.oneof(file, index, oneof))).unwrap();
    }
    page.push_str("| # | field | type | presence | meaning |\n|---|---|---|---|---|\n");
    for (number, field) in found.field.iter().enumerate() {
        let (kind, target) = type_of(field, file);
        let linked_kind = target.and_then(|name| link(schema, &name)).unwrap_or_else(|| format!("`{kind}`"));
        let presence = match real(field) {
            Some(oneof) => format!("one of `{}`", found.oneof_decl[oneof].name()),
            None => presence(field, &kind).to_owned(),
        };
        let comment = schema.member(file, Kind::Message, index, number);
        writeln!(
            page,
            "| {} | `{}` | {linked_kind} | {presence} | {} |",
            field.number(),
            field.name(),
            cell(schema, comment)
        )
        .unwrap();
    }
    page.push('\n');
}

fn enumeration(
    page: &mut String,
    schema: &Schema,
    file: &FileDescriptorProto,
    index: usize,
    found: &EnumDescriptorProto,
) {
    writeln!(page, "### {}\n\n{}\n", found.name(), linked(schema, schema.comment(file, Kind::Enum, index)))
        .unwrap();
    page.push_str("| # | value | meaning |\n|---|---|---|\n");
    for (number, value) in found.value.iter().enumerate() {
        let comment = cell(schema, schema.member(file, Kind::Enum, index, number));
        writeln!(page, "| {} | `{}` | {comment} |", value.number(), value.name()).unwrap();
    }
    page.push('\n');
}

/// The list of all services and their calls, and of the other pages.
pub(crate) fn index(schema: &Schema) -> String {
    let mut page = format!("{NOTE}# The API, call by call\n\n");
    page.push_str(
        "How to connect, how values are written and how errors look: [proto/README.md](../README.md). Reasons of errors: \
         [errors.md](errors.md).\n\n\
         A field without a presence is 0, false or empty where a client does not set it, and that is a value like others. `can be absent` \
         says that a reader can tell absent from 0.\n\n",
    );
    for file in schema.files() {
        for (index, service) in file.service.iter().enumerate() {
            let comment = schema.comment(file, Kind::Service, index).split("\n\n").next().unwrap_or_default();
            writeln!(page, "## [{}]({})\n\n{}\n", service.name(), name(file), linked(schema, comment))
                .unwrap();
            page.push_str("| call | what it does |\n|---|---|\n");
            for (number, method) in service.method.iter().enumerate() {
                let comment = schema.member(file, Kind::Service, index, number);
                let first = comment.split(". ").next().unwrap_or_default().trim_end_matches('.');
                let link = link(schema, method.name()).unwrap_or_default();
                writeln!(page, "| {link} | {}. |", cell(schema, first)).unwrap();
            }
            page.push('\n');
        }
    }
    page.push_str("## Messages of several services\n\n");
    for file in schema.files().filter(|file| file.service.is_empty()) {
        let names = file.message_type.iter().map(DescriptorProto::name);
        let names = names.chain(file.enum_type.iter().map(EnumDescriptorProto::name));
        let links: Vec<_> = names.filter_map(|name| link(schema, name)).collect();
        writeln!(page, "- [{0}]({0}): {1}", name(file), links.join(", ")).unwrap();
    }
    page
}
