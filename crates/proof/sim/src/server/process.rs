// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis as a process: what its event loop does with sockets, as a task on one of the CPUs.

use std::rc::Rc;

use erb_sim_kernel::{Context, point};
use erb_sim_redis::{ClientId, CrashMode, Executed, Peer as RedisPeer};
use erb_sim_tcp::{EventKind, SockId};

use crate::check::{Told, changes_rights};
use crate::client::machine::PORT;
use crate::client::resp::{self, Found};
use crate::fault::Fault;
use crate::inner::Event;
use crate::server::{Pair, Peer, Server, Way};
use crate::story::Place;
use crate::time::{MS, Ns};
use crate::violation::Violation;

/// A batch is bounded to 16 KiB; hashes may have grown since their sizes were asked for, by what a
/// client can write meanwhile.
const FILL_REPLY_MAX: usize = 64 * 1024;

impl Server {
    /// Redis's turn has come: its process runs on some CPU.
    pub fn redis_turn(self: &Rc<Self>) {
        self.redis_scheduled.set(false);
        if self.redis.borrow().is_none() || self.redis_running.get() {
            return;
        }
        let away = self.redis_away_until.get();
        if self.inner.now() < away {
            self.redis_scheduled.set(true);
            self.inner.at(away, Event::RedisTimer);
            return;
        }
        self.redis_running.set(true);
        let server = self.clone();
        let cpu = self.draw_cpu();
        self.cpus.spawn(cpu, Context::Process, move || {
            server.redis_loop();
            server.redis_running.set(false);
            server.arm_redis();
        });
    }

    fn redis_loop(self: &Rc<Self>) {
        self.accept_all();
        self.cron();
        loop {
            let reading = self
                .redis
                .borrow()
                .as_ref()
                .and_then(|redis| redis.next_read());
            if let Some((client, max)) = reading {
                self.redis_read(client, max);
                continue;
            }
            if !self
                .redis
                .borrow()
                .as_ref()
                .is_some_and(|redis| redis.has_work())
            {
                break;
            }
            point();
            let wall = self.inner.wall_ns();
            let executed = self
                .redis
                .borrow_mut()
                .as_mut()
                .and_then(|redis| redis.step(wall));
            match executed {
                Some(executed) => self.executed(&executed),
                None => self.redis_writes(),
            }
        }
        self.redis_writes();
    }

    /// Expiry and whatever else the clock asks for.
    fn cron(&self) {
        let wall = self.inner.wall_ns();
        let mut redis = self.redis.borrow_mut();
        let Some(redis) = redis.as_mut() else { return };
        if redis.next_wake_ns() > wall {
            return;
        }
        let changes = redis.cron(wall);
        if !changes.is_empty() {
            self.inner
                .checks
                .borrow_mut()
                .changed(self.inner.now(), &changes);
        }
    }

    /// Plans the next turn that the clock asks for.
    pub fn arm_redis(&self) {
        let wall = self.inner.wall_ns();
        let next = self
            .redis
            .borrow()
            .as_ref()
            .map(|redis| redis.next_wake_ns());
        let Some(next) = next else { return };
        let now = self.inner.now();
        // At most as often as hz says: the model may ask for "now".
        let at = now + next.saturating_sub(wall).clamp(MS, 200 * MS);
        let armed = self.redis_timer_at.get();
        if armed <= now || at < armed {
            self.redis_timer_at.set(at);
            self.inner.at(at, Event::RedisTimer);
        }
    }

    fn accept_all(&self) {
        let wall = self.inner.wall_ns();
        loop {
            let accepted = self.host.borrow_mut().accept(PORT);
            let Some(sock) = accepted else { break };
            let Some(pair) = self.pairs.borrow().get(&sock).copied() else {
                continue;
            };
            let cookie = self.host.borrow().view(sock).map_or(0, |view| view.cookie);
            let peer = RedisPeer::Tcp {
                peer: pair.1,
                local: pair.0,
            };
            let conn = self.conns.borrow().get(&cookie).copied();
            self.accept(Way::Tcp(sock, pair), peer, conn, wall);
        }
        loop {
            let next = self.incoming_pipes.borrow_mut().pop_front();
            let Some((pipe, peer)) = next else { break };
            self.accept(Way::Inside(pipe), peer, None, wall);
        }
        let inputs: Vec<ClientId> = self
            .peers
            .borrow()
            .iter()
            .filter(|(_, peer)| matches!(&peer.way, Way::Inside(pipe) if pipe.has_input()))
            .map(|(client, _)| *client)
            .collect();
        if let Some(redis) = self.redis.borrow_mut().as_mut() {
            for client in inputs {
                redis.readable(client);
            }
        }
    }

    fn accept(&self, way: Way, peer: RedisPeer, conn: Option<crate::ConnId>, wall: u64) {
        let mut redis = self.redis.borrow_mut();
        let Some(redis) = redis.as_mut() else { return };
        let client = redis.accept(peer, wall);
        redis.readable(client);
        if let Some(conn) = conn {
            let full = redis.has_full_rights(client);
            self.inner.checks.borrow_mut().rights(conn, full);
        }
        if let Way::Tcp(sock, _) = &way {
            self.by_sock.borrow_mut().insert(*sock, client);
        }
        self.inner
            .tell_with(Place::Redis, conn, || format!("accepts client {client}"));
        let peer = Peer {
            way,
            conn,
            unsent: Vec::new(),
            replies: std::collections::VecDeque::new(),
            closing: false,
            rights_queued: false,
        };
        self.peers.borrow_mut().insert(client, peer);
    }

    /// Redis reads a socket, as its event loop asks.
    fn redis_read(self: &Rc<Self>, client: ClientId, max: usize) {
        let way = self
            .peers
            .borrow()
            .get(&client)
            .map(|peer| peer.way.clone());
        let mut bytes = Vec::new();
        let over = match way {
            Some(Way::Tcp(sock, pair)) => {
                self.own(pair);
                let now = self.inner.now();
                self.host.borrow_mut().recv(now, sock, max, &mut bytes);
                let over = bytes.is_empty() && self.ended.borrow().contains(&sock);
                self.send_out(Some(pair));
                self.disown(pair);
                over
            }
            Some(Way::Inside(pipe)) => {
                bytes = pipe.redis_read(max);
                bytes.is_empty() && pipe.is_over_for_redis()
            }
            None => true,
        };
        let full = bytes.len() == max;
        let wall = self.inner.wall_ns();
        let mut redis = self.redis.borrow_mut();
        let Some(redis) = redis.as_mut() else { return };
        redis.input(client, &bytes, wall);
        if over {
            redis.disconnect(client);
        } else if full || !bytes.is_empty() {
            // Level-triggered: the rest, or the end, shows in the next turn.
            redis.readable(client);
        }
    }

    fn executed(&self, executed: &Executed) {
        let now = self.inner.now();
        let conn = {
            let mut peers = self.peers.borrow_mut();
            peers.get_mut(&executed.client).and_then(|peer| {
                peer.replies.extend(&executed.reply);
                peer.conn
            })
        };
        self.inner.tell_with(Place::Redis, conn, || {
            let argv: Vec<_> = executed
                .argv
                .iter()
                .map(|arg| String::from_utf8_lossy(arg))
                .collect();
            let reply = String::from_utf8_lossy(&executed.reply[..executed.reply.len().min(60)]);
            format!(
                "executes {:?} -> {reply:?}",
                argv.join(" ").chars().take(80).collect::<String>()
            )
        });
        self.note_writes();
        if self.is_of_drain(executed) {
            return;
        }
        self.check_fill(executed);
        let unseen = self.is_unseen(executed.client);
        let mut checks = self.inner.checks.borrow_mut();
        checks.executed(now, conn, unseen, executed);
        drop(checks);
        self.tell_rights(conn.filter(|_| !unseen), executed);
    }

    /// No fill costs Redis more than some kilobytes of output, whatever its keys hold.
    fn check_fill(&self, executed: &Executed) {
        let length = executed.reply.len();
        if length <= FILL_REPLY_MAX || !executed.argv[0].eq_ignore_ascii_case(b"exec") {
            return;
        }
        let peers = self.peers.borrow();
        let is_feed = peers
            .get(&executed.client)
            .is_some_and(|peer| matches!(&peer.way, Way::Inside(pipe) if self.boost.is_feed(pipe)));
        if is_feed {
            let text = format!("the feed had Redis write {length} bytes by one transaction");
            self.inner
                .fail(Violation::new("fill", self.inner.now(), text));
        }
    }

    /// What may have changed who may do what is told to the checks.
    fn tell_rights(&self, by: Option<crate::ConnId>, executed: &Executed) {
        let names = [
            "acl", "auth", "config", "discard", "exec", "hello", "reset", "select",
        ];
        let name = executed.argv.first().map(|name| name.to_ascii_lowercase());
        if !names
            .iter()
            .any(|one| name.as_deref() == Some(one.as_bytes()))
        {
            return;
        }
        let now = self.inner.now();
        let redis = self.redis.borrow();
        let Some(redis) = redis.as_ref() else { return };
        let mut checks = self.inner.checks.borrow_mut();
        let changes = changes_rights(&executed.argv);
        let queued = {
            let mut peers = self.peers.borrow_mut();
            let peer = peers.get_mut(&executed.client);
            let queues = executed.reply == b"+QUEUED\r\n";
            peer.is_some_and(|peer| {
                let before = peer.rights_queued;
                peer.rights_queued = queues && (before || changes);
                before
            })
        };
        if changes || (queued && name.as_deref() == Some(b"exec")) {
            checks.rights_change(now, by, redis.users());
        }
        checks.misses_told(now, by, redis.tells_misses());
        for (client, peer) in self.peers.borrow().iter() {
            let Some(conn) = peer.conn else { continue };
            let full = redis.has_full_rights(*client);
            match redis
                .selected(*client)
                .filter(|_| *client == executed.client)
            {
                Some((db, resp, user)) => checks.told(conn, user, Told { full, db, resp }),
                None => checks.rights(conn, full),
            }
        }
    }

    /// The end of a turn: output goes to the sockets, connections are closed.
    fn redis_writes(self: &Rc<Self>) {
        let ready: Vec<ClientId> = match self.redis.borrow().as_ref() {
            Some(redis) => redis.with_output().collect(),
            None => return,
        };
        for client in ready {
            let mut bytes = Vec::new();
            if let Some(redis) = self.redis.borrow_mut().as_mut() {
                redis.output(client, &mut bytes);
            }
            self.redis_output(client, &bytes);
        }
        loop {
            let closed = self
                .redis
                .borrow_mut()
                .as_mut()
                .and_then(|redis| redis.pop_closed());
            let Some((client, bytes)) = closed else { break };
            self.redis_output(client, &bytes);
            if let Some(peer) = self.peers.borrow_mut().get_mut(&client) {
                peer.closing = true;
                if let Some(conn) = peer.conn {
                    self.inner.checks.borrow_mut().dropped_by_redis(conn);
                }
            }
            self.redis_flush(client);
        }
    }

    /// Bytes that Redis writes to a client: replies of its commands, and what comes unasked.
    fn redis_output(self: &Rc<Self>, client: ClientId, bytes: &[u8]) {
        {
            let mut peers = self.peers.borrow_mut();
            let Some(peer) = peers.get_mut(&client) else {
                return;
            };
            peer.unsent.extend_from_slice(bytes);
            let mut at = 0;
            while at < bytes.len() {
                let len = match resp::next(&bytes[at..], false) {
                    Found::Reply(len) | Found::Push(len) => len,
                    Found::Incomplete | Found::Broken => bytes.len() - at,
                };
                let frame = &bytes[at..at + len];
                at += len;
                let expected = peer.replies.len() >= len
                    && peer.replies.iter().zip(frame).all(|(a, b)| a == b);
                if expected {
                    peer.replies.drain(..len);
                } else if let Some(conn) = peer.conn {
                    self.inner
                        .checks
                        .borrow_mut()
                        .pushed(self.inner.now(), conn, frame);
                }
            }
        }
        self.redis_flush(client);
    }

    /// Hands to TCP what it takes.
    fn redis_flush(self: &Rc<Self>, client: ClientId) {
        let way = self.peers.borrow().get(&client).map(|p| p.way.clone());
        let over = match &way {
            Some(Way::Tcp(sock, pair)) => {
                self.own(*pair);
                let over = self.send_unsent(client, *sock);
                self.send_out(Some(*pair));
                if over {
                    self.host.borrow_mut().close(self.inner.now(), *sock);
                    self.send_out(Some(*pair));
                }
                self.disown(*pair);
                over
            }
            Some(Way::Inside(pipe)) => {
                let mut peers = self.peers.borrow_mut();
                let Some(peer) = peers.get_mut(&client) else {
                    return;
                };
                pipe.redis_write(&std::mem::take(&mut peer.unsent));
                let closing = peer.closing;
                drop(peers);
                if closing {
                    pipe.redis_close();
                }
                self.wake_daemon();
                closing
            }
            None => return,
        };
        if over {
            self.forget_client(client);
        }
    }

    /// TCP takes what it has room for, socket owned: what is left stays in front of what is written
    /// next. True if it was the last.
    fn send_unsent(&self, client: ClientId, sock: SockId) -> bool {
        let now = self.inner.now();
        let mut peers = self.peers.borrow_mut();
        let Some(peer) = peers.get_mut(&client) else {
            return false;
        };
        let taken = self.host.borrow_mut().send(now, sock, &peer.unsent);
        peer.unsent.drain(..taken);
        peer.closing && peer.unsent.is_empty()
    }

    fn forget_client(&self, client: ClientId) {
        if let Some(peer) = self.peers.borrow_mut().remove(&client)
            && let Way::Tcp(sock, _) = peer.way
        {
            self.by_sock.borrow_mut().remove(&sock);
        }
    }

    /// What TCP tells its users.
    pub(super) fn take_events(self: &Rc<Self>) {
        loop {
            let event = self.host.borrow_mut().pop_event();
            let Some(event) = event else { break };
            self.socket_event(event.id, event.kind);
        }
    }

    fn socket_event(self: &Rc<Self>, sock: SockId, kind: EventKind) {
        match kind {
            EventKind::PeerClosed => drop(self.ended.borrow_mut().insert(sock)),
            EventKind::TimedOut => self.given_up(sock),
            EventKind::Closed => {
                self.ended.borrow_mut().remove(&sock);
                self.pairs.borrow_mut().remove(&sock);
                self.served.borrow_mut().remove(&sock);
            }
            _ => {}
        }
        let client = self.by_sock.borrow().get(&sock).copied();
        if client.is_none() && self.stranger_hears(sock) {
            return;
        }
        match (client, kind) {
            (None, EventKind::Incoming) => {}
            (None, EventKind::Reset | EventKind::TimedOut) => {
                // Redis will accept it all the same, and find its end when it reads.
                self.ended.borrow_mut().insert(sock);
                return;
            }
            (None, _) => return,
            (Some(client), EventKind::Readable | EventKind::PeerClosed) => {
                if let Some(redis) = self.redis.borrow_mut().as_mut() {
                    redis.readable(client);
                }
            }
            (Some(client), EventKind::Reset | EventKind::TimedOut | EventKind::Closed) => {
                self.forget_client(client);
                if let Some(redis) = self.redis.borrow_mut().as_mut() {
                    redis.disconnect(client);
                }
            }
            (Some(client), EventKind::Writable) => {
                let server = self.clone();
                let cpu = self.draw_cpu();
                self.cpus
                    .spawn(cpu, Context::Process, move || server.redis_flush(client));
                return;
            }
            (Some(_), _) => {}
        }
        let slow = self.inner.plan.profile.server.slow_reader;
        if self.inner.happens(Fault::SlowReader, slow) {
            self.redis_rests(300 * MS);
        }
        self.wake_redis();
    }

    /// TCP hears nothing of a client for minutes, faults last for seconds: if that client is still
    /// there, they do not understand each other any more.
    fn given_up(&self, sock: SockId) {
        let conn = self.served.borrow().get(&sock).copied();
        if let Some(conn) = conn.filter(|conn| self.inner.checks.borrow().is_open(*conn)) {
            let text = format!("c{conn}: the server's TCP gave it up, but its client is there");
            self.inner
                .fail(Violation::new("stuck", self.inner.now(), text));
        }
    }

    /// Redis does nothing for at most so long.
    pub fn redis_rests(&self, max: Ns) {
        let until = self.inner.now() + self.inner.random.borrow_mut().u64(MS..=max);
        self.redis_away_until
            .set(self.redis_away_until.get().max(until));
        self.inner
            .tell_with(Place::Redis, None, || format!("is away until {until}"));
    }

    /// Redis's process is stopped, or goes on.
    pub fn stop_redis(&self, stop: bool) {
        self.redis_away_until
            .set(if stop { Ns::MAX / 2 } else { 0 });
        if !stop {
            self.redis_scheduled.set(false);
            self.wake_redis();
        }
    }

    /// Redis closes the connection of one of its clients, as CLIENT KILL does.
    pub fn kill_one(self: &Rc<Self>) {
        let clients: Vec<(ClientId, Pair)> = self
            .peers
            .borrow()
            .iter()
            .filter_map(|(client, peer)| match &peer.way {
                Way::Tcp(_, pair) => Some((*client, *pair)),
                Way::Inside(_) => None,
            })
            .collect();
        if clients.is_empty() {
            return;
        }
        let index = self.inner.random.borrow_mut().usize(..clients.len());
        let (_, pair) = clients[index];
        let address = pair.1.to_string();
        self.inner.coverage.borrow_mut().fault(Fault::RedisKill);
        let request = resp::request(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
        self.ask_unseen(&request);
    }

    /// Redis's process ends at once: its sockets are reset, its log stays.
    pub fn crash_redis(self: &Rc<Self>, mode: CrashMode) {
        let Some(redis) = self.redis.borrow_mut().take() else {
            return;
        };
        self.inner
            .tell_with(Place::Redis, None, || format!("crashes ({mode:?})"));
        self.note_writes();
        *self.spare_disk.borrow_mut() = Some(redis.crash(mode));
        let peers = std::mem::take(&mut *self.peers.borrow_mut());
        self.by_sock.borrow_mut().clear();
        for (pipe, _) in self.incoming_pipes.borrow_mut().drain(..) {
            pipe.cut();
        }
        self.unseen_pipe.borrow_mut().take();
        self.master_pipe.borrow_mut().take();
        self.redis_scheduled.set(false);
        if mode == CrashMode::Power {
            // What was not drained went with the maps.
            self.inner.checks.borrow_mut().drained(u64::MAX);
            return;
        }
        let now = self.inner.now();
        self.host.borrow_mut().unlisten(now, PORT);
        for peer in peers.into_values() {
            match peer.way {
                Way::Tcp(sock, _) => self.host.borrow_mut().close(now, sock),
                Way::Inside(pipe) => pipe.redis_close(),
            }
        }
        let server = self.clone();
        self.cpus
            .spawn(0, Context::Process, move || server.send_out(None));
        self.wake_daemon();
    }

    /// Redis starts again from its log.
    pub fn restart_redis(&self) {
        let Some(disk) = self.spare_disk.borrow_mut().take() else {
            return;
        };
        let redis = Self::start_redis(&self.inner, disk);
        let Some(redis) = redis else {
            self.inner.fail(crate::Violation::new(
                "redis-log",
                self.inner.now(),
                "Redis does not start from its log",
            ));
            return;
        };
        let content = redis.contents();
        self.has_read_log(&content);
        self.inner.tell_with(Place::Redis, None, || {
            format!("starts with {} keys", content.len())
        });
        *self.redis.borrow_mut() = Some(redis);
        self.host.borrow_mut().listen(PORT, 128);
        self.arm_redis();
    }
}
