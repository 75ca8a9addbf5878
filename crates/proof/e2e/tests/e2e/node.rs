// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A storage node behind a line that loses, repeats, reorders, damages and delays: what clients read, and what was
//! acknowledged to them.
//!
//! Every write has a version of its own, and every read says which version it found. So a history is linearizable if
//! no operation has a lower version than one that had ended before it began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use erb_e2e::lab::{TestLab, scaled};
use erb_kv::{Client, Digests, Error, Selector, Status, Url};
use erb_lab::End;

const FAULTS: &str = "loss=1% dup=0.5% reorder=2% corrupt=0.1% delay=1ms";
const CLIENTS: u64 = 6;
const KEYS: u64 = 4;
/// Operations of a client: normal, and in full.
const OPS: (u64, u64) = (120, 4000);
const VALUE_WORDS_MAX: usize = 3000;

/// An operation that was answered.
#[derive(Clone, Copy, Debug)]
struct Done {
    key: u64,
    began: Instant,
    ended: Instant,
    is_put: bool,
    /// Of a key without a value: 0.
    version: u64,
    /// What tells the value from all others.
    number: u64,
}

#[derive(Default)]
struct History {
    done: Mutex<Vec<Done>>,
    /// Writes of which nobody knows whether they happened: key and number.
    lost: Mutex<BTreeSet<(u64, u64)>>,
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Its bytes tell whether all of it is of one write.
fn value_of(number: u64) -> Vec<u8> {
    let words = 1 + number as usize * 7919 % VALUE_WORDS_MAX;
    number.to_le_bytes().repeat(words)
}

fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*value.first_chunk().expect("a word"));
    assert_eq!(value, value_of(number), "a value is of one write");
    number
}

/// Version and number of what a key is.
fn found(client: &mut Client, key: u64) -> Result<(u64, u64), Error> {
    match client.get(&key_of(key), Selector::Head) {
        Ok(found) => Ok((found.head.version, number_of(&found.value))),
        Err(error) if error.status() == Some(Status::ABSENT) => Ok((0, 0)),
        Err(error) => Err(error),
    }
}

/// One client's operations. A connection that is lost is made again.
fn work(url: &Url, digests: Digests, own: u64, history: &History) {
    let connect = || Client::connect_with(url, digests).expect("the node is there");
    let (mut client, mut random) = (connect(), fastrand::Rng::with_seed(own));
    for round in 1..=scaled(OPS.0, OPS.1) {
        let (key, is_put) = (random.u64(..KEYS), random.bool());
        let written = own << 32 | round;
        let began = Instant::now();
        let answer = if is_put {
            let version = client.put(&key_of(key), &value_of(written), None);
            version.map(|version| (version, written))
        } else {
            found(&mut client, key)
        };
        match answer {
            Ok((version, number)) => history.done.lock().expect("whole").push(Done {
                key,
                began,
                ended: Instant::now(),
                is_put,
                version,
                number,
            }),
            Err(Error::Lost) => {
                if is_put {
                    history.lost.lock().expect("whole").insert((key, written));
                }
                client = connect();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether all could have happened one after the other, each between its begin and its end.
fn assert_linearizable(done: &[Done], lost: &BTreeSet<(u64, u64)>) {
    let puts: BTreeMap<u64, Done> = done
        .iter()
        .filter(|it| it.is_put)
        .map(|it| (it.version, *it))
        .collect();
    for read in done.iter().filter(|it| !it.is_put && it.version != 0) {
        match puts.get(&read.version) {
            Some(put) => assert_eq!((put.key, put.number), (read.key, read.number), "{read:?}"),
            None => assert!(lost.contains(&(read.key, read.number)), "{read:?}"),
        }
    }
    for key in 0..KEYS {
        let of_key = || done.iter().filter(|it| it.key == key);
        let (mut ended, mut begun): (Vec<_>, Vec<_>) = (of_key().collect(), of_key().collect());
        ended.sort_by_key(|it| it.ended);
        begun.sort_by_key(|it| it.began);
        let (mut before, mut newest) = (ended.into_iter().peekable(), 0);
        for it in begun {
            while let Some(earlier) = before.next_if(|earlier| earlier.ended < it.began) {
                newest = newest.max(earlier.version);
            }
            let is_behind = it.version > newest || !it.is_put && it.version == newest;
            assert!(is_behind, "{newest} had been seen before {it:?}");
        }
    }
}

fn linearizable_under_faults(lab: &TestLab, url: &Url, digests: Digests) -> History {
    let history = History::default();
    lab.link(FAULTS);
    lab.inside(End::Client, || {
        thread::scope(|scope| {
            for own in 1..=CLIENTS {
                let history = &history;
                scope.spawn(move || work(url, digests, own, history));
            }
        });
    });
    let report = lab.lab().link_report().expect("a middle box");
    let lost = report.to_server.lost + report.to_client.lost;
    assert!(lost > 0, "nothing was lost on the way: {report:?}");
    lab.link_reset();
    let done = history.done.lock().expect("whole");
    assert_linearizable(&done, &history.lost.lock().expect("whole"));
    drop(done);
    history
}

/// What was acknowledged is there: the newest as the key's value, the others in its history.
fn assert_all_is_there(lab: &TestLab, url: &Url, history: &History) {
    let done = history.done.lock().expect("whole");
    lab.inside(End::Client, || {
        let mut client = Client::connect(url).expect("the node is there");
        for key in 0..KEYS {
            let of_key = done.iter().filter(|it| it.key == key);
            let newest = of_key.map(|it| it.version).max().unwrap_or(0);
            let (version, _) = found(&mut client, key).expect("an answer");
            assert!(
                version >= newest,
                "key {key}: {version}, and {newest} was seen"
            );
        }
        for put in done.iter().filter(|it| it.is_put) {
            let found = client.get(&key_of(put.key), Selector::Version(put.version));
            let found = found.unwrap_or_else(|error| panic!("{put:?}: {error}"));
            assert_eq!(number_of(&found.value), put.number);
        }
    });
}

#[test]
fn a_node_is_linearizable_under_all_faults_with_digests_and_without() {
    let lab = TestLab::up("node", &["--server", "node"]);
    let url: Url = format!("nvme://{}", lab.address())
        .parse()
        .expect("an address");
    let all = Digests {
        header: true,
        data: true,
    };
    // Keys have versions from before, so the second round begins with what the first has left.
    for digests in [Digests::default(), all] {
        let history = linearizable_under_faults(&lab, &url, digests);
        assert_all_is_there(&lab, &url, &history);
        lab.inside(End::Client, || {
            let mut client = Client::connect(&url).expect("the node is there");
            for key in 0..KEYS {
                client.delete(&key_of(key), None).expect("deleted");
            }
        });
    }
}

#[test]
fn a_node_takes_no_settings_of_redis_and_no_boost() {
    for words in [
        &["--mode", "read"][..],
        &["--redis-arg", "maxmemory=1mb"],
        &["--io-threads", "2"],
    ] {
        let mut command = std::process::Command::new(erb_e2e::lab::erb_bin());
        command.args(["lab", "up", "--name", "e2e-nodebad", "--server", "node"]);
        let output = command.args(words).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains("a node"),
            "{words:?}: {error}"
        );
    }
}
