/* SPDX-License-Identifier: GPL-2.0 */
/* handler.h - what the splice asks of the handler of a protocol, and promises it. Each object is
 * compiled with one handler, which it names by three files:
 *
 *	#define HANDLER_ABI  "redis/abi.h"	struct handler_conn, its part of struct conn
 *	#define HANDLER_WORK "redis/work.h"	struct handler_work and handler_out, its scratch
 *	#include "redis/handler.h"		the functions below
 *
 * All is bound at compile time: no call, no pointer. A handler has its own tables, for its objects
 * have their own maps.
 *
 * A protocol has a stream of requests and one of replies, as many of these as of those and in the same
 * order. The splice keeps TCP: sequence numbers, quiescence, replay, timers, holes. The handler finds
 * where requests and replies begin and end, and knows answers.
 *
 * Invariants (the handler's):
 *  H1. It changes nothing but its own part of the entry (conn.h, handler_bits, vain, the flags
 *      of CONN_F_HANDLER, its bit of conn.called), its scratch, and, under the entry's lock: conn.state, and
 *      CONN_F_SCAN_LOST and CONN_F_UNCOUNTABLE where a stream cannot be followed. What takes in a
 *      connection again behind a proof (redis/admit.h) begins counting anew.
 *  H2. handler_answer() changes nothing that outlives the packet: the splice may still refuse.
 *  H3. Its state describes the streams up to conn.next and conn.scan_next exactly. conn.in_at and out_at
 *      say whether a request, or a reply, has begun there that is not whole.
 *  H4. What it does not understand it does not count: CONN_F_SCAN_LOST of requests, _UNCOUNTABLE of
 *      replies. Such a connection is translated, and never answered.
 */
#pragma once
#include "base/seam.h"
#include "net/sock.h"
#include "net/work.h"

/* What handler_up_commit() made of a packet. */
enum up_taken {
	UP_TAKEN = 0, /* it counts */
	UP_UNREAD,    /* it passes, and changes nothing */
	UP_RACE,      /* the entry has moved: the packet is dropped, nothing was changed */
};

/* How a packet that goes up is to be scanned. */
enum up_how {
	UP_SCAN = 0,
	UP_WHOLE, /* handler_answer() has read it: w->commands whole requests */
	UP_LOST,  /* the stream cannot be read: CONN_F_SCAN_LOST */
};

/* What handler_usual() says to one usual request. */
enum usual {
	USUAL_NOT = 0, /* handler_answer() is to be asked */
	USUAL_ANSWER,  /* its answer is in w->reply */
	USUAL_MISS,    /* handler_answer() would refuse, for w->refusal */
	USUAL_WRITE,   /* the same, and it does something: handler_usual_take() */
};

/* What handler_reply_usual() says. */
enum reply_usual {
	REPLY_ODD = 0, /* it is to be scanned */
	REPLY_PLAIN,   /* one whole reply */
	REPLY_ENDS,    /* the same, as to a request that takes something */
};

struct out_work;

/* What a sweep sees of an entry's socket. */
struct sweep_look {
	bool found;
	bool closed;   /* the server has closed its end: nothing will run any more */
	bool lives;    /* neither */
	bool unsent;   /* not all that it sent is acknowledged */
	bool executed; /* copied_seq is past proof_pos */
	u32 copied_seq;
	u32 proof_pos; /* handler_proof_pos(), read before */
	u32 requests;  /* out: how many the row's flags speak of */
	u32 counts;    /* handler's: what handler_swept() is to count */
};

/* Whether a payload that begins with these 16 bytes may be one that handler_usual() knows. */
INLINE bool handler_may_know(const struct work *w, const u8 *body);
/* The payload's first chunk is in w->payload (loaded: all of it): fetches what its answer will look at.
 * Changes nothing. */
INLINE void handler_peek(struct work *w, const struct control *c, bool loaded);
/* Reads the payload, and if all of it can be answered writes the reply to w->reply, its length to
 * w->reply_len. Returns 0 or the reason against it. Sets w->whole and w->commands. */
INLINE u32 handler_answer(struct work *w, struct control *c, const struct conn *conn);
/* handler_peek() of a payload that is loaded. Returns whether handler_usual() is to be asked. */
INLINE bool handler_peek_usual(struct work *w, const struct control *c);
/* Behind handler_peek_usual(): the same for the one usual request, in less time and without a trace. What
 * handler_answer() would leave behind, handler_usual_done() does: once the packet is answered, or goes up
 * by handler_up_usual(). */
INLINE enum usual handler_usual(struct work *w, struct control *c, const struct conn *conn);
INLINE void handler_usual_done(struct work *w, struct control *c);
/* Behind USUAL_WRITE: what the request does is taken, before it goes up by handler_up_usual(). handler_up_undo()
 * gives it back. */
INLINE void handler_usual_take(struct work *w, const struct control *c);
/* Whether that holds still. Lock held. Returns 0 or the reason against it. */
INLINE u32 handler_answer_still(const struct conn *conn, const struct work *w);
/* The answer was committed: counted. */
INLINE void handler_answered(struct work *w);
/* The packet at hand is a sample (splice/latency.h): before anything of it is read, and once it was answered or
 * has gone up. */
INLINE void handler_sample_begin(struct work *w);
INLINE void handler_sample_end(struct work *w);

/* Whether a payload that begins with these 16 bytes may be a write that could be answered: splice/absorb.h. */
INLINE bool handler_may_absorb(const u8 *body);
/* Reads it, and begins to fetch what an answer will touch. Changes nothing but scratch. */
INLINE void handler_absorb_peek(struct work *w);
/* Behind that, prepares the write: its record behind the log's head, its answer as handler_answer() does. Returns 0 or the reason
 * against it. */
INLINE u32 handler_absorb(struct work *w, struct control *c, const struct conn *conn);
/* The cache set that it concerns; whether nothing stands in its way at this moment. */
INLINE u32 handler_absorb_set(const struct work *w);
INLINE bool handler_absorb_may(const struct work *w, const struct control *c);
/* What a write waits for that is not answered for this reason, enum wait_for; 0: nothing, it goes up. *marked_ns: how
 * long it does at most where that is a mark. */
INLINE u32 handler_absorb_delay(const struct work *w, struct control *c, u32 reason,
				u32 *marked_ns);
/* It was delayed for so long, and goes up. */
INLINE void handler_absorb_overdue(const struct work *w, struct control *c, u32 reason);
/* The write was committed: it has its LSN, and its record is the drain's. Under no lock. */
static int handler_absorb_publish(void);
/* The same two where somebody else in the kernel keeps every write that is answered. Whether he takes the record that
 * is prepared, which is then certain: 0 or the reason against it. Published it is his before it is the drain's. */
INLINE u32 handler_keep_reserve(const struct work *w);
static int handler_keep_publish(void);

/* What a new connection will be judged by is read; not under a lock. */
INLINE void handler_judge(struct work *w, const struct control *c);
/* The entry begins; known: its stream is seen from the first byte. Lock held. */
INLINE void handler_begin(struct conn *conn, const struct work *w, bool known);
/* The reason against an answer to one that is not FAST, nor NEW. */
INLINE u32 handler_refusal(const struct conn *conn);
/* Whether the entry holds what only an answer or a proof releases. Lock held. */
INLINE bool handler_holds(const struct conn *conn);
/* Whether a request that was counted takes effect with bytes that are still to come. */
INLINE bool handler_late(const struct conn *conn);
/* Requests of the stream passed unseen, or nobody knows which passed. Lock held. */
INLINE void handler_lost(struct conn *conn);

/* A packet goes up: scanning begins where the entry is. Lock held. */
INLINE void handler_up_load(struct work *w, const struct conn *conn);
/* Scans w->scan_len bytes from w->scan_seq on, of which what lies before w->scan_from was scanned; what
 * they do is taken before the packet goes up. Sets w->scan_next, w->requests, w->in_at and
 * w->scan_lost. */
INLINE void handler_up_scan(ctx_t *ctx, struct work *w, struct conn *conn, enum up_how how);
/* Of what was scanned, while something is not drained: whether it comes behind that. No, if no request begins, ends
 * or takes effect with the packet (order.h, Y1), or only such as need not wait (Y6, Y7). */
INLINE bool handler_up_asks(struct work *w, enum up_how how);
/* Whether the payload is, byte for byte, a request that is never held (Y6), and no end of its bytes is one that is: the
 * server may be within a request that began before, and these bytes may be the rest of that. It was under way while all
 * that is not drained was answered, so no client can tell which of the two came first. */
INLINE bool handler_probes(const struct work *w);
/* Whether one of what was scanned may tell who has the writes of its connection: order.h, Y8. */
INLINE bool handler_up_syncs(const struct work *w, enum up_how how);
/* The scan goes into the entry, whose next and requests are still the old ones. Lock held. */
INLINE enum up_taken handler_up_commit(struct conn *conn, struct work *w, enum up_how how);
/* Behind the lock: what was taken and is not held is given back. */
INLINE void handler_up_done(struct work *w, struct conn *conn);
/* Behind USUAL_MISS, or (writes) handler_usual_take(), for the one request that ends at w->end: handler_up_commit() and
 * what goes before it, and handler_up_done(). Returns false, and has changed nothing, where these are to be asked. */
INLINE bool handler_up_usual(struct conn *conn, struct work *w, bool writes);
INLINE void handler_up_usual_done(struct work *w);
/* The packet does not go up after all. */
INLINE void handler_up_undo(struct work *w);
/* Bytes that were counted before go up again. Returns whether they may: the entry has not moved. What takes
 * effect with them asks for the order under the entry's lock (order_waits(), Y1). */
INLINE bool handler_up_again(struct work *w, struct conn *conn, u64 cookie);

/* Whether the payload, len bytes from body_at on, is one whole usual reply; if not, the functions below are to
 * be asked. Changes nothing but scratch. */
INLINE enum reply_usual handler_reply_usual(struct __sk_buff *ctx, u32 body_at, u32 len);
/* Whether such a reply changes nothing of the connection but that it is counted: then all of the functions below do
 * nothing. ends: of REPLY_ENDS; or no more than what its request has taken, which it ends. Lock held. */
INLINE bool handler_down_usual(const struct conn *conn, bool ends);
/* It does, or there is nothing to end; behind handler_down_begin(), and before handler_down_done(). conn.replies
 * has moved. Lock held. */
INLINE void handler_down_end(struct conn *conn, struct out_work *ow);
/* A packet from the server: scratch is prepared. */
INLINE void handler_down_begin(struct out_work *ow, const struct control *c);
/* Scans the payload from ow->scan_from on; ow->scan_lost: it cannot, bytes are missing. Sets ow->replies, ow->out_at and ow->scan_lost. */
INLINE void handler_down_scan(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn);
/* That is the stream's state now. Lock held. */
INLINE void handler_down_take(struct conn *conn, const struct out_work *ow);
/* Whether what was scanned shows that replies were not counted right. Lock held. */
INLINE bool handler_doubts(const struct conn *conn, const struct out_work *ow);
/* Replies of the connection are not counted any more. Lock held. */
INLINE void handler_uncounted(struct conn *conn, struct out_work *ow);
/* ow->replies have left, conn.replies has moved. Lock held. */
INLINE void handler_replied(struct conn *conn, struct out_work *ow);
/* Behind the lock: what these decided is carried out. */
INLINE void handler_down_done(struct out_work *ow, struct control *c);

/* Kernel space: end of the bytes that proof is asked for. */
INLINE u32 handler_proof_pos(const struct conn *conn);
/* The sweep looks at the entry: what of it the daemon should know goes into io. Lock held. Returns
 * SWEEP_F_HOLDS and SWEEP_F_EXECUTED as they are. */
INLINE u32 handler_sweep(struct conn *conn, struct sweep_io *io, const struct sock_ref *r,
			 const struct control *c, struct sweep_look *look);
/* Behind the lock; n: the walk's place, flags: SWEEP_F_* so far. Returns more of them. */
INLINE u32 handler_swept(struct sweep_io *io, u32 n, u32 flags, struct sweep_look *look);
/* Whether the daemon's proof is of what the entry holds still. Lock held. */
INLINE bool handler_proved(const struct conn *conn, const struct release_io *io);
/* What the entry holds goes to scratch, as far as it is proved. */
INLINE void handler_release_begin(struct work *w);
INLINE u32 handler_release(struct conn *conn, struct work *w, const struct release_io *io);
/* Behind the lock: it is given back; shares: what handler_release() has returned. */
INLINE void handler_released(struct work *w, struct control *c, u32 shares);
