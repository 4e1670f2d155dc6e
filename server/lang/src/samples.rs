//! Sample features of kernels, for tests of this crate and of those above.
//!
//! Owns shortened `README` texts. Never used by the daemon itself.

use crate::definition::Features;

/// The parts of the `README` of a 6.1 kernel without BTF arguments that mention features of kprobe
/// events.
const README_6_1: &str = "p[:[<group>/][<event>]] <place> [<args>] r[maxactive][:[<group>/][<event>]] \
    %return|<memaddr> e[:[<group> $arg<N> +|-[u]<offset>(<fetcharg>), \\imm-value, \\\"imm-string\" \
    type: s8/16/32/64, u8/16/32/64, x8/16/32/64, string, symbol, symstr, ustring";
/// Those of 6.12.
const README_6_12: &str = "p[:[<group>/][<event>]] <place> [<args>] r[maxactive][:[<group>/][<event>]] \
    f[:[<group>/] t[:[<group>/] %return|<memaddr> e[:[<group> $arg<N> <argname>[->field[->field|.field...]] \
    +|-[u]<offset>(<fetcharg>), \\imm-value, \\\"imm-string\" kernel return probes support: $retval, $arg<N>, $comm \
    type: s8/16/32/64, u8/16/32/64, x8/16/32/64, char, string, symbol, symstr, %pd/%pD, ustring";
/// What 7.3 adds.
const README_7_3: &str = "[(structname[,field])] this_cpu_read(<fetcharg>) $current";

/// Features of a 6.1 kernel.
pub fn v6_1() -> Features {
    Features::from_readme(README_6_1)
}

/// Features of a 6.12 kernel.
pub fn v6_12() -> Features {
    Features::from_readme(README_6_12)
}

/// Features of a 7.3 kernel.
pub fn v7_3() -> Features {
    Features::from_readme(&format!("{README_6_12} {README_7_3}"))
}
