//! Tests of definitions by source lines, and of `lines` and `vars`: the debug information is that of a kernel in
//! miniature (client/lines/tests/fixtures/kernel.c).

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::command::kprobectl;
use super::fake::{Ending, Fake};
use super::merging::context;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lines/tests/fixtures").join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// Exit code, stdout and stderr of a command whose caches are in a directory.
fn run(mut command: Command, caches: &TempDir) -> (i32, String, String) {
    command
        .env("XDG_CACHE_HOME", caches.path())
        .env_remove("DEBUGINFOD_URLS")
        .env_remove("DEBUGINFOD_CACHE_PATH");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn asked(fake: &Fake, arguments: &[&str]) -> (i32, String, String) {
    let caches = tempfile::tempdir().unwrap();
    run(fake.command(arguments), &caches)
}

#[test]
fn a_line_is_traced_as_the_line_of_the_kernel() {
    let fake = Fake::start(Ending::Open);
    let (kernel, sources) = (fixture("kernel.elf"), fixture(""));
    let arguments = ["trace", "main_entry:3 value", "-n", "2", "--debug", &kernel, "--source", &sources];
    let (exit, _, said) = asked(&fake, &arguments);
    assert_eq!(exit, 0, "{said}");
    assert!(said.contains("note: `main_entry:3 value` is `p:main_entry_L3 main_entry+"), "{said}");
    let made = &fake.log_of_holds()[1];
    assert!(made.starts_with("create p:main_entry_L3 main_entry+"), "{made}");
    let origin = "# source: kernel.c:17 main_entry:3 build:0123456789abcdef0123456789abcdef01234567 at:1/1 \
                  args:value near:1/1/1/d7e1c9ca/f301caa7/70dce4f4/00000000 code:d2677d0f text: here += same(value);";
    assert!(made.contains(origin), "{made}");
}

#[test]
fn what_is_not_by_source_needs_no_debug_information() {
    let fake = Fake::start(Ending::Open);
    let (exit, _, said) =
        asked(&fake, &["trace", "p:open do_sys_openat2", "-n", "2", "--debug", "/nonexistent"]);
    assert_eq!(exit, 0, "{said}");
}

#[test]
fn each_place_is_checked() {
    let fake = Fake::start(Ending::Open);
    let (exit, answers, said) =
        asked(&fake, &["check", "same@kernel.c value", "--debug", &fixture("kernel.elf")]);
    assert_eq!(exit, 0, "{said}");
    assert!(said.contains("is `p:same _stext+0 value=%di:u64`"), "{said}");
    assert_eq!(answers.matches("accepted").count(), 1, "{answers}");
    let (_, answers, said) = asked(&fake, &["check", "same $params", "--debug", &fixture("kernel.elf")]);
    assert_eq!(answers.matches("accepted").count(), 2, "{answers} {said}");
}

#[test]
fn debug_information_of_another_build_is_refused() {
    let fake = Fake::start(Ending::Open);
    let (exit, _, said) = asked(&fake, &["check", "main_entry:3", "--debug", &fixture("module-5.o")]);
    assert_eq!(exit, 1, "{said}");
    assert!(said.contains("is not of the kernel 6.12.1 (build 0123456789abcdef"), "{said}");
    // A module is asked for by its name, and this host does not have it.
    let (exit, _, said) = asked(&fake, &["check", "fixture:member:3", "--debug", &fixture("module-5.o")]);
    assert!(exit == 1 && said.contains("the module `fixture` is not loaded"), "{said}");
}

#[test]
fn a_kernel_without_debug_information_says_what_to_fetch() {
    let fake = Fake::start(Ending::Open);
    for command in [&["check", "main_entry:3"][..], &["vars", "main_entry"], &["lines", "main_entry"]] {
        let (exit, _, said) = asked(&fake, command);
        assert_eq!(exit, 1, "{said}");
        for part in [
            "no debug information of the kernel 6.12.1",
            "apt install linux-image-6.12.1-dbg",
            "--debug FILE",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn a_refusal_has_the_reason_and_what_to_write() {
    let fake = Fake::start(Ending::Open);
    let kernel = fixture("kernel.elf");
    for (definition, reason, hint) in [
        ("main_enrty:3", "has no function `main_enrty`", "`main_entry`"),
        ("main_entry:3 valu", "has no variable `valu`", "in scope are `value`"),
        ("main_entry:99", "line 99 of `main_entry`", ""),
        ("kernel.c;*nothing*", "needs the text of `kernel.c`", "sources"),
    ] {
        let (exit, _, said) = asked(&fake, &["check", definition, "--debug", &kernel]);
        assert!(exit == 1 && said.contains(reason) && said.contains(hint), "{definition}: {said}");
    }
}

#[test]
fn lines_and_variables_are_listed() {
    let fake = Fake::start(Ending::Open);
    let (kernel, sources) = (fixture("kernel.elf"), fixture(""));
    let (exit, listed, said) =
        asked(&fake, &["lines", "main_entry", "--debug", &kernel, "--source", &sources]);
    assert_eq!(exit, 0, "{said}");
    assert!(listed.contains("main_entry:3") && listed.contains("here += same(value);"), "{listed}");
    assert!(said.contains("lines of kernel.c, build 0123456789abcdef"), "{said}");
    assert!(said.contains("PROBE of `main_entry` is not known: code"), "{said}");
    let (_, listed, _) = asked(&fake, &["lines", "kernel.c:16-17", "--debug", &kernel, "-o", "json"]);
    let rows: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().all(|row| row["function"] == "main_entry" && row["file"] == "kernel.c"), "{listed}");
    let (exit, listed, said) = asked(&fake, &["vars", "main_entry:3", "--debug", &kernel]);
    assert_eq!(exit, 0, "{said}");
    assert!(listed.starts_with("main_entry+") && listed.contains("value"), "{listed}");
    // Nothing but the list, for programs.
    let form = |form| asked(&fake, &["vars", "main_entry:3", "--debug", &kernel, "-o", form]).1;
    let (csv, names) = (form("csv"), form("name"));
    assert!(csv.starts_with("variable,") && csv.contains("main_entry+"), "{csv}");
    assert!(names.lines().any(|name| name == "value") && !names.contains("main_entry"), "{names}");
}

#[test]
fn a_probe_that_is_held_back_is_offered_at_its_line() {
    let fake = Fake::start(Ending::Open);
    let (kernel, sources) = (fixture("kernel.elf"), fixture(""));
    let port = ["lines", "--port", "kprobes/line"];
    let with_files = ["--debug", &kernel, "--source", &sources];
    let (exit, printed, said) = asked(&fake, &[&port[..], &with_files].concat());
    assert_eq!(exit, 0, "{said}");
    let line = "p:kprobes/line main_entry+18 value=%di:u64 # source: kernel.c:17 main_entry:3 build:0123456789abcdef";
    assert!(printed.starts_with(line) && printed.contains(" text: here += same(value);"), "{printed}");
    for part in [
        "it was kernel.c:16 (main_entry:2): here += same(value);",
        "it is kernel.c:17 (main_entry:3): here += same(value);",
        "carried by the text of the line and of its neighbours",
        "kprobectl lines --port kprobes/line -o yaml | kprobectl apply -f -",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, document, _) = asked(&fake, &[&port[..], &with_files, &["-o", "yaml"]].concat());
    assert!(document.starts_with("probe: kprobes/line\n") && document.contains(line), "{document}");
    // Without the texts the number of the line is in doubt, and without debug information all of it is.
    for (files, reason) in [(&with_files[..2], "have code are others now"), (&[], "no debug information")] {
        let (exit, printed, said) = asked(&fake, &[&port[..], files].concat());
        assert_eq!((exit, printed.as_str()), (0, "p:kprobes/line main_entry+98 value=%bx:u64\n"), "{said}");
        assert!(said.contains(reason) && said.contains("carried by the instructions"), "{said}");
    }
    let (exit, _, said) = asked(&fake, &["lines", "--port", "kprobes/open"]);
    assert!(exit == 1 && said.contains("does not keep a source line"), "{said}");
    let (_, page, _) = asked(&fake, &["get", "kprobes/line"]);
    assert!(page.contains("kprobectl lines --port kprobes/line"), "{page}");
}

#[test]
fn no_daemon_is_needed_with_a_file() {
    let caches = tempfile::tempdir().unwrap();
    let alone = |arguments: &[&str]| {
        run(kprobectl(&[&["--server", "unix:/nonexistent"], arguments].concat()), &caches)
    };
    let (kernel, module) = (fixture("kernel.elf"), fixture("module-5.o"));
    let (exit, printed, said) =
        alone(&["lines", "-D", "member:3 number", "-D", "p:x vfs_read", "--debug", &module]);
    assert_eq!(exit, 0, "{said}");
    let lines: Vec<_> = printed.lines().collect();
    assert!(
        lines[0].starts_with("p:member_L3 fixture:member+11 number=%bx:u32 # source: module.c:29"),
        "{printed}"
    );
    assert_eq!(lines[1], "p:x vfs_read");
    let (_, printed, _) =
        alone(&["lines", "-D", "member:3 number", "-D", "p:x vfs_read", "--debug", &module, "-o", "json"]);
    let objects: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 2, "{printed}");
    assert_eq!(
        (&objects[0]["written"], &objects[0]["definition"]),
        (&"member:3 number".into(), &lines[0].into())
    );
    let (exit, printed, _) = alone(&["vars", "member", "--debug", &kernel, "--debug", &module]);
    assert_eq!((exit, printed.as_str()), (1, ""), "the first file is of a kernel");
    let (exit, printed, said) = alone(&["vars", "fixture:member", "--debug", &kernel, "--debug", &module]);
    assert_eq!(exit, 0, "{said}");
    assert!(printed.contains("number=%si:u32") && printed.contains("struct request *"), "{printed}");
    let (exit, ..) = alone(&["vars", "member"]);
    assert_eq!(exit, 3, "without a file, the daemon is needed");
}

#[test]
fn an_index_does_instead_of_its_file() {
    let fake = Fake::start(Ending::Open);
    let caches = tempfile::tempdir().unwrap();
    let kernel = fixture("kernel.elf");
    let index = caches.path().join("6.12.index");
    let to = index.display().to_string();
    let (exit, printed, said) = run(fake.command(&["lines", "--make-index", &kernel, "--to", &to]), &caches);
    assert_eq!((exit, printed.trim_end()), (0, to.as_str()), "{said}");
    let (exit, _, said) = asked(&fake, &["check", "main_entry:3 value", "--debug", &to]);
    assert!(exit == 0 && said.contains("is `p:main_entry_L3"), "{said}");
    // No host is meant, however many the context has.
    let config = caches.path().join("config.yaml");
    let hosts = "      one: {address: /nonexistent/one}\n      two: {address: /nonexistent/two}\n";
    let context = format!("current_context: test\ncontexts:\n  test:\n    hosts:\n{hosts}");
    std::fs::write(&config, context).unwrap();
    let mut command = kprobectl(&["lines", "--make-index", &kernel, "--to", &to, "-o", "json"]);
    command.env("KPROBECTL_CONFIG", &config);
    let (exit, printed, said) = run(command, &caches);
    assert_eq!(exit, 0, "{said}");
    let made: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(made["path"], to, "{printed}");
    // Kept by build id, it is found without a word.
    let (exit, printed, _) = run(fake.command(&["lines", "--make-index", &kernel]), &caches);
    let kept = caches.path().join("kprobed/lines/0123456789abcdef0123456789abcdef01234567");
    assert_eq!((exit, PathBuf::from(printed.trim_end())), (0, kept));
    let (exit, _, said) = run(fake.command(&["check", "main_entry:3 value"]), &caches);
    assert!(exit == 0 && said.contains("is `p:main_entry_L3"), "{said}");
}

#[test]
fn a_file_and_documents_may_have_lines() {
    let fake = Fake::start(Ending::Open);
    let directory = tempfile::tempdir().unwrap();
    let kernel = fixture("kernel.elf");
    let at = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let lines = at("probes.txt", "p:open do_sys_openat2\nmain_entry:3 value\nmain_entry:99\n");
    let (exit, answers, said) = asked(&fake, &["check", "-f", &lines, "--debug", &kernel]);
    assert_eq!(exit, 1, "{answers} {said}");
    assert!(said.contains("line 3 is refused:") && said.contains("line 99 of `main_entry`"), "{said}");
    let one = at("one.yaml", "probe: kprobes/line\ndefinition: main_entry:3 value\n");
    let (exit, answers, said) = asked(&fake, &["diff", "-f", &one, "--debug", &kernel]);
    assert_eq!(exit, 1, "{said}");
    assert!(answers.contains("p:kprobes/line main_entry+"), "{answers}");
    let two = at("two.yaml", "probe: kprobes/line\ndefinition: same $params\n");
    let (exit, _, said) = asked(&fake, &["apply", "-f", &two, "--debug", &kernel]);
    assert!(exit == 1 && said.contains("two.yaml:2:") && said.contains("has 2 places"), "{said}");
}

/// Answers each request with the debug information of the kernel, and counts them.
fn debuginfod() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let kernel = std::fs::read(fixture("kernel.elf")).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            count.fetch_add(1, Ordering::SeqCst);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", kernel.len());
            stream.write_all(&[head.as_bytes(), &kernel].concat()).unwrap();
        }
    });
    (address, asked)
}

#[test]
fn hosts_of_one_build_share_what_is_fetched() {
    let fakes = ["web0", "web1", "web2"].map(|name| (name, Fake::start(Ending::Open)));
    let context = context(&fakes.each_ref().map(|(name, fake)| (*name, fake.address())));
    let caches = tempfile::tempdir().unwrap();
    let (server, asked) = debuginfod();
    let mut command = kprobectl(&["check", "main_entry:3 value", "--hosts", "all"]);
    command.env("KPROBECTL_CONFIG", context.path().join("config.yaml"));
    command.env("XDG_STATE_HOME", caches.path());
    command.env("XDG_CACHE_HOME", caches.path()).env("DEBUGINFOD_URLS", &server);
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("web[0-2]") && said.contains("is `p:main_entry_L3 main_entry+"), "{said}");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "{said}");
    let kept = "debuginfod_client/0123456789abcdef0123456789abcdef01234567/debuginfo";
    assert!(caches.path().join(kept).exists());
}
