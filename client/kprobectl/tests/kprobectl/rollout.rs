//! Tests of `kprobectl rollout` against daemons that keep probes: some refuse, are dead, or never
//! answer.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use kprobed_client::api::{CheckedMeaning, CheckedValue};
use serde_json::Value;
use tempfile::TempDir;

use super::command::{kprobectl, kprobectl_in};
use super::fake::{Fake, Kept, shown, signal, wait_until};

const WANTED: &str = "\
probe: kprobes/open
definition: p:kprobes/open do_sys_openat2 dfd=$arg1
enabled: true
---
probe: kprobes/read
definition: p:kprobes/read vfs_read
enabled: true
";

struct Fleet {
    directory: TempDir,
    hosts: Vec<(Kept, Fake)>,
}

impl Fleet {
    /// So many hosts `h1`, `h2` and so on with a probe of their own and an older `open`; and
    /// `x-dead`, which is dead.
    fn new(count: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        drop(UnixListener::bind(at("dead")).unwrap());
        let hosts: Vec<_> = (0..count)
            .map(|number| {
                let kept = Kept::new(if number % 2 == 0 { "6.1.0" } else { "6.12.1" });
                kept.define("kprobes/open", "p:kprobes/open do_sys_openat2 old=$arg2", "old != 0");
                kept.define("kprobes/own", "p:kprobes/own vfs_close", "");
                let fake = Fake::keeping(kept.clone());
                (kept, fake)
            })
            .collect();
        let mut text =
            "current_context: test\ncontexts:\n  test:\n    confirm_above: 5\n    hosts:\n".to_owned();
        for (number, (_, fake)) in hosts.iter().enumerate() {
            writeln!(text, "      h{}: {{address: '{}'}}", number + 1, fake.address()).unwrap();
        }
        writeln!(text, "      x-dead: {{address: '{}'}}", at("dead").display()).unwrap();
        std::fs::write(at("config.yaml"), text).unwrap();
        std::fs::write(at("wanted.yaml"), WANTED).unwrap();
        Self { directory, hosts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = kprobectl_in(self.directory.path(), &[&["rollout"], arguments].concat());
        command.current_dir(self.directory.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs `apply` on hosts, with a soak that is short.
    fn apply(&self, hosts: &str, more: &[&str]) -> Output {
        let arguments = ["apply", "-f", "wanted.yaml", "--hosts", hosts, "--soak", "200ms"];
        self.run(&[&arguments[..], more].concat())
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.run(&["status", "-o", "json"]).stdout).unwrap()
    }

    fn shown(&self) -> Vec<Vec<String>> {
        self.hosts.iter().map(|(kept, _)| kept.shown()).collect()
    }

    fn made(&self) -> Vec<usize> {
        self.hosts.iter().map(|(kept, _)| kept.made().len()).collect()
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn waves_follow_each_other_and_an_undo_puts_everything_back() {
    let fleet = Fleet::new(5);
    let before = fleet.shown();
    let done = fleet.apply("h*", &["--waves", "1,40%,100%", "-o", "json"]);
    assert_eq!(code(&done), 0, "{}", shown(&done));
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    let wave = ["intended", "changed", "passed"];
    let wanted = [&["started", "accepted"][..], &wave, &wave, &wave, &["done"]].concat();
    assert_eq!(events, wanted);
    let passed: Vec<_> =
        lines.iter().filter(|line| line["event"] == "passed").map(|line| &line["hosts"]).collect();
    assert_eq!(
        format!("{passed:?}").replace("String", ""),
        r#"[Array [("h1")], Array [("h2")], Array [("h3"), ("h4"), ("h5")]]"#
    );
    let end = lines.last().unwrap();
    assert_eq!((&end["phase"], &end["hosts"][1]["kernel"]), (&"done".into(), &"6.12.1".into()));
    assert_eq!(end["hosts"][0]["figures"]["errors"]["count"], 0);
    let after = [
        "kprobes/open | p:kprobes/open do_sys_openat2 dfd=$arg1 |  | true",
        "kprobes/own | p:kprobes/own vfs_close |  | true",
        "kprobes/read | p:kprobes/read vfs_read |  | true",
    ];
    assert!(fleet.shown().iter().all(|host| *host == after), "{:?}", fleet.shown());

    let undone = fleet.run(&["undo"]);
    assert_eq!(code(&undone), 0, "{}", shown(&undone));
    assert!(shown(&undone).contains("undone: 5 hosts put back as they were"), "{}", shown(&undone));
    assert_eq!(fleet.shown(), before);
    assert_eq!(code(&fleet.run(&["undo"])), 0, "already");
}

/// A second roll-out of the same documents changes nothing, and does not take the way back from the first.
#[test]
fn a_rollout_that_another_one_followed_can_be_undone() {
    let fleet = Fleet::new(2);
    let before = fleet.shown();
    assert_eq!(code(&fleet.apply("h*", &[])), 0);
    for _ in 0..2 {
        let again = fleet.apply("h*", &[]);
        assert_eq!(code(&again), 0, "{}", shown(&again));
    }
    let kept = fleet.path("kprobectl/rollout/test.json.previous");
    let undone = fleet.run(&["undo", "--state", kept.to_str().unwrap()]);
    assert_eq!(code(&undone), 0, "{}", shown(&undone));
    assert_eq!(fleet.shown(), before);
}

#[test]
fn one_host_that_fails_its_gate_puts_all_hosts_back() {
    let fleet = Fleet::new(4);
    let before = fleet.shown();
    fleet.hosts[2].0.change(|habits| habits.misses = 3);
    let failed = fleet.apply("h*", &["--waves", "1,100%"]);
    assert_eq!(code(&failed), 1, "{}", shown(&failed));
    let text = shown(&failed);
    assert!(text.contains("gate failed h3 (1 host): a gate is not passed: h3: misses<=0.1%:"), "{text}");
    assert_eq!(fleet.shown(), before);
    assert_eq!(fleet.made(), [4, 4, 4, 4]);
    // A gate that is wider lets it pass.
    let passed = fleet.apply("h*", &["--waves", "100%", "--gate", "misses<=50%"]);
    assert_eq!(code(&passed), 0, "{}", shown(&passed));
}

#[test]
fn a_refusal_of_the_last_wave_comes_before_any_change() {
    let fleet = Fleet::new(3);
    let before = fleet.shown();
    fleet.hosts[1].0.change(|habits| habits.refuses = Some("vfs_read".to_owned()));
    let refused = fleet.apply("h*", &["--waves", "1,100%"]);
    assert_eq!(code(&refused), 1, "{}", shown(&refused));
    assert!(
        shown(&refused).contains("the change is refused: h2: `kprobes/read`: probe point is not"),
        "{}",
        shown(&refused)
    );
    assert_eq!(fleet.shown(), before);
    assert!(shown(&refused).contains("undone: nothing was changed on any host"), "{}", shown(&refused));
    assert_eq!(fleet.made(), [0, 0, 0]);
    let paused = fleet.apply("h*", &["--waves", "1,100%", "--on-failure", "pause", "--state", "roll.json"]);
    assert_eq!((code(&paused), fleet.made()), (4, vec![0, 0, 0]), "{}", shown(&paused));
    // Who goes on elsewhere knows from the file who has accepted, and asks only the one that has
    // not.
    let status = fleet.run(&["status", "--state", "roll.json", "-o", "json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let steps: Vec<_> = (0..3).map(|host| status["hosts"][host]["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["accepted", "waiting", "accepted"]);
    fleet.hosts[1].0.change(|habits| habits.refuses = None);
    std::fs::rename(fleet.path("roll.json"), fleet.path("moved.json")).unwrap();
    let resumed = fleet.run(&["resume", "--state", "moved.json", "-o", "json"]);
    assert_eq!(code(&resumed), 0, "{}", shown(&resumed));
    let accepted = String::from_utf8(resumed.stdout).unwrap();
    let accepted = accepted.lines().find(|line| line.contains("\"accepted\"")).unwrap();
    let accepted: Value = serde_json::from_str(accepted).unwrap();
    assert_eq!(accepted["hosts"], serde_json::json!(["h2"]));
    assert_eq!(fleet.made(), [2, 2, 2]);
}

#[test]
fn a_plan_asks_all_hosts_and_changes_nothing() {
    let fleet = Fleet::new(4);
    let plan = |more: &[&str]| {
        let arguments = ["plan", "-f", "wanted.yaml", "--waves", "1,100%", "--timeout", "2s"];
        fleet.run(&[&arguments[..], more].concat())
    };
    let good = plan(&["--hosts", "h*"]);
    assert_eq!(code(&good), 0, "{}", shown(&good));
    assert!(shown(&good).contains("accepted  6.12.1"), "{}", shown(&good));
    fleet.hosts[3].0.change(|habits| habits.refuses = Some("vfs_read".to_owned()));
    let refused = plan(&["--hosts", "all", "-o", "json"]);
    assert_eq!(code(&refused), 1, "{}", shown(&refused));
    let record: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(record["phase"], "planned", "it is no roll-out yet");
    let host = |number: usize| {
        let host = &record["hosts"][number];
        (host["step"].as_str().unwrap(), host["wave"].as_u64().unwrap(), host["note"].as_str().unwrap())
    };
    assert_eq!(host(0), ("accepted", 1, ""));
    let (step, wave, note) = host(3);
    assert!(step == "waiting" && wave == 2 && note.starts_with("`kprobes/read`: "), "{step} {wave} {note}");
    assert_eq!(host(4), ("waiting", 2, "Connection refused (os error 111)"));
    assert!(record["reason"].as_str().unwrap().starts_with("the change is refused: h4: "), "{record}");
    // A host that is dead alone is an answer that is missing; both are tolerated if that is asked
    // for.
    fleet.hosts[3].0.change(|habits| habits.refuses = None);
    let missing = plan(&["--hosts", "all"]);
    assert_eq!(code(&missing), 4, "{}", shown(&missing));
    assert!(shown(&missing).contains("no answer: x-dead: Connection refused"), "{}", shown(&missing));
    assert_eq!(code(&plan(&["--hosts", "all", "--tolerate", "1"])), 0);
    assert_eq!(fleet.made(), [0; 4]);
    assert_eq!(code(&fleet.run(&["status"])), 2, "no state was written");
}

#[test]
fn a_host_without_an_answer_lets_it_wait_before_any_change() {
    let fleet = Fleet::new(3);
    let paused = fleet.apply("all", &["--waves", "1,100%", "--timeout", "2s"]);
    assert_eq!(code(&paused), 4, "{}", shown(&paused));
    assert!(shown(&paused).contains("no answer: x-dead: Connection refused"), "{}", shown(&paused));
    assert_eq!(fleet.made(), [0; 3]);
    assert_eq!(code(&fleet.run(&["undo"])), 0);
    let tolerated = fleet.apply("all", &["--waves", "1,100%", "--tolerate", "1"]);
    assert_eq!(code(&tolerated), 0, "{}", shown(&tolerated));
    assert_eq!(fleet.made(), [2; 3]);
}

/// Hosts become unwell while their wave is watched: that is a failure, and a pause for another reason forgives nothing.
#[test]
fn what_goes_wrong_before_a_resume_counts_after_it() {
    let fleet = Fleet::new(2);
    let before = fleet.shown();
    fleet.hosts[1].0.change(|habits| habits.loss_is_shared = true);
    let paused = fleet.apply("h*", &["--waves", "100%"]);
    assert_eq!(code(&paused), 4, "{}", shown(&paused));
    fleet.hosts[1].0.change(|habits| habits.loss_is_shared = false);
    fleet.hosts[0].0.change(|habits| habits.is_ill = true);
    let failed = fleet.run(&["resume"]);
    assert_eq!(code(&failed), 1, "{}", shown(&failed));
    let text = shown(&failed);
    assert!(text.contains("h1: health: the check `instance_exists` of `kprobectl doctor` fails"), "{text}");
    assert_eq!(fleet.shown(), before);
    // It was so before: this roll-out has not done it.
    let passed = fleet.apply("h*", &["--waves", "100%"]);
    assert_eq!(code(&passed), 0, "{}", shown(&passed));
}

#[test]
fn a_daemon_that_is_started_anew_while_its_wave_is_watched_lets_it_wait() {
    let fleet = Fleet::new(2);
    let arguments = [
        "apply",
        "-f",
        "wanted.yaml",
        "--hosts",
        "h*",
        "--waves",
        "100%",
        "--soak",
        "2s",
        "--state",
        "roll.json",
    ];
    let client = fleet.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the change of h2", || fleet.made()[1] == 2);
    fleet.hosts[1].0.change(|habits| habits.restarts = 1);
    let paused = client.wait_with_output().unwrap();
    assert_eq!(code(&paused), 4, "{}", shown(&paused));
    let reason = "data is missing: h2: the daemon was started again";
    assert!(shown(&paused).contains(reason), "{}", shown(&paused));
    let resumed = fleet.run(&["resume", "--state", "roll.json"]);
    assert_eq!(code(&resumed), 0, "{}", shown(&resumed));
}

#[test]
fn missing_data_pauses() {
    let fleet = Fleet::new(2);
    fleet.hosts[1].0.change(|habits| habits.loss_is_shared = true);
    let paused = fleet.apply("h*", &["--waves", "100%"]);
    assert_eq!(code(&paused), 4, "{}", shown(&paused));
    assert!(
        shown(&paused).contains("data is missing: h2: loss of `kprobes/open`: the host does not know it")
    );
    assert_eq!(fleet.status()["phase"], "paused");
    // Another one does not begin over it.
    let second = fleet.apply("h*", &[]);
    assert!(
        code(&second) == 2 && shown(&second).contains("has a roll-out that is paused"),
        "{}",
        shown(&second)
    );
    fleet.hosts[1].0.change(|habits| habits.loss_is_shared = false);
    let resumed = fleet.run(&["resume"]);
    assert_eq!(code(&resumed), 0, "{}", shown(&resumed));

    let dead = fleet.apply("all", &["--waves", "100%", "--timeout", "2s"]);
    assert_eq!(code(&dead), 4, "{}", shown(&dead));
    assert!(shown(&dead).contains("no answer: x-dead: Connection refused"), "{}", shown(&dead));
    assert_eq!(code(&fleet.run(&["undo"])), 0);
    let tolerated = fleet.apply("all", &["--waves", "100%", "--tolerate", "1"]);
    assert_eq!(code(&tolerated), 0, "{}", shown(&tolerated));
    assert!(shown(&tolerated).contains("done: 2 of 3 hosts passed, 1 left out"), "{}", shown(&tolerated));
}

#[test]
fn a_client_that_is_killed_is_followed_by_another_one() {
    let fleet = Fleet::new(3);
    fleet.hosts[1].0.change(|habits| habits.never_answers = true);
    let mut client = fleet
        .command(&[
            "apply",
            "-f",
            "wanted.yaml",
            "--hosts",
            "h*",
            "--waves",
            "1,100%",
            "--soak",
            "200ms",
            "--state",
            "roll.json",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the change of h2", || fleet.made()[1] == 2);
    let running = fleet.run(&["resume", "--state", "roll.json"]);
    assert!(
        code(&running) == 2 && shown(&running).contains("another `kprobectl rollout` works on"),
        "{}",
        shown(&running)
    );
    client.kill().unwrap();
    client.wait().unwrap();
    fleet.hosts[1].0.change(|habits| habits.never_answers = false);
    // Another machine: another file name, and no configuration.
    std::fs::rename(fleet.path("roll.json"), fleet.path("moved.json")).unwrap();
    let mut elsewhere = kprobectl(&["rollout", "resume", "--state", "moved.json"]);
    let resumed = elsewhere.current_dir(fleet.directory.path()).env("HOME", "/nowhere").output().unwrap();
    assert_eq!(code(&resumed), 0, "{}", shown(&resumed));
    assert_eq!(fleet.made(), [2, 2, 2], "each change was made once");
}

#[test]
fn a_client_that_runs_can_be_interrupted() {
    let fleet = Fleet::new(2);
    let arguments = [
        "apply",
        "-f",
        "wanted.yaml",
        "--hosts",
        "h*",
        "--waves",
        "1,100%",
        "--soak",
        "60s",
        "--state",
        "roll.json",
    ];
    let client = fleet.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the change of h1", || fleet.made()[0] == 2);
    let ended_by_a_signal = |client: Child, name| {
        signal(&client, name);
        let interrupted = client.wait_with_output().unwrap();
        assert_eq!(code(&interrupted), 4, "{}", shown(&interrupted));
        let text = shown(&interrupted);
        assert!(text.contains("paused: its client was interrupted"), "{text}");
        assert!(text.contains("rollout resume --state"), "{text}");
    };
    ended_by_a_signal(client, "-TERM");
    let status = shown(&fleet.run(&["status", "--state", "roll.json"]));
    assert!(status.contains("paused") && status.contains("its client was interrupted"), "{status}");

    let resume = || fleet.command(&["resume", "--state", "roll.json"]);
    fleet.hosts[0].0.change(|habits| habits.loss_is_shared = true);
    let paused = resume().output().unwrap();
    assert_eq!(code(&paused), 4, "{}", shown(&paused));
    assert!(shown(&paused).contains("data is missing: h1"), "{}", shown(&paused));
    fleet.hosts[0].0.change(|habits| habits.loss_is_shared = false);
    let mut client = resume().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("resumed"), "{first}");
    ended_by_a_signal(client, "-INT");
    assert_eq!(code(&fleet.run(&["undo", "--state", "roll.json"])), 0);
    assert_eq!(fleet.made(), [4, 0]);
}

#[test]
fn hosts_that_would_record_different_things_are_shown_side_by_side() {
    let fleet = Fleet::new(3);
    for (kept, first) in [
        (0, "struct user_namespace *mnt_userns"),
        (1, "struct inode *dir"),
        (2, "struct user_namespace *mnt_userns"),
    ] {
        let value = CheckedValue {
            argument: "d".to_owned(),
            written: "%di".to_owned(),
            meaning: format!("parameter {first}"),
            parameter: first.rsplit('*').next().unwrap().to_owned(),
        };
        let prototype = format!("int vfs_unlink({first}, struct inode *dir)");
        let meaning = CheckedMeaning { prototype, values: vec![value], code: String::new() };
        fleet.hosts[kept].0.change(|habits| habits.meaning = Some(meaning));
    }
    let run = |arguments: &[&str]| {
        let mut command = kprobectl_in(fleet.directory.path(), arguments);
        command.current_dir(fleet.directory.path()).output().unwrap()
    };
    let check = ["check", "p:u vfs_unlink d=%di", "--hosts", "h*"];
    let warned = run(&check);
    assert_eq!(code(&warned), 0, "{}", shown(&warned));
    let text = shown(&warned);
    let wanted = "\
warning: `p:u vfs_unlink d=%di` is taken by all of these kernels, and does not record the same on them:
  6.1.0 (h[1,3], 2 hosts): int vfs_unlink(struct user_namespace *mnt_userns, struct inode *dir)
    d=%di: parameter struct user_namespace *mnt_userns
  6.12.1 (h2, 1 host): int vfs_unlink(struct inode *dir, struct inode *dir)
    d=%di: parameter struct inode *dir
hint: `d=dir` records on all of them what `%di` does on 6.12.1
hosts: 3 targeted = 3 answered";
    assert!(text.contains(wanted), "{text}");
    assert_eq!(code(&run(&[&check[..], &["--strict"]].concat())), 1);
    let records = String::from_utf8(run(&[&check[..], &["-o", "json"]].concat()).stdout).unwrap();
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 5, "three hosts, the contrast and the ledger");
    let contrast = &records[3]["contrast"];
    assert_eq!(
        (&contrast["records"], &contrast["groups"][0]["hosts"]),
        (&"differs".into(), &serde_json::json!(["h1", "h3"]))
    );
    assert_eq!(records[0]["answer"]["meaning"]["values"][0]["written"], "%di");
    let dry = run(&["apply", "-f", "wanted.yaml", "--dry-run", "--strict", "--hosts", "h*"]);
    assert!(
        code(&dry) == 1 && shown(&dry).matches("does not record the same").count() == 2,
        "{}",
        shown(&dry)
    );
    // Also where the probe is there already, and nothing changes.
    let own = "probe: kprobes/own\ndefinition: p:kprobes/own vfs_close\n";
    std::fs::write(fleet.path("own.yaml"), own).unwrap();
    let same = shown(&run(&["apply", "-f", "own.yaml", "--dry-run", "--strict", "--hosts", "h*"]));
    assert!(same.contains("exit: 1") && same.contains("kprobes/own unchanged"), "{same}");
    assert!(same.contains("does not record the same"), "{same}");
    assert_eq!(fleet.made(), [0; 3]);
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn a_change_that_nobody_reads_of_is_made_on_all_hosts_and_has_its_exit_code() {
    let fleet = Fleet::new(2);
    let run = |arguments: &[&str], stdout: Stdio| {
        let mut command = kprobectl_in(fleet.directory.path(), arguments);
        command.current_dir(fleet.directory.path()).stdout(stdout).output().unwrap()
    };
    let apply = |hosts| ["apply", "-f", "wanted.yaml", "--parallel", "1", "-o", "json", "--hosts", hosts];
    assert_eq!(code(&run(&apply("h*"), closed())), 0);
    assert_eq!(fleet.made(), [2, 2]);
    assert_eq!(code(&run(&apply("all"), closed())), 3, "one host is dead");
    let delete = ["delete", "kprobes/own", "--parallel", "1", "-o", "json", "--hosts", "h*"];
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let unwritten = run(&delete, full.into());
    assert!(
        code(&unwritten) == 1 && shown(&unwritten).contains("cannot write standard output"),
        "{}",
        shown(&unwritten)
    );
    assert_eq!(fleet.made(), [3, 3]);
    let address = fleet.hosts[0].1.address();
    for place in [["--hosts", "h*"], ["--server", address.as_str()]] {
        let check = [&["check", "p:open do_sys_openat2+3"][..], &place].concat();
        assert_eq!(code(&run(&check, closed())), 1, "{place:?}");
    }
}

#[test]
fn a_rollout_that_nobody_reads_of_pauses() {
    let fleet = Fleet::new(2);
    let apply = ["apply", "-f", "wanted.yaml", "--hosts", "h*", "--soak", "200ms"];
    let unread = fleet.command(&apply).stdout(closed()).output().unwrap();
    assert_eq!(code(&unread), 4, "{}", shown(&unread));
    assert!(shown(&unread).contains("cannot write standard output"), "{}", shown(&unread));
    let status = shown(&fleet.run(&["status"]));
    assert!(status.contains("paused") && status.contains("cannot write standard output"), "{status}");
    assert_eq!(code(&fleet.run(&["resume"])), 0);
    assert_eq!(fleet.made(), [2, 2]);
}

#[test]
fn mistakes_and_plans_change_nothing() {
    let fleet = Fleet::new(6);
    let says = |output: Output, exit: i32, text: &str| {
        assert!(code(&output) == exit && shown(&output).contains(text), "{text}: {}", shown(&output));
    };
    says(fleet.apply("h*", &[]), 2, "this would change 6 hosts, and more than 5 need a confirmation");
    says(fleet.run(&["plan", "-f", "wanted.yaml", "--hosts", "h*"]), 0, "1 of 2 (1,5%,100%)");
    says(fleet.apply("h*", &["--waves", "1,50%"]), 2, "the last wave reaches 3 of 6 hosts: end with `100%`");
    says(fleet.apply("h*", &["--gate", "lost<=1"]), 2, "`lost<=1` is not a gate");
    let short = ["apply", "-f", "wanted.yaml", "--hosts", "h*", "--soak", "1ms"];
    says(fleet.run(&short), 2, "too short to read a rate");
    says(fleet.run(&["apply", "-f", "wanted.yaml"]), 2, "the context `test` has 7 hosts");
    says(fleet.run(&["status"]), 2, "cannot read `");
    std::fs::write(fleet.path("bad.json"), "{\"format\": 9}").unwrap();
    says(
        fleet.run(&["resume", "--state", "bad.json"]),
        2,
        "it has the form 9, and this command reads the form 1",
    );
    std::fs::write(fleet.path("bad.json"), b"\xff\xfe{").unwrap();
    says(fleet.run(&["undo", "--state", "bad.json"]), 2, "it is not the state of a roll-out");
    assert_eq!(fleet.made(), [0; 6]);
}
