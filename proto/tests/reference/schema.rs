//! The API as a reader of the reference sees it: files, services, messages and enums, each with its comment.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kprobed_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// Numbers of the fields of descriptors, of which the path to a comment consists (google/protobuf/descriptor.proto).
const MESSAGES_OF_FILE: i32 = 4;
const ENUMS_OF_FILE: i32 = 5;
const SERVICES_OF_FILE: i32 = 6;
const FIELDS_OR_METHODS_OR_VALUES: i32 = 2;
const ONEOFS_OF_MESSAGE: i32 = 8;

const PACKAGE: &str = ".kprobed.v1.";

pub(crate) struct Schema {
    files: Vec<FileDescriptorProto>,
    /// By file and path.
    comments: HashMap<(String, Vec<i32>), String>,
    /// The file of each message, enum and service, by its short name.
    homes: BTreeMap<String, String>,
    methods: BTreeSet<String>,
}

/// A kind of thing in a file that has a name and members.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Message,
    Enum,
    Service,
}

impl Kind {
    fn number(self) -> i32 {
        match self {
            Self::Message => MESSAGES_OF_FILE,
            Self::Enum => ENUMS_OF_FILE,
            Self::Service => SERVICES_OF_FILE,
        }
    }
}

impl Schema {
    pub(crate) fn of_the_api() -> Self {
        let all = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let files: Vec<_> = all.file.into_iter().filter(|file| file.package() == "kprobed.v1").collect();
        let (mut comments, mut homes, mut methods) = (HashMap::new(), BTreeMap::new(), BTreeSet::new());
        for file in &files {
            let names = file.message_type.iter().map(|message| {
                assert!(
                    message.enum_type.is_empty(),
                    "{}: enums in messages have no place yet",
                    message.name()
                );
                message.name()
            });
            let names = names.chain(file.enum_type.iter().map(prost_types::EnumDescriptorProto::name));
            let names = names.chain(file.service.iter().map(prost_types::ServiceDescriptorProto::name));
            for name in names {
                homes.insert(name.to_owned(), file.name().to_owned());
            }
            methods.extend(
                file.service
                    .iter()
                    .flat_map(|service| &service.method)
                    .map(|method| method.name().to_owned()),
            );
            for location in file.source_code_info.iter().flat_map(|info| &info.location) {
                let comment: Vec<&str> = location.leading_comments().lines().map(str::trim).collect();
                comments.insert((file.name().to_owned(), location.path.clone()), paragraphs(&comment));
            }
        }
        Self { files, comments, homes, methods }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &FileDescriptorProto> {
        self.files.iter()
    }

    pub(crate) fn has_method(&self, name: &str) -> bool {
        self.methods.contains(name)
    }

    /// The page that a name is described on.
    pub(crate) fn home(&self, name: &str) -> Option<&str> {
        self.homes.get(name).map(String::as_str)
    }

    /// The service that has a method.
    pub(crate) fn service_of(&self, method: &str) -> Option<&str> {
        let services = self.files.iter().flat_map(|file| &file.service);
        let mut with = services.filter(|service| service.method.iter().any(|own| own.name() == method));
        Some(with.next()?.name())
    }

    pub(crate) fn comment(&self, file: &FileDescriptorProto, kind: Kind, index: usize) -> &str {
        self.at(file, &[kind.number(), number(index)])
    }

    /// The comment of a field, method or value.
    pub(crate) fn member(&self, file: &FileDescriptorProto, kind: Kind, index: usize, member: usize) -> &str {
        self.at(file, &[kind.number(), number(index), FIELDS_OR_METHODS_OR_VALUES, number(member)])
    }

    pub(crate) fn oneof(&self, file: &FileDescriptorProto, message: usize, oneof: usize) -> &str {
        self.at(file, &[MESSAGES_OF_FILE, number(message), ONEOFS_OF_MESSAGE, number(oneof)])
    }

    fn at(&self, file: &FileDescriptorProto, path: &[i32]) -> &str {
        let found = self.comments.get(&(file.name().to_owned(), path.to_owned())).map(String::as_str);
        found
            .filter(|comment| !comment.is_empty())
            .unwrap_or_else(|| panic!("{}: no comment at {path:?}", file.name()))
    }
}

/// The type of a field as protos write it, and the name that it links to, if any.
pub(crate) fn type_of(field: &FieldDescriptorProto, file: &FileDescriptorProto) -> (String, Option<String>) {
    let own = |name: &str| name.strip_prefix(PACKAGE).map(str::to_owned);
    let text = match field.r#type() {
        Type::Message | Type::Enum => {
            if let Some((message, entry)) = own(field.type_name()).and_then(|name| {
                name.split_once('.').map(|(message, entry)| (message.to_owned(), entry.to_owned()))
            }) {
                let message = file.message_type.iter().find(|one| one.name() == message).unwrap();
                let entry = message.nested_type.iter().find(|one| one.name() == entry).unwrap();
                let of = |index: usize| type_of(&entry.field[index], file).0;
                return (format!("map<{}, {}>", of(0), of(1)), None);
            }
            match own(field.type_name()) {
                Some(name) => return (name.clone(), Some(name)),
                None => field.type_name().trim_start_matches('.').to_owned(),
            }
        }
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    (text, None)
}

/// What it means when the field is not there, in three words at most.
pub(crate) fn presence(field: &FieldDescriptorProto, kind: &str) -> &'static str {
    match () {
        () if kind.starts_with("map<") => "map",
        () if field.label() == Label::Repeated => "list",
        () if field.proto3_optional() || field.r#type() == Type::Message => "can be absent",
        () if field.oneof_index.is_some() => "one of",
        () => "",
    }
}

fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap()
}

/// Lines of a comment as paragraphs, each in one line.
fn paragraphs(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        match (line.is_empty(), text.is_empty() || text.ends_with('\n')) {
            (true, _) => text.push_str("\n\n"),
            (false, true) => text.push_str(line),
            (false, false) => {
                text.push(' ');
                text.push_str(line);
            }
        }
    }
    text.trim().to_owned()
}
