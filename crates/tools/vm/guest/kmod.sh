#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What kmod-test.sh runs in the guest: the checks of crates/proof/kmod/guest, each with the module inserted anew.
# erb_work=, erb_cycles=, erb_only= and erb_slow= are on the kernel's command line. Ends the guest. The verdict is the line `guest: N failed`.
# shellcheck source=scripts/vm/debug-guest.sh
. "${BASH_SOURCE[0]%/*}/debug-guest.sh"
failed=0

word() {
	sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline
}

check() {
	echo "--- $*"
	# In a shell of its own, which knows the functions below.
	# shellcheck disable=SC2016
	timeout $((120 * slow)) bash -c '"$@"' bash "$@" && return
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

# with CHECK FOLDER FOLDER: the module must go behind it.
with() {
	[[ $1 == *$only* ]] || return 0
	insmod "$work/kmod/erb_io.ko" && "$guest" "$1" "$work/kmod/push.bpf.o" "$2" "$3" && rmmod erb_io
	local result=$?
	rmmod erb_io 2>/dev/null
	return $result
}

insert() {
	[[ insert != *$only* ]] || "$guest" insert "$work/kmod/erb_io.ko" /run/big /run/big
}

cycles() {
	local count
	for count in $(seq "$1"); do
		with cycle /run/big /run/big || return
	done
	echo "$count times inserted and removed"
}

quiet_log() {
	! dmesg | grep -E 'WARNING:|BUG|Oops|general protection|blocked for more than|KFENCE|kmemleak|INFO: (task|rcu)'
}

export -f place with insert cycles quiet_log debug_end
work=$(word erb_work)
guest=$work/kmod/guest
only=$(word erb_only)
slow=$(word erb_slow)
export work guest only leaks
echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
for module in loop ext4 veth libcrc32c; do
	modprobe -q "$module"
done
debug_begin
check place big 128M
check place small 2M -b 1024 -O ^has_journal
check place lying 64M -O ^has_journal
ip link add near type veth peer name far
ip address add 10.9.0.1/24 broadcast 10.9.0.255 dev near
ip link set near up
ip link set far up
check "$guest" without "$work/kmod/push.bpf.o" /run/big /run/big
check insert
for name in refused log beside packets killed frozen gap; do
	check with "$name" /run/big /run/big
done
check with full /run/small /run/big
check with unsynced /run/lying /run/big
check umount /run/small
check umount /run/lying
check cycles "$(word erb_cycles)"
check umount /run/big
check debug_end
check quiet_log
[ "$failed" = 0 ] || dmesg | tail -n 60
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
