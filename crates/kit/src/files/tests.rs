use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_made_is_its_users_alone() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a/b/c");
    create_folders(&deep).unwrap();
    create_folders(&deep).unwrap();
    assert_eq!((mode(&root.path().join("a")), mode(&deep)), (0o700, 0o700));
    let one = root.path().join("one");
    create_folder(&one).unwrap();
    assert_eq!(mode(&one), 0o700);
    assert_eq!(create_folder(&one).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let file = deep.join("file");
    private().write(true).create_new(true).open(&file).unwrap();
    assert_eq!(mode(&file), 0o600);
    write_whole(&deep.join("note"), b"x").unwrap();
    assert_eq!(mode(&deep.join("note")), 0o600);
}

#[test]
fn what_others_may_read_is_as_the_folder_that_it_is_in() {
    let root = tempfile::tempdir().unwrap();
    // The umask of the tests takes only the write bits of others.
    for (above, folder, file) in [
        (0o700, 0o700, 0o600),
        (0o750, 0o750, 0o640),
        (0o755, 0o755, 0o644),
        (0o777, 0o755, 0o644),
    ] {
        set_mode(root.path(), above);
        let path = root.path().join(format!("{above:o}"));
        create_folder_as_above(&path).unwrap();
        assert_eq!(mode(&path), folder, "{above:o}");
        set_mode(root.path(), above);
        let path = root.path().join(format!("file-{above:o}"));
        as_above(&path).write(true).create_new(true).open(&path).unwrap();
        assert_eq!(mode(&path), file, "{above:o}");
    }
}

#[test]
fn a_file_of_an_operator_keeps_its_link_its_owner_its_group_and_its_mode() {
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};
    let root = tempfile::tempdir().unwrap();
    let (real, link) = (root.path().join("real"), root.path().join("tokens"));
    symlink(&real, &link).unwrap();
    // The target of the link does not exist yet.
    replace_whole(&root.path().join("new"), b"x").unwrap();
    assert_eq!(mode(&root.path().join("new")), 0o600);
    std::fs::write(&real, "first").unwrap();
    // Only root may give a file to others. For any other user the test keeps the own ids.
    let is_root = rustix::process::geteuid().is_root();
    let (owner, group) = match is_root {
        true => (4711, 4712),
        false => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    };
    chown(&real, Some(owner), Some(group)).unwrap();
    set_mode(&real, 0o640);
    replace_whole(&link, b"second").unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let about = std::fs::metadata(&real).unwrap();
    assert_eq!((about.uid(), about.gid(), mode(&real)), (owner, group, 0o640));
    assert_eq!(std::fs::read(&real).unwrap(), b"second");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 3);
}

#[test]
fn a_file_has_all_of_its_new_bytes_or_those_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("note");
    write_whole(&path, b"first").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    // A process was killed while it wrote. The hard link shows whether the file itself is overwritten.
    std::fs::write(beside(&path), "seco").unwrap();
    let other_name = folder.path().join("other");
    std::fs::hard_link(&path, &other_name).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    write_whole(&path, b"second").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"second");
    assert_eq!(std::fs::read(&other_name).unwrap(), b"first");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    // The temporary file cannot be created.
    std::fs::create_dir(beside(&path)).unwrap();
    assert!(write_whole(&path, b"third").is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"second");
    write_whole(&path, b"second").unwrap();
}

#[test]
fn one_that_is_as_it_should_be_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("note");
    write_whole(&path, b"same").unwrap();
    let written = std::fs::metadata(&path).unwrap().ino();
    write_whole(&path, b"same").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), written);
}

#[test]
fn what_others_could_read_is_closed_to_them_once_and_nothing_else_is_touched() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    std::fs::create_dir_all(path("log/deep/er")).unwrap();
    std::fs::create_dir_all(path("mine")).unwrap();
    for (name, mode) in [
        ("log/1", 0o644),
        ("log/deep/er/2", 0o666),
        ("log/3", 0o600),
        ("log/run", 0o755),
        ("mine/4", 0o644),
    ] {
        std::fs::write(path(name), name).unwrap();
        set_mode(&path(name), mode);
    }
    for (name, mode) in [
        ("", 0o755),
        ("log", 0o775),
        ("log/deep", 0o700),
        ("log/deep/er", 0o777),
        ("mine", 0o755),
    ] {
        set_mode(&path(name), mode);
    }
    // Inner links lead out of the folder. A link in place of a top-level name was put there by the operator.
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("5"), "5").unwrap();
    set_mode(&outside.path().join("5"), 0o644);
    set_mode(outside.path(), 0o755);
    std::os::unix::fs::symlink(outside.path().join("5"), path("log/link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), path("log/deep/out")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    set_mode(elsewhere.path(), 0o755);
    std::os::unix::fs::symlink(elsewhere.path(), path("keys")).unwrap();

    let names = ["log", "keys", "lake"];
    let first = mend(root.path(), &names).unwrap();
    assert_eq!((first.files, first.folders, &first.left[..]), (3, 3, &[][..]));
    for (name, expected) in [
        // The folder has other entries, so it stays open.
        ("", 0o755),
        ("log", 0o700),
        ("log/deep/er", 0o700),
        ("log/1", 0o600),
        ("log/deep/er/2", 0o600),
        ("log/run", 0o700),
        ("mine", 0o755),
        ("mine/4", 0o644),
    ] {
        assert_eq!(mode(&path(name)), expected, "{name}");
    }
    assert_eq!((mode(outside.path()), mode(&outside.path().join("5"))), (0o755, 0o644));
    assert_eq!(mode(elsewhere.path()), 0o700);
    assert!(mend(root.path(), &names).unwrap().is_nothing());
}

#[test]
fn a_data_folder_may_be_a_link() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    set_mode(outside.path(), 0o755);
    let link = root.path().join("data");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    assert_eq!(mend(&link, &["log"]).unwrap().folders, 1);
    assert_eq!(mode(outside.path()), 0o700);
}
