// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the documents tell a reader to type works as it stands there. Each session is run in namespaces of its own:
//! network, and mounts, so that `/run` and `/etc` are its own. What is typed in none stands in [`LEFT_OUT`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use erb_e2e::lab::erb_bin;
use erb_e2e::turn::Turn;
use erb_steady::out_of_patience;

/// Seconds that a session may take, waits in it included: ten times what the longest needs.
const PATIENCE_S: &str = "600";
/// Exit code of timeout(1), and of what it had to kill.
const OUT_OF_TIME: [i32; 2] = [124, 137];

/// A block of commands: its document, the heading above it, and how many such blocks stand between.
type Block = (&'static str, &'static str, usize);

/// What a reader types, one block after another.
struct Session {
    /// What the document assumes to be there.
    before: &'static [&'static str],
    blocks: &'static [Block],
    /// What a reader replaces by what is his.
    own: &'static [(&'static str, &'static str)],
}

/// What a shell needs before it is as all documents assume it: root, and a network of its own that is up. What serves
/// or traces until somebody ends it is ended.
const BEFORE: &str = r#"
set -euo pipefail
mount -t tmpfs tmpfs /run
cp -a /etc /run/etc
mount --bind /run/etc /etc
mkdir -p /etc/erb
mkdir var-tmp
mount --bind var-tmp /var/tmp
ip link set lo up
ERB=$(type -P erb)
sudo() { "$@"; }
erb() {
	case $1 in
	serve | trace) timeout --preserve-status --signal=INT 2 "$ERB" "$@" ;;
	*) "$ERB" "$@" ;;
	esac
}
"#;

/// A server that clients reach by eth0.
const A_REDIS: &str = r"
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
redis-server --bind 127.0.0.1 --save '' --daemonize yes >redis.log
until redis-cli ping >pong 2>&1; do sleep 0.1; done
";

/// A store of its own, and a folder to be served.
const MORE_TO_WATCH: &str = r"
erb node format store --size 256M
mount -t tmpfs tmpfs /srv
mkdir /srv/files
";

const BOOST: &str = "docs/operating/boost.md";
const PRODUCTION: &str = "docs/operating/production.md";
const METRICS: &str = "docs/operating/metrics.md";
const NODE: &str = "docs/operating/node.md";
const SERVE: &str = "docs/operating/serve.md";
const LAB: &str = "docs/operating/lab-and-checks.md";

const A_FIRST_BOOST: Session = Session {
    before: &[A_REDIS],
    blocks: &[
        ("README.md", "## Boost your own Redis", 0),
        (BOOST, "## Doctor, boost, status, detach", 0),
    ],
    own: &[],
};

const IN_PRODUCTION: Session = Session {
    before: &[A_REDIS],
    blocks: &[
        (PRODUCTION, "## Is it for this load?", 0),
        (PRODUCTION, "## Look, without changing anything", 0),
        (PRODUCTION, "## One machine first", 0),
        ("docs/operating/status-and-trace.md", "## Trace", 0),
        ("docs/operating/upgrade.md", "## A newer ERB", 0),
        (PRODUCTION, "## Back out, at any time", 0),
    ],
    own: &[],
};

const OPTIONS_IN_A_FILE: Session = Session {
    before: &[A_REDIS],
    blocks: &[
        (BOOST, "## Options in a file", 0),
        (BOOST, "## Completions and man pages", 0),
    ],
    own: &[("/usr/local/share/man/man1", "man")],
};

const WATCHED: Session = Session {
    before: &[A_REDIS, MORE_TO_WATCH],
    blocks: &[
        (METRICS, "# Metrics", 0),
        (METRICS, "## Dashboard", 0),
        (METRICS, "## From other machines", 0),
        (METRICS, "## Of a storage node", 0),
        (METRICS, "## Of a file server", 0),
    ],
    own: &[
        // One boost after another: each is said as if there were none.
        (
            "sudo erb boost ",
            "sudo erb detach || [ $? = 12 ]; sudo erb boost ",
        ),
        // It serves until it is ended.
        (
            "erb node start store ",
            "timeout --preserve-status --signal=INT 3 $ERB node start store ",
        ),
    ],
};

const UNDONE: Session = Session {
    before: &[],
    blocks: &[(NODE, "## From nothing to an undo", 0)],
    own: &[],
};

const KEPT: Session = Session {
    before: &[r"
echo 127.0.0.2 other >>/etc/hosts
erb node format store --size 256M
erb node format other --size 256M
erb node start store &
erb node start other --listen 127.0.0.2:4420 &
MOMENT=$(erb kv put nvme://127.0.0.1 conf/a good)
erb kv put nvme://127.0.0.1 conf/b good
sleep 2
"],
    blocks: &[
        (NODE, "## Export and import", 0),
        (NODE, "## A lock", 0),
        (NODE, "## More space", 0),
        (NODE, "## A store that does not open", 0),
    ],
    own: &[
        ("--as-of 1h", "--as-of 1s"),
        ("--size 4G", "--size 512M"),
        ("zstd", "gzip"),
        ("7289...", "$MOMENT"),
        // A check wants the store for itself.
        (
            "erb node check store   ",
            "erb node stop store; erb node check store   ",
        ),
    ],
};

const WITH_A_SECRET: Session = Session {
    before: &["ip addr add 192.0.2.1 dev lo\nerb node format store --size 1G\n"],
    blocks: &[
        (NODE, "## The same over the network, with a secret", 0),
        (NODE, "## The same over the network, with a secret", 1),
    ],
    own: &[("--yes    ", "--yes || [ $? = 26 ]    ")],
};

const FILES: Session = Session {
    before: &[r"
mount -t tmpfs tmpfs /srv
mkdir /srv/files
head -c 2M /dev/urandom >/srv/files/large
ip link add eth0 type veth peer name eth1
"],
    blocks: &[
        (SERVE, "# Serving files without a copy", 0),
        (SERVE, "## Will it be without a copy here?", 0),
    ],
    own: &[
        ("--dev eth0  ", "--dev eth0 || [ $? = 16 ]  "),
        // Figures take minutes.
        ("sudo erb bench ", ": sudo erb bench "),
    ],
};

const IN_A_LAB: Session = Session {
    before: &[],
    blocks: &[(LAB, "## A lab", 0), (LAB, "## A lab", 1)],
    own: &[("-h 10.77.0.2 ", "-h 10.77.0.2 ping ")],
};

const SESSIONS: &[&Session] = &[
    &A_FIRST_BOOST,
    &IN_PRODUCTION,
    &OPTIONS_IN_A_FILE,
    &WATCHED,
    &UNDONE,
    &KEPT,
    &WITH_A_SECRET,
    &FILES,
    &IN_A_LAB,
];

/// Blocks that no session types, and why. That their words are ones that the programs take is asked of all.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    (
        "README.md",
        "## Two commands",
        "whoever runs this has typed it",
    ),
    (
        "CONTRIBUTING.md",
        "## Building and testing",
        "parts of ./test",
    ),
    (
        "docs/internals/dax-send.md",
        "# dax-send on persistent memory",
        "virtual machines, for minutes",
    ),
    (
        "docs/internals/module.md",
        "# The I/O module",
        "a virtual machine, for minutes; ./test builds it",
    ),
    (
        "docs/internals/module.md",
        "## The paper's own way",
        "a virtual machine, for minutes, and a machine that loads modules; ./test builds it",
    ),
    (
        "docs/internals/node.md",
        "## Its pace",
        "figures take minutes",
    ),
    (
        "docs/internals/simulator.md",
        "## Running",
        "erb-sim's own tests do",
    ),
    (
        BOOST,
        "## A Debian package",
        "./test packs; scripts/service-test installs",
    ),
    (LAB, "## Measuring", "figures take minutes"),
    (LAB, "## Traffic like your own", "figures take minutes"),
    (
        LAB,
        "## YCSB's own client",
        "it needs Maven, and figures take minutes",
    ),
    (
        LAB,
        "## Checking",
        "erb-check's and the end-to-end tests are these",
    ),
    (
        NODE,
        "## From Linux's own initiator",
        "`erb lab vm node`: it needs modules",
    ),
    (NODE, "## How fast it is here", "figures take minutes"),
    (
        "docs/operating/service.md",
        "## A boost",
        "scripts/service-test: it needs systemd",
    ),
    (
        "docs/operating/service.md",
        "## A storage node",
        "scripts/service-test: it needs systemd",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// All fenced blocks of a document: the heading above, the language, the text.
fn blocks(document: &str) -> Vec<(String, String, String)> {
    let text = fs::read_to_string(root().join(document)).expect(document);
    let (mut found, mut heading) = (Vec::new(), String::new());
    let mut inside: Option<(String, String)> = None;
    for line in text.lines() {
        match (&mut inside, line.strip_prefix("```")) {
            (Some(_), Some(_)) => {
                let (language, text) = inside.take().expect("a block");
                found.push((heading.clone(), language, text));
            }
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, Some(language)) => inside = Some((language.to_owned(), String::new())),
            (None, None) if line.starts_with('#') => line.clone_into(&mut heading),
            (None, None) => {}
        }
    }
    found
}

/// The text of the `number`th block of a language under a heading.
fn block(document: &str, heading: &str, language: &str, number: usize) -> String {
    let all = blocks(document).into_iter();
    let mut of = all.filter(|(over, of, _)| over == heading && of == language);
    let found = of.nth(number);
    found
        .unwrap_or_else(|| panic!("{document}: {heading}: no {language} {number}"))
        .2
}

/// A reader types on when a node says that it is ready.
fn when_ready(commands: &str) -> String {
    const READY: &str = "until (exec 3<>/dev/tcp/127.0.0.1/4420) 2>/dev/null; do sleep 0.1; done";
    let lines = commands.lines().flat_map(|line| {
        let begins = line.split('#').next().unwrap_or_default().trim_end();
        let wait = begins.ends_with('&').then_some(READY);
        [Some(line), wait]
    });
    lines.flatten().collect::<Vec<_>>().join("\n")
}

impl Session {
    fn script(&self) -> String {
        let mut commands = String::new();
        for (document, heading, number) in self.blocks {
            commands += &block(document, heading, "sh", *number);
        }
        for (written, own) in self.own {
            assert!(commands.contains(written), "{written} is typed nowhere");
            commands = commands.replace(written, own);
        }
        when_ready(&format!("{}\n{commands}", self.before.concat()))
    }

    /// Types it, in a folder of the tests' own disk. What was printed, on standard error too.
    fn typed(&self) -> String {
        typed(&self.script())
    }
}

fn typed(commands: &str) -> String {
    let _turn = Turn::beside();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let erb = erb_bin();
    let path = std::env::var("PATH").expect("PATH");
    let path = format!("{}:{path}", erb.parent().expect("a folder").display());
    let script = format!("exec 2>&1\n{BEFORE}\n{commands}\n");
    let ran = Command::new("timeout")
        .args(["--kill-after=5", PATIENCE_S])
        .args([
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ])
        .args(["bash", "-c", &script])
        .env("PATH", path)
        .current_dir(folder.path())
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    if ran
        .status
        .code()
        .is_some_and(|code| OUT_OF_TIME.contains(&code))
    {
        out_of_patience(format_args!("after {PATIENCE_S} s:\n{said}"));
    }
    assert!(ran.status.success(), "{}:\n{said}", ran.status);
    said
}

fn has_all(said: &str, words: &[&str]) {
    for words in words {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn from_nothing_to_an_undo() {
    let said = UNDONE.typed();
    has_all(
        &said,
        &["keys that would change: 2", "erb kv undo nvme://127.0.0.1 "],
    );
    let (_, got) = said.rsplit_once("undoes it\n").expect("a roll back");
    assert!(got.starts_with("good"), "{said}");
    assert_eq!(got.matches("(7").count(), 3, "three versions: {said}");
}

#[test]
fn doctor_boost_status_detach() {
    let said = A_FIRST_BOOST.typed();
    let words = [
        "`erb boost` will work",
        "boosted eth0",
        "serving      yes",
        "detached",
    ];
    has_all(&said, &words);
    assert_eq!(said.matches("boosted eth0").count(), 2, "{said}");
}

#[test]
fn step_by_step_in_production() {
    let said = IN_PRODUCTION.typed();
    has_all(
        &said,
        &[
            "cmdstat_ping",
            "`erb boost` will work",
            "erb_serving 1",
            "detached",
        ],
    );
}

#[test]
fn options_in_a_file_completions_and_pages() {
    let file = block(BOOST, "## Options in a file", "toml", 0).replace("1G", "64M");
    let script = OPTIONS_IN_A_FILE.script();
    let said = typed(&format!(
        "cat >/etc/erb/cache.toml <<'END'\n{file}END\n{script}\nls man"
    ));
    has_all(&said, &["boosted eth0", "erb-boost.1"]);
}

#[test]
fn metrics_a_dashboard_and_a_token() {
    let said = WATCHED.typed();
    has_all(
        &said,
        &[
            "erb_serving 1",
            "erb_outcomes_total",
            "http://127.0.0.1:9280/metrics",
            "http://127.0.0.1:9281/metrics",
        ],
    );
}

#[test]
fn exports_a_lock_growth_and_a_check() {
    let said = KEPT.typed();
    has_all(&said, &["it opens"]);
}

#[test]
fn over_the_network_with_a_secret() {
    let said = WITH_A_SECRET.typed();
    has_all(&said, &["host"]);
}

#[test]
fn files_without_a_copy() {
    let said = FILES.typed();
    has_all(&said, &["/srv/files"]);
}

#[test]
fn a_lab_of_ones_own() {
    let said = IN_A_LAB.typed();
    has_all(&said, &["PONG"]);
}

/// A block that is new is typed by a session, or it is said why not.
#[test]
fn every_block_is_typed_or_left_out() {
    let mut wanted = BTreeSet::new();
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "*.md"])
        .current_dir(root())
        .output()
        .expect("git");
    for document in String::from_utf8_lossy(&listed.stdout).lines() {
        let mut before: Vec<String> = Vec::new();
        for (heading, language, _) in blocks(document) {
            if language != "sh" {
                continue;
            }
            let number = before.iter().filter(|of| **of == heading).count();
            wanted.insert((document.to_owned(), heading.clone(), number));
            before.push(heading);
        }
    }
    let typed: BTreeSet<_> = SESSIONS
        .iter()
        .flat_map(|session| session.blocks)
        .map(|(document, heading, number)| ((*document).to_owned(), (*heading).to_owned(), *number))
        .collect();
    let is_left = |document: &str, heading: &str| {
        LEFT_OUT
            .iter()
            .any(|(of, under, _)| *of == document && *under == heading)
    };
    for (document, heading, number) in &wanted {
        let is_typed = typed.contains(&(document.clone(), heading.clone(), *number));
        assert_ne!(
            is_typed,
            is_left(document, heading),
            "{document}: {heading}, block {number}"
        );
    }
    for (document, heading, _) in LEFT_OUT {
        let is_there = wanted
            .iter()
            .any(|(of, under, _)| of == document && under == heading);
        assert!(is_there, "{document}: {heading} has no commands");
    }
}
