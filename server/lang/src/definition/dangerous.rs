//! Dangerous definitions: those that the kernel accepts and that harm the host.
//!
//! Owns the treatment of what a type or an address makes dangerous: the daemon writes another line that records
//! the same, or refuses the definition with a code of its own. Never lets a line reach the kernel
//! that contains one of these. Other forms are refused where they are parsed; `tests/dangers.rs` lists all.
//! Places are not judged here, nor addresses that symbols stand for: see `validate`.

use super::ast::{Argument, BaseType, Fetch, FetchKind, MemoryAddress, ProbeDefinition, Type};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;

/// What `+0(%si):symstr` does.
///
/// kernel/trace/trace_probe_tmpl.h:fetch_store_symstring and kernel/kallsyms.c:kallsyms_lookup_buildid.
/// b26a124cbfa8 added the type: Linux 6.2, and the stable kernels 6.1.43 and 5.15.124. 426295ef18c5
/// removed the write: Linux 7.0, and the stable kernels 6.18.22 and 6.19.12 (the latter is verified
/// for its release candidate only). It is not verified whether other stable series have that fix.
/// The byte is the last one of a buffer of `KSYM_NAME_LEN`: 512 bytes, and 128 on 5.15, where the
/// byte is 127 bytes behind the start. For a function of a module, kernels before 6.10
/// (7e1f4eb9a60d) also fill the bytes between the name and that byte with zeros.
pub(super) const SYMBOL_STRING_HARM: &str = "writes a zero byte 511 bytes behind the start of the text, which is behind the record: into another event, or into the next page";

/// What `+0(%si):string[4]` does.
///
/// kernel/trace/trace_probe_tmpl.h:process_fetch_insn_bottom and update_data_loc. The kernel adds
/// the error code, -14 for EFAULT, to the place of the next string. b41326b5e0f8
/// fixed it: Linux 6.5, and the stable kernels 6.4.5, 6.1.40, 5.15.121 and 5.10.188. The type `symstr`
/// does not prove the fix: 6.2, 6.3, and 6.4 before 6.4.5 have the type without it.
pub(super) const STRING_ARRAY_HARM: &str = "moves 14 bytes back for each string that cannot be read, and writes the next one there: over other fields, then over other events";

/// What `@0xffffffffff600000` does.
///
/// The fault handler (arch/x86/mm/fault.c:do_user_addr_fault) treats this page as memory of programs.
/// From ca247283781d (Linux 5.12) on, it applies no fixup if SMAP forbids such an access. 32019c659ecf
/// (Linux 6.8, 6.7.11, 6.6.23, 6.1.83 and 5.15.153; arch/x86/mm/maccess.c:copy_from_kernel_nofault_allowed)
/// refuses the read before it faults. The daemon refuses these addresses on every kernel:
/// nothing in the `README` shows the fix, and a kernel with it reads nothing there.
pub(super) const VSYSCALL_HARM: &str =
    "takes the address for one of a program and stops with an oops; with the fix, it reads nothing there";

/// The page of system calls that the kernel keeps for old programs
/// (arch/x86/include/uapi/asm/vsyscall.h), and the addresses before it from which a read can still
/// reach into it: the kernel's fix checks only the address at which a read begins.
const VSYSCALL_PAGE: std::ops::Range<u64> = 0xffff_ffff_ff60_0000 - 512..0xffff_ffff_ff60_1000;

/// What a read at this address of kernel memory does to a kernel without the fix, if that harms it.
pub fn harm_of_read(address: u64) -> Option<&'static str> {
    VSYSCALL_PAGE.contains(&address).then_some(VSYSCALL_HARM)
}

/// The problem of an argument that must not reach the kernel in any form.
pub(super) fn refused(argument: &Argument, features: &Features) -> Option<Diagnostic> {
    let (code, span, harm) = match argument.ty {
        Some(ty) if is_string_array(ty) && !features.string_array_fix => {
            (Code::DangerousArray, ty.span, STRING_ARRAY_HARM)
        }
        _ if reads_vsyscall(&argument.fetch) => (Code::DangerousMemory, argument.fetch.span, VSYSCALL_HARM),
        _ => return None,
    };
    let message = format!("kprobed refuses this, because a kernel without the fix {harm}");
    Some(Diagnostic::error(code, span, message))
}

fn is_string_array(ty: Type) -> bool {
    ty.count.is_some() && ty.base.is_pointed_text()
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
            SYMBOL_STRING_HARM
        );
        let hint = "filter in the kernel with FIELD.function == FUNCTION (kernels from 6.3)";
        Diagnostic::warning(Code::Rewritten, ty.span, message).with_hint(hint)
    })
}
