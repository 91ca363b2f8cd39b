//! Tests of saving: what is there is replaced, refused or written to, and nothing is left behind.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::*;

mod crash;
mod model;

fn save(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    save_file(path, |write| write(bytes))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<String> =
        entries.map(|entry| name(entry).into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn files_and_links_are_replaced_and_no_link_is_followed() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let [file, link, lost] = ["file", "link", "lost"].map(|name| folder.path().join(name));
    save(&file, b"one").expect("a new file");
    symlink(&file, &link).expect("a link");
    symlink(folder.path().join("nowhere"), &lost).expect("a link to nothing");
    for path in [&link, &lost, &link] {
        save(path, b"other").expect("it can be replaced");
        assert!(fs::symlink_metadata(path).expect("it is there").is_file());
        assert_eq!(fs::read(path).expect("it was saved"), b"other");
    }
    assert_eq!(fs::read(&file).expect("it is there"), b"one");
    assert_eq!(names(folder.path()), ["file", "link", "lost"]);
}

#[test]
fn the_mode_of_a_file_is_that_of_any_other_new_one() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let [ours, plain] = ["ours", "plain"].map(|name| folder.path().join(name));
    save(&ours, b"x").expect("a new file");
    fs::write(&plain, b"x").expect("a new file");
    let mode = |path: &Path| path.metadata().expect("it is there").mode();
    assert_eq!(mode(&ours), mode(&plain));
}

#[test]
fn what_is_no_file_is_refused_and_stays() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let [inner, socket, link] = ["inner", "socket", "link"].map(|name| folder.path().join(name));
    fs::create_dir(&inner).expect("a folder");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    symlink(&inner, &link).expect("a link");
    for (path, kind) in [(&inner, "a folder"), (&link, "a folder"), (&socket, "a socket")] {
        let error = save(path, b"x").expect_err("it cannot become a file").to_string();
        assert!(error.contains(kind) && !error.contains('\n'), "{error}");
    }
    let parent = save(&inner.join(".."), b"x");
    assert!(matches!(parent, Err(SaveError::NoFile { .. })), "{parent:?}");
    let nameless = save(&folder.path().join("none/.."), b"x");
    assert!(matches!(nameless, Err(SaveError::NoFileName(_))), "{nameless:?}");
    assert_eq!(names(folder.path()), ["inner", "link", "socket"]);
}

#[test]
fn devices_and_pipes_take_the_bytes_and_stay() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    // A reader and a writer at once, so that nobody waits to open it.
    let reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("opens");
    save(&pipe, b"through").expect("a pipe takes bytes");
    let mut read = [0; 7];
    io::Read::read_exact(&mut &reader, &mut read).expect("they are there");
    assert_eq!(&read, b"through");
    // By links, so that a mistake cannot harm the system's own devices.
    let [null, full] = ["null", "full"].map(|name| folder.path().join(name));
    symlink("/dev/null", &null).expect("a link");
    symlink("/dev/full", &full).expect("a link");
    save(&null, b"gone").expect("it takes everything");
    let failed = save(&full, b"too much");
    assert!(matches!(failed, Err(SaveError::Io { doing: "write", .. })), "{failed:?}");
    for device in [&null, &full] {
        let kind = device.metadata().expect("it is there").file_type();
        assert!(kind.is_char_device(), "{device:?}");
    }
    assert_eq!(names(folder.path()), ["full", "null", "pipe"]);
}

#[test]
fn a_failure_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("file");
    save(&path, b"old").expect("a new file");
    let failed = save_file(&path, |write| {
        write(b"new")?;
        Err(SaveError::NoFileName(PathBuf::from("the content failed")))
    });
    assert!(matches!(failed, Err(SaveError::NoFileName(_))), "{failed:?}");
    let missing = save(&folder.path().join("none/file"), b"x");
    assert!(matches!(missing, Err(SaveError::Io { doing: "create", .. })), "{missing:?}");
    assert_eq!(fs::read(&path).expect("it is there"), b"old");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn unfinished_files_of_the_dead_are_removed_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    // No process has so large a number; this one lives.
    let own = format!(".plan.json.{}.a1B2c3.tmp", std::process::id());
    let dead = ".plan.json.4294967295.a1B2c3.tmp";
    let mut kept =
        [".other.json.4294967295.a.tmp", ".plan.json.4294967295.a", ".plan.json.x.a.tmp"]
            .map(str::to_owned)
            .to_vec();
    kept.push(own);
    for name in kept.iter().map(String::as_str).chain([dead]) {
        fs::write(folder.path().join(name), "half").expect("the folder can be written");
    }
    save(&folder.path().join("plan.json"), b"whole").expect("the folder can be written");
    kept.push("plan.json".to_owned());
    kept.sort();
    assert_eq!(names(folder.path()), kept);
}
