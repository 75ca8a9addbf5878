// SPDX-License-Identifier: Apache-2.0 OR MIT
//! User-space half of the XDP load generator: loads it, gives it its settings, starts and stops the
//! loops, reads counters.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::netns::run_in;
use libbpf_rs::{Link, Map, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::args::{Drawn, Op};
use crate::mirror::{
    BENCH_BATCH_MAX, BENCH_DRAW_TABLE, BENCH_DRAW_UNIFORM, BENCH_DRAW_UNIQUE, BENCH_DRAWN,
    BENCH_HEADER_BYTES, BENCH_KICK_ACK, BENCH_KICK_REQUEST, BENCH_LANES_MAX, BENCH_LEARN,
    BENCH_PAUSE, BENCH_RUN, Mirrored, bench_batch, bench_config, bench_conn, bench_shape,
    bench_totals, bytes_of, from_bytes,
};
use crate::netns::{CLIENT_IP, CLIENT_MAC, SERVER_IP, SERVER_MAC, ifindex};
use crate::packet::{Direction, template, words};
use crate::work::{Work, key};
use crate::workload::draw::Draw;

/// BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h: verdicts of BPF_PROG_RUN are carried out.
const LIVE_FRAMES: u32 = 1 << 1;

/// Exponent of the zipfian.
const THETA: f64 = 0.99;
/// Copies of the shape: the generator's and the kick's.
const SHAPE_OWNERS: u32 = 2;
/// Maps with an element for each connection.
const PER_CONN: [&str; 3] = ["conns", "kicks", "batches"];
/// Connections that one system call reads.
const READ_AT_ONCE: u32 = 4096;
/// Between two kicks of as many as a queue holds: the other end takes a microsecond for each.
const KICK_PAUSE: Duration = Duration::from_millis(1);

/// libelf reads 64-bit fields in place.
#[repr(align(8))]
struct Aligned<T>(T);
static OBJECT: &Aligned<[u8; include_bytes!(concat!(env!("OUT_DIR"), "/generator.bpf.o")).len()]> =
    &Aligned(*include_bytes!(concat!(
        env!("OUT_DIR"),
        "/generator.bpf.o"
    )));

/// The compiled object.
pub(crate) fn object() -> &'static [u8] {
    &OBJECT.0
}

/// What the loops send and expect.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// What is asked for.
    pub work: Work,
    /// Which keys.
    pub drawn: Drawn,
    /// Connections.
    pub conns: u32,
    /// Whether replies carry their key.
    pub check_key: bool,
    /// The server's port.
    pub port: u16,
}

/// The generator on the client's device.
#[derive(Debug)]
pub struct Generator {
    // Links before the object: fields drop in this order.
    _link: Link,
    object: Object,
    config: bench_config,
    netns: String,
    ifindex: u32,
    request_bytes: usize,
    kick: &'static str,
}

impl Generator {
    /// Loads and attaches; packets pass to the sockets until [`Generator::start`].
    pub fn attach(netns: &str, dev: &str, workload: &Workload) -> Result<Self> {
        let object = load(&OBJECT.0, "generator", workload.conns)?;
        let ifindex = ifindex(netns, dev)?;
        let (program, kick) = match workload.work.op {
            Op::Get => ("generator", "kick"),
            Op::Mget | Op::Hgetall | Op::Set | Op::Hset => ("generator_shaped", "kick_shaped"),
        };
        let link = attach_xdp(&object, program, netns, dev)?;
        let generator = Self {
            _link: link,
            object,
            config: settings(workload),
            netns: netns.into(),
            ifindex,
            request_bytes: workload.work.request(&[0]).len(),
            kick,
        };
        let shape = shape(&workload.work);
        for owner in 0..SHAPE_OWNERS {
            write(&generator.object, "shapes", owner, &shape)?;
        }
        // The first request on each connection asks for key 0.
        let [_, digits] = words(key(0).as_bytes());
        for index in 0..workload.conns {
            // Any odd seed is good for xorshift; the golden ratio spreads neighbours.
            let random = (index + 1).wrapping_mul(0x9e37_79b9) | 1;
            let conn = bench_conn {
                random,
                digits,
                ..Default::default()
            };
            write(&generator.object, "conns", index, &conn)?;
            let batch = bench_batch {
                digits: [digits; BENCH_BATCH_MAX as usize],
            };
            write(&generator.object, "batches", index, &batch)?;
        }
        if workload.drawn == Drawn::Zipf {
            let keys = workload.work.keys;
            let draw = Draw::zipf_keys(THETA, keys)?;
            let mut random = StdRng::seed_from_u64(keys.into());
            for number in 0..BENCH_DRAWN {
                let drawn = draw.key(&mut random, keys, keys);
                write(&generator.object, "drawn", number, &drawn)?;
            }
        }
        generator.write_config()?;
        Ok(generator)
    }

    /// Connections whose numbers are not known yet.
    pub fn unlearned(&self) -> Result<u32> {
        let conns = self.conns()?;
        Ok(conns.iter().filter(|conn| conn.learned == 0).count() as u32)
    }

    /// Starts the loop of every lane; all connections are parked.
    pub fn start(&mut self) -> Result<()> {
        self.set_mode(BENCH_RUN)?;
        let lanes: Vec<u32> = (0..self.lanes() as u32).collect();
        self.kick(&lanes, BENCH_KICK_REQUEST)
    }

    /// Lets every loop end after its next reply.
    pub fn pause(&mut self) -> Result<()> {
        self.set_mode(BENCH_PAUSE)
    }

    /// Connections with a request in flight.
    pub fn in_flight(&self) -> Result<Vec<u32>> {
        let conns = (0u32..).zip(self.conns()?);
        Ok(conns
            .filter(|(_, conn)| conn.parked == 0)
            .map(|(index, _)| index)
            .collect())
    }

    /// Sends the outstanding requests of these lanes again; on which connections.
    pub fn wake(&self, lanes: &[usize]) -> Result<BTreeSet<u32>> {
        if lanes.is_empty() {
            return Ok(BTreeSet::new());
        }
        // Where nothing is outstanding the frame was lost: the lane begins anew.
        let mut of_lane: BTreeMap<usize, u32> =
            lanes.iter().map(|&lane| (lane, lane as u32)).collect();
        for index in self.in_flight()? {
            let lane = of_lane.entry(index as usize % self.lanes());
            lane.and_modify(|first| *first = index);
        }
        let woken: BTreeSet<u32> = of_lane.into_values().collect();
        let indices: Vec<u32> = woken.iter().copied().collect();
        self.resend(&indices)?;
        Ok(woken)
    }

    /// Sends the outstanding requests of these connections again.
    pub fn resend(&self, indices: &[u32]) -> Result<()> {
        self.kick(indices, BENCH_KICK_REQUEST)
    }

    /// Acknowledges what came last on connections that rest, so that the server does not send it
    /// again while it is not measured.
    pub fn acknowledge(&self) -> Result<()> {
        let all: Vec<u32> = (0..self.config.conns).collect();
        if all.len() <= self.lanes() {
            return Ok(());
        }
        for some in all.chunks(self.lanes()) {
            self.kick(some, BENCH_KICK_ACK)?;
            sleep(KICK_PAUSE);
        }
        Ok(())
    }

    /// Sends on these connections, which are in order; they are not more than there are lanes.
    fn kick(&self, indices: &[u32], what: u32) -> Result<()> {
        let [Some(&first), Some(&last)] = [indices.first(), indices.last()] else {
            return Ok(());
        };
        for &index in indices {
            write(&self.object, "kicks", index, &what)?;
        }
        let mut config = self.config;
        config.kick_next = first;
        write(&self.object, "config", 0, &config)?;
        let frame = vec![0u8; BENCH_HEADER_BYTES as usize + self.request_bytes];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, frame.len() as u32, 0, self.ifindex, 0, 0];
        let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&frame),
            flags: LIVE_FRAMES,
            repeat: last - first + 1,
            ..Default::default()
        };
        // The kernel looks the device up in the caller's namespace.
        run_in(&self.netns, || {
            let mut programs = self.object.progs_mut();
            let program = programs.find(|program| program.name() == self.kick);
            program
                .context("the generator has no program for a kick")?
                .test_run(input)
                .map(drop)
                .context("BPF_PROG_RUN of a kick failed")
        })
    }

    /// Requests in flight at most.
    fn lanes(&self) -> usize {
        self.config.conns.min(BENCH_LANES_MAX) as usize
    }

    /// Sums over all connections since the attach.
    pub fn totals(&self) -> Result<bench_totals> {
        read(&self.object, "totals", 0)
    }

    /// Replies of each lane since the attach.
    pub fn replies(&self) -> Result<Vec<u64>> {
        let mut replies = vec![0; self.lanes()];
        for (index, conn) in self.conns()?.iter().enumerate() {
            replies[index % self.lanes()] += conn.replies;
        }
        Ok(replies)
    }

    /// All connections.
    pub fn conns(&self) -> Result<Vec<bench_conn>> {
        let map = map(&self.object, "conns")?;
        let all = map.lookup_batch(READ_AT_ONCE, MapFlags::ANY, MapFlags::ANY);
        let conns = all.context("could not read the connections")?;
        let conns: Option<Vec<bench_conn>> = conns.map(|(_, bytes)| from_bytes(&bytes)).collect();
        let conns = conns.context("BPF map conns has elements of another size")?;
        ensure!(
            conns.len() == self.config.conns as usize,
            "{} of {} connections could be read",
            conns.len(),
            self.config.conns
        );
        Ok(conns)
    }

    fn set_mode(&mut self, mode: u32) -> Result<()> {
        self.config.mode = mode;
        self.write_config()
    }

    fn write_config(&self) -> Result<()> {
        write(&self.object, "config", 0, &self.config)
    }
}

fn settings(workload: &Workload) -> bench_config {
    let direction = Direction {
        from_mac: CLIENT_MAC,
        to_mac: SERVER_MAC,
        from_ip: CLIENT_IP.octets(),
        to_ip: SERVER_IP.octets(),
    };
    let (request, _) = workload.work.request_template();
    let (reply, _) = workload.work.reply_template();
    // The first line: of the value or of the array.
    let line = reply.iter().position(|&byte| byte == b'\n');
    let prefix = &reply[..line.map_or(0, |at| at + 1)];
    let [request_0, request_1, request_2, request_3, tail] = words(&request);
    bench_config {
        request: template(&direction, &request),
        ack: template(&direction, b""),
        request_words: [request_0, request_1, request_2, request_3],
        request_tail: tail as u32,
        mode: BENCH_LEARN,
        prefix: words::<1>(prefix)[0],
        prefix_mask: words::<1>(&vec![0xff; prefix.len()])[0],
        key_head: words::<1>(&key(0).as_bytes()[..8])[0],
        prefix_bytes: prefix.len() as u32,
        reply_bytes: reply.len() as u32,
        keys: workload.work.keys,
        conns: workload.conns,
        server_port_be: workload.port.to_be(),
        check_key: u16::from(workload.check_key),
        kick_next: 0,
        draw: match workload.drawn {
            Drawn::Uniform => BENCH_DRAW_UNIFORM,
            Drawn::Zipf => BENCH_DRAW_TABLE,
            Drawn::Unique => BENCH_DRAW_UNIQUE,
        },
        pad: 0,
    }
}

fn shape(work: &Work) -> bench_shape {
    let (request, places) = work.request_template();
    let (reply, reply_places) = work.reply_template();
    bench_shape {
        request: words(&request),
        reply: words(&reply),
        request_bytes: request.len() as u32,
        batch: places.count,
        digits_at: places.first,
        digits_step: places.step,
        reply_digits_at: reply_places.first,
        reply_digits_step: reply_places.step,
        reply_places: reply_places.count,
        pad: 0,
    }
}

/// Loads an object from memory, with room for so many connections.
pub fn load(bytes: &[u8], name: &str, conns: u32) -> Result<Object> {
    let refused = || format!("the kernel refused BPF object {name}; root and BTF are needed");
    let mut object = ObjectBuilder::default();
    let mut object = object.open_memory(bytes).with_context(refused)?;
    for mut map in object.maps_mut() {
        if PER_CONN.iter().any(|name| map.name() == *name) {
            map.set_max_entries(conns).with_context(refused)?;
        }
    }
    object.load().with_context(refused)
}

/// Attaches a program that passes everything: Linux does not wake a veth for XDP_TX without one.
pub fn attach_pass(netns: &str, dev: &str) -> Result<Link> {
    // The link keeps the program; the object may go.
    attach_xdp(&load(&OBJECT.0, "generator", 1)?, "pass", netns, dev)
}

/// Attaches a program to a device, native mode.
pub fn attach_xdp(object: &Object, program: &str, netns: &str, dev: &str) -> Result<Link> {
    let ifindex = i32::try_from(ifindex(netns, dev)?)?;
    run_in(netns, || {
        let mut programs = object.progs_mut();
        let found = programs.find(|candidate| candidate.name() == program);
        found
            .with_context(|| format!("no BPF program {program}"))?
            .attach_xdp(ifindex)
            .with_context(|| format!("could not attach XDP program {program} to {dev} in {netns}"))
    })
}

fn map<'a>(object: &'a Object, name: &str) -> Result<Map<'a>> {
    let map = object.maps().find(|map| map.name() == name);
    map.with_context(|| format!("no BPF map {name}"))
}

/// Reads an array element of a BPF map.
pub fn read<T: Mirrored>(object: &Object, name: &str, index: u32) -> Result<T> {
    let bytes = map(object, name)?
        .lookup(&index.to_ne_bytes(), MapFlags::ANY)
        .with_context(|| format!("could not read {name}[{index}]"))?
        .with_context(|| format!("BPF map {name} has no element {index}"))?;
    from_bytes(&bytes).ok_or_else(|| anyhow!("BPF map {name} has elements of another size"))
}

/// Writes an array element of a BPF map.
pub fn write<T: Mirrored>(object: &Object, name: &str, index: u32, value: &T) -> Result<()> {
    let map = map(object, name)?;
    ensure!(
        map.value_size() as usize == size_of::<T>(),
        "BPF map {name}: other element size"
    );
    map.update(&index.to_ne_bytes(), bytes_of(value), MapFlags::ANY)
        .with_context(|| format!("could not write {name}[{index}]"))
}
