//! Tests of commands on many hosts: some answer, and others are dead, hang, break off or refuse.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use kprobed_client::api::HostView;
use tempfile::TempDir;

use super::command::{kprobectl, kprobectl_in};
use super::fake::{Ending, Fake, Kept, interrupt, shown};
use super::merging::{context, odd_hosts};

/// Three fakes under a context, a dead host, one that hangs, and one that breaks off.
struct Hosts {
    directory: TempDir,
    fakes: Vec<Fake>,
}

impl Hosts {
    fn start(fakes: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fakes: Vec<_> = (0..fakes).map(|_| Fake::start(Ending::Open)).collect();
        let mut text =
            "# mine\ncurrent_context: test\ncontexts:\n  test:\n    confirm_above: 2\n    hosts:\n"
                .to_owned();
        for (number, fake) in fakes.iter().enumerate() {
            let (number, address) = (number + 1, fake.address());
            writeln!(text, "      web{number:03}: {{address: '{address}', labels: {{role: web}}}}").unwrap();
        }
        for (name, address) in odd_hosts(directory.path()) {
            writeln!(text, "      {name}: {{address: '{address}', labels: {{role: odd}}}}").unwrap();
        }
        text.push_str("    groups:\n      some: ['web[001-002]', dead]\n");
        std::fs::write(directory.path().join("config.yaml"), text).unwrap();
        Self { directory, fakes }
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        kprobectl_in(self.directory.path(), arguments)
    }

    fn run(&self, arguments: &[&str]) -> String {
        let shown = shown(&self.command(arguments).output().unwrap());
        let shown = shown.replace(self.directory.path().to_str().unwrap(), "DIRECTORY");
        // How a connection ends that is closed too early depends on what was on its way.
        let plain = |line: &str| match line.split_once("was lost: ") {
            Some((lost, _)) => format!("{lost}was lost: REASON\n"),
            None => line.to_owned(),
        };
        shown.split_inclusive('\n').map(plain).collect()
    }
}

fn with(mut command: Command, config: &Path, state: &Path) -> Command {
    command.env("KPROBECTL_CONFIG", config).env("XDG_STATE_HOME", state);
    command
}

#[test]
fn equal_answers_are_shown_once_and_every_host_is_accounted_for() {
    let hosts = Hosts::start(3);
    assert_snapshot!(hosts.run(&["list", "--hosts", "all", "--timeout", "700ms"]), @"
    exit: 4
    -- stdout
    web[001-003] (3 hosts, kernel 6.12.1):
    NAME             KIND    STATE      LOCATION            FILTER
    kprobes/open     entry   armed      do_sys_openat2+0x0  dfd == -100
    kprobes/waiting  return  held-back  do_sys_openat2+0x0  -
    -- stderr
    broken (1 host): failed
    error: the connection to the daemon was lost: REASON
    hint: nothing was changed: repeat the request
    hung (1 host): timed out: no answer within 700ms
    dead (1 host): unreachable: Connection refused (os error 111)
    hosts: 6 targeted = 3 answered + 0 refused + 1 failed + 1 timed out + 1 unreachable + 0 not tried
    ");
    assert_snapshot!(hosts.run(&["get", "absent", "--hosts", "some"]), @"
    exit: 3
    -- stdout
    -- stderr
    web[001-002] (2 hosts, kernel 6.12.1): refused: error: there is no probe `absent`
    dead (1 host): unreachable: Connection refused (os error 111)
    hosts: 3 targeted = 0 answered + 2 refused + 0 failed + 0 timed out + 1 unreachable + 0 not tried
    ");
    assert_snapshot!(hosts.run(&["check", "p:open do_sys_openat2+3", "-L", "role=web"]), @"
    exit: 1
    -- stdout
    web[001-003] (3 hosts, kernel 6.12.1):
    refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0x3
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works

    > +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  +3 is inside of this instruction
    * +5  55              push %rbp              +5 works
    -- stderr
    hosts: 3 targeted = 3 answered + 0 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried
    ");
}

#[test]
fn programs_get_one_record_for_each_host_and_one_of_the_ledger() {
    let hosts = Hosts::start(2);
    for form in ["json", "yaml"] {
        let output =
            hosts.command(&["list", "--hosts", "all", "--timeout", "700ms", "-o", form]).output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        let text = String::from_utf8(output.stdout).unwrap();
        let records: Vec<serde_json::Value> = match form {
            "json" => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            _ => serde_saphyr::from_multiple(&text).unwrap(),
        };
        assert_eq!(records.len(), 6, "{text}");
        let ledger = &records[5]["ledger"];
        assert_eq!((&ledger["targeted"], &ledger["closes"]), (&5.into(), &true.into()));
        let classes = ["answered", "refused", "failed", "timed_out", "unreachable", "not_tried"];
        let of_class = |class: &str| records[..5].iter().filter(|one| one["outcome"] == class).count();
        for class in classes {
            assert_eq!(ledger[class], of_class(class), "{class} in {text}");
        }
        assert_eq!(classes.map(of_class), [2, 0, 1, 1, 1, 0], "{text}");
        let mut names: Vec<_> = records[..5].iter().map(|one| one["host"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["broken", "dead", "hung", "web001", "web002"]);
        for one in records[..5].iter().filter(|one| one["outcome"] == "answered") {
            assert_eq!(one["answer"].as_array().map(Vec::len), Some(2), "{one}");
            assert!(one["kernel"].is_string());
        }
    }
}

#[test]
fn the_answer_of_a_host_is_what_the_command_prints_for_it() {
    let hosts = Hosts::start(1);
    let server = hosts.fakes[0].socket().to_str().unwrap();
    let printed = |arguments: &[&str]| {
        let output = hosts.command(&[arguments, &["-o", "json"]].concat()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (arguments, is_list) in
        [(&["list"][..], true), (&["get", "open"], false), (&["list", "-l", "team=nobody"], true)]
    {
        let alone = printed(&[arguments, &["--server", server]].concat());
        let of_host = printed(&[arguments, &["--hosts", "web001"]].concat());
        // Texts are compared, so that the order of keys is too.
        let wanted = if is_list {
            format!("[{}]", alone.lines().collect::<Vec<_>>().join(","))
        } else {
            serde_json::from_str::<serde_json::Value>(&alone).unwrap().to_string()
        };
        assert!(of_host.contains(&format!(r#""answer":{wanted},"messages""#)), "{wanted}\n{of_host}");
    }
}

#[test]
fn a_hung_host_holds_up_no_other() {
    let hosts = Hosts::start(2);
    let begun = Instant::now();
    let mut child = hosts
        .command(&["list", "--hosts", "hung,web[001-002]", "--timeout", "60s", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        assert!(lines.next().unwrap().unwrap().contains(r#""outcome":"answered""#));
    }
    // Both were printed as they came; an interruption accounts for the third.
    interrupt(&child);
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest[0].contains(r#""host":"hung","outcome":"failed""#), "{rest:?}");
    assert!(rest[1].contains(r#""failed":1"#) && rest[1].contains(r#""closes":true"#), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn too_few_descriptors_are_said_before_anything_is_done() {
    let hosts = Hosts::start(2);
    let limited = |arguments: &str| {
        let script = format!("ulimit -n 65; exec \"$0\" {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_kprobectl")]).env_clear();
        shown(&with(command, &hosts.config(), hosts.directory.path()).output().unwrap())
    };
    assert_snapshot!(limited("observe --hosts some"), @"
    exit: 2
    -- stdout
    -- stderr
    error: 3 connections need 67 open files, and the limit of this process is 65
    hint: raise it (`ulimit -Hn 67` as root), or name fewer hosts, or read their events from NATS (`--from`)
    ");
    assert_snapshot!(limited("list --hosts some"), @"
    exit: 2
    -- stdout
    -- stderr
    error: 6 connections need 70 open files, and the limit of this process is 65
    hint: raise it (`ulimit -Hn 70` as root), or lower `--parallel`
    ");
}

#[test]
fn runs_that_the_kernels_of_many_hosts_skipped_are_in_the_summary() {
    let fakes = [("h1", 1), ("h2", 2)].map(|(name, misses)| {
        let kept = Kept::new("6.12.1");
        kept.define("kprobes/open", "p:kprobes/open do_sys_openat2", "");
        kept.change(|habits| habits.misses = misses);
        (name, Fake::keeping(kept))
    });
    let directory = context(&fakes.each_ref().map(|(name, fake)| (*name, fake.address())));
    let observe = |arguments: &[&str]| {
        let arguments =
            [&["observe", "kprobes/open", "--hosts", "h*", "--for", "500ms"][..], arguments].concat();
        shown(&kprobectl_in(directory.path(), &arguments).output().unwrap())
    };
    let said = observe(&[]);
    assert!(said.contains("  3 runs of `kprobes/open` were skipped by the kernel (NMISSED)"), "{said}");
    let quiet = observe(&["--quiet"]);
    assert!(!quiet.contains("NMISSED"), "{quiet}");
}

#[test]
fn the_rest_of_the_last_run_can_be_asked_again() {
    let hosts = Hosts::start(2);
    let first = hosts.run(&["ledger", "--hosts", "some", "--tolerate", "34%", "-o", "json"]);
    assert!(
        first.contains(r#""answered":2,"refused":0,"failed":0,"timed_out":0,"unreachable":1"#),
        "{first}"
    );
    let rest = hosts.run(&["config", "get-hosts", "--hosts", "@failed", "-o", "json"]);
    assert!(rest.contains(r#""name":"dead""#) && rest.matches("\"name\"").count() == 1, "{rest}");
    // Nothing is tried after the first host without an answer.
    assert_snapshot!(hosts.run(&["doctor", "--hosts", "dead,web[001-002]", "--fail-fast", "--parallel", "1"]), @"
    exit: 4
    -- stdout
    -- stderr
    dead (1 host): unreachable: Connection refused (os error 111)
    web[001-002] (2 hosts): not tried: the run ended before
    hosts: 3 targeted = 0 answered + 0 refused + 0 failed + 0 timed out + 1 unreachable + 2 not tried
    ");
    let again = hosts.run(&["config", "get-hosts", "--hosts", "@failed", "-o", "json"]);
    assert_eq!(again.matches("\"name\"").count(), 3, "{again}");
    hosts.run(&["doctor", "--hosts", "web001"]);
    assert_snapshot!(hosts.run(&["list", "--hosts", "@failed"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: every host of the last run answered, or there was no run: `@failed` names no host
    ");
}

#[test]
fn exit_codes_are_those_of_the_classes() {
    let hosts = Hosts::start(1);
    let exit = |arguments: &[&str]| hosts.command(arguments).output().unwrap().status.code().unwrap();
    assert_eq!(exit(&["list", "--hosts", "web001"]), 0);
    assert_eq!(exit(&["get", "absent", "--hosts", "web001"]), 1);
    assert_eq!(exit(&["get", "absent", "--hosts", "web001", "--tolerate", "1"]), 0, "it has no answer");
    assert_eq!(exit(&["delete", "absent", "--hosts", "web001,dead", "--tolerate", "1"]), 3);
    assert_eq!(
        exit(&["check", "p:x foo+3", "--hosts", "web001"]),
        1,
        "a verdict is an answer, and not success"
    );
    assert_eq!(exit(&["list", "--hosts", "web001,dead"]), 3);
    assert_eq!(exit(&["list", "--hosts", "web001,dead", "--tolerate", "1"]), 0);
    assert_eq!(exit(&["list", "--hosts", "web001,dead", "--tolerate", "49%"]), 3);
    assert_eq!(exit(&["list", "--hosts", "web001,dead,broken"]), 4);
    assert_eq!(exit(&["list", "--hosts", "wbe001"]), 2);
}

#[test]
fn many_changes_are_shown_before_they_are_made() {
    let hosts = Hosts::start(3);
    let file = hosts.directory.path().join("probes.yaml");
    std::fs::write(
        &file,
        "probe: kprobes/open\ndefinition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string\n",
    )
    .unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap(), "--hosts", "web*"];
    assert_snapshot!(hosts.run(&apply), @"
    exit: 2
    -- stdout
    web[001-003] (3 hosts, kernel 6.12.1):
    kprobes/open configured
    -- stderr
    note: this would be done, in the tracing directory:
      echo 1 > instances/kprobed/events/kprobes/open/enable
    note: nothing was changed
    hosts: 3 targeted = 3 answered + 0 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried
    error: this would change 3 hosts, and more than 2 need a confirmation
    hint: add `--yes`
    ");
    // Each daemon was asked once: what it would do.
    assert!(hosts.fakes.iter().all(|fake| fake.changed_at_once().len() == 1));
    let confirmed = hosts.run(&[&apply[..], &["--yes"]].concat());
    assert!(confirmed.starts_with("exit: 0") && confirmed.contains("kprobes/open configured"), "{confirmed}");
    assert!(hosts.fakes.iter().all(|fake| fake.changed_at_once().len() == 3), "judged again, and made");
}

#[test]
fn hosts_share_standard_input() {
    let hosts = Hosts::start(2);
    let file = hosts.directory.path().join("input");
    std::fs::write(&file, "p:open do_sys_openat2\n").unwrap();
    for arguments in [&["check", "-f", "-"][..], &["add", "-f", "-"], &["check", "-"]] {
        let mut command = hosts.command(&[arguments, &["--hosts", "web*", "-o", "json"]].concat());
        let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
        let said = shown(&output);
        assert!(said.starts_with("exit: 0"), "{arguments:?}: {said}");
        let answers = said.lines().filter(|line| line.contains(r#""outcome":"answered""#));
        assert_eq!(answers.filter(|line| line.contains("kprobes/open")).count(), 2, "{arguments:?}: {said}");
    }
}

#[test]
fn every_command_for_a_host_is_one_for_many() {
    let hosts = Hosts::start(2);
    for (arguments, answer) in [
        (&["add", "p:open do_sys_openat2"][..], "kprobes/open"),
        (&["label", "open", "zone=a"], "kprobes/open"),
        (&["disable", "open"], "kprobes/open"),
        (&["enable", "open"], "kprobes/open"),
        (&["delete", "open"], "kprobes/open"),
        (&["audit"], "CreateProbe"),
        (&["version"], "kprobectl"),
        (&["describe", "vfs_read"], "vfs_read"),
    ] {
        let said = hosts.run(&[arguments, &["--hosts", "web*"]].concat());
        assert!(said.starts_with("exit: 0"), "{arguments:?}: {said}");
        assert!(said.contains("web[001-002] (2 hosts, kernel 6.12.1):\n"), "{arguments:?}: {said}");
        assert!(said.contains(answer) && said.contains("2 targeted = 2 answered"), "{arguments:?}: {said}");
    }
    // A change that a host refuses was not made there, whatever the others did.
    let said = hosts.run(&["delete", "absent", "--hosts", "web*,dead", "--yes"]);
    assert!(said.starts_with("exit: 3") && said.contains("0 answered + 2 refused"), "{said}");
}

#[test]
fn what_a_host_did_before_it_refused_is_shown() {
    let hosts = Hosts::start(2);
    let delete = ["delete", "open", "absent", "--hosts", "web*"];
    assert_snapshot!(hosts.run(&delete), @"
    exit: 1
    -- stdout
    web[001-002] (2 hosts, kernel 6.12.1):
    kprobes/open hits=7 nmissed=1
    -- stderr
    web[001-002] (2 hosts, kernel 6.12.1): refused: error: there is no probe `absent`
    hosts: 2 targeted = 0 answered + 2 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried
    ");
    let said = hosts.run(&[&delete[..], &["-o", "json"]].concat());
    let deleted = r#""outcome":"refused","kernel":"6.12.1","answer":[{"name":"kprobes/open""#;
    assert_eq!(said.matches(deleted).count(), 2, "{said}");
}

#[test]
fn a_context_with_several_hosts_has_no_default() {
    let hosts = Hosts::start(1);
    assert_snapshot!(hosts.run(&["list"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the context `test` has 4 hosts, and the command does not say which are meant
    hint: add `--hosts all`, or name the hosts, as in `--hosts 'web[001-480]'`
    ");
    assert_snapshot!(hosts.run(&["audit", "--follow", "--hosts", "all"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: this command talks to one daemon, and `--hosts` or `--host-selector` asks for a fleet
    hint: add `--server ADDRESS` instead: an output without an end, aggregations by name and bundles are of one host
    ");
}

#[test]
fn configurations_are_made_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("new/config.yaml");
    let run = |arguments: &[&str]| {
        let shown = shown(&with(kprobectl(arguments), &config, directory.path()).output().unwrap());
        shown.replace(directory.path().to_str().unwrap(), "DIRECTORY")
    };
    let done = |note: &str| format!("exit: 0\n-- stdout\n-- stderr\nnote: {note}\n");
    assert_eq!(
        run(&["config", "set-context", "prod", "--port", "7443", "--ca", "/etc/ca.pem"]),
        done("the context `prod` is written")
    );
    assert_eq!(
        run(&["config", "set-context", "lab", "--server", "localhost:7443"]),
        done("the context `lab` is written")
    );
    assert_snapshot!(run(&["config", "use-context", "absent"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: there is no context `absent`
    hint: `kprobectl config get-contexts` lists contexts, and `kprobectl config use-context NAME` makes one current
    ");
    assert_eq!(run(&["config", "use-context", "prod"]), done("`prod` is the current context"));
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str(
        "    hosts:\n      web[1-2]: {address: '{}.example.org', labels: {role: web}}\n      db1: {labels: {role: db}}\n    \
         groups:\n      front: ['web*']\n",
    );
    std::fs::write(&config, text).unwrap();
    assert_snapshot!(run(&["config", "get-contexts"]), @"
    exit: 0
    -- stdout
    CURRENT  NAME  HOSTS  SERVER
    -        lab       0  localhost:7443
    *        prod      3  -
    -- stderr
    ");
    assert_snapshot!(run(&["config", "get-hosts"]), @"
    exit: 0
    -- stdout
    NAME  ADDRESS           LABELS    GROUPS
    db1   db1               role=db   -
    web1  web1.example.org  role=web  front
    web2  web2.example.org  role=web  front
    -- stderr
    ");
    assert_snapshot!(run(&["config", "get-hosts", "-L", "role!=web", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"db1","address":"db1","domain":null,"labels":{"role":"db"},"groups":[]}
    -- stderr
    "#);
    // A term of a list is read from standard input, wherever it is in the list.
    let mut child = with(
        kprobectl(&["config", "get-hosts", "--hosts", "web1,-", "-o", "name"]),
        &config,
        directory.path(),
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    child.stdin.take().unwrap().write_all(b"db1\n").unwrap();
    let listed = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "web1\ndb1\n");
    assert_snapshot!(run(&["config", "view"]), @r#"
    exit: 0
    -- stdout
    current_context: prod
    contexts:
      lab:
        server: localhost:7443
      prod:
        ca: /etc/ca.pem
        port: 7443
        hosts:
          db1:
            labels:
              role: db
          "web[1-2]":
            address: "{}.example.org"
            labels:
              role: web
        groups:
          front:
          - web*
    -- stderr
    "#);
    assert_eq!(run(&["config", "delete-context", "lab"]), done("the context `lab` is deleted"));
    assert_snapshot!(run(&["config", "current-context"]), @"
    exit: 0
    -- stdout
    prod
    -- stderr
    ");
    std::fs::write(&config, "contexts:\n  a:\n    prot: 7443\n").unwrap();
    assert_snapshot!(run(&["list"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `DIRECTORY/new/config.yaml` is not a valid configuration: unknown field `prot`, expected one of server, ca, cert, key, domain, port, parallel, confirm_above, inventory, hosts, groups at line 3, column 5
    hint: `kprobectl help config` has an example of the file
    ");
}

#[test]
fn a_context_has_what_was_written_and_not_what_the_environment_says() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let set = |arguments: &[&str]| {
        let mut command = kprobectl_in(directory.path(), &[&["config", "set-context"], arguments].concat());
        command.env("KPROBED_SERVER", "localhost:1").env("KPROBED_CA", "/ca.pem").env("KPROBED_DOMAIN", "d");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        std::fs::read_to_string(&config).unwrap()
    };
    let text = set(&["lab", "--port", "7443"]);
    let of_environment = ["localhost", "ca.pem", "domain"];
    assert!(of_environment.iter().all(|word| !text.contains(word)) && text.contains("7443"), "{text}");
    let text = set(&["lab", "--server", "localhost:1", "--ca", "/own.pem"]);
    assert!(text.contains("server: localhost:1") && text.contains("ca: /own.pem"), "{text}");
    assert!(!text.contains("domain"), "{text}");
}

/// A look at the whole host takes the daemon longer than most commands.
#[test]
fn no_host_is_looked_at_for_the_name_of_its_kernel() {
    let hosts = Hosts::start(2);
    for arguments in [
        &["list", "--hosts", "web*"][..],
        &["check", "p:open do_sys_openat2", "--hosts", "web*"],
        &["ledger", "--hosts", "web*"],
        &["version", "--server", hosts.fakes[0].socket().to_str().unwrap()],
    ] {
        hosts.command(arguments).output().unwrap();
    }
    let views: Vec<_> = hosts.fakes.iter().map(Fake::views).collect();
    assert_eq!(views, [vec![HostView::Basic; 4], vec![HostView::Basic; 3]]);
    // Only a command that shows the whole host asks for it.
    hosts.command(&["doctor", "--hosts", "web002"]).output().unwrap();
    assert_eq!(hosts.fakes[1].views()[3..], [HostView::Basic, HostView::Full]);
}
