// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes of the programs that show in a situation which chance makes too seldom: a scenario makes it. A table,
//! to be read by searching.

use super::{Change, Edit, Mutation, Way};

mutations! {
    Scenario,
    "bypass-answered", "a connection in BYPASS is never answered", "tcp-23-transactions",
        [("splice/splice.h", "if (conn->state != CONN_FAST)\n\t\treturn conn->state == CONN_NEW", "if (conn->state == CONN_NEW)\n\t\treturn conn->state == CONN_NEW"),
         ("splice/answer.h", "if (conn->state != CONN_FAST)\n\t\treturn conn->state == CONN_NEW", "if (conn->state == CONN_NEW)\n\t\treturn conn->state == CONN_NEW")];
    "absorb-fenced", "nor beside one of unknown keys", "absorb-beside-a-script",
        [("redis/absorb.h", "!set || read_once(c->fence) || read_once(c->gate_seen) != read_once(c->gate_ack)", "!set")];
    "absorb-unfinished", "nothing of its connection goes on before it has its LSN", "absorb-own-past",
        [("splice/absorb.h", "grown, ABSORBING | ABSORBED)", "grown, ABSORBED)")];
    "absorb-however-late", "what waits for Redis does not grow for longer than some milliseconds", "absorb-late",
        [("redis/absorb.h", "if (absorb_late(w, c))\n\t\treturn STAT_ABSORB_LATE;\n\t", "")];
    "delayed-for-ever", "a SET that is delayed for long goes up", "absorb-behind-a-mark-that-stays",
        [("splice/absorb.h", "lasts = (u16)(now - conn->delayed_at) < (u16)(DELAY_NS >> 20) &&\n\t\t(u16)(now - conn->marked_at) * !!marked_ns <= marked_ns >> 20;", "lasts = true;")];
    "behind-not-delayed", "what its client says behind a delayed SET waits with it", "absorb-delayed-in-order",
        [("splice/ingress.h", "if (delayed_with(ctx, w, conn)) {", "if (false && delayed_with(ctx, w, conn)) {")];
    "marked-not-delayed", "a SET waits for the reply of a command on its key", "absorb-behind-a-command",
        [("redis/absorb.h", "reason == STAT_ABSORB_MARKED && !is_stuck(w, c) ?", "0 ?")];
    "stuck-forgotten", "behind a command whose reply does not come SETs go up at once", "absorb-behind-a-mark-that-stays",
        [("redis/absorb.h", "reason == STAT_ABSORB_MARKED && !is_stuck(w, c) ?", "reason == STAT_ABSORB_MARKED ?")];
    "delayed-uncopied", "what has no copy is not delayed", "absorb-delayed-without-copy",
        [("splice/absorb.h", "\treturn copied;\n}\n\n/* Whether it is", "\treturn true;\n}\n\n/* Whether it is")];
    "held-not", "what comes behind an absorbed write goes up when that is drained", "held-until-drained",
        [("splice/up.h", "\tup_account(conn, w, r->tp, r->tp);\n\treturn taken", "\tw->held = 0;\n\tup_account(conn, w, r->tp, r->tp);\n\treturn taken")];
    "repeated-unordered", "nor does it when it is sent again", "held-until-drained",
        [("splice/up.h", "w->held = c && order_waits(c, conn, 0); /* Y2 */", "w->held = 0 * !!c;")];
    "lane-unordered", "the express lane passes nothing up past an absorbed write", "held-missed",
        [("splice/lane.h", "!order_open(c) && handler_up_usual", "handler_up_usual")];
    "asked-for-ever", "what waits does not wait for what is absorbed later", "held-asked-once",
        [("splice/order.h", "\tif (asks)\n\t\tconn->waits_for = lsn;", "\tconn->waits_for = lsn;")];
    "asked-early", "what is to be drained is asked for behind the marks", "held-asked-behind",
        [("splice/up.h", "\thandler_up_scan(ctx,", "\tstruct control *early = control_get();\n\n\tif (!early)\n\t\treturn false;\n\tlock_take(&conn->lock);\n\torder_waits(early, conn, ASKS_DRAINED);\n\tlock_release(&conn->lock);\n\thandler_up_scan(ctx,"),
         ("splice/up.h", "taken == UP_TAKEN ? w->asks : 0", "0")];
    "held-acknowledged", "the kernel did not get what is held, nor what that acknowledges", "held-no-bytes",
        [("splice/up.h", "if (!w->held) /* Y4 */", "if (1)")];
    "nothing-held", "what has no bytes for Redis waits for nothing", "held-no-bytes",
        [("splice/up.h", "c = w->p.payload_len && !(w->p.flags & TCP_RST) ? control_get() : 0;", "c = control_get();")];
    "late-unasked", "a mark that is taken with a command's last byte asks, too", "held-by-pieces",
        [("redis/requests.h", "\torder_waits(c, conn, ASKS_DRAINED);\n", "")];
    "pieces-asked", "the pieces of a command wait for nothing that was absorbed behind its first byte", "held-by-pieces",
        [("redis/requests.h", "return (w->h.begins ||", "return (1 ||")];
    "effect-unasked", "the piece that makes a command whole asks, too", "held-by-pieces",
        [("redis/requests.h", "(w->h.begins || w->h.found.done || takes)", "w->h.begins")];
    "cure-held", "what tells of the server, or cures it, waits for nothing that was absorbed", "held-never",
        [("redis/command.h", "return command_says(c, class, row->order);", "return command_says(c, class, 0);")];
    "late-cure-held", "so does what may cure a Redis that has refused a drain for long", "held-cured",
        [("redis/command.h", "(order & ORDER_CURES) && read_once(c->order.refused)", "0")];
    "cure-early", "and before that it waits like others", "held-cured",
        [("redis/command.h", "(order & ORDER_CURES) && read_once(c->order.refused)", "order & ORDER_CURES")];
    "wait-unsynced", "who asks for replicas waits until these have what was answered", "absorb-asks-for-replicas",
        [("splice/up.h", "handler_up_syncs(w, how) * ASKS_SYNCED", "0")];
    "wait-unanswered", "who was answered nothing does not", "absorb-asks-for-replicas",
        [("splice/order.h", "!!(asks & ASKS_SYNCED) & !!(spoke & ABSORBED)", "!!(asks & ASKS_SYNCED)")];
    "wait-drained", "that all is drained is not enough", "absorb-asks-for-replicas",
        [("splice/order.h", "unsynced & syncs", "unsynced & 0")];
    "wait-by-hearsay", "nor what was found out before it came", "absorb-asks-for-replicas",
        [("splice/order.h", "waits_for) | unasked;", "waits_for) | (unasked & 0);")];
    "wait-and-absorbed", "Redis gets later writes of such a client itself", "absorb-asks-for-replicas",
        [("splice/absorb.h", "read_once(conn->spoke) & ABSORBS_NOT ?", "0 ?")];
    "ping-held", "nor does PING, which is not scanned", "held-never",
        [("redis/requests.h", "return takes || !reads_pass();", "return !takes || !reads_pass();")];
    "read-undrained", "a read waits for what was absorbed of its own sets", "held-reads",
        [("redis/reads.h", " && !set_undrained(&c->order, set);", ";")];
    "read-marked", "a read waits behind a write of its key that Redis may still have to execute", "held-reads",
        [("redis/reads.h", "!read_once(set->marks) && ", "")];
    "read-fenced", "a read waits behind a write of unknown keys", "held-reads",
        [("redis/reads.h", "return !read_once(c->fence);", "return 1;")];
    "read-first-key", "a read of many keys waits for the sets of all", "held-reads",
        [("redis/reads.h", "!i || more_many(&w->h.more)", "!i")];
    "strange-unread", "nor what comes by a listener that is not known", "held-strange-listener",
        [("splice/conn.h", "s->read = c->admit && r->cookie && !r->tp->urg_data && /* J2 */", "s->read = ours && c->admit && r->cookie && !r->tp->urg_data && /* J2 */")];
    "probe-held", "nor one PING where it is not known where requests begin", "held-probe",
        [("redis/requests.h", "how == UP_LOST)\n\t\treturn !probe_by_rote();\n\treturn (w->h.begins", "how == UP_LOST)\n\t\treturn true;\n\treturn (w->h.begins")];
    "probe-synced", "nor for those who have the writes of its connection", "held-probe",
        [("redis/requests.h", "how == UP_LOST)\n\t\treturn !probe_by_rote();\n\treturn (how", "how == UP_LOST)\n\t\treturn true;\n\treturn (how")];
    "probe-unseen", "nor where no entry counts it", "held-probe",
        [("splice/order.h", "if (!order_open(c) || handler_probes(w))", "if (!order_open(c))")];
    "probe-with-more", "but what is longer is no such PING", "held-probe",
        [("redis/requests.h", "len > w->loaded || (len != 6 && len != 14)", "len > w->loaded || len < 6")];
    "held-with-cure", "what comes in one packet with such a command is held", "held-never",
        [("redis/requests.h", "w->h.found.never_held == touched", "touched")];
    "gate-unheld", "what may make Redis refuse what was promised waits while writes may be answered", "held-gate",
        [("redis/requests.h", "return w->h.gate && (!c || read_once(c->order.absorb));", "return !w && c;")];
    "gate-held", "and passes while they may not: it may be the cure", "held-gate",
        [("redis/requests.h", "w->h.gate && (!c || read_once(c->order.absorb))", "w->h.gate || !c")];
    "unseen-unordered", "payload that no entry counts goes up when all is drained", "held-unseen",
        [("splice/order.h", "if (!order_open(c) || handler_probes(w))\n\t\treturn V_PLAIN;", "if (c)\n\t\treturn V_PLAIN;")];
    "busy-unlooked", "who takes effects looks at who answers a write at that moment", "held-lets-finish",
        [("splice/up.h", "order_watched(c) && !busy_passed()", "!c")];
    "busy-by-lane", "so does the express lane, or leaves the packet", "held-lets-finish",
        [("splice/lane.h", "|| order_stirs(c)))", "|| order_open(c)))"),
         ("splice/lane.h", "!(writes && order_watched(c)) /* I1 */", "(writes || 1)")];
    "busy-late", "so does what takes effect with a command's last byte", "held-lets-finish",
        [("redis/requests.h", "(order_watched(c) && !busy_passed())", "0")];
    "busy-early", "it looks behind its effects, not before them", "held-lets-finish",
        [("splice/up.h", "if (order_watched(c) && !busy_passed()) { /* I1 */", "if (!c) {"),
         ("splice/up.h", "	handler_up_scan(ctx,", "	busy_passed();\n	handler_up_scan(ctx,")];
    "busy-for-ever", "the wait is over when that write is answered", "held-lets-finish",
        [("splice/busy.h", "if (read_once(*word) != was)", "if (0)")];
    "copied-never", "what waits is copied when it waits first", "copy-comes-again",
        [("splice/up.h", "latency_hold();\n\t\thold_copy(ctx);", "latency_hold();")];
    "copied-always", "the same bytes are copied once in a while", "copied-once",
        [("splice/hold.h", "if (joins && !seq_after(end, conn->copied_end))\n\t\treturn false;", "")];
    "copied-for-ever", "but in a while once more: who had the copy may be dead", "copied-once",
        [("splice/hold.h", "bool fresh = w->now - conn->copied_ns < HELD_COPY_NS;", "bool fresh = !!conn->copied_ns;")];
    "copied-by-end", "what lies before a copied packet is not copied with it", "copy-held-once-more",
        [("splice/hold.h", "fresh && !seq_before(from, conn->copied_from) &&", "fresh &&")];
    "copied-no-more", "what has come again and waits once more is copied once more", "copy-held-once-more",
        [("splice/inject.h", "\thold_forget(conn); /* if", "\t/* if")];
    "copied-unwritten", "what the ring had no room for is not taken for copied", "copy-none",
        [("splice/hold.h", "\tif (!written)\n\t\thold_forget(conn);\n", "")];
    "copies-cut", "a packet that is too long for a copy has none", "copy-too-long",
        [("splice/hold.h", "return odd || len > HELD_FRAME_BYTES ? 0 : len;", "return odd ? 0 : len > HELD_FRAME_BYTES ? HELD_FRAME_BYTES : len;")];
    "copy-untagged", "a copy has its VLAN tag", "copy-comes-again",
        [("splice/hold.h", "held->tag = w->tag;", "held->tag = 0;")];
    "copy-for-another", "a copy is for the socket that its packet was for", "copy-gone",
        [("splice/inject.h", "if (!conn || conn->cookie != io->cookie)", "if (!conn)"),
         ("splice/inject.h", "(r.cookie == io->cookie || io->cookie == COOKIE_UNKNOWN)", "r.cookie")];
    "closed-untranslated", "while the cache is closed who was answered is translated", "closed-there-and-back",
        [("splice/closed.h", "closed(c) && (!conn || !(conn->in_delta | conn->out_delta))", "closed(c)")];
    "closed-kept", "entries without deltas go while the cache is closed", "closed-nobody-translated",
        [("splice/table.h", "flags |= closed_to(c, conn) * SWEEP_F_GONE;", "")];
    "share-unsettled", "the fence opens only when Redis's reports of what was written are handled", "fence-reports-handled",
        [("cache/cache.h", "\t\tfence_answer(c);\n}", "\t\tc->port_be ? fence_return(c) : fence_answer(c);\n}")];
    "fence-ignored", "nothing is answered while the fence stands", "coh-03-unknown-keys",
        [("redis/get.h", "bool fenced = read_once(c->fence);", "bool fenced = 0;")];
    "script-empties", "what Redis reports costs nobody the cache", "fence-cache-kept",
        [("cache/cache.h", "if (hidden)\n\t\tfence_release(c);", "if (c)\n\t\tfence_release(c);")];
    "through-refused", "what a SET said is shown only if Redis has said OK", "through-refused",
        [("redis/replies.h", "bool ok = ow->h.said_ok && ow", "bool ok = ow")];
    "through-found-early", "what a SET says is found by nobody before it is shown", "through-refused",
        [("redis/through.h", "value_len, key_len | SLOT_AWAITED,", "value_len, key_len,")];
    "through-for-credit", "what a SET says is kept of a known string, whatever its credit", "through-without-credit",
        [("cache/interest.h", "(!(*word & INTEREST_DOUBT) ||", "((*word & INTEREST_CREDIT) ||")];
    "through-fence", "what a SET said is over when a share of the fence was taken", "through-script",
        [("cache/marks.h", "end->global_version == read_once(c->global_version);", "c;")];
    "through-for-ever", "what a SET said is answered for a short time", "through-unseen",
        [("cache/marks.h", "return end && now_ns < end->until_ns &&", "return end &&")];
    "through-told-otherwise", "bytes that go up again end what a SET says", "through-said-otherwise",
        [("redis/requests.h", "\tthrough_doubt(conn);\n", "")];
    "through-told-more", "what comes behind a SET before its reply ends what it says", "through-said-otherwise",
        [("redis/through.h", "\t\tconn->h.kept |= CONN_K_THROUGH;\n\telse\n", "\t\tconn->h.kept |= CONN_K_THROUGH;\n\telse if (!conn->ifindex)\n")];
    "through-within", "a SET is believed only where a command begins", "through-within-another",
        [("redis/requests.h", "\tw->h.alone &= w->h.begins;\n", "")];
    "through-unwanted", "what a SET said is not believed if a module may have changed it", "through-not-wanted",
        [("redis/replies.h", "if (ow->h.ok && !through_believed(c))", "if (ow->h.ok && !c)")];
    "through-no-database", "what a SET says is of its connection's database", "through-other-database",
        [("redis/through.h", "SLOT_F_WRITTEN,\n\t\t  w->h.db);", "SLOT_F_WRITTEN, 0);")];
    "unreported-queued", "EXEC of what Redis may not report empties the cache", "sharp-fill-across-fence",
        [("redis/scan_request.h", "f->modes.kept |= CONN_K_HIDDEN;", "f->modes.kept |= 0;")];
    "listener-unheard", "what a listener says by rote closes nothing", "listen-older-subscriber",
        [("redis/requests.h", "w->h.by_rote = w->h.by_rote && (conn->h.kept & CONN_K_LISTENS);", "w->h.by_rote = 0;")];
    "listener-trusted", "a listener's other words are held like all that is not read", "listen-no-more",
        [("redis/requests.h", "w->h.by_rote = (conn->h.kept & CONN_K_LISTENS) && listener_by_rote();", "w->h.by_rote = (conn->h.kept & CONN_K_LISTENS) && (listener_by_rote() || 1);")];
    "feed-answered", "the daemon's own connection is never answered", "lo-feed-left-alone",
        [("splice/entry_tc.h", "if (ctx->mark == SKB_MARK_FEED) {", "if (0) {")];
    "no-room-forgotten", "an answer is committed only where its frame has room", "tier-no-room",
        [("splice/answer.h", "if (!reason && grown == GROWN_FAILED)", "if (0)")];
    "length-unsaid", "a merged packet may say 0 of its length", "lo-longer-than-64-kb",
        [("net/packet.h", "if (!total_len && merged)", "if (0)"),
         ("net/packet.h", "if (!len && (merged || !next))", "if (0)")];
    "kernel-behind", "consumed only if the kernel has taken all earlier bytes", "tcp-04-earlier-bytes-on-their-way",
        [("splice/splice.h", "if (v->rcv_nxt != p->seq - conn->in_delta)", "if (0)")];
    "next-taken-back", "bytes that count as scanned are not scanned again, though another CPU has just said so", "edge-15-copy-of-a-body",
        [("splice/up.h", "||\n\t\t\t\t\t!seq_after(w->scan_seq + w->scan_len, w->scan_from)))", "))")];
    "story-uncompared", "a place beyond a hole has one value", "edge-15-two-stories",
        [("splice/ahead.h", "!ahead_same(w, a, at, n);", "0;")];
    "ahead-end-unproved", "the proof of a lost stream covers what was kept of it", "edge-15-shorter-story",
        [("redis/effects.h", "end = seq_max(end, conn->ahead_end - conn->in_delta); /* O5 */", "end += 0;")];
    "ahead-not-given-back", "a buffer is given back when TCP has all that is in it", "edge-15-no-buffer",
        [("splice/ahead.h", "\t\tnumber = ahead_leave(conn);", "\t\tnumber = 0;")];
    "ahead-head-without-range", "what TCP waits for always finds a range", "edge-15-many-holes",
        [("splice/ahead.h", "u32 most = w->ring_from == w->ring_floor ? AHEAD_RANGES : AHEAD_RANGES - 1;", "u32 most = AHEAD_RANGES;")];
    "ahead-half-command", "behind half a command nothing is scanned before its last byte has come", "edge-15-hole-in-a-body",
        [("splice/ahead.h", "u32 reach = handler_late(conn) ? w->ring_first + 1 : w->ring_first;", "u32 reach = w->ring_first;")];
    "ahead-paws-as-usual", "what TCP may refuse is not kept", "edge-15-old-timestamp",
        [("splice/ahead.h", "(beyond && !ahead_paws_ok(conn, w))", "(beyond && 0)")];
    "window-stale", "who does not read is not answered beyond a sixteenth of its window", "tcp-15-unread",
        [("splice/splice.h", "if (known + unacked + w->reply_len > window + (window >> 4))", "if (known == 1)")];
    "ahead-consumed", "nothing is consumed while bytes are kept beyond", "tcp-04-hole-filled-fast",
        [("splice/splice.h", "if (conn->flags & CONN_F_AHEAD) /* O3 */", "if (0)"),
         ("splice/ingress.h", "(conn->flags & CONN_F_AHEAD);\n}", "0;\n}")];
    "gap-acknowledged", "every segment of the fast path acknowledges rcv_nxt + in_delta, never more", "edge-15-no-buffer",
        [("splice/resend.h", "w->out_ack = w->view.rcv_nxt + conn->in_delta;\n\t\tw->reply_len = 0;", "w->out_ack = w->p.seq + w->p.payload_len;\n\t\tw->reply_len = 0;")];
    "replay-full", "unacknowledged bytes fit the replay buffer", "sharp-replay-full",
        [("splice/splice.h", "if (unacked + w->reply_len > room)", "if (unacked + w->reply_len > room * 64)")];
    "wrap-carry", "what crosses the replay buffer's end goes on at its begin", "sharp-replay-wraps",
        [("splice/splice.h", "over = (at & 7) * 8;", "over = 0 * (at & 7);")];
    "wrap-rest", "so does what comes after it", "sharp-replay-wraps",
        [("splice/splice.h", "for (u32 i = 1; i < REPLAY_BLOCKS; i++) {\n\t\tu32 next", "for (u32 i = 2; i < REPLAY_BLOCKS; i++) {\n\t\tu32 next")];
    "edge-drop-missing", "kernel data below the edge never leave again", "tcp-02-old-bytes-below-the-edge",
        [("splice/egress.h", "if (ow->p.payload_len && conn->out_delta && seq_before(ow->p.seq, conn->edge)) {", "if (0) {")];
    "floor-missing", "acknowledgements below the edge never go up", "tcp-03-ack-floor",
        [("splice/splice.h", "if (seq_before(ack, w->edge)) {", "if (w->edge == ack + 1 && 0) {")];
    "icmp-untranslated", "a path MTU error is translated to the kernel's numbers", "tcp-12-path-mtu",
        [("splice/icmp.h", "if (w->p.key.server_port_be != c->port_be)\n\t\treturn 0;\n\tconn", "if (w->p.key.server_port_be != 1)\n\t\treturn 0;\n\tconn")];
    "sack-delta", "SACK blocks go up less out_delta", "tcp-19-sack-above",
        [("splice/splice.h", "store_be32(tcp + at, load_be32(tcp + at) - w->out_delta);\n\t\t\tstore_be32(tcp + at + 4, load_be32(tcp + at + 4) - w->out_delta);", "store_be32(tcp + at, load_be32(tcp + at) - w->out_delta / 2);\n\t\t\tstore_be32(tcp + at + 4, load_be32(tcp + at + 4) - w->out_delta / 2);")];
    "old-taken-for-new", "a connection older than ERB is never answered", "sharp-older-with-state",
        [("splice/conn.h", "r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;", "r->state == TCP_ESTABLISHED;")];
    "made-twice", "two CPUs do not make an entry twice", "sharp-made-once",
        [("splice/conn.h", "if (conn->cookie != cookie && !conn->ahead_busy) { /* another", "if (1) { /* another")];
    "old-not-fenced", "payload of a connection older than ERB, like all that cannot be counted, fences until proof", "sharp-older-writes",
        [("redis/effects.h", "(flags & (CONN_F_SCAN_LOST | CONN_F_OVERFLOW)));", "(flags & 0));")];
    "share-behind-commit", "what a packet closes is closed before it is committed", "fence-before-commit",
        [("redis/effects.h", "\tif (w->h.share)\n\t\tfence_take(c);\n", ""),
         ("redis/effects.h", "\tif (taken && (conn->flags", "\tif (taken)\n\t\tfence_take(control_get());\n\tif (taken && (conn->flags")];
    "share-kept-in-vain", "a share that was foreseen in vain is given back", "fence-in-vain",
        [("redis/effects.h", "bool vain = w->h.share && !taken;", "bool vain = !w->h.share && taken;")];
    "mark-not-given-back", "what is taken for a packet that does not go up is given back", "long-write-given-back",
        [("splice/up.h", "if (taken == UP_RACE) {\n\t\thandler_up_undo(w);", "if (taken == UP_RACE) {")];
    "lane-mark-kept", "a mark of the express lane whose packet does not go up is given back", "write-given-back",
        [("splice/lane.h", "\t\tif (writes)\n\t\t\thandler_up_undo(w);\n", "")];
    "share-unforeseen", "a share that was not foreseen is a race", "fence-unforeseen",
        [("redis/effects.h", "return !(hold & HOLD_SHARE_NEW & ~(w->h.share << 1));", "return true;")];
    "gate-behind-commit", "what shuts the gate is committed behind it", "gate-before-commit",
        [("redis/effects.h", "\tif (w->h.gate)\n\t\tgate_shut(c);\n", ""),
         ("redis/effects.h", "\tplace_call(w, PLACES_HELD);\n\tif (taken", "\tplace_call(w, PLACES_HELD);\n\tif (w->h.gate)\n\t\tgate_shut(control_get());\n\tif (taken")];
    "gate-unforeseen", "a gate that was not foreseen is a race", "gate-unforeseen",
        [("redis/requests.h", "if ((shuts & !w->h.gate) | ", "if ((shuts & 0) | ")];
    "former-kept", "an entry that gets another socket forgets where the former one lay", "sock-same-memory",
        [("splice/conn.h", "\twrite_once(conn->tcp_sock, 0);\n", "")];
    "cookie-unchecked", "an entry is used only for the socket whose cookie it carries", "sock-same-addresses",
        [("splice/ingress.h", "if (conn->cookie != r->cookie && conn->cookie != COOKIE_UNKNOWN) {", "if (0) {"),
         ("splice/answer.h", "if (sock_view_again(r, &w->view) && conn->cookie == r->cookie)", "if (sock_view_again(r, &w->view))"),
         ("splice/up.h", "if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))", "if (!lost && conn->next != w->scan_from)")];
    "fill-version", "a fill needs the version noted before its read", "sharp-fill-across-write",
        [("control.bpf.c", "if (!set->marks && set->version == s->version) {", "if (!set->marks) {")];
    "queued-ignored", "a connection of which TCP has had any segment is older than ERB", "sharp-older-out-of-order",
        [("splice/conn.h", "r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;", "r->state == TCP_ESTABLISHED && r->tp->rcv_nxt == r->tp->copied_seq;")];
    "fill-global-version", "a fill needs the global version noted before its read", "sharp-fill-across-fence",
        [("control.bpf.c", "if (read_once(c->global_version) != s->global_version || closed(c))", "if (closed(c))"),
         ("control.bpf.c", "slot->cache_epoch = s->cache_epoch;", "slot->cache_epoch = control_get() ? control_get()->cache_epoch : 0;"),
         ("control.bpf.c", "fw->l.cache_epoch = s->cache_epoch;", "fw->l.cache_epoch = c->cache_epoch;")];
    "urgent-read", "urgent data loses the stream", "edge-46-in-a-write",
        [("net/packet.h", "#define ODD_F_UNREAD   (ODD_F_FRAGMENT | ODD_F_URGENT)", "#define ODD_F_UNREAD ODD_F_FRAGMENT")];
    "urgent-told", "a bare acknowledgement tells TCP of no urgent byte", "edge-46-told-ahead",
        [("splice/urgent.h", "\treturn (w->p.odd & ODD_F_URGENT) && !w->p.payload_len &&", "\treturn 0 && (w->p.odd & ODD_F_URGENT) && !w->p.payload_len &&")];
    "urgent-told-again", "bytes that come again tell TCP of no urgent byte", "edge-46-told-ahead",
        [("splice/urgent.h", "return (w->p.odd & ODD_F_URGENT) && !(conn->flags & CONN_F_SCAN_LOST) &&", "return 0 && (w->p.odd & ODD_F_URGENT) && !(conn->flags & CONN_F_SCAN_LOST) &&")];
    "urgent-awaited", "no stream is taken up of which TCP awaits an urgent byte", "edge-46-told-before",
        [("redis/admit.h", " && !tp->urg_data; /* J2 */", ";")];
    "urgent-awaited-anew", "a connection is not new if TCP awaits an urgent byte", "edge-46-told-before",
        [("splice/conn.h", "r->cookie && !r->tp->urg_data && /* J2 */", "r->cookie &&")];
    "rest-proved", "a command of which TCP has not had all is released by no list", "edge-44-rest-refused",
        [("redis/proofs.h", "requests = conn->requests - (conn->h.late || seq_after(conn->next, conn->up_max));", "requests = conn->requests - !!conn->h.late;")];
    "doubt-forgotten", "a key whose entries go unread is read from Redis again only when it is missed again and again", "seldom-half-writes",
        [("cache/interest.h", "*word |= INTEREST_DOUBT;", "credit = CREDIT_MAX;")];
    "fill-under-mark", "while a mark stands nothing is inserted", "sharp-fill-below-write",
        [("control.bpf.c", "return marks ? FILL_BUSY : unread", "return marks && !c ? FILL_BUSY : unread"),
         ("control.bpf.c", "if (!set->marks && set->version == s->version) {", "if (set->version == s->version) {")];
    "gate-ignored", "while a MONITOR is attached or Redis's state is unread nothing is answered", "coh-39-gate",
        [("redis/get.h", "if (read_once(c->gate_seen) != read_once(c->gate_ack))", "if (!c->port_be)"),
         ("redis/get.h", "bool fenced = read_once(c->fence);", "bool fenced = 0;")];
    "use-unnoticed", "Redis is told which keys are used where it evicts by use", "coh-41-policy",
        [("cache/cache.h", "both = (1U << way) * 0x10001U", "both = 1U << way")];
    "old-stamp-echoed", "the kernel's packets echo the client's newest stamp", "tcp-13-timestamps",
        [("splice/egress.h", "*tsecr = seq_max(*tsecr, conn->ts_recent);", "*tsecr = *tsecr + 0;")];
    "probe-dropped", "a client's keepalive probe is answered", "tcp-05-keepalive",
        [("splice/ack.h", "p->seq == conn->next && !p->sack_off", "!seq_after(p->seq, conn->next) && !p->sack_off"),
         ("splice/accept.h", "bad |= (end - v->rcv_wup) >> 31;", "bad |= (end + 1 - v->rcv_wup) >> 31;")];
    "mark-ignored", "while a mark stands nothing of its set is answered", "coh-43-whole-set",
        [("redis/get.h", "if (read_once(set->marks))", "if (read_once(set->marks) > 1000)")];
    "key-step", "each key of a range is marked", "coh-03-many-keys",
        [("redis/scan_request.h", "s->key_next += s->key_step;", "s->key_next += s->key_step + 1;")];
    "last-key-forgotten", "a range of keys goes to the last one", "coh-03-last-key",
        [("redis/command.h", "s->key_last = last;", "s->key_last = last - 1;")];
    "key-across-packets", "keys are found wherever the stream is cut", "coh-03-split-keys",
        [("redis/requests.h", "\tfound_begin();\n\tw->scan_pos = w->scan_from", "\tfound_begin();\n\tw->h.scan.key_next = 0;\n\tw->scan_pos = w->scan_from")];
    "keynum-misread", "the number of keys is read from its argument", "coh-03-counted-keys",
        [("redis/command.h", "return command_range(s, first, first + (n - 1) * s->key_step, s->key_step);", "return command_range(s, first, first + (n - 2) * s->key_step, s->key_step);")];
    "marks-early", "a key is marked with its command's last byte, not when it is named", "coh-43-half-write",
        [("redis/scan_request.h", "f->effects = n + 1;", "f->effects = f->due = n + 1;")];
    "half-forgotten", "keys that earlier packets named are marked when their command is whole", "coh-43-half-write",
        [("redis/effects.h", "conn->h.half = all - n;", "conn->h.half = 0;")];
    "overflow-half", "a command whose keys have no room to wait closes the fence when it is whole", "coh-43-half-command",
        [("redis/effects.h", "w->h.scan.pending |= PENDING_SETTLE;", "w->h.scan.pending |= 0;")];
    "late-early", "a command closes the fence with its last byte, not with the length of its last argument", "fence-half-body",
        [("redis/requests.h", "\t\t\tw->h.found.late = w->h.scan.pending;\n", "\t\t\tif (w->h.scan.pending)\n\t\t\t\tfound_whole(&w->h.found, w->h.scan.pending);\n\t\t\tw->h.found.due = w->h.found.effects;\n\t\t\tw->h.found.late = 0;\n")];
    "late-forgotten", "the last byte of a command that is counted closes the fence", "fence-half-body",
        [("redis/requests.h", "conn->h.late = w->h.found.late;", "conn->h.late = conn->h.half = 0;")];
    "stranger-turns-marks", "of what it asked for only what nobody knows is settled, not fenced", "fence-stranger",
        [("redis/replies.h", "turned & (any_bit(m->set ^ EFFECT_FENCE) - 1)", "turned")];
    "stranger-empties", "what Redis refuses, as no password was shown, does not empty the cache", "fence-stranger",
        [("redis/replies.h", "return ow->h.shut && !(conn->h.kept", "return 0 && ow->h.shut && !(conn->h.kept")];
    "errors-believed", "an error proves nothing of who was let in", "fence-let-in",
        [("redis/replies.h", "conn->h.kept |= CONN_K_LET_IN;", "conn->h.kept |= 0;")];
    "refusals-assumed", "only an error by which Redis refuses says that a command did not run", "fence-let-in-before",
        [("redis/replies.h", "ow->h.found.success || ow->h.found.ran", "ow->h.found.success")];
    "half-counted", "half a command that is counted is seen behind those that are whole", "fence-unread-before",
        [("redis/proofs.h", "conn->in_at != STREAM_BETWEEN || seq_after(conn->next, conn->up_max)", "conn->in_at != STREAM_BETWEEN")];
    "held-for-ever", "what stands for a reply that does not come is released by proof", "fence-unread-before",
        [("redis/proofs.h", "if (held > HELD_NS >> 20 && (socket", "if (0 && (socket")];
    "reply-whole", "a reply's first byte says that its command has run", "fence-slow-reader",
        [("redis/replies.h", "begun & ~any_bit(m->set ^ EFFECT_SETTLE);", "begun & !m;")];
    "set-unlocked", "what is read of a set while it changes does not count", "sharp-set-changed",
        [("cache/cache.h", "return !(changes & 1) && read_once(set->changes) == changes;", "return changes || set;")];
    "miss-in-mget", "nothing is answered of a key that is not cached", "reads-answers",
        [("redis/strings.h", "if (reason && !w->h.more.reason)", "if (reason && reason != STAT_REFUSE_MISS && !w->h.more.reason)")];
    "zeros-before-integers", "an integer argument is as all versions of Redis take it", "reads-answers",
        [("redis/strings.h", "|| (b[minus] == '0' && len > 1))", ")")];
    "range-beyond-its-end", "a range ends with the string", "reads-answers",
        [("redis/strings.h", "\t\tif (to >= len)\n\t\t\tto = len - 1;\n", "")];
    "ttl-not-rounded", "TTL is rounded as Redis does", "reads-time-left",
        [("redis/strings.h", "(more_ttl_ms(w, c) + 500) / 1000", "more_ttl_ms(w, c) / 1000")];
    "ttl-by-the-coarse-clock", "TTL and PTTL are read off the exact clock", "reads-time-left",
        [("redis/strings.h", "(now_exact_ns() + c->wall_minus_mono_ns) / 1000000;", "(w->now + c->wall_minus_mono_ns) / 1000000;")];
    "two-moments", "the keys of one command are of one moment", "reads-two-moments",
        [("redis/strings.h", "if (!reason && m->keys > 1 && !more_all_still())", "if (!reason && m->keys > 1000 && !more_all_still())")];
    "off-ignored", "a command that this Redis has not is not answered", "reads-switched-off",
        [("redis/strings.h", "if (kind == FAST_NONE || c->fast_off & 1U << kind)", "if (kind == FAST_NONE)")];
    "exists-once", "EXISTS counts a key as often as it is named", "reads-answers",
        [("redis/strings.h", "return more_integer(m->keys - m->absent, 0);", "return more_integer(m->keys > m->absent, 0);")];
    "other-type-served", "a value is answered from by commands of its type", "hash-answers",
        [("redis/strings.h", "if (slot->type != (more_hashed(m) ? SLOT_HASH : SLOT_STRING) && !more_typeless(m))", "if (slot->type > SLOT_HASH && !more_typeless(m))")];
    "field-by-length", "the whole field is compared", "hash-answers",
        [("redis/hashes.h", "\t\tif (differ)\n", "\t\tif (differ && len > KEY_BYTES_MAX)\n")];
    "type-not-kept", "an entry is what the fill read", "hash-answers",
        [("control.bpf.c", "slot->type = s->absent ? SLOT_ABSENT : s->type;", "slot->type = s->absent ? SLOT_ABSENT : SLOT_STRING;")];
    "absent-counted", "EXISTS does not count what is absent", "absent-answers",
        [("redis/strings.h", "return more_integer(m->keys - m->absent, 0);", "return more_integer(m->keys, 0);")];
    "absent-nil-of-resp2", "nil of a key is in the version of the connection", "absent-other-version",
        [("redis/get.h", "if (w->h.look.resp == 2) {", "if (w->h.look.resp != 1) {")];
    "absent-for-any-version", "an absence is inserted only if nothing was written since it was asked for", "absent-fill-meets-write",
        [("control.bpf.c", "if (!set->marks && set->version == s->version) {", "if (!set->marks && (s->absent || set->version == s->version)) {")];
    "nil-of-resp2", "nil is in the version of the connection", "hash-other-version",
        [("redis/modes.h", "of_3 && !m->reset ? RESP_IF_MAP : 0;", "2;")];
    "replay-acknowledges-more", "a replay acknowledges what the kernel has, not what was scanned", "tcp-10-replay-acknowledges",
        [("splice/resend.h", "w->out_ack = w->view.rcv_nxt + conn->in_delta;\n\t\tif (unacked", "w->out_ack = conn->next;\n\t\tif (unacked")];
    "replay-unpaced", "one replay per hole and round trip", "tcp-18-one-replay-per-hole",
        [("splice/ack.h", "w->now - conn->replay_ns < pause)", "w->now + pause < conn->replay_ns)")];
    "replay-for-dsack", "D-SACK shows no hole", "tcp-18-dsack",
        [("splice/ack.h", "return seq_after(w->p.sack_first, w->p.ack);", "return true;")];
    "any-rst-ends", "a reset ends a connection only if TCP believes it", "tcp-06-stray-syn-and-rst",
        [("splice/accept.h", "return w->p.seq == conn->next ||", "return w->p.seq ||")];
    "time-wait-unguarded", "without timestamps a SYN waits for the end of a spliced TIME_WAIT", "tcp-30-time-wait-reuse",
        [("splice/ingress.h", "hold = r.state == TCP_TIME_WAIT && r.cookie == conn->cookie;", "hold = false;")];
    "silent-after-fin", "lost fast bytes are repeated after the server's FIN", "tcp-fin-after-fast-bytes",
        [("net/sock.h", "v->speaks = state < 16 && (1U << state & SOCK_STATES_SPEAKING);", "v->speaks = state == TCP_ESTABLISHED;")];
    "any-device", "a connection whose replies leave by another device is not answered", "tcp-25-other-device",
        [("splice/egress.h", "egress_way(conn, ow->head, ow->ifindex == conn->ifindex);", "egress_way(conn, ow->head, true);")];
    "untranslated-elsewhere", "what leaves by another device is translated there", "dev-replies-move",
        [("splice/egress.h", "\tif (conn->ifindex != ctx->ifindex)\n\t\tcount(STAT_EGRESS_OTHER_DEVICE);", "\tif (conn->ifindex != ctx->ifindex) {\n\t\tcount(STAT_EGRESS_OTHER_DEVICE);\n\t\treturn TCX_NEXT;\n\t}")];
    "answered-elsewhere", "only by the device by which replies leave is anything answered", "dev-requests-move",
        [("splice/answer.h", "if (conn->ifindex != tier_ifindex(ctx))", "if (0)")];
    "translated-twice", "a packet is translated at its first device alone", "dev-one-above-another",
        [("splice/egress.h", "return route->dev->ifindex == ctx->ifindex;", "return route->dev->ifindex == ctx->ifindex || 1;"),
         ("splice/egress.h", "\tif (!at)\n\t\treturn false;\n\troute", "\tif (!at)\n\t\treturn true;\n\troute")];
    "tracked-elsewhere", "what begins on a device that is not boosted is not tracked", "dev-begins-elsewhere",
        [("splice/conn.h", "u32 found = TIER_XDP;", "u32 found = 1;")];
    "window-unscaled", "the window is offered in the connection's scale", "tcp-16-syn-ack-window",
        [("splice/splice.h", "w->out_window = sock_receive_window(v) >> v->fixed.rcv_wscale;", "w->out_window = sock_receive_window(v);")];
    "paws-ignored", "what PAWS refuses counts for nothing", "tcp-15-acceptance",
        [("splice/accept.h", "if (!p->ts_off || !v->fixed.tstamp_ok)\n\t\treturn true;", "if (!p->ts_off || v->fixed.tstamp_ok)\n\t\treturn true;")];
    "ack-too-old-ignored", "what TCP takes for a blind guess counts for nothing", "tcp-15-ack-too-old",
        [("splice/accept.h", "return (p->ack - conn->ack_max + v->max_window) >> 31 &", "return conn->ack_max == p->ack + 1 && v->max_window == 1 &&")];
    "client-window-ignored", "an answer fits the window that the client offers", "sharp-too-large",
        [("splice/splice.h", "if (unacked + w->reply_len > window)", "if (window == 1)"),
         ("splice/splice.h", "if (known + unacked + w->reply_len > window + (window >> 4))", "if (known == 1)")];
    "mss-ignored", "an answer fits the client's segments", "sharp-too-large",
        [("splice/splice.h", "if (w->reply_len > conn_mss(conn, v))", "if (0)")];
    "server-window-ignored", "what is consumed fits the window that the kernel offered", "sharp-server-window",
        [("splice/ingress.h", "if (seq_after(end, sock_right_edge(&w->view))) {", "if (end == 1 && !w->now) {")];
    "heartbeat-ignored", "Redis's idle timer sees a client that is always answered fast", "tcp-11-idle-timer",
        [("splice/answer.h", "if (c->heartbeat_up_ns && w->now - conn->request_up_ns > c->heartbeat_up_ns)", "if (0)")];
    "known-without-state", "a remembered socket is used only while it is established", "sharp-closing-server",
        [("net/sock.h", "return r->cookie == conn->cookie && sock_state(r->tp) == TCP_ESTABLISHED;", "return r->cookie == conn->cookie;")];
    "lines-counted", "what may be several lines ends the count where more is asked in its packet", "tcp-22-lines",
        [("redis/requests.h", "(any_bit(first) & (first < up_named(w, how)))", "(any_bit(first) & 0)")];
    "lines-counted-later", "or later, while not all of it is with the client", "tcp-22-lines-later",
        [("redis/requests.h", "(flag & any_bit(up_named(w, how)) & any_bit(owed))", "(flag & owed & 0)")];
    "lines-of-the-last", "also where the last of them is such a one again", "tcp-22-lines",
        [("redis/scan_request.h", "if ((order & ORDER_REPEATS) && !f->repeats)", "if (order & ORDER_REPEATS)")];
    "lines-unforeseen", "and what is asked then is held by proof", "tcp-22-lines",
        [("redis/requests.h", "w->h.found.uncountable |= up_follows_repeats(conn, w, how);", ""),
         ("redis/requests.h", "(follows & !w->h.found.uncountable)", "(follows & 0)")];
    "one-line-unbelieved", "unless its errors are one line", "tcp-22-one-line",
        [("redis/command.h", "if (read_once(c->one_line))", "if (0)")];
    "request-unproved", "payload that a request refuses and its child may take does not go up", "tcp-15-ack-before-the-first-byte",
        [("splice/ingress.h", "count(STAT_SOCK_REQUEST);\n\t\treturn V_DROP;", "count(STAT_SOCK_REQUEST);\n\t\treturn V_PLAIN;"),
         ("splice/conn.h", "count(STAT_SOCK_REQUEST);\n\t\tv = V_DROP;", "count(STAT_SOCK_REQUEST);\n\t\tv = V_PLAIN;")];
    "ack-before-first-byte", "what acknowledges nothing of the server's counts for nothing", "tcp-15-ack-before-the-first-byte",
        [("splice/ingress.h", "if ((seq_before(w->p.ack, conn->ack_max) &&", "if ((w->now == 1 &&")];
    "ack-before-first-spliced", "nor once something was answered", "tcp-15-ack-too-old-by-little",
        [("splice/ingress.h", "if ((seq_before(w->p.ack, conn->ack_max) &&", "if ((!conn->out_delta && seq_before(w->p.ack, conn->ack_max) &&")];
    "ack-old-refused", "what acknowledges less than others, but something, counts", "tcp-15-ack-too-old-by-little",
        [("splice/accept.h", "       seq_before(p->ack, first);", "       seq_before(p->ack, conn->ack_max);")];
    "ack-of-unsent", "what acknowledges unsent bytes counts for nothing", "tcp-15-ack-of-unsent",
        [("splice/accept.h", "return (v->snd_nxt + conn->out_delta - p->ack) >> 31 &", "return v->snd_nxt == 1 &&")];
    "crowd-closes", "who finds no room closes nothing", "coh-07-full-table",
        [("splice/conn.h", "\t\twrite_once(c->no_room_ns, w->now);", "\t\tatomic_add(&c->gate_seen, 1);")];
    "share-unbounded", "an address has its share of the table at most", "edge-14-share",
        [("splice/conn.h", "if (atomic_add32_before(held, 1) >= c->client_conns_max) {", "if (atomic_add32_before(held, 1) >= c->conns_max) {")];
    "unseen-believed", "what found no room is not new while bytes of it are under way", "edge-14-under-way",
        [("splice/conn.h", "if (s->read && unseen_lately(c, w))", "if (0)"),
         ("splice/conn.h", "if (s.read && unseen_lately(c, w))", "if (0)")];
    "crowd-taken-up", "nothing is taken up as older than ERB while somebody finds no room", "edge-14-taken-up",
        [("splice/conn.h", "if (!s->known && room_lacked(c, w->now))", "if (0)")];
    "time-wait-kept", "an entry in TIME_WAIT that nobody needs goes", "edge-14-quit",
        [("splice/table.h", "if (found && state == TCP_TIME_WAIT && conn_ended(conn)) {", "if (0) {")];
    "count-leaks", "entries that are deleted count no more", "edge-14-silent",
        [("splice/table.h", "client_left(c, &key, family);", "(void)family;")];
    "unread-opens", "what cannot be read may be a MONITOR", "coh-40-monitor-unread",
        [("redis/requests.h", "return lost | w->scan_lost | trial;", "return lost | trial;")];
    "refusals-shut", "only a refusal that contradicts the known rules shuts the gate", "coh-37-refused-again",
        [("redis/replies.h", "conn->state == CONN_FAST && conn->h.rights == ow->h.rights && ow->h.found.noperm", "ow->h.found.noperm")];
    "epoch-uncompared", "an admission counts only if nothing was sent that changes the connection", "tcp-23-moved-on",
        [("redis/admit.h", "conn->h.modes_moved != io->row.modes_moved)", "!io->row.cookie)")];
    "resp-guessed", "the RESP version is proved by a map or by CLIENT LIST", "tcp-23-resp",
        [("redis/modes.h", "if (other || m->reset)\n\t\tconn->h.resp = of_3 && !m->reset ? RESP_IF_MAP : 0;", "if (other && m->hello != HELLO_ODD)\n\t\tconn->h.resp = m->hello;")];
    "watch-forgotten", "who watches keys is not admitted", "coh-37-watch",
        [("redis/modes.h", "m->kept |= CONN_K_WATCH | CONN_K_WATCHED;", "")];
    "trial-proof-of-all", "the proof of a trial releases the trial's share alone", "coh-37-behind-a-trial",
        [("redis/proofs.h", "io->remove || io->closed || !conn_counted(conn) || (conn->h.kept & CONN_K_TRIAL);", "true || io->closed;")];
    "quiet-when-acknowledged", "who is at work acknowledges an answer with its next request, and is quiet before", "coh-37-older-busy",
        [("redis/admit.h", "if (conn->egress_max == v->write_seq)\n\t\treturn true;\n\treturn !(conn->flags", "if (v->write_seq != v->snd_una)\n\t\treturn false;\n\treturn !(conn->flags")];
    "trial-unproved", "a stream is taken up for good when an answer has proved its boundary", "coh-37-older-inside",
        [("redis/replies.h", "return (conn->h.kept & CONN_K_TRIAL) && ow->h.found.errors;", "return false;")];
    "trial-for-ever", "a trial whose numbers cannot agree any more has failed", "coh-37-older-half",
        [("redis/admit.h", "if (!(conn->h.kept & CONN_K_TRIAL) || conn->replies == conn->requests ||", "if (true ||")];
    "typeless-fills", "who does not read a value has none filled", "edge-01-typeless",
        [("redis/strings.h", "\t\t    !more_typeless(&w->h.more));", "\t\t    true);")];
    "foreign-answered", "what goes to another server on the port is left alone", "port-another-server",
        [("splice/conn.h", "if (w->listener == LISTENER_FOREIGN || sock_transparent(&r)) {", "if (0) {"),
         ("splice/conn.h", "bool ours = w->listener == LISTENER_REDIS;", "bool ours = true;")];
    "listen-closes", "payload for a listener, without a SYN cookie that is right, reaches nobody", "port-forged-payload",
        [("splice/conn.h", "\tif (reason) {\n\t\tcount(reason);\n", "\tif (reason) {\n\t\tif (reason == STAT_SOCK_LISTEN)\n\t\t\tatomic_add(&c->gate_seen, 1);\n\t\tcount(reason);\n")];
    "cookie-ack-ignored", "payload that ends a handshake by SYN cookie is tracked", "port-syn-cookie",
        [("splice/conn.h", "w->by_cookie = listener_believes(sk, w);", "w->by_cookie = 0;")];
    "looked-up-once", "a look-up that finds the listener alone is made again", "port-look-up-in-between",
        [("splice/conn.h", "if (r.state == TCP_LISTEN) {\n\t\tsock_put(&r);\n", "if (0) {\n\t\tsock_put(&r);\n")];
    "bare-by-chance", "a right sum that equals the bare one is updated like any other", "sharp-bare-by-chance",
        [("net/checksum.h", "w->bare = partial || (bare && !right);", "w->bare = partial || bare;")];
    "sequence-unjudged", "an acknowledgement counts only if TCP looks at the segment", "edge-07-ack-out-of-window",
        [("splice/accept.h", "bad |= (end - v->rcv_wup) >> 31;\n\tbad |= (v->rcv_nxt - seq) >> 31 & (v->rcv_wup + v->rcv_wnd - seq) >> 31;", "bad |= end == 0 && seq == 0;")];
    "rejected-in-doubt", "new bytes that acknowledge what nobody sent do not go up", "edge-07-rejected-for-sure",
        [("splice/ingress.h", "count(STAT_REFUSE_ACK);\n\t\treturn ingress_gap(ctx, w, conn, r);", "return ingress_reject(ctx, w, conn, r);")];
    "reset-scanned", "TCP takes no bytes of a reset", "edge-07-reset-with-payload",
        [("splice/ingress.h", "if (!w->p.payload_len || (w->p.flags & TCP_RST)) /* TCP", "if (!w->p.payload_len) /* TCP")];
    "request-paws", "payload older than its SYN does not go up", "edge-07-payload-older-than-its-syn",
        [("splice/conn.h", "r->ts_recent && seq_before(w->p.tsval, r->ts_recent)", "r->ts_recent == 1")];
    "fragment-unjudged", "a fragment that TCP will not look at loses no stream", "edge-07-fragment-out-of-window",
        [("splice/ingress.h", "if (!again && r->tp) {\n\t\tv = ingress_unacceptable", "if (!again && r->tp && !(w->p.odd & ODD_F_FRAGMENT)) {\n\t\tv = ingress_unacceptable")];
    "lost-unjudged", "payload that TCP will not look at fences nothing, whatever is known of its stream", "edge-07-older-stream",
        [("splice/ingress.h", "if (!again && r->tp) {\n\t\tv = ingress_unacceptable", "if (!again && r->tp && !(conn->flags & CONN_F_SCAN_LOST)) {\n\t\tv = ingress_unacceptable"),
         ("splice/up.h", "if (r->tp && !up_counts(conn, w, r))", "if (r->tp && !lost && !up_counts(conn, w, r))")];
    "fin-anywhere", "a FIN ends a connection only if TCP believes it", "edge-12-blind-fin",
        [("splice/accept.h", "return counts && (w->p.flags & TCP_FIN) && !seq_before(end, w->view.rcv_nxt);", "return end && (w->p.flags & TCP_FIN) && !seq_after(w->p.seq, conn->next);")];
    "paws-for-ever", "a timestamp that is too old says nothing", "edge-06-silent-and-spliced",
        [("splice/accept.h", "(s32)((u32)(now / 1000000000) - recent_s) >= PAWS_WRAP_S;", "(s32)((u32)(now / 1000000000) - recent_s) >= PAWS_WRAP_S * 1000;")];
    "paws-by-the-entry", "while nothing was consumed the kernel's record of timestamps decides", "edge-06-silent-listener",
        [("splice/accept.h", "(!conn->in_delta || paws_ok(conn->ts_recent,", "(paws_ok(conn->ts_recent,"),
         ("splice/accept.h", "if (!conn->in_delta || !p->ts_off || seq_after(p->seq - conn->in_delta, v->rcv_nxt))", "if (!p->ts_off || seq_after(p->seq - conn->in_delta, v->rcv_nxt))")];
    "tc-overtaken", "XDP leaves to TC all that comes behind what TC still is to have", "edge-16-steered",
        [("splice/ingress.h", "u32 beyond = (conn->next - w->p.seq) >> 31;", "u32 beyond = 0;"),
         ("splice/ingress.h", "if (!TIER_XDP && !ahead && is_beyond(conn, &w->p)) {", "if (is_beyond(conn, &w->p)) {")];
    "owed-forgotten", "what a client waits for is the first reply of its trial", "admit-older-waits",
        [("redis/admit.h", "conn->requests = 1;", "conn->requests = 0;")];
    "owed-given-up", "a trial whose first reply is awaited has not failed", "admit-older-waits",
        [("redis/admit.h", "((conn->h.kept & CONN_K_OWES) && !conn->replies)", "0")];
    "bytes-unseen", "a stream of which TCP has bytes that nobody saw is not read", "edge-47-said-unseen",
        [("splice/ingress.h", "seq_after(w->view.rcv_nxt, conn->up_max - conn->in_delta);", "0;")];
    "bare-fragments", "a first fragment with nothing behind the TCP header does not go up", "edge-05-tiny-fragments",
        [("net/packet.h", "if (header_len == l4_len && (p->odd & ODD_F_MORE))", "if (0)")];
    "tiny-fragments", "a first fragment without the whole TCP header does not go up", "edge-05-tiny-fragments",
        [("splice/hidden.h", "(len < 20 || (w->head[off + 12] >> 4) * 4U >= len);", "len == 1;")];
    "syn-data", "a SYN with data that Fast Open would take does not go up", "edge-05-data-in-syn",
        [("splice/ingress.h", "&& syn_data_taken(ctx, w)) {", "&& !c) {")];
    "nobodys-reset", "a reset of no socket is translated as the packet that it answers was", "edge-31-netfilter-resets",
        [("splice/egress.h", "ow->nobodys = !cookie && (ow->p.flags & TCP_RST);", "ow->nobodys = 0;")];
    "nobodys-reset-ends", "a reset of no socket says nothing of the entry's", "edge-31-reset-not-believed",
        [("splice/egress.h", "if (ow->nobodys)\n\t\treturn;", "if (0)\n\t\treturn;")];
    "tag-forgotten", "the timer's copies bear the tag that the kernel took off", "edge-19-tagged-copies",
        [("splice/splice.h", "*(u32 *)(w->head + ETH_ADDRESSES) : w->tag;", "*(u32 *)(w->head + ETH_ADDRESSES) : 0;")];
    "answers-turned", "an answer leaves as the kernel's packets do, not back to who handed the request on", "edge-29-direct-return",
        [("splice/splice.h", "((turned[i] ^ *(u32 *)(conn->link + i * 4)) & mask);", "(*(u32 *)(conn->link + i * 4) & mask & 0);")];
    "link-untried", "no answer before the kernel has sent something since packets come otherwise", "edge-29-gateway-moves",
        [("splice/splice.h", "|| link_strays(conn, w))\n\t\treturn STAT_REFUSE_NO_EGRESS;", ")\n\t\treturn STAT_REFUSE_NO_EGRESS;")];
}
