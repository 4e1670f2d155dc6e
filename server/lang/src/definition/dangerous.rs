//! Dangerous definitions: those that the kernel accepts and that harm the host.
//!
//! Owns the table of them, and the treatment of each: the daemon writes another line that records
//! the same, or refuses the definition with a code of its own. Never lets a line reach the kernel
//! that contains one of these. Places are not judged here, nor addresses that symbols stand for: see `validate`.

use super::ast::{Argument, BaseType, Fetch, FetchKind, MemoryAddress, ProbeDefinition, Type};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;

/// What the daemon does with a dangerous definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It writes another line, which records the same.
    Rewritten,
    /// It refuses the definition with this code.
    Refused(Code),
}

/// One dangerous form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Danger {
    /// The form.
    pub pattern: &'static str,
    /// What the kernel does with it.
    pub harm: &'static str,
    /// The file and function in the kernel.
    pub function: &'static str,
    /// Which kernels.
    pub kernels: &'static str,
    /// What the daemon does with it.
    pub treatment: Treatment,
}

/// `:symstr`.
///
/// b26a124cbfa8 added the type: Linux 6.2, and the stable kernels 6.1.43 and 5.15.124. 426295ef18c5
/// removed the write: Linux 7.0, and the stable kernels 6.18.22 and 6.19.12 (the latter is verified
/// for its release candidate only). It is not verified whether other stable series have that fix.
/// The byte is the last one of a buffer of `KSYM_NAME_LEN`: 512 bytes, and 128 on 5.15, where the
/// byte is 127 bytes behind the start. For a function of a module, kernels before 6.10
/// (7e1f4eb9a60d) also fill the bytes between the name and that byte with zeros.
const SYMBOL_STRING: Danger = Danger {
    pattern: "ARGUMENT:symstr",
    harm: "writes a zero byte 511 bytes behind the start of the text, which is behind the record: into another event, or into the next page",
    function: "kernel/trace/trace_probe_tmpl.h:fetch_store_symstring, kernel/kallsyms.c:kallsyms_lookup_buildid",
    kernels: "all that have the type (6.2, 6.1.43 and 5.15.124), before 7.0, 6.19.12 and 6.18.22",
    treatment: Treatment::Rewritten,
};

/// `+0(%si):string[4]`.
///
/// The kernel adds the error code, -14 for EFAULT, to the place of the next string. b41326b5e0f8
/// fixed it: Linux 6.5, and the stable kernels below. The type `symstr` does not prove the fix:
/// 6.2, 6.3, and 6.4 before 6.4.5 have the type without it.
const STRING_ARRAY: Danger = Danger {
    pattern: "ARGUMENT:string[N], ARGUMENT:ustring[N]",
    harm: "moves 14 bytes back for each string that cannot be read, and writes the next one there: over other fields, then over other events",
    function: "kernel/trace/trace_probe_tmpl.h:process_fetch_insn_bottom, update_data_loc",
    kernels: "before 6.5, 6.4.5, 6.1.40, 5.15.121 and 5.10.188; and those that do not show that they are newer",
    treatment: Treatment::Refused(Code::DangerousArray),
};

/// `@0xffffffffff600000`.
///
/// The fault handler treats this page as memory of programs. From ca247283781d (Linux 5.12) on, it
/// applies no fixup if SMAP forbids such an access. 32019c659ecf (Linux 6.8, and the stable kernels
/// below) refuses the read before it faults. The daemon refuses these addresses on every kernel:
/// nothing in the `README` shows the fix, and a kernel with it reads nothing there.
const VSYSCALL: Danger = Danger {
    pattern: "a fixed address in the vsyscall page, such as @0xffffffffff600000",
    harm: "takes the address for one of a program and stops with an oops; with the fix, it reads nothing there",
    function: "arch/x86/mm/fault.c:do_user_addr_fault, arch/x86/mm/maccess.c:copy_from_kernel_nofault_allowed",
    kernels: "from 5.12 on CPUs with SMAP, before 6.8, 6.7.11, 6.6.23, 6.1.83 and 5.15.153",
    treatment: Treatment::Refused(Code::DangerousMemory),
};

/// All dangerous forms.
pub const TABLE: &[Danger] = &[
    SYMBOL_STRING,
    STRING_ARRAY,
    VSYSCALL,
    // 18b1e870a496 (Linux 6.5) added the expansion. `sprint_nth_btf_arg` checks the upper limit of
    // the index only, and the index is signed. No fix is known; sources of 6.5 and of 2025 were
    // read.
    Danger {
        pattern: "$argN without a name, with N above 2147483648",
        harm: "cuts N to 32 bits, and reads before its table of parameters if the result is negative or 0",
        function: "kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg",
        kernels: "6.5 and later, if BTF has the function",
        treatment: Treatment::Refused(Code::NoBtfarg),
    },
    Danger {
        pattern: "$arg0 without a name",
        harm: "reads before its table of parameters",
        function: "kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg",
        kernels: "6.5 and later, if BTF has the function",
        treatment: Treatment::Refused(Code::BadArgNum),
    },
    // 035ba76014c0 (Linux 6.9) sets the number of arguments before 128 of them are read.
    // 73f35080477e (Linux 6.12, and 6.11.6) refuses more. 6.6.59 has both changes. Kernels without
    // them drop the arguments after the 128th.
    Danger {
        pattern: "more than 128 arguments",
        harm: "counts arguments that it does not set up, and follows their empty pointers",
        function: "kernel/trace/trace_probe.c:trace_probe_init, __set_print_fmt",
        kernels: "6.9 to 6.11.5",
        treatment: Treatment::Refused(Code::TooManyArgs),
    },
    // Linux 6.6 (27152bceea1d) moved these directories to eventfs, which does not check whether a
    // name is taken. Its lookup finds directories before files: read in a source after 6.9, not
    // verified for 6.6 to 6.9. Before 6.6, tracefs refuses to make the directory. It is not
    // verified what remains after the event is removed.
    Danger {
        pattern: "an event or a group called like a control file, such as `enable`",
        harm: "makes a directory that hides the file, so that `enable` no longer switches the group; before 6.6, makes an event without files",
        function: "kernel/trace/trace_events.c:event_create_dir, event_subsystem_dir, fs/tracefs/event_inode.c:eventfs_root_lookup",
        kernels: "all, with another harm before 6.6",
        treatment: Treatment::Refused(Code::ReservedEventName),
    },
];

/// The page of system calls that the kernel keeps for old programs
/// (arch/x86/include/uapi/asm/vsyscall.h), and the addresses before it from which a read can still
/// reach into it: the kernel's fix checks only the address at which a read begins.
const VSYSCALL_PAGE: std::ops::Range<u64> = 0xffff_ffff_ff60_0000 - 512..0xffff_ffff_ff60_1000;

/// What a read at this address of kernel memory does to a kernel without the fix, if that harms it.
pub fn harm_of_read(address: u64) -> Option<&'static str> {
    VSYSCALL_PAGE.contains(&address).then_some(VSYSCALL.harm)
}

/// The problem of an argument that must not reach the kernel in any form.
pub(super) fn refused(argument: &Argument, features: &Features) -> Option<Diagnostic> {
    let danger = if is_string_array(argument) && !features.string_array_fix {
        &STRING_ARRAY
    } else if reads_vsyscall(&argument.fetch) {
        &VSYSCALL
    } else {
        return None;
    };
    let Treatment::Refused(code) = danger.treatment else { return None };
    let span = match (code, argument.ty) {
        (Code::DangerousArray, Some(ty)) => ty.span,
        _ => argument.fetch.span,
    };
    Some(Diagnostic::error(
        code,
        span,
        format!("kprobed refuses this, because a kernel without the fix {}", danger.harm),
    ))
}

fn is_string_array(argument: &Argument) -> bool {
    argument.ty.is_some_and(|ty| ty.count.is_some() && ty.base.is_pointed_text())
}

/// Whether any level of the expression reads kernel memory at a fixed address of that page.
fn reads_vsyscall(fetch: &Fetch) -> bool {
    let (address, inner) = match &fetch.kind {
        FetchKind::Memory(MemoryAddress::Address(address)) => (Some(*address), None),
        FetchKind::Deref { user, offset, inner } => {
            let base = match inner.kind {
                FetchKind::Immediate(value) if !user => {
                    u64::try_from(value).ok().or_else(|| i64::try_from(value).ok().map(i64::cast_unsigned))
                }
                _ => None,
            };
            (base.map(|base| base.wrapping_add_signed((*offset).into())), Some(&**inner))
        }
        _ => (None, None),
    };
    address.and_then(harm_of_read).is_some() || inner.is_some_and(reads_vsyscall)
}

/// The definition in a form that does no harm. Records the same bytes, or the address in place of
/// its name.
pub(super) fn defused(mut definition: ProbeDefinition) -> ProbeDefinition {
    for ty in definition.args.iter_mut().filter_map(|argument| argument.ty.as_mut()) {
        *ty = safe(*ty);
    }
    definition
}

/// Whether [`defused`] would change anything.
pub(super) fn needs_rewriting(definition: &ProbeDefinition) -> bool {
    definition.args.iter().any(|argument| argument.ty.is_some_and(|ty| safe(ty) != ty))
}

fn safe(ty: Type) -> Type {
    match ty.base {
        BaseType::SymbolString => Type { base: BaseType::Symbol, ..ty },
        _ => ty,
    }
}

/// What the writer should know about arguments that the kernel gets in another form.
pub(super) fn notes(definition: &ProbeDefinition) -> impl Iterator<Item = Diagnostic> {
    let rewritten = definition.args.iter().filter_map(|argument| Some((argument, argument.ty?)));
    rewritten.filter(|(_, ty)| safe(*ty) != *ty).map(|(argument, ty)| {
        let message = format!(
            "the kernel gets `:{}` for `{argument}`, and the daemon finds the name: without the fix of Linux 7.0, the kernel's own `symstr` {}",
            safe(ty),
            SYMBOL_STRING.harm
        );
        let hint = "filter in the kernel with FIELD.function == FUNCTION (kernels from 6.4)";
        Diagnostic::warning(Code::Rewritten, ty.span, message).with_hint(hint)
    })
}
