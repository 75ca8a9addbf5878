# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `load` of `erb lab vm`, in the guest: each program is loaded by itself, then a lab's Redis is boosted, answers,
# and is traced. erb_work= is on the kernel's command line. Ends the guest. The verdict is the line `guest: N failed`.
each_program_loads() {
	mkdir /sys/fs/bpf/load
	"$work/erb-load-vm" /sys/fs/bpf/load
	local result=$?
	rm -r /sys/fs/bpf/load
	return $result
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
	for _ in $(seq 600); do
		grep -q '^tracing' /run/trace.said && break
		sleep 0.2
	done
	get_40_times
	wait $! || return
	tail -n 2 /run/trace
	grep -q ' GET greeting => answered .*FAST_GET' /run/trace
}

erb=$work/erb
echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
check each_program_loads
check "$erb" lab up --direct --mode read
check redis set greeting hello
check get_40_times
check status_shows_answers
check trace_shows_answers
check "$erb" lab down
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
