//! Kernels with different definition languages, for other properties.

use kprobed_lang::definition::Features;

/// The languages of a 6.1 kernel, of one of 6.12, and of one with every feature that is known to be
/// planned.
pub(crate) fn features() -> [Features; 3] {
    let old = Features::from_readme("[<group>/][<event>] ustring symstr");
    let new = Features {
        char_type: true,
        fprobe: true,
        btf_args: true,
        btf_members: true,
        retprobe_args: true,
        percent_pd: true,
        ..old.clone()
    };
    let newest = Features { typecasts: true, expression_max_bytes: 255, nesting_max: Some(8), ..new.clone() };
    [old, new, newest]
}
