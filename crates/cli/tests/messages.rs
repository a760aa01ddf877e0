//! The texts of help and errors, as snapshots under `snapshots`. After an intended change, run the test with
//! `INSTA_UPDATE=always` and review the difference.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::{Scratch, run, tako};
use insta::assert_snapshot;

/// Commands with a snapshot of their help.
const COMMANDS: [&str; 29] = [
    "mkfs",
    "mount",
    "umount",
    "mounts",
    "check",
    "grow",
    "info",
    "up",
    "down",
    "status",
    "serve",
    "keys",
    "ls",
    "stat",
    "cat",
    "cp",
    "mv",
    "rm",
    "mkdir",
    "ln",
    "chmod",
    "chown",
    "truncate",
    "du",
    "df",
    "tree",
    "bench",
    "completions",
    "man",
];

#[test]
fn help_is_as_reviewed() {
    assert_snapshot!("help", tako(&["--help"]).ended(0));
    for command in COMMANDS {
        let help = tako(&[command, "--help"]).ended(0);
        assert_snapshot!(format!("help-{command}"), help);
    }
}

/// The sentences of failing commands. Each is one line that begins with `tako: ` and states what to do.
#[test]
fn errors_are_as_reviewed() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "4M");
    let inside = |path: &str| format!("{pool}:{path}");
    tako(&["mkdir", "-p", &inside("/d/e")]).ended(0);
    let host = scratch.path("host");
    fs::write(&host, vec![1; 8 << 20]).unwrap();
    let mut said = String::new();
    for arguments in [
        &["ls", &inside("/none")][..],
        &["cat", &inside("/d")],
        &["cat", &inside("/none/x")],
        &["cat", &inside(&format!("/{}", "n".repeat(256)))],
        &["cp", &host, &inside("/large")],
        &["cp", &scratch.path("none"), &inside("/x")],
        &["cp", &inside("/d"), &scratch.path("x")],
        &["cp", &inside("/large"), "/dev/full"],
        &["cp", &inside("/large"), "/proc/none/x"],
        &["mkdir", &inside("/d")],
        &["rm", &inside("/d")],
        &["rm", "-d", &inside("/d")],
        &["mv", &inside("/d"), &inside("/d/e/f")],
        &["ln", &inside("/none"), &inside("/x")],
        &["mkfs", &pool, "--size", "4M"],
        &["mkfs", &host, "--size", "4M"],
        &["mount", &pool, &scratch.path("none")],
        &["umount", &scratch.path("none")],
        &["info", &scratch.path("none")],
        &["info", &host],
        &["check", &scratch.path("none")],
        &["grow", &pool, "--size", "2M"],
    ] {
        let sentence = tako(arguments).ended(1);
        let shown = arguments.join(" ");
        said += &format!("$ tako {shown}\n{sentence}");
        assert!(sentence.contains("; "), "no advice: {sentence}");
    }
    for arguments in [
        &["mount", "-o", "sync,cache=writeback", &pool, "/mnt"][..],
        &["mount", "-o", "strictatime,cache=writeback", &pool, "/mnt"],
        &["mount", &pool],
        &["chmod", "u+q", &inside("/d")],
        &["chown", "no-such-user", &inside("/d")],
        &["mv", &inside("/d"), "b.pool:/d"],
        &["cp", "a", "b"],
    ] {
        let sentence = tako(arguments).ended(2);
        said += &format!("$ tako {}\n{sentence}", arguments.join(" "));
    }
    // Those of the command line say where its help is, too.
    for arguments in [&["du", &pool][..], &["ls", "-Z", &inside("/")], &["sing"]] {
        let run = tako(arguments);
        assert_eq!((run.code, &*run.out), (Some(2), ""), "{arguments:?}");
        assert!(run.err.starts_with("tako: "), "{}", run.err);
        said += &format!("$ tako {}\n{}", arguments.join(" "), run.err);
    }
    let name = "n".repeat(256);
    let said = said
        .replace(&scratch.path(""), "DIR/")
        .replace(&name, "NAME");
    assert_snapshot!("errors", said);
}

#[test]
fn completions_and_manual_pages_name_all_commands() {
    let scratch = Scratch::new();
    let script = tako(&["completions", "bash"]).ended(0);
    let directory = scratch.path("man");
    tako(&["man", &directory]).ended(0);
    for command in COMMANDS {
        assert!(script.contains(command), "{command}");
        let page = fs::read_to_string(format!("{directory}/tako-{command}.1")).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
}

/// `script` runs a command on a terminal. A command that is shorter than a second shows its progress only if nothing can be
/// known about its end, as that of a check.
#[test]
fn progress_is_shown_on_a_terminal_only() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "4M");
    let shown = |command: &str| {
        let mut script = Command::new("script");
        script
            .args(["-qec", command, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null());
        let output = run(&mut script);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {text}");
        text
    };
    let check = format!("{} check {pool}", env!("CARGO_BIN_EXE_tako"));
    let on_terminal = shown(&check);
    assert!(on_terminal.contains("checking "), "{on_terminal}");
    assert!(on_terminal.contains("directories: 1"), "{on_terminal}");
    let into_pipe = shown(&format!("{check} 2>&1 | cat"));
    assert!(!into_pipe.contains("checking "), "{into_pipe}");
    assert!(into_pipe.contains("directories: 1"), "{into_pipe}");
}
