//! Kernel addresses in events, for subscribers that may not see where the kernel is in memory.
//!
//! Owns what such a subscriber gets instead of one: a hash with a key of this run, as `printk` shows `%p`
//! (Documentation/core-api/printk-formats.rst). Equal addresses stay equal, and names of symbols stay. Which
//! numbers and fields count as addresses is in [`kprobed_filter`], which refuses to compare them. Never
//! decides who may see them.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use super::{Draft, Group};
use crate::filter::KERNEL_ADDRESSES;
use crate::wire::Symbol;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The number, or what stands for it if it can be a kernel address: 47 bits that are not zero, and
/// others in each run of the daemon. `printk` takes 32; here two of a million addresses must not look
/// the same.
pub fn hidden(number: u64) -> u64 {
    if !KERNEL_ADDRESSES.contains(&number) {
        return number;
    }
    (KEY.hash_one(number) >> 17).max(1)
}

/// The text with all hexadecimal numbers hidden that can be kernel addresses; also those that an
/// instruction has as a negative displacement of 32 bits.
pub fn hidden_in(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("0x") {
        let length = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (mut digits, mut behind) = after.split_at(length);
        // A zero before an `x` begins the next number.
        if behind.starts_with('x')
            && let Some(shorter) = digits.strip_suffix('0')
        {
            (digits, behind) = after.split_at(shorter.len());
        }
        let number = u64::from_str_radix(digits, 16).unwrap_or_default();
        let negative = number.wrapping_neg();
        if let Some(sign) = before.strip_suffix('-').filter(|_| hidden(negative) != negative) {
            _ = write!(shown, "{sign}{:#x}", hidden(negative));
        } else if hidden(number) != number {
            _ = write!(shown, "{before}{:#x}", hidden(number));
        } else {
            _ = write!(shown, "{before}0x{digits}");
        }
        rest = behind;
    }
    shown.push_str(rest);
    shown
}

impl Draft {
    /// The same events without kernel addresses: those of the probes, and values that have 64 bits.
    pub(super) fn without_addresses(mut self) -> Self {
        for Group { columns, .. } in &mut self.groups {
            columns.replace_addresses(hidden);
        }
        for Symbol { address, .. } in &mut self.symbols {
            *address = hidden(*address);
        }
        // Their order would say how the addresses lie.
        self.symbols.sort_unstable_by_key(|symbol| symbol.address);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::samples::hub;
    use super::super::tests::taken;
    use super::super::{EventSource, Item, Permits, View};
    use super::*;
    use crate::decode::{CompileOptions, CompiledFormat};
    use crate::filter::{Filter, FilterCode};
    use crate::wire::read_batch;
    use kprobed_host::kernel::ClockMapping;
    use kprobed_host::tracefs::format::Format;
    use kprobed_lang::model::{ProbeName, ProbeUid};

    #[test]
    fn numbers_that_can_be_addresses_are_hidden() {
        for address in
            [0xffff_ffff_8100_0000, 0xffff_8881_0000_1000, 0xff11_0000_0000_0000, 0xffff_ffff_c000_0000]
        {
            let shown = hidden(address);
            assert!((1..1 << 47).contains(&shown), "{shown:#x}");
            assert_eq!(hidden(address), shown);
        }
        // Counts, user addresses, and small negative numbers.
        for number in [0, 1, 4096, 0x7fff_ffff_f000, u64::MAX, 5000_u64.wrapping_neg(), 1 << 62] {
            assert_eq!(hidden(number), number);
        }
    }

    #[test]
    fn texts_keep_everything_else() {
        assert_eq!(hidden_in("mov 0x8(%rdi),%rax"), "mov 0x8(%rdi),%rax");
        assert_eq!(hidden_in("0x and -0x8(%rbp)"), "0x and -0x8(%rbp)");
        let address = 0xffff_ffff_8240_d5c0_u64;
        let shown = format!("{:#x}", hidden(address));
        assert_eq!(hidden_in("mov $0xffffffff8240d5c0,%rdi"), format!("mov ${shown},%rdi"));
        assert_eq!(hidden_in("mov -0x7dbf2a40(,%rax,8),%rdx"), format!("mov {shown}(,%rax,8),%rdx"));
        assert_eq!(hidden_in("0xffffffff8240d5c0"), shown);
    }

    const FORMAT: &str = "name: a\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:u64 pointer;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:u64 count;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:s64 signed;\toffset:32;\tsize:8;\tsigned:1;\n\n\
        print fmt: \"(%lx) pointer=0x%Lx count=%Lu signed=%Ld\", REC->__probe_ip, REC->pointer, REC->count, REC->signed\n";

    #[test]
    fn a_subscriber_gets_no_address_that_it_may_not_see() {
        let format = Format::parse(FORMAT).unwrap();
        let plan = CompiledFormat::compile(&format, &CompileOptions::default()).unwrap();
        let name = ProbeName::new("kprobes", "a").unwrap();
        let source = EventSource::new(1, ProbeUid(1), name, plan);
        let (ip, pointer) = (0xffff_ffff_8123_4560_u64, 0xffff_8881_0000_1000_u64);
        let mut record = vec![7, 0, 0, 0, 9, 0, 0, 0];
        for value in [ip, pointer, 4096, pointer] {
            record.extend_from_slice(&value.to_le_bytes());
        }
        let mut columns = source.plan.columns();
        source.plan.decode(&record, 100, &mut columns).unwrap();
        source.plan.decode(&record, 101, &mut columns).unwrap();
        let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
        let symbols = vec![Symbol { address: ip, text: "vfs_read+0x0/0x10".into() }];

        let hub = hub();
        let view = |shows_addresses| View {
            permits: Some(Permits::new(shows_addresses, |_name, _uid| true)),
            ..View::default()
        };
        let views = [view(true), view(false), View { sample_one_in: 2, ..view(false) }];
        let subscribers = views.map(|view| hub.subscribe(view));
        for subscriber in &subscribers {
            subscriber.attach();
        }
        let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
        hub.publish(&Draft { cpu: 0, groups, tasks: vec![], symbols, clock });
        let batch = |of: usize| {
            let items = taken(&subscribers[of]);
            let [Item::Batch(batch)] = items.as_slice() else { panic!("{items:?}") };
            read_batch(&batch.message).unwrap()
        };
        // Equal values of all rows are sent once; a single row is sent as it is.
        for (of, ip, pointer) in
            [(0, ip, pointer), (1, hidden(ip), hidden(pointer)), (2, hidden(ip), hidden(pointer))]
        {
            let batch = batch(of);
            let group = &batch.groups[0];
            assert_eq!(*group.ips, ip.to_le_bytes(), "{of}");
            assert_eq!(batch.symbols[0].address, ip, "{of}");
            assert_eq!(batch.symbols[0].text, "vfs_read+0x0/0x10");
            assert_eq!(*group.columns[0].values, pointer.to_le_bytes(), "{of}");
            assert_eq!(*group.columns[1].values, 4096_u64.to_le_bytes(), "{of}");
            assert_eq!(*group.columns[2].values, pointer.to_le_bytes(), "{of}");
            assert_eq!((batch.log_events, group.rows), (2, if of == 2 { 1 } else { 2 }));
        }
    }

    #[test]
    fn what_is_hidden_is_not_compared() {
        let format = Format::parse(FORMAT).unwrap();
        let plan = CompiledFormat::compile(&format, &CompileOptions::default()).unwrap();
        let source = EventSource::new(1, ProbeUid(1), ProbeName::new("kprobes", "a").unwrap(), plan);
        let mut record = vec![7, 0, 0, 0, 9, 0, 0, 0];
        for value in [0xffff_ffff_8123_4560_u64, 0xffff_8881_0000_1000, 4096, 0xffff_8881_0000_1000] {
            record.extend_from_slice(&value.to_le_bytes());
        }
        let mut columns = source.plan.columns();
        source.plan.decode(&record, 100, &mut columns).unwrap();
        let groups = [Group { origin: Arc::clone(&source.origin), columns }];
        let hub = hub();
        let view = |filter: &str, shows_addresses| View {
            filter: Some(Filter::parse(filter).unwrap()),
            permits: Some(Permits::new(shows_addresses, |_name, _uid| true)),
            ..View::default()
        };
        // Each of them selects the event.
        for (filter, tells) in [
            ("__probe_ip >= 0xffffffff81000000", true),
            ("!(__probe_ip < 0xffffffff81000000)", true),
            ("pointer & 0xff00000000", true),
            ("signed < -100000000000000", true),
            ("count >= 4096", false),
            ("signed < 0 && pointer > 4096", false),
        ] {
            let bound = hub.binder().bind(&view(filter, false), "kprobes/a", &source.origin.schema);
            assert_eq!(bound.err().map(|error| error.code), tells.then_some(FilterCode::Address), "{filter}");
            let views = [view(filter, true), view(filter, false)];
            let subscribers = views.map(|view| hub.subscribe(view));
            for subscriber in &subscribers {
                subscriber.attach();
            }
            let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
            hub.publish(&Draft { cpu: 0, groups: groups.to_vec(), tasks: vec![], symbols: vec![], clock });
            let batches = |of: usize| {
                let items = taken(&subscribers[of]);
                items.iter().filter(|item| matches!(item, Item::Batch(_))).count()
            };
            assert_eq!((batches(0), batches(1)), (1, usize::from(!tells)), "{filter}");
        }
    }

    #[test]
    fn an_address_without_a_name_is_compared_as_it_is_shown() {
        let format = Format::parse(FORMAT).unwrap();
        let options = CompileOptions { named: ["pointer".to_owned()].into(), ..CompileOptions::default() };
        let plan = CompiledFormat::compile(&format, &options).unwrap();
        let source = EventSource::new(1, ProbeUid(1), ProbeName::new("kprobes", "a").unwrap(), plan);
        let pointer = 0xffff_8881_0000_1000_u64;
        let mut record = vec![7, 0, 0, 0, 9, 0, 0, 0];
        for value in [0xffff_ffff_8123_4560_u64, pointer, 4096, 0] {
            record.extend_from_slice(&value.to_le_bytes());
        }
        let mut columns = source.plan.columns();
        source.plan.decode(&record, 100, &mut columns).unwrap();
        columns.name_addresses(|address, text| text.extend_from_slice(format!("{address:#x}").as_bytes()));
        let groups = [Group { origin: Arc::clone(&source.origin), columns }];
        let hub = hub();
        let shown = format!("pointer == \"{:#x}\" && count == 4096", hidden(pointer));
        for (filter, selects) in [
            ("pointer ~ \"*ffff8881*\"", (1, 0)),
            ("pointer == \"0xffff888100001000\"", (1, 0)),
            (shown.as_str(), (0, 1)),
        ] {
            let views = [true, false].map(|shows_addresses| View {
                filter: Some(Filter::parse(filter).unwrap()),
                permits: Some(Permits::new(shows_addresses, |_name, _uid| true)),
                ..View::default()
            });
            let subscribers = views.map(|view| hub.subscribe(view));
            for subscriber in &subscribers {
                subscriber.attach();
            }
            let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
            hub.publish(&Draft { cpu: 0, groups: groups.to_vec(), tasks: vec![], symbols: vec![], clock });
            let batches = |of: usize| {
                let items = taken(&subscribers[of]);
                items.iter().filter(|item| matches!(item, Item::Batch(_))).count()
            };
            assert_eq!((batches(0), batches(1)), selects, "{filter}");
        }
    }

    proptest! {
        #[test]
        fn no_address_is_left(text in "([a-z ,$%-]|0x[0-9a-f]{0,18}|0xffffffff8[0-9a-f]{7}){0,8}") {
            let shown = hidden_in(&text);
            for part in shown.split("0x").skip(1) {
                let digits: String = part.chars().take_while(char::is_ascii_hexdigit).collect();
                let number = u64::from_str_radix(&digits, 16).unwrap_or_default();
                prop_assert_eq!(hidden(number), number, "{} -> {}", text, shown);
            }
        }
    }
}
