//! Features of the running kernel's parser, and its limits.
//!
//! Owns the switches by which one parser serves every kernel, and reading them from the tracefs
//! `README`. Never decides by version alone if the `README` shows a feature: distributions carry
//! features back to older kernels.

/// Features and limits of the running kernel's parser.
///
/// The `README` of tracefs is compiled from the same options as the parser
/// (kernel/trace/trace.c:readme_msg), which makes a substring of it a reliable answer. What 5.10
/// and everything after it knows (`$argN`, `±uOFFS(...)`, immediates, `%return`) has no switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// `GRP/` alone: the event is named by the kernel inside that group.
    pub anonymous_group: bool,
    /// `-` in group names.
    pub group_hyphen: bool,
    /// Type `ustring`.
    pub ustring: bool,
    /// Type `symstr`.
    pub symstr: bool,
    /// Type `char`.
    pub char_type: bool,
    /// Function probes exist (not in `kprobe_events`). Their arrival also changed errors of all
    /// probes: an expression that is too long became `E2BIG`, and a wrong type of `$comm` is
    /// logged.
    pub fprobe: bool,
    /// Parameters by name, `$arg*`, and types from BTF.
    pub btf_args: bool,
    /// `NAME->member`.
    pub btf_members: bool,
    /// The daemon can read the kernel's types, and resolves names by itself: names work even if
    /// this kernel does not resolve them. Not in the `README`: see [`Features::with_types`].
    pub own_types: bool,
    /// `$argN`, and parameters by name, in return probes.
    pub retprobe_args: bool,
    /// Types `%pd` and `%pD`.
    pub percent_pd: bool,
    /// `(STRUCT)NAME->member`, `this_cpu_ptr(...)`, `$current`: known to the kernel, not yet to
    /// this module.
    pub typecasts: bool,
    /// Longest expression: what follows `=`, or all of an argument without a name.
    pub expression_max_bytes: usize,
    /// Deepest nesting of dereferences, if the kernel counts them separately from the slots of the
    /// fetch program.
    pub nesting_max: Option<usize>,
    /// A string that cannot be read keeps the length that its descriptor was preset with, so that
    /// [`guard`](super::guard) can detect a fault.
    pub fault_marks: bool,
    /// The kernel has the fix for arrays of strings of which one cannot be read: see
    /// [`dangerous`](super::dangerous).
    pub string_array_fix: bool,
    /// More than 128 arguments are refused. Kernels without this fix drop those after the 128th, or
    /// write after the end of their table of arguments.
    pub refuses_many_args: bool,
}

impl Features {
    /// Parses the tracefs `README`.
    ///
    /// Three limits are not in it. They follow from what arrived with them: the longer expressions
    /// and the limit of nesting came in the same release as typecasts, hyphens in group names
    /// shortly before unnamed events in a group.
    pub fn from_readme(readme: &str) -> Self {
        let has = |part: &str| readme.contains(part);
        let typecasts = has("[(structname") || has("this_cpu_read(<fetcharg>)") || has("$current");
        let anonymous_group = has("[<group>/][<event>]");
        Self {
            anonymous_group,
            group_hyphen: anonymous_group || has("symstr"),
            ustring: has("ustring"),
            symstr: has("symstr"),
            char_type: has("char, string"),
            fprobe: has("f[:[<group>"),
            btf_args: has("<argname>"),
            btf_members: has("<argname>[->field"),
            own_types: false,
            retprobe_args: has("kernel return probes support"),
            percent_pd: has("%pd/%pD"),
            typecasts,
            expression_max_bytes: if typecasts { 255 } else { 63 },
            nesting_max: typecasts.then_some(8),
            // The fixes of July 2023, which came with 6.5, and to the stable series shortly before
            // `symstr` came there. Releases that had `symstr` from the beginning are excluded by
            // their version.
            fault_marks: has("f[:[<group>") || has("symstr"),
            string_array_fix: has("f[:[<group>") || has("symstr"),
            refuses_many_args: has("f[:[<group>"),
        }
    }

    /// These features for a kernel of this `uname` release and version, such as `6.1.0-25-amd64`
    /// and `#1 SMP Debian 6.1.106-3`: for fixes that the `README` does not show.
    #[must_use]
    pub fn with_version(self, release: &str, version: &str) -> Self {
        let fixed = STRING_ARRAYS.is_in(release, version);
        // The only releases that had `symstr` first.
        let lacks = !fixed
            && numbers(release).is_some_and(|(major, minor, _)| major == 6 && (2..=4).contains(&minor));
        Self {
            string_array_fix: fixed || (self.string_array_fix && !lacks),
            fault_marks: self.fault_marks && !lacks,
            refuses_many_args: self.refuses_many_args && MANY_ARGS.is_in(release, version),
            ..self
        }
    }

    /// These features if the types of the kernel can be read, or not.
    #[must_use]
    pub fn with_types(self, own_types: bool) -> Self {
        Self { own_types, ..self }
    }

    /// Whether parameters can be named, by the kernel or with the daemon's help.
    pub(super) fn names_parameters(&self) -> bool {
        self.btf_args || self.own_types
    }

    /// Whether members can be named.
    pub(super) fn names_members(&self) -> bool {
        self.btf_members || self.own_types
    }
}

/// A fix that the `README` does not show, and the kernels that have it.
struct Fix {
    /// The first release.
    since: (u32, u32),
    /// Stable series that got it later, with the first number in each.
    stable: &'static [((u32, u32), u32)],
}

/// "tracing/probes: Fix not to count error code to total length", of July 2023.
const STRING_ARRAYS: Fix =
    Fix { since: (6, 5), stable: &[((5, 10), 188), ((5, 15), 121), ((6, 1), 40), ((6, 4), 5)] };
/// "tracing/probes: Fix MAX_TRACE_ARGS limit handling", of September 2024.
const MANY_ARGS: Fix = Fix { since: (6, 12), stable: &[((6, 6), 59), ((6, 11), 6)] };

impl Fix {
    /// Whether a kernel of this `uname` release and version has it. Distributions that hide the
    /// number of the stable kernel count as without it.
    fn is_in(&self, release: &str, version: &str) -> bool {
        let first = |text: &str| text.split('-').next().and_then(numbers);
        let Some((major, minor, patch)) = first(release) else { return false };
        if (major, minor) >= self.since {
            return true;
        }
        // Debian writes the number of the stable kernel only here.
        let packaged =
            version.split_whitespace().filter_map(first).filter(|found| (found.0, found.1) == (major, minor));
        let patch = packaged.map(|found| found.2).chain([patch]).max().unwrap_or_default();
        self.stable.iter().any(|(series, needed)| *series == (major, minor) && patch >= *needed)
    }
}

/// `6.1.106` or `6.5`.
fn numbers(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.split(['.', '+', '~']).map(str::parse::<u32>);
    let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some((major, minor, parts.next().and_then(Result::ok).unwrap_or_default()))
}
