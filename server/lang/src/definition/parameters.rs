//! Function parameters: facts about functions of the running kernel that the parser needs.
//!
//! Owns the interface only, and never looks a function up: the code that knows the types of the
//! kernel implements it.

/// Facts about functions of the running kernel that the parser needs.
pub trait Parameters {
    /// Whether that function has a parameter of that name; `None` if that is not known. A function
    /// that is known to have no types has no parameter.
    fn has(&self, module: Option<&str>, function: &str, name: &str) -> Option<bool>;

    /// Whether the kernel finds parameters of that function by itself, and so reads a plain `$argN`
    /// as the name of one; `None` if that is not known.
    fn found_by_kernel(&self, module: Option<&str>, function: &str) -> Option<bool>;
}

/// Nothing is known of any function.
#[derive(Debug, Clone, Copy)]
pub struct UnknownParameters;

impl Parameters for UnknownParameters {
    fn has(&self, _module: Option<&str>, _function: &str, _name: &str) -> Option<bool> {
        None
    }

    fn found_by_kernel(&self, _module: Option<&str>, _function: &str) -> Option<bool> {
        None
    }
}
