// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One play of a sequence: on both servers, in one world and one form.
//!
//! # Invariants
//! - P1. What is sent to one server is sent to the other, in the same segments; only numbers of clients differ.
//! - P2. Every byte that comes is compared. What a step takes out of one reply, it names ([`Mask`]).
//! - P3. No comparison depends on how fast a server is. What must have happened before is waited for, at the
//!   servers themselves ([`Step::Shown`], [`Step::Says`]).
//! - P4. Who has answered, the server says: a read is not the last command of its connection if it was answered in
//!   front of the server.
//!
//! [`Mask`]: crate::sequence::Mask

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_check::net::{Broken, Conn};
use erb_check::pair::{Pair, Played, Trouble, differs};
use erb_check::resp::{self, Reply};

use crate::cut::{self, Form};
use crate::ground::Ground;
use crate::sequence::{PASSWORD, Said, Sequence, Shown, Step, Who, masked};
use crate::words::{self, PREFIX};

/// Between two segments; of so many plays one waits until the acknowledgement has been sent as well.
const PAUSE: Duration = Duration::from_micros(300);
const LONG_PAUSE: Duration = Duration::from_millis(45);
const LONG_PAUSE_EVERY: usize = 16;
/// Where SETs are answered before they are executed, this is answered after they are. Its key has not the play's prefix
/// at its begin, which some connections listen to.
const EXECUTED: &str = "INCR n:{p}";
/// Silence that ends [`Step::All`].
const QUIET: Duration = Duration::from_millis(20);
/// Unasked bytes are awaited for this long at the end.
const END_WAIT: Duration = Duration::from_millis(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// Between two reads that are to be answered in front of the server: a fill takes about two round trips.
const WARM_PAUSE: Duration = Duration::from_millis(3);
/// How long that is tried before a play. A command of another play may keep everybody from it for a while.
const WARM_WAIT: Duration = Duration::from_secs(5);
/// How long it is tried by [`Step::InFront`]: far beyond what an idle machine needs.
const COMES_BACK_WAIT: Duration = Duration::from_secs(20);
/// So long a connection may be silent before the control connection says something.
const SILENCE: Duration = Duration::from_millis(500);
/// Between two reads of [`Step::Keep`].
const KEEP_PAUSE: Duration = Duration::from_millis(20);

/// How a play is done.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// What is read is cached, and the connections have been answered.
    pub warm: bool,
    /// How the bytes come.
    pub form: Form,
    /// Number of the play.
    pub number: usize,
}

/// Plays sequences one after the other.
pub struct Player<'a> {
    ground: &'a Ground,
    stall: Duration,
    control: Pair,
}

/// What is under way.
struct Scene<'a> {
    way: Way,
    prefix: String,
    pairs: BTreeMap<Who, Pair>,
    /// What was said last on each, for messages.
    said: BTreeMap<Who, Vec<u8>>,
    turn: usize,
    sequence: &'a Sequence,
}

fn broken(error: impl std::fmt::Display) -> Trouble {
    Trouble::Shadow(Broken::Garbage(format!("{error:#}")))
}

impl<'a> Player<'a> {
    /// Connects to both servers.
    ///
    /// # Errors
    /// If one cannot be reached.
    pub fn new(ground: &'a Ground, stall: Duration) -> anyhow::Result<Self> {
        let control = ground.pair(stall)?;
        Ok(Self {
            ground,
            stall,
            control,
        })
    }

    /// Plays it with a prefix that no other play had. Whether all that it reads was answered in front of the server
    /// when its steps began.
    pub fn play(&mut self, sequence: &Sequence, way: Way, prefix: String) -> Played<bool> {
        let mut scene = Scene {
            way,
            prefix,
            pairs: BTreeMap::new(),
            said: BTreeMap::new(),
            turn: 0,
            sequence,
        };
        let done = self.play_steps(&mut scene);
        if done.is_err() {
            self.recover();
        }
        let restored = sequence
            .finally
            .iter()
            .try_for_each(|text| self.control(&scene.prefix, text));
        done.and_then(|warm| restored.map(|()| warm))
    }

    /// Both servers may stand anywhere, and what is everybody's is to be put back all the same. A new control
    /// connection might lack the rights of the old one.
    fn recover(&mut self) {
        self.control.target.rest(QUIET);
        self.control.shadow.rest(QUIET);
        if self.control.call(&resp::command(&["PING"])).is_err()
            && let Ok(control) = self.ground.pair(self.stall)
        {
            self.control = control;
        }
    }

    fn play_steps(&mut self, scene: &mut Scene<'_>) -> Played<bool> {
        let sequence = scene.sequence;
        for text in &sequence.given {
            self.control(&scene.prefix, text)?;
        }
        self.control(&scene.prefix, EXECUTED)?;
        for who in sequence.who() {
            let pair = self.ground.pair(self.stall).map_err(broken)?;
            scene.pairs.insert(who, pair);
        }
        let warm = scene.way.warm && self.warm(scene)?;
        for step in &sequence.steps {
            self.step(scene, step)?;
        }
        for pair in scene.pairs.values_mut() {
            pair.nothing_left(END_WAIT)?;
        }
        Ok(warm)
    }

    /// Commands of the control connection, one by one.
    fn control(&mut self, prefix: &str, text: &str) -> Played<()> {
        words::encoded(&text.replace(PREFIX, prefix))
            .iter()
            .try_for_each(|command| self.control.call(command))
    }

    /// Every key is read twice, and then by all connections until all of it is answered in front of the server.
    fn warm(&mut self, scene: &mut Scene<'_>) -> Played<bool> {
        let mut reader = self.ground.pair(self.stall).map_err(broken)?;
        if scene.sequence.password {
            reader.call(&resp::command(&["AUTH", PASSWORD]))?;
        }
        let reads = scene.sequence.hot.join(" ; ");
        let reads = words::encoded(&reads.replace(PREFIX, &scene.prefix));
        for _ in 0..2 {
            reads.iter().try_for_each(|read| reader.call(read))?;
        }
        let began = Instant::now();
        let mut warm = self.until_in_front(&mut reader, &reads, WARM_WAIT)?;
        for pair in scene.pairs.values_mut() {
            if scene.sequence.password {
                // Nothing but refusals.
                reads.iter().try_for_each(|read| pair.call(read))?;
            } else {
                let left = WARM_WAIT.saturating_sub(began.elapsed());
                warm &= self.until_in_front(pair, &reads, left)?;
            }
        }
        Ok(warm)
    }

    /// Reads until all of it is answered in front of the server; whether it was.
    fn until_in_front(
        &mut self,
        pair: &mut Pair,
        reads: &[Vec<u8>],
        limit: Duration,
    ) -> Played<bool> {
        let began = Instant::now();
        let never_answered = resp::command(&["ECHO", "x"]);
        let local = pair.target.stream().local_addr().map_err(broken)?;
        loop {
            pair.call(&never_answered)?;
            reads.iter().try_for_each(|read| pair.call(read))?;
            if !self.ground.in_front {
                return Ok(false);
            }
            let line = line_of(&mut self.control.target, local)
                .map_err(|e| differs(b"CLIENT LIST", &format!("target: {e}")))?;
            if field(&line, "cmd=") == Some("echo") {
                return Ok(true);
            }
            if began.elapsed() > limit {
                return Ok(false);
            }
            sleep(WARM_PAUSE);
        }
    }

    fn step(&mut self, scene: &mut Scene<'_>, step: &Step) -> Played<()> {
        match step {
            Step::Say(who, said) => self.say(scene, *who, said),
            Step::Get(who, replies) => {
                let (pair, said) = scene.line(*who);
                (0..*replies).try_for_each(|_| pair.compare(said))
            }
            Step::Until(who, mark) => {
                let (pair, said) = scene.line(*who);
                pair.compare_until(said, mark.as_bytes())
            }
            Step::Masked(who, mask) => {
                let (pair, said) = scene.line(*who);
                pair.masked(said, |reply| masked(reply, *mask))
            }
            Step::All(who) => {
                let (pair, said) = scene.line(*who);
                pair.compare_all(said, QUIET, self.stall)
            }
            Step::Shown(who, shown) => self.shown(scene, *who, *shown),
            Step::Says(command, text) => self.says(command, text),
            Step::Moment(who, commands) => scene.moment(*who, commands),
            Step::Wait(time) => self.wait(*time),
            Step::Keep(who, read, time) => self.keep(scene, *who, read, *time),
            Step::InFront(who, read) => self.in_front(scene, *who, read),
            Step::Crowd(connections, commands, replies) => {
                self.crowd(scene, *connections, commands, *replies)
            }
        }
    }

    fn say(&mut self, scene: &mut Scene<'_>, who: Who, said: &Said) -> Played<()> {
        let sides = self.substituted(scene, said)?;
        let [target, twin] = sides.each_ref().map(|said| cut::bytes(said, &scene.prefix));
        let ends = sides.each_ref().map(cut::boundaries);
        let (turn, way) = (scene.turn, scene.way);
        scene.turn += 1;
        let pair = scene.pairs.get_mut(&who).expect("all are connected");
        let parts = [(&target, &ends[0]), (&twin, &ends[1])]
            .map(|(bytes, ends)| cut::parts(bytes, ends, turn, way.form));
        for number in 0..parts[0].len().max(parts[1].len()) {
            if number > 0 {
                let long = way.number % LONG_PAUSE_EVERY == LONG_PAUSE_EVERY - 1;
                // Of many segments only the first one waits for long.
                sleep(if long && number == 1 {
                    LONG_PAUSE
                } else {
                    PAUSE
                });
            }
            // A server that has closed shows that in what is read.
            let [target, twin] = [&parts[0], &parts[1]].map(|parts| parts.get(number).copied());
            let _ = pair.shadow.send(twin.unwrap_or_default());
            let _ = pair.target.send(target.unwrap_or_default());
        }
        scene.said.insert(who, target);
        Ok(())
    }

    /// What is said to the target and to the twin: numbers of clients are each server's own.
    fn substituted(&mut self, scene: &Scene<'_>, said: &Said) -> Played<[Said; 2]> {
        let Said::Words(text) = said else {
            return Ok([said.clone(), said.clone()]);
        };
        let text = text.replace(PREFIX, &scene.prefix);
        let mut sides = [text.clone(), text];
        for (who, name) in [(Who::A, "{id:A}"), (Who::B, "{id:B}")] {
            if !sides[0].contains(name) {
                continue;
            }
            for (side, line) in sides.iter_mut().zip(self.lines(scene, who)?) {
                let id = field(&line, "id=").ok_or_else(|| broken("CLIENT LIST has no id"))?;
                *side = side.replace(name, id);
            }
        }
        Ok(sides.map(Said::Words))
    }

    /// The connection's lines of CLIENT LIST, of the target and of the twin.
    fn lines(&mut self, scene: &Scene<'_>, who: Who) -> Played<[String; 2]> {
        let pair = &scene.pairs[&who];
        let local = |conn: &Conn| conn.stream().local_addr().map_err(broken);
        let (target, twin) = (local(&pair.target)?, local(&pair.shadow)?);
        let target = line_of(&mut self.control.target, target)
            .map_err(|e| differs(b"CLIENT LIST", &format!("target: {e}")))?;
        let twin = line_of(&mut self.control.shadow, twin).map_err(Trouble::Shadow)?;
        Ok([target, twin])
    }

    fn shown(&mut self, scene: &Scene<'_>, who: Who, shown: Shown) -> Played<()> {
        let began = Instant::now();
        loop {
            let lines = self.lines(scene, who)?;
            let is_so = lines.each_ref().map(|line| match shown {
                Shown::Blocked => field(line, "flags=").is_some_and(|it| it.contains('b')),
                Shown::Command(name) => field(line, "cmd=") == Some(name),
            });
            if is_so == [true; 2] {
                return Ok(());
            }
            if began.elapsed() > self.stall {
                let [target, twin] = &lines;
                let what = format!("never {shown:?} on both: target: {target}; shadow: {twin}");
                return Err(differs(&scene.said[&who], &what));
            }
            sleep(LOOK);
        }
    }

    fn says(&mut self, command: &str, text: &str) -> Played<()> {
        let began = Instant::now();
        let request = words::encoded(command).concat();
        loop {
            self.control.send(&request)?;
            let replies = [&mut self.control.target, &mut self.control.shadow]
                .map(|conn| conn.reply().map_err(Trouble::Shadow));
            let [target, twin] = replies;
            let (target, twin) = (target?, twin?);
            let has = |reply: &[u8]| reply.windows(text.len()).any(|w| w == text.as_bytes());
            if has(&target) && has(&twin) {
                return Ok(());
            }
            if began.elapsed() > self.stall {
                let (target, twin) = (resp::show(&target, 400), resp::show(&twin, 400));
                let what = format!("never {text:?} on both: target: {target}; shadow: {twin}");
                return Err(differs(&request, &what));
            }
            sleep(LOOK);
        }
    }

    /// The control connection must not become idle meanwhile.
    fn wait(&mut self, time: Duration) -> Played<()> {
        let mut left = time;
        while left > SILENCE {
            sleep(SILENCE);
            self.control.call(&resp::command(&["PING"]))?;
            left -= SILENCE;
        }
        sleep(left);
        Ok(())
    }

    /// As there.
    fn keep(&mut self, scene: &mut Scene<'_>, who: Who, read: &str, time: Duration) -> Played<()> {
        let began = Instant::now();
        let ping = resp::command(&["PING"]);
        while began.elapsed() < time {
            scene.call(who, read)?;
            self.control.call(&ping)?;
            sleep(KEEP_PAUSE);
        }
        Ok(())
    }

    fn in_front(&mut self, scene: &mut Scene<'_>, who: Who, read: &str) -> Played<()> {
        let reads = words::encoded(&read.replace(PREFIX, &scene.prefix));
        let (pair, _) = scene.line(who);
        if self.until_in_front(pair, &reads, COMES_BACK_WAIT)? || !self.ground.in_front {
            return Ok(());
        }
        let what = "target: this connection is never answered in front of the server again";
        Err(differs(read.as_bytes(), what))
    }

    fn crowd(
        &mut self,
        scene: &Scene<'_>,
        connections: usize,
        commands: &str,
        replies: usize,
    ) -> Played<()> {
        let bytes = cut::bytes(&Said::Words(commands.to_owned()), &scene.prefix);
        let mut all = Vec::new();
        for _ in 0..connections {
            all.push(self.ground.pair(self.stall).map_err(broken)?);
        }
        for pair in &mut all {
            pair.send(&bytes)?;
        }
        for pair in &mut all {
            for _ in 0..replies {
                pair.compare(&bytes)?;
            }
        }
        Ok(())
    }
}

impl Scene<'_> {
    fn line(&mut self, who: Who) -> (&mut Pair, &[u8]) {
        let pair = self.pairs.get_mut(&who).expect("all are connected");
        (pair, self.said.get(&who).map_or(&b""[..], Vec::as_slice))
    }

    fn call(&mut self, who: Who, text: &str) -> Played<()> {
        let commands = words::encoded(&text.replace(PREFIX, &self.prefix));
        let (pair, _) = self.line(who);
        commands.iter().try_for_each(|command| pair.call(command))
    }

    fn moment(&mut self, who: Who, text: &str) -> Played<()> {
        let commands = words::encoded(&text.replace(PREFIX, &self.prefix));
        let (pair, _) = self.line(who);
        for command in &commands {
            pair.send(command)?;
            pair.masked(command, |_| Vec::new())?;
        }
        Ok(())
    }
}

/// The line of CLIENT LIST of the connection from `local`; empty if the server has not taken it in yet.
fn line_of(conn: &mut Conn, local: SocketAddr) -> Result<String, Broken> {
    let reply = conn.call(&["CLIENT", "LIST"])?;
    let Reply::Bulk(text) = Reply::parse(&reply) else {
        return Err(Broken::Garbage(resp::show(&reply, 200)));
    };
    let text = String::from_utf8_lossy(text);
    let local = local.to_string();
    let found = text
        .lines()
        .find(|line| field(line, "addr=") == Some(&local));
    Ok(found.unwrap_or_default().to_owned())
}

/// What stands behind a name in a line of CLIENT LIST.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_of_a_line_are_found_by_their_whole_name() {
        let line = "id=7 addr=10.0.0.1:5 laddr=10.0.0.2:6379 flags=b cmd=client|list";
        assert_eq!(field(line, "addr="), Some("10.0.0.1:5"));
        assert_eq!(field(line, "cmd="), Some("client|list"));
        assert_eq!(field(line, "qbuf="), None);
    }
}
