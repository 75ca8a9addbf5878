// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer over a socket that sends whatever a test likes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use erb_kv::Identity;
use erb_nvme::auth::{Group, Hash, Message, Names, Next, Policy, Prover};
use erb_nvme::client::Call;
use erb_nvme::client::calls::{self, Connect};
use erb_nvme::command::{Cqe, SGL_IN_CAPSULE, SGL_TRANSPORT};
use erb_nvme::pdu::{self, Digests, Kind};
use erb_nvme::random::Random;
use erb_nvme::target::ANY_CONTROLLER;
use socket2::{Domain, Socket, Type};

/// What an admin queue's Connect says, of a host with this name.
pub(crate) fn connect<'a>(host: &'a str, subsystem: &'a str) -> Connect<'a> {
    Connect {
        host,
        host_id: [7; 16],
        subsystem,
        controller: ANY_CONTROLLER,
        queue: 0,
        depth: 32,
        keep_alive_ms: 0,
    }
}

/// Draws from the system, or the same bytes again and again.
pub(crate) struct Dice(pub(crate) Option<Vec<u8>>);

impl Random for Dice {
    fn fill(&mut self, bytes: &mut [u8]) {
        match &self.0 {
            Some(again) => {
                let again = again.iter().cycle();
                bytes
                    .iter_mut()
                    .zip(again)
                    .for_each(|(to, from)| *to = *from);
            }
            None => getrandom::fill(bytes).expect("random numbers"),
        }
    }
}

/// The smallest group, so that tests are short.
pub(crate) fn policy() -> Policy {
    Policy {
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Ffdhe2048],
    }
}

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    next: u16,
    begun: Instant,
    has_proved_itself: bool,
}

/// A connection that comes from an address of loopback and says nothing.
pub(crate) fn silent(to: SocketAddr, from: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((from, 0));
    socket.bind(&from.into()).expect("it is an address of lo");
    socket.connect(&to.into()).expect("the node listens");
    let stream = TcpStream::from(socket);
    let patience = Some(Duration::from_secs(120));
    stream.set_read_timeout(patience).expect("a socket");
    stream
}

impl Peer {
    /// Both ends have agreed on digests: none.
    pub(crate) fn agreed(to: SocketAddr) -> Self {
        let mut peer = Self {
            stream: silent(to, Ipv4Addr::LOCALHOST),
            next: 0,
            begun: Instant::now(),
            has_proved_itself: false,
        };
        peer.send(&pdu::ic(Kind::IcReq, 0, Digests::default(), 0));
        assert_eq!(peer.pdu().expect("an answer")[0], Kind::IcResp as u8);
        peer
    }

    /// A queue that still has to prove itself.
    pub(crate) fn connected(to: SocketAddr, host: &str) -> Self {
        let mut peer = Self::agreed(to);
        let (answer, _) = peer.call(calls::connect(&connect(host, erb_node::NQN)));
        assert_eq!(
            answer.result >> 17,
            1,
            "authentication is wanted: {answer:?}"
        );
        peer
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // The node may end the connection before all of it is sent.
        let _ = self.stream.write_all(bytes);
    }

    /// The next PDU; nothing: the node has ended the connection.
    pub(crate) fn pdu(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 8];
        self.stream.read_exact(&mut bytes).ok()?;
        let length = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")) as usize;
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[8..]).ok()?;
        Some(bytes)
    }

    /// Sends a command.
    pub(crate) fn start(&mut self, call: Call) -> u16 {
        self.next += 1;
        let mut sqe = call.sqe;
        sqe.set_id(self.next);
        let bytes = u32::try_from(call.data.len().max(call.room)).expect("small");
        if !call.data.is_empty() {
            sqe.set_data(SGL_IN_CAPSULE, bytes);
        } else if bytes > 0 {
            sqe.set_data(SGL_TRANSPORT, bytes);
        }
        let mut pdu = pdu::command(&sqe.0, Digests::default(), call.data.len(), 4);
        pdu.extend_from_slice(&call.data);
        self.send(&pdu);
        self.next
    }

    /// Sends a command; its response and data. Nothing: the connection ended.
    pub(crate) fn try_call(&mut self, call: Call) -> Option<(Cqe, Vec<u8>)> {
        let id = self.start(call);
        let mut data = Vec::new();
        loop {
            let Some(pdu) = self.pdu() else {
                if !self.has_proved_itself {
                    crate::assert_in_time(self.begun, "the node has ended the connection");
                }
                return None;
            };
            if pdu[0] == Kind::C2hData as u8 {
                data.extend_from_slice(&pdu[24..]);
            } else if pdu[0] == Kind::Response as u8 {
                let cqe = Cqe::of(&pdu[8..]);
                assert_eq!(cqe.id, id, "one at a time");
                return Some((cqe, data));
            } else {
                panic!("PDU {}", pdu[0]);
            }
        }
    }

    pub(crate) fn call(&mut self, call: Call) -> (Cqe, Vec<u8>) {
        self.try_call(call).expect("an answer")
    }

    /// Sends a message of authentication; the node's next one.
    pub(crate) fn say(&mut self, message: Vec<u8>) -> Option<Message> {
        let (sent, _) = self.try_call(calls::auth_send(message))?;
        assert!(sent.status.is_ok(), "{sent:?}");
        let (_, data) = self.try_call(calls::auth_receive(4096))?;
        Message::of(&data).ok().map(|(message, _)| message)
    }

    /// Begins authentication: the challenge.
    pub(crate) fn challenge(&mut self) -> Message {
        let negotiate = Message::Negotiate {
            hashes: policy().hashes,
            groups: policy().groups,
            is_concatenated: false,
        };
        self.say(negotiate.bytes(TRANSACTION)).expect("a challenge")
    }

    /// Proves itself, with random numbers of its own: what the node says to the reply, and the reply. `change` changes
    /// the random numbers when the challenge is known.
    pub(crate) fn prove(
        &mut self,
        identity: &Identity,
        mut change: impl FnMut(&Message) -> Dice,
    ) -> (Option<Message>, Vec<u8>) {
        let names = Names {
            host: identity.host.clone(),
            subsystem: erb_node::NQN.to_owned(),
        };
        let secrets = identity.secrets.clone().expect("secrets");
        let (mut prover, negotiate) = Prover::new(names, secrets, policy(), &mut Dice(None));
        let transaction = u16::from_le_bytes([negotiate[4], negotiate[5]]);
        let challenge = self.say(negotiate).expect("a challenge");
        let mut dice = change(&challenge);
        let Next::Compute(job) = prover.received(&challenge.bytes(transaction), &mut dice) else {
            panic!("a power is to be computed");
        };
        let Next::Send(reply) = prover.computed(&job.run()) else {
            panic!("a reply");
        };
        let said = self.say(reply.clone());
        self.has_proved_itself = matches!(said, Some(Message::Success1 { .. }));
        (said, reply)
    }

    /// Whether the node ends the connection.
    pub(crate) fn ends(&mut self) -> bool {
        while self.pdu().is_some() {}
        // A reset says so too.
        let read = self.stream.read(&mut [0]);
        !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

/// Of conversations by hand.
pub(crate) const TRANSACTION: u16 = 77;
