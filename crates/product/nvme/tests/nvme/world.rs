// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target over the fake store, and clients of it: bytes go between them in pieces of any size.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use erb_nvme::auth::{Hash, Policy, Secret, Secrets};
use erb_nvme::client::{Call, CallId, Connection, Ended, Event, Reply, Settings};
use erb_nvme::limits::Limits;
use erb_nvme::pdu::Digests;
use erb_nvme::target::{
    self, ANY_CONTROLLER, Config, ConnectionId, Host, Namespace, Port, Proof, Role, Target,
};

use crate::dice::Dice;
use crate::fake::Fake;

pub const NQN: &str = "nqn.2026-11.org.erb:node";
pub const ALICE: &str = "nqn.2026-11.org.erb:alice";
pub const BOB: &str = "nqn.2026-11.org.erb:bob";
pub const READER: &str = "nqn.2026-11.org.erb:reader";
pub const WRITER: &str = "nqn.2026-11.org.erb:writer";

pub fn secret(byte: u8) -> Secret {
    Secret::of_key(vec![byte; 32], Some(Hash::Sha256)).expect("32 bytes")
}

pub fn secrets() -> Secrets {
    Secrets {
        host: secret(1),
        subsystem: Some(secret(2)),
    }
}

pub fn host(nqn: &str, number: u32, role: Role) -> Arc<Host> {
    Arc::new(Host {
        nqn: nqn.to_owned(),
        number,
        roles: [(1, role)].into(),
        secrets: Some(secrets()),
    })
}

pub fn config(limits: Limits) -> Config {
    Config {
        nqn: NQN.to_owned(),
        serial: "ERB1".to_owned(),
        model: "ERB node".to_owned(),
        firmware: "0.1".to_owned(),
        namespaces: (1..=2)
            .map(|id: u8| Namespace {
                id: u32::from(id),
                nguid: [id; 16],
                uuid: [0x10 + id; 16],
                size_bytes: 1 << 30,
            })
            .collect(),
        hosts: vec![
            host(ALICE, 1, Role::Admin),
            host(BOB, 2, Role::Admin),
            host(READER, 3, Role::Reader),
            host(WRITER, 4, Role::Writer),
        ],
        guests: BTreeMap::new(),
        proof: Proof::NotOnLoopback,
        policy: Policy::default(),
        ports: vec![Port {
            address: "127.0.0.1".to_owned(),
            port: 4420,
        }],
        limits,
    }
}

pub fn settings(host: &str, queue: u16, controller: u16) -> Settings {
    Settings {
        host: host.to_owned(),
        host_id: [7; 16],
        subsystem: NQN.to_owned(),
        controller,
        queue,
        depth: 32,
        keep_alive_ms: 5000,
        digests: Digests::default(),
        alignment: 0,
        io_queues: 4,
        secrets: None,
        policy: Policy::default(),
        in_capsule_bytes: 8192,
        timeout_us: 30_000_000,
    }
}

/// A connection with both ends.
pub struct Link {
    pub client: Connection,
    pub id: ConnectionId,
    /// What the target's half ended with.
    pub target_ended: Option<target::Ended>,
    pub client_ended: Option<Ended>,
    pub replies: HashMap<CallId, Reply>,
    pub lost: Vec<CallId>,
    /// Nothing goes to the client.
    pub is_deaf: bool,
    /// Every byte that went, from the client if true.
    pub record: Option<Vec<(bool, Vec<u8>)>>,
}

pub struct World {
    pub target: Target<Fake>,
    pub links: Vec<Link>,
    pub now_us: u64,
    pub dice: Dice,
    /// Bytes that go in one piece at most.
    pub piece: usize,
    pub records: bool,
}

impl World {
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            target: Target::new(config, Fake::default(), Box::new(Dice::new(seed ^ 1))),
            links: Vec::new(),
            now_us: 1_000_000,
            dice: Dice::new(seed),
            piece: 1 << 20,
            records: false,
        }
    }

    pub fn usual() -> Self {
        Self::new(config(Limits::default()), 7)
    }

    /// A connection that is not up yet.
    pub fn open(&mut self, settings: Settings, is_loopback: bool) -> usize {
        let id = self.target.open(is_loopback, self.now_us);
        let random = Box::new(Dice::new(self.dice.roll()));
        self.links.push(Link {
            client: Connection::new(settings, random, self.now_us),
            id: id.expect("there is room for a connection"),
            target_ended: None,
            client_ended: None,
            replies: HashMap::new(),
            lost: Vec::new(),
            is_deaf: false,
            record: self.records.then(Vec::new),
        });
        self.links.len() - 1
    }

    /// A connection that is up.
    pub fn connect(&mut self, settings: Settings) -> usize {
        let link = self.open(settings, true);
        self.run();
        let found = &self.links[link];
        assert!(
            found.client.is_up(),
            "{:?} {:?}",
            found.client_ended,
            found.target_ended
        );
        link
    }

    /// Admin queue and I/O queue of a controller.
    pub fn controller(&mut self, host: &str) -> (usize, usize) {
        let admin = self.connect(settings(host, 0, ANY_CONTROLLER));
        let id = self.links[admin].client.controller();
        (admin, self.connect(settings(host, 1, id)))
    }

    /// Lets everything go on until nothing moves.
    pub fn run(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let mut moved = false;
            for link in 0..self.links.len() {
                moved |= self.bring_to_target(link);
                moved |= self.bring_to_client(link);
                moved |= self.events(link);
            }
            while let Some((id, job)) = self.target.next_job() {
                moved = true;
                let computed = job.run();
                self.target.computed(id, computed);
            }
            let done = self.target.backend().done;
            self.target.turn(self.now_us);
            moved |= done != self.target.backend().done;
            for (id, ended) in self.target.over(self.now_us) {
                moved = true;
                self.over(id, ended);
            }
            quiet = if moved { 0 } else { quiet + 1 };
        }
    }

    fn over(&mut self, id: ConnectionId, ended: target::Ended) {
        self.target.close(id, self.now_us);
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.target_ended = Some(ended);
            link.client.close();
        }
    }

    fn piece_of(&mut self, length: usize) -> usize {
        let most = self.piece.min(length);
        if self.piece < 1 << 20 {
            1 + self.dice.below(most)
        } else {
            most
        }
    }

    fn bring_to_target(&mut self, link: usize) -> bool {
        let output = self.links[link].client.output().to_vec();
        if output.is_empty() || !self.target.wants_bytes(self.links[link].id, self.now_us) {
            return false;
        }
        let piece = self.piece_of(output.len());
        let taken = self
            .target
            .receive(self.links[link].id, &output[..piece], self.now_us);
        if let Some(record) = &mut self.links[link].record {
            record.push((true, output[..taken].to_vec()));
        }
        self.links[link].client.sent(taken);
        taken > 0
    }

    fn bring_to_client(&mut self, link: usize) -> bool {
        let id = self.links[link].id;
        let output = self.target.output(id).to_vec();
        if output.is_empty() || self.links[link].is_deaf {
            return false;
        }
        let piece = self.piece_of(output.len());
        self.target.sent(id, piece, self.now_us);
        if let Some(record) = &mut self.links[link].record {
            record.push((false, output[..piece].to_vec()));
        }
        self.links[link]
            .client
            .receive(&output[..piece], self.now_us);
        true
    }

    fn events(&mut self, link: usize) -> bool {
        let mut moved = false;
        let now_us = self.now_us;
        let link = &mut self.links[link];
        while let Some(event) = link.client.event() {
            moved = true;
            match event {
                Event::Up => {}
                Event::Done(id, reply) => {
                    assert!(link.replies.insert(id, reply).is_none(), "answered once");
                }
                Event::Lost(id) => link.lost.push(id),
                Event::Compute(job) => link.client.computed(&job.run(), now_us),
                Event::Ended(ended) => link.client_ended = Some(ended),
            }
        }
        moved
    }

    /// Time passes, as long as both ends are looked after.
    pub fn pass(&mut self, us: u64) {
        let until_us = self.now_us + us;
        while self.now_us < until_us {
            self.now_us = until_us.min(self.now_us + 100_000);
            for link in 0..self.links.len() {
                let now_us = self.now_us;
                self.links[link].client.tick(now_us);
            }
            self.run();
        }
    }

    /// Makes a call without waiting for its answer.
    pub fn start(&mut self, link: usize, call: Call) -> CallId {
        let now_us = self.now_us;
        let id = self.links[link].client.call(call, now_us);
        id.expect("the call is taken")
    }

    /// Makes a call.
    pub fn call(&mut self, link: usize, call: Call) -> Reply {
        let id = self.start(link, call);
        self.run();
        let found = self.links[link].replies.remove(&id);
        found.unwrap_or_else(|| {
            let link = &self.links[link];
            panic!("no answer: {:?} {:?}", link.client_ended, link.target_ended)
        })
    }

    /// The client's half goes away without a word.
    pub fn cut(&mut self, link: usize) {
        self.target.close(self.links[link].id, self.now_us);
        self.links[link].client.close();
        self.events(link);
    }
}
