# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `dax` of `erb lab vm`, in the guest: the checks of crates/proof/dax-vm on each kind of file system. erb_work=,
# erb_ports=, erb_kills=, erb_seed= and erb_only= are on the kernel's command line. Ends the guest. The verdict is the line
# `guest: N failed`.
# Both cards lead to the host, where the peer is. clsact has a place for filters on what comes in.
network() {
	local device number=2
	for device in eth0 eth1; do
		ip link set "$device" up && ip address add 10.0.$number.15/24 dev "$device" || return
		number=$((number + 1))
	done
	tc qdisc add dev eth0 clsact
	case $(readlink /sys/class/net/eth0/device/driver) in
	*/e1000) ;;
	*) return 1 ;;
	esac
}

# pmem_of WORD: the block device whose memory was given by memmap= (e820_pmem) or as an nvdimm (ndbus of ACPI).
pmem_of() {
	local block
	for block in /sys/block/pmem*; do
		case $(readlink -f "$block") in
		*/"$1"*) basename "$block" ;;
		esac
	done | head -n 1
}

# An nvdimm without labels is raw memory at first, which no file system maps.
nvdimm_for_dax() {
	local name
	name=$(basename "$(readlink -f "/sys/block/$(pmem_of ACPI0012)/device")")
	ndctl create-namespace --force --reconfig="$name" --mode=fsdax --map=mem >/run/ndctl ||
		! cat /run/ndctl
}

# place NAME DEVICE FS OPTION FLAG ARGUMENT...: makes the file system and runs the checks on it.
place() {
	local name=$1 device=$2 fs=$3 option=$4 flag=$5 dir=/run/pmem at=/run/pmem/dir
	shift 5
	mkdir -p "$dir"
	wipefs -qa "/dev/$device"
	case $fs in
	ext4) need mkfs.ext4 -q -F -b 4096 -m 0 "/dev/$device" ;;
	xfs) need mkfs.xfs -q -f "/dev/$device" ;;
	esac
	need mount -t "$fs" -o "dax=$option" "/dev/$device" "$dir"
	# Else ext4 keeps 2 % for itself, and freed blocks may be among them.
	[ "$fs" != ext4 ] || echo 0 >"/sys/fs/ext4/$device/reserved_clusters"
	mkdir "$at"
	[ "$flag" = no ] || need xfs_io -c 'chattr +x' "$at"
	"$work/erb-dax-vm" guest "$at" --place "$name" --device "$device" --ports "$(word erb_ports)" \
		--kills "$(word erb_kills)" --seed "$(word erb_seed)" \
		${only:+--only "$only"} "$@" || failed=$((failed + 1))
	need umount "$dir"
}

only=$(word erb_only)
echo "guest: Linux $(uname -r)"
for module in nfit nd_e820 nd_pmem ext4 xfs e1000 virtio_net sch_ingress cls_u32 act_gact af_packet; do
	modprobe -q "$module"
done
mount -t tracefs tracefs /sys/kernel/tracing
udevadm settle 2>/dev/null
need network
need nvdimm_for_dax
memmap=$(pmem_of e820_pmem)
nvdimm=$(pmem_of ACPI0012)
need [ -b "/dev/$memmap" ]
need [ -b "/dev/$nvdimm" ]
place memmap/ext4/always "$memmap" ext4 always no
place nvdimm/xfs/inode "$nvdimm" xfs inode yes
place memmap/xfs/always "$memmap" xfs always no --short
place nvdimm/ext4/inode "$nvdimm" ext4 inode yes --short
place nvdimm/ext4/no-flag "$nvdimm" ext4 inode no --page-cache
place memmap/xfs/no-flag "$memmap" xfs inode no --page-cache
place memmap/xfs/bad "$memmap" xfs always no --bad-block
place nvdimm/ext4/bad "$nvdimm" ext4 inode yes --bad-block
# What the kernel itself complains of, as the pages of a naive sender.
dmesg | grep -E 'WARNING|BUG:|Oops' | sed 's/^/kernel: /' | sort | uniq -c | head -n 20
echo "guest: $failed failed"
busybox poweroff -f
