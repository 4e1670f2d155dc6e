//! Values that a trial has recorded: which of the guards beside them read an address of user space.
//!
//! Owns finding them in the kernel's text. Never decides what a guard costs.

use kprobed_lang::definition::guard;

/// The most of the text that is looked at, in bytes: some hundred records.
pub(super) const MOST_BYTES: u64 = 64 << 10;

/// The first address that is none of user space, with page tables of four levels
/// (arch/x86/include/asm/page_64.h: `TASK_SIZE_MAX`).
const USER_END: u64 = 1 << 47;

/// For each guard of a line of `kprobe_events`, in their order: which share of them, from 0 to 1, reads an
/// address of user space, by the values in `recorded`, the text of `trace`. Absent if no value is
/// there, or not all of its 64 bits.
pub(super) fn shares_of_user_addresses(line: &str, recorded: &str) -> Vec<Option<f64>> {
    let arguments: Vec<&str> = line.split_ascii_whitespace().skip(2).collect();
    let share = |number: &str| {
        // That at the end of an array has a name of its own.
        let index: usize = number.parse().ok()?;
        let name = name_of_whole_number(arguments.get(index)?, index)?;
        share(recorded, &name)
    };
    let numbers = arguments.iter().copied().filter_map(number_of);
    numbers.map(share).collect()
}

/// Of the name of a guard: which argument it stands beside.
fn number_of(argument: &str) -> Option<&str> {
    let number = argument.strip_prefix(guard::PREFIX)?.strip_prefix('g')?;
    number.split_once('=').map(|(number, _)| number)
}

/// How the kernel names an argument in the record, if the record has all 64 bits of it.
fn name_of_whole_number(argument: &str, index: usize) -> Option<String> {
    let (name, fetched) = match argument.split_once('=') {
        Some((name, fetched)) => (name.to_owned(), fetched),
        None => (format!("arg{}", index + 1), argument),
    };
    matches!(fetched.rsplit_once(':')?.1, "u64" | "s64" | "x64").then_some(name)
}

fn share(recorded: &str, name: &str) -> Option<f64> {
    let before = format!(" {name}=");
    let value = |record: &str| number(record.split_once(&before)?.1.split_ascii_whitespace().next()?);
    let values: Vec<u64> = recorded.lines().filter_map(value).collect();
    let users = values.iter().filter(|value| value.wrapping_add_signed(guard::DISTANCE.into()) < USER_END);
    let share = users.count() as f64 / values.len() as f64;
    (!values.is_empty()).then_some(share)
}

/// As the kernel prints it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = "p:kprobed_temporary/trial f a=+8(%sp):u64 b=%di:u64 +16(%sp):x64 d=+0(%si):s64 e=+0(%si):u32 \
                        h=+0(%dx):u64[4] __kpd_g0=-2147483647(+8(%sp)):ustring __kpd_g2=-2147483647(+16(%sp)):ustring \
                        __kpd_g3=-2147483647(+0(%si)):ustring __kpd_g4=-2147483647(+0(%si)):ustring \
                        __kpd_g5=-2147483647(+0(%dx)):ustring __kpd_g5_e=-2147483647(+24(%dx)):ustring \
                        __kpd_end=\\\"k\":string";

    #[test]
    fn values_of_guarded_arguments_are_found() {
        let record = |a: &str, c: &str, d: &str| {
            format!(
                "   a-1  [000] .....  1.5: trial: (f+0x0/0x10) a={a} b=9 arg3={c} d={d} e=7 h={{1,2,3,4}}\n"
            )
        };
        let recorded = [
            "# tracer: nop\n#\n".to_owned(),
            // An address of user space, one of the kernel, a small number.
            record("139637976727552", "0xffffffff81000000", "-1"),
            record("3", "0xffff888000000000", "5"),
        ];
        let expected = [Some(0.5), Some(0.0), Some(0.0), None, None, None];
        assert_eq!(shares_of_user_addresses(LINE, &recorded.concat()), expected);
        assert_eq!(shares_of_user_addresses(LINE, "# tracer: nop\n"), [None; 6]);
        assert_eq!(shares_of_user_addresses("p:a/b f a=%di:u64", &recorded.concat()), []);
    }

    proptest! {
        #[test]
        fn any_text_is_read(line in ".{0,200}", recorded in "([ a-e=0-9x-]|\n){0,200}") {
            let shares = shares_of_user_addresses(&format!("p f {line}"), &recorded);
            prop_assert!(shares.iter().flatten().all(|share| (0.0..=1.0).contains(share)));
            let of_known = shares_of_user_addresses(LINE, &recorded);
            prop_assert_eq!(of_known.len(), 6);
        }
    }
}
