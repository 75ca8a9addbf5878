# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `kmod` of `erb lab vm`, in the guest: the checks of crates/proof/kmod-vm, each with the module inserted anew. Behind
# debug.sh. erb_work=, erb_cycles=, erb_only= and erb_slow= are on the kernel's command line. Ends the guest. The verdict is the
# line `guest: N failed`.
# Seconds of a check.
limit=120

check() {
	echo "--- $*"
	# In a shell of its own, which knows the functions below.
	# shellcheck disable=SC2016
	timeout $((limit * slow)) bash -c '"$@"' bash "$@" && return
	echo "guest: FAILED ($?): $*"
	failed=$((failed + 1))
}

# place NAME BYTES MKFS-ARGUMENT...: an ext4 in a file of that size, mounted below /run.
place() {
	local name=$1 bytes=$2 at=/run/$1
	shift 2
	mkdir -p "$at" "/run/images/$name"
	[ "$name" != lying ] || mount -t tmpfs -o size=12M tmpfs "/run/images/$name"
	truncate -s "$bytes" "/run/images/$name/image"
	mkfs.ext4 -q -F -m 0 -E lazy_itable_init=1,nodiscard "$@" "/run/images/$name/image" &&
		mount -o loop "/run/images/$name/image" "$at"
}

# An ext4 on a disk that logs each write and each flush.
place_logged() {
	local at=/run/images/logged disk log
	mkdir -p $at /run/logged && truncate -s 16M $at/image && truncate -s 256M $at/log &&
		mkfs.ext4 -q -F -m 0 -E lazy_itable_init=1,nodiscard $at/image && cp $at/image $at/begin || return
	disk=$(losetup -f --show $at/image) && log=$(losetup -f --show $at/log) &&
		dmsetup create --table "0 $(blockdev --getsz "$disk") log-writes $disk $log" logged &&
		mount /dev/mapper/logged /run/logged
}

# with CHECK FOLDER FOLDER: the module must go behind it.
with() {
	[[ $1 == *$only* ]] || return 0
	echo "guest: chosen"
	insmod "$module_file" && "$guest" "$1" "$module_file" "$2" "$3" && rmmod erb_io
	local result=$?
	rmmod erb_io 2>/dev/null
	return $result
}

insert() {
	[[ insert == *$only* ]] || return 0
	echo "guest: chosen"
	"$guest" insert "$module_file" /run/big /run/big
}

# Power is cut behind each flush. The kernel that debug-kernel.sh builds has no device mapper.
flushes() {
	[[ flushes == *$only* ]] || return 0
	if grep -qw erb_debug=1 /proc/cmdline; then
		echo "skipped: this kernel cannot log a disk's writes"
		return
	fi
	place_logged && with flushes /run/logged /run/logged && umount /run/logged && dmsetup remove logged &&
		"$guest" cuts /run/images/logged/log /run/images/logged/begin /run/images/logged
}

# Fifos for which there is no memory: it is not inserted, and nothing is killed for it.
short() {
	[[ short == *$only* ]] || return 0
	echo "guest: chosen"
	local bytes=65536 memory
	memory=$(awk '/^MemTotal/ { print $2 * 1024 }' /proc/meminfo)
	while [ $((bytes * $(nproc))) -lt "$memory" ]; do
		bytes=$((bytes * 2))
	done
	! insmod "$module_file" fifo_bytes=$bytes 2>&1 || return
	[ ! -e /sys/module/erb_io ] && ! dmesg | grep 'invoked oom-killer'
}

cycles() {
	local count
	for count in $(seq "$1"); do
		with cycle /run/big /run/big || return
	done
	echo "$count times inserted and removed"
}

export -f place place_logged with insert flushes short cycles debug_begin debug_end
guest=$work/erb-kmod-vm
module_file=$work/kmod/erb_io.ko
only=$(word erb_only)
export guest module_file only debug leaks
# It makes names of devices itself.
export DM_DISABLE_UDEV=1
echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
for module in loop ext4 veth libcrc32c dm-log-writes; do
	modprobe -q "$module"
done
check debug_begin
check place big 128M
check place small 2M -b 1024 -O ^has_journal
check place lying 64M -O ^has_journal
ip link add near type veth peer name far
ip address add 10.9.0.1/24 broadcast 10.9.0.255 dev near
ip link set near up
ip link set far up
check "$guest" without "$module_file" /run/big /run/big
check insert
check short
for name in refused log beside packets killed frozen gap null later late largest reserved twice reader; do
	check with "$name" /run/big /run/big
done
check with full /run/small /run/big
check with unsynced /run/lying /run/big
# So often an image is copied, mounted, and recovers.
limit=480 check flushes
check umount /run/small
check umount /run/lying
cycles=$(word erb_cycles)
cycles=${cycles:-30}
limit=$((limit + 4 * cycles)) check cycles "$cycles"
check umount /run/big
check debug_end
[ "$failed" = 0 ] || dmesg | tail -n 60
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
