//! Where functions are, for `FIELD.function`.

use std::ops::Range;

/// Where functions are.
pub trait Functions {
    /// The addresses of the function of that name, which may be `MODULE:NAME`.
    fn named(&self, name: &str) -> Option<Range<u64>>;
    /// The addresses of the function that this one lies in.
    fn at(&self, address: u64) -> Option<Range<u64>>;
    /// Another name that may have been meant.
    fn nearest(&self, name: &str) -> Option<&str>;
}
