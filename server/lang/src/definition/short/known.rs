//! What a kernel has that a text can name: functions, their parameters, modules, events and system calls.
//!
//! Owns the interface only, and never looks anything up: the code that knows a kernel implements it.

/// What a kernel has that a text can name. Nothing of it is known, unless an implementation says so.
pub trait KernelNames {
    /// Whether that function has a parameter of that name; `None` if that is not known. A function
    /// that is known to have no types has no parameter.
    fn has_parameter(&self, _module: Option<&str>, _function: &str, _name: &str) -> Option<bool> {
        None
    }

    /// Whether the kernel finds parameters of that function by itself, and so reads a plain `$argN`
    /// as the name of one; `None` if that is not known.
    fn finds_parameters(&self, _module: Option<&str>, _function: &str) -> Option<bool> {
        None
    }

    /// Whether a module, or the kernel with all of its modules, has a function of that name. Absent if that is not
    /// known.
    fn has_function(&self, _module: Option<&str>, _name: &str) -> Option<bool> {
        None
    }

    /// The functions that a probe can be in and whose names match a glob, in the order of their names.
    fn functions(&self, _module: Option<&str>, _glob: &str) -> MatchingFunctions {
        MatchingFunctions::default()
    }

    /// Whether a module is loaded.
    fn has_module(&self, _name: &str) -> bool {
        false
    }

    /// All events of the host, as `GROUP/EVENT`, that can be recorded. Absent if they are not known.
    fn events(&self) -> Option<Vec<String>> {
        None
    }

    /// The types of a function. Absent if they are not known.
    fn function(&self, _module: Option<&str>, _name: &str) -> Option<KnownFunction> {
        None
    }

    /// The system call that a name means: `openat`, `sys_openat`, `__x64_sys_openat`.
    fn system_call(&self, _name: &str) -> Option<SystemCall> {
        None
    }
}

/// A kernel of which nothing is known.
pub(in super::super) struct UnknownKernel;

impl KernelNames for UnknownKernel {}

/// The functions that match a glob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchingFunctions {
    /// Those that a probe can be in: the module, if the function needs it, and the name.
    pub places: Vec<(Option<String>, String)>,
    /// How many others match: a probe cannot be in them, or several functions have the name.
    pub left_out: usize,
}

/// A function whose types are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its parameters, in order.
    pub parameters: Vec<KnownParameter>,
    /// Whether `$arg*` records all of them.
    pub all_recordable: bool,
    /// Whether it returns a value.
    pub returns: bool,
}

/// A parameter of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownParameter {
    /// Its name; empty for `...`.
    pub name: String,
    /// Whether it points to memory of a program (`__user`). Absent if its type does not say so.
    pub is_of_program: Option<bool>,
}

/// A system call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemCall {
    /// Its name, such as `openat`.
    pub name: String,
    /// The function that the entry code calls.
    pub function: String,
    /// Its arguments, in order. Empty if they are not known.
    pub arguments: Vec<CallArgument>,
}

/// An argument of a system call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallArgument {
    /// Its name.
    pub name: String,
    /// The expression that reads it, such as `regs->si`.
    pub value: String,
    /// How it is read if nothing is said: a type such as `s32`, or `ustring` for the text that it points to.
    pub ty: String,
}
