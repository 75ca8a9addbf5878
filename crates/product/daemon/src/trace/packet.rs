// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One packet as `erb trace` tells it: where it was met, what it was, what became of it, and why.

use erb_abi::{
    self as abi, REASONS, STAT_DUP_ACK_SENT, STAT_FAST_PACKET_TC, STAT_REPLAY_ACK,
    STAT_REPLAY_REQUEST, trace_event,
};
use erb_datapath::Traced;
use erb_redis::addresses;
use erb_report::{Because, Packet, Stage, Verdict};

use super::command::{First, first, quoted};

/// include/uapi/linux/bpf.h: what XDP programs return.
const XDP_DROPS: [i32; 2] = [0, 1];
const XDP_TX: i32 = 3;
/// And what tcx programs return.
const TCX_DROP: i32 = 2;

/// TCP's flags as tcpdump writes them, by bit.
const FLAGS: [(u16, char); 9] = [
    (0x02, 'S'),
    (0x01, 'F'),
    (0x04, 'R'),
    (0x08, 'P'),
    (0x20, 'U'),
    (0x40, 'E'),
    (0x80, 'W'),
    (0x100, 'e'),
    (0x10, '.'),
];

const fn stage_of(event: &trace_event) -> Stage {
    match event.stage as u32 {
        abi::TRACE_XDP => Stage::Xdp,
        abi::TRACE_INGRESS => Stage::Ingress,
        abi::TRACE_EGRESS => Stage::Egress,
        _ => Stage::Timer,
    }
}

fn verdict_of(event: &trace_event, stage: Stage) -> Verdict {
    let bit = |bit: u32| u32::from(event.bits) & bit != 0;
    let counted = |stat| reasons(event).any(|reason| u32::from(reason.stat) == stat);
    let changed = bit(abi::TRACE_F_CHANGED);
    let sent = [
        STAT_FAST_PACKET_TC,
        STAT_REPLAY_REQUEST,
        STAT_REPLAY_ACK,
        STAT_DUP_ACK_SENT,
    ];
    match stage {
        Stage::Xdp if event.action == XDP_TX => Verdict::Answered,
        Stage::Xdp if XDP_DROPS.contains(&event.action) => Verdict::Dropped,
        // Without the mark TC runs the whole way on it.
        Stage::Xdp if !bit(abi::TRACE_F_TRANSLATED) => Verdict::ToTc,
        Stage::Ingress if sent.into_iter().any(counted) => Verdict::Answered,
        Stage::Timer => Verdict::SentAgain,
        Stage::Ingress | Stage::Egress if event.action == TCX_DROP => Verdict::Dropped,
        Stage::Egress if changed => Verdict::OutTranslated,
        Stage::Egress => Verdict::Out,
        Stage::Xdp | Stage::Ingress if changed => Verdict::UpTranslated,
        Stage::Xdp | Stage::Ingress => Verdict::Up,
    }
}

/// Reads an event. `wall_minus_monotonic_ns`: from the event's clock to that of the wall.
#[must_use]
pub fn packet(traced: &Traced, wall_minus_monotonic_ns: i64) -> Packet {
    let event = &traced.event;
    let stage = stage_of(event);
    let verdict = verdict_of(event, stage);
    let (client, server) = addresses(&event.key);
    let bit = |bit: u32| u32::from(event.bits) & bit != 0;
    let numbers = (event.seq_after, event.ack_after);
    let moved = bit(abi::TRACE_F_READ_AFTER) && numbers != (event.seq, event.ack);
    let reply = bit(abi::TRACE_F_REPLY).then_some(event.reply_len);
    let First { name, key } = first(&traced.payload).unwrap_or(First {
        name: String::new(),
        key: None,
    });
    Packet {
        time_us: event.time_ns.saturating_add_signed(wall_minus_monotonic_ns) / 1000,
        cpu: event.cpu,
        stage,
        direction: match stage {
            Stage::Xdp | Stage::Ingress => "in".into(),
            Stage::Egress | Stage::Timer => "out".into(),
        },
        ifindex: event.ifindex,
        client: client.to_string(),
        server: server.to_string(),
        flags: flags(event.flags),
        seq: event.seq,
        ack: event.ack,
        payload: event.payload_len,
        command: (!name.is_empty()).then_some(name),
        key: key.map(|key| quoted(&key)),
        verdict,
        went_on: moved.then_some(numbers),
        reply,
        reasons: reasons(event).filter_map(because).collect(),
        reasons_more: event.reasons_more,
    }
}

fn reasons(event: &trace_event) -> impl Iterator<Item = &abi::trace_reason> {
    event.reasons.iter().take(usize::from(event.reasons_len))
}

fn because(reason: &abi::trace_reason) -> Option<Because> {
    let known = REASONS.get(usize::from(reason.stat))?;
    Some(Because {
        name: known.name.into(),
        count: reason.count,
        kind: known.kind.word().into(),
        text: known.text.into(),
    })
}

fn flags(bits: u16) -> String {
    let set = FLAGS.iter().filter(|(bit, _)| bits & bit != 0);
    let text: String = set.map(|(_, letter)| letter).collect();
    if text.is_empty() {
        "none".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use erb_abi::{STAT_REFUSE_MISS, STAT_TO_TC, STAT_UP_TRANSLATED};

    fn event(stage: u32, action: i32, bits: u32, stats: &[u32]) -> trace_event {
        let mut event = trace_event {
            stage: stage as u8,
            action,
            bits: bits as u8,
            reasons_len: stats.len() as u8,
            ..trace_event::default()
        };
        for (reason, stat) in event.reasons.iter_mut().zip(stats) {
            reason.stat = *stat as u16;
            reason.count = 1;
        }
        event
    }

    fn verdict(stage: u32, action: i32, bits: u32, stats: &[u32]) -> &'static str {
        let event = event(stage, action, bits, stats);
        verdict_of(&event, stage_of(&event)).word()
    }

    #[test]
    fn verdicts_by_stage() {
        let (pass, next) = (2, -1);
        let (done, changed) = (abi::TRACE_F_TRANSLATED, abi::TRACE_F_CHANGED);
        let xdp = |action, bits| verdict(abi::TRACE_XDP, action, bits, &[]);
        assert_eq!(xdp(3, abi::TRACE_F_REPLY), "answered");
        assert_eq!(xdp(1, 0), "dropped");
        assert_eq!(xdp(0, 0), "dropped");
        assert_eq!(xdp(pass, done), "up");
        assert_eq!(xdp(pass, done | changed), "up translated");
        assert_eq!(verdict(abi::TRACE_XDP, pass, 0, &[STAT_TO_TC]), "to TC");
        // No room for the mark.
        assert_eq!(xdp(pass, changed), "to TC");
        let ingress =
            |action, bits, stats: &[u32]| verdict(abi::TRACE_INGRESS, action, bits, stats);
        assert_eq!(ingress(next, changed, &[STAT_FAST_PACKET_TC]), "answered");
        assert_eq!(ingress(2, 0, &[STAT_DUP_ACK_SENT]), "answered");
        assert_eq!(ingress(2, 0, &[]), "dropped");
        assert_eq!(
            ingress(next, changed, &[STAT_UP_TRANSLATED]),
            "up translated"
        );
        assert_eq!(ingress(next, 0, &[STAT_REFUSE_MISS]), "up");
        let egress = |action, bits| verdict(abi::TRACE_EGRESS, action, bits, &[]);
        assert_eq!(egress(2, 0), "dropped");
        assert_eq!(egress(next, changed), "out translated");
        assert_eq!(egress(next, 0), "out");
        assert_eq!(verdict(abi::TRACE_TIMER, next, 0, &[]), "sent again");
    }

    #[test]
    fn an_event_becomes_a_packet() {
        let mut event = event(
            abi::TRACE_XDP,
            2,
            abi::TRACE_F_TRANSLATED | abi::TRACE_F_READ_AFTER | abi::TRACE_F_CHANGED,
            &[STAT_UP_TRANSLATED, STAT_REFUSE_MISS],
        );
        event.time_ns = 5_000;
        event.flags = 0x18;
        event.seq = 100;
        event.ack = 200;
        event.seq_after = 90;
        event.ack_after = 200;
        event.key.client_addr[10..].copy_from_slice(&[255, 255, 10, 0, 0, 7]);
        event.key.client_port_be = 1234_u16.to_be();
        let packet = packet(
            &Traced {
                event,
                payload: b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n".to_vec(),
            },
            1_000_000,
        );
        assert_eq!(packet.time_us, 1_005);
        assert_eq!(packet.client, "10.0.0.7:1234");
        assert_eq!(packet.flags, "P.");
        assert_eq!(packet.command.as_deref(), Some("GET"));
        assert_eq!(packet.key.as_deref(), Some("\"a b\""));
        assert_eq!(packet.verdict, Verdict::UpTranslated);
        assert_eq!(packet.went_on, Some((90, 200)));
        assert_eq!(packet.reply, None);
        let names: Vec<&str> = packet.reasons.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["UP_TRANSLATED", "REFUSE_MISS"]);
        assert_eq!(packet.reasons[1].text, "key not in the cache");
    }

    #[test]
    fn flags_are_tcpdumps() {
        assert_eq!(flags(0x02), "S");
        assert_eq!(flags(0x12), "S.");
        assert_eq!(flags(0x11), "F.");
        assert_eq!(flags(0x18), "P.");
        assert_eq!(flags(0x04), "R");
        assert_eq!(flags(0), "none");
    }
}
