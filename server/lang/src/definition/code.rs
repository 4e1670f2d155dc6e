//! Error codes: the kernel's own for kprobe events, and those of this daemon for problems that the
//! kernel does not report.
//!
//! Owns names, kernel texts, errno values and general hints. Never looks at a definition.
//!
//! Names and texts are those of the `ERRORS` list in kernel/trace/trace_probe.h (5.10 to 7.3, codes
//! of uprobes and event probes left out). The list grows and its texts drift: a text that is not
//! found here stays as the kernel wrote it.

use super::diagnostic::RefusedBy;

pub(super) const ENOENT: i32 = 2;
pub(super) const E2BIG: i32 = 7;
const EEXIST: i32 = 17;
pub(super) const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const EILSEQ: i32 = 84;
const EOPNOTSUPP: i32 = 95;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $($text:literal $hint:literal)?;)*) => {
        /// A problem of a definition.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The kernel's name of the error, or a name in the same style for a problem that only
            /// we report.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What the kernel writes into `error_log`; empty for a problem that only we report.
            pub const fn kernel_text(self) -> &'static str {
                match self { $(Self::$variant => concat!("" $(, $text)?),)* }
            }

            /// What to write instead, in general; empty if the message of the problem says it.
            pub const fn hint(self) -> &'static str {
                match self { $(Self::$variant => concat!("" $(, $hint)?),)* }
            }
        }
    };
}

codes! {
    /// Maxactive on an entry probe (kernels with function probes).
    BadMaxactType "BAD_MAXACT_TYPE" "Maxactive is only for function exit"
        "only return probes take a number: `r100:GRP/EVENT FUNCTION`";
    /// Maxactive on an entry probe (older kernels).
    MaxactNoKprobe "MAXACT_NO_KPROBE" "Maxactive is not for kprobe"
        "only return probes take a number: `r100:GRP/EVENT FUNCTION`";
    /// Maxactive is not a number from 1.
    BadMaxact "BAD_MAXACT" "Invalid maxactive number"
        "write a number from 1 to 4096 right after `r`, or leave it out";
    /// Maxactive above 4096.
    MaxactTooBig "MAXACT_TOO_BIG" "Maxactive is too big"
        "the kernel takes at most 4096";
    /// The place does not exist or cannot be read.
    BadProbeAddr "BAD_PROBE_ADDR" "Invalid probed address or symbol"
        "write FUNCTION, FUNCTION+OFFSET, MODULE:FUNCTION or an address such as 0xffffffff81000000";
    /// Several symbols have this name.
    NonUniqSymbol "NON_UNIQ_SYMBOL" "The symbol is not unique"
        "write the probe point as _stext+DISTANCE or as a number";
    /// A return probe that is not at a function entry.
    BadRetprobe "BAD_RETPROBE" "Retprobe address must be an function entry"
        "probe the function itself, without an offset";
    /// Something else than `%return` after the place.
    BadAddrSuffix "BAD_ADDR_SUFFIX" "Invalid probed address suffix"
        "the only suffix is `%return`";
    /// `/EVENT`.
    NoGroupName "NO_GROUP_NAME" "Group name is not specified"
        "write GRP/EVENT, or EVENT alone";
    /// Group above 63 bytes.
    GroupTooLong "GROUP_TOO_LONG" "Group name is too long"
        "a group name has at most 63 bytes";
    /// Group is not an identifier.
    BadGroupName "BAD_GROUP_NAME" "Group name must follow the same rules as C identifiers"
        "use letters, digits and `_`, and no digit at the beginning; kernels from 5.17 on take `-` too";
    /// `p:` and nothing.
    NoEventName "NO_EVENT_NAME" "Event name is not specified"
        "write a name after the colon, or leave the colon out";
    /// Event above 63 bytes.
    EventTooLong "EVENT_TOO_LONG" "Event name is too long"
        "an event name has at most 63 bytes";
    /// Event is not an identifier.
    BadEventName "BAD_EVENT_NAME" "Event name must follow the same rules as C identifiers"
        "use letters, digits and `_`, not starting with a digit";
    /// The name belongs to an event of another kind.
    EventExist "EVENT_EXIST" "Given group/event name is already used by another event"
        "choose another name";
    /// Ours: `:FUNCTION`, which is accepted and never armed.
    NoModuleName "NO_MODULE_NAME" ""
        "write MODULE:FUNCTION, or FUNCTION alone";
    /// Ours: the event would take the name of a control file in `events/GRP/`.
    ReservedEventName "RESERVED_EVENT_NAME" ""
        "choose another name";
    /// Ours: the group would take the name of a control file in `events/`.
    ReservedGroupName "RESERVED_GROUP_NAME" ""
        "choose another name";
    /// Ours: an argument with a name of the daemon's own arguments.
    ReservedArgName "RESERVED_ARG_NAME" ""
        "choose another name";
    /// `$retval` without a return probe at a symbol.
    RetvalOnProbe "RETVAL_ON_PROBE" "$retval is not available on probe"
        "use a return probe at a function name: `r:GRP/EVENT FUNCTION $retval`";
    /// `$retval` of a `void` function.
    NoRetval "NO_RETVAL" "This function returns 'void' type"
        "leave `$retval` out";
    /// `$stackN` beyond the stack.
    BadStackNum "BAD_STACK_NUM" "Invalid stack number"
        "a kernel stack has 2048 words: use `$stack0` to `$stack2048`";
    /// `$argN` out of range.
    BadArgNum "BAD_ARG_NUM" "Invalid argument number"
        "arguments count from `$arg1`";
    /// An unknown `$` variable, or one that is not available here.
    BadVar "BAD_VAR" "Invalid $-variable specified"
        "there are $argN, $retval, $stack, $stackN and $comm, each where the kernel has it";
    /// Further text after `$argN`: the same error, with another errno.
    VarTail "BAD_VAR" ""
        "write $argN or $argN:TYPE";
    /// An unknown register.
    BadRegName "BAD_REG_NAME" "Invalid register name"
        "x86-64 registers are ax bx cx dx si di bp sp r8 to r15 ip cs ss flags orig_ax, with one `%` before";
    /// `@` and a bad number or symbol.
    BadMemAddr "BAD_MEM_ADDR" "Invalid memory address"
        "write @0xADDRESS, @SYMBOL or @SYMBOL+OFFSET";
    /// A number after `@` that has no room in an address: the same error, with another errno.
    MemAddrRange "BAD_MEM_ADDR" ""
        "a kernel address has 64 bits";
    /// Ours: `@` and something that cannot be `SYMBOL+OFFSET`, as the kernel finds out when it
    /// registers the probe.
    BadMemSymbol "BAD_MEM_SYMBOL" ""
        "write @SYMBOL or @SYMBOL+OFFSET";
    /// `\` and a bad number.
    BadImm "BAD_IMM" "Invalid immediate value"
        "write \\10, \\0x10, \\-1 or \\\"text\"";
    /// A number after `\` that has no room in a word: the same error, with another errno.
    ImmRange "BAD_IMM" ""
        "a word has 64 bits";
    /// An immediate string without its closing quote.
    ImmstrNoClose "IMMSTR_NO_CLOSE" "String is not closed with '\"'"
        "end the string with `\"`; it can hold no blank, `#` or `:`";
    /// `@+OFFSET`.
    FileOnKprobe "FILE_ON_KPROBE" "File offset is not available with kprobe"
        "write an address or a symbol after `@`";
    /// The fetch program has no slot left.
    TooManyOps "TOO_MANY_OPS" "Dereference is too much nested"
        "fetch an inner pointer and follow fewer levels";
    /// Nesting above what the kernel allows.
    TooManyNested "TOO_MANY_NESTED" "Too many nested typecasts/dereferences"
        "fetch an inner pointer and follow fewer levels";
    /// No `(` after the offset.
    DerefNeedBrace "DEREF_NEED_BRACE" "Dereference needs a brace"
        "write +OFFSET(EXPRESSION)";
    /// The offset is not a number.
    BadDerefOffs "BAD_DEREF_OFFS" "Invalid dereference offset"
        "write a number before the `(`: +0(EXPRESSION)";
    /// An offset that has no room in a word: the same error, with another errno.
    DerefOffsRange "BAD_DEREF_OFFS" ""
        "an offset has 32 bits";
    /// No `)`.
    DerefOpenBrace "DEREF_OPEN_BRACE" "Dereference brace is not closed"
        "close it with `)`";
    /// Memory at `$comm` or at an immediate string.
    CommCantDeref "COMM_CANT_DEREF" "$comm can not be dereferenced"
        "write $comm or the string alone";
    /// No form of expression matches.
    BadFetchArg "BAD_FETCH_ARG" "Invalid fetch argument"
        "expressions start with %, $, @, +, - or \\";
    /// `[` without `]`.
    ArrayNoClose "ARRAY_NO_CLOSE" "Array is not closed"
        "close it with `]`";
    /// Something after `]`.
    BadArraySuffix "BAD_ARRAY_SUFFIX" "Array has wrong suffix"
        "nothing can follow `]`";
    /// Length of the array is not a number from 1.
    BadArrayNum "BAD_ARRAY_NUM" "Invalid array size"
        "write a number from 1 to 64";
    /// Array above 64 elements.
    ArrayTooBig "ARRAY_TOO_BIG" "Array number is too big"
        "an array has at most 64 elements";
    /// An unknown type.
    BadType "BAD_TYPE" "Unknown type is specified"
        "there are u8 to u64, s8 to s64, x8 to x64, symbol, string, bWIDTH@OFFSET/SIZE, and arrays of them";
    /// A string or an array of something that is no memory.
    BadString "BAD_STRING" "String accepts only memory argument"
        "a string or an array needs memory: +0(EXPRESSION)";
    /// `symstr` of something that is no value.
    BadSymstring "BAD_SYMSTRING" "Symbol String doesn't accept data/userdata"
        "`symstr` takes a register, $stackN, $argN, $retval or a kernel dereference";
    /// BTF says that it is no string.
    BadType4Str "BAD_TYPE4STR" "This type does not fit for string."
        "only `char *` and `char []` can be read as a string";
    /// `$comm` or an immediate string with another type.
    NeedStringType "NEED_STRING_TYPE" "$comm and immediate-string only accepts string type"
        "leave the type out, or write `:string`";
    /// A bit-field that is malformed or does not fit.
    BadBitfield "BAD_BITFIELD" "Invalid bitfield"
        "write bWIDTH@OFFSET/SIZE with WIDTH at least 1 and WIDTH+OFFSET at most SIZE";
    /// Argument name above 32 bytes.
    ArgNameTooLong "ARG_NAME_TOO_LONG" "Argument name is too long"
        "an argument name has at most 32 bytes";
    /// Nothing before `=`.
    NoArgName "NO_ARG_NAME" "Argument name is not specified"
        "write NAME=EXPRESSION";
    /// Argument name is not an identifier.
    BadArgName "BAD_ARG_NAME" "Argument name must follow the same rules as C identifiers"
        "use letters, digits and `_`, not starting with a digit";
    /// Argument name is taken or reserved.
    UsedArgName "USED_ARG_NAME" "This argument name is already used"
        "choose another name";
    /// Expression too long.
    ArgTooLong "ARG_TOO_LONG" "Argument expression is too long"
        "shorten the numbers (decimal is shorter than hexadecimal) or follow fewer pointers";
    /// Nothing after `=`.
    NoArgBody "NO_ARG_BODY" "No argument expression"
        "write an expression after `=`, without a blank";
    /// More than 128 arguments.
    TooManyArgs "TOO_MANY_ARGS" "Too many arguments are specified"
        "a probe has at most 128 arguments: use two probes";
    /// The arguments saved at entry exceed what a return probe can carry.
    TooManyEargs "TOO_MANY_EARGS" "Too many entry arguments specified"
        "use fewer $argN in this return probe";
    /// The fixed part of the record is too large.
    EventTooBig "EVENT_TOO_BIG" "Event too big (too many fields?)"
        "use smaller arrays or fewer arguments";
    /// `$arg*` with a name or a type, or inside an expression.
    BadVarArgs "BAD_VAR_ARGS" "$arg* must be an independent parameter without name etc."
        "write `$arg*` alone";
    /// `$argN` at a place at which no function starts or returns.
    NofentryArgs "NOFENTRY_ARGS" "$arg* can be used only on function entry or exit"
        "probe the function name itself, without an offset, or read registers";
    /// `$arg*` twice.
    DoubleArgs "DOUBLE_ARGS" "$arg* can be used only once in the parameters"
        "leave the second one out";
    /// `$arg*` expands to too much text.
    Args2Long "ARGS_2LONG" "$arg* failed because the argument list is too long"
        "name the parameters that you need";
    /// BTF is off, or this is no function entry.
    NosupBtfarg "NOSUP_BTFARG" "BTF is not available or not supported"
        "read registers at the entry of the function: NAME=%di";
    /// `$arg*` for a function without parameters in BTF: the same error, with another errno.
    NosupAllArgs "NOSUP_BTFARG" ""
        "name what you need: NAME=$argN:TYPE";
    /// The function has no such parameter.
    NoBtfarg "NO_BTFARG" "This variable is not found at this probe point"
        "use the parameter names of the function, or NAME=$argN:TYPE";
    /// The function is not in BTF.
    NoBtfEntry "NO_BTF_ENTRY" "No BTF entry for this probe point"
        "use NAME=$argN:TYPE";
    /// No such member.
    NoBtfField "NO_BTF_FIELD" "This field is not found."
        "check the member names of the structure";
    /// `.` on a parameter.
    NosupDatArg "NOSUP_DAT_ARG" "Non pointer structure/union argument is not supported."
        "use `->` on a pointer";
    /// `-` without `>`.
    BadHyphen "BAD_HYPHEN" "Failed to parse single hyphen. Forgot '>'?"
        "write `->`";
    /// `->` on something that is no pointer to a structure.
    NoPtrStrct "NO_PTR_STRCT" "This is not a pointer to union/structure."
        "use `.` for a member that is a structure itself";
    /// A BTF type could not be resolved.
    BadBtfTid "BAD_BTF_TID" "Failed to get BTF type info."
        "use NAME=$argN:TYPE";
    /// The address is not the start of an instruction.
    BadInsnBndry "BAD_INSN_BNDRY" "Probe point is not an instruction boundary"
        "use an offset at which an instruction starts";
    /// Ours: the kernel has no name for the place at the offset.
    UnnamedPlace "BAD_PROBE_ADDR";
    /// Ours: a symbol that an argument reads (`@SYMBOL`) does not exist.
    UnknownMemorySymbol "UNKNOWN_MEMORY_SYMBOL";
    /// Ours: a return probe at an address that is not a function's entry.
    NotEntryAddress "NOT_FUNCTION_ENTRY";
    /// Ours: a function whose return must not be touched.
    ReturnBlacklisted "RETURN_BLACKLISTED";
    /// Ours: a function that ftrace does not trace.
    NotraceFunction "NOTRACE_FUNCTION";
    /// Ours: not code of the kernel or of a module.
    NotText "NOT_KERNEL_TEXT";
    /// Ours: a range that kprobes must not touch.
    Blacklisted "BLACKLISTED";
    /// Ours: part of a jump label.
    JumpLabel "JUMP_LABEL";
    /// Ours: part of a static call.
    StaticCall "STATIC_CALL";
    /// Ours: the instruction of a BUG or WARN.
    BugTrap "BUG_TRAP";
    /// Ours: the padding or the type hash in front of a function.
    Preamble "FUNCTION_PREAMBLE";
    /// Ours: the bytes at the place cannot be read.
    UnreadableCode "UNREADABLE_CODE";
    /// Ours: an instruction that traps by itself.
    TrapInstruction "TRAP_INSTRUCTION";
    /// Ours: an instruction that can be neither executed out of line nor emulated.
    UnsupportedInstruction "UNSUPPORTED_INSTRUCTION";
    /// Ours: the offset is after the end of the function. If the kernel refuses what is there, it does so for another
    /// reason; if it accepts that, this daemon does not.
    OutsideFunction "OUTSIDE_FUNCTION";
    /// Ours: the kernel may replace the place by a jump over an instruction that other code jumps to.
    JumpOverLanding "JUMP_OVER_LANDING";
    /// Ours: the kernel expects that the instruction faults.
    ExpectedFault "EXPECTED_FAULT";
    /// Ours: a conditional jump goes the wrong way.
    MisjudgedJump "MISJUDGED_JUMP";
    /// Ours: the kernel reads behind the end of the module.
    EndOfModule "END_OF_MODULE";
    /// Ours: the CPU can have no table of interrupts there.
    NoInterruptTable "NO_INTERRUPT_TABLE";
    /// Ours: the kernel accepts it, and never arms it.
    NeverArmed "NEVER_ARMED";
    /// The kernel refused to register the probe.
    FailRegProbe "FAIL_REG_PROBE" "Failed to register probe event"
        "this address cannot be probed";
    /// Entry and return probes on one event.
    DiffProbeType "DIFF_PROBE_TYPE" "Probe type is different from existing probe"
        "choose another event name";
    /// The arguments differ from those of the event that exists.
    DiffArgType "DIFF_ARG_TYPE" "Argument type or name is different from existing probe"
        "use the same arguments, or another event name";
    /// The same probe exists.
    SameProbe "SAME_PROBE" "There is already the exact same probe event"
        "it exists already";
    /// Ours: the kernel would add the probe to an event that exists, as another place of it.
    WouldAppend "WOULD_APPEND" ""
        "choose another name";
    /// Ours: a probe of the daemon has this name, and the kernel does not have that probe now.
    ProbeExists "PROBE_EXISTS" ""
        "choose another name, or delete that probe first";
    /// Ours: an event that the host does not have.
    NoSuchEvent "NO_SUCH_EVENT" ""
        "`kprobectl functions --events PART` lists the events with this part in their names";
    /// Ours: an event that describes what a tracer writes, and cannot be recorded by itself.
    EventHasNoSwitch "EVENT_HAS_NO_SWITCH" ""
        "choose an event that has a file `enable` below `events/` in tracefs";
    /// Ours (the kernel logs nothing): a deletion that fits no event.
    NoSuchProbe "NO_SUCH_PROBE";
    /// Ours: a deletion that fits only events that the daemon did not define.
    ForeignProbe "FOREIGN_PROBE" ""
        "the program that defined it can delete it";
    /// Ours: a deletion with a place, of one of several probes of an event.
    DeletesLocation "DELETES_LOCATION" ""
        "name the event alone: `-:GRP/EVENT`";
    /// Ours: known to the kernel, not to us; or not a kernel probe at all.
    UnsupportedFeature "UNSUPPORTED_FEATURE";
    /// Ours (the kernel logs nothing): longer than the kernel's line buffer.
    LineTooLong "LINE_TOO_LONG" ""
        "a line has at most 4094 bytes: use two probes";
    /// Ours (the kernel logs nothing): not `p`, `r` or `-`.
    UnknownCommand "UNKNOWN_COMMAND" ""
        "a definition starts with `p` (probe), `r` (return probe) or `-:` (delete)";
    /// Ours (the kernel logs nothing): no place.
    NoPlace "NO_PLACE" ""
        "write a probe point after the name: `p:GRP/EVENT FUNCTION`";
    /// Ours: no definition in the text.
    NoDefinition "NO_DEFINITION" ""
        "write for example `p:GRP/EVENT FUNCTION`";
    /// Ours: more than one definition in the text.
    SeveralLines "SEVERAL_LINES" ""
        "send one definition at a time";
    /// Ours: text that the kernel ignores.
    IgnoredText "IGNORED_TEXT" ""
        "remove it";
    /// Ours: a character that cuts or ends the kernel's copy of the line.
    BadCharacter "BAD_CHARACTER" ""
        "remove the character";
    /// Ours: an offset that the kernel would cut to 32 bits.
    OffsetTruncated "OFFSET_TRUNCATED" ""
        "an offset is between -2147483648 and 2147483647";
    /// Ours: an array of strings on a kernel that writes before the record if one of them cannot be
    /// read.
    DangerousArray "DANGEROUS_ARRAY" ""
        "read each string with an argument of its own: NAME=+0(+OFFSET(EXPRESSION)):string";
    /// Ours: memory that older kernels must not touch.
    DangerousMemory "DANGEROUS_MEMORY" ""
        "read another address: a kernel with the fix of Linux 6.8 reads nothing there either";
    /// Ours (a warning): a number from memory without a proof that it was read.
    Unproven "UNPROVEN_VALUE";
    /// Ours (a warning): an argument's register, read when the function returns.
    RegisterAtReturn "REGISTER_AT_RETURN";
    /// Ours (a warning): `$argN` is read as something else than what the function has there.
    ArgumentType "ARGUMENT_TYPE";
    /// Ours (a warning): a harmful part, which the kernel gets in another form.
    Rewritten "REWRITTEN";
    /// Ours (a warning): a function that a livepatch has redirected.
    Livepatched "LIVEPATCHED";
    /// Ours (a warning): a place in a module that is not loaded, of which nothing is proven.
    ModuleAbsent "MODULE_ABSENT";
    /// Ours (a warning): a word of the first version of the language.
    OldDialect "OLD_DIALECT";
    /// Ours: a form of an older language that no probe of today can record.
    NoEquivalent "NO_EQUIVALENT";
    /// Ours: a token that is not allowed at its position in a function prototype.
    UnexpectedToken "UNEXPECTED_TOKEN" ""
        "write FUNCTION(TYPE NAME, TYPE NAME[INDEX], NULL, ...)";
    /// Ours: a function prototype that is not finished.
    UnexpectedEnd "UNEXPECTED_END" ""
        "close the prototype with `)`";
    /// Ours: more parameters than a function has in registers.
    TooManyParameters "TOO_MANY_PARAMETERS" ""
        "a prototype has at most 6 parameters: write a line with `$arg7` for more";
    /// Ours (a warning): a form of a prototype that was read in several ways.
    AmbiguousPrototype "AMBIGUOUS_PROTOTYPE";
    /// Ours (a warning): a value of which only a part can be recorded.
    PartOfValue "PART_OF_VALUE";
    /// Ours (a warning): several functions of that name, with other parameters.
    AmbiguousTypes "AMBIGUOUS_TYPES";
    /// Ours (a warning): what a prototype leaves open or the kernel cannot do, and the daemon adds.
    Completed "COMPLETED";
}

impl Code {
    /// The usual errno of kernels. A [`super::Diagnostic`] has the one of the running kernel: if
    /// kernels differ, it is set when the problem is found.
    pub(super) const fn errno(self) -> i32 {
        match self {
            Self::BadInsnBndry => EILSEQ,
            Self::NoRetval
            | Self::NoBtfarg
            | Self::NoBtfEntry
            | Self::NoBtfField
            | Self::VarTail
            | Self::NoSuchProbe
            | Self::NoSuchEvent
            | Self::ForeignProbe => ENOENT,
            Self::NosupDatArg | Self::NosupAllArgs => EOPNOTSUPP,
            Self::MemAddrRange | Self::ImmRange | Self::DerefOffsRange => ERANGE,
            Self::EventExist
            | Self::DiffProbeType
            | Self::DiffArgType
            | Self::SameProbe
            | Self::WouldAppend
            | Self::ProbeExists => EEXIST,
            Self::TooManyArgs
            | Self::TooManyEargs
            | Self::TooManyNested
            | Self::Args2Long
            | Self::EventTooBig => E2BIG,
            _ => EINVAL,
        }
    }

    /// Who usually refuses a definition with this problem.
    pub const fn refused_by(self) -> RefusedBy {
        match self {
            Self::NoModuleName
            | Self::ReservedEventName
            | Self::ReservedGroupName
            | Self::ReservedArgName
            | Self::IgnoredText
            | Self::OffsetTruncated
            | Self::DangerousArray
            | Self::NoDefinition
            | Self::SeveralLines
            | Self::WouldAppend
            | Self::ProbeExists
            | Self::ForeignProbe
            | Self::DeletesLocation
            // Not of the kernel's language at all.
            | Self::NoEquivalent
            | Self::UnexpectedToken
            | Self::UnexpectedEnd
            | Self::TooManyParameters
            | Self::NoSuchEvent
            | Self::EventHasNoSwitch => RefusedBy::Kprobed,
            _ if self.is_objection() => RefusedBy::Kprobed,
            _ => RefusedBy::Kernel,
        }
    }

    /// Whether it is of a place that the kernel takes, and this daemon usually does not.
    pub const fn is_objection(self) -> bool {
        matches!(
            self,
            Self::OutsideFunction
                | Self::JumpOverLanding
                | Self::ExpectedFault
                | Self::MisjudgedJump
                | Self::EndOfModule
                | Self::NoInterruptTable
                | Self::DangerousMemory
                | Self::NeverArmed
        )
    }

    /// The code of a text that the kernel wrote into `error_log`.
    pub fn from_kernel_text(text: &str) -> Option<Self> {
        // Older kernels spell this word differently.
        let text = text.trim().replace("valiable", "variable");
        Self::ALL.iter().copied().find(|code| !text.is_empty() && code.kernel_text() == text)
    }
}
