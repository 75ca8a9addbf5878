// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes that show in a situation which chance makes too seldom: a scenario makes it. A table,
//! to be read by searching.

use super::{Change, DaemonMistake, Edit, Mutation, Way, daemon};

mutations! {
    Scenario,
    "bypass-answered", "a connection in BYPASS is never answered", "tcp-23-transactions",
        [("splice.h", "if (conn->state != CONN_FAST)\n\t\treturn conn->state == CONN_NEW", "if (conn->state == CONN_NEW)\n\t\treturn conn->state == CONN_NEW"),
         ("answer.h", "if (conn->state != CONN_FAST)\n\t\treturn conn->state == CONN_NEW", "if (conn->state == CONN_NEW)\n\t\treturn conn->state == CONN_NEW")];
    "feed-answered", "the daemon's own connection is never answered", "lo-feed-left-alone",
        [("tc.bpf.c", "if (ctx->mark == MARK_FEED) {", "if (0) {")];
    "no-room-forgotten", "an answer is committed only where its frame has room", "tier-no-room",
        [("answer.h", "if (!reason && grown == GROWN_FAILED)", "if (0)")];
    "length-unsaid", "a merged packet may say 0 of its length", "lo-longer-than-64-kb",
        [("packet.h", "if (!total_len && merged)", "if (0)"),
         ("packet.h", "if (!len && merged)", "if (0)")];
    "kernel-behind", "consumed only if the kernel has taken all earlier bytes", "tcp-04-earlier-bytes-on-their-way",
        [("splice.h", "if (v->rcv_nxt != p->seq - conn->in_delta)", "if (0)")];
    "replay-full", "unacknowledged bytes fit the replay buffer", "sharp-replay-full",
        [("splice.h", "if (unacked + w->reply_len > room)", "if (unacked + w->reply_len > room * 64)")];
    "edge-drop-missing", "kernel data below the edge never leave again", "tcp-02-old-bytes-below-the-edge",
        [("egress.h", "if (ow->p.payload_len && conn->out_delta && seq_before(ow->p.seq, conn->edge)) {", "if (0) {")];
    "floor-missing", "acknowledgements below the edge never go up", "tcp-03-ack-floor",
        [("splice.h", "if (seq_before(ack, w->edge)) {", "if (w->edge == ack + 1 && 0) {")];
    "icmp-untranslated", "a path MTU error is translated to the kernel's numbers", "tcp-12-path-mtu",
        [("icmp.h", "if (w->p.key.server_port_be != c->port_be)\n\t\treturn 0;\n\tconn", "if (w->p.key.server_port_be != 1)\n\t\treturn 0;\n\tconn")];
    "sack-delta", "SACK blocks go up less out_delta", "tcp-19-sack-above",
        [("splice.h", "store_be32(tcp + at, load_be32(tcp + at) - w->out_delta);\n\t\t\tstore_be32(tcp + at + 4, load_be32(tcp + at + 4) - w->out_delta);", "store_be32(tcp + at, load_be32(tcp + at) - w->out_delta / 2);\n\t\t\tstore_be32(tcp + at + 4, load_be32(tcp + at + 4) - w->out_delta / 2);")];
    "old-taken-for-new", "a connection older than ERB is never answered", "sharp-older-with-state",
        [("conn.h", "r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;", "r->state == TCP_ESTABLISHED;")];
    "made-twice", "two CPUs do not make an entry twice", "sharp-made-once",
        [("conn.h", "if (conn->cookie != cookie) /* another CPU may have been faster */\n\t\tconn_init", "if (conn->cookie != cookie || 1)\n\t\tconn_init")];
    "old-not-fenced", "payload of a connection older than ERB, like all that cannot be counted, fences until proof", "sharp-older-writes",
        [("up.h", "if ((conn->flags & CONN_F_UNCOUNTABLE) || (conn->kept & CONN_K_TRIAL)) {\n\t\tflag", "if (0) {\n\t\tflag"),
         ("up.h", "} else if (!w->found.overflow && used + n <= MARKS_IN_FLIGHT) {", "} else if (!w->found.overflow && !used && !n) {\n\t\treturn HOLD_RING;\n\t} else if (!w->found.overflow && used + n <= MARKS_IN_FLIGHT) {")];
    "cookie-unchecked", "an entry is used only for the socket whose cookie it carries", "sock-same-addresses",
        [("ingress.h", "if (!conn || (conn->cookie != r->cookie && conn->cookie != COOKIE_UNKNOWN)) {", "if (!conn) {"),
         ("answer.h", "if (sock_view_load(r, &w->view) && conn->cookie == r->cookie)", "if (sock_view_load(r, &w->view))"),
         ("up.h", "if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))", "if (!lost && conn->next != w->scan_from)")];
    "fill-version", "a fill needs the version noted before its read", "sharp-fill-across-write",
        [("control.bpf.c", "if (!set->marks && set->version == s->version) {", "if (!set->marks) {")];
    "queued-unseen", "a connection of which TCP has had any segment is older than ERB", "sharp-older-out-of-order",
        [("conn.h", "r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;", "r->state == TCP_ESTABLISHED && r->tp->rcv_nxt == r->tp->copied_seq;")];
    "fill-global-version", "a fill needs the global version noted before its read", "sharp-fill-across-fence",
        [("control.bpf.c", "if (read_once(c->global_version) != s->global_version || closed(c))", "if (closed(c))"),
         ("control.bpf.c", "slot->cache_epoch = s->cache_epoch;", "slot->cache_epoch = control_get() ? control_get()->cache_epoch : 0;"),
         ("control.bpf.c", "fw->l.cache_epoch = s->cache_epoch;", "fw->l.cache_epoch = c->cache_epoch;")];
    "fill-under-mark", "while a mark stands nothing is inserted", "sharp-fill-below-write",
        [("control.bpf.c", "return marks ? FILL_BUSY : FILL_OK;", "return marks ? FILL_OK : FILL_OK;"),
         ("control.bpf.c", "if (!set->marks && set->version == s->version) {", "if (set->version == s->version) {")];
    "gate-ignored", "while a MONITOR is attached or Redis's state is unread nothing is answered", "coh-39-gate",
        [("fast.h", "if (read_once(c->gate_seen) != read_once(c->gate_ack))", "if (!c->port_be)"),
         ("fast.h", "bool fenced = read_once(c->fence) || read_once(c->untracked);", "bool fenced = 0;")];
    "use-unnoticed", "Redis is told which keys are used where it evicts by use", "coh-41-policy",
        [("cache.h", "both = (1U << way) * 0x10001U", "both = 1U << way")];
    "old-stamp-echoed", "the kernel's packets echo the client's newest stamp", "tcp-13-timestamps",
        [("egress.h", "ow->tsecr = conn->in_delta ? seq_max(ow->p.tsecr, conn->ts_recent) : ow->p.tsecr;", "ow->tsecr = ow->p.tsecr;")];
    "probe-dropped", "a client's keepalive probe is answered", "tcp-05-keepalive",
        [("ack.h", "p->seq == conn->next && !p->sack_off", "!seq_after(p->seq, conn->next) && !p->sack_off")];
    "mark-ignored", "while a mark stands nothing of its set is answered", "coh-43-whole-set",
        [("fast.h", "if (read_once(set->marks))", "if (read_once(set->marks) > 1000)")];
    "key-step", "each key of a range is marked", "coh-03-many-keys",
        [("scan_request.h", "s->key_next += s->key_step;", "s->key_next += s->key_step + 1;")];
    "last-key-forgotten", "a range of keys goes to the last one", "coh-03-last-key",
        [("command.h", "s->key_last = last;", "s->key_last = last - 1;")];
    "key-across-packets", "keys are found wherever the stream is cut", "coh-03-split-keys",
        [("up.h", "w->found.done = w->found.effects = 0;\n", "w->found.done = w->found.effects = w->scan.key_next = 0;\n")];
    "keynum-misread", "the number of keys is read from its argument", "coh-03-counted-keys",
        [("command.h", "return command_range(s, first, first + (n - 1) * s->key_step, s->key_step);", "return command_range(s, first, first + (n - 2) * s->key_step, s->key_step);")];
    "overflow-half", "the fence that stands for marks without room covers a command that is not whole yet", "coh-43-half-command",
        [("egress.h", "!scan_request_open(&conn->in)) {", "!(scan_request_open(&conn->in) && conn->in.state == RQ_LOST)) {")];
    "set-unlocked", "what is read of a set while it changes does not count", "sharp-set-changed",
        [("cache.h", "return !(changes & 1) && read_once(set->changes) == changes;", "return changes || set;")];
    "miss-in-mget", "nothing is answered of a key that is not cached", "reads-answers",
        [("fast_more.h", "if (reason && !w->more.reason)", "if (reason && reason != STAT_REFUSE_MISS && !w->more.reason)")];
    "zeros-before-integers", "an integer argument is as all versions of Redis take it", "reads-answers",
        [("fast_more.h", "|| (b[minus] == '0' && len > 1))", ")")];
    "range-beyond-its-end", "a range ends with the string", "reads-answers",
        [("fast_more.h", "\t\tif (to >= len)\n\t\t\tto = len - 1;\n", "")];
    "ttl-not-rounded", "TTL is rounded as Redis does", "reads-time-left",
        [("fast_more.h", "(more_ttl_ms(w, c) + 500) / 1000", "more_ttl_ms(w, c) / 1000")];
    "ttl-by-the-coarse-clock", "TTL and PTTL are read off the exact clock", "reads-time-left",
        [("fast_more.h", "(now_exact_ns() + c->wall_minus_mono_ns) / 1000000;", "(w->now + c->wall_minus_mono_ns) / 1000000;")];
    "two-moments", "the keys of one command are of one moment", "reads-two-moments",
        [("fast_more.h", "if (!reason && m->keys > 1 && !more_all_still())", "if (!reason && m->keys > 1000 && !more_all_still())")];
    "off-ignored", "a command that this Redis has not is not answered", "reads-switched-off",
        [("fast_more.h", "if (kind == FAST_NONE || c->fast_off & 1U << kind)", "if (kind == FAST_NONE)")];
    "exists-once", "EXISTS counts a key as often as it is named", "reads-answers",
        [("fast_more.h", "return more_integer(m->keys, 0);", "return more_integer(m->keys > 0, 0);")];
    "other-type-served", "a value is answered from by commands of its type", "hash-answers",
        [("fast_more.h", "if (slot->type != (more_hashed(m) ? SLOT_HASH : SLOT_STRING) && !more_typeless(m))", "if (slot->type > SLOT_HASH && !more_typeless(m))")];
    "field-by-length", "the whole field is compared", "hash-answers",
        [("fast_hash.h", "\t\tif (differ)\n", "\t\tif (differ && len > KEY_BYTES_MAX)\n")];
    "type-not-kept", "an entry is what the fill read", "hash-answers",
        [("control.bpf.c", "slot->type = s->type;", "slot->type = SLOT_STRING;")];
    "nil-of-resp2", "nil is in the version of the connection", "hash-other-version",
        [("modes.h", "\t\tconn->resp = 0;\n", "\t\tconn->resp = 2;\n")];
    "replay-acknowledges-more", "a replay acknowledges what the kernel has, not what was scanned", "tcp-10-replay-acknowledges",
        [("resend.h", "w->out_ack = w->view.rcv_nxt + conn->in_delta;\n\t\tif (unacked)", "w->out_ack = conn->next;\n\t\tif (unacked)")];
    "replay-unpaced", "one replay per hole and round trip", "tcp-18-one-replay-per-hole",
        [("ack.h", "w->now - conn->replay_ns < pause)", "w->now + pause < conn->replay_ns)")];
    "replay-for-dsack", "D-SACK shows no hole", "tcp-18-dsack",
        [("ack.h", "return seq_after(w->p.sack_first, w->p.ack);", "return true;")];
    "any-rst-ends", "a reset ends a connection only if TCP believes it", "tcp-06-stray-syn-and-rst",
        [("up.h", "return !viewed || w->p.seq == conn->next ||", "return !viewed || w->p.seq ||")];
    "time-wait-unguarded", "without timestamps a SYN waits for the end of a spliced TIME_WAIT", "tcp-30-time-wait-reuse",
        [("ingress.h", "hold = r.state == TCP_TIME_WAIT && r.cookie == conn->cookie;", "hold = false;")];
    "silent-after-fin", "lost fast bytes are repeated after the server's FIN", "tcp-fin-after-fast-bytes",
        [("sock.h", "v->speaks = state < 16 && (1U << state & SOCK_STATES_SPEAKING);", "v->speaks = state == TCP_ESTABLISHED;")];
    "any-device", "a connection whose replies leave by another device is not answered", "tcp-25-other-device",
        [("egress.h", "if (conn->ifindex != ctx->ifindex) {", "if (conn->ifindex == ~ctx->ifindex) {")];
    "window-unscaled", "the window is offered in the connection's scale", "tcp-16-syn-ack-window",
        [("splice.h", "w->out_window = sock_receive_window(v) >> v->rcv_wscale;", "w->out_window = sock_receive_window(v);")];
    "paws-ignored", "what PAWS refuses counts for nothing", "tcp-15-acceptance",
        [("splice.h", "return !p->ts_off || !conn->ts_recent || !seq_before(p->tsval, conn->ts_recent);", "return !p->ts_off || conn->ts_recent != p->tsval || !seq_before(p->tsval, conn->ts_recent);")];
    "ack-too-old-ignored", "what TCP takes for a blind guess counts for nothing", "tcp-15-acceptance",
        [("splice.h", "return seq_before(p->ack, conn->ack_max - v->max_window);", "return conn->ack_max == p->ack + 1 && v->max_window == 1;")];
    "client-window-ignored", "an answer fits the window that the client offers", "sharp-too-large",
        [("splice.h", "if (unacked + w->reply_len > (u32)p->window << v->snd_wscale)", "if (0)")];
    "mss-ignored", "an answer fits the client's segments", "sharp-too-large",
        [("splice.h", "if (w->reply_len > v->mss_cache || (conn->mss_limit && w->reply_len > conn->mss_limit))", "if (0)")];
    "server-window-ignored", "what is consumed fits the window that the kernel offered", "sharp-server-window",
        [("splice.h", "if (seq_after(v->rcv_nxt + p->payload_len, v->rcv_wup + v->rcv_wnd))", "if (0)")];
    "heartbeat-ignored", "Redis's idle timer sees a client that is always answered fast", "tcp-11-idle-timer",
        [("answer.h", "if (c->heartbeat_up_ns && w->now - conn->request_up_ns > c->heartbeat_up_ns)", "if (0)")];
    "known-without-state", "a remembered socket is used only while it is established", "sharp-closing-server",
        [("sock.h", "return r->cookie == conn->cookie && sock_state(r->tp) == TCP_ESTABLISHED;", "return r->cookie == conn->cookie;")];
    "request-unproved", "payload that a request refuses and its child may take does not go up", "tcp-15-ack-before-the-first-byte",
        [("ingress.h", "count(STAT_SOCK_REQUEST);\n\t\treturn V_DROP;", "count(STAT_SOCK_REQUEST);\n\t\treturn V_PLAIN;")];
    "ack-before-first-byte", "what acknowledges nothing of the server's counts for nothing", "tcp-15-ack-before-the-first-byte",
        [("ingress.h", "if ((!conn->out_delta && seq_before(w->p.ack, conn->edge)) ||", "if (")];
    "ack-of-unsent", "what acknowledges unsent bytes counts for nothing", "tcp-15-ack-of-unsent",
        [("splice.h", "return seq_after(p->ack, seq_max(v->snd_nxt, conn->egress_max) + conn->out_delta);", "return v->snd_nxt == 1;")];
    "untracked-opens", "what nobody tracks may be a MONITOR", "coh-40-monitor-untracked",
        [("conn.h", "\tatomic_add(&c->gate_seen, 1);\n\tcount(STAT_GATE_SHUT);\n", "")];
    "unread-opens", "what cannot be read may be a MONITOR", "coh-40-monitor-unread",
        [("up.h", "unread = lost || trial || (!w->whole && w->scan.state == RQ_LOST);", "unread = lost || trial;")];
    "refusals-shut", "only a refusal that contradicts the known rules shuts the gate", "coh-37-refused-again",
        [("egress.h", "conn->rights == ow->rights && ow->found.noperm", "ow->found.noperm")];
    "epoch-uncompared", "an admission counts only if nothing was sent that changes the connection", "tcp-23-moved-on",
        [("admit.h", "conn->epoch != io->row.epoch)", "!io->row.cookie)")];
    "resp-guessed", "the RESP version is proved by a map or by CLIENT LIST", "tcp-23-resp",
        [("modes.h", "if (other || m->reset)\n\t\tconn->resp = 0;", "if (other && m->hello != HELLO_ODD)\n\t\tconn->resp = m->hello;")];
    "watch-forgotten", "who watches keys is not admitted", "coh-37-watch",
        [("modes.h", "m->kept |= CONN_K_WATCH | CONN_K_WATCHED;", "")];
    "trial-proof-of-all", "the proof of a trial releases the trial's share alone", "coh-37-behind-a-trial",
        [("table.h", "io->remove || io->closed || !conn_counted(conn) || (conn->kept & CONN_K_TRIAL);", "true || io->closed;")];
    "trial-unproved", "a stream is taken up for good when an answer has proved its boundary", "coh-37-older-inside",
        [("egress.h", "return (conn->kept & CONN_K_TRIAL) && ow->found.errors;", "return false;")];
    "bare-by-chance", "a right sum that equals the bare one is updated like any other", "sharp-bare-by-chance",
        [("verify.h", "w->bare = partial || (bare && !right);", "w->bare = partial || bare;")];
}

/// The daemon's.
pub(super) const DAEMON: &[Mutation] = &[
    daemon(
        "lease-without-pong",
        "only +PONG renews the lease",
        Way::Scenario("coh-17-silent-redis"),
        DaemonMistake::LeaseWithoutPong,
    ),
    daemon(
        "lease-from-pong",
        "the lease counts from when PING was written",
        Way::Scenario("sharp-late-pong"),
        DaemonMistake::LeaseFromPong,
    ),
    daemon(
        "invalidations-late",
        "an invalidation is handled when it comes",
        Way::Scenario("sharp-last-push"),
        DaemonMistake::InvalidationsLate,
    ),
    daemon(
        "gate-unread",
        "the gate opens when Redis's state was read again",
        Way::Scenario("sharp-gate-state"),
        DaemonMistake::GateUnread,
    ),
    daemon(
        "released-without-proof",
        "a share of the fence is released by proof of execution",
        Way::Scenario("sharp-unread-write"),
        DaemonMistake::ReleasedWithoutProof,
    ),
    daemon(
        "fast-names-unchecked",
        "a fast command whose name another one bears is Redis's",
        Way::Scenario("coh-03-renamed-fast"),
        DaemonMistake::FastNamesUnchecked,
    ),
    daemon(
        "table-not-loaded",
        "what a name means is Redis's to say",
        Way::Scenario("coh-03-renamed-write"),
        DaemonMistake::TableNotLoaded,
    ),
    daemon(
        "unknown-is-no-state",
        "a name that nobody knows may be that of a command with a state",
        Way::Scenario("coh-03-renamed-state"),
        DaemonMistake::UnknownIsNoState,
    ),
    daemon(
        "cache-taken-over",
        "a daemon that takes over believes nothing that it finds in the cache",
        Way::Scenario("ops-replaced-unawares"),
        DaemonMistake::CacheTakenOver,
    ),
    daemon(
        "rights-taken-over",
        "a daemon that takes over admits every connection anew",
        Way::Scenario("ops-replaced-unawares"),
        DaemonMistake::RightsTakenOver,
    ),
];
