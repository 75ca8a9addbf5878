# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `study` of `erb lab vm`, in the guest: the source paper's own way (kmod/study). Redis's log is found among its descriptors,
# and what a boost answers with the kernel module as its sink is appended there, too. That it breaks what the documents say it
# breaks is what is checked. Behind debug.sh and boosted.sh; erb_work= and erb_slow= are on the kernel's command line. Ends the
# guest. The verdict is the line `guest: N failed`.
counters=/sys/module/erb_aof/parameters
log=/run/redis/appendonlydir

insert() {
	insmod "$work/kmod/erb_io.ko" && insmod "$work/kmod/study/erb_aof.ko" &&
		dmesg | grep 'erb_aof: for study: appends to Redis.s own log behind its back'
}

# Nothing was found, nobody pushes: a module like any other.
goes() {
	rmmod erb_aof && insmod "$work/kmod/study/erb_aof.ko"
}

is_found() {
	dmesg | grep 'erb_aof: redis-server ([0-9]*) has appendonly.aof.[0-9]*.incr.aof as descriptor'
}

find_log() {
	local library redis
	redis=$(busybox pidof redis-server)
	library=$(sed -n 's/.* \(\/.*libc\.so.*\)/\1/p' "/proc/$redis/maps" | head -n 1)
	"$work/erb-kmod-vm" aof "$redis" "$library" &
	looks=$!
	within 60 is_found && ! rmmod erb_aof 2>/dev/null
}

# As many as were answered in Redis's place, and were not before, are in Redis's log by the module.
all_appended() {
	[ "$(cat $counters/appended)" = "$(number ABSORBED)" ] && [ "$(cat $counters/refused)" = 0 ] && [ "$(cat $counters/failed)" = 0 ]
}

# keep NAME: writes; how many of them were answered in Redis's place is in `answered`.
keep() {
	answered=$(number ABSORBED)
	write "$1" && within 60 is_drained && within 60 all_appended && answered=$(($(number ABSORBED) - answered)) || return
	echo "$answered answered, $(cat $counters/appended) appended in all"
	[ $answered -ge $((sets / 2)) ]
}

# in_log NAME TIMES: how many keys of this name Redis's log sets so often. The drain's are in MSETs.
in_log() {
	cat $log/*.aof | python3 -c 'import collections, re, sys
name, times = sys.argv[1].encode(), int(sys.argv[2])
keys = re.findall(rb"\r\n(" + re.escape(name) + rb"-\d+-\d+)(?=\r\n)", sys.stdin.buffer.read())
print(sum(count == times for count in collections.Counter(keys).values()))' "$@"
}

# Redis, when it starts again, executes each SET twice.
twice() {
	keep twice && echo "$(in_log twice 1) once, $(in_log twice 2) twice in Redis's log" &&
		[ "$(in_log twice 2)" = "$answered" ] && [ "$(in_log twice 1)" = $((4 * sets - answered)) ]
}

# What Redis would have after a crash: another one reads a copy of its log.
read_again() {
	rm -rf /run/again && cp -r /run/redis /run/again || return
	server redis-server --bind 127.0.0.1 --port 7000 --dir /run/again --save '' --appendonly yes --daemonize yes \
		--logfile /run/again.log >/dev/null && within 60 again_answers
}

again() {
	server redis-cli -p 7000 "$@"
}

again_answers() {
	[ "$(again ping 2>/dev/null)" = PONG ]
}

# Another client writes to another database, for as long as the others write to theirs.
disturb() {
	seq 1000 | sed 's/.*/LPUSH list &/' | server redis-cli -n 1 >/dev/null
}

# What the module appends behind that gets there, too: until the drain has Redis choose the right one again, which may be first.
elsewhere() {
	local try disturber
	for try in 1 2 3 4 5; do
		disturb &
		disturber=$!
		keep "elsewhere-$try" && wait $disturber && read_again || return
		echo "$(server redis-cli -n 1 dbsize) keys in database 1, $(again -n 1 dbsize) after a start"
		[ "$(server redis-cli -n 1 dbsize)" = 1 ] || return
		[ "$(again -n 1 dbsize)" = 1 ] || return 0
		again shutdown nosave
	done
	return 1
}

is_rewritten() {
	local info
	info=$(server redis-cli info persistence)
	[[ $info == *aof_rewrite_in_progress:0* && $info == *aof_rewrite_scheduled:0* && $info == *aof_rewrites:1* ]]
}

# Behind a rewrite the module has the old file, which Redis has deleted.
rewritten() {
	server redis-cli bgrewriteaof && within 60 is_rewritten && keep behind &&
		echo "$(in_log behind 1) once, $(in_log behind 2) twice in Redis's log" &&
		[ "$(in_log behind 1)" = $((4 * sets)) ]
}

# The boost never knew of it.
ends() {
	kill $looks && wait $looks
	within 20 rmmod erb_aof 2>/dev/null && write ends && within 60 is_drained && server "$erb" detach && within 20 rmmod erb_io 2>/dev/null
}

echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
for module in veth libcrc32c sch_ingress cls_bpf af_packet inet_diag tcp_diag; do
	modprobe -q "$module"
done
mkdir -p $journal /run/redis
check debug_begin
check network
check redis
check insert
check goes
check find_log
check boost kmod
check twice
check elsewhere
check rewritten
check ends
check debug_end
[ "$failed" = 0 ] || dmesg | tail -n 60
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
