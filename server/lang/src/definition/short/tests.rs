//! Tests of short forms, over a kernel of a few names.

use proptest::prelude::*;

use super::super::{Code, Definition, Dialect, Reading, parse_any, parse_any_knowing};
use super::bpftrace::OTHERWISE;
use super::*;
use crate::model::Glob;
use crate::samples::{v6_1, v6_12};

/// A kernel of a few names.
struct World;

/// Functions, each with its module, its parameters, and whether it returns something.
const FUNCTIONS: [(&str, &str, &[&str], bool); 13] = [
    ("", "vfs_read", &["file", "buf", "count", "pos"], true),
    ("", "vfs_readv", &["file", "vec"], true),
    ("", "vfs_write", &["file", "buf", "count", "pos"], true),
    ("", "do_sys_openat2", &["dfd", "filename", "how"], true),
    ("", "pipe_read", &["iocb", "to"], true),
    ("", "r", &["x"], false),
    ("", "schedule", &[], false),
    ("", "no_types", &[], false),
    ("", "takes_comm", &["comm", "arg0"], false),
    ("", "__x64_sys_openat", &["regs"], true),
    ("", "ext4_built_in", &[], true),
    ("btrfs", "btrfs_sync_file", &["file"], true),
    ("btrfs", "both", &["x"], true),
];

const EVENTS: [&str; 8] = [
    "sched/sched_switch",
    "sched/sched_wakeup",
    "syscalls/sys_enter_openat",
    "syscalls/sys_exit_openat",
    "btrfs/both",
    "btrfs/only_event",
    "one/twice",
    "two/twice",
];

impl KernelNames for World {
    fn has_parameter(&self, module: Option<&str>, function: &str, name: &str) -> Option<bool> {
        let known = self.function(module, function)?;
        Some(known.parameters.iter().any(|parameter| parameter.name == name))
    }

    fn finds_parameters(&self, module: Option<&str>, function: &str) -> Option<bool> {
        Some(self.function(module, function).is_some_and(|known| !known.parameters.is_empty()))
    }

    fn has_function(&self, module: Option<&str>, name: &str) -> Option<bool> {
        let fits = |of: &str| module.is_none_or(|module| module == of);
        Some(FUNCTIONS.iter().any(|(of, function, ..)| fits(of) && *function == name))
    }

    fn functions(&self, module: Option<&str>, glob: &str) -> MatchingFunctions {
        let (glob, fits) = (Glob::new(glob), |of: &str| module.is_none_or(|module| module == of));
        let matching = FUNCTIONS.iter().filter(|(of, name, ..)| fits(of) && glob.matches(name));
        let (places, left): (Vec<_>, Vec<_>) = matching.partition(|(_, name, ..)| *name != "schedule");
        let place = |(of, name, ..): &(&str, &str, &[&str], bool)| {
            (Some((*of).to_owned()).filter(|of| !of.is_empty()), (*name).to_owned())
        };
        MatchingFunctions { places: places.into_iter().map(place).collect(), left_out: left.len() }
    }

    fn has_module(&self, name: &str) -> bool {
        name == "btrfs"
    }

    fn events(&self) -> Option<Vec<String>> {
        Some(EVENTS.map(str::to_owned).into())
    }

    fn function(&self, _module: Option<&str>, name: &str) -> Option<KnownFunction> {
        if name == "vfs_open" {
            let parameters =
                ["path", "file"].map(|name| KnownParameter { name: name.to_owned(), is_of_program: None });
            return Some(KnownFunction {
                parameters: parameters.into(),
                all_recordable: true,
                returns: true,
            });
        }
        let (_, name, parameters, returns) =
            FUNCTIONS.iter().find(|(_, function, ..)| *function == name && name != "no_types")?;
        let parameter = |parameter: &&str| KnownParameter {
            name: (*parameter).to_owned(),
            is_of_program: (*name == "vfs_read").then_some(*parameter == "buf"),
        };
        Some(KnownFunction {
            parameters: parameters.iter().map(parameter).collect(),
            all_recordable: !parameters.is_empty(),
            returns: *returns,
        })
    }

    fn system_call(&self, name: &str) -> Option<SystemCall> {
        let prefixes = ["__x64_sys_", "sys_enter_", "sys_exit_", "sys_"];
        let call = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let argument = |name: &str, register: &str, ty: &str| CallArgument {
            name: name.to_owned(),
            value: format!("regs->{register}"),
            ty: ty.to_owned(),
        };
        ["openat", "execve"].contains(&call).then(|| SystemCall {
            name: call.to_owned(),
            function: format!("__x64_sys_{call}"),
            arguments: vec![argument("dfd", "di", "s32"), argument("filename", "si", "ustring")],
        })
    }
}

fn read(text: &str) -> Reading {
    parse_any_knowing(text, &v6_12().with_types(true), &World)
}

/// The lines for which a text stands, or what is wrong with it and what to write.
fn lines(text: &str) -> Result<Vec<String>, (String, String)> {
    let reading = read(text);
    match (reading.expansion, reading.result) {
        (Some(expansion), _) => Ok(expansion.lines),
        (None, Err(found)) => Err((found[0].message.clone(), found[0].hint.clone().unwrap_or_default())),
        (None, Ok(_)) => Ok(Vec::new()),
    }
}

const OPENAT: &str = "p __x64_sys_openat dfd=regs->di:s32 filename=+0(regs->si):ustring";

/// Texts, and the lines for which they stand.
const TABLE: [(&str, &[&str]); 84] = [
    // Functions.
    ("vfs_read", &["p vfs_read $arg*"]),
    (" vfs_read  # who reads", &["p vfs_read $arg*"]),
    ("vfs_read+0x10", &["p vfs_read+0x10"]),
    ("vfs_read+16 %ax", &["p vfs_read+16 %ax"]),
    ("vfs_read%return", &["r vfs_read retval=$retval"]),
    ("vfs_read count pos", &["p vfs_read count pos"]),
    ("vfs_read file->f_inode->i_ino", &["p vfs_read file->f_inode->i_ino"]),
    ("vfs_read n=count:u32", &["p vfs_read n=count:u32"]),
    ("vfs_read *", &["p vfs_read $arg*"]),
    ("do_sys_openat2 $arg*", &["p do_sys_openat2 $arg*"]),
    ("do_sys_openat2 filename", &["p do_sys_openat2 filename"]),
    ("do_sys_openat2 filename:ustring", &["p do_sys_openat2 filename:ustring"]),
    ("do_sys_openat2 f=+0($arg2):ustring", &["p do_sys_openat2 f=+0($arg2):ustring"]),
    ("do_sys_openat2%return fd=$retval:s32", &["r do_sys_openat2 fd=$retval:s32"]),
    ("schedule", &["p schedule"]),
    ("schedule%return", &["r schedule"]),
    ("no_types", &["p no_types"]),
    ("no_types%return", &["r no_types"]),
    ("vfs_raed", &["p vfs_raed"]),
    ("vfs_raed count", &["p vfs_raed count"]),
    ("pipe_read", &["p pipe_read $arg*"]),
    ("pipe_read iocb", &["p pipe_read iocb"]),
    ("pipe_raed", &["p pipe_raed"]),
    ("btrfs:btrfs_sync_file", &["p btrfs:btrfs_sync_file $arg*"]),
    ("btrfs:btrfs_sync_file%return", &["r btrfs:btrfs_sync_file retval=$retval"]),
    ("btrfs:btrfs_sync_fiel file", &["p btrfs:btrfs_sync_fiel file"]),
    // Words for arguments.
    ("vfs_read arg0 arg2", &["p vfs_read file count"]),
    ("vfs_read n=arg2", &["p vfs_read n=count"]),
    ("no_types arg0 arg1", &["p no_types arg0=$arg1 arg1=$arg2"]),
    ("vfs_read comm", &["p vfs_read comm=$comm"]),
    ("vfs_read%return retval", &["r vfs_read retval=$retval"]),
    ("vfs_read%return n=retval", &["r vfs_read n=$retval"]),
    ("vfs_read%return retval:s32 n=retval:x64", &["r vfs_read retval=$retval:s32 n=$retval:x64"]),
    ("vfs_read%return retval->x m=retval->y:u8", &["r vfs_read $retval->x m=$retval->y:u8"]),
    ("openat%return retval:s32", &["r __x64_sys_openat retval=$retval:s32"]),
    ("vfs_read comm:string", &["p vfs_read comm=$comm:string"]),
    ("vfs_read arg2:u64 n=arg2:x32", &["p vfs_read count:u64 n=count:x32"]),
    ("vfs_read arg0->f_mode m=arg0->f_mode:x32", &["p vfs_read file->f_mode m=file->f_mode:x32"]),
    ("no_types arg1:u32 n=arg1:u32", &["p no_types arg1=$arg2:u32 n=$arg2:u32"]),
    ("no_types arg0->x", &["p no_types arg0->x"]),
    ("takes_comm comm->x arg0:u8", &["p takes_comm comm->x arg0:u8"]),
    ("vfs_read%return retval->x", &["r vfs_read $retval->x"]),
    ("vfs_read str(buf)", &["p vfs_read buf:ustring"]),
    ("vfs_read t=str(arg1) str(file)", &["p vfs_read t=buf:ustring file:string"]),
    ("takes_comm comm arg0", &["p takes_comm comm arg0"]),
    ("no_types a0", &["p no_types a0"]),
    // Words of bpftrace.
    ("kprobe:vfs_read", &["p vfs_read $arg*"]),
    ("kprobe:vfs_read count", &["p vfs_read count"]),
    ("kprobe:vfs_read+16", &["p vfs_read+16"]),
    ("kprobe:btrfs:btrfs_sync_file", &["p btrfs:btrfs_sync_file $arg*"]),
    ("k:vfs_read", &["p vfs_read $arg*"]),
    ("fentry:vfs_read", &["p vfs_read $arg*"]),
    ("fentry:vmlinux:vfs_read", &["p vfs_read $arg*"]),
    ("kretprobe:vmlinux:vfs_read", &["r vfs_read retval=$retval"]),
    ("kretprobe:vfs_read", &["r vfs_read retval=$retval"]),
    ("kr:vfs_read", &["r vfs_read retval=$retval"]),
    ("kretprobe:vfs_read retval comm", &["r vfs_read retval=$retval comm=$comm"]),
    ("kretprobe:r", &["r r"]),
    ("kprobe:openat", &[OPENAT]),
    // Events.
    ("sched:sched_switch", &["sched/sched_switch"]),
    ("tracepoint:sched:sched_switch", &["sched/sched_switch"]),
    ("tracepoint:sched/sched_switch", &["sched/sched_switch"]),
    ("tracepoint:sched_switch", &["sched/sched_switch"]),
    ("t:sched:sched_switch", &["sched/sched_switch"]),
    ("rawtracepoint:sched_wakeup", &["sched/sched_wakeup"]),
    ("tracepoint:syscalls:sys_enter_openat", &["syscalls/sys_enter_openat"]),
    ("sched_switch", &["sched/sched_switch"]),
    ("sys_enter_openat", &["syscalls/sys_enter_openat"]),
    ("sys_exit_openat", &["syscalls/sys_exit_openat"]),
    ("sched:sched_*", &["sched/sched_switch", "sched/sched_wakeup"]),
    ("t:sched:*_wakeup", &["sched/sched_wakeup"]),
    ("sched/*", &["sched/sched_switch", "sched/sched_wakeup"]),
    ("btrfs:only_event", &["btrfs/only_event"]),
    // System calls.
    ("openat", &[OPENAT]),
    ("syscall:openat", &[OPENAT]),
    ("sys_openat filename", &["p __x64_sys_openat filename=+0(regs->si):ustring"]),
    ("__x64_sys_openat", &[OPENAT]),
    ("openat dfd name=filename:ustring", &["p __x64_sys_openat dfd=regs->di:s32 name=+0(regs->si):ustring"]),
    ("openat str(arg1) arg0:x32", &["p __x64_sys_openat filename=+0(regs->si):ustring dfd=regs->di:x32"]),
    ("openat%return", &["r __x64_sys_openat retval=$retval"]),
    // Many.
    ("vfs_*", &["p vfs_read $arg*", "p vfs_readv $arg*", "p vfs_write $arg*"]),
    ("vfs_readv,vfs_read*", &["p vfs_readv $arg*", "p vfs_read $arg*"]),
    ("vfs_read,openat file", &["p vfs_read file", "p __x64_sys_openat file"]),
    ("kretprobe:vfs_read,vfs_write", &["r vfs_read retval=$retval", "r vfs_write retval=$retval"]),
];

#[test]
fn what_people_type_becomes_lines() {
    for (text, expected) in TABLE {
        assert_eq!(lines(text), Ok(expected.iter().map(|line| (*line).to_owned()).collect()), "{text}");
    }
}

/// A short form and its line are the same definition, and only the line is kept.
#[test]
fn a_short_form_and_its_line_are_the_same() {
    for (text, expected) in TABLE {
        for features in [v6_1(), v6_12()] {
            let [line] = expected else { continue };
            let tree = |text: &str| {
                let reading = parse_any_knowing(text, &features, &World);
                let result = reading.result.clone().map_err(|found| found[0].code);
                (reading.dialect, reading, result)
            };
            let ((dialect, reading, short), (same, _, long)) = (tree(text), tree(line));
            let shown = |result: &Result<Definition, Code>| match result {
                Ok(Definition::Probe(probe)) => Ok(probe.render("g", "e")),
                Ok(Definition::Delete(_)) => Ok(String::new()),
                Err(code) => Err(*code),
            };
            assert_eq!((shown(&short), dialect), (shown(&long), same), "{text}");
            let kept = reading.pinned(text);
            assert!(kept.split(" # dialect:").next() == Some(*line), "{kept}");
        }
    }
}

#[test]
fn what_is_a_line_or_a_prototype_stays_one() {
    for text in [
        "p vfs_read",
        "p:vfs_read",
        "p",
        "r",
        "r16",
        "r100:x vfs_read $retval",
        "p:x vfs_read count",
        "r:x vfs_read",
        "-:g/e",
        "pjunk f +0(%di)",
        "pjunk:x vfs_read",
        "prepare vfs_read",
        "f:e vfs_read",
        "0x1234",
        "$arg1",
        "vfs_read(x64 file)",
        "vfs_read (x64 file)",
        "void vfs_read(int a)",
        "btrfs:btrfs_sync_file(x64 file)",
        "do_sys_openat2(filename:ustring) -> fd:s32",
        "sched/sched_switch",
        "sched:sched_swich",
        "p vfs_read # as in /proc/",
        "p vfs_read a=\\\"{x}\" # {}",
        "vfs_read \u{1b} { @ = count(); }",
        "vfs_read # dialect: kernel",
        "",
        "#",
        "vfs_read\nvfs_write",
    ] {
        assert_eq!(read(text).expansion, None, "{text}");
    }
}

#[test]
fn what_cannot_be_meant_says_what_can() {
    for (text, message, hint) in [
        (
            "btrfs:both",
            "an event, and a function of the module `btrfs`",
            "`btrfs/both` for the event, or `p btrfs:both`",
        ),
        (
            "ext4:ext4_built_in",
            "no module `ext4` is loaded",
            "is in the kernel itself: write `p ext4_built_in`",
        ),
        ("nosuch:func", "no event `nosuch/func`", "write `p nosuch:func`"),
        ("twice", "2 groups have an event `twice`", "`one/twice` or `two/twice`"),
        ("uprobe:/bin/sh:main", "a probe of a program", "write `kprobe:FUNCTION`"),
        ("interval:s:1", "a timer", "kretprobe:FUNCTION"),
        ("f:foo vfs_read count", "`f` begins a line for a probe of a function", "with `p`, or with `r`"),
        ("f:g/foo vfs_read count", "`f` begins a line for a probe of a function", "with `p`, or with `r`"),
        ("f vfs_read count", "`f` begins a line for a probe of a function", "with `p`, or with `r`"),
        ("t sched_switch prev_pid", "for a probe of a tracepoint", "as `tracepoint:GROUP:EVENT`"),
        ("e:foo sched.sched_switch pid=$prev_pid", "a probe of an event", "as `tracepoint:GROUP:EVENT`"),
        ("s:foo u64 x", "a synthetic event", "latency START END"),
        // Alone, it is a name.
        ("f:foo", "no event `f/foo`", "write `p f:foo`"),
        ("tracepoint:sched_swich", "no event `sched_swich`", "tracepoint:GROUP:EVENT"),
        ("tracepoint:a/b/c", "not the name of an event", "GROUP/EVENT"),
        ("syscall:opnat", "no system call `opnat`", "__x64_sys_*"),
        ("zzz_*", "no function matches `zzz_*`", "kprobectl functions 'zzz_*'"),
        ("sched*le", "a probe cannot be in any of the 1 functions", "shows why"),
        ("sched/zzz*", "no event of the host matches", "functions --events PART"),
        ("sched:sched_switch%return", "is an event, and does not return", "latency START END"),
        ("vfs_read,,vfs_write", "a name is missing", "vfs_read,vfs_write"),
        ("mine=vfs_*", "`vfs_*` cannot have the name `mine`", "leave it out"),
        ("mine=sched:sched_switch", "cannot have the name `mine`", "leave it out"),
        ("vfs_read,sched:sched_swich", "is neither a function nor an event", "vfs_read,vfs_write"),
        (
            "do_sys_openat2 str(filename)",
            "whose memory `filename` points to",
            "`filename:ustring` for the memory of a program",
        ),
    ] {
        let (found, advice) = lines(text).unwrap_err();
        assert!(found.contains(message) && advice.contains(hint), "{text}: {found}; {advice}");
    }
}

/// The page for those who know bpftrace.
const BPFTRACE_PAGE: &str = include_str!("../../../../../deploy/docs/howto/from-bpftrace.md");

/// Each program of the page, and the command that it shows for it.
#[test]
fn a_program_of_bpftrace_is_answered_with_its_command() {
    let (page, _) = BPFTRACE_PAGE.split_once("## perf-tools").unwrap();
    let mut programs = 0;
    let mut wrong = Vec::new();
    for section in page.split("\n\n    bpftrace -e ").skip(1) {
        let (typed, answers) = section.split_once("\n\n").unwrap();
        let typed: Vec<_> = typed.split("\n    bpftrace -e ").map(|one| one.trim_matches('\'')).collect();
        let answers: Vec<_> = answers
            .split("\n\n")
            .next()
            .unwrap()
            .lines()
            .map(|one| one.trim().trim_end_matches(" --for 10s"))
            .collect();
        for (typed, answer) in typed.iter().zip(answers) {
            let (found, hint) = lines(typed).unwrap_err();
            assert!(found.contains("of bpftrace"), "{typed}: {found}");
            if hint != format!("write `{answer}`") {
                wrong.push(format!("{typed}\n  {hint}\n  {answer}"));
            }
            programs += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(programs, 16);
}

#[test]
fn what_bpftrace_adds_to_a_name_is_answered() {
    for (typed, answer) in [
        (
            "kprobe:vfs_read /pid == 1/ { printf(\"%d\", arg2); }",
            "write `kprobectl trace 'vfs_read count' --pid 1`",
        ),
        ("vfs_read /count > 100/", "write `kprobectl trace vfs_read --filter 'count > 100'`"),
        (
            "vfs_read /args->count > 100 && comm == \"sh\"/ { @ = count(); }",
            "write `kprobectl hist vfs_read --filter 'count > 100 && comm == \"sh\"'`",
        ),
        (
            "vfs_read /str(arg1) == \"pid && @tid) \\\" arg2\" && (arg2 > (7)) && @a[tid]/ { @ = count(); }",
            "write `kprobectl hist vfs_read --filter 'buf == \"pid && @tid) \\\" arg2\" && (count > (7))'`",
        ),
        (
            "vfs_read /str(str(((struct x *)arg1))) == 1/ { @ = count(); }",
            "write `kprobectl hist vfs_read --filter 'buf == 1'`",
        ),
        (
            "kprobe:vfs_read { @[tid] = sum(arg2); } interval:s:1 { print(@); clear(@); }",
            "write `kprobectl hist vfs_read --by thread --sum count --interval 1s --deltas`",
        ),
        (
            "kprobe:vfs_read { @ = count(); } interval:s:1 { print(@); zero(@); }",
            "write `kprobectl hist vfs_read --interval 1s --deltas`",
        ),
        (
            "kprobe:vfs_read { @ = count(); } interval:s:1 { print(@); }",
            "write `kprobectl hist vfs_read --interval 1s`",
        ),
        (
            "k:vfs_read { @[ksym(arg0)] = count(); } END { clear(@); }",
            "write `kprobectl hist vfs_read --by file.sym`",
        ),
        (
            "kprobe:vfs_read { @[str(arg1)] = count(); }",
            "write `kprobectl hist 'vfs_read buf:ustring' --by buf`",
        ),
        (
            "kprobe:vfs_open { @[str(arg1)] = count(); }",
            "write `kprobectl hist 'vfs_open file:string' --by file`",
        ),
        (
            "kprobe:no_types { @[str(arg1)] = count(); }",
            "write `kprobectl hist 'no_types arg1=+0($arg2):string' --by arg1`",
        ),
        (
            "tracepoint:syscalls:sys_enter_openat { @[str(args.filename)] = count(); }",
            "write `kprobectl hist openat --by filename`",
        ),
        (
            "kprobe:vfs_read { @start[tid] = nsecs; } kprobe:vfs_write { @ = hist(nsecs - @start[tid]); }",
            "write `kprobectl latency vfs_read vfs_write`",
        ),
        ("vfs_read ((struct file *)arg0)->f_flags", "write `vfs_read file->f_flags`"),
        (
            "kprobe:vfs_open { printf(\"%s\", ntop(((struct path *)arg0)->mnt.daddr)); } interval:ms:500 { exit(); }",
            "write `kprobectl trace 'vfs_open path->mnt.daddr' --for 500ms`",
        ),
        (
            "t:syscalls:sys_enter_openat /str(args.filename) == \"/x\"/ { printf(\"%s\", str(args.filename)); }",
            "write `kprobectl trace openat --filter 'filename == \"/x\"'`",
        ),
        (
            "t:block:issue { @s[args.sector] = nsecs; } t:block:complete /args.bytes > 0/ { @ = hist(nsecs - @s[args.sector]); }",
            "write `kprobectl latency block/issue block/complete --match sector --end-filter 'bytes > 0'`",
        ),
        (
            "t:sched:sched_wakeup /args.pid > 1/ { @[args.pid] = count(); }",
            "write `kprobectl hist sched/sched_wakeup --by pid --filter 'pid > 1'`",
        ),
        ("vfs_read ((struct file *)arg0)->f_owner.pid", "write `vfs_read file->f_owner.pid`"),
        (
            "kprobe:vfs_read/arg2 > 7/{@[comm]=count();}",
            "write `kprobectl hist vfs_read --by comm --filter 'count > 7'`",
        ),
        ("fentry:vmlinux:vfs_read { @ = count(); }", "write `kprobectl hist vfs_read`"),
        (
            "kprobe:vfs_read /pid == 1 || pid == 2/ { printf(\"%d\", arg2); }",
            "write `kprobectl trace vfs_read --filter 'tgid == 1 || tgid == 2'`",
        ),
        // What a function takes, and what it returns.
        (
            "fexit:vfs_read { printf(\"%d %d\", args.count, retval); }",
            "write `kprobectl trace 'vfs_read(count) -> retval'`",
        ),
        (
            "fexit:vfs_read /args.count > 7/ { printf(\"%d\", retval); }",
            "write `kprobectl trace 'vfs_read(*) -> retval' --filter 'count > 7'`",
        ),
        ("fexit:vfs_read /args.count > 7/ { @ = count(); }", OTHERWISE),
        ("fexit:vfs_read { @[args.count] = count(); }", OTHERWISE),
        (
            "kretprobe:vfs_read { printf(\"%d\", ((struct sock *)retval)->num); }",
            "write `kprobectl trace 'vfs_read%return $retval->num'`",
        ),
        (
            "kretprobe:vfs_read /(int32)retval < 0/ { @[(int32)retval] = count(); }",
            "write `kprobectl hist vfs_read%return --by retval --filter 'retval < 0'`",
        ),
        // A field that has the name of a key.
        (
            "t:sched:sched_wakeup { @[args.comm] = count(); }",
            "write `kprobectl hist sched/sched_wakeup --by comm.exact`",
        ),
        (
            "t:syscalls:sys_enter_openat /str(args.filename) == \"/x\"/ { @[comm] = count(); }",
            "write `kprobectl hist openat --by comm --filter 'filename == \"/x\"'`",
        ),
        (
            "kprobe:vfs_read { @ = count(); } interval:s:1 { print(@); clear(@); } interval:s:9 { exit(); }",
            "write `kprobectl hist vfs_read --interval 1s --deltas --for 9s`",
        ),
        (
            "kprobe:vfs_read { @s[tid] = nsecs; } \
             kretprobe:vfs_read /@s[tid] != 0/ { $d = nsecs - @s[tid]; @[comm] = hist($d); }",
            "write `kprobectl latency vfs_read --by comm`",
        ),
        (
            "kprobe:vfs_read { @s[tid] = nsecs; } \
             kretprobe:vfs_read /@s[tid] && retval > 0/ { @ = hist(nsecs - @s[tid]); }",
            "write `kprobectl latency vfs_read vfs_read%return --end-filter 'retval > 0'`",
        ),
        // What would be refused, or count something else.
        (
            "t:sched:sched_wakeup { @q[args.pid] = nsecs; } \
             t:sched:sched_switch /@q[args.next_pid]/ { @ = hist(nsecs - @q[args.next_pid]); }",
            OTHERWISE,
        ),
        (
            "t:a:b { @s[args.dev, args.sector] = nsecs; } t:a:c { @ = hist(nsecs - @s[args.dev, args.sector]); }",
            OTHERWISE,
        ),
        ("kprobe:vfs_read { @s[tid] = nsecs; } kr:vfs_read { @[arg0] = hist(nsecs - @s[tid]); }", OTHERWISE),
        (
            "kprobe:vfs_read { @s[tid] = nsecs; } kr:vfs_read /nsecs - @s[tid] > 9/ { @ = hist(nsecs - @s[tid]); }",
            OTHERWISE,
        ),
        ("kprobe:vfs_read /uid == 0/ { @ = count(); }", OTHERWISE),
        ("kprobe:vfs_read /strncmp(\"sh\", comm, 2) == 0/ { @ = count(); }", OTHERWISE),
        ("kprobe:vfs_read /((struct file *)arg0)->f_flags & 2/ { @ = count(); }", OTHERWISE),
        ("kprobe:vfs_read /!@seen[tid]/ { @ = count(); }", OTHERWISE),
        ("kprobe:vfs_read /pid == $1/ { printf(\"%d\", arg2); }", OTHERWISE),
        ("kprobe:vfs_read { printf(\"%d\", ((struct task_struct *)curtask)->tgid); }", OTHERWISE),
        ("kprobe:vfs_read { @ = lhist(cpu, 0, 8, 1); }", OTHERWISE),
        ("kprobe:vfs_read { @[comm, tid, cpu, arg2] = count(); }", OTHERWISE),
        // A process is more than one thread.
        ("kprobe:vfs_read { @[pid] = count(); }", OTHERWISE),
        ("kprobe:vfs_read { @s[pid] = nsecs; } kretprobe:vfs_read { @ = hist(nsecs - @s[pid]); }", OTHERWISE),
        ("kprobe:vfs_read { @ = max(arg2); }", OTHERWISE),
        ("kprobe:vfs_read { @ = count(); @b = sum(arg2); }", OTHERWISE),
        ("kprobe:vfs_read { printf(\"%d\", uid); }", OTHERWISE),
        ("t:sched:sched_* { @[probe] = count(); }", OTHERWISE),
        ("kprobe:vfs_read /pid == 7/ { @ = count(); }", OTHERWISE),
        ("profile:hz:99 { @[kstack] = count(); }", OTHERWISE),
        ("kprobe:vfs_read { if (arg2 > 3) { @ = count(); } }", OTHERWISE),
    ] {
        let (_, hint) = lines(typed).unwrap_err();
        assert!(hint.contains(answer), "{typed}: {hint}");
    }
    let (found, _) = lines("uretprobe:/bin/bash:readline { printf(\"%s\", str(retval)); }").unwrap_err();
    assert!(found.contains("`uretprobe` is a probe of a program"), "{found}");
    let format = read("vfs_read \"%d\", count").result.unwrap_err().remove(0);
    assert!(format.hint.is_some_and(|hint| hint.contains("leave the format out")));
    let long = "a{b}".repeat(1 << 16);
    assert!(lines(&long).is_err_and(|(found, _)| !found.contains("bpftrace")));
    for (typed, line) in [
        ("vfs_read args->count", "p vfs_read count"),
        ("mine=vfs_read count", "p:mine vfs_read count"),
        ("io:mine=vfs_read%return", "r:io/mine vfs_read retval=$retval"),
        ("mine=openat str(filename)", "p:mine __x64_sys_openat filename=+0(regs->si):ustring"),
        ("vfs_read n=args.count", "p vfs_read n=count"),
        ("vfs_read args->file->f_flags", "p vfs_read file->f_flags"),
        ("openat args->dfd", "p __x64_sys_openat dfd=regs->di:s32"),
    ] {
        assert_eq!(lines(typed), Ok(vec![line.to_owned()]), "{typed}");
    }
}

#[test]
fn several_probes_are_not_one() {
    let reading = read("vfs_* count");
    let found = reading.result.unwrap_err().remove(0);
    assert_eq!(found.code, Code::SeveralLines);
    assert!(found.message.contains("stands for 3 probes"), "{}", found.message);
    assert!(found.message.contains("`p vfs_read count`"), "{}", found.message);
    assert_eq!(found.span, super::super::Span::new(0, 11));
}

#[test]
fn what_a_glob_leaves_out_is_said() {
    let notes = |text: &str| read(text).expansion.unwrap().notes;
    assert_eq!(notes("*e*").len(), 1);
    assert!(notes("vfs_*").is_empty());
    assert!(notes("openat")[0].contains("`syscalls/sys_enter_openat` is its event"));
    assert!(notes("vfs_read").is_empty());
}

#[test]
fn a_problem_is_shown_where_it_was_written() {
    let problem = |text: &str| {
        let found = read(text).result.unwrap_err().remove(0);
        (found.code, text.get(found.span.range()).unwrap().to_owned())
    };
    assert_eq!(problem("vfs_read count:u7"), (Code::BadType, "u7".to_owned()));
    assert_eq!(problem("kretprobe:vfs_read  x=$nothing").1, "$nothing");
    assert_eq!(problem("sched:sched_switch prev_comm").1, "prev_comm");
}

/// Without a kernel a name is a function, and nothing else is known.
#[test]
fn without_a_kernel_a_name_is_a_function() {
    let line = |text: &str| parse_any(text, &v6_12()).line().map(str::to_owned);
    assert_eq!(line("vfs_read").as_deref(), Some("p vfs_read"));
    assert_eq!(line("kretprobe:vfs_read").as_deref(), Some("r vfs_read"));
    assert_eq!(line("vfs_read count").as_deref(), Some("p vfs_read count"));
    assert_eq!(line("pjunk f"), None);
    let event = parse_any("sched:sched_switch", &v6_12());
    assert!(matches!(event.result, Ok(Definition::Probe(probe)) if probe.is_of_host_event()));
    assert_eq!(event.dialect, Dialect::Kernel);
}

/// Every text of the language of 2018 is read as before.
#[test]
fn prototypes_are_read_as_before() {
    const PAIRS: &str = include_str!("../../../../fixtures/prototype/pairs.tsv");
    let texts = PAIRS.lines().skip(1).filter_map(|row| row.split('\t').nth(1));
    for text in texts.clone() {
        let reading = read(text);
        assert_eq!((reading.expansion, reading.dialect), (None, Dialect::Prototype), "{text}");
    }
    assert_eq!(texts.count(), 77);
}

/// The page of the language, which `kprobectl help language` prints.
const PAGE: &str = include_str!("../../../../../deploy/docs/reference/definitions.md");

#[test]
fn the_page_says_what_texts_become() {
    let quoted =
        |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let mut rows = 0;
    let tables = PAGE.split("| you type | it becomes |\n").skip(1);
    for row in tables.flat_map(|table| table.lines().skip(1).take_while(|line| line.starts_with('|'))) {
        let mut cells = row.split('|').skip(1);
        let (texts, becomes) = (quoted(cells.next().unwrap()), quoted(cells.next().unwrap()));
        for text in texts {
            assert_eq!(lines(&text), Ok(becomes.clone()), "{row}");
            rows += 1;
        }
    }
    assert!(rows >= 20, "{rows}");
}

#[test]
fn the_page_has_definitions_that_are_read() {
    let blocks = PAGE.split("```definition\n").skip(1).filter_map(|block| block.split("```").next());
    let mut read_lines = 0;
    for line in blocks.flat_map(str::lines) {
        let result = read(line).result;
        assert!(result.is_ok(), "{line}: {result:?}");
        read_lines += 1;
    }
    assert!(read_lines >= 16, "{read_lines}");
    assert!(PAGE.lines().all(|line| line.chars().count() <= 80), "it is read on a terminal");
}

proptest! {
    #[test]
    fn any_text_is_survived(text in r#"(p|r|kprobe:|t:|vfs_|openat| |,|:|/|\*|\?|%return|\+|=|str\(|\)|\{|\}|@|\[|\]|\(\(struct |printf\(|count\(\)|;|"|arg|[a-z0-9]|\PC){0,14}"#) {
        for features in [v6_1(), v6_12()] {
            let reading = parse_any_knowing(&text, &features, &World);
            for found in reading.result.err().unwrap_or_default() {
                let _ = &text[found.span.range()];
            }
        }
    }

    /// The line of a short form is final.
    #[test]
    fn a_line_is_final(text in r"(|mine=|io:mine=)(kprobe:|kretprobe:|)(vfs_read|openat|sched_switch|btrfs:btrfs_sync_file|vfs_\*|nothing)(%return|\+8|)( [a-z]{1,5}| n=[a-z0-9$]{1,5}| \*| str\(buf\)| arg1){0,3}") {
        let Some(Expansion { lines, .. }) = read(&text).expansion else { return Ok(()) };
        for line in lines {
            prop_assert_eq!(read(&line).expansion, None, "{}", line);
        }
    }
}
