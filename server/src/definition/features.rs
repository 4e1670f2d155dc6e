//! What the running kernel's parser knows.
//!
//! Owns the switches by which one parser serves every kernel, and reading them from the tracefs `README`.
//! Versions never decide: distributions carry features back to older kernels.

/// What the running kernel's parser knows and where its limits are.
///
/// The `README` of tracefs is compiled from the same options as the parser (kernel/trace/trace.c:readme_msg),
/// which makes a substring of it a reliable answer. What 5.10 and everything after it knows (`$argN`,
/// `±uOFFS(...)`, immediates, `%return`) has no switch.
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
    /// Function probes exist (not in `kprobe_events`). Their arrival also changed errors of all probes: an
    /// expression that is too long became `E2BIG`, and a wrong type of `$comm` is logged.
    pub fprobe: bool,
    /// Parameters by name, `$arg*`, and types from BTF.
    pub btf_args: bool,
    /// `NAME->member`.
    pub btf_members: bool,
    /// The daemon can read the kernel's types, and resolves names by itself: what this kernel does not know by name works all the same.
    /// Not in the `README`: see [`Features::with_types`].
    pub own_types: bool,
    /// `$argN`, and parameters by name, in return probes.
    pub retprobe_args: bool,
    /// Types `%pd` and `%pD`.
    pub percent_pd: bool,
    /// `(STRUCT)NAME->member`, `this_cpu_ptr(...)`, `$current`: known to the kernel, not yet to this module.
    pub typecasts: bool,
    /// Longest expression: what follows `=`, or all of an argument without a name.
    pub expression_max_bytes: usize,
    /// Deepest nesting of dereferences, if the kernel counts them apart from the slots of the fetch program.
    pub nesting_max: Option<usize>,
    /// Largest fixed part of a record (`MAX_PROBE_EVENT_SIZE`). Kernels without this limit drop records that
    /// do not fit a sub-buffer without counting them, so it holds for all of them here.
    pub fixed_record_max_bytes: usize,
}

impl Features {
    /// Reads the tracefs `README`.
    ///
    /// Three limits are not in it. They follow from what arrived with them: the longer expressions and the
    /// limit of nesting came in the same release as typecasts, hyphens in group names shortly before unnamed
    /// events in a group.
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
            fixed_record_max_bytes: 3072,
        }
    }

    /// The same where the types of the kernel can be read, or not.
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
