// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client's half of DH-HMAC-CHAP, one per connection. Its invariants stand in `auth/mod.rs`.

use super::hash::{Question, Role};
use super::message::{Failure, Message};
use super::{Computed, Group, Hash, Job, Names, Policy, Secrets, drawn, drawn_sequence, is_same};
use crate::random::Random;

/// What the client does next.
#[derive(Debug)]
pub enum Next {
    /// Sends this, then fetches a message.
    Send(Vec<u8>),
    /// Sends this, and both ends are known.
    SendLast(Vec<u8>),
    /// Computes this.
    Compute(Job),
    /// Both ends are known.
    Done,
    /// Sends this and gives up.
    Fail(Failure, Vec<u8>),
    /// The same: the node has answered, and does not know its secret.
    NoProof(Vec<u8>),
}

#[derive(Debug)]
enum Stage {
    Negotiated,
    Computing,
    Replied(Option<Vec<u8>>),
    Over,
}

/// The client's half.
#[derive(Debug)]
pub struct Prover {
    names: Names,
    secrets: Secrets,
    policy: Policy,
    stage: Stage,
    transaction: u16,
    hash: Hash,
    group: Group,
    challenge: Vec<u8>,
    sequence: u32,
    /// What this end asks.
    own: Option<(u32, Vec<u8>)>,
}

impl Prover {
    /// Begins, with a message to send.
    #[must_use]
    pub fn new(
        names: Names,
        secrets: Secrets,
        policy: Policy,
        random: &mut dyn Random,
    ) -> (Self, Vec<u8>) {
        let drawn = drawn(random, 2);
        let prover = Self {
            names,
            secrets,
            stage: Stage::Negotiated,
            transaction: u16::from_le_bytes([drawn[0], drawn[1]]),
            hash: Hash::Sha256,
            group: Group::Null,
            challenge: Vec::new(),
            sequence: 0,
            own: None,
            policy,
        };
        let negotiate = Message::Negotiate {
            hashes: prover.policy.hashes.clone(),
            groups: prover.policy.groups.clone(),
            is_concatenated: false,
        };
        let bytes = negotiate.bytes(prover.transaction);
        (prover, bytes)
    }

    /// The node sent a message.
    pub fn received(&mut self, bytes: &[u8], random: &mut dyn Random) -> Next {
        let judged = Message::of(bytes).and_then(|(message, transaction)| {
            if transaction == self.transaction {
                self.take(message, random)
            } else {
                Err(Failure::Message)
            }
        });
        judged.unwrap_or_else(|failure| self.fail(failure))
    }

    fn fail(&mut self, failure: Failure) -> Next {
        self.stage = Stage::Over;
        let message = Message::Failure2(failure);
        Next::Fail(failure, message.bytes(self.transaction))
    }

    fn take(&mut self, message: Message, random: &mut dyn Random) -> Result<Next, Failure> {
        match (&self.stage, message) {
            (_, Message::Failure1(failure)) => Err(failure),
            (
                Stage::Negotiated,
                Message::Challenge {
                    hash,
                    group,
                    sequence,
                    challenge,
                    value,
                },
            ) => {
                if !self.policy.hashes.contains(&hash) {
                    return Err(Failure::Hash);
                }
                if !self.policy.groups.contains(&group) {
                    return Err(Failure::Group);
                }
                (self.hash, self.group) = (hash, group);
                (self.sequence, self.challenge) = (sequence, challenge);
                self.challenged(value, random)
            }
            (Stage::Replied(expected), Message::Success1 { response, .. }) => {
                match (expected, response) {
                    (None, _) => {
                        self.stage = Stage::Over;
                        Ok(Next::Done)
                    }
                    (Some(expected), Some(response)) if is_same(expected, &response) => {
                        self.stage = Stage::Over;
                        Ok(Next::SendLast(Message::Success2.bytes(self.transaction)))
                    }
                    (Some(_), _) => {
                        self.stage = Stage::Over;
                        let message = Message::Failure2(Failure::Failed);
                        Ok(Next::NoProof(message.bytes(self.transaction)))
                    }
                }
            }
            _ => Err(Failure::Message),
        }
    }

    fn challenged(&mut self, value: Vec<u8>, random: &mut dyn Random) -> Result<Next, Failure> {
        if self.secrets.subsystem.is_some() {
            let challenge = drawn(random, self.hash.bytes());
            self.own = Some((drawn_sequence(random), challenge));
        }
        if self.group == Group::Null {
            return if value.is_empty() {
                Ok(self.reply(&Computed {
                    public: Vec::new(),
                    shared: Vec::new(),
                }))
            } else {
                Err(Failure::Payload)
            };
        }
        if !self.group.is_usable(&value) {
            return Err(Failure::Payload);
        }
        self.stage = Stage::Computing;
        let exponent = drawn(random, self.group.exponent_bytes());
        Ok(Next::Compute(Job::new(self.group, exponent, Some(value))))
    }

    /// A job is done.
    pub fn computed(&mut self, computed: &Computed) -> Next {
        if matches!(self.stage, Stage::Computing) {
            self.reply(computed)
        } else {
            self.fail(Failure::Message)
        }
    }

    fn reply(&mut self, computed: &Computed) -> Next {
        let question = Question {
            hash: self.hash,
            challenge: &self.challenge,
            shared: &computed.shared,
            sequence: self.sequence,
            transaction: self.transaction,
            host: &self.names.host,
            subsystem: &self.names.subsystem,
        };
        let response = question.response(Role::Host, &self.secrets.host);
        let asked = self.own.as_ref().zip(self.secrets.subsystem.as_ref());
        let expected = asked.map(|((sequence, challenge), secret)| {
            let question = Question {
                challenge,
                sequence: *sequence,
                ..question
            };
            question.response(Role::Controller, secret)
        });
        self.stage = Stage::Replied(expected);
        let reply = Message::Reply {
            response,
            challenge: self.own.clone(),
            value: computed.public.clone(),
        };
        Next::Send(reply.bytes(self.transaction))
    }
}
