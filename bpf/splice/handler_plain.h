/* SPDX-License-Identifier: GPL-2.0 */
/* handler_plain.h - what a handler says that holds nothing and asks nobody: its answers follow from the
 * request alone, and what goes up concerns its own connection alone. */
#pragma once
#include "base/seam.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/handler.h"

struct out_work;

INLINE void handler_peek(struct work *w, const struct control *c, bool loaded)
{
}

INLINE bool handler_peek_usual(struct work *w, const struct control *c)
{
	return false;
}

INLINE bool handler_may_know(const struct work *w, const u8 *body)
{
	return false;
}

INLINE enum usual handler_usual(struct work *w, struct control *c, const struct conn *conn)
{
	return USUAL_NOT;
}

INLINE void handler_usual_done(struct work *w, struct control *c)
{
}

INLINE void handler_usual_take(struct work *w, const struct control *c)
{
}

INLINE bool handler_up_usual(struct conn *conn, struct work *w, bool writes)
{
	return false;
}

INLINE void handler_up_usual_done(struct work *w)
{
}

INLINE bool handler_probes(const struct work *w)
{
	return false;
}

INLINE u32 handler_answer_still(const struct conn *conn, const struct work *w)
{
	return 0;
}

INLINE void handler_answered(struct work *w)
{
}

INLINE void handler_sample_begin(struct work *w)
{
}

INLINE void handler_sample_end(struct work *w)
{
}

INLINE bool handler_may_absorb(const u8 *body)
{
	return false;
}

INLINE void handler_absorb_peek(struct work *w)
{
}

INLINE u32 handler_absorb(struct work *w, struct control *c, const struct conn *conn)
{
	return STAT_REFUSE_COMMAND;
}

INLINE u32 handler_absorb_set(const struct work *w)
{
	return 0;
}

INLINE bool handler_absorb_may(const struct work *w, const struct control *c)
{
	return false;
}

INLINE u32 handler_absorb_delay(const struct work *w, struct control *c, u32 reason, u32 *marked_ns)
{
	return 0;
}

INLINE void handler_absorb_overdue(const struct work *w, struct control *c, u32 reason)
{
}

INLINE int handler_absorb_publish(void)
{
	return 0;
}

INLINE u32 handler_keep_reserve(const struct work *w)
{
	return STAT_REFUSE_COMMAND;
}

INLINE int handler_keep_publish(void)
{
	return 0;
}

INLINE void handler_judge(struct work *w, const struct control *c)
{
}

INLINE bool handler_holds(const struct conn *conn)
{
	return false;
}

INLINE bool handler_late(const struct conn *conn)
{
	return false;
}

INLINE u32 handler_refusal(const struct conn *conn)
{
	return STAT_REFUSE_BYPASS;
}

INLINE void handler_lost(struct conn *conn)
{
}

INLINE void handler_up_done(struct work *w, struct conn *conn)
{
}

INLINE bool handler_up_asks(struct work *w, enum up_how how)
{
	return true;
}

INLINE bool handler_up_syncs(const struct work *w, enum up_how how)
{
	return false;
}

INLINE void handler_up_undo(struct work *w)
{
}

INLINE bool handler_up_again(struct work *w, struct conn *conn, u64 cookie)
{
	return true;
}

#if !TIER_XDP
INLINE enum reply_usual handler_reply_usual(struct __sk_buff *ctx, u32 body_at, u32 len)
{
	return REPLY_ODD;
}

INLINE bool handler_down_usual(const struct conn *conn, bool ends)
{
	return false;
}

INLINE void handler_down_end(struct conn *conn, struct out_work *ow)
{
}

INLINE void handler_down_begin(struct out_work *ow, const struct control *c)
{
}

INLINE bool handler_doubts(const struct conn *conn, const struct out_work *ow)
{
	return false;
}

INLINE void handler_uncounted(struct conn *conn, struct out_work *ow)
{
}

INLINE void handler_down_done(struct out_work *ow, struct control *c)
{
}

INLINE u32 handler_proof_pos(const struct conn *conn)
{
	return conn->up_max - conn->in_delta;
}

INLINE u32 handler_sweep(struct conn *conn, struct sweep_io *io, const struct sock_ref *r,
			 const struct control *c, struct sweep_look *look)
{
	return 0;
}

INLINE u32 handler_swept(struct sweep_io *io, u32 n, u32 flags, struct sweep_look *look)
{
	return 0;
}

INLINE bool handler_proved(const struct conn *conn, const struct release_io *io)
{
	return true;
}

INLINE void handler_release_begin(struct work *w)
{
}

INLINE u32 handler_release(struct conn *conn, struct work *w, const struct release_io *io)
{
	return 0;
}

INLINE void handler_released(struct work *w, struct control *c, u32 shares)
{
}
#endif
