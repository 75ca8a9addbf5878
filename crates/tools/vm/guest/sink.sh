# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `sink` of `erb lab vm`, in the guest: a real Redis is boosted with the kernel module as its journal's sink, real
# clients write, and of each segment a second name is kept, so that none that the daemon deletes is missed. Behind debug.sh and boosted.sh.
# erb_work=, erb_cycles=, erb_only= and erb_slow= are on the kernel's command line. Ends the guest. The verdict is the line `guest: N failed`.
# Behind values of who fills a disk: so records need another block soon.
padding=$(printf '%1000s' '' | tr ' ' .)
# What is to be in segments at the next look: LSNs behind this one.
looked_at=0

only=$(word erb_only)
boosted=
links=$disk/links

check() {
	[[ $1 == *$only* ]] || [ -z "$boosted" ] || return 0
	[ -z "$boosted" ] || echo "guest: chosen"
	echo "--- $*, at $(cut -d. -f1 /proc/uptime) s"
	"$@" && return
	echo "guest: FAILED ($?): $*"
	failed=$((failed + 1))
	server "$erb" status
	tail -n 5 /run/erb/*/log
}

place() {
	mkdir -p $disk /run/redis && truncate -s 96M /run/image &&
		mkfs.ext4 -q -F -m 0 -E lazy_itable_init=1,nodiscard /run/image && mount -o loop /run/image $disk &&
		mkdir $links $journal
}

# A second name of each segment, as soon as it has one: what a dead sink has left may be drained already, and goes with the daemon's
# next look.
link_all() {
	python3 -c 'import os, sys, time
journal, links = sys.argv[1:]
while True:
	time.sleep(0.005)
	for name in os.listdir(journal):
		at, segment = links, os.path.join(journal, name)
		try:
			# A daemon that finds an empty folder gives numbers once more.
			while name.endswith(".erbj") and not os.path.samefile(segment, os.path.join(at, name)):
				at += "+"
				os.makedirs(at, exist_ok=True)
		except FileNotFoundError:
			try:
				os.link(segment, os.path.join(at, name))
			except OSError:
				pass
		except OSError:
			# A full disk has no room for a folder: with the next look.
			pass' $journal $links
}

boost_is_refused() {
	! server "$erb" boost --dev s0 --dev lo --redis 127.0.0.1:6379 --mode write-back --journal all --journal-sink kmod \
		>/run/boost 2>&1 && cat /run/boost && grep -q 'erb_io' /run/boost
}

# write_on NAME [PADDING]: one client, until there is no /run/more, some hundred SETs a second.
write_on() {
	local count=0
	touch /run/more
	while [ -e /run/more ]; do
		count=$((count + 1))
		echo "SET $1-$count value-$1-$count${2-}"
		echo $count >/run/wrote
		# Nobody writes there.
		read -r -t 0.002 -u 9
	done | redis-cli -h 10.9.0.1 >/run/said-on
	[ "$(grep -c '^OK$' /run/said-on)" = "$(cat /run/wrote)" ]
}

# Each LSN that was given since the last look is in a segment, and its key has the value that was written. Segments that the daemon
# has deleted go then: a disk has room for so many.
logged() {
	local answered folder
	answered=$(number ABSORBED)
	for folder in "$links" "$links"+*; do
		[ ! -e "$folder" ] || "$erb" journal show --json "$folder"
	done >/run/shown
	python3 -c 'import json, sys
answered, looked_at, padding, records = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], {}
for line in open("/run/shown"):
	record = json.loads(line)
	assert record["value"].removesuffix(padding) == "value-" + record["key"], record
	assert records.setdefault(record["lsn"], record["key"]) == record["key"], record
wanted = set(range(looked_at + 1, answered + 1))
missing = sorted(wanted - set(records))
print(f"{answered} SETs answered; of the last {len(wanted)} {len(wanted) - len(missing)} in segments, missing {missing[:20]}")
sys.exit(bool(missing) or max(records, default=looked_at) != answered)' "$answered" $looked_at "$padding" || return
	looked_at=$answered
	find "$links" "$links"+* -name '*.erbj' -links 1 -delete 2>/dev/null
	return 0
}

all_logged() {
	within 60 is_drained && within 20 logged
}

# So many SETs at least were answered since it was last asked.
answered_before=0
answered_since() {
	local answered
	answered=$(number ABSORBED)
	echo "$((answered - answered_before)) answered"
	[ $((answered - answered_before)) -ge "$1" ] && answered_before=$answered
}

# Something was answered since it was last asked.
answers() {
	[ "$(number ABSORBED)" -gt "$answered_before" ]
}

absorbs() {
	write "$1" && answered_since $((sets / 2)) && all_logged
}

# begin_writing NAME [PADDING]: a client writes until end_writing, and is answered in Redis's place by now. How soon that is the case
# no number of SETs says: where all is emulated the lease may lapse for a while.
begin_writing() {
	answered_before=$(number ABSORBED)
	write_on "$@" &
	writer=$!
	within 60 answers || ! end_writing
}

end_writing() {
	rm /run/more
	wait $writer
}

# kill -9 of daemon and guard while a client writes.
killed() {
	begin_writing killed || return
	# shellcheck disable=SC2046
	kill -9 $(busybox pidof erb)
	boost kmod && end_writing && answered_since 1 && all_logged
}

fill_disk() {
	fallocate -l $(($(stat -f -c '%a * %S' $disk))) $disk/ballast 2>/dev/null
	dd if=/dev/zero of=$disk/ballast-rest bs=1k 2>/dev/null
	within 60 is_shut
}

writes_refused() {
	dmesg | grep -c 'erb_io: gate shut (3)'
}

# fill_under NAME: the disk is full while a client writes, and the module's write fails. Where all is slow, the daemon may look
# first: it does so each second, and has nothing answered where there is little room. Then it is tried again.
fill_under() {
	local try before
	before=$(writes_refused)
	for try in 1 2 3 4 5; do
		begin_writing "$1-$try" "$padding" && fill_disk && end_writing || return
		[ "$(writes_refused)" = "$before" ] || return 0
		rm $disk/ballast* && within 60 is_open || return
	done
	echo "five times the daemon looked first"
	return 1
}

# The disk is full while a client writes; what was answered goes first to the next file.
full() {
	fill_under full-1 && write full-2 || return
	rm $disk/ballast*
	within 60 is_open && absorbs full-3 && number writes journal failures
}

# The same, and then the daemon becomes the sink: it writes what the module could not, and the module may go.
left() {
	fill_under left && begin daemon --take-over && holds || return
	rm $disk/ballast*
	within 60 is_open && within 30 rmmod erb_io && grep 'still had [0-9]* SETs of this boost' /run/erb/*/log &&
		all_logged && insmod "$work/kmod/erb_io.ko" && boost kmod --take-over
}

is_shut() {
	[ "$(number writes journal sound)" = False ] && number writes journal why
}

# Under traffic the daemon takes the sink over, the module goes and comes, and takes it back.
change() {
	begin_writing "change-$1" && boost daemon --take-over && within 30 rmmod erb_io 2>/dev/null &&
		insmod "$work/kmod/erb_io.ko" && boost kmod --take-over && end_writing && answered_since 1 && all_logged
}

holds() {
	! rmmod erb_io 2>/dev/null
}

detach() {
	server "$erb" detach && within 20 rmmod erb_io 2>/dev/null && [ -z "$(ls $journal)" ]
}

echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
for module in loop ext4 veth libcrc32c sch_ingress cls_bpf af_packet inet_diag tcp_diag; do
	modprobe -q "$module"
done
exec 9<> <(:)
check debug_begin
check place
check network
check redis
check boost_is_refused
check insmod "$work/kmod/erb_io.ko"
link_all &
check boost kmod
boosted=1
check holds
check absorbs first
check killed
check full
check left
cycles=$(word erb_cycles)
for cycle in $(seq "${cycles:-3}"); do
	check change "$cycle"
done
check absorbs last
"$erb" journal check $links
boosted=
check detach
check debug_end
[ "$failed" = 0 ] || dmesg | tail -n 60
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
