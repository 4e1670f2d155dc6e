//! System calls: the functions that the entry code of the kernel calls, which have the arguments of
//! the caller in a `struct pt_regs`.
//!
//! Owns which register has which argument, and the names and types that the kernel's own events give them.
//! Never judges a definition.

use std::ops::Range;

use super::function::{self, Function};
use kprobed_filter::Notation;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::Kind;
use kprobed_lang::definition::short::{CallArgument, SystemCall};
use kprobed_lang::definition::{BtfRoot, FetchKind};

/// The prefix of these functions (arch/x86/include/asm/syscall_wrapper.h).
pub(in crate::validate) const PREFIX: &str = "__x64_sys_";

/// The members of `struct pt_regs` that hold the arguments of a caller of 64 bits.
const REGISTERS: [&str; 6] = ["di", "si", "dx", "r10", "r8", "r9"];

/// Other beginnings of names by which people know a system call.
const OTHER_PREFIXES: [&str; 9] =
    [PREFIX, "__se_sys_", "__do_sys_", "sys_enter_", "sys_exit_", "__sys_", "ksys_", "SyS_", "sys_"];

/// The same registers in the `struct pt_regs` at the address in `%di`, for kernels without types
/// (arch/x86/include/asm/ptrace.h).
const OFFSETS: [u32; 6] = [112, 104, 96, 56, 72, 64];

/// C types of arguments that are numbers, and how they are fetched. Everything else is an address, or too rare to be
/// worth more than its bits.
const NUMBERS: [(&str, &[&str]); 5] = [
    (
        "s32",
        &["int", "pid_t", "clockid_t", "timer_t", "key_t", "mqd_t", "key_serial_t", "rwf_t", "__s32", "s32"],
    ),
    ("u32", &["unsigned int", "unsigned", "uid_t", "gid_t", "qid_t", "__u32", "u32", "uint32_t"]),
    ("u16", &["umode_t"]),
    ("s64", &["long", "off_t", "loff_t", "ssize_t"]),
    ("u64", &["unsigned long", "size_t", "__u64", "u64", "aio_context_t", "old_sigset_t"]),
];

/// An argument that is called so is bytes, and no text, whatever C calls it: those of `write` and its kin.
const BYTES: &str = "buf";

/// Arguments whose names end so are bits, as the formats of the kernel's events show them.
const FLAGS: &str = "flags";

/// The system call that a name means, with its arguments: as its event describes them, or else the function with its
/// prototype, if the kernel shows the types of that.
pub(crate) fn known(name: &str, facts: &KernelFacts) -> Option<SystemCall> {
    let (function, call) = named(name, facts)?;
    let declared = declared(call, facts);
    let own = function::look_up(&function, None, facts).ok();
    let regs = own.and_then(|own| own.parameters.first().map(|parameter| parameter.name.clone()));
    let regs = regs.filter(|name| !name.is_empty());
    let value = |register: &str, offset: u32| match &regs {
        Some(regs) => format!("{regs}->{register}"),
        None => format!("+{offset}(%di)"),
    };
    let arguments = declared.into_iter().zip(REGISTERS.into_iter().zip(OFFSETS));
    let argument = |((c_type, name), (register, offset)): ((String, String), (&str, u32))| CallArgument {
        ty: fetched_as(&c_type, &name).to_owned(),
        value: value(register, offset),
        name,
    };
    Some(SystemCall { name: call.to_owned(), arguments: arguments.map(argument).collect(), function })
}

/// The C types and names of the arguments of a system call.
fn declared(call: &str, facts: &KernelFacts) -> Vec<(String, String)> {
    let declared = facts.system_call_arguments(call);
    if !declared.is_empty() {
        return declared;
    }
    of_prototype(&format!("__do_sys_{call}"), facts).unwrap_or_default()
}

/// How people write what lies at these bits of the `struct pt_regs` of a system call, if the C type of that argument
/// says more than its size.
pub(crate) fn notation(function: &str, bits: &Range<u64>, facts: &KernelFacts) -> Option<Notation> {
    let call = function.strip_prefix(PREFIX)?;
    let index = OFFSETS.iter().position(|offset| u64::from(*offset) * 8 == bits.start)?;
    let (c_type, name) = declared(call, facts).into_iter().nth(index)?;
    match (c_type.as_str(), bits.end.saturating_sub(bits.start)) {
        ("umode_t", 16) => Some(Notation::Octal),
        ("int", 32) if name == FLAGS && matches!(call, "open" | "openat") => Some(Notation::OpenFlags),
        _ => None,
    }
}

/// The types and names of the parameters of a function.
fn of_prototype(function: &str, facts: &KernelFacts) -> Option<Vec<(String, String)>> {
    let function = function::look_up(function, None, facts).ok()?;
    let declared = function
        .parameters
        .iter()
        .map(|parameter| Some((function.btf.type_text(parameter.ty).ok()?, parameter.name.clone())));
    declared.collect()
}

/// How an argument of a C type is fetched.
fn fetched_as(c_type: &str, name: &str) -> &'static str {
    if c_type.contains('*') {
        let is_text = c_type.replace(' ', "") == "constchar*" && name != BYTES;
        return if is_text { "ustring" } else { "x64" };
    }
    let number =
        NUMBERS.iter().find(|(_, types)| types.contains(&c_type)).map_or("x64", |(fetched, _)| fetched);
    match number {
        "s32" | "u32" if name.ends_with(FLAGS) => "x32",
        "s64" | "u64" if name.ends_with(FLAGS) => "x64",
        number => number,
    }
}

/// The function of the system call that a name means, and its name as the kernel's events have it.
pub(in crate::validate) fn named<'n>(name: &'n str, facts: &KernelFacts) -> Option<(String, &'n str)> {
    let call = OTHER_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let function = format!("{PREFIX}{call}");
    facts.symbols.named(&function, None).next()?;
    Some((function, call))
}

/// Whether an expression is a member of a `struct pt_regs`: a number by its type, and whatever the
/// caller had in the register, an address too.
pub(super) fn is_register(function: &Function, fetch: &FetchKind) -> bool {
    let FetchKind::Btf { root: BtfRoot::Parameter(name), members } = fetch else { return false };
    let btf = &function.btf;
    let target = function.parameter(name).and_then(|parameter| match btf.resolved(parameter.ty).ok()?.kind {
        Kind::Pointer(target) => btf.resolved(target).ok(),
        _ => None,
    });
    members.len() == 1 && target.is_some_and(|target| target.name == "pt_regs")
}

/// Where the arguments of a system call are, if the function is one of these; `parameter` is its own
/// parameter.
pub(super) fn arguments_hint(function: &str, parameter: &str) -> Option<String> {
    function.strip_prefix(PREFIX)?;
    let all = REGISTERS.map(|register| format!("`{parameter}->{register}`"));
    Some(format!("the arguments of the system call are {}, in this order", all.join(", ")))
}

/// The register of an argument of a system call that is called by its name.
pub(super) fn argument_hint(
    function: &str,
    parameter: &str,
    wanted: &str,
    facts: &KernelFacts,
) -> Option<String> {
    let declared = facts.system_call_arguments(function.strip_prefix(PREFIX)?);
    let names: Vec<String> = declared.into_iter().map(|(_, name)| name).collect();
    let of_name = |name: &str| {
        let (register, _) = REGISTERS.iter().zip(&names).find(|(_, known)| *known == name)?;
        Some(format!("`{name}={parameter}->{register}`"))
    };
    match of_name(wanted) {
        Some(argument) => {
            Some(format!("write {argument}: `{function}` has the arguments of its caller in `{parameter}`"))
        }
        None if names.is_empty() => arguments_hint(function, parameter),
        None => {
            let all: Vec<String> = names.iter().filter_map(|name| of_name(name)).collect();
            Some(format!("the arguments of the system call are {}", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_fetched_as_their_c_types_and_names_say() {
        for (c_type, name, expected) in [
            ("int", "dfd", "s32"),
            ("int", "flags", "x32"),
            ("unsigned int", "mnt_flags", "x32"),
            ("unsigned long", "flags", "x64"),
            ("umode_t", "mode", "u16"),
            ("size_t", "count", "u64"),
            ("const char *", "filename", "ustring"),
            ("const char *", "buf", "x64"),
            ("int *", "flags", "x64"),
            ("fd_set", "set", "x64"),
        ] {
            assert_eq!(fetched_as(c_type, name), expected, "{c_type} {name}");
        }
    }
}
