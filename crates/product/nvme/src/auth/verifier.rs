// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's half of DH-HMAC-CHAP, one per connection. Its invariants stand in `auth/mod.rs`.
//!
//! ```text
//! Start ─negotiate─► (Computing) ─► Say challenge ─► Asked ─reply─► (Proving) ─► Say success 1
//!   ─► Done, or if the host asked: WaitSuccess ─success 2─► Done;      any ─► Say failure 1 ─► Failed
//! ```

use super::hash::{Question, Role};
use super::message::{Failure, Message};
use super::{Computed, Group, Hash, Job, Names, Policy, Secrets, drawn, drawn_sequence, is_same};
use crate::random::Random;

#[derive(Debug)]
enum Stage {
    Start,
    /// The node's value is being computed.
    Computing,
    /// The host may fetch a message; then this comes.
    Say(Message, After),
    Asked,
    /// The shared value is being computed.
    Proving(Proof),
    WaitSuccess,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug)]
enum After {
    Asked,
    WaitSuccess,
    Done,
    Failed,
}

/// What the host sent in its reply.
#[derive(Debug)]
struct Proof {
    response: Vec<u8>,
    challenge: Option<(u32, Vec<u8>)>,
}

/// The node's half.
#[derive(Debug)]
pub struct Verifier {
    names: Names,
    secrets: Secrets,
    policy: Policy,
    stage: Stage,
    transaction: u16,
    hash: Hash,
    group: Group,
    exponent: Vec<u8>,
    public: Vec<u8>,
    challenge: Vec<u8>,
    sequence: u32,
    failure: Option<Failure>,
}

impl Verifier {
    /// Of a connection whose host has named itself.
    #[must_use]
    pub fn new(names: Names, secrets: Secrets, policy: Policy) -> Self {
        Self {
            names,
            secrets,
            policy,
            stage: Stage::Start,
            transaction: 0,
            hash: Hash::Sha256,
            group: Group::Null,
            exponent: Vec::new(),
            public: Vec::new(),
            challenge: Vec::new(),
            sequence: 0,
            failure: None,
        }
    }

    /// Whether the host is known, and knows the node if it asked.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Whether it is over without success, and the host has been told.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        matches!(self.stage, Stage::Failed)
    }

    /// Why it failed.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The host sent a message.
    pub fn send(&mut self, bytes: &[u8], random: &mut dyn Random) -> Option<Job> {
        let message = Message::of(bytes);
        if let Ok((Message::Failure2(failure), _)) = message {
            self.failure = Some(failure);
            self.stage = Stage::Failed;
            return None;
        }
        let judged =
            message.and_then(|(message, transaction)| self.take(message, transaction, random));
        judged.unwrap_or_else(|failure| {
            self.fail(failure);
            None
        })
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.stage = Stage::Say(Message::Failure1(failure), After::Failed);
    }

    fn take(
        &mut self,
        message: Message,
        transaction: u16,
        random: &mut dyn Random,
    ) -> Result<Option<Job>, Failure> {
        match (&self.stage, message) {
            (
                Stage::Start,
                Message::Negotiate {
                    hashes,
                    groups,
                    is_concatenated,
                },
            ) => {
                if is_concatenated {
                    return Err(Failure::Concatenation);
                }
                self.transaction = transaction;
                self.negotiate(&hashes, &groups, random)
            }
            _ if transaction != self.transaction => Err(Failure::Message),
            (
                Stage::Asked,
                Message::Reply {
                    response,
                    challenge,
                    value,
                },
            ) => self.reply(
                Proof {
                    response,
                    challenge,
                },
                value,
            ),
            (Stage::WaitSuccess, Message::Success2) => {
                self.stage = Stage::Done;
                Ok(None)
            }
            _ => Err(Failure::Message),
        }
    }

    fn negotiate(
        &mut self,
        hashes: &[Hash],
        groups: &[Group],
        random: &mut dyn Random,
    ) -> Result<Option<Job>, Failure> {
        let mut wanted = self.policy.hashes.iter();
        let hash = wanted.find(|hash| hashes.contains(hash));
        self.hash = *hash.ok_or(Failure::Hash)?;
        let mut wanted = self.policy.groups.iter();
        let group = wanted.find(|group| groups.contains(group));
        self.group = *group.ok_or(Failure::Group)?;
        self.challenge = drawn(random, self.hash.bytes());
        self.sequence = drawn_sequence(random);
        if self.group == Group::Null {
            self.ask();
            return Ok(None);
        }
        self.exponent = drawn(random, self.group.exponent_bytes());
        self.stage = Stage::Computing;
        Ok(Some(Job::new(self.group, self.exponent.clone(), None)))
    }

    fn ask(&mut self) {
        let challenge = Message::Challenge {
            hash: self.hash,
            group: self.group,
            sequence: self.sequence,
            challenge: self.challenge.clone(),
            value: self.public.clone(),
        };
        self.stage = Stage::Say(challenge, After::Asked);
    }

    fn reply(&mut self, proof: Proof, value: Vec<u8>) -> Result<Option<Job>, Failure> {
        if proof.response.len() != self.hash.bytes() {
            return Err(Failure::Hash);
        }
        if let Some((sequence, challenge)) = &proof.challenge {
            let is_reflected = *challenge == self.challenge;
            if *sequence == 0 || is_reflected || self.secrets.subsystem.is_none() {
                return Err(Failure::Failed);
            }
        }
        if self.group == Group::Null {
            return if value.is_empty() {
                self.prove(&proof, &[])
            } else {
                Err(Failure::Payload)
            };
        }
        if !self.group.is_usable(&value) || value == self.public {
            return Err(Failure::Payload);
        }
        self.stage = Stage::Proving(proof);
        let exponent = std::mem::take(&mut self.exponent);
        Ok(Some(Job::shared(self.group, exponent, value)))
    }

    /// A job is done.
    pub fn computed(&mut self, computed: Computed) {
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Computing => {
                self.public = computed.public;
                self.ask();
            }
            Stage::Proving(proof) => {
                if let Err(failure) = self.prove(&proof, &computed.shared) {
                    self.fail(failure);
                }
            }
            stage => self.stage = stage,
        }
    }

    fn prove(&mut self, proof: &Proof, shared: &[u8]) -> Result<Option<Job>, Failure> {
        let question = Question {
            hash: self.hash,
            challenge: &self.challenge,
            shared,
            sequence: self.sequence,
            transaction: self.transaction,
            host: &self.names.host,
            subsystem: &self.names.subsystem,
        };
        let expected = question.response(Role::Host, &self.secrets.host);
        if !is_same(&expected, &proof.response) {
            return Err(Failure::Failed);
        }
        let secret = self.secrets.subsystem.as_ref();
        let response = proof.challenge.as_ref().zip(secret);
        let response = response.map(|((sequence, challenge), secret)| {
            let question = Question {
                challenge,
                sequence: *sequence,
                ..question
            };
            question.response(Role::Controller, secret)
        });
        let after = if response.is_some() {
            After::WaitSuccess
        } else {
            After::Done
        };
        let length = self.hash.bytes();
        self.stage = Stage::Say(Message::Success1 { length, response }, after);
        Ok(None)
    }

    /// Whether the host has to wait for its next message.
    #[must_use]
    pub fn is_computing(&self) -> bool {
        matches!(self.stage, Stage::Computing | Stage::Proving(_))
    }

    /// The host fetches a message. Nothing: it is not the node's turn.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let Stage::Say(message, after) = &self.stage else {
            return None;
        };
        let bytes = message.bytes(self.transaction);
        self.stage = match after {
            After::Asked => Stage::Asked,
            After::WaitSuccess => Stage::WaitSuccess,
            After::Done => Stage::Done,
            After::Failed => Stage::Failed,
        };
        Some(bytes)
    }
}
