// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mistakes in the C: each rule left out in turn, or got slightly wrong. A table, to be read by
//! searching.

use super::{Change, Edit, Mutation, Way};

mutations! {
    Profile,
    "order-unchecked", "consumed only if in order: seq == next == up_max, nothing half scanned", "segments",
        [("splice/splice.h", "if (p->seq != conn->next || p->seq != conn->up_max || conn->in_at != STREAM_BETWEEN)", "if (0)"),
         ("splice/answer.h", "if (w->p.seq != conn->next || conn->in_at != STREAM_BETWEEN)", "if (0)")];
    "order-unasked", "nothing goes up past an absorbed write", "absorbed",
        [("splice/up.h", "taken == UP_TAKEN ? w->asks : 0", "0")];
    "absorb-unlooked", "who answers a write looks at marks, fence and gate once more when he has said so", "writes",
        [("splice/absorb.h", "if (absorb_open(c) && handler_absorb_may(w, c)) /* I6 */", "if (absorb_open(c))")];
    "absorb-unsaid", "who answers a write says so before", "writes",
        [("splice/busy.h", "| (set + 1));", ");\n\t(void)set;")];
    "absorb-marked", "no write is answered beside one of its set that goes up", "writes",
        [("redis/absorb.h", "return read_once(set->marks) ? STAT_ABSORB_MARKED : 0;", "return 0;")];
    "absorb-old-entry", "an absorbed write takes its key's entry away", "writes",
        [("redis/absorb.h", "dropped = set_drop_tag(set, tag_of(hash), &used);\n\tput &=", "dropped = 0;\n\tused = 0;\n\tput &=")];
    "absorb-unnoted", "its set knows its LSN", "writes",
        [("redis/absorb.h", "\tset->lsn = lsn;\n", "")];
    "absorb-lsn-unmoved", "its LSN is the last one of all", "writes",
        [("redis/absorb.h", "lsn = atomic_add_before(&c->order.lsn, 1) + 1;", "lsn = read_once(c->order.lsn) + 1;")];
    "absorb-version", "a fill that began before it is void", "writes",
        [("redis/absorb.h", "\tset->version++;\n", "")];
    "absorb-head-early", "its record is whole before the drain sees it", "writes",
        [("redis/absorb.h", "lsn = absorb_order();\n\t((struct log_record *)(log->bytes + (log->head & (LOG_BYTES - 1))))->lsn = lsn;\n\tif (keeps)\n\t\tkeep_push(w, log);\n\tatomic_set(&log->head, log->head + whole);", "atomic_set(&log->head, log->head + whole);\n\tlsn = absorb_order();\n\t((struct log_record *)(log->bytes + ((log->head - whole) & (LOG_BYTES - 1))))->lsn = lsn;")];
    "absorb-seconds", "EX and EXAT are seconds", "writes-mixed",
        [("redis/absorb.h", "word == ABSORB_EX || word == ABSORB_EXAT\t  ? 1000", "word == ABSORB_EX || word == ABSORB_EXAT\t  ? 1")];
    "absorb-for-ever", "what expires does so in Redis, too", "writes-mixed",
        [("redis/absorb.h", "record->expiry_ms = a->expiry_ms;", "record->expiry_ms = 0;")];
    "absorb-entry-for-ever", "and in the cache", "writes-mixed",
        [("redis/absorb.h", "slot->flags = SLOT_F_EXPIRES;", "slot->flags = 0;")];
    "absorb-entry-in-part", "an entry has all of its value", "writes-mixed",
        [("redis/absorb.h", "image, w->h.absorbed.bytes, CLASS1_BYTES);", "image, COPY_BLOCK, CLASS1_BYTES);")];
    "absorb-database", "the record names the connection's database", "writes-mixed",
        [("redis/absorb.h", "slot_head(slot, 0, a->value_len, a->key_len, 0, w->h.look.db);", "slot_head(slot, 0, a->value_len, a->key_len, 0, 0);")];
    "absorb-rights", "whose rights have moved is asked by Redis", "writes-mixed",
        [("redis/absorb.h", "if (w->h.rights != conn->h.rights)\n\t\treturn STAT_REFUSE_RIGHTS;\n\tif (c->fast_off", "if (c->fast_off"),
         ("redis/handler.h", " || conn->h.rights != w->h.rights ?", " ?")];
    "absorb-two", "two commands are no write that is answered", "writes",
        [("redis/absorb.h", "if (w->pos != w->p.payload_len)", "if (w->pos > w->p.payload_len)")];
    "absorb-value", "the record has the whole value", "writes",
        [("redis/absorb.h", "if (left < 8)\n\t\t\tword &=", "if (left < 16)\n\t\t\tword &=")];
    "unanswered-ignored", "consumed only if every request that went up is answered", "calm",
        [("splice/splice.h", "if (conn->requests != conn->replies)", "if (0)")];
    "lane-unchecked", "the express lane asks the quiescence rule", "hot",
        [("splice/lane.h", "return commit_check(conn, v, w);", "return 0;")];
    "unanswered-and-owed", "consumed only if Redis and the kernel owe nothing", "calm",
        [("splice/splice.h", "if (conn->requests != conn->replies)", "if (0)"),
         ("splice/splice.h", "if (conn->egress_max != v->write_seq)", "if (0)")];
    "owed-bytes", "the kernel owes nothing, judged with the packet's own ACK", "lossy",
        [("splice/splice.h", "} else if (p->ack != sent_end) {", "} else if (0) {")];
    "ack-swallowed", "no ACK that is new to the kernel is swallowed (TC hand-over)", "calm",
        [("splice/splice.h", "return kernel_ack == v->snd_una ? 0 : STAT_TO_TC;", "return 0 * kernel_ack;")];
    "delta-short", "both deltas move by what was consumed and inserted", "hot",
        [("splice/splice.h", "conn->out_delta += read_once(w->reply_len);", "conn->out_delta += read_once(w->reply_len) - 1;")];
    "delta-in-forgotten", "both deltas change together", "calm",
        [("splice/splice.h", "conn->in_delta += p->payload_len;", "conn->in_delta += 0;")];
    "edge-not-moved", "the edge is write_seq at the last edit", "lossy",
        [("splice/splice.h", "\tconn->edge = v->write_seq;\n", "")];
    "handshake-forgotten", "what the handshake settled is kept with the socket's address", "calm",
        [("net/sock.h", "\t\tconn->fixed = fixed;\n", "")];
    "ack-not-translated-down", "down: ack + in_delta", "calm",
        [("splice/egress.h", "store_be32(tcp + 8, ow->p.ack + ow->in_delta);", "store_be32(tcp + 8, ow->p.ack);")];
    "seq-not-translated-down", "down: seq + out_delta", "calm",
        [("splice/egress.h", "store_be32(tcp + 4, ow->p.seq + ow->out_delta);", "store_be32(tcp + 4, ow->p.seq);")];
    "seq-not-translated-up", "up: seq - in_delta", "calm",
        [("splice/splice.h", "store_be32(tcp + 4, w->p.seq - w->in_delta);", "store_be32(tcp + 4, w->p.seq);")];
    "ack-not-translated-up", "up: ack - out_delta", "calm",
        [("splice/splice.h", "ack = w->p.ack - w->out_delta;", "ack = w->p.ack;")];
    "replay-wrong-base", "a replay starts at the client's highest acknowledgement", "lossy",
        [("splice/splice.h", "u32 at = (seq - conn->replay_base) & (REPLAY_BYTES - 1);\n\n\tif (want >", "u32 at = (seq - conn->replay_from + 1) & (REPLAY_BYTES - 1);\n\n\tif (want >")];
    "replay-from-later", "a replay carries the oldest unacknowledged bytes", "lossy",
        [("splice/splice.h", "if (v->write_seq != conn->edge || seq_before(conn->replay_from, p->ack))\n\t\tconn->replay_from = p->ack;", "conn->replay_from = start;")];
    "tsval-goes-back", "TSval never goes back (answers)", "calm",
        [("splice/splice.h", "w->out_tsval = seq_max(sock_tsval(v, w->now), conn->last_tsval);", "w->out_tsval = sock_tsval(v, w->now);")];
    "tsval-goes-back-down", "TSval never goes back (the kernel's packets)", "races",
        [("splice/egress.h", "*tsval = seq_max(*tsval, conn->last_tsval);", "*tsval = *tsval + 0;"),
         ("splice/splice.h", "w->out_tsval = seq_max(sock_tsval(v, w->now), conn->last_tsval);", "w->out_tsval = seq_max(sock_tsval(v, w->now), conn->last_tsval) + 3;")];
    "checksum-unchecked", "the checksum is right in full or the bare pseudo-header sum", "corrupt",
        [("net/checksum.h", "csum_fold(pseudo + sum) == 0xffff;\n\t}\n", "csum_fold(pseudo + sum) != 1;\n\t}\n"),
         ("net/checksum.h", "return right || w->bare || tier_merged(ctx); /* GRO", "return w->bare || right || !w->bare; /* GRO")];
    "pure-acks-dropped", "pure ACKs are dropped only if they say nothing new", "bigvalues",
        [("splice/ack.h", "p->seq == conn->next && !p->sack_off && v->write_seq == v->snd_una &&\n\t       ack_is_known(conn, v, p) && !(conn->spoke & SPOKE_SINCE) &&\n\t       w->now - conn->ack_up_ns < PURE_ACK_UP_NS;", "v->established && p->seq == conn->next;")];
    "gap-scanned", "payload beyond next is never scanned", "reorder",
        [("splice/ingress.h", "u32 beyond = (conn->next - w->p.seq) >> 31;", "u32 beyond = 0;"),
         ("splice/ingress.h", "if (!TIER_XDP && !ahead && is_beyond(conn, &w->p)) {", "if (0) {"),
         ("splice/ahead.h", "((conn->flags & CONN_F_AHEAD) || is_beyond(conn, &w->p)) &&", "(conn->flags & CONN_F_AHEAD) &&"),
         ("splice/up.h", "(seq_after(w->scan_seq, w->scan_from) ||", "(")];
    "ahead-unscanned", "before a packet goes up all that is in order with it is scanned", "holes",
        [("splice/ahead.h", "w->scan_len = w->end - conn->next;", "w->end = w->ring_end;\n\tw->scan_len = w->end - conn->next;")];
    "ahead-overtaken", "while bytes are kept XDP takes none", "holes",
        [("splice/ingress.h", "(conn->flags & CONN_F_AHEAD);\n}", "0;\n}"),
         ("splice/up.h", "if ((conn->flags & CONN_F_AHEAD) && !w->ring && (TIER_XDP || !lost)) /* O2 */", "if (0)")];
    "scan-twice", "a scan counts only if next is unchanged", "twins",
        [("splice/up.h", "if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))", "if (conn->cookie != r->cookie)")];
    "again-scanned", "bytes that went up before go up again unscanned", "lossy",
        [("splice/ingress.h", "again = !ahead && !seq_after(w->end, conn->next);", "again = false;"),
         ("splice/up.h", "||\n\t\t\t\t\t!seq_after(w->scan_seq + w->scan_len, w->scan_from)))", "))")];
    "consumed-goes-up", "a copy of consumed bytes never reaches the kernel as new", "lossy",
        [("splice/ingress.h", "if (!seq_after(w->end, conn->in_edge) && conn->in_delta) {", "if (0) {"),
         ("splice/splice.h", "store_be32(tcp + 4, w->p.seq - w->in_delta);", "store_be32(tcp + 4, seq_before(w->p.seq, w->p.ack - w->p.ack + w->p.seq + 1) ? w->p.seq - w->in_delta / 2 : 0);")];
    "no-mark", "a write takes a mark before it goes up", "calm",
        [("redis/scan_request.h", "if (s->has_key && !found_effect(", "if (s->has_key && s->hash == 1 && !found_effect(")];
    "mark-wrong-key", "the mark is on the key's own set (last bytes of the hash)", "calm",
        [("redis/scan_request.h", "if (s->word_len)\n\t\t\ts->hash = hash_word(&c->hash, s->hash, s->word, s->number / 8);", "")];
    "hash-unkeyed", "each word of a key is hashed with a secret of its place", "calm",
        [("cache/key_hash.h", "word += secret->words[place & (HASH_WORDS - 1)];", "")];
    "mark-early", "a mark stands until its own reply has left", "segments",
        [("redis/replies.h", "return !seq_after(m->request, conn->replies + early);", "return !seq_after(m->request, conn->replies + early + 1);")];
    "mark-one-early", "an effect belongs to the request that is coming in", "races",
        [("redis/scan_request.h", "f->marks[n].request = f->done + 1;", "f->marks[n].request = f->done;")];
    "mark-leaves-entry", "taking a mark frees the key's entry", "calm",
        [("cache/marks.h", "return set_drop_tag(set, tag_of(hash), used);", "return set_drop_tag(set, hash == 1, used);")];
    "epoch-unchecked", "entries of another epoch are absent", "odd",
        [("cache/cache.h", "if (slot->key_len != len || slot->cache_epoch != l->cache_epoch ||", "if (slot->key_len != len ||")];
    "expiry-unchecked", "an entry is not answered from shortly before its expiry", "expiry",
        [("redis/get.h", "w->h.look.now_wall_ms + EXPIRY_GUARD_MS + CLOCK_LAG_MS >= until;", "until == 0;")];
    "expiry-late", "the guard covers what the coarse clock lags behind", "expiry",
        [("redis/get.h", "w->h.look.now_wall_ms + EXPIRY_GUARD_MS + CLOCK_LAG_MS >= until", "w->h.look.now_wall_ms >= until")];
    "key-uncompared", "the whole key is compared, the tag only finds it", "calm",
        [("cache/cache.h", "u32 bits = tags_match(set, tag_of(l->hash));", "u32 bits = ~tags_match(set, 0) & 0xffff;"),
         ("cache/cache.h", "if (*(u64 *)(slot->data + off) != l->key[i])\n\t\t\treturn false;", "if (slot->value_len > 60000)\n\t\t\treturn false;")];
    "key-in-two-ways", "a key is in at most one way of its set", "races",
        [("control.bpf.c", "\t\tset_drop_but(set, tag_of(fw->l.hash), keep, &used);", "\t\tset_drop_but(set, 0, keep, &used);")];
    "digest-forgotten", "a key that the digest lacks is in no way", "calm",
        [("control.bpf.c", "digest->tags[way & (WAYS - 1)] = digest_of(fw->l.hash);", "")];
    "entry-too-long", "an entry fits its class, the expiry included", "edges",
        [("control.bpf.c", "((key_len + 7) & ~7U) + (expires ? 8 : 0);", "((key_len + 7) & ~7U) + (expires ? 0 : 0);")];
    "lease-ignored", "hits need the lease", "lease",
        [("redis/get.h", "if (w->now >= lease_until_ns)", "if (lease_until_ns & !c->port_be)")];
    "fence-not-taken", "an unknown command raises the fence", "odd",
        [("redis/scan_request.h", "return class == CMD_FENCE || class == CMD_SETTLE || class == CMD_EXEC ||", "return class == CMD_EXEC ||")];
    "unknown-is-harmless", "a command that is not listed may write anything", "odd",
        [("redis/command.h", "row = command_row(&key);\n\tif (!row)\n\t\treturn command_says(c, c->unknown_class, 0);\n\tif (row->cmd_class", "row = command_row(&key);\n\tif (!row)\n\t\treturn CMD_HARMLESS;\n\tif (row->cmd_class")];
    "invalidation-ignored", "an invalidation frees the key's entry", "lease",
        [("control.bpf.c", "dropped = set_drop_but(set, tag_of(fw->l.hash), keep, &used);", "dropped = used = keep == 1000;")];
    "argument-off-by-one", "a command ends with its last argument", "calm",
        [("redis/scan_request.h", "if (s->state == RQ_BULK && !s->args_left) {", "if (s->state == RQ_BULK && s->args_left <= 1) {")];
    "body-off-by-one", "a skipped body counts with its CRLF", "calm",
        [("redis/scan_request.h", "s->skip += 2; /* S2 */", "s->skip += 1; /* S2 */")];
    "effect-late", "an effect is reported before Redis can execute the command", "calm",
        [("redis/requests.h", "if (!w->h.by_rote)\n\t\tup_take(", "if (!w->h.by_rote && w->h.found.effects > 1000)\n\t\tup_take(")];
    "reply-counted-early", "a reply is counted with its last byte", "calm",
        [("redis/scan_reply.h", "if (s->left && --s->left)\n\t\treturn;", "if (s->left && --s->left > 64)\n\t\treturn;")];
    "reply-nested", "an aggregate's elements belong to it", "odd",
        [("redis/scan_reply.h", "s->left += s->type == '%' || s->type == '|' ? 2 * s->number : s->number;", "s->left += s->type == '%' || s->type == '|' ? s->number : s->number;")];
    "mark-released-twice", "a mark is held by exactly one holder", "races",
        [("redis/effects.h", "marks = w->h.hold != HOLD_RING;", "marks = true;")];
    "wrong-value-length", "the reply announces the value's own length", "calm",
        [("redis/get.h", "u32 len = bytes - 3 - digits;", "u32 len = bytes - 4 - digits;")];
    "release-keeps", "release gives back what an entry holds", "holes",
        [("redis/proofs.h", "conn->h.mark_tail = conn->h.mark_head;\n\tconn->flags &= ~CONN_F_OVERFLOW;", "conn->flags &= ~CONN_F_OVERFLOW;")];
    "rexmit-silent", "unacknowledged answers are sent again by the timer", "lossy",
        [("splice/table.h", "due = sent_ns && (", "due = !conn->ifindex && ("),
         ("splice/ack.h", "if (!conn_unacked(conn, w->p.ack) || w->p.ack != conn->ack_max ||", "if (1 || !conn_unacked(conn, w->p.ack) || w->p.ack != conn->ack_max ||"),
         ("splice/ingress.h", "if (!seq_after(w->end, conn->in_edge) && conn->in_delta) {", "if (0) {")];
    "stranger-holds", "payload without a connection holds nothing", "strangers",
        [("splice/conn.h", "\tif (reason) {\n\t\tcount(reason);\n", "\tif (reason) {\n\t\tif (reason == STAT_SOCK_LISTEN)\n\t\t\tatomic_add(&c->fence, 1);\n\t\tcount(reason);\n")];
    "timer-unlisted", "what is not acknowledged is where the timer finds it", "lossy",
        [("splice/splice.h", "place_note(conn, w, PLACES_TIMER);", "")];
    "timer-lets-go", "the timer keeps what is still not acknowledged", "lossy",
        [("splice/table.h", "if (unacked)\n\t\tplace_set(place, PLACES_TIMER, 1);", "")];
    "held-unlisted", "who holds something is where the sweep finds it at once", "calm",
        [("redis/effects.h", "if (conn_holds(conn))\n\t\tplace_note(conn, w, PLACES_HELD);", "")];
    "place-kept", "a place is given back before its entry is deleted", "churn",
        [("splice/table.h", "place_give(c, place);", "(void)place;")];
    "auth-ignored", "AUTH ends the answers of the user before", "users",
        [("redis/modes.h", "\t\t\tm->auth_at = number;\n\t\tbreak;\n\tcase CMD_MULTI:", "\t\t\tm->auth_at = number;\n\t\treturn 0;\n\tcase CMD_MULTI:")];
    "rights-ignored", "an admission ends with the access rules that it was judged by", "users",
        [("redis/handler.h", "if (w->h.rights != conn->h.rights)", "if (w->h.rights == conn->h.rights + 1000)"),
         ("redis/handler.h", "conn->h.db != w->h.look.db || conn->h.rights != w->h.rights", "conn->h.db != w->h.look.db")];
    "db-uncompared", "an entry is of the connection's database", "users",
        [("cache/cache.h", " || slot->db != l->db)", ")")];
    "aside-unscanned", "what is not looked up is a read all the same, and proved to be one", "aside",
        [("redis/get.h", "w->whole = w->pos == w->p.payload_len;", "w->whole = w->pos == w->p.payload_len || w->refusal == STAT_REFUSE_ASIDE;")];
    "aside-unmarked", "writes take their marks in sets that are not looked into", "aside",
        [("cache/marks.h", "\tif (!set)\n\t\treturn;\n\tset_change_begin(set);\n\tdropped", "\tif (!set || set_aside(control_get(), index, control_get()->look_mask))\n\t\treturn;\n\tset_change_begin(set);\n\tdropped"),
         ("cache/marks.h", "\tbroken = set->marks == 0;", "\tbroken = false;"),
         ("cache/marks.h", "\tif (!broken)\n\t\tset->marks--;", "\tif (set->marks)\n\t\tset->marks--;")];
    "aside-stale", "invalidations reach sets that are not looked into", "aside",
        [("control.bpf.c", "keep = invalidate(index);", "keep = set_aside(c, index, c->look_mask) ? WAYS : invalidate(index);")];
    "through-beside-a-mark", "a SET is believed only if its mark is the set's only one", "through",
        [("cache/marks.h", "if (set->marks == 1) {", "if (set->marks) {"),
         ("cache/marks.h", "return set && !read_once(set->marks) &&", "return set &&")];
    "absence-not-kept", "a key that is absent holds no empty string", "absent",
        [("control.bpf.c", "slot->type = s->absent ? SLOT_ABSENT : s->type;", "slot->type = s->type;")];
    "absent-untold", "an absence is not answered where Redis tells of such reads", "absent",
        [("redis/get.h", "return read_once(c->absent) ? 0 : STAT_REFUSE_ABSENT;", "return 0;")];
    "element-cut", "an element that goes on in the next packet is not whole", "segments",
        [("redis/replies.h", "digits + n + 5 <= left ?", "digits ?")];
}
