# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `writes` of `erb lab vm`, in the guest until its power is cut. Without words: a network, and a program that has these
# steps done as the host says. With words: one step.
erb=$work/erb
disk=/run/disk
journal=$disk/journal

# or_torn COMMAND...: of the journal. A torn end is no fault behind a cut: what lies before it counts.
or_torn() {
	local ended=0
	"$@" || ended=$?
	[ $ended = 0 ] || [ $ended = 30 ]
}

network() {
	ip link set eth0 up && ip address add 10.0.2.15/24 dev eth0 && ip route add default via 10.0.2.2
	# So that erb-node-vm finds this one by a name.
	ip netns attach client $$
	ip netns add server && ip link add c0 type veth peer name s0 netns server
	ip address add 10.9.0.2/24 dev c0 && ip link set c0 up
	server ip address add 10.9.0.1/24 dev s0 && server ip link set s0 up && server ip link set lo up
}

case ${1:-} in
'')
	for module in virtio_net virtio_blk ext4 veth sch_ingress cls_bpf af_packet inet_diag tcp_diag libcrc32c; do
		modprobe -q "$module" || echo "no module $module"
	done
	mkdir -p $disk
	network
	"$work/erb-node-vm" writes-inside "$(readlink -f "$0")"
	busybox poweroff -f
	;;
# The disk's own sectors, before there are files; what the drive answers, without this machine's cache.
raw)
	yes "$3" | head -c 4096 >/run/raw
	[ "$2" = flushed ] && flush=fsync || flush=notrunc
	dd if=/run/raw of=/dev/vda bs=4096 count=1 oflag=direct conv=$flush status=none
	;;
raw-read) dd if=/dev/vda bs=4096 count=1 iflag=direct status=none | head -n 1 ;;
cache) cat /sys/block/vda/queue/write_cache ;;
format) mkfs.ext4 -q -F /dev/vda && mount /dev/vda $disk && umount $disk && sync ;;
mount) mount -t ext4 /dev/vda $disk ;;
clear)
	! redis_answers || server redis-cli shutdown nosave
	rm -rf $disk/* && mkdir -p $disk/redis $journal && sync
	;;
redis)
	server redis-server --bind 10.9.0.1 127.0.0.1 --protected-mode no --dir $disk/redis --save '' --appendonly yes \
		--appendfsync everysec --daemonize yes --logfile /run/redis.log --pidfile /run/redis.pid >/dev/null
	within 60 redis_answers || {
		tail -n 20 /run/redis.log >&2
		exit 1
	}
	;;
boost)
	keeps=(--journal "$2")
	[ "$2" != kmod ] || { insmod "$work/kmod/erb_io.ko" && keeps=(--journal all --journal-sink kmod); } || exit
	server "$erb" boost --dev s0 --dev lo --redis 127.0.0.1:6379 --mode write-back "${keeps[@]}" --journal-dir $journal >&2
	;;
status) server "$erb" status --json ;;
stop) kill -STOP "$(cat /run/redis.pid)" ;;
continue) kill -CONT "$(cat /run/redis.pid)" ;;
check) or_torn "$erb" journal check $journal >&2 ;;
show) or_torn "$erb" journal show --json $journal ;;
apply) server "$erb" journal apply $journal --redis 127.0.0.1:6379 --yes >&2 ;;
discard) "$erb" journal discard $journal --yes >&2 ;;
*) exit 2 ;;
esac
