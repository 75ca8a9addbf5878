// SPDX-License-Identifier: Apache-2.0 OR MIT
// Preloaded: gives a process a wall clock that is ERB_TEST_CLOCK_SECONDS ahead of the machine's (behind, if negative).
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
	const char *seconds = getenv("ERB_TEST_CLOCK_SECONDS");
	int failed = syscall(SYS_clock_gettime, id, now);

	if (!failed && id == CLOCK_REALTIME && seconds)
		now->tv_sec += atol(seconds);
	return failed;
}
