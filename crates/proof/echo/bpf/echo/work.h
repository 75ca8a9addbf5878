/* SPDX-License-Identifier: GPL-2.0 */
/* echo/work.h - scratch of the echo handler: HANDLER_WORK. */
#pragma once
#include "base/seam.h"

struct handler_work {
	struct echo_at at;
};
struct handler_out {
	struct echo_at at;
};
