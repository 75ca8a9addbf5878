// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A public report as a list of steps.

use std::time::Duration;

use erb_check::pair::without_hello_id;

use crate::words;

/// A connection of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Does what was reported.
    A,
    /// Another client: writes, ends what A waits for.
    B,
    /// A third one.
    C,
}

/// What rightly differs between two equal servers, and is taken out of one reply on both sides. There is no
/// other exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// `id` in HELLO's reply.
    HelloId,
    /// In ROLE's reply of a replica: whether it tries to connect or waits to try again.
    RoleState,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Commands as [`words`].
    Words(String),
    /// Bytes as they are, but for the key prefix.
    Bytes(String),
}

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends; this is what is cut.
    Say(Who, Said),
    /// So many replies are compared.
    Get(Who, usize),
    /// Everything up to these bytes is compared: where the number of replies depends on the server.
    Until(Who, &'static str),
    /// One reply is compared with this taken out.
    Masked(Who, Mask),
    /// Everything is compared until both sides are silent or have closed.
    All(Who),
    /// Until CLIENT LIST shows of the connection what stands here: no clock is asked.
    Shown(Who, Shown),
    /// Until a command of the control connection has this in its reply, on both sides.
    Says(&'static str, &'static str),
    /// Commands whose replies depend on the moment: their number is compared, not what they are.
    Moment(Who, &'static str),
    /// Nothing for a while.
    Wait(Duration),
    /// Reads one after the other for so long, each compared.
    Keep(Who, &'static str, Duration),
    /// ERB answers this read of the connection again, after what it has done.
    InFront(Who, &'static str),
    /// So many further connections send this at once, and get so many replies each.
    Crowd(usize, String, usize),
}

/// What CLIENT LIST shows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It waits in a command.
    Blocked,
    /// This is its last command.
    Command(&'static str),
}

/// What a sequence needs of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// A command that older servers do not have.
    Command(&'static str),
    /// A command that the server must take: it is tried by the control connection.
    Accepts(&'static str),
    /// Another server beside each, to be a replica of.
    Primary,
    /// What no lab of this check has.
    Nowhere(&'static str),
}

/// A sequence, with the report that it was made from.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Name, unique.
    pub name: &'static str,
    /// Project and number.
    pub report: &'static str,
    /// What the control connection says before and after.
    pub given: Vec<String>,
    /// See `given`.
    pub finally: Vec<String>,
    /// Reads that are warm in the warm world.
    pub hot: Vec<String>,
    /// What it does is everybody's, so no other play may go on.
    pub alone: bool,
    /// It takes seconds, so it is played whole.
    pub uncut: bool,
    /// Servers ask for [`PASSWORD`] while it is played, and its connections have not shown it.
    pub password: bool,
    /// On a server with threads that read and write.
    pub threads: bool,
    /// What else it needs.
    pub needs: Vec<Need>,
    /// What is done.
    pub steps: Vec<Step>,
}

/// The password of [`Sequence::password`].
pub const PASSWORD: &str = "pw";
/// What [`Sequence::to_the_mark`] waits for.
pub const MARK: &str = "$8\r\nthe-mark\r\n";

impl Sequence {
    /// One in which `{p}w` holds "warm", which is read before.
    pub fn new(name: &'static str, report: &'static str) -> Self {
        Self {
            name,
            report,
            given: vec!["SET {p}w warm".to_owned()],
            finally: Vec::new(),
            hot: vec!["GET {p}w".to_owned()],
            alone: false,
            uncut: false,
            password: false,
            threads: false,
            needs: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Commands of the control connection before it.
    pub fn given(mut self, commands: &str) -> Self {
        self.given.push(commands.to_owned());
        self
    }

    /// Commands of the control connection after it.
    pub fn finally(mut self, commands: &str) -> Self {
        self.finally.push(commands.to_owned());
        self
    }

    /// More reads that are warm.
    pub fn hot(mut self, reads: &str) -> Self {
        self.hot.push(reads.to_owned());
        self
    }

    /// What it changes is everybody's.
    pub const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// It takes seconds.
    pub const fn uncut(mut self) -> Self {
        self.uncut = true;
        self
    }

    /// On servers with a password, which the control connections need not show.
    pub fn password(mut self) -> Self {
        self.password = true;
        self.alone()
            .given(&format!("CONFIG SET requirepass {PASSWORD}"))
            .finally("CONFIG SET requirepass ''")
    }

    /// On a server with threads.
    pub const fn threads(mut self) -> Self {
        self.threads = true;
        self
    }

    /// What it needs.
    pub fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// One that is listed, and cannot be played.
    pub fn nowhere(name: &'static str, report: &'static str, why: &'static str) -> Self {
        Self::new(name, report).needs(Need::Nowhere(why))
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Commands in one segment.
    pub fn say(self, who: Who, commands: impl Into<String>) -> Self {
        self.step(Step::Say(who, Said::Words(commands.into())))
    }

    /// Bytes in one segment.
    pub fn raw(self, who: Who, bytes: impl Into<String>) -> Self {
        self.step(Step::Say(who, Said::Bytes(bytes.into())))
    }

    /// So many replies.
    pub fn get(self, who: Who, replies: usize) -> Self {
        self.step(Step::Get(who, replies))
    }

    /// Commands in one segment, and one reply to each.
    pub fn ask(self, who: Who, commands: impl Into<String>) -> Self {
        let commands = commands.into();
        let replies = words::split(&commands).len();
        self.say(who, commands).get(who, replies)
    }

    /// Commands in one segment, and all replies up to that of a last one: there may be more than one reply
    /// to a command, or none.
    pub fn to_the_mark(self, who: Who, commands: &str) -> Self {
        let commands = format!("{commands} ; ECHO the-mark");
        self.say(who, commands).step(Step::Until(who, MARK))
    }

    /// All replies up to these bytes.
    pub fn until(self, who: Who, bytes: &'static str) -> Self {
        self.step(Step::Until(who, bytes))
    }

    /// One reply, masked.
    pub fn masked(self, who: Who, mask: Mask) -> Self {
        self.step(Step::Masked(who, mask))
    }

    /// `HELLO` with these words, alone in its segment.
    pub fn hello(self, who: Who, words: &str) -> Self {
        self.say(who, format!("HELLO {words}"))
            .masked(who, Mask::HelloId)
    }

    /// Everything until silence or the end.
    pub fn all(self, who: Who) -> Self {
        self.step(Step::All(who))
    }

    /// Until it waits in a command.
    pub fn blocked(self, who: Who) -> Self {
        self.step(Step::Shown(who, Shown::Blocked))
    }

    /// Until this was its last command.
    pub fn did(self, who: Who, command: &'static str) -> Self {
        self.step(Step::Shown(who, Shown::Command(command)))
    }

    /// Until both servers say so.
    pub fn says(self, command: &'static str, text: &'static str) -> Self {
        self.step(Step::Says(command, text))
    }

    /// Replies that depend on the moment.
    pub fn moment(self, who: Who, commands: &'static str) -> Self {
        self.step(Step::Moment(who, commands))
    }

    /// Nothing for a while.
    pub fn wait_ms(self, ms: u64) -> Self {
        self.step(Step::Wait(Duration::from_millis(ms)))
    }

    /// Reads for so long.
    pub fn keep_ms(self, who: Who, read: &'static str, ms: u64) -> Self {
        self.step(Step::Keep(who, read, Duration::from_millis(ms)))
    }

    /// ERB answers again.
    pub fn in_front(self, who: Who, read: &'static str) -> Self {
        self.step(Step::InFront(who, read))
    }

    /// Further connections.
    pub fn crowd(self, connections: usize, commands: String) -> Self {
        let replies = words::split(&commands).len();
        self.step(Step::Crowd(connections, commands, replies))
    }

    /// Its connections.
    pub fn who(&self) -> Vec<Who> {
        let mut all: Vec<Who> = self.steps.iter().filter_map(Step::who).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Step {
    /// Whose step it is.
    pub const fn who(&self) -> Option<Who> {
        match self {
            Self::Say(who, _)
            | Self::Get(who, _)
            | Self::Until(who, _)
            | Self::Masked(who, _)
            | Self::All(who)
            | Self::Shown(who, _)
            | Self::Moment(who, _)
            | Self::Keep(who, ..)
            | Self::InFront(who, _) => Some(*who),
            Self::Says(..) | Self::Wait(_) | Self::Crowd(..) => None,
        }
    }
}

/// The reply without what rightly differs.
pub fn masked(reply: &[u8], mask: Mask) -> Vec<u8> {
    match mask {
        Mask::HelloId => without_hello_id(reply),
        Mask::RoleState => {
            const TRIES: &str = "$10\r\nconnecting\r\n";
            let text = String::from_utf8_lossy(reply);
            text.replace(TRIES, "$7\r\nconnect\r\n").into_bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_take_out_what_they_name_and_nothing_else() {
        let hello = b"*4\r\n$2\r\nid\r\n:17\r\n$4\r\nmode\r\n:17\r\n";
        assert_eq!(
            masked(hello, Mask::HelloId),
            b"*4\r\n$2\r\nid\r\n:N\r\n$4\r\nmode\r\n:17\r\n"
        );
        assert_eq!(masked(b"-ERR :17\r\n", Mask::HelloId), b"-ERR :17\r\n");
        assert_eq!(
            masked(b"*1\r\n$10\r\nconnecting\r\n", Mask::RoleState),
            b"*1\r\n$7\r\nconnect\r\n"
        );
    }

    #[test]
    fn a_sequence_knows_its_connections_and_replies() {
        let one = Sequence::new("x", "y")
            .ask(Who::B, "PING ; PING")
            .all(Who::A);
        assert_eq!(one.who(), [Who::A, Who::B]);
        assert!(matches!(one.steps[1], Step::Get(Who::B, 2)));
    }
}
