//! Requests of every method: valid ones, made of the descriptors of the API, and mutations of them.

use prost::Message as _;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

use crate::fuzz::mutate::Mutator;

/// How deep messages lie in each other.
const DEPTH: usize = 5;

const DEFINITIONS: &[&str] = &[
    "p:kprobes/x vfs_read a=%di",
    "r:g/e do_sys_openat2 ret=$retval:s32",
    "p:y do_sys_openat2+8",
    "p do_sys_openat2 path=+0(%si):string x=@jiffies",
    "do_sys_openat2(int dfd, string path)",
    "-:kprobes/open",
    "p:x vfs_read a=+0(",
    "# nothing\np:a vfs_read\np:b no_such_function\n",
];

const ROLES: &[&str] = &[
    "[[role]]\nname = \"a\"\nprincipals = [\"uid:1\"]\n[[role.allow]]\nmethods = [\"read\"]\n[role.limits]\nprobes = 1\n",
    "[[role]]\nname = \"a\"\n",
];

/// Texts that a field of this name is about.
fn texts(field: &str) -> &'static [&'static str] {
    match field {
        "definition" | "line" | "text" | "kernel_definition" => DEFINITIONS,
        "name" | "probe" | "names" | "probes" | "name_glob" | "event" | "group" => {
            &["kprobes/open", "open", "kprobes/*", "sched/sched_switch", "x", "uid:1", "user:eve"]
        }
        "function" | "module" | "path" | "symbol" => {
            &["vfs_read", "do_sys_openat2", "vmlinux", "ext4", "file->f_flags"]
        }
        "filter" => &["large == 3", "comm ~ 'x*' && large > 1", "((", "path == \"a\""],
        "label_selector" => &["team=storage", "tier in (a,b),!x", "a=("],
        "method" => &["CreateProbe", "GetHost", "NoSuch"],
        "roles" => ROLES,
        "page_token" | "resume_token" | "etag" | "request_id" | "boot_id" | "holder" => {
            &["kprobes/open", "0.0", "1-1", "00000000-0000-4000-8000-000000000001"]
        }
        _ => &["dfd", "path", "1h", "x", "team", "%di", "u32", "\u{7f}\0"],
    }
}

/// Makes requests, the same ones in each run.
pub(crate) struct Requests {
    mutator: Mutator,
}

impl Requests {
    pub(crate) fn new(method: &str) -> Self {
        Self { mutator: Mutator::new(method) }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.mutator.below(from.len())]
    }

    /// A request: as it should be, or with some bytes changed.
    pub(crate) fn next(&mut self, of: &MessageDescriptor, is_changed: bool) -> Vec<u8> {
        let valid = self.message(of, 0).encode_to_vec();
        if !is_changed {
            return valid;
        }
        let other = self.message(of, 0).encode_to_vec();
        self.mutator.next(&[&valid, &other])
    }

    fn message(&mut self, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            // Of a oneof, the last one stays.
            let is_wanted = self.mutator.below(3) > 0;
            let is_too_deep = depth >= DEPTH && matches!(field.kind(), Kind::Message(_));
            if is_wanted && !is_too_deep {
                let value = self.field(&field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        let many = self.mutator.below(3);
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else { unreachable!("a map has entries") };
            let value = entry.map_entry_value_field();
            let pairs = (0..many).map(|number| {
                let key = self.pick(&["team", "tier", "x/y", ""]);
                (MapKey::String(format!("{key}{number}")), self.single(&value, depth))
            });
            return Value::Map(pairs.collect());
        }
        if field.is_list() {
            return Value::List((0..many).map(|_| self.single(field, depth)).collect());
        }
        self.single(field, depth)
    }

    fn single(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        const NUMBERS: [u64; 8] = [0, 1, 2, 7, 100, 1000, 0x7fff_ffff, u64::MAX];
        let number = self.pick(&NUMBERS);
        let low = u32::try_from(number & 0xffff_ffff).unwrap();
        match field.kind() {
            Kind::Bool => Value::Bool(number % 2 == 1),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(low.cast_signed()),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number.cast_signed()),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(low),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(number),
            Kind::Float => Value::F32(0.5),
            Kind::Double => Value::F64(0.5),
            Kind::String => Value::String(self.pick(texts(field.name())).to_owned()),
            Kind::Bytes => Value::Bytes(self.pick(DEFINITIONS).as_bytes().into()),
            Kind::Enum(of) => Value::EnumNumber(self.number_of(&of)),
            Kind::Message(of) => Value::Message(self.message(&of, depth + 1)),
        }
    }

    /// A value that the enum has, or one that it may have in a later version.
    fn number_of(&mut self, of: &EnumDescriptor) -> i32 {
        let mut numbers: Vec<i32> = of.values().map(|value| value.number()).collect();
        numbers.push(99);
        self.pick(&numbers)
    }
}
