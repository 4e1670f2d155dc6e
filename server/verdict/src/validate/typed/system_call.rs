//! System calls: the functions that the entry code of the kernel calls, which have the arguments of
//! the caller in a `struct pt_regs`.
//!
//! Owns which register has which argument, and the names that the kernel's own events give them.
//! Never judges a definition.

use super::function::Function;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::Kind;
use kprobed_lang::definition::{BtfRoot, FetchKind};

/// The prefix of these functions (arch/x86/include/asm/syscall_wrapper.h).
pub(in crate::validate) const PREFIX: &str = "__x64_sys_";

/// The members of `struct pt_regs` that hold the arguments of a caller of 64 bits.
const REGISTERS: [&str; 6] = ["di", "si", "dx", "r10", "r8", "r9"];

/// Other beginnings of names by which people know a system call.
const OTHER_PREFIXES: [&str; 7] = ["__se_sys_", "__do_sys_", "sys_enter_", "__sys_", "ksys_", "SyS_", "sys_"];

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
    let parameter = function.parameters.iter().find(|parameter| parameter.name == *name);
    let btf = &function.btf;
    let target = parameter.and_then(|parameter| match btf.resolved(parameter.ty).ok()?.kind {
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
    let names = facts.system_call_arguments(function.strip_prefix(PREFIX)?);
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
