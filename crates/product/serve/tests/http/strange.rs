// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files, names and users that are not what a server meets every day.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, setresuid};

use crate::client::{Client, FILE_BYTES, Folder, content};
use crate::writers::Over;

/// What a child of this file's tests does; the first word says which, the second is its folder.
pub const CHILD: &str = "ERB_SERVE_TEST_CHILD";

/// On tmpfs it is too long to be mapped, on a disk only long.
#[test]
fn sparse_files_beyond_all_memory_are_served_where_they_are_asked_for() {
    for above in [Path::new("/dev/shm").to_owned(), std::env::temp_dir()] {
        sparse(&above);
    }
}

fn sparse(above: &Path) {
    let dir = tempfile::tempdir_in(above).expect("a folder");
    let folder = Folder::serve_root(dir.path(), dax_send::Options::default());
    let path = dir.path().join("sparse");
    let file = File::create(&path).expect("a file");
    // As long as this file system lets it be.
    let mut length = 1_u64 << 62;
    while file.set_len(length).is_err() {
        length /= 2;
    }
    println!("{} TiB in {}", length >> 40, above.display());
    assert!(length > 8 << 30, "{length}");
    file.write_all_at(b"beyond four gigabytes", 5 << 30)
        .expect("room");
    drop(file);
    let mut client = Client::connect(&folder);
    let head = client.ask("HEAD", "/sparse", "");
    assert_eq!(head.field("content-length"), Some(&*length.to_string()));
    // More often than a file is asked for before it is mapped.
    for _ in 0..5 {
        let at = 5_u64 << 30;
        let range = format!("Range: bytes={at}-{}\r\n", at + 20);
        assert_eq!(client.get("/sparse", &range).body, b"beyond four gigabytes");
        let range = format!("Range: bytes={}-{}\r\n", at - 200_000, at + 99_999);
        let part = client.get("/sparse", &range);
        assert_eq!(part.body.len(), 300_000);
        assert_eq!(&part.body[200_000..200_006], b"beyond");
        let last = client.get("/sparse", "Range: bytes=-3\r\n");
        assert_eq!((last.status, &*last.body), (206, &[0; 3][..]));
    }
    fs::remove_file(path).expect("removed");
}

#[test]
fn a_folder_of_the_indexs_name_is_no_index() {
    let folder = Folder::serve();
    fs::create_dir(folder.root().join("sub/index.html")).expect("a folder");
    let mut client = Client::connect(&folder);
    assert_eq!(client.get("/sub/", "").status, 404);
    let told = client.get("/sub/index.html", "");
    assert_eq!(
        (told.status, told.field("location")),
        (301, Some("/sub/index.html/"))
    );
}

#[test]
fn names_of_any_bytes_are_found_as_they_were_encoded() {
    let folder = Folder::serve();
    let names: [&[u8]; 7] = [
        b"with space",
        b"per%25cent?query#part",
        b"\xff\xfe not UTF-8",
        b"new\nline\r",
        b"\\..\\back",
        "\u{fc}ml\u{e4}ut".as_bytes(),
        &[b'x'; 255],
    ];
    for name in names {
        fs::write(folder.root().join(OsStr::from_bytes(name)), name).expect("a file");
        let encoded: String = name.iter().map(|byte| format!("%{byte:02x}")).collect();
        let answer = Client::connect(&folder).get(&format!("/{encoded}"), "");
        assert_eq!((answer.status, &*answer.body), (200, name), "{encoded}");
    }
    let long = format!("/{}", "x".repeat(256));
    assert_eq!(Client::connect(&folder).get(&long, "").status, 404);
    let deep = "/x".repeat(3000);
    assert_eq!(Client::connect(&folder).get(&deep, "").status, 404);
}

/// What the kernel makes up as it is read: no length that is true, no mapping, for some no sendfile.
#[test]
fn files_of_proc_and_sys_are_answered_or_reset_and_end_nothing() {
    let notes = fs::read("/sys/kernel/notes").unwrap_or_default();
    for (root, path, length, is_whole) in [
        ("/proc/sys/kernel", "/ostype", 0, true),
        ("/proc/self", "/status", 0, true),
        (
            "/sys/kernel/mm/transparent_hugepage",
            "/enabled",
            4096,
            false,
        ),
        ("/sys/kernel", "/notes", notes.len(), true),
    ] {
        if !Path::new(&format!("{root}{path}")).exists() {
            erb_steady::skipped(format_args!("no {root}{path}"));
            continue;
        }
        let folder = Folder::serve_root(Path::new(root), dax_send::Options::default());
        for _ in 0..5 {
            let mut client = Client::connect(&folder);
            let head = client.ask("HEAD", path, "");
            let told = head.field("content-length").map(str::to_owned);
            assert_eq!((head.status, told), (200, Some(length.to_string())));
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            client
                .stream
                .write_all(request.as_bytes())
                .expect("written");
            // What says 4,096 bytes and has fewer must not look whole.
            let answer = client.answer(true);
            assert_eq!(answer.is_some(), is_whole, "{path}: {answer:?}");
            if path == "/notes" {
                assert!(answer.is_some_and(|it| it.body == notes));
            }
        }
        assert_eq!(Client::connect(&folder).get("/missing", "").status, 404);
        folder.stop();
    }
}

/// Of a link that is swapped all the time.
const SWAPPED_ASKS: u32 = 3000;

#[test]
fn links_that_are_swapped_while_they_are_followed_never_lead_out() {
    let folder = Folder::serve();
    let root = folder.root();
    let outside = folder.dir.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("x.txt"), "secret").expect("a file");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            let (link, new) = (root.join("swapped"), root.join("new"));
            while !over.load(Relaxed) {
                for target in ["sub", "../outside"] {
                    symlink(target, &new).expect("a link");
                    fs::rename(&new, &link).expect("renamed");
                }
            }
        });
        let mut counts = [0_u32; 2];
        let mut client = Client::connect(&folder);
        let asks = erb_steady::scaled(SWAPPED_ASKS, 50 * SWAPPED_ASKS);
        while counts[0] + counts[1] < asks || counts[0] == 0 {
            let answer = client.get("/swapped/x.txt", "");
            match answer.status {
                200 => assert_eq!(answer.body, b"in a folder"),
                404 | 503 => {}
                other => panic!("{other}"),
            }
            counts[usize::from(answer.status != 200)] += 1;
        }
        println!("{} found, {} not", counts[0], counts[1]);
    });
}

/// The server reads such files by their mapping when the client is on this machine: beyond the end is nothing.
#[test]
fn a_file_that_is_cut_while_it_is_sent_resets_its_body_and_ends_nothing() {
    let folder = Folder::serve();
    let path = folder.root().join("cut");
    for round in 0..6 {
        let writer = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .expect("a file");
        writer.write_all_at(&vec![b'v'; 8 << 20], 0).expect("room");
        std::thread::sleep(Duration::from_millis(150));
        let mut client = Client::connect_taking(&folder, 16_384);
        client
            .stream
            .write_all(b"GET /cut HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("written");
        client.await_begin();
        // It has been open for writing all the time, so no lease keeps it.
        writer.set_len([0, 4096, 5000][round % 3]).expect("cut");
        if round >= 3 {
            writer.set_len(8 << 20).expect("grown");
        }
        assert!(client.answer(true).is_none(), "{round}: a mixed body");
    }
    assert_eq!(Client::connect(&folder).get("/sub/x.txt", "").status, 200);
    let report = folder.stop();
    assert_eq!(report.reset_changed, 6, "{report:?}");
}

/// A child that serves a folder and says where, until its standard input ends.
pub fn serve_as_child(what: &str) {
    let mut words = what.split(' ');
    let (kind, root) = (
        words.next().expect("a kind"),
        words.next().expect("a folder"),
    );
    if kind == "nobody" {
        let nobody = Uid::from_raw(65_534);
        setresuid(nobody, nobody, nobody).expect("root may");
    }
    let folder = Folder::serve_root(Path::new(root), dax_send::Options::default());
    println!("at {}", folder.address());
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    println!("{}", serde_json::to_string(&folder.stop()).expect("JSON"));
}

/// Such a child, and a folder with the usual files that belongs to root.
pub struct Other {
    child: std::process::Child,
    out: std::io::BufReader<std::process::ChildStdout>,
    pub address: std::net::SocketAddr,
    pub dir: tempfile::TempDir,
}

impl Other {
    pub fn begin(
        kind: &str,
        prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        Folder::fill(dir.path());
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, format!("{kind} {}", dir.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: the callers' closures make system calls that take no lock and allocate nothing.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().expect("a child");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("at ") {
            line.clear();
            let count = std::io::BufRead::read_line(&mut out, &mut line).expect("words");
            assert!(count > 0, "the child has ended");
        }
        let address = line.trim().rsplit(' ').next().expect("a word");
        let address = address.parse().expect("an address");
        Self {
            child,
            out,
            address,
            dir,
        }
    }

    pub fn id(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a number"))
    }

    /// What it has counted.
    pub fn stop(mut self) -> erb_report::Serve {
        drop(self.child.stdin.take());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.out, &mut said).expect("words");
        assert!(self.child.wait().expect("ended").success(), "{said}");
        let line = said.lines().find(|line| line.starts_with('{'));
        serde_json::from_str(line.expect("a report")).expect("a report")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        erb_steady::skipped("only root can change its user");
    }
    root
}

/// No lease, and nothing may be pinned: bodies are compared instead, and what it lacks is told.
#[test]
fn another_user_with_no_memory_to_pin_serves_files_of_root() {
    if !is_root() {
        return;
    }
    let other = Other::begin("nobody", || Ok(setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?));
    let path = other.dir.path().join("a.bin");
    let closed = other.dir.path().join("closed");
    fs::write(&closed, "secret").expect("a file");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o600)).expect("ours");
    let mut client = Client::at(other.address);
    assert!(client.get("/a.bin", "").body == content(1));
    let part = client.get("/a.bin", "Range: bytes=500000-599999\r\n");
    assert!(part.body == content(1)[500_000..600_000]);
    assert_eq!(client.get("/closed", "").status, 403);
    // A body under way beside an edit is never whole.
    let mut slow = Client::at_taking(other.address, 16_384);
    fs::write(other.dir.path().join("b.bin"), vec![b'b'; 8 << 20]).expect("a file");
    std::thread::sleep(Duration::from_millis(100));
    slow.stream
        .write_all(b"GET /b.bin HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("written");
    slow.await_begin();
    // Refused, if it would have to wait for a lease.
    let writer = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(other.dir.path().join("b.bin"))
        .expect("no writer waits");
    writer.write_all_at(b"x", 7 << 20).expect("written");
    assert!(slow.answer(true).is_none(), "a mixed body");
    fs::write(&path, "changed").expect("written");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.get("/a.bin", "").body, b"changed");
    let report = other.stop();
    assert_eq!(report.reset_changed, 1, "{report:?}");
    assert!(
        report
            .lacks
            .is_some_and(|words| words.contains("RLIMIT_MEMLOCK"))
    );
    assert_eq!(report.pinned_bytes_peak, 0);
}

/// More clients than descriptors: some are served, the others are closed, and nobody else notices.
#[test]
fn a_crowd_beyond_the_limit_of_descriptors_ends_nothing() {
    const LIMIT: u64 = 256;
    let other = Other::begin("few", || {
        Ok(setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT)?)
    });
    for _ in 0..3 {
        let mut crowd: Vec<Client> = (0..600).map(|_| Client::at(other.address)).collect();
        let mut served = 0;
        for client in &mut crowd {
            let request = b"GET /a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n";
            // Whoever was closed at once may not be able to ask.
            if client.stream.write_all(request).is_ok() && client.answer(true).is_some() {
                served += 1;
            }
        }
        assert!((60..600).contains(&served), "{served} of 600 were served");
        drop(crowd);
        // When the server has seen that they are gone, there is room.
        let request = b"GET /a.bin HTTP/1.1\r\nHost: x\r\n\r\n";
        let answer = erb_steady::wait(Duration::from_secs(30), || {
            let mut client = Client::at(other.address);
            let asked = client.stream.write_all(request);
            let answer = asked.ok().and_then(|()| client.answer(true));
            answer.ok_or_else(|| "no client is served".to_owned())
        });
        assert_eq!(answer.body.len(), FILE_BYTES);
    }
    let report = other.stop();
    assert!(report.refused > 100, "{report:?}");
}

/// The kernel takes a lease away from who does not give it back within 45 s, and a process that was stopped cannot.
#[test]
fn a_server_that_was_stopped_for_longer_than_leases_last_ends_no_mixed_body() {
    if !erb_steady::long() {
        erb_steady::left("serve: a server that was stopped for longer than leases last, a minute");
        return;
    }
    let other = Other::begin("stopped", || Ok(()));
    let path = other.dir.path().join("long");
    fs::write(&path, vec![b'a'; 8 << 20]).expect("a file");
    std::thread::sleep(Duration::from_millis(100));
    let mut slow = Client::at_taking(other.address, 16_384);
    slow.stream
        .write_all(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("written");
    slow.await_begin();
    nix::sys::signal::kill(other.id(), nix::sys::signal::Signal::SIGSTOP).expect("ours");
    let begin = Instant::now();
    // It waits until the kernel has lost its patience.
    let writer = OpenOptions::new().write(true).open(&path).expect("open");
    assert!(
        begin.elapsed() > Duration::from_secs(30),
        "a lease was held"
    );
    writer.write_all_at(&vec![b'b'; 8 << 20], 0).expect("room");
    nix::sys::signal::kill(other.id(), nix::sys::signal::Signal::SIGCONT).expect("ours");
    assert!(slow.answer(true).is_none(), "a mixed body");
    let report = other.stop();
    assert_eq!(report.reset_changed, 1, "{report:?}");
}
