// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All connections, by one thread.
//!
//! Clients of the suite rely on the order in which Redis hears of two connections (who blocks first is
//! served first). One thread that hears of them as Redis does, by epoll, keeps that order; a thread for
//! each does not.

use std::collections::HashMap;
use std::io::{ErrorKind, Result};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::relay::{Relay, Shared};

/// Between two looks at whether it shall end.
const LOOK: Duration = Duration::from_millis(100);
/// The listener, among connections.
const LISTENER: u64 = u64::MAX;

/// A connection, and what epoll knows of its two ends.
struct Member {
    relay: Relay,
    known: [EpollFlags; 2],
}

/// All of them by number.
struct Crowd {
    epoll: Epoll,
    members: HashMap<u64, Member>,
    next: u64,
}

/// Serves the clients that come to a listener that does not block, until it shall end.
pub fn serve(listener: &TcpListener, shared: &Arc<Shared>) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut crowd = Crowd {
        epoll,
        members: HashMap::new(),
        next: 0,
    };
    let mut events = [EpollEvent::empty(); 64];
    while !shared.leave.load(Ordering::Relaxed) {
        let count = match crowd.epoll.wait(&mut events, crowd.patience()) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            match event.data() {
                LISTENER => crowd.accept(listener, shared)?,
                data => crowd.told(data / 2, data % 2 == 1)?,
            }
        }
        crowd.go_on_in_time()?;
    }
    Ok(())
}

impl Crowd {
    /// Until the first of them wants to go on.
    fn patience(&self) -> EpollTimeout {
        let now = Instant::now();
        let pauses = self.members.values().filter_map(|member| {
            let again = member.relay.again()?;
            Some(again.saturating_duration_since(now))
        });
        let shortest = pauses.fold(LOOK, Duration::min);
        let ms = shortest.as_micros().div_ceil(1000);
        u16::try_from(ms).unwrap_or(u16::MAX).into()
    }

    fn accept(&mut self, listener: &TcpListener, shared: &Arc<Shared>) -> Result<()> {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // It has gone again.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(()),
            Err(error) => return Err(error),
        };
        // A server that takes no connection: the client sees its own one end.
        let Ok(relay) = Relay::new(shared, client) else {
            return Ok(());
        };
        let member = Member {
            relay,
            known: [EpollFlags::empty(); 2],
        };
        self.members.insert(self.next, member);
        self.next += 1;
        self.go_on(self.next - 1)
    }

    fn told(&mut self, number: u64, of_server: bool) -> Result<()> {
        // It may have ended by what was told before.
        if let Some(member) = self.members.get_mut(&number) {
            member.relay.told(of_server);
        }
        self.go_on(number)
    }

    fn go_on_in_time(&mut self) -> Result<()> {
        let now = Instant::now();
        let due = |member: &Member| member.relay.again().is_some_and(|again| again <= now);
        let due: Vec<u64> = self
            .members
            .iter()
            .filter(|(_, member)| due(member))
            .map(|(number, _)| *number)
            .collect();
        due.into_iter().try_for_each(|number| self.go_on(number))
    }

    /// Lets one go on, and tells epoll what it waits for then.
    fn go_on(&mut self, number: u64) -> Result<()> {
        let Some(member) = self.members.get_mut(&number) else {
            return Ok(());
        };
        // An error is that of one of its connections: it ends the other one too.
        if !member.relay.go_on().unwrap_or(false) {
            self.members.remove(&number);
            return Ok(());
        }
        let wishes = member.relay.wishes();
        for (side, end) in member.relay.ends().into_iter().enumerate() {
            let (wish, known) = (wishes[side], &mut member.known[side]);
            let mut event = EpollEvent::new(wish, 2 * number + side as u64);
            match (known.is_empty(), wish.is_empty()) {
                // Nobody is told of an end that nothing is wanted of, not even that it is over.
                (false, true) => self.epoll.delete(end)?,
                (true, false) => self.epoll.add(end, event)?,
                _ if *known != wish => self.epoll.modify(end, &mut event)?,
                _ => {}
            }
            *known = wish;
        }
        Ok(())
    }
}
