//! Names of events and arguments: which are valid, which the kernel would choose, and how to be
//! independent of its choice.
//!
//! Owns these rules. Never knows which names are in use.

use super::Span;
use super::ast::{Argument, FetchKind, Name, Place, ProbeDefinition, ProbeKind};
use super::features::Features;
use super::guard;
use super::number;

/// Longest group or event name (`MAX_EVENT_NAME_LEN - 1`).
pub(super) const EVENT_NAME_MAX_BYTES: usize = 63;
/// Longest argument name (`MAX_ARG_NAME_LEN`).
pub const ARGUMENT_NAME_MAX_BYTES: usize = 32;

/// Fields that every probe event has (kernel/trace/trace_probe.c:reserved_field_names).
pub(super) const RESERVED_FIELDS: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

/// The kernel's rule for events and arguments (kernel/trace/trace.h:is_good_name).
pub fn is_identifier(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit()) && !text.is_empty() && text.chars().all(is_of_name)
}

/// Whether such a name can have this character.
pub(super) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The kernel's rule for groups (kernel/trace/trace.h:is_good_system_name).
pub(super) fn is_group_name(text: &str, features: &Features) -> bool {
    if features.group_hyphen { is_identifier(&text.replace('-', "_")) } else { is_identifier(text) }
}

/// The field name that the running kernel gives the argument at `index`, or `None` if only its BTF
/// has it (kernel/trace/trace_probe.c:generate_probe_arg_name and traceprobe_expand_meta_args).
/// `becomes_name`: the kernel replaces `$argN` by the names of parameters.
pub(super) fn kernel_argument_name(argument: &Argument, index: usize, becomes_name: bool) -> Option<String> {
    if let Some(name) = &argument.name {
        return Some(name.text.clone());
    }
    match &argument.fetch.kind {
        FetchKind::AllArguments => None,
        _ if argument.is_written_out() => Some(positional(index)),
        FetchKind::Argument(_) if becomes_name => None,
        _ => Some(argument.fetch.parameter().map_or_else(|| positional(index), str::to_owned)),
    }
}

pub(super) fn positional(index: usize) -> String {
    format!("arg{}", index + 1)
}

/// The positional name, with `_` appended while another argument has it.
fn free_positional(index: usize, taken: &mut Vec<String>) -> String {
    let mut text = positional(index);
    while taken.contains(&text) {
        text.push('_');
    }
    taken.push(text.clone());
    text
}

/// Names each argument that is a member after it: `how->flags` is `flags`, unless another argument would have that
/// name too.
pub fn name_members(args: &mut [Argument]) {
    let names: Vec<String> = args.iter().filter_map(wanted_name).map(str::to_owned).collect();
    for argument in args.iter_mut().filter(|argument| argument.name.is_none()) {
        let span = Span::point(argument.span.start);
        let Some(name) = member_name(argument).filter(|name| is_allowed(name)) else { continue };
        if names.iter().filter(|other| *other == name).count() == 1 {
            argument.name = Some(Name { text: name.to_owned(), span });
        }
    }
}

/// The name that an argument has, or would have if it was alone.
fn wanted_name(argument: &Argument) -> Option<&str> {
    let written = argument.name.as_ref().map(|name| name.text.as_str());
    written.or_else(|| argument.fetch.parameter()).or_else(|| member_name(argument))
}

fn member_name(argument: &Argument) -> Option<&str> {
    match &argument.fetch.kind {
        FetchKind::Btf { members, .. } => members.last().map(|member| member.name.as_str()),
        _ => None,
    }
}

/// Whether a user may write this name.
fn is_allowed(name: &str) -> bool {
    name.len() <= ARGUMENT_NAME_MAX_BYTES
        && is_identifier(name)
        && !RESERVED_FIELDS.contains(&name)
        && !name.starts_with(guard::PREFIX)
}

impl ProbeDefinition {
    /// The event name that the kernel chooses if there is none: `p_vfs_read_0`, with characters
    /// that a name cannot contain replaced by `_`, cut to 63 bytes
    /// (kernel/trace/trace_kprobe.c:trace_kprobe_create_internal).
    ///
    /// For an address the kernel prints a hashed pointer, another one after each boot. Here it is
    /// the address itself.
    pub fn default_event_name(&self) -> String {
        let letter = match self.kind {
            ProbeKind::Entry | ProbeKind::Event => 'p',
            ProbeKind::Return => 'r',
        };
        let mut name = match &self.place {
            Place::Symbol { module, symbol, offset, .. } => {
                let module = module.as_ref().map(|module| format!("{module}_")).unwrap_or_default();
                format!("{letter}_{module}{symbol}_{offset}")
            }
            Place::Address { address, .. } => format!("{letter}_{address:#x}"),
            Place::Event { .. } => self.event.as_ref().map(|event| event.text.clone()).unwrap_or_default(),
        };
        name = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        name.truncate(EVENT_NAME_MAX_BYTES);
        name
    }

    /// A copy with an explicit name for every argument, so that the fields are the same on every
    /// kernel.
    ///
    /// Without a name, a kernel with BTF replaces a plain `$argN` by the parameter: its name *and
    /// its type* become those of the parameter (`p:x vfs_read $arg1` has a field `file` on 6.12 and
    /// `arg1` on 6.1). With a name, `x=$arg1` is the raw slot everywhere, shown in hexadecimal. So:
    ///
    /// - a member is named after itself: see [`name_members`];
    /// - a bare parameter `NAME` keeps its name; it exists only with BTF, and if its name is longer
    ///   than the kernel lets a user write, it stays without: that kernel names it so by itself;
    /// - everything else, `$argN` and `$retval` included, is named by its position, as the kernel
    ///   does if it knows no name: `arg1`, with `_` appended while another argument has that name;
    /// - `$argN` as a text stays without a name: the parameter, by which the kernel replaces it,
    ///   can be a text; the raw slot, which it would be with a name, cannot;
    /// - `$arg*` stays: the number of its fields is not known here.
    ///
    /// So a valid definition stays valid with names, unless they make it too long.
    ///
    /// No type is added. Names and types from the kernel's BTF are added before this, by the code
    /// that knows them: arguments that still have no name have none in BTF.
    #[must_use]
    pub fn with_explicit_names(mut self) -> Self {
        if self.args.iter().all(|argument| argument.name.is_some()) {
            return self;
        }
        name_members(&mut self.args);
        let mut taken: Vec<String> =
            self.args.iter().filter_map(Argument::own_name).map(str::to_owned).collect();
        for (index, argument) in self.args.iter_mut().enumerate() {
            if argument.name.is_some() {
                continue;
            }
            let text = match &argument.fetch.kind {
                FetchKind::AllArguments => continue,
                FetchKind::Argument(_) if argument.ty.is_some_and(|ty| ty.base.is_pointed_text()) => continue,
                _ if argument.is_written_out() => free_positional(index, &mut taken),
                _ => match argument.fetch.parameter() {
                    // The kernel limits the length of written names, and not of those that it chooses.
                    Some(name) if name.len() > ARGUMENT_NAME_MAX_BYTES => continue,
                    Some(name) => name.to_owned(),
                    None => free_positional(index, &mut taken),
                },
            };
            argument.name = Some(Name { text, span: Span::point(argument.span.start) });
        }
        self
    }
}

/// The number in `$argN` and similar words, as the kernel's `simple_strtoul(text, &tail, 10)`
/// splits it.
pub(super) fn leading_index(text: &str) -> (Option<u64>, &str) {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, tail) = text.split_at(length);
    (number::decimal(digits), tail)
}
