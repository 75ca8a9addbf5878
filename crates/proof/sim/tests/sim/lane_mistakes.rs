// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes in the express lanes: what the lanes must not forget is seen.

use std::sync::OnceLock;

use erb_sim::mutate::source::{Edit, edited};
use erb_sim_kernel::Library;

use crate::judged::Deliberate;
use crate::lane::{DOWN, LANE, OFF, Odds, odd_replies, reply_taken_otherwise, taken_otherwise};
use crate::runs::{build, difference, in_turns, outcome};

/// Seeds within which a mistake in the lane shows.
const SEEDS_OF_MISTAKE: u64 = 10;

const HANDLER: &str = "redis/usual.h";
const REPLY: &str = "redis/usual_reply.h";
const REPLIED: &str = "redis/replies.h";
const WRITE: &str = "redis/usual_write.h";
const RESP: &str = "redis/resp.h";

/// Shown by an upset socket or an odd reply, not by a profile.
const BY_HAND: &str = "";

/// What the lane must not forget: what it leaves to the general path, and what it writes.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str, &str, &str)] = &[
    ("sum-unread", LANE, "if (!lane_sum_ok(&sum))", "if (0)", "corrupt"),
    ("tail-forgotten", LANE, "\t*(u64 *)(at + body_at + from) = *(u64 *)(w->reply + from);\n", "", "hot"),
    ("place-uncalled", LANE, "\tplace_call(w, PLACES_TIMER);\n", "", "lossy"),
    ("window-unasked", LANE, "\t    (conn->flags & CONN_F_SCAN_LOST) ||\n\t    seq_after(w->p.seq + w->p.payload_len - conn->in_delta, sock_right_edge(v)))", "\t    (conn->flags & CONN_F_SCAN_LOST))", BY_HAND),
    ("to-tc-unseen", LANE, "\t\thandler_usual_done(w, c);\n\t\treturn tier_to_tc(ctx);\n", "\t\treturn tier_to_tc(ctx);\n", "all"),
    ("miss-seq-untranslated", LANE, "\t*seq = new_seq;\n", "", "calm"),
    ("miss-ack-untranslated", LANE, "\t*ack = new_ack;\n", "", "calm"),
    ("miss-sum-forgotten", LANE, "\tif (!bare)\n\t\t*(u16 *)(tcp + 16)", "\tif (0)\n\t\t*(u16 *)(tcp + 16)", "calm"),
    ("miss-bare-sum-changed", LANE, "\tif (!bare)\n\t\t*(u16 *)(tcp + 16)", "\tif (1)\n\t\t*(u16 *)(tcp + 16)", "calm"),
    ("miss-uncounted", LANE, "\t\tconn->requests++;\n", "", "calm"),
    ("miss-undated", LANE, "\t\tconn->request_up_ns = w->now;\n", "", BY_HAND),
    ("miss-unreported", LANE, "\thandler_usual_done(w, c);\n\tcount(w->refusal);\n", "\tcount(w->refusal);\n", "calm"),
    ("miss-beside-buffer", LANE, " | CONN_F_AHEAD;", ";", "holes"),
    ("miss-window", LANE, "if (seq_after(w->end - conn->in_delta, sock_right_edge(v)) ||", "if (", BY_HAND),
    ("miss-old-ack", LANE, "seq_before(p->ack, conn->ack_max) || seq_before(ack, conn->edge) ||", "", BY_HAND),
    ("miss-ack-of-unsent", LANE, "seq_after(ack, v->write_seq) || seq_after(ack, v->snd_nxt))", "0)", BY_HAND),
    ("miss-paws", LANE, "\treturn conn_paws_ok(conn, p, v, w->now);\n", "\treturn true;\n", BY_HAND),
    ("meta-stays", LANE, "\t\ttier_unnote(ctx);\n", "", BY_HAND),
    ("hash-missed-though-cached", HANDLER, " | tags_match(set, tag_of(w->h.look.hash));\n\tif", ";\n\tif", "all"),
    ("hash-missed-though-marked", HANDLER, "there = read_once(set->marks) | tags", "there = tags", "races"),
    ("hash-missed-as-string", HANDLER, "w->h.usual == FAST_KIND_GET ? SLOT_STRING : SLOT_HASH", "SLOT_STRING", "all"),
    ("hash-missed-switched-off", HANDLER, "(c->fast_off & 1U << w->h.usual)", "(c->fast_off & 1U << FAST_KIND_GET)", BY_HAND),
    ("hash-with-more-behind", HANDLER, "\t}\n\treturn w->pos == w->p.payload_len;", "\t}\n\treturn true;", BY_HAND),
    ("field-empty", HANDLER, "w->pos - field <= USUAL_ARG_NONE", "w->pos - field < USUAL_ARG_NONE", BY_HAND),
    ("write-unmarked", WRITE, "\t\tmark_take(set, w->h.look.hash);\n", "\t\t;\n", BY_HAND),
    ("write-unheld", WRITE, "\tconn->h.mark_head++;\n", "", BY_HAND),
    ("write-numbered-wrong", WRITE, "request = conn->requests + 1;", "request = conn->requests;", BY_HAND),
    ("write-never-shown", WRITE, "\tthrough_commit(conn, w);\n", "", BY_HAND),
    ("write-unseen-by-cache", WRITE, "\t\tthrough_look();\n", "", BY_HAND),
    ("write-switched-off", WRITE, "(c->fast_off & 1U << w->h.usual) || ", "", BY_HAND),
    ("write-old-rights", WRITE, "read_once(c->rights) != conn->h.rights ||", "", BY_HAND),
    ("write-with-more-behind", WRITE, "\treturn w->pos == w->p.payload_len;", "\treturn true;", BY_HAND),
    ("argument-torn", WRITE, "at > PAYLOAD_BYTES || *(u16 *)(w->payload + at) != RESP_CRLF)", "at > PAYLOAD_BYTES)", BY_HAND),
    ("write-taken-first", LANE, "(writes && (!lane_taken(conn, r, &w->view, w) || order_stirs(c)))", "(0)", BY_HAND),
    ("absorbed-unasked", LANE, "lane_begin(ctx, w, c, conn, &r) || !lane_taken(conn, &r, &w->view, w)", "lane_begin(ctx, w, c, conn, &r)", BY_HAND),
    ("absorbed-sum-unread", LANE, "return lane_sum_ok(&sum) ? LANE_ABSORB : LANE_LEFT;", "return LANE_ABSORB;", BY_HAND),
    ("absorbed-sum-wrong", LANE, " + lane_halves(word);\n\t*(u16 *)(tcp + 16) = ~csum_fold(sum);\n\t*(u64 *)(at + body_at) = word;", ";\n\t*(u16 *)(tcp + 16) = ~csum_fold(sum);\n\t*(u64 *)(at + body_at) = word;", BY_HAND),
    ("absorbed-uncut", LANE, "= word;\n\treturn shrink < 0 &&", "= word;\n\treturn shrink > 0 &&", BY_HAND),
    ("absorbed-uncounted", LANE, "\tcount(STAT_FAST_PACKET);\n\tsent =", "\tsent =", BY_HAND),
    ("absorbed-copy-unmarked", LANE, "\tw->p.l4_off = six ? LANE_IP6 : LANE_IP4;\n", "", "writes-mixed"),
    ("write-before-order", LANE, "(!lane_taken(conn, r, &w->view, w) || order_stirs(c))", "!lane_taken(conn, r, &w->view, w)", BY_HAND),
];

/// The same of the lane for replies; all are shown by hand.
#[rustfmt::skip]
const DOWN_MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("down-seq-untranslated", DOWN, "bpf_htonl(d->seq + d->out_delta)", "bpf_htonl(d->seq)"),
    ("down-ack-untranslated", DOWN, "bpf_htonl(d->ack + d->in_delta)", "bpf_htonl(d->ack)"),
    ("down-stamps-forgotten", DOWN, "bool stamped = d->new_tsval != d->tsval || d->new_tsecr != d->tsecr;", "bool stamped = false;"),
    ("down-uncounted", DOWN, "\tconn->replies++;\n", ""),
    ("down-unscanned", DOWN, "\tconn->scan_next = d->seq + d->len;\n", ""),
    ("down-end-forgotten", DOWN, "\tconn->egress_max = seq_max(conn->egress_max, d->seq + d->len);\n", ""),
    ("down-way-forgotten", DOWN, "\tegress_way(conn, head, true);\n", ""),
    ("down-unspoken", DOWN, "\tconn->spoke |= SPOKE_SINCE;\n", ""),
    ("down-another-socket", DOWN, "return conn->cookie == d->cookie && ", "return "),
    ("down-another-device", DOWN, "conn->ifindex == d->ifindex &&", ""),
    ("down-again", DOWN, "conn->scan_next == d->seq &&", ""),
    ("down-within", DOWN, "conn->out_at == STREAM_BETWEEN &&", ""),
    ("down-unasked", DOWN, "!seq_after(conn->replies + 1, conn->requests) &&", ""),
    ("down-new-said", DOWN, " && handler_down_usual(conn, ends)", ""),
    ("down-any-reply", DOWN, "if (usual == REPLY_ODD || ", "if ("),
    ("down-sum-made", DOWN, " || !tier_csum_partial(ctx)", ""),
    ("down-below", DOWN, " || !egress_first(ctx)", ""),
    ("down-handed-on", DOWN, " || ctx->ingress_ifindex", ""),
    ("down-stream-ends", "net/packet.h", "(tcp[13] & ~TCP_PSH) == TCP_ACK", "(tcp[13] & ~(TCP_PSH | TCP_FIN)) == TCP_ACK"),
    ("down-other-length", DOWN, "*(const u16 *)(ip + 2) == bpf_htons(20 + len) &&", ""),
    ("down-half-an-aggregate", REPLY, "== len && !read_once(ow->h.left);", "== len;"),
    ("down-more-behind", REPLY, "read_once(ow->pos) == len && !read_once(ow->h.left);", "!read_once(ow->h.left);"),
    ("down-map-of-values", REPLY, "== '%' ? 2 * n : n;", "== '%' ? n : n;"),
    ("down-other-element", RESP, "\tif ((u8)word != '$')\n\t\treturn 0;\n", ""),
    ("down-mark-kept", REPLIED, "\tow->h.released = 1;\n", ""),
    ("down-mark-again", REPLIED, "\tconn->h.mark_tail++;\n\tow->h.found.done = 1;\n", "\tow->h.found.done = 1;\n"),
    ("down-unshown", REPLIED, "\tow->h.ok = reply_ok(conn, ow);\n}\n\nINLINE void handler_down_begin(", "}\n\nINLINE void handler_down_begin("),
    ("down-any-line", REPLY, "!reply_line_whole(word, len)", "0"),
    ("down-number-as-ok", REPLY, "ow->h.said_ok = (u8)word == '+';", "ow->h.said_ok = 1;"),
    ("down-later-mark", REPLY, "m->request == conn->replies + 1", "m->request"),
    ("down-some-marks", REPLY, "hold_used(conn) == 1", "hold_used(conn)"),
    ("down-undone", DOWN, "\tif (ends)\n\t\thandler_down_done(ow, c);\n", ""),
    ("down-any-length", REPLY, "return digits && len == digits + 3 + n + 2;", "return digits;"),
];

const fn edit(file: &'static str, find: &'static str, replace: &'static str) -> Edit {
    Edit {
        file,
        find,
        replace,
    }
}

/// Told at once, and not by the slow tests below.
#[test]
fn each_mistake_in_the_lane_has_its_place() {
    let down = DOWN_MISTAKES.iter();
    let down = down.map(|(_, file, find, replace)| edit(file, find, replace));
    let all = MISTAKES.iter();
    let all = all.map(|(_, file, find, replace, _)| edit(file, find, replace));
    all.chain(down)
        .for_each(|edit| drop(edited(&[edit]).expect("a text that is there once")));
}

/// The data path without the lanes, built once.
fn without() -> &'static Library {
    static WITHOUT: OnceLock<Library> = OnceLock::new();
    WITHOUT.get_or_init(|| build("lanes-off", OFF))
}

/// What it makes of odd replies.
fn right() -> &'static [Odds] {
    static RIGHT: OnceLock<Vec<Odds>> = OnceLock::new();
    RIGHT.get_or_init(|| odd_replies(without()).collect())
}

/// In runs of the profile, or by hand, the mistake is seen.
fn seen_in(profile: &str, wrong: &Library) -> Option<String> {
    if profile == BY_HAND {
        return taken_otherwise(wrong, without());
    }
    let profile = in_turns(erb_sim::profile::find(profile).expect("a profile"));
    (1..=SEEDS_OF_MISTAKE).find_map(|seed| {
        let [one, other] = [wrong, without()].map(|library| outcome(profile, seed, library));
        difference(&one, &other)
    })
}

/// A mistake of one of the lanes.
fn deliberate(
    name: &'static str,
    edit: Edit,
    seen: impl Fn(&Library) -> Option<String> + Send + Sync + 'static,
) -> Deliberate {
    Deliberate {
        name: format!("lane {name}"),
        files: vec![edit.file],
        judge: Box::new(move || {
            seen(&build(&format!("lane-{name}"), &[edit])).ok_or_else(|| "NOT SEEN".to_owned())
        }),
    }
}

pub fn mistakes() -> impl Iterator<Item = Deliberate> {
    let up = MISTAKES
        .iter()
        .map(|&(name, file, find, replace, profile)| {
            deliberate(name, edit(file, find, replace), move |wrong| {
                seen_in(profile, wrong)
            })
        });
    let down = DOWN_MISTAKES.iter().map(|&(name, file, find, replace)| {
        deliberate(name, edit(file, find, replace), |wrong| {
            reply_taken_otherwise(wrong, right())
        })
    });
    up.chain(down)
}
