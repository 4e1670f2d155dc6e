//! Roles on a real kernel: the function that counts is the one in which the place lies, by all of its
//! names, and what its events hold reaches only those who may observe it.
//!
//! Root, on the socket, may do everything; the client of the tests comes over TCP from this host, and
//! has a role of its own.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{CreateProbeRequest, ProbeState};
use kprobed_client::event::StreamRequest;
use kprobed_vm::machine::Signal;
use tonic::Code;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config_with_roles};
use crate::fixture::{Fixture, Shared};
use crate::kernel_module::{Build, Function};

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_role_allows_what_its_rules_say,
        a_role_sees_what_its_rules_show,
        a_reload_puts_other_roles_in_force,
        a_stream_has_what_its_subscriber_may_observe,
        addresses_are_hidden_from_those_who_were_not_given_them,
        a_repeat_is_its_makers,
    }
    Seldom {
        a_role_limits_what_its_principals_hold,
        counts_belong_to_those_who_make_them,
        an_alias_is_the_same_function,
        a_place_that_is_not_known_meets_every_rule_that_forbids,
    }
};

const ROOT: &str = "[[role]]\nname = \"root\"\nprincipals = [\"uid:0\"]\n[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n";

const GUEST: &str = "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nmethods = [\"read\", \"check\"]\n\
    [[role.allow]]\nmethods = [\"change\", \"observe\"]\nfunctions = [\"__x64_sys_getp*\"]\nreads = [\"registers\"]\n";

/// The default configuration, with the roles of root and of the client.
fn config(of_the_client: &str) -> String {
    config_with_roles(&format!("{ROOT}{of_the_client}"))
}

/// The shared guest with these roles in force.
fn with_roles<'a>(fixture: &'a Fixture, config: &str) -> Result<Shared<'a>> {
    let guest = fixture.daemon()?;
    guest.reload(config)?;
    Ok(guest)
}

fn reason(guest: &DaemonGuest, definition: &str) -> Result<String> {
    let refused = guest.refusal(definition)?;
    ensure!(refused.code == Code::PermissionDenied && refused.reason == "NOT_ALLOWED", "{refused:?}");
    ensure!(refused.metadata.contains(&("principal".to_owned(), "loopback".to_owned())), "{refused:?}");
    Ok(refused.message)
}

fn a_role_allows_what_its_rules_say(fixture: &Fixture) -> Result<()> {
    let guest = with_roles(fixture, &config(GUEST))?;
    guest.add("p:calls __x64_sys_getppid %di")?;
    for (definition, why) in [
        ("p:other kernel_clone", "does not allow the function"),
        ("p:memory __x64_sys_getppid +0(%di):u64", "does not allow to read kernel-memory"),
        ("p:raw __x64_sys_getppid @jiffies", "does not allow to read raw-addresses"),
        ("p:stack __x64_sys_getppid $stack1", "does not allow to read stack"),
    ] {
        let message = reason(&guest, definition)?;
        ensure!(message.contains("role `guest`, line ") && message.contains(why), "{message}");
    }
    // A place beyond the function that is named is no way into another one.
    let refused = guest.refusal("p:beyond __x64_sys_getppid+0x1000")?;
    ensure!(refused.code == Code::InvalidArgument, "{refused:?}");
    let listed = guest.shell(&format!("cat {TRACEFS}/kprobe_events"))?;
    ensure!(listed.lines().count() == 1 && listed.contains("kprobes/calls"), "{listed}");
    // What root has made is root's.
    guest.shell("kprobectl add 'p:clones kernel_clone'")?;
    ensure!(guest.probes()?.len() == 2);
    let denied = guest.delete("kprobes/clones").err().context("it was deleted")?;
    ensure!(denied.to_string().contains("may not call `DeleteProbe` on `kprobes/clones`"), "{denied}");
    guest.shell("kprobectl auth whoami | grep -q 'Roles:      root'")?;
    let answer = guest
        .shell("kprobectl auth can-i -o json CreateProbe 'p:x kernel_clone' --as loopback || echo exit $?")?;
    ensure!(answer.contains("\"allowed\": false") && answer.contains("exit 1"), "{answer}");
    let answer =
        guest.shell("kprobectl auth can-i 'CreateProbe' 'p:x __x64_sys_getppid %di' --as loopback")?;
    ensure!(
        answer.starts_with("yes: role `guest`, line ") && answer.contains("it reads registers"),
        "{answer}"
    );
    Ok(())
}

fn a_role_sees_what_its_rules_show(fixture: &Fixture) -> Result<()> {
    let limited = "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\n\
        methods = [\"read\"]\ngroups = [\"own\"]\nfunctions = [\"__x64_sys_getp*\"]\n[[role.allow]]\n\
        methods = [\"change\"]\nreads = []\n[[role.deny]]\nmethods = [\"read\"]\nlabels = \"secret\"\n";
    let guest = with_roles(fixture, &config(limited))?;
    guest.shell(&format!(
        "kprobectl add 'p:own/shown __x64_sys_getppid' && kprobectl add 'p:own/hidden_place kernel_clone' && \
         kprobectl add 'p:hidden_group/x __x64_sys_getppid' && \
         kprobectl add 'p:own/hidden_label __x64_sys_getppid' --label secret=yes && \
         echo 'p:own/theirs __x64_sys_getpid' >> {TRACEFS}/kprobe_events && \
         echo 'p:own/hidden_theirs kernel_clone' >> {TRACEFS}/kprobe_events && \
         kprobectl add sched/sched_process_fork"
    ))?;
    // Its own is shown, wherever it is.
    guest.add("p:mine/clones kernel_clone")?;
    guest.workload(&["getppid", "5"])?;
    let probes = &["own/shown", "mine/clones"][..];
    let mut checked = Vec::new();
    for (command, of_root, shown) in [
        ("list -o json", "hidden_place", probes),
        ("hits -o json", "hidden_place", probes),
        // Rates have the counts read, samples have those that were.
        ("hits --since 1h --step 1m -o json", "hidden_place", probes),
        ("hits --since 1h -o json", "hidden_place", probes),
        ("ledger -o json", "hidden_place", probes),
        ("hits --cost -o json", "hidden_place", probes),
        ("list --foreign -o json", "hidden_theirs", &["own/theirs"]),
        ("list -o json", "sched_process_fork", probes),
    ] {
        if !checked.contains(&of_root) {
            checked.push(of_root);
            let all = guest.shell(&format!("kprobectl {command}"))?;
            ensure!(all.contains(of_root), "`{command}` as root: {all}");
        }
        let answer = guest.ctl(command)?;
        ensure!(!answer.contains("hidden") && !answer.contains(of_root), "`{command}`: {answer}");
        ensure!(shown.iter().all(|name| answer.contains(name)), "`{command}`: {answer}");
    }
    for (name, why) in [
        ("own/hidden_place", "does not allow the function"),
        ("hidden_group/x", "does not allow the group"),
        ("own/hidden_label", "forbids it"),
    ] {
        let answer = guest.ctl_says(&format!("get {name}"))?.all();
        ensure!(answer.contains(why) && answer.contains("role `guest`, line "), "{answer}");
    }
    // A watch, too: also of what comes later.
    let mut watch = guest.start_ctl_until("list --watch -o json", "own/shown")?;
    guest.shell(
        "kprobectl add 'p:own/hidden_later kernel_clone' && kprobectl add 'p:own/later __x64_sys_getppid'",
    )?;
    guest.until("the new probe", || Ok(watch.printed()?.contains("own/later")))?;
    let watched = watch.printed()?;
    ensure!(!watched.contains("hidden") && watch.ended()?.is_none(), "{watched}");
    // Of what is gone nothing is known that a rule could be compared with.
    guest.shell("kprobectl delete own/shown")?;
    let answer = guest.ctl("hits --since 1h -o json")? + &guest.ctl("hits --cost -o json")?;
    ensure!(!answer.contains("own/shown") && answer.contains("mine/clones"), "{answer}");
    Ok(())
}

/// Where the kernel is in memory, by what a client receives: with the class `addresses`, and without it.
fn addresses_are_hidden_from_those_who_were_not_given_them(fixture: &Fixture) -> Result<()> {
    let config = |reads: &str| {
        config(&format!(
            "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nreads = [{reads}]\n\
             methods = [\"read\", \"check\", \"change\", \"observe\"]\n"
        ))
    };
    let hidden = "\"registers\", \"stack\", \"raw-addresses\", \"stack-traces\"";
    let guest = with_roles(fixture, &config(hidden))?;
    let place = guest.shell("grep ' T vfs_read$' /proc/kallsyms | cut -d' ' -f1")?;
    let place = place.trim();
    ensure!(place.starts_with("ffffffff"), "{place}");
    let seen = |guest: &DaemonGuest| -> Result<Vec<String>> {
        let under_load = |command: &str| -> Result<String> {
            let mut command = guest.start_ctl(&format!("{command} -o json"))?;
            while command.ended()?.is_none() {
                guest.workload(&["getppid", "10"])?;
            }
            let said = command.end()?;
            ensure!(said.code == 0, "{said:?}");
            Ok(said.stdout)
        };
        let mut seen = vec![under_load("observe kprobes/seen -n 3")?];
        if fixture.counts_events() {
            seen.push(under_load("hist kprobes/seen --by pointer --for 1s")?);
            seen.push(under_load("stacks kprobes/seen --for 1s")?);
        }
        seen.push(guest.ctl("describe vfs_read --code -o json")?);
        seen.push(guest.ctl("check 'p vfs_read' -o json")?);
        Ok(seen)
    };
    guest.add("p:seen __x64_sys_getppid pointer=%di stack=$stack top=$stack0")?;
    // Addresses of the kernel, in hexadecimal and in decimal, and code that contains some.
    let is_address = |text: &str| {
        let number = text
            .strip_prefix("0x")
            .map_or_else(|| text.parse::<u64>().ok(), |digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| (0xff00_0000_0000_0000..0xffff_ffff_ff60_0000).contains(&number))
    };
    let addresses = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|word| is_address(word)).map(str::to_owned).collect()
    };
    let hidden_from = seen(&guest)?;
    ensure!(hidden_from[0].contains("sys_getppid+0x"), "names of places stay: {}", hidden_from[0]);
    for text in hidden_from {
        ensure!(!text.is_empty() && addresses(&text).is_empty(), "{:?} in {text}", addresses(&text));
        ensure!(["pointer", "getppid", "vfs_read"].iter().any(|word| text.contains(word)), "{text}");
    }
    let asked = guest.ctl_says(&format!("check 'p 0x{place}'"))?.all();
    ensure!(asked.contains("needs a role that may see addresses") && !asked.contains("vfs_read"), "{asked}");
    let asked = guest.ctl_says(&format!("describe 0x{place} --code"))?.all();
    ensure!(asked.contains("needs a role that may see addresses") && !asked.contains("vfs_read+"), "{asked}");
    let asked = guest.ctl_says(&format!("auth can-i CreateProbe 'p:x/y 0x{place}'"))?.all();
    ensure!(asked.contains("needs a role that may see addresses") && !asked.contains("vfs_read"), "{asked}");
    // What is hidden is not compared, and a number becomes no symbol.
    let why = reason(&guest, &format!("p:named __x64_sys_getppid at=\\0x{place}:symbol"))?;
    ensure!(why.contains("does not allow to read addresses"), "{why}");
    let why = reason(&guest, &format!("p:text __x64_sys_getppid at=\\0x{place}:string"))?;
    ensure!(why.contains("does not allow to read kernel-memory, user-memory, strings"), "{why}");
    let filter = "'__probe_ip > 0xffffffff80000000'";
    guest.ctl_tells(&format!("update seen --filter {filter}"), &["does not allow to read addresses"])?;
    guest.ctl_tells(&format!("observe seen -n 1 --filter {filter}"), &["would tell a kernel address"])?;
    guest.ctl_tells("hist seen --by pointer.sym --for 1s", &["does not allow to read addresses"])?;
    // The same with the class: the test sees addresses where there are some.
    guest.reload(&config(&format!("{hidden}, \"addresses\"")))?;
    let shown = seen(&guest)?;
    let of_events = if fixture.counts_events() { 2 } else { 1 };
    ensure!(shown.iter().take(of_events).all(|text| !addresses(text).is_empty()), "{shown:?}");
    guest.ctl_shows(&format!("check 'p 0x{place}'"), &["vfs_read"])?;
    Ok(())
}

/// A definition that the role allows, and that one of its limits refuses.
fn beyond(guest: &DaemonGuest, definition: &str) -> Result<kprobed_client::RpcError> {
    let refused = guest.refusal(definition)?;
    ensure!(refused.code == Code::ResourceExhausted && refused.reason == "ROLE_LIMIT", "{refused:?}");
    ensure!(refused.message.contains(" of role `guest`, line "), "{}", refused.message);
    Ok(refused)
}

fn a_role_limits_what_its_principals_hold(fixture: &Fixture) -> Result<()> {
    let limited = format!("{GUEST}[role.limits]\nprobes = 2\n");
    let mut guest = with_roles(fixture, &config(&limited))?;
    // What root has made is no part of it.
    guest.shell("kprobectl add 'p:roots __x64_sys_getppid'")?;
    guest.add("p:first __x64_sys_getppid")?;
    guest.add("p:second __x64_sys_getpid")?;
    let refused = beyond(&guest, "p:third __x64_sys_getppid")?;
    for (key, value) in [("limit", "probes"), ("held", "2"), ("most", "2"), ("principal", "loopback")] {
        ensure!(refused.metadata.contains(&(key.to_owned(), value.to_owned())), "{refused:?}");
    }
    // One that lasts for a moment is.
    guest.ctl_tells("hits 'p:x __x64_sys_getppid' --for 100ms", &[" of role `guest`, line "])?;
    // Who made a probe is durable.
    guest.kill()?;
    guest.restart(&config(&limited))?;
    ensure!(beyond(&guest, "p:third __x64_sys_getppid")?.message.contains("has 2 probes"));
    guest.delete("kprobes/second")?;
    guest.add("p:third __x64_sys_getppid")?;
    let log = guest.shell("kprobectl audit -o json")?;
    ensure!(log.contains("`loopback` has 2 probes: the limit `probes` of role `guest`, line "), "{log}");
    // Other limits are in force for what comes next, and close nothing.
    let other = format!("{GUEST}[role.limits]\nprobes = 10\nlease_max_s = 60\nhosts_per_command = 1\n");
    let ended =
        || Ok::<_, anyhow::Error>(guest.whole_log()?.matches("its principal has other roles now").count());
    let before = ended()?;
    guest.reload(&config(&other))?;
    ensure!(beyond(&guest, "p:fourth __x64_sys_getppid")?.message.contains("a probe without a lease"));
    guest.ctl_tells("add 'p:fourth __x64_sys_getppid' --lease 61s", &["asks for a lease of 61 s"])?;
    guest.ctl("add 'p:fourth __x64_sys_getppid' --lease 60s")?;
    guest.ctl_tells("update fourth --keep", &["a probe without a lease"])?;
    guest.ctl("hits 'p:x __x64_sys_getppid' --for 100ms")?;
    let shown = guest.ctl("auth whoami")?;
    let row = shown.lines().find(|line| line.starts_with("probes ")).context("no row")?;
    let cells: Vec<_> = row.split_whitespace().collect();
    ensure!(cells[..5] == ["probes", "3", "10", "role", "guest,"], "{shown}");
    let several = "kprobectl --hosts tcp://127.0.0.1:7000,tcp://localhost:7000";
    let refused = guest.shell(&format!("{several} list 2>&1 || echo exit $?"))?;
    ensure!(
        refused.contains("asks 2 hosts in one command") && refused.contains("name fewer hosts"),
        "{refused}"
    );
    guest.shell("kprobectl --hosts tcp://127.0.0.1:7000 list")?;
    ensure!(ended()? == before, "{}", guest.log());
    Ok(())
}

fn an_alias_is_the_same_function(fixture: &Fixture) -> Result<()> {
    let symbols =
        "grep -E ' (__x64_sys_getppid|__do_sys_getppid)$' /proc/kallsyms | cut -d' ' -f1 | uniq | wc -l";
    let forbidden = format!("{GUEST}[[role.deny]]\nfunctions = [\"__do_sys_getppid\"]\n");
    let guest = with_roles(fixture, &config(&forbidden))?;
    // They are names of the same code (arch/x86/include/asm/syscall_wrapper.h:__SYS_STUB0).
    ensure!(guest.shell(symbols)?.trim() == "1", "the names have code of their own");
    let message = reason(&guest, "p:calls __x64_sys_getppid")?;
    ensure!(message.contains("forbids it"), "{message}");
    guest.add("p:calls __x64_sys_getpid")?;
    Ok(())
}

fn a_stream_has_what_its_subscriber_may_observe(fixture: &Fixture) -> Result<()> {
    let forbidden = format!("{GUEST}[[role.deny]]\nmethods = [\"observe\"]\nlabels = \"secret\"\n");
    let guest = with_roles(fixture, &config(&forbidden))?;
    guest.shell("kprobectl add 'p:calls __x64_sys_getppid'; kprobectl add 'p:others __x64_sys_getuid'")?;
    let recording = guest.record(|| guest.workload(&["getppid", "5"]).map(drop))?;
    ensure!(recording.of("kprobes/calls", "workload").count() == 5);
    ensure!(recording.events.iter().all(|event| event.probe != "kprobes/others"));
    // Probes that are made while it streams.
    let recording = guest.record(|| {
        guest.shell(
            "kprobectl add 'p:later __x64_sys_getppid'; kprobectl add 'p:never __x64_sys_getppid $stack1'",
        )?;
        guest.workload(&["getppid", "5"]).map(drop)
    })?;
    ensure!(recording.of("kprobes/later", "workload").count() == 5);
    ensure!(recording.events.iter().all(|event| event.probe != "kprobes/never"));
    let stream = guest.wait_for(guest.client.stream_events(StreamRequest::new().probe("kprobes/others")))?;
    let denied = match stream {
        Err(error) => error,
        Ok(mut stream) => guest.wait_for(stream.next())?.err().context("it was streamed")?,
    };
    ensure!(denied.rpc().is_some_and(|error| error.code == Code::PermissionDenied), "{denied}");
    // Counting reads the same data.
    let denied = guest.ctl_says("hist kprobes/others --by comm --for 1s")?.all();
    ensure!(denied.contains("may not call `StreamAggregation` on `kprobes/others`"), "{denied}");
    // A label takes the right away: a stream that goes on has nothing more of the probe, and counts end.
    let mut stream = guest.subscribe(StreamRequest::new().probe("kprobes/calls"))?;
    let id = guest.started(&mut stream)?;
    let mut counts = None;
    if fixture.counts_events() {
        let counting = counts.insert(guest.start_ctl("hist kprobes/calls --by comm --interval 200ms")?);
        guest.until("a count", || {
            guest.workload(&["getppid", "1"])?;
            Ok(counting.printed()?.contains("workload"))
        })?;
    }
    guest.shell("kprobectl label kprobes/calls secret=yes")?;
    let delivered = |guest: &DaemonGuest| -> Result<u64> {
        let ours = guest.subscriber(id)?;
        Ok(ours.delivered + ours.queued)
    };
    let before = delivered(&guest)?;
    guest.workload(&["getppid", "5"])?;
    ensure!(delivered(&guest)? == before, "events of a probe that is forbidden were delivered");
    if let Some(mut counts) = counts {
        let ended = counts.end()?.all();
        ensure!(ended.contains("forbids it"), "{ended}");
    }
    Ok(())
}

fn a_reload_puts_other_roles_in_force(fixture: &Fixture) -> Result<()> {
    let guest = with_roles(fixture, &config(GUEST))?;
    ensure!(reason(&guest, "p:clones kernel_clone")?.contains("does not allow the function"));
    // A mistake changes nothing.
    let mistaken = config("[[role]]\nname = \"x\"\nprincipals = [\"nobody\"]\n");
    guest.machine.put("/etc/kprobed/kprobed.toml", 0o644, mistaken.as_bytes())?;
    guest.machine.signal("kprobed", Signal::SIGHUP)?;
    guest.until("the mistake", || Ok(guest.log().contains("the configuration is not reloaded")))?;
    ensure!(guest.log().contains("does not say what kind of principal it is"), "{}", guest.log());
    guest.add("p:calls __x64_sys_getppid")?;
    guest.reload(&config(&GUEST.replace("__x64_sys_getp*", "kernel_clone")))?;
    guest.add("p:clones kernel_clone")?;
    ensure!(reason(&guest, "p:other __x64_sys_getppid")?.contains("does not allow the function"));
    // The log has what differs; the other settings wait for a restart.
    let debug = config(GUEST).replace("[listen]", "[log]\nlevel = \"debug\"\n[listen]");
    let changed = |guest: &DaemonGuest| -> Result<Vec<String>> {
        let log = guest.whole_log()?;
        Ok(log.lines().filter(|line| line.contains("a setting has changed")).map(str::to_owned).collect())
    };
    let before = changed(&guest)?.len();
    guest.reload(&debug)?;
    let differs = changed(&guest)?.split_off(before);
    let line = |setting: &str| differs.iter().find(|line| line.contains(setting)).map_or("", String::as_str);
    let functions = line("role[guest].allow[2].functions");
    ensure!(functions.contains("kernel_clone") && functions.contains("__x64_sys_getp*"), "{differs:?}");
    ensure!(functions.contains("needs_restart=false"), "{differs:?}");
    ensure!(line("log.level").contains("needs_restart=true"), "{differs:?}");
    guest.add("p:other __x64_sys_getppid")?;
    let before = changed(&guest)?.len();
    guest.reload(&debug)?;
    let waits = changed(&guest)?.split_off(before);
    ensure!(waits.len() == 1 && waits[0].contains("log.level"), "only what waits differs: {waits:?}");
    let log = guest.shell("kprobectl audit -o wide")?;
    ensure!(log.contains("changed settings: "), "{log}");
    guest.reload(&config(&GUEST.replace("__x64_sys_getp*", "kernel_clone")))?;
    // It may not even remove what it has made before.
    let denied = guest.delete("kprobes/calls").err().context("it was deleted")?;
    ensure!(denied.to_string().contains("may not call `DeleteProbe`"), "{denied}");
    Ok(())
}

/// A module that is not loaded can have any functions: a place in it is judged again when it comes.
fn a_place_that_is_not_known_meets_every_rule_that_forbids(fixture: &Fixture) -> Result<()> {
    const MODULE: &str = "kpd_later";
    let free = config(
        "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nreads = [\"all\"]\n\
         methods = [\"read\", \"check\", \"change\", \"observe\"]\n",
    );
    let forbids = format!("{free}[[role.deny]]\nfunctions = [\"later_*\"]\n");
    let guest = with_roles(fixture, &forbids)?;
    let build = Build::of(&guest)?;
    // mov eax, 0; nop. To arm a probe by a jump, the kernel reads instructions to the end of the module's last page
    // (arch/x86/kernel/kprobes/opt.c:can_optimize), which has zeros behind this function: two bytes each. With an odd
    // number of them 6.12 reads beyond the page, and panics.
    let body = [0xb8, 0, 0, 0, 0, 0x90];
    let module = build.module(MODULE, 0x33, &Function::new("later_called", &body))?;
    guest.machine.put("/tmp/later.ko", 0o644, &module)?;
    let place = format!("{MODULE}:later_called+{}", build.body_at());
    for definition in [format!("p:own/inside {place}"), format!("p:own/named {MODULE}:later_called")] {
        ensure!(reason(&guest, &definition)?.contains("forbids it"), "{definition}");
    }
    // It was made while no rule forbade it.
    guest.reload(&free)?;
    let made = guest.add(&format!("p:own/inside {place}"))?;
    ensure!(made.state() == ProbeState::HeldBack && made.state_reason == "MODULE_ABSENT", "{made:?}");
    guest.add("p:own/other __x64_sys_getppid")?;
    guest.reload(&forbids)?;
    guest.shell("insmod /tmp/later.ko")?;
    let now = || guest.shell("kprobectl get own/inside -o json");
    guest.until("the judgement", || Ok(now()?.contains("NOT_ALLOWED")))?;
    let text = now()?;
    ensure!(text.contains("HELD_BACK") && text.contains("`loopback` may not have it there"), "{text}");
    let events = guest.tracefs("kprobe_events")?;
    ensure!(!events.contains("own/inside") && events.contains("own/other"), "{events}");
    // Enabling it asks again: as long as the rule is there, and then not any more.
    let refused = guest.shell("kprobectl enable own/inside 2>&1; true")?;
    ensure!(refused.contains("is held back") && refused.contains("forbids it"), "{refused}");
    guest.reload(&free)?;
    guest.shell("kprobectl enable own/inside")?;
    ensure!(guest.probe("own/inside")?.state() == ProbeState::Armed, "{:?}", guest.probe("own/inside")?);
    guest.delete("own/inside")?;
    guest.shell(&format!("rmmod {MODULE}")).map(drop)
}

/// An aggregation is not another one that has its name later, is deleted by who made it, and is in the audit log.
fn counts_belong_to_those_who_make_them(fixture: &Fixture) -> Result<()> {
    let limited = "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nreads = [\"all\"]\n\
        methods = [\"observe\", \"read\"]\ngroups = [\"own\"]\n";
    let guest = with_roles(fixture, &config(limited))?;
    if !guest.tracefs("README")?.contains("hist trigger") {
        return Ok(());
    }
    guest.shell(
        "kprobectl add 'p:own/calls __x64_sys_getppid' && kprobectl add 'p:theirs/calls __x64_sys_getpid'",
    )?;
    guest.ctl("hist own/calls --keep opens")?;
    let stream = || {
        let opens = Source::Name("opens".to_owned());
        guest
            .wait_for(guest.client.stream_aggregation(opens, Duration::from_secs(3), false))?
            .map_err(anyhow::Error::from)
    };
    let mut under_way = stream()?;
    // Who administers may delete it; then another client counts under its name.
    guest
        .shell("kprobectl aggregations delete opens && kprobectl hist theirs/calls --by comm --keep opens")?;
    let ended = guest.wait_for(under_way.next())?.err().context("it goes on with the counts of another")?;
    ensure!(ended.rpc().is_some_and(|error| error.code == Code::NotFound), "{ended}");
    // That one is not for the client, by its name neither, and it does not learn what it counts.
    for refused in [
        stream().err().context("it was streamed")?.to_string(),
        guest.ctl_says("aggregations delete opens")?.all(),
    ] {
        ensure!(refused.contains("on the aggregation `opens`") && !refused.contains("theirs/"), "{refused}");
    }
    ensure!(guest.wait_for(guest.client.list_aggregations())??.is_empty());
    // One of its own probe that another client has made: it may read it, and not delete it.
    guest.shell("kprobectl hist own/calls --keep shared")?;
    ensure!(guest.wait_for(guest.client.read_aggregation("shared"))??.0.creator == "uid:0");
    let refused = guest.ctl_says("aggregations delete shared")?.all();
    ensure!(refused.contains("only who made it may, and who may administer the daemon"), "{refused}");
    guest.ctl("hist own/calls --keep mine")?;
    guest.ctl("aggregations delete mine")?;
    guest.shell("kprobectl aggregations delete opens && kprobectl aggregations delete shared")?;
    let log = guest.shell("kprobectl audit -o json")?;
    for change in ["\"count\"", "\"stop counting\""] {
        let of_client = |line: &str| {
            line.contains(change) && line.contains("\"loopback\"") && line.contains("mine: hist:")
        };
        ensure!(log.lines().any(of_client), "{change}: {log}");
    }
    ["own/calls", "theirs/calls"]
        .iter()
        .try_for_each(|name| guest.shell(&format!("kprobectl delete {name}")).map(drop))
}

/// The id of a request is its principal's: others are neither answered nor refused by it.
fn a_repeat_is_its_makers(fixture: &Fixture) -> Result<()> {
    let limited = "[[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nreads = [\"all\"]\n\
        methods = [\"change\"]\ngroups = [\"own\"]\n";
    let guest = with_roles(fixture, &config(limited))?;
    let request = |definition: &str, id: &str| CreateProbeRequest {
        definition: definition.to_owned(),
        request_id: id.to_owned(),
        labels: [("a", "1"), ("b", "2"), ("c", "3")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Default::default()
    };
    let create = |request: CreateProbeRequest| guest.wait_for(guest.client.create_probe(request));
    let first = create(request("p:own/calls __x64_sys_getppid", "deploy-1"))??;
    // The same labels in whichever order.
    for _ in 0..5 {
        ensure!(create(request("p:own/calls __x64_sys_getppid", "deploy-1"))??.uid == first.uid);
    }
    let other = create(request("p:own/other __x64_sys_getppid", "deploy-1"))?.err().context("it was made")?;
    ensure!(other.rpc().is_some_and(|error| error.reason == "REQUEST_ID_REUSED"), "{other}");
    // Rights come first, whatever the kernel or the id would say.
    for definition in ["p:theirs/calls __x64_sys_getppid", "p:theirs/calls no_such_function"] {
        let refused = create(request(definition, "deploy-1"))?.err().context("it was made")?;
        let text = refused.to_string();
        ensure!(text.contains("does not allow the group") && !text.contains("no_such_function"), "{text}");
    }
    guest.shell("kprobectl delete own/calls").map(drop)
}
