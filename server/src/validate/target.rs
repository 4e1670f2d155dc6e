//! A place in kernel code, with the code around it.

use crate::insn;

/// Where a probe would go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the function.
    pub function: String,
    /// Its module; absent for the kernel itself.
    pub module: Option<String>,
    /// Address of its first byte.
    pub start: u64,
    /// Distance to the next symbol, in bytes.
    pub size: u64,
    /// The place asked for, in bytes from the start.
    pub offset: u64,
    /// The function's live bytes.
    pub code: Vec<u8>,
    /// Where its instructions begin, ascending.
    pub boundaries: Vec<u32>,
}

impl Target {
    /// Decodes the function.
    pub fn new(function: &str, module: Option<&str>, start: u64, offset: u64, code: Vec<u8>) -> Self {
        let boundaries = insn::boundaries(&code);
        Self {
            function: function.to_owned(),
            module: module.map(str::to_owned),
            start,
            size: code.len() as u64,
            offset,
            code,
            boundaries,
        }
    }

    /// Bytes of ENDBR at the function's start, sealed or not: 4 or 0. On such a function offset 0 means offset 4
    /// (arch/x86/kernel/kprobes/core.c:arch_adjust_kprobe_addr; sealed forms: arch/x86/kernel/alternative.c and
    /// arch/x86/include/asm/ibt.h, which differ between releases).
    pub fn endbr_bytes(&self) -> u64 {
        const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
        const SEALED_6_12: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
        const SEALED_7_2: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
        let begins = |form: [u8; 4]| self.code.starts_with(&form);
        if begins(ENDBR64) || begins(ENDBR32) || begins(SEALED_6_12) || begins(SEALED_7_2) { 4 } else { 0 }
    }

    /// Whether an offset is the function's entry (kernel/kprobes.c:kprobe_on_func_entry).
    pub fn is_entry(&self, offset: u64) -> bool {
        offset == 0 || offset == self.endbr_bytes()
    }

    /// Where the kernel would really put a probe for this offset.
    pub fn effective_offset(&self, offset: u64) -> u64 {
        if offset == 0 { self.endbr_bytes() } else { offset }
    }

    /// Address of an offset.
    pub fn address_of(&self, offset: u64) -> u64 {
        self.start.wrapping_add(offset)
    }

    /// Whether an instruction begins there.
    pub fn is_boundary(&self, offset: u64) -> bool {
        u32::try_from(offset).is_ok_and(|offset| self.boundaries.binary_search(&offset).is_ok())
    }

    /// `FUNCTION+0xOFFSET`, with `MODULE:` before it for modules.
    pub fn location(&self) -> String {
        let module = self.module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
        format!("{module}{}+{:#x}", self.function, self.offset)
    }
}
