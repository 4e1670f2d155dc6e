//! Names and types from BTF, on kernels that resolve names themselves and on one that does not.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{DescribeFunctionRequest, DescribeFunctionResponse, ProbeState};
use kprobed_vm::progress;
use nix::errno::Errno;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::differential::{Compared, Random, compare_errnos_but, daemon_answers, kernel_answers};
use crate::effort;
use crate::fixture::Fixture;
use crate::verdicts::functions;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        members_are_read_by_name,
        every_parameter_is_recorded,
        tasks_and_programs_are_read_by_name,
        functions_of_modules_have_names,
        names_get_the_kernels_verdict,
        bad_names_get_the_kernels_message_and_position,
        functions_are_described,
    }
    Daemon {
        the_text_is_kept_and_explained,
        parameters_of_random_functions,
    }
};

const PATH: &str = "/tmp/types-of-the-kernel";

/// Whether this kernel takes names of parameters and members by itself.
fn is_native(guest: &DaemonGuest) -> Result<bool> {
    ensure!(guest.has_feature("own_types")?, "{:?}", guest.wait_for(guest.client.host()));
    guest.has_feature("btf_members")
}

fn members_are_read_by_name(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell(&format!("touch {PATH}"))?;
    // Short names moved into a union.
    let inline = if fixture.is_older_than(6, 18) { "d_iname" } else { "d_shortname.string" };
    let definition = format!(
        "p:named vfs_open name=path->dentry->d_name.name:string path->dentry->d_name.len inline=path->dentry->{inline} \
         root=path->dentry->d_sb->s_id flags=file->f_flags"
    );
    let probe = guest.add(&definition)?;
    ensure!(probe.definition == definition && probe.state() == ProbeState::Armed, "{probe:?}");
    let line = probe.kernel_definition.as_str();
    ensure!(!line.contains("->") && line.contains("($arg1)") && line.contains(" flags=+"), "{line}");
    let schema = probe.schema.as_ref().context("no schema")?;
    ensure!(!fixture.proves_reads() || schema.fields.iter().all(|field| field.fault_detected), "{schema:?}");
    let recording = guest.record(|| guest.workload(&["open", PATH, "1", "0", "1"]).map(drop))?;
    let mut events = recording.of("kprobes/named", "workload");
    let event = events.find(|event| event.field("name") == "\"types-of-the-kernel\"");
    let event = event.with_context(|| format!("{recording:?}"))?;
    ensure!(event.field("len") == "19", "the length of the name: {event:?}");
    ensure!(event.field("inline").starts_with("{116,121,112,101,115,45,"), "an array of numbers: {event:?}");
    // The root of the guest is in memory; an array of characters is text.
    ensure!(["\"rootfs\"", "\"tmpfs\"", "\"ramfs\""].contains(&event.field("root")), "{event:?}");
    let flags: u32 = event.field("flags").parse()?;
    ensure!(flags & 3 == 1, "O_WRONLY: {event:?}");
    Ok(())
}

fn every_parameter_is_recorded(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:all do_sys_openat2 $arg* path=+0(filename):ustring")?;
    let recording = guest.record(|| guest.workload(&["open", PATH, "0", "0", "1"]).map(drop))?;
    let path = format!("\"{PATH}\"");
    let event = recording.of("kprobes/all", "workload").find(|event| event.field("path") == path);
    let event = event.with_context(|| format!("{recording:?}"))?;
    ensure!(event.field("dfd") == "-100" && event.field("how").starts_with("0x"), "{event:?}");
    let native = is_native(&guest)?;
    // Numbers are what the running kernel makes of them.
    let name = guest.add("p:first do_sys_openat2 $arg1")?.schema.context("no schema")?.fields;
    ensure!(name[0].name == if native { "dfd" } else { "arg1" }, "{name:?}");
    let returned = guest.add("r:back do_sys_openat2 $retval")?.schema.context("no schema")?.fields;
    // A `long`, and an `int` on newer kernels.
    let width = if fixture.is_older_than(6, 18) { 8 } else { 4 };
    ensure!(returned[0].name == "arg1" && returned[0].width == width, "{returned:?}");
    Ok(())
}

fn tasks_and_programs_are_read_by_name(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(
        "p:born wake_up_new_task comm=p->comm pid=p->pid parent=p->real_parent->comm usage=p->usage.refs",
    )?;
    // Bits next to each other: the second is set before this function is called, the others are
    // not.
    guest.add(
        "p:program setup_new_exec before=bprm->secureexec point=bprm->point_of_no_return file=bprm->filename:string",
    )?;
    let mut pids = Vec::new();
    let recording = guest.record(|| {
        pids = guest.workload(&["spawn", "2"])?;
        Ok(())
    })?;
    for pid in &pids {
        let mut born = recording.of("kprobes/born", "workload");
        let event =
            born.find(|event| event.field("pid") == pid).with_context(|| format!("{pid}: {recording:?}"))?;
        ensure!(
            event.field("comm") == "\"workload\"" && event.field("parent") == "\"workload\"",
            "{event:?}"
        );
        let usage: i64 = event.field("usage").parse()?;
        ensure!((1..100).contains(&usage), "{event:?}");
    }
    let programs: Vec<_> = recording
        .events
        .iter()
        .filter(|event| event.probe == "kprobes/program" && event.field("file") == "\"/bin/true\"")
        .collect();
    ensure!(programs.len() == 2, "{recording:?}");
    for event in programs {
        ensure!(event.field("point") == "1" && event.field("before") == "0", "{event:?}");
    }
    Ok(())
}

fn functions_of_modules_have_names(fixture: &Fixture) -> Result<()> {
    if fixture.is_older_than(5, 11) {
        // Modules have no BTF there (kernel/bpf/btf.c:btf_module_notify).
        return Ok(());
    }
    let guest = fixture.daemon()?;
    guest.add("p:poll virtnet_poll budget device=napi->dev->name")?;
    // Every answer of the daemon comes over this device; while the daemon itself runs, its hits are
    // its own and not recorded.
    let ask = || guest.wait_for(guest.client.host())?.map(drop).map_err(Into::into);
    let recording = guest.record(|| (0..20).try_for_each(|_| ask()))?;
    let event = recording.events.iter().find(|event| event.probe == "kprobes/poll");
    let event = event.with_context(|| format!("{recording:?}"))?;
    ensure!(event.field("budget") == "64" && event.field("device") == "\"eth0\"", "{event:?}");
    let described = describe(&guest, "virtnet_poll", "virtio_net", "napi->dev")?;
    ensure!(described.structure.is_some_and(|structure| structure.c_type == "struct net_device"));
    Ok(())
}

/// Definitions with names: what a kernel that knows names says to each is what the daemon says.
const NAMES: &[&str] = &[
    "vfs_read file",
    "vfs_read $arg*",
    "vfs_read x=file->f_inode->i_ino",
    "vfs_read file->f_path.dentry->d_name.name:string",
    "vfs_read file->f_path.dentry->d_iname:string",
    "vfs_read file->f_path.dentry->d_iname",
    "vfs_read $arg1 $arg4",
    "vfs_read $arg5",
    "vfs_read x=$arg5",
    "vfs_read $arg1:u8",
    "vfs_read $arg1:string",
    "vfs_read buf:string",
    "vfs_read buf:ustring",
    "vfs_read count:string",
    "vfs_read pos:string",
    "vfs_read count->x",
    "vfs_read file.f_inode",
    "vfs_read file-f_inode",
    "vfs_read file->f_inod",
    "vfs_read file->f_path->dentry",
    "vfs_read file->f_path.dentry.d_name",
    "vfs_read fil",
    "vfs_read +0(fil)",
    "vfs_read +0(file)",
    "vfs_read file:x64 file:x32",
    "vfs_read file $arg1",
    "vfs_read $arg* $arg*",
    "vfs_read $arg* file",
    "vfs_read x=$arg*",
    "vfs_read+20 file",
    "vfs_read+20 $arg*",
    "vfs_read file:u8[4]",
    "vfs_read file->f_path.dentry->d_iname:u8[4]",
    "kfree object",
    "kfree $arg2",
    "kfree nothing",
    "schedule x",
    "schedule $arg*",
    "schedule $arg1",
    "schedule $arg1 x",
    "_printk fmt:string",
    "_printk $arg*",
    "_printk $arg2",
    "setup_new_exec bprm->point_of_no_return",
    "setup_new_exec bprm->point_of_no_return:u8",
    "setup_new_exec bprm->buf",
    "wake_up_new_task p->comm",
    "wake_up_new_task p->comm:symbol",
    "wake_up_new_task p->se.vruntime",
    "wake_up_new_task p->nothing.at.all",
    "begin_new_exec $arg*",
    "virtnet_poll napi",
    "virtnet_poll napi->dev->name",
    "virtio_net:virtnet_poll napi",
    "virtio_net:virtnet_poll $arg1",
    "remap_pfn_range prot",
    "remap_pfn_range prot:string",
    "_stext file",
];

/// The same for return probes.
const RESULTS: &[&str] = &[
    "vfs_read $retval",
    "vfs_read $retval file",
    "vfs_read $retval->x",
    "vfs_read $arg*",
    "vfs_read $retval:string",
    "kfree $retval",
    "kfree +0($retval)",
    "kfree object",
    "dget_parent $retval->d_name.name:string",
    "dget_parent $retval->d_iname",
    "dget_parent $retval.d_iname",
    "dget_parent $retval->nothing",
    "virtio_net:virtnet_poll $retval",
    "virtio_net:virtnet_poll budget",
];

fn lines() -> Vec<String> {
    let named = |letter: &'static str, rest: &'static [&'static str]| {
        rest.iter().enumerate().map(move |(index, rest)| format!("{letter}:types/{letter}{index} {rest}"))
    };
    named("p", NAMES).chain(named("r", RESULTS)).collect()
}

/// 6.18 says that it knows no parameters of a function, reads on, and then finds that `$arg*` is no
/// variable: EINVAL, where 6.12 and 7.2 stop with EOPNOTSUPP.
fn reads_on(fixture: &Fixture, one: &Compared) -> bool {
    fixture.series() == "6.18"
        && one.line.contains("$arg*")
        && one.ours.rule == "NOSUP_BTFARG"
        && one.kernel.errno == Errno::EINVAL as u32
}

fn names_get_the_kernels_verdict(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    if is_native(&guest)? {
        let (compared, accepted) = compare_errnos_but(&guest, lines(), |one| reads_on(fixture, one))?;
        ensure!(accepted > 25 && compared - accepted > 25, "{accepted} of {compared}");
        return Ok(());
    }
    // If the kernel knows no names, everything that can be resolved is accepted, and the kernel
    // takes what it becomes.
    let (mut accepted, lines) = (0, lines());
    for (line, _) in lines.iter().zip(daemon_answers(&guest, &lines)?).filter(|(_, answer)| answer.errno == 0)
    {
        guest.add(line)?;
        accepted += 1;
    }
    ensure!(accepted > 25, "only {accepted}");
    Ok(())
}

/// Functions that are drawn for each kernel, at least: more until enough was accepted, since what
/// is drawn may be anything.
fn drawn() -> usize {
    effort::pick(15, 30)
}

/// Everything that can be asked of functions drawn at random. On a kernel with names its verdict is
/// ours; on each kernel, what is accepted becomes a line that the kernel takes.
fn parameters_of_random_functions(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let native = is_native(&guest)?;
    let mut random = Random::of_theme("types");
    let candidates = functions(&guest)?;
    let (mut lines, mut resolved) = (Vec::new(), Vec::new());
    // 50 of 30 functions.
    let is_enough = |accepted: usize| accepted * 3 > drawn() * 5;
    for draw in 0.. {
        if draw >= drawn() && is_enough(resolved.len()) {
            break;
        }
        ensure!(draw < 8 * drawn(), "only {} of {} definitions are accepted", resolved.len(), lines.len());
        let (function, _) = &candidates[random.below(candidates.len())];
        let mut words =
            vec!["$arg*".to_owned(), "$arg1 $arg2".to_owned(), "$arg7".to_owned(), "$arg1:string".to_owned()];
        if let Ok(answer) = describe(&guest, function, "", "") {
            let described = answer.function.context("no function")?;
            for parameter in described.parameters.iter().filter(|parameter| !parameter.name.is_empty()) {
                words.extend(["", ":string", ":u8", "->x"].map(|end| format!("{}{end}", parameter.name)));
                if let Ok(behind) = describe(&guest, function, "", &parameter.name) {
                    let members = behind.structure.context("no structure")?.members;
                    let some = (0..3).filter_map(|_| members.get(random.below(members.len())));
                    words.extend(some.map(|member| member.path.clone()));
                }
            }
        }
        let entry = words.iter().map(|words| ('p', words.as_str()));
        let returns = ["$retval", "$retval:string", "$retval->x", "$arg*"].map(|words| ('r', words));
        let all = entry.chain(returns).enumerate();
        let all: Vec<_> = all
            .map(|(index, (letter, words))| format!("{letter}:d{draw}/e{index} {function} {words}"))
            .collect();
        let accepted = daemon_answers(&guest, &all)?.into_iter().filter(|verdict| verdict.errno == 0);
        resolved.extend(accepted.map(|verdict| verdict.kernel_definition));
        lines.extend(all);
    }
    let taken = kernel_answers(&guest, &resolved)?;
    let refused: Vec<_> = resolved.iter().zip(&taken).filter(|(_, answer)| answer.errno != 0).collect();
    ensure!(refused.is_empty(), "the kernel does not take what these became: {refused:?}");
    progress::note(format_args!("{} definitions, {} of them accepted", lines.len(), resolved.len()));
    ensure!(resolved.len() < lines.len());
    if native {
        compare_errnos_but(&guest, lines, |one| reads_on(fixture, one))?;
    }
    Ok(())
}

/// Definitions that a kernel with names refuses, a kind each.
const BAD: &[&str] = &[
    "p:g/e vfs_read hoge",
    "p:g/e vfs_read x=hoge",
    "p:g/e vfs_read y=%di x=+0(+8(hoge)):u8",
    "p:g/e vfs_read x=file->hoge",
    "p:g/e vfs_read x=file->f_path.hoge",
    "p:g/e vfs_read x=file->f_path.dentry->hoge",
    "p:g/e vfs_read x=file.f_path",
    "p:g/e vfs_read x=file-f_path",
    "p:g/e vfs_read x=count->hoge",
    "p:g/e vfs_read x=file->f_path->dentry",
    "p:g/e vfs_read x=file->f_flags.hoge",
    "p:g/e vfs_read x=pos:string",
    "p:g/e schedule $arg*",
    "p:g/e _printk $arg2",
    "p:g/e vfs_read $arg5",
    "p:g/e vfs_read %di $arg7:u8",
    "p:g/e vfs_read $arg* $arg*",
    "p:g/e schedule hoge",
    "p:g/e schedule $arg1 hoge",
    "p:g/e _stext hoge",
    "r:g/e kfree $retval",
    "r:g/e kfree x=+0($retval)",
    "r:g/e vfs_read x=$retval->hoge",
    "r:g/e virtio_net:virtnet_poll x=$retval->hoge",
];

fn bad_names_get_the_kernels_message_and_position(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let native = is_native(&guest)?;
    let lines: Vec<_> = BAD.iter().map(|line| (*line).to_owned()).collect();
    let kernel = native.then(|| kernel_answers(&guest, &lines)).transpose()?;
    let mut wrong = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let refusal = match guest.refusal(line) {
            Ok(refusal) => refusal,
            // A kernel without BTF takes some of these for other words than names.
            Err(_) if !native => {
                guest.delete_all()?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let found = refusal.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
        let found = found.with_context(|| format!("{line}: no diagnostic in {refusal:?}"))?;
        if found.hint.is_empty() {
            wrong.push(format!("`{line}`: no hint for {}", found.code));
        }
        if let Some(answers) = &kernel {
            let (text, caret) = answers[index].said.as_ref().with_context(|| line.clone())?;
            let known = kprobed_lang::definition::Code::from_kernel_text(text)
                .map(kprobed_lang::definition::Code::name);
            // 6.18 goes on to the word itself where a function has no parameters for it to stand for.
            let is_misnamed = *line == "p:g/e schedule $arg*"
                && fixture.series() == "6.18"
                && known == Some("BAD_VAR")
                && found.code == "NOSUP_BTFARG";
            let is_named = known == Some(found.code.as_str()) || is_misnamed;
            if !is_named || found.span_start as usize != *caret {
                let ours = (&found.code, found.span_start);
                wrong.push(format!("`{line}`: kernel `{text}` at {caret}, daemon {} at {}", ours.0, ours.1));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn describe(
    guest: &DaemonGuest,
    function: &str,
    module: &str,
    path: &str,
) -> Result<DescribeFunctionResponse> {
    let request = DescribeFunctionRequest {
        function: function.to_owned(),
        module: module.to_owned(),
        path: path.to_owned(),
    };
    Ok(guest.wait_for(guest.client.describe_function(request))??)
}

fn functions_are_described(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let answer = describe(&guest, "vfs_read", "", "file->f_path.dentry")?;
    let function = answer.function.context("no function")?;
    ensure!(
        function.prototype == "ssize_t vfs_read(struct file *file, char *buf, size_t count, loff_t *pos)",
        "{function:?}"
    );
    let arguments: Vec<&str> = function.parameters.iter().map(|one| one.argument.as_str()).collect();
    ensure!(
        arguments == ["$arg1", "$arg2", "$arg3", "$arg4"] && function.return_fetch_type == "s64",
        "{function:?}"
    );
    // Each member can be read by the path that is given for it, with the type that is given for it.
    let dentry = answer.structure.context("no structure")?;
    ensure!(dentry.c_type == "struct dentry" && dentry.members.len() > 10, "{dentry:?}");
    for member in &dentry.members {
        let definition = format!("p:member vfs_read x={}", member.path);
        let verdict = guest.wait_for(guest.client.check_probe(&definition))??;
        ensure!(verdict.errno == 0, "{definition}: {verdict:?}");
        let ty = verdict.kernel_definition.split_ascii_whitespace().nth(2).and_then(|x| x.split(':').nth(1));
        ensure!(ty == Some(member.fetch_type.as_str()), "{member:?}: {verdict:?}");
    }
    for (function, path, reason, hint) in [
        ("vfs_raed", "", "NO_BTF_ENTRY", "`vfs_read`"),
        ("vfs_read", "fle", "NO_BTFARG", "`file`"),
        ("vfs_read", "file->f_inod", "NO_BTF_FIELD", "`f_inode`"),
    ] {
        let error = describe(&guest, function, "", path).err().context("it was described")?;
        let refusal = error.downcast_ref::<kprobed_client::Error>().and_then(|error| error.rpc());
        let refusal = refusal.with_context(|| format!("{error:?}"))?;
        let found = refusal.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
        ensure!(refusal.reason == reason, "{refusal:?}");
        ensure!(found.is_some_and(|found| found.hint.contains(hint)), "{refusal:?}");
    }
    Ok(())
}

/// What is kept is the text; what it stands for is found again.
fn the_text_is_kept_and_explained(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let definition = "p:kept vfs_open a0=path->dentry->d_name.name:string";
    let before = guest.add(definition)?;
    let explained = guest.wait_for(guest.client.explain_probe(definition))??.explanation;
    let line = explained.lines().next().context("no line")?;
    ensure!(before.kernel_definition.starts_with(line), "{before:?} {explained}");
    let meaning = "\n      path->dentry->d_name.name, which is `const unsigned char *name`: ";
    ensure!(explained.contains(meaning), "{explained}");
    // Words of 2009 are names only if the function has them.
    let old = guest.wait_for(guest.client.check_probe("p:old vfs_open x=a0 path"))??;
    ensure!(old.kernel_definition.starts_with("p:kprobes/old vfs_open x=$arg1 path=$arg1:x64"), "{old:?}");
    ensure!(guest.probes()?.iter().any(|probe| probe.definition == definition));
    Ok(())
}
