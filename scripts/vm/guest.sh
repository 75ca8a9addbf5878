#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What load-test.sh runs in the guest; its argument, erb_work=, is on the kernel's command line.
# Ends the guest. The verdict is the line `guest: N failed`.
failed=0

check() {
	echo "--- $*"
	"$@" && return
	echo "guest: FAILED ($?): $*"
	failed=$((failed + 1))
}

redis() {
	"$erb" lab exec client -- redis-cli -h 10.77.0.2 "$@"
}

# On one connection: its first command is Redis's, and so is a key until it was missed twice.
get_40_times() {
	[ "$(redis -r 40 -i 0.05 get greeting | grep -c '^hello$')" = 40 ]
}

# Counters that are zero are not shown.
status_shows_answers() {
	"$erb" lab exec server -- "$erb" status | tee /run/status
	grep -q ' FAST_GET ' /run/status
}

# Loading the traced programs takes its time where all is emulated.
trace_shows_answers() {
	"$erb" lab exec server -- "$erb" trace --key greeting --limit 40 \
		--seconds 200 >/run/trace 2>/run/trace.said &
	for _ in $(seq 120); do
		grep -q '^tracing' /run/trace.said && break
		sleep 1
	done
	get_40_times
	wait $! || return
	tail -n 2 /run/trace
	grep -q ' GET greeting => answered .*FAST_GET' /run/trace
}

work=$(sed 's/.*\berb_work=\([^ ]*\).*/\1/' /proc/cmdline)
erb=$work/erb
echo "guest: Linux $(uname -r)"
mkdir /sys/fs/bpf/load
check "$work/load" /sys/fs/bpf/load "$work"/objects/*.bpf.o
rm -r /sys/fs/bpf/load
check "$erb" lab up --direct --mode read
check redis set greeting hello
check get_40_times
check status_shows_answers
check trace_shows_answers
check "$erb" lab down
echo "guest: $failed failed"
busybox poweroff -f
