use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::*;

#[test]
fn what_a_killed_process_left_is_removed_and_what_is_used_stays() {
    let parent = tempfile::tempdir().unwrap();
    let used = WorkFolder::new(parent.path()).unwrap();
    std::fs::write(used.path().join("rows"), "x").unwrap();
    let killed = WorkFolder::new(parent.path()).unwrap();
    let (path, lock) = (killed.path.clone(), killed.lock.clone());
    std::fs::write(path.join("rows"), "x").unwrap();
    // The lock ends with the process; the folder remains.
    drop(std::mem::ManuallyDrop::new(killed)._held.try_clone().unwrap());
    WorkFolder::sweep(parent.path());
    assert!(path.exists(), "its lock is still held here");
    let lone = parent.path().join("lone.lock");
    File::create(&lone).unwrap();
    std::fs::remove_file(&lock).unwrap();
    WorkFolder::sweep(parent.path());
    assert!(!path.exists() && !lone.exists() && used.path().join("rows").exists());
    let used_path = used.path().to_owned();
    drop(used);
    assert!(!used_path.exists());
    WorkFolder::sweep(&parent.path().join("nothing"));
}

/// The state of a lock before its folder is made, after the clock was set forward by days.
#[test]
fn a_lock_that_is_held_stays_whatever_the_clock_says_of_it() {
    let parent = tempfile::tempdir().unwrap();
    let (_, lock, held) = new_lock(parent.path()).unwrap();
    for at in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_hours(999)] {
        held.set_modified(at).unwrap();
        WorkFolder::sweep(parent.path());
        assert!(lock.exists());
    }
    drop(held);
    WorkFolder::sweep(parent.path());
    assert!(!lock.exists(), "however young it is");
}

#[test]
fn who_begins_while_others_sweep_keeps_what_is_his() {
    let parent = tempfile::tempdir().unwrap();
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while begun.load(Ordering::SeqCst) < 400 {
                    WorkFolder::sweep(parent.path());
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while begun.fetch_add(1, Ordering::SeqCst) < 400 {
                    let own = WorkFolder::new(parent.path()).unwrap();
                    std::fs::write(own.path().join("rows"), "x").unwrap();
                    WorkFolder::sweep(parent.path());
                    assert!(own.path().join("rows").exists() && own.lock.exists());
                }
            });
        }
    });
}

/// The folder to sweep, for the child process of these tests.
const CHILD: &str = "THALWEG_TEST_SWEEPS";

/// Not a test by itself: the next one runs it in another process.
#[test]
fn sweeps_where_it_is_told() {
    if let Some(parent) = std::env::var_os(CHILD) {
        WorkFolder::sweep(Path::new(&parent));
    }
}

/// In its own PID namespace a process sees no other process, and its own id exists outside, too: the same as in a
/// container.
#[test]
fn a_process_of_another_container_removes_what_is_left_over_and_nothing_that_is_used() {
    let parent = tempfile::tempdir().unwrap();
    let used = WorkFolder::new(parent.path()).unwrap();
    let left = parent.path().join("1");
    let own_test = std::env::current_exe().unwrap();
    let sweep = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .args(["work_folder::tests::sweeps_where_it_is_told", "--exact"]);
        command
            .env(CHILD, parent.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let own_test = own_test.to_str().unwrap();
    let alone = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", own_test];
    std::fs::create_dir(&left).unwrap();
    // Where namespaces are not permitted, the child is at least another process.
    assert!(sweep("unshare", &alone) || sweep(own_test, &[]));
    assert!(!left.exists(), "the other process has swept");
    assert!(used.path().is_dir() && used.lock.is_file());
}

#[test]
fn a_temporary_one_is_below_a_folder_that_only_its_user_can_use() {
    let own = WorkFolder::temporary().unwrap();
    let above = own.path().parent().unwrap().metadata().unwrap();
    assert_eq!(above.permissions().mode() & 0o777, 0o700);
    assert_eq!(above.uid(), rustix::process::geteuid().as_raw());
    let another = WorkFolder::temporary().unwrap();
    assert!(own.path().is_dir() && another.path() != own.path());
}

#[test]
fn a_link_that_somebody_has_put_there_is_not_followed_and_open_folders_are_closed() {
    let shared = tempfile::tempdir().unwrap();
    let (elsewhere, link) = (shared.path().join("elsewhere"), shared.path().join("link"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let error = take_private(&link).unwrap_err().to_string();
    assert!(
        error.contains("link is not a folder of this user") && error.contains("set TMPDIR"),
        "{error}"
    );
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o777)).unwrap();
    take_private(&elsewhere).unwrap();
    assert_eq!(elsewhere.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::write(shared.path().join("file"), "x").unwrap();
    take_private(&shared.path().join("file")).unwrap_err();
}
