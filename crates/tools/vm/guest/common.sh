#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What guests of `erb lab vm` have in common; stands before the script of each. Some have a `check` of their own.
failed=0

# word NAME: what the kernel's command line says of it.
word() {
	sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline
}

check() {
	echo "--- $*, at $(cut -d. -f1 /proc/uptime) s"
	"$@" && return
	echo "guest: FAILED ($?): $*"
	failed=$((failed + 1))
}

# A thing without which nothing else can be looked at.
need() {
	"$@" && return
	echo "guest: FAILED ($?): $*"
	echo "guest: 1 failed"
	busybox poweroff -f
}

# within SECONDS COMMAND...: until it ends well. All is emulated, so nothing is soon.
within() {
	local i seconds=$1
	shift
	for ((i = 0; i < seconds * 5 * ${slow:-1}; i++)); do
		"$@" && return
		sleep 0.2
	done
	echo "not within $seconds s: $*"
	return 1
}

server() {
	ip netns exec server "$@"
}

redis_answers() {
	[ "$(server redis-cli ping 2>/dev/null)" = PONG ]
}

work=$(word erb_work)
slow=$(word erb_slow)
