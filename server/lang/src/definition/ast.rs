//! Syntax tree of a definition, with the position of every part.
//!
//! Owns values, not spellings: `0x10` and `16` are the same offset, `p f%return` is the same as `r
//! f`. Never parses or renders. Comparing trees compares spans too; use
//! [`ProbeDefinition::without_spans`](super::ProbeDefinition::without_spans) to compare meanings.

use super::Span;
use super::computed::Computed;
use super::diagnostic::Diagnostic;
use super::path::PathField;

/// What one text says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// `p` or `r`: define a probe. `GROUP/EVENT`: record an event of the host.
    Probe(ProbeDefinition),
    /// `-`: delete probes.
    Delete(DeleteDefinition),
}

/// An identifier and its position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// The identifier.
    pub text: String,
    /// Its position.
    pub span: Span,
}

/// `-:[GRP/][EVENT] [PLACE [ARG...]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteDefinition {
    /// Only in this group; in every group if absent.
    pub group: Option<Name>,
    /// Only this event; the whole group if absent.
    pub event: Option<Name>,
    /// Only the location whose listing has exactly these words (place and arguments). The kernel
    /// compares texts.
    pub location: Vec<Name>,
    /// The whole definition.
    pub span: Span,
}

/// When the probe hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// `p`: when the instruction at the place is reached.
    Entry,
    /// `r` or `PLACE%return`: when the function at the place returns.
    Return,
    /// `GROUP/EVENT`: when an event of the host happens, which the kernel or another program has defined.
    Event,
}

/// `p`, `r` or an event of the host, with everything that it records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeDefinition {
    /// Entry, return or event.
    pub kind: ProbeKind,
    /// Executions that a return probe can follow at the same time; the kernel chooses if absent.
    pub maxactive: Option<u16>,
    /// The group; chosen later if absent.
    pub group: Option<Name>,
    /// The event; chosen later if absent.
    pub event: Option<Name>,
    /// The place of the probe.
    pub place: Place,
    /// What it records, in order.
    pub args: Vec<Argument>,
    /// Fields that are computed of arguments, and shown in their place.
    pub computed: Vec<Computed>,
    /// Paths that are joined of arguments, and shown in their place.
    pub paths: Vec<PathField>,
    /// What the writer should know although the definition is accepted.
    pub warnings: Vec<Diagnostic>,
    /// The whole definition, without comment and surrounding blanks.
    pub span: Span,
}

/// The place of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// `[MODULE:]SYMBOL[+OFFSET]`.
    Symbol {
        /// The module; the kernel itself or any module if absent.
        module: Option<String>,
        /// The symbol.
        symbol: String,
        /// Bytes after the symbol; it may reach into functions that follow.
        offset: u32,
        /// Its position, without a `%return`.
        span: Span,
    },
    /// A kernel address.
    Address {
        /// The address.
        address: u64,
        /// Its position.
        span: Span,
    },
    /// Wherever the kernel has put the event of the host that has the definition's group and event.
    Event {
        /// Its position.
        span: Span,
    },
}

/// `[NAME=]FETCH[:TYPE]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Argument {
    /// The name of the field; the kernel chooses one if absent.
    pub name: Option<Name>,
    /// The source of the value.
    pub fetch: Fetch,
    /// How it is read and shown; the kernel's default if absent.
    pub ty: Option<Type>,
    /// The whole argument.
    pub span: Span,
}

/// An expression, and its position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// The expression.
    pub kind: FetchKind,
    /// Its position.
    pub span: Span,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FetchKind {
    /// `%REG`.
    Register(Register),
    /// `$stackN`: the Nth word above the stack pointer.
    StackNth(u32),
    /// `$stack`: the stack pointer.
    Stack,
    /// `$argN`: the Nth argument of the function, from 1.
    Argument(u32),
    /// `$arg*`: all parameters that BTF knows.
    AllArguments,
    /// `$retval`.
    Retval,
    /// `$comm`: the name of the current task.
    Comm,
    /// `@ADDR` or `@SYM[±OFFS]`: kernel memory at that address.
    Memory(MemoryAddress),
    /// `±[u]OFFS(FETCH)`: memory at the inner value plus an offset.
    Deref {
        /// User memory.
        user: bool,
        /// Added to the inner value.
        offset: i32,
        /// The pointer.
        inner: Box<Fetch>,
    },
    /// `\NUM`, from -2^63 to 2^64-1.
    Immediate(i128),
    /// `\"text"`.
    ImmediateString(String),
    /// A parameter by name, or members of what it or `$retval` points to.
    Btf {
        /// The root of the path.
        root: BtfRoot,
        /// The members; never empty for `$retval`.
        members: Vec<BtfMember>,
    },
}

/// A fixed place in kernel memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MemoryAddress {
    /// A kernel address.
    Address(u64),
    /// A kernel symbol and an offset.
    Symbol {
        /// The symbol: all of the written text, if an offset in it is not a number.
        symbol: String,
        /// Added to its address.
        offset: i64,
    },
}

/// The root of a BTF path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BtfRoot {
    /// A parameter of the probed function.
    Parameter(String),
    /// The value that it returns.
    Retval,
}

/// One step of a BTF path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BtfMember {
    /// `->` (through a pointer) rather than `.`.
    pub arrow: bool,
    /// The member.
    pub name: String,
    /// The element of an array that it is, one index for each dimension: `[2]`. The kernel's own language has none.
    pub indices: Vec<u32>,
}

impl BtfMember {
    /// `->` or `.`.
    pub const fn separator(&self) -> &'static str {
        if self.arrow { "->" } else { "." }
    }
}

/// A register name that the kernel knows on x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Register(&'static str);

impl Register {
    /// Every name, without the `%` (arch/x86/kernel/ptrace.c:regoffset_table).
    pub const NAMES: [&'static str; 21] = [
        "r15", "r14", "r13", "r12", "r11", "r10", "r9", "r8", "bx", "cx", "dx", "si", "di", "bp", "ax",
        "orig_ax", "ip", "cs", "flags", "sp", "ss",
    ];

    /// The register of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|known| **known == name).map(|known| Self(known))
    }

    /// The name, without the `%`.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// The first arguments of a function, in order (System V psABI 3.2.3). The others are on the stack, above the return
/// address (arch/x86/include/asm/ptrace.h:regs_get_kernel_argument).
const ARGUMENT_REGISTERS: [Register; 6] =
    [Register("di"), Register("si"), Register("dx"), Register("cx"), Register("r8"), Register("r9")];

impl FetchKind {
    /// The register or the word of the stack that holds an argument, counted from 1, when its function starts.
    pub fn of_argument(number: u32) -> Option<Self> {
        match (1..).zip(ARGUMENT_REGISTERS).find(|(of, _)| *of == number) {
            Some((_, register)) => Some(Self::Register(register)),
            None => number.checked_sub(6).filter(|index| *index > 0).map(Self::StackNth),
        }
    }

    /// The number of the argument, from 1, that a register or a word of the stack holds when its function starts.
    pub fn held_argument(&self) -> Option<u32> {
        match self {
            Self::Register(register) => {
                (1..).zip(ARGUMENT_REGISTERS).find(|(_, of)| of == register).map(|(number, _)| number)
            }
            Self::StackNth(index @ 1..) => index.checked_add(6),
            _ => None,
        }
    }
}

/// How a value is read and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    /// The element.
    pub base: BaseType,
    /// An array of this many, 1 to 64.
    pub count: Option<u8>,
    /// Its position.
    pub span: Span,
}

/// The type of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BaseType {
    /// `u8` to `u64`.
    Unsigned(Width),
    /// `s8` to `s64`.
    Signed(Width),
    /// `x8` to `x64`: unsigned, shown in hexadecimal.
    Hex(Width),
    /// `char`: a byte, shown as a character.
    Char,
    /// `symbol`: an address, shown as a symbol.
    Symbol,
    /// `string`.
    String,
    /// `ustring`: a string in user memory.
    UserString,
    /// `symstr`: the name of the symbol of an address. The kernel gets `symbol` for it: see
    /// [`dangerous`](super::dangerous).
    SymbolString,
    /// `%pd`: the name of a `struct dentry`.
    DentryName,
    /// `%pD`: the name of a `struct file`.
    FileName,
    /// `path`: the whole path of a `struct file`, `path` or `dentry`. The kernel does not know it, and gets what a
    /// [`PathField`] consists of.
    Path,
    /// `bWIDTH@OFFSET/SIZE`.
    BitField {
        /// Bits, at least 1.
        width: u8,
        /// Bits below it.
        offset: u8,
        /// The integer that holds it.
        container: Width,
    },
}

/// Size of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// 8 bits.
    W8,
    /// 16 bits.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// The width of this many bits.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            8 => Some(Self::W8),
            16 => Some(Self::W16),
            32 => Some(Self::W32),
            64 => Some(Self::W64),
            _ => None,
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::W8 => 1,
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }

    /// In bits.
    pub const fn bits(self) -> u8 {
        self.bytes() * 8
    }
}

impl Place {
    /// Its position.
    pub const fn span(&self) -> Span {
        match self {
            Self::Symbol { span, .. } | Self::Address { span, .. } | Self::Event { span } => *span,
        }
    }
}

impl BaseType {
    /// Whether the record contains a `__data_loc` that refers to text elsewhere in the record.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::String | Self::UserString | Self::DentryName | Self::FileName | Self::Path)
    }

    /// Whether it is text in memory: `string` and `ustring`.
    pub const fn is_pointed_text(self) -> bool {
        matches!(self, Self::String | Self::UserString)
    }

    /// The one of `u8` to `x64` that has this name. The number can be written with zeros before it.
    pub(super) fn integer(name: &str) -> Option<Self> {
        let (letter, bits) = name.split_at_checked(1)?;
        let width = bits.parse().ok().and_then(Width::from_bits)?;
        match letter {
            "u" => Some(Self::Unsigned(width)),
            "s" => Some(Self::Signed(width)),
            "x" => Some(Self::Hex(width)),
            _ => None,
        }
    }

    /// Whether it is one of `u8` to `x64`.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Unsigned(_) | Self::Signed(_) | Self::Hex(_))
    }

    /// Bytes in the fixed part of the record. For `symstr` those of the address that is recorded.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Hex(width) => width.bytes(),
            Self::BitField { container, .. } => container.bytes(),
            Self::Char => 1,
            Self::Symbol | Self::SymbolString => 8,
            Self::String | Self::UserString | Self::DentryName | Self::FileName | Self::Path => 4,
        }
    }
}

impl Fetch {
    /// The expression and its parts, from the outermost to the innermost.
    pub fn levels(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |fetch| match &fetch.kind {
            FetchKind::Deref { inner, .. } => Some(&**inner),
            _ => None,
        })
    }

    /// The innermost part.
    pub fn root(&self) -> &Self {
        self.levels().last().unwrap_or(self)
    }

    /// The parameter that it is, if it reads no member of one.
    pub fn parameter(&self) -> Option<&str> {
        match &self.kind {
            FetchKind::Btf { root: BtfRoot::Parameter(name), members } if members.is_empty() => Some(name),
            _ => None,
        }
    }

    /// The memory so many bytes behind its value.
    #[must_use]
    pub fn followed(self, offset: i32) -> Self {
        let span = self.span;
        Self { kind: FetchKind::Deref { user: false, offset, inner: Box::new(self) }, span }
    }

    /// The memory so many bytes further on, if its offset can be expressed. A member path has no spelling for that.
    pub fn shifted(&self, bytes: u64) -> Option<Self> {
        let mut shifted = self.clone();
        match &mut shifted.kind {
            FetchKind::Deref { offset, .. } => *offset = offset.checked_add(i32::try_from(bytes).ok()?)?,
            FetchKind::Memory(MemoryAddress::Address(address)) => *address = address.checked_add(bytes)?,
            FetchKind::Memory(MemoryAddress::Symbol { offset, .. }) => {
                *offset = offset.checked_add(i64::try_from(bytes).ok()?)?;
            }
            _ => return None,
        }
        Some(shifted)
    }
}

impl Argument {
    /// Its name, or the one that it gets from its parameter.
    pub fn own_name(&self) -> Option<&str> {
        let written = self.name.as_ref().map(|name| name.text.as_str());
        written.or_else(|| self.fetch.parameter().filter(|_| !self.is_written_out()))
    }

    /// Whether it was written as `NAME=EXPRESSION`.
    pub(super) fn has_equals_sign(&self) -> bool {
        self.name
            .as_ref()
            .is_some_and(|name| name.span.end > name.span.start && name.span.end + 1 == self.fetch.span.start)
    }

    /// Whether the kernel expands it to dereferences before it names it (`%pd`, `%pD`;
    /// kernel/trace/trace_probe.c:traceprobe_expand_dentry_args): the name is not that of a
    /// parameter then.
    pub fn is_written_out(&self) -> bool {
        self.ty.is_some_and(|ty| matches!(ty.base, BaseType::DentryName | BaseType::FileName))
    }

    /// Whether it is a whole path.
    pub fn is_path(&self) -> bool {
        self.ty.is_some_and(|ty| ty.base == BaseType::Path)
    }

    /// The type if none is written: text for `$comm` and immediate strings, else a word in
    /// hexadecimal (BTF may know a better one).
    pub fn base_type(&self) -> BaseType {
        match (&self.ty, &self.fetch.kind) {
            (Some(ty), _) => ty.base,
            (None, FetchKind::Comm | FetchKind::ImmediateString(_)) => BaseType::String,
            (None, _) => BaseType::Hex(Width::W64),
        }
    }

    /// Bytes in the fixed part of the record.
    pub fn fixed_bytes(&self) -> usize {
        let count = self.ty.and_then(|ty| ty.count).unwrap_or(1);
        usize::from(self.base_type().bytes()) * usize::from(count)
    }
}

impl ProbeDefinition {
    /// Whether it is about an event of the host, which kprobed neither defines nor deletes.
    pub const fn is_of_host_event(&self) -> bool {
        matches!(self.kind, ProbeKind::Event)
    }

    /// Whether its place is a number.
    pub const fn is_at_address(&self) -> bool {
        matches!(self.place, Place::Address { .. })
    }

    /// A definition with nothing but its place.
    pub(super) fn at(kind: ProbeKind, place: Place, span: Span) -> Self {
        Self {
            kind,
            maxactive: None,
            group: None,
            event: None,
            place,
            args: Vec::new(),
            computed: Vec::new(),
            paths: Vec::new(),
            warnings: Vec::new(),
            span,
        }
    }

    /// A copy without the names of the event and without arguments.
    #[must_use]
    pub fn place_alone(self) -> Self {
        Self { maxactive: self.maxactive, ..Self::at(self.kind, self.place, self.span) }
    }

    /// A copy without positions and warnings: equal for two texts with the same meaning.
    #[must_use]
    pub fn without_spans(&self) -> Self {
        let mut plain = self.clone();
        plain.warnings.clear();
        plain.map_spans(&|_| Span::default());
        plain
    }

    /// Moves every position except those of warnings.
    pub(super) fn map_spans(&mut self, to: &impl Fn(Span) -> Span) {
        self.span = to(self.span);
        for name in [&mut self.group, &mut self.event].into_iter().flatten() {
            name.span = to(name.span);
        }
        match &mut self.place {
            Place::Symbol { span, .. } | Place::Address { span, .. } | Place::Event { span } => {
                *span = to(*span);
            }
        }
        for argument in &mut self.args {
            argument.span = to(argument.span);
            if let Some(name) = &mut argument.name {
                name.span = to(name.span);
            }
            if let Some(ty) = &mut argument.ty {
                ty.span = to(ty.span);
            }
            let mut fetch = &mut argument.fetch;
            loop {
                fetch.span = to(fetch.span);
                let FetchKind::Deref { inner, .. } = &mut fetch.kind else { break };
                fetch = inner;
            }
        }
    }
}
