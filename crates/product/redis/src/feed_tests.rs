// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Feed ordering against a Redis whose every byte the test says: what the cache sees, in which order.

use erb_abi::{self as abi, ControlBlock as _, ControlPlane as _, FillToken, ValueKind, Wanted};

use super::*;
use crate::doubles::{Pipe, Recorder, few_commands};
use crate::expect::Question;
use crate::fill::{Filled, Sizing};
use crate::reading::Asked;
use crate::size::Reading;

const SETUP: &[u8] = b"%2\r\n+server\r\n+redis\r\n+id\r\n:9\r\n+OK\r\n+OK\r\n\
    +OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
    *9\r\n+OK\r\n:0\r\n$0\r\n\r\n_\r\n:0\r\n_\r\n*1\r\n_\r\n*0\r\n:-2\r\n";

struct Fixture {
    feed: Feed<Pipe>,
    redis: Pipe,
    cache: Recorder,
    events: Vec<Event>,
}

impl Fixture {
    fn new() -> Self {
        let redis = Pipe::default();
        Self {
            feed: Feed::new(redis.clone(), "erb-feed:test", None).unwrap(),
            redis,
            cache: Recorder::default(),
            events: Vec::new(),
        }
    }

    /// A feed whose set-up is done.
    fn ready() -> Self {
        let mut fixture = Self::new();
        fixture.say(SETUP);
        fixture.say(format!("$0\r\n\r\n{}+OK\r\n", few_commands()).as_bytes());
        assert!(fixture.feed.is_ready());
        fixture.cache.take_log();
        fixture.events.clear();
        fixture
    }

    /// Redis says this, and the feed hears it.
    fn say(&mut self, bytes: &[u8]) {
        self.try_say(bytes).unwrap();
    }

    fn try_say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.redis.say(bytes);
        self.feed
            .handle_input(&self.cache, None, 0, &mut self.events)
    }

    fn log(&self) -> Vec<String> {
        self.cache.log.borrow().clone()
    }
}

fn asked(keys: &[&str]) -> Vec<Asked> {
    let token = FillToken::default();
    keys.iter()
        .map(|key| Asked {
            wanted: Wanted::string(key.as_bytes().to_vec()),
            reading: Reading {
                bytes: 4,
                ..Reading::default()
            },
            token,
        })
        .collect()
}

fn lease(events: &[Event]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Lease { sent_ns, .. } => Some(*sent_ns),
            _ => None,
        })
        .collect()
}

#[test]
fn older_feeds_die_before_tracking_and_the_cache_is_cleared_once_it_is_on() {
    let mut fixture = Fixture::new();
    fixture.say(SETUP);
    // Number 12 has taken the name: HELLO has told the feed that it is number 9.
    let list = "id=5 name=erb-feed:test\nid=6 name=other\nid=9 name=erb-feed:test\n\
                id=12 name=erb-feed:test\n";
    fixture.say(format!("${}\r\n{list}\r\n", list.len()).as_bytes());
    assert_eq!(fixture.feed.expected.len(), 2);
    let heard = fixture.redis.heard();
    let kill = heard.find("KILL").unwrap();
    assert!(heard[kill..].contains("$1\r\n5\r\n"), "{heard}");
    assert!(
        !["$1\r\n9\r\n", "$1\r\n6\r\n", "$2\r\n12\r\n"]
            .map(|id| heard.contains(id))
            .contains(&true),
        "{heard}"
    );
    assert!(kill < heard.find("COMMAND").unwrap() && !heard.contains("TRACKING"));
    assert!(
        fixture.log().is_empty(),
        "nothing is cleared before tracking is on"
    );
    fixture.say(format!(":1\r\n{}", few_commands()).as_bytes());
    assert!(fixture.redis.heard().contains("TRACKING"));
    assert!(fixture.log().is_empty(), "nothing is cleared before that");
    fixture.say(b"+OK\r\n");
    assert!(fixture.feed.is_ready());
    assert_eq!(fixture.log(), ["clear"]);
}

#[test]
fn a_hello_that_tells_no_number_ends_the_connection() {
    let mut fixture = Fixture::new();
    let error = fixture.try_say(b"%1\r\n+server\r\n+redis\r\n").unwrap_err();
    assert!(error.to_string().contains("no id"), "{error}");
}

#[test]
fn setup_refused_ends_the_connection() {
    let mut fixture = Fixture::new();
    let error = fixture
        .try_say(b"-NOAUTH HELLO must be called with the client already authenticated\r\n")
        .unwrap_err();
    assert!(error.to_string().contains("NOAUTH"), "{error}");
    assert!(!fixture.feed.is_ready());
}

#[test]
fn only_a_literal_pong_renews() {
    for reply in [
        "-MISCONF x\r\n",
        "-BUSY x\r\n",
        "-LOADING x\r\n",
        "-NOAUTH x\r\n",
        "$4\r\nPONG\r\n",
        "+OK\r\n",
    ] {
        let mut fixture = Fixture::ready();
        fixture.feed.ping(17, 0);
        fixture.say(b"$0\r\n\r\n");
        fixture.events.clear();
        fixture.say(reply.as_bytes());
        assert!(!fixture.events.is_empty());
        assert!(
            matches!(fixture.events[..], [Event::NoLease(_)]),
            "{reply}: {:?}",
            fixture.events
        );
    }
    let mut fixture = Fixture::ready();
    fixture.feed.ping(17, 0);
    fixture.say(b"$0\r\n\r\n+PO");
    assert!(lease(&fixture.events).is_empty(), "half a reply is none");
    fixture.say(b"NG\r\n");
    assert_eq!(lease(&fixture.events), [17]);
}

#[test]
fn without_the_calls_of_swapdb_pong_renews_nothing() {
    let mut fixture = Fixture::ready();
    fixture.feed.ping(17, 0);
    fixture.say(b"-BUSY Redis is busy running a script\r\n+PONG\r\n");
    assert!(
        matches!(&fixture.events[..], [Event::NoLease(reason)] if reason.contains("BUSY")),
        "{:?}",
        fixture.events
    );
}

#[test]
fn invalidations_reach_the_cache_before_later_replies() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_fill(asked(&["a"]), 9);
    fixture.feed.ping(3, 0);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    fixture.say(b">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    fixture.say(b"*3\r\n+OK\r\n$1\r\nv\r\n:-1\r\n");
    fixture.say(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nc\r\n$0\r\n\r\n+PONG\r\n");
    assert_eq!(lease(&fixture.events), [3]);
    assert_eq!(
        fixture.log(),
        ["invalidate a,b", "insert a=v until 0", "invalidate c"]
    );
    let kinds: Vec<_> = fixture.events.iter().map(std::mem::discriminant).collect();
    let last = std::mem::discriminant(&Event::Lease {
        sent_ns: 0,
        answered: 0,
    });
    assert_eq!(
        kinds.last(),
        Some(&last),
        "the lease comes after all that was sent before it"
    );
}

#[test]
fn a_flush_clears_everything() {
    let mut fixture = Fixture::ready();
    fixture.say(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n");
    let is_flush = |event: &Event| matches!(event, Event::Invalidated { .. });
    assert!(fixture.events.iter().any(is_flush));
    assert_eq!(fixture.log(), ["clear"]);
}

#[test]
fn every_element_of_exec_is_checked() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_fill(asked(&["a", "b", "c", "d", "e"]), 9);
    let queued = "+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(11);
    fixture.say(queued.as_bytes());
    fixture.say(b"*11\r\n+OK\r\n$1\r\nv\r\n:1700000000123\r\n_\r\n:-2\r\n");
    fixture.say(b"-WRONGTYPE no string\r\n:-1\r\n$1\r\nw\r\n:-2\r\n");
    // Longer than it was: what is beyond its size was not asked for.
    fixture.say(b"$5\r\nvalue\r\n:-1\r\n");
    assert!(!fixture.events.is_empty());
    assert_eq!(fixture.log(), ["insert a=v until 1700000000123"]);
    let Event::Filled(ends) = &fixture.events[0] else {
        panic!("{:?}", fixture.events)
    };
    let ends: Vec<_> = ends.iter().map(|(_, end)| *end).collect();
    let never = Filled::Never;
    assert_eq!(ends, [Filled::Inserted, never, never, never, Filled::Later]);
}

#[test]
fn a_fill_names_its_databases_and_one_that_is_refused_counts_for_nothing() {
    let mut fixture = Fixture::ready();
    let mut batch = asked(&["a", "b", "c", "d"]);
    for (one, db) in batch.iter_mut().zip([0, 7, 0, 16]) {
        one.wanted.db = db;
    }
    fixture.feed.ask_fill(batch, 9);
    fixture.say(("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(11)).as_bytes());
    let heard = fixture.redis.heard();
    let words: Vec<&str> = heard
        .split("\r\n")
        .filter(|word| word.len() == 1 || *word == "16" || *word == "SELECT")
        .collect();
    let expected = "SELECT 0 a 0 4 a c 0 4 c SELECT 7 b 0 4 b SELECT 16 d 0 4 d";
    assert!(words.join(" ").ends_with(expected), "{words:?}");
    fixture.say(b"*11\r\n+OK\r\n$1\r\nv\r\n:-1\r\n$1\r\nw\r\n:-1\r\n");
    fixture.say(b"+OK\r\n$1\r\nx\r\n:-1\r\n-ERR DB index is out of range\r\n$1\r\ny\r\n:-1\r\n");
    assert_eq!(
        fixture.log(),
        [
            "insert a=v until 0",
            "insert c=w until 0",
            "insert 7:b=x until 0"
        ]
    );
    let Event::Filled(ends) = &fixture.events[0] else {
        panic!("{:?}", fixture.events)
    };
    assert_eq!((ends[3].0.db, ends[3].1), (16, Filled::Never));
}

#[test]
fn an_aborted_fill_inserts_nothing() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_fill(asked(&["a"]), 9);
    fixture.say(b"+OK\r\n+QUEUED\r\n-OOM x\r\n+QUEUED\r\n-EXECABORT x\r\n");
    assert!(!fixture.events.is_empty());
    assert!(fixture.log().is_empty());
    assert!(matches!(&fixture.events[0], Event::Filled(ends) if ends[0].1 == Filled::Later));
}

#[test]
fn a_state_is_whole_only_when_monitors_were_looked_for() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_state(7);
    fixture.say(b"%0\r\n*0\r\n$27\r\ncmdstat_monitor:calls=1,u=1\r\n");
    assert!(matches!(
        fixture.feed.expected.front(),
        Some(Expect::Monitors { .. })
    ));
    assert!(fixture.feed.is_asking_state());
    assert!(matches!(fixture.events[..], [Event::Calls(_)]), "in order");
    fixture.events.clear();
    fixture.say(b"$20\r\nid=9 flags=O qbuf=0\n\r\n");
    assert!(!fixture.events.is_empty());
    let Event::State { state, gate: 7 } = &fixture.events[0] else {
        panic!("{:?}", fixture.events)
    };
    assert_eq!(state.monitors, 1);
    assert!(!fixture.feed.is_asking_state());
}

#[test]
fn without_monitor_or_resetstat_no_client_list_is_asked_for() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_state(7);
    fixture.say(b"%0\r\n*0\r\n$11\r\nrole:master\r\n");
    assert!(matches!(
        &fixture.events[..],
        [Event::Calls(_), Event::State { state, gate: 7 }] if state.monitors == 0
    ));
    assert!(!fixture.feed.is_asking_state());
}

#[test]
fn replies_to_nothing_end_the_connection() {
    let mut fixture = Fixture::ready();
    assert!(fixture.try_say(b"+OK\r\n").is_err());
}

#[test]
fn a_closed_connection_is_an_error() {
    let mut fixture = Fixture::ready();
    fixture.redis.close();
    assert!(fixture.try_say(b"").is_err());
}

/// The commands in what was written, as ACL rules name them.
fn rules(heard: &str) -> Vec<String> {
    let mut lines = heard.split("\r\n").map(str::to_lowercase).peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(count) = line.strip_prefix('*') else {
            continue;
        };
        let words: Vec<String> = (0..count.parse().unwrap())
            .map(|_| lines.nth(1).unwrap())
            .collect();
        let whole =
            ["config", "acl", "client", "object", "command", "memory"].contains(&words[0].as_str());
        found.push(if whole {
            words[..2].join("|")
        } else {
            words[0].clone()
        });
    }
    found
}

#[test]
fn every_command_of_the_feed_is_among_the_rights() {
    let mut fixture = Fixture::new();
    fixture.say(SETUP);
    let list = "id=5 name=erb-feed:test\nid=9 name=erb-feed:test\n";
    let length = list.len();
    fixture.say(format!("${length}\r\n{list}\r\n:1\r\n{}", few_commands()).as_bytes());
    fixture.feed.ping(1, 0);
    fixture.feed.ask_state(7);
    fixture.feed.ask_clients(Question::default());
    let mut hash = Wanted::string(b"a".to_vec());
    hash.kind = ValueKind::Hash;
    fixture
        .feed
        .ask_sizes(vec![hash, Wanted::string(b"a".to_vec())], 9, Sizing::Missed);
    fixture.feed.ask_fill(asked(&["a"]), 9);
    fixture.feed.ask_touch(vec![(0, b"a".to_vec())]);
    fixture.feed.flush().unwrap();
    let sent = rules(&fixture.redis.heard());
    assert!(sent.len() > 15, "{sent:?}");
    for rule in sent.iter().filter(|rule| *rule != "hello") {
        assert!(
            rights::RIGHTS.iter().any(|right| right.rule == rule),
            "{rule} is not among the rights"
        );
    }
    for right in rights::RIGHTS {
        assert!(
            sent.iter().any(|rule| rule == right.rule),
            "{} is never sent",
            right.rule
        );
    }
}

#[test]
fn a_missing_right_ends_the_connection_wherever_it_shows() {
    let noperm = b"-NOPERM this user has no permissions to run the 'x' command\r\n";
    let mut fixture = Fixture::new();
    fixture.say(b"%2\r\n+server\r\n+redis\r\n+id\r\n:9\r\n+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n");
    let error = fixture.try_say(noperm).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("ACL SETUSER default"), "{error}");
    let asks: [fn(&mut Feed<Pipe>); 4] = [
        |feed| feed.ping(1, 0),
        |feed| feed.ask_state(1),
        |feed| feed.ask_fill(asked(&["a"]), 9),
        |feed| feed.ask_clients(Question::default()),
    ];
    for ask in asks {
        let mut fixture = Fixture::ready();
        ask(&mut fixture.feed);
        let error = fixture.try_say(noperm).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_trial_of_a_loading_redis_proves_nothing() {
    let mut fixture = Fixture::new();
    fixture.say(b"%2\r\n+server\r\n+redis\r\n+id\r\n:9\r\n+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n");
    fixture.say(&b"-LOADING x\r\n".repeat(8));
    fixture.say(b"-EXECABORT x\r\n$0\r\n\r\n");
    fixture.say(format!("{}+OK\r\n", few_commands()).as_bytes());
    assert!(fixture.feed.is_ready());
}

#[test]
fn a_new_table_is_loaded_while_nothing_is_served_and_empties_the_cache() {
    let mut fixture = Fixture::ready();
    fixture.cache.set(|control| control.serving = 1);
    fixture.feed.ask_commands();
    fixture.say(few_commands().as_bytes());
    assert!(fixture.log().is_empty(), "the same table");
    assert_eq!(fixture.cache.control().serving(), 1);
    let key = abi::command_key_bytes("set").unwrap();
    let row = abi::COMMANDS[0].meaning();
    fixture.cache.set_command(&key, Some(&row)).unwrap();
    fixture.feed.ask_commands();
    fixture.say(few_commands().as_bytes());
    assert_eq!(fixture.log(), ["clear"]);
    assert_eq!(fixture.cache.control().serving(), 0);
    let rows = fixture.cache.command_rows().unwrap();
    assert!(rows.iter().all(|(of, _)| *of != key));
}

#[test]
fn commands_that_are_not_what_they_are_called_are_not_sent() {
    let mut fixture = Fixture::new();
    fixture.say(SETUP);
    fixture.say(b"$0\r\n\r\n");
    fixture.redis.heard();
    // Somebody's FLUSHALL is called INFO.
    let other = few_commands().replace("*10\r\n+info\r\n", "*10\r\n+flushall\r\n");
    fixture.say(other.as_bytes());
    let Some(Event::Commands { end, again: false }) = fixture.events.pop() else {
        panic!("{:?}", fixture.events);
    };
    assert!(end.unwrap_err().contains("INFO"));
    fixture.say(b"+OK\r\n");
    assert!(fixture.feed.is_ready());
    fixture.redis.heard();
    fixture.feed.ask_state(0);
    fixture.feed.ping(1, 0);
    fixture.feed.flush().unwrap();
    assert_eq!(fixture.redis.heard(), "");
}

#[test]
fn a_redis_that_closes_while_it_owes_a_long_answer_is_told_with_the_limit() {
    let end = |fixture: &mut Fixture| {
        fixture.redis.close();
        let end = fixture.try_say(b"").unwrap_err();
        (end.kind(), end.to_string())
    };
    // Nothing of the set-up is answered: Redis drops what it has not written with the rest.
    let (kind, told) = end(&mut Fixture::new());
    assert_eq!(kind, io::ErrorKind::QuotaExceeded);
    assert!(
        told.contains("CLIENT LIST: if it was not stopped, client-output-buffer-limit"),
        "{told}"
    );
    let config = |limit: &str| {
        let limit = format!("normal {limit} 0 0 slave 1 1 1");
        let name = "$26\r\nclient-output-buffer-limit";
        format!(
            "*2\r\n{name}\r\n${}\r\n{limit}\r\n*0\r\n$0\r\n\r\n",
            limit.len()
        )
    };
    for (limit, told_of) in [("65536", true), ("0", false)] {
        let mut fixture = Fixture::ready();
        fixture.feed.ask_state(0);
        fixture.say(config(limit).as_bytes());
        fixture.feed.ask_clients(Question::default());
        let (_, told) = end(&mut fixture);
        assert_eq!(told.contains("is 65536 bytes"), told_of, "{told}");
        assert_eq!(told.contains("client-output"), told_of, "{told}");
    }
    let mut fixture = Fixture::ready();
    fixture.feed.ping(3, 0);
    let (_, told) = end(&mut fixture);
    assert_eq!(told, "Redis closed the connection", "nothing long was owed");
}

#[test]
fn a_state_says_whether_a_list_of_the_clients_fits() {
    let mut fixture = Fixture::new();
    fixture.say(SETUP);
    let list = format!("id=5 name={}\n", "x".repeat(1_000)).repeat(3);
    fixture.say(format!("${}\r\n{list}\r\n{}+OK\r\n", list.len(), few_commands()).as_bytes());
    fixture.feed.ask_state(0);
    let info = "connected_clients:100\r\n";
    fixture.say(b"*2\r\n$26\r\nclient-output-buffer-limit\r\n$16\r\nnormal 65536 0 0\r\n*0\r\n");
    fixture.say(format!("${}\r\n{info}\r\n", info.len()).as_bytes());
    let state = fixture.events.iter().find_map(|event| match event {
        Event::State { state, .. } => Some(state),
        _ => None,
    });
    let told = state.unwrap().list_beyond_limit().unwrap();
    assert!(told.contains("101100"), "by the lines as seen: {told}");
}

#[path = "reading_tests.rs"]
mod reading;
#[path = "feed_writes_tests.rs"]
mod writes;

#[test]
fn what_redis_tells_of_moves_in_one_transaction_and_what_was_cached_before_goes() {
    let mut fixture = Fixture::ready();
    let lines = |words: &str| {
        let words = words
            .split(' ')
            .map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let words: Vec<String> = words.collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    };
    let told = |begin: &str| {
        let said = ["MULTI", "CLIENT TRACKING OFF", begin, "EXEC"];
        said.map(lines).concat()
    };
    fixture.redis.heard();
    fixture.feed.ask_reports(Reports::All);
    fixture.feed.flush().unwrap();
    assert_eq!(fixture.redis.heard(), "", "as it is");
    for _ in 0..2 {
        fixture.feed.ask_reports(Reports::OfRead);
        fixture.feed.flush().unwrap();
    }
    assert_eq!(fixture.redis.heard(), told("CLIENT TRACKING ON"), "once");
    fixture.feed.ping(3, 0);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(fixture.feed.reports(), Reports::All);
    fixture.say(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(fixture.log(), ["invalidate a", "clear"]);
    assert!(lease(&fixture.events).is_empty(), "behind that");
    fixture.say(b"$0\r\n\r\n+PONG\r\n");
    assert_eq!(fixture.feed.reports(), Reports::OfRead);
    fixture.cache.take_log();
    fixture.redis.heard();
    fixture.feed.ask_reports(Reports::All);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    let back = told("CLIENT TRACKING ON BCAST NOLOOP");
    assert_eq!(fixture.redis.heard(), back);
    assert_eq!(fixture.feed.reports(), Reports::All);
    assert!(fixture.log().is_empty(), "all of it is told of");
}

#[test]
fn a_redis_that_does_not_say_what_it_tells_of_ends_the_feed() {
    for reply in [
        "*2\r\n+OK\r\n-ERR x\r\n",
        "*1\r\n+OK\r\n",
        "-EXECABORT x\r\n",
        "_\r\n",
    ] {
        let mut fixture = Fixture::ready();
        fixture.feed.ask_reports(Reports::OfRead);
        fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
        let end = fixture.try_say(reply.as_bytes()).unwrap_err();
        assert!(end.to_string().contains("TRACKING"), "{end}");
    }
}

/// Whether errors are one line is asked with the state, until Redis tells; what cannot be told is not believed.
#[test]
fn whether_errors_are_one_line_is_asked_until_it_is_told() {
    let one = |answers: &[&str]| {
        let mut fixture = Fixture::ready();
        fixture.feed.line_ends = None;
        for answer in answers {
            fixture.redis.heard();
            fixture.feed.ask_line_ends();
            fixture.feed.ask_line_ends();
            fixture.feed.flush().unwrap();
            let heard = fixture.redis.heard();
            assert_eq!(heard.matches("FUNCTION").count(), 1, "{heard}");
            fixture.say(answer.as_bytes());
        }
        fixture.feed.ask_line_ends();
        assert!(fixture.feed.expected.is_empty(), "it is asked once more");
        fixture.cache.one_line()
    };
    assert_eq!(
        one(&["-LOADING wait\r\n", "-ERR Unknown argument erb  +line\r\n"]),
        1
    );
    assert_eq!(one(&["-ERR Unknown argument erb\r\n+line\r\n"]), 0);
    assert_eq!(one(&["-NOPERM no right\r\n"]), 0);
    assert_eq!(one(&["-ERR unknown command 'FUNCTION'\r\n"]), 0);
}
