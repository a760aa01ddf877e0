//! A tiny run of everything.

use std::time::Duration;

use super::*;

#[test]
fn a_tiny_run_gives_every_row_and_leaves_nothing() {
    let scale = Scale {
        rounds: 2,
        effort: Duration::from_micros(100),
        pool_length: 64 << 20,
        file_length: 4 << 20,
        names: 50,
        mount_files: [10, 1500],
        flat_files: [10, 200],
    };
    let directory = std::env::temp_dir().join(format!("tako-bench-test-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let options = Options {
        directory: directory.clone(),
        ..Options::default()
    };
    // Without a program no mount is measured, and the report says so.
    let result = run_at(&options, scale);
    let left = std::fs::read_dir(&directory).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    let report = result.unwrap();
    assert_eq!(left, 0);
    let mounted = mounted::WORKLOADS.len() + cluster::WORKLOADS.len();
    assert!(report.rows.len() > workloads().len() - mounted);
    for group in [mounted::GROUP, cluster::GROUP] {
        assert!(report.notes.iter().any(|note| note.name == group));
    }
    // Where there is no adapter, or no memory for it, neither.
    let is_measured = report.rows.iter().any(|row| row.name.contains("verbs"));
    let notes = report.notes.iter().filter(|note| note.name == "verbs");
    assert_eq!(notes.count(), usize::from(!is_measured));
    for row in &report.rows {
        assert!(row.tako.value > 0.0, "{row:?}");
        assert_eq!(row.ratio.is_some(), row.limit.is_some(), "{row:?}");
    }
    assert!(report.to_table(false).contains("4 KiB overwrite"));
}

#[test]
fn unknown_workloads_are_refused() {
    let options = Options {
        only: Some("no such thing".to_owned()),
        ..Options::default()
    };
    assert!(matches!(run(&options), Err(Error::NoWorkload(_))));
}

#[test]
fn unknown_transports_are_not_tuned() {
    let options = |name: &str| Options {
        only: Some(name.to_owned()),
        tune: true,
        // No pool can be made there, for those that are known.
        directory: "/proc/none".into(),
        ..Options::default()
    };
    let error = run(&options("udp")).unwrap_err().to_string();
    let beginning =
        "no transport that can be tuned has 'udp' in its name; choose one of fabric, shm, tcp";
    assert!(error.starts_with(beginning), "{error}");
    for name in ["fabric", "tcp", ""] {
        assert!(matches!(run(&options(name)), Err(Error::Directory { .. })));
    }
    assert_eq!(
        fabric::tuned(Some("tcp")).unwrap(),
        [::fabric::Provider::Tcp]
    );
    // Verbs, too, where there is an adapter.
    assert!(fabric::tuned(None).unwrap().len() >= 2);
}

#[test]
fn scratch_directories_of_several_threads_are_apart() {
    let parent = std::env::temp_dir();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let scratch = scratch::Scratch::new(&parent).unwrap();
                    std::fs::write(scratch.path().join("file"), "").unwrap();
                }
            });
        }
    });
}
