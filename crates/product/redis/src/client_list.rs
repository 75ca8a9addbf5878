// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CLIENT LIST, as far as it proves that Redis has executed everything a connection sent.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use erb_abi::conn_key;

/// One line of CLIENT LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLine {
    /// Redis's number of the connection.
    pub id: u64,
    /// The client's address; none for unix sockets.
    pub addr: Option<SocketAddr>,
    /// The server's address; none for unix sockets.
    pub laddr: Option<SocketAddr>,
    /// Name set by CLIENT SETNAME.
    pub name: String,
    /// Bytes read but not executed yet.
    pub qbuf: u64,
    /// Flags, one letter each.
    pub flags: String,
    /// User that it has authenticated as; `default` also before that.
    pub user: String,
    /// Number of its database.
    pub db: u32,
    /// RESP version.
    pub resp: u8,
    /// Channels, patterns and shard channels subscribed to.
    pub subscriptions: u64,
    /// Commands queued behind MULTI; none outside.
    pub multi: Option<u64>,
    /// Keys under WATCH (Redis 7.4 and newer).
    pub watch: u64,
    /// Bytes of arguments of an unfinished command.
    pub argument_bytes: u64,
    /// Bytes of output that wait, and blocks of it.
    pub output: u64,
    /// Its last command, as `cmd=` names it.
    pub command: String,
    /// It has sent CLIENT CAPA, `redirect` for example: a replica answers its reads by `-REDIRECT`
    /// (Valkey `src/networking.c`; shown since 8.1).
    pub has_capabilities: bool,
}

impl ClientLine {
    /// Nothing read is waiting, not even as the arguments of a command that is parsed and not run
    /// (threads that read parse as well), and the client is neither blocked nor inside MULTI.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.has_run_all() && !self.is_blocked() && !self.flags.contains('x')
    }

    /// It waits in a command that blocks, or is paused.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.flags.contains('b')
    }

    /// It waits in a command that can change no string and no hash and make no key, whenever it goes on.
    pub(crate) fn blocks_harmlessly(&self) -> bool {
        let mut known = erb_abi::COMMANDS.iter();
        self.is_blocked()
            && known
                .any(|one| one.name == self.command && one.meaning().class == erb_abi::CMD_HARMLESS)
    }

    /// It waits in a command that can do nothing but move an item to a list, whenever it goes on: it may make one
    /// of a key that is absent.
    pub(crate) fn blocks_in_a_move(&self) -> bool {
        self.is_blocked() && matches!(&*self.command, "blmove" | "brpoplpush")
    }

    /// Nothing that was read waits.
    const fn has_run_all(&self) -> bool {
        self.qbuf == 0 && self.argument_bytes == 0
    }

    /// It has sent MONITOR (flag `O`, Redis src/networking.c catClientInfoString).
    #[must_use]
    pub fn is_monitor(&self) -> bool {
        self.flags.contains('O')
    }
}

/// Parses the text of CLIENT LIST. A line without number is left out.
#[must_use]
pub fn parse(text: &str) -> Vec<ClientLine> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<ClientLine> {
    // A line without a field must never count as proof.
    let mut client = ClientLine {
        id: 0,
        addr: None,
        laddr: None,
        name: String::new(),
        qbuf: u64::MAX,
        flags: String::new(),
        user: String::new(),
        db: u32::MAX,
        resp: 0,
        subscriptions: 0,
        multi: Some(u64::MAX),
        watch: 0,
        argument_bytes: u64::MAX,
        output: 0,
        command: String::new(),
        has_capabilities: false,
    };
    let number = |value: &str| value.parse::<u64>().unwrap_or(u64::MAX);
    let mut outputs = 0;
    let mut subscriptions = 0;
    for field in line.split(' ') {
        let Some((name, value)) = field.split_once('=') else {
            continue;
        };
        match name {
            "id" => client.id = value.parse().ok()?,
            "addr" => client.addr = value.parse().ok(),
            "laddr" => client.laddr = value.parse().ok(),
            "name" => value.clone_into(&mut client.name),
            "cmd" => value.clone_into(&mut client.command),
            "qbuf" => client.qbuf = value.parse().unwrap_or(u64::MAX),
            "flags" => value.clone_into(&mut client.flags),
            "user" => value.clone_into(&mut client.user),
            "db" => client.db = value.parse().unwrap_or(u32::MAX),
            "resp" => client.resp = value.parse().unwrap_or(0),
            "multi" if value == "-1" => client.multi = None,
            "multi" => client.multi = Some(number(value)),
            "watch" => client.watch = number(value),
            "capa" => client.has_capabilities = !value.is_empty(),
            "argv-mem" => client.argument_bytes = number(value),
            "sub" | "psub" | "ssub" => {
                subscriptions += 1;
                client.subscriptions = client.subscriptions.saturating_add(number(value));
            }
            "obl" | "oll" => {
                outputs += 1;
                client.output = client.output.saturating_add(number(value));
            }
            _ => {}
        }
    }
    // Valkey 8.1 keeps the room of a transaction that has ended, and shows it as one without commands. Only the
    // flag `x` tells that one is open (Redis and Valkey src/networking.c, catClientInfoString).
    if client.multi == Some(0) && !client.flags.is_empty() && !client.flags.contains('x') {
        client.multi = None;
    }
    // ssub came with Redis 7.0, which is the oldest that is served.
    if subscriptions < 3 {
        client.subscriptions = u64::MAX;
    }
    if outputs < 2 {
        client.output = u64::MAX;
    }
    (client.id > 0).then_some(client)
}

/// The key by which the data path knows a connection of these addresses.
#[must_use]
pub(crate) fn key_of(client: SocketAddr, server: SocketAddr) -> conn_key {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    conn_key {
        client_addr: octets(client.ip()),
        server_addr: octets(server.ip()),
        client_port_be: client.port().to_be(),
        server_port_be: server.port().to_be(),
        pad: 0,
    }
}

/// Client's and server's address of a tracked connection, IPv4 as such.
#[must_use]
pub fn addresses(key: &conn_key) -> (SocketAddr, SocketAddr) {
    let address = |bytes: [u8; 16], port_be: u16| {
        SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), u16::from_be(port_be))
    };
    (
        address(key.client_addr, key.client_port_be),
        address(key.server_addr, key.server_port_be),
    )
}

/// What a list says of commands that a connection had sent whole, and that TCP had handed to Redis,
/// before the list was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// They were executed, or queued behind MULTI.
    All,
    /// The same of all but the last, which blocks. Where Redis parses ahead of what it runs, nothing.
    AllButLast(Blocks),
    /// The same of all when Redis's loop has turned once more, if what waits then is of a later
    /// command, and if its threads have no loops of their own.
    Perhaps,
    /// Nothing.
    Unknown,
}

/// In what a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// In what can change no string and no hash and make no key.
    Harmlessly,
    /// In what can make a list, but nothing else; Redis's number of the client.
    InMove(u64),
    /// In anything.
    Somehow,
}

/// The lines of a list by their clients' addresses: hundreds of connections are looked for in tens of
/// thousands of lines.
pub(crate) struct Lines<'a>(HashMap<SocketAddr, Vec<&'a ClientLine>>);

impl<'a> Lines<'a> {
    /// Sorts a list.
    pub(crate) fn of(list: &'a [ClientLine]) -> Self {
        let mut lines: HashMap<SocketAddr, Vec<&ClientLine>> = HashMap::new();
        for line in list {
            if let Some(client) = line.addr {
                lines.entry(canonical(client)).or_default().push(line);
            }
        }
        Self(lines)
    }

    /// Whether the list proves that everything this connection sent before it has been executed: the
    /// connection is gone, or nothing of it is pending.
    pub(crate) fn prove_executed(&self, key: &conn_key) -> bool {
        self.own(key).all(ClientLine::is_idle)
    }

    /// What has run of a connection whose replies do not come.
    pub(crate) fn have_run(&self, key: &conn_key) -> Ran {
        let mut own = self.own(key);
        let Some(line) = own.next() else {
            return Ran::All; // gone
        };
        if own.next().is_some() || line.flags.is_empty() {
            return Ran::Unknown;
        }
        match (line.is_blocked(), line.has_run_all()) {
            (false, true) => Ran::All,
            (true, _) if line.qbuf == 0 => Ran::AllButLast(if line.blocks_harmlessly() {
                Blocks::Harmlessly
            } else if line.blocks_in_a_move() {
                Blocks::InMove(line.id)
            } else {
                Blocks::Somehow
            }),
            (true, _) => Ran::Unknown,
            // Unblocked, and not gone on yet.
            (false, false) if line.flags.contains('u') => Ran::Unknown,
            (false, false) => Ran::Perhaps,
        }
    }

    /// Lines that may be this connection's.
    fn own(&self, key: &conn_key) -> impl Iterator<Item = &'a ClientLine> {
        let (client, server) = addresses(key);
        let own = self.0.get(&client).into_iter().flatten().copied();
        own.filter(move |line| line.laddr.is_none_or(|laddr| canonical(laddr) == server))
    }
}

/// A v4-mapped address as IPv4, scope and flow label dropped.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proves_executed(list: &[ClientLine], key: &conn_key) -> bool {
        Lines::of(list).prove_executed(key)
    }

    const LIST: &str = "\
id=3 addr=10.0.0.2:40000 laddr=10.0.0.1:6379 fd=8 name= age=1 idle=0 flags=N db=0 sub=0 psub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 cmd=get\n\
id=4 addr=10.0.0.2:40001 laddr=10.0.0.1:6379 fd=9 name=x flags=b db=0 qbuf=0 cmd=blpop\n\
id=5 addr=[fd00::2]:40002 laddr=[fd00::1]:6379 fd=10 name= flags=N qbuf=26 cmd=set\n\
id=6 addr=/run/redis.sock:0 laddr=/run/redis.sock:0 fd=11 name=erb-feed:a flags=tUx qbuf=0 cmd=client|list\n\
nonsense\n";

    fn key(client: &str, server: &str) -> conn_key {
        let bytes = |text: &str| {
            let address: SocketAddr = text.parse().unwrap();
            let ip = match address.ip() {
                std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                std::net::IpAddr::V6(ip) => ip,
            };
            (ip.octets(), address.port().to_be())
        };
        let ((client_addr, client_port_be), (server_addr, server_port_be)) =
            (bytes(client), bytes(server));
        conn_key {
            client_addr,
            server_addr,
            client_port_be,
            server_port_be,
            pad: 0,
        }
    }

    #[test]
    fn lines() {
        let list = parse(LIST);
        assert_eq!(list.len(), 4);
        assert_eq!(list[0].addr, Some("10.0.0.2:40000".parse().unwrap()));
        assert_eq!(list[2].addr, Some("[fd00::2]:40002".parse().unwrap()));
        assert_eq!(
            (list[3].id, list[3].addr, list[3].name.as_str()),
            (6, None, "erb-feed:a")
        );
        assert!(
            list[0].is_idle() && !list[1].is_idle() && !list[2].is_idle() && !list[3].is_idle()
        );
    }

    #[test]
    fn proofs() {
        let list = parse(LIST);
        assert!(
            proves_executed(&list, &key("10.0.0.2:40000", "10.0.0.1:6379")),
            "idle"
        );
        assert!(
            !proves_executed(&list, &key("10.0.0.2:40001", "10.0.0.1:6379")),
            "blocked"
        );
        assert!(
            !proves_executed(&list, &key("[fd00::2]:40002", "[fd00::1]:6379")),
            "bytes waiting"
        );
        assert!(
            proves_executed(&list, &key("10.0.0.2:49999", "10.0.0.1:6379")),
            "gone"
        );
    }

    #[test]
    fn what_has_run_of_who_does_not_read() {
        let key = key("10.0.0.2:1", "10.0.0.1:6379");
        for (rest, ran) in [
            ("flags=N qbuf=0 argv-mem=0", Ran::All),
            ("flags=x qbuf=0 argv-mem=0", Ran::All),
            ("flags=N qbuf=0 argv-mem=9", Ran::Perhaps),
            ("flags=N qbuf=9 argv-mem=0", Ran::Perhaps),
            ("flags=u qbuf=9 argv-mem=0", Ran::Unknown),
            (
                "flags=b qbuf=0 argv-mem=9 cmd=set",
                Ran::AllButLast(Blocks::Somehow),
            ),
            (
                "flags=b qbuf=0 argv-mem=9 cmd=some.module",
                Ran::AllButLast(Blocks::Somehow),
            ),
            (
                "flags=b qbuf=0 argv-mem=9 cmd=blpop",
                Ran::AllButLast(Blocks::Harmlessly),
            ),
            (
                "flags=b qbuf=0 argv-mem=9 cmd=blmove",
                Ran::AllButLast(Blocks::InMove(9)),
            ),
            (
                "flags=b qbuf=0 argv-mem=9 cmd=brpoplpush",
                Ran::AllButLast(Blocks::InMove(9)),
            ),
            ("flags=b qbuf=9 argv-mem=9", Ran::Unknown),
            ("qbuf=0 argv-mem=0", Ran::Unknown),
        ] {
            let line = format!("id=9 addr=10.0.0.2:1 laddr=10.0.0.1:6379 {rest}\n");
            assert_eq!(Lines::of(&parse(&line)).have_run(&key), ran, "{rest:?}");
            let twice = format!("{line}{line}");
            assert_eq!(Lines::of(&parse(&twice)).have_run(&key), Ran::Unknown);
        }
        assert_eq!(Lines::of(&[]).have_run(&key), Ran::All, "gone");
    }

    #[test]
    fn a_line_without_its_fields_and_a_command_that_is_only_parsed_prove_nothing() {
        for (rest, proves) in [
            ("qbuf=0 argv-mem=0", true),
            ("qbuf=0 argv-mem=26", false),
            ("qbuf=0", false),
            ("argv-mem=0", false),
            ("", false),
        ] {
            let line = format!("id=9 addr=10.0.0.2:1 laddr=10.0.0.1:6379 flags=N {rest}\n");
            let key = key("10.0.0.2:1", "10.0.0.1:6379");
            assert_eq!(proves_executed(&parse(&line), &key), proves, "{rest:?}");
        }
    }
}
