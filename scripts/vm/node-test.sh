#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# node-test.sh - the storage node and Linux's own initiator, on other kernels than the one that runs: does a
# stock nvme-tcp find, connect, store, retrieve, list and delete, and is every PDU well formed?
#
#   scripts/vm/node-test.sh [SERIES...]
#
# SERIES is like 6.12: the newest kernel of it that Debian's package servers have; "newest": of all. Without
# one: 6.12. How kernels are had, and where from: dax-test.sh, vm.sh. Installed are QEMU, busybox-static, cpio,
# kmod, xz-utils, nvme-cli and tshark, if they are missing.
#
# The guest is emulated and has no network but its loopback. Its store is a disk of 256 MB. Needs root, Debian's
# keys, 2 GB of memory; takes some minutes for each kernel.
#
# Exit code 0: all checks passed on all kernels. What they said is in target/vm/node-SERIES.log, what went over
# the loopback in target/vm/node-SERIES/.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# For vm.sh.
# shellcheck disable=SC2034
GUEST_SECONDS_MAX=1800
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

node_build() {
	cargo build --release --locked --package erb --package erb-node-vm
	cp "${CARGO_TARGET_DIR:-target}"/release/{erb,erb-node-vm} "$vm/"
}

# node_run PACKAGE OUT
node_run() {
	local disk=$vm/node.disk
	rm -rf "$disk" "$2"
	mkdir "$2"
	truncate -s 256M "$disk"
	vm_run "$1" scripts/vm/node-guest.sh 1536M "" -M q35 \
		-drive "file=$disk,format=raw,if=virtio,cache=writeback" \
		-fsdev "local,id=out,path=$2,security_model=none" -device virtio-9p-pci,fsdev=out,mount_tag=out
	rm -f "$disk"
}

# well_formed CAPTURE: tshark finds PDUs in it, and nothing that is wrong with one.
well_formed() {
	local pdus wrong
	pdus=$(tshark -n -r "$1" -d tcp.port==4420,nvme-tcp -Y nvme-tcp -T fields -e nvme-tcp.type 2>/dev/null | tr ',' '\n' | grep -c .)
	# A keep alive of TCP is a byte that was there already, and no PDU.
	wrong=$(tshark -n -r "$1" -d tcp.port==4420,nvme-tcp -Y '!tcp.analysis.keep_alive &&
		(_ws.malformed || (nvme-tcp && _ws.expert.severity == "Error") || _ws.unreassembled)' 2>/dev/null | head -n 20)
	say "$(basename "$1"): $pdus PDUs"
	[ -z "$wrong" ] || { echo "$wrong"; return 1; }
	[ "$pdus" -gt 100 ]
}

setup_root
setup_rust run
vm_packages nvme-cli tshark
node_build
vm_suites "${SUITES[@]}"
failed=()
[ $# -gt 0 ] || set -- 6.12
for series in "$@"; do
	kernel=$(vm_newest "$series")
	[ -n "$kernel" ] || die "no linux-image-$series in ${SUITES[*]}"
	vm_kernel "$kernel"
	vm_initrd "$kernel"
	out=$vm/node-$series
	say "starting $kernel, for at most $GUEST_SECONDS_MAX s"
	node_run "$kernel" "$out" || say "the guest did not end by itself"
	cp "$vm/log" "$out.log"
	grep -qx 'guest: 0 failed' "$vm/log" || failed+=("$series ($kernel)")
	for capture in "$out"/*.pcap; do
		well_formed "$capture" || failed+=("$series: $(basename "$capture")")
	done
done
[ ${#failed[@]} -eq 0 ] || die "not all is as it should be on ${failed[*]}: see $vm/node-*.log"
say "all checks passed"
